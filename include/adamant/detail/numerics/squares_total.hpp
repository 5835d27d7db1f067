// SPDX-License-Identifier: Apache-2.0
// The exact sum of any number of blocks' sums of squares, whatever the order in which they are added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <adamant/reference.hpp>

ADAMANT_BEGIN_NAMESPACE

// An integer of 640 bits in units of 2^-320, which every sum of a block is a multiple of, and the count of elements
// that are not finite. Additions are exact, so neither their order nor how a gradient is spread over shards, threads or
// ranks changes any bit. Nothing here allocates or throws; distinct totals may be used from any thread.
class squares_total {
public:
    // 32 bits of the sum each, the lowest first, and at last the count. So totals of up to 2^31 ranks may be added word
    // by word, as 64-bit integers (MPI_INT64_T, ncclInt64, torch.int64); set_words() carries what goes beyond 32 bits.
    static constexpr std::size_t word_count = 21;
    using word_array = std::array<std::int64_t, word_count>;

    // A sum that is 0, or from 2^-252 (no element's square is less) to 2^310. Some 3 ns.
    void add(grad_squares const& squares) noexcept;
    void add(squares_total const& other) noexcept;

    // Rounded to the nearest double, once, whatever the caller's rounding mode.
    [[nodiscard]] grad_squares rounded() const noexcept;

    [[nodiscard]] std::uint64_t nonfinite() const noexcept { return static_cast<std::uint64_t>(words_[sum_words]); }
    [[nodiscard]] word_array const& words() const noexcept { return words_; }
    // False, with nothing changed, for words that no sum of totals has: a negative one, or a sum above 2^320.
    [[nodiscard]] bool set_words(word_array const& words) noexcept;

    // Whether both the sum and the count are at least those of `other`.
    [[nodiscard]] bool covers(squares_total const& other) const noexcept;
    friend bool operator==(squares_total const&, squares_total const&) = default;

private:
    static constexpr std::size_t sum_words = word_count - 1;
    void carry() noexcept;

    word_array words_{};
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/numerics/squares_total.ipp>
#endif
