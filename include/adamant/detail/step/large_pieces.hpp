// SPDX-License-Identifier: Apache-2.0
// Steps pieces of many shards, and prefetches the next piece at the end of each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include <adamant/shard.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/step/step_elements.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Kernels prefetch some kilobytes ahead, so at the end of a piece they prefetch what follows its arrays in memory,
// which need not be the next piece. Therefore each piece waits for the next, and while its last elements are stepped,
// the first elements of the next are prefetched. Shards of 4096 elements in random order take 0.9 of the time.
class large_pieces {
public:
    // elements: of the whole list.
    large_pieces(isa tier, std::span<coefficients const> group_coefficients, kernel::memory_access const& access,
                 std::size_t elements) noexcept
        : tier_(tier), group_coefficients_(group_coefficients), access_(access),
          min_waiting_elems_(access.ahead.param == 0 ? never : min_waiting_elems(elements))
    {
    }
    // Steps elements [begin, end) of s, at the next call at the latest. Until then s must stay valid.
    void add(grouped_shard const& s, std::size_t begin, std::size_t end) noexcept
    {
        bool const waits = end - begin >= min_waiting_elems_;
        if (waiting_.s != nullptr)
            step_waiting({&s, begin, end});
        if (waits)
            waiting_ = {&s, begin, end};
        else
            step(s, begin, end, access_);
    }
    // Steps what is left, and returns the number of infinite and NaN gradients since construction.
    [[nodiscard]] std::uint64_t finish() noexcept
    {
        if (waiting_.s != nullptr)
            step(*waiting_.s, waiting_.begin, waiting_.end, access_);
        return nonfinite_;
    }

private:
    static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();
    // Computing the distances takes some 50 ns. Out of cache that pays for smaller pieces than in the last-level cache,
    // and in a core's own caches for none. Measured on a Xeon with AVX-512.
    [[nodiscard]] static std::size_t min_waiting_elems(std::size_t elements) noexcept
    {
        return elements >= stream_weight_out_from_elems ? 256 : elements >= std::size_t{1} << 18 ? 1024 : never;
    }
    struct piece {
        grouped_shard const* s = nullptr;
        std::size_t begin = 0;
        std::size_t end = 0;
    };

    // Steps the piece that waits for `next`.
    void step_waiting(piece const& next) noexcept
    {
        std::size_t const elems = waiting_.end - waiting_.begin;
        // At `last`, float arrays have been prefetched exactly to the end of the piece, and others beyond it.
        std::size_t const ahead = static_cast<std::size_t>(access_.ahead.param) / sizeof(float);
        std::size_t last = waiting_.begin + (elems < ahead ? 0 : (elems - ahead) / granule_elems * granule_elems);
        if (bytes_from(waiting_.end, next) == kernel::prefetch_distances{})
            last = waiting_.end; // the next piece is what follows
        step(*waiting_.s, waiting_.begin, last, access_);
        kernel::memory_access access = access_;
        access.ahead = bytes_from(last, next);
        step(*waiting_.s, last, waiting_.end, access);
        waiting_ = {};
    }
    [[nodiscard]] kernel::prefetch_distances bytes_from(std::size_t element, piece const& next) const noexcept
    {
        return {bytes_between(shard_array::param, element, next), bytes_between(shard_array::grad, element, next),
                bytes_between(shard_array::exp_avg, element, next),
                bytes_between(shard_array::exp_avg_sq, element, next),
                bytes_between(shard_array::weight_out, element, next)};
    }
    // From an element of the waiting piece's array to the first of the next piece's. 0 if one has no such array.
    [[nodiscard]] std::ptrdiff_t bytes_between(shard_array::index array, std::size_t element,
                                               piece const& next) const noexcept
    {
        any_shard const& current = waiting_.s->shard;
        any_shard const& following = next.s->shard;
        if (current.data(array) == nullptr || following.data(array) == nullptr)
            return 0;
        // As integers: they are different arrays.
        return static_cast<std::ptrdiff_t>(
            reinterpret_cast<std::uintptr_t>(following.data(array)) + following.bytes(array, next.begin) -
            reinterpret_cast<std::uintptr_t>(current.data(array)) - current.bytes(array, element));
    }
    void step(grouped_shard const& s, std::size_t begin, std::size_t end, kernel::memory_access const& access) noexcept
    {
        if (begin < end)
            nonfinite_ += step_elements(s.shard, tier_, begin, end, group_coefficients_[s.group], access);
    }

    isa tier_;
    std::span<coefficients const> group_coefficients_;
    kernel::memory_access access_;
    std::size_t min_waiting_elems_; // least size of a piece that waits
    std::uint64_t nonfinite_ = 0;
    piece waiting_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
