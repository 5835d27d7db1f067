// SPDX-License-Identifier: Apache-2.0
// An exact, order-independent total of the sums of squares of gradient blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <adamant/detail/numerics/grad_squares.hpp>

ADAMANT_BEGIN_NAMESPACE

/// A 640-bit integer in units of 2^-320, and the count of elements that are not finite. Every sum of a block is a
/// multiple of the unit, so additions are exact: neither their order nor the distribution of a gradient over shards,
/// threads or ranks changes any bit. Allocates nothing and does not throw. Different threads may use different totals
/// concurrently.
class squares_total {
public:
    /// Words of 32 bits of the sum, the lowest first, then the count. The totals of up to 2^31 ranks can be reduced
    /// word by word, as 64-bit integers (MPI_INT64_T, ncclInt64, torch.int64); set_words() propagates the carries.
    static constexpr std::size_t word_count = 21;
    /// The words as an array, to reduce them over ranks.
    using word_array = std::array<std::int64_t, word_count>;

    /// squares.sum must be 0 or from 2^-252 (the smallest square of an element) to 2^310. Takes some 3 ns.
    void add(grad_squares const& squares) noexcept;
    /// Adds another total.
    void add(squares_total const& other) noexcept;

    /// The total, rounded once to the nearest double, whatever the caller's rounding mode.
    [[nodiscard]] grad_squares rounded() const noexcept;

    /// Number of elements that are not finite.
    [[nodiscard]] std::uint64_t nonfinite() const noexcept { return static_cast<std::uint64_t>(words_[sum_words]); }
    /// The words of the total.
    [[nodiscard]] word_array const& words() const noexcept { return words_; }
    /// Returns false and changes nothing if no sum of totals has these words: a word is negative, or the sum exceeds
    /// 2^320.
    [[nodiscard]] bool set_words(word_array const& words) noexcept;

    /// Whether the sum and the count are both at least those of `other`.
    [[nodiscard]] bool covers(squares_total const& other) const noexcept;
    /// Compares all words.
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
