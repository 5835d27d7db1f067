// SPDX-License-Identifier: Apache-2.0
// The number of threads that finishes a call soonest, by the cost of a hand-over. Implements <adamant/executor.hpp>.
// Pure arithmetic.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <adamant/executor.hpp>
#include <adamant/detail/core/granule.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Integers only: floating-point operations would set the caller's exception flags, or trap.

// Time that a thread takes for a hundred float32 elements in its caches: 13 to 17 ns on a Zen 5, 52 on a Xeon of 2.1
// GHz. A time that is wrong by a factor of two changes the number of threads by the root of it, which costs 6%.
inline constexpr std::uint64_t hundred_elems_ns = 20;

// The number of elements of elem_bytes bytes that take as long as `elems` float32 elements; no fewer than these.
constexpr std::size_t elems_of_equal_work(std::size_t elems, std::size_t elem_bytes) noexcept
{
    if (elem_bytes == 0 || elem_bytes >= step_elem_bytes ||
        elems > std::numeric_limits<std::size_t>::max() / step_elem_bytes)
        return elems;
    return elems * step_elem_bytes / elem_bytes;
}

// Whether half of n elements of elem_bytes bytes are fewer than elems_of_equal_work(elems, elem_bytes). Without a
// division, which lengthened a norm of 16,384 elements by 60 ns on a Sapphire Rapids Xeon.
constexpr bool is_small_work(std::size_t n, std::size_t elem_bytes, std::size_t elems) noexcept
{
    std::size_t const each = elem_bytes == 0 ? step_elem_bytes : std::min(elem_bytes, step_elem_bytes);
    std::size_t half = 0;
    std::size_t limit = 0;
    if (__builtin_mul_overflow(n / 2 + 1, each, &half) || __builtin_mul_overflow(elems, step_elem_bytes, &limit))
        return n / 2 < elems;
    return half <= limit;
}

// The time that n elements of elem_bytes bytes take; float32 elements have step_elem_bytes.
constexpr std::chrono::nanoseconds work_time(std::size_t n, std::size_t elem_bytes) noexcept
{
    constexpr std::uint64_t most_elems = std::uint64_t{1} << 40; // no team is too large for these
    constexpr std::uint64_t most_bytes = 1024;
    std::uint64_t const bytes =
        std::min<std::uint64_t>(n, most_elems) * std::min<std::uint64_t>(elem_bytes, most_bytes);
    return std::chrono::nanoseconds(bytes * hundred_elems_ns / (100 * step_elem_bytes));
}

// Least elements for each of two threads, by default. A second thread is worth it if its half of the work takes four
// times as long as the hand-over: a machine that also does other things takes longer than the shortest time.
constexpr std::size_t worthwhile_slice_elems(hand_over_cost const& cost) noexcept
{
    if (cost.two.count() == 0)
        return max_min_slice_elems;
    constexpr std::chrono::nanoseconds most = std::chrono::seconds(1); // so that no product overflows
    auto const two_ns = static_cast<std::uint64_t>(std::min(cost.two, most).count());
    std::size_t const elems = 4 * two_ns * 100 / hundred_elems_ns / granule_elems * granule_elems;
    return std::clamp(elems, min_chunk_elems, max_min_slice_elems);
}

// The number of threads, at least 2 of several, with which work of this time on one thread ends soonest. With k threads
// it takes work / k + k * each, which is shortest where both terms are equal.
constexpr unsigned fastest_threads(std::chrono::nanoseconds work, hand_over_cost const& cost, unsigned threads) noexcept
{
    // A cache line takes less from one socket to another. More was measured on a busy machine, or with threads that
    // share PUs.
    constexpr std::chrono::nanoseconds most_each(300);
    std::chrono::nanoseconds const each = std::min(cost.each, most_each);
    unsigned fastest = std::min(threads, 2u);
    for (unsigned too_many = threads + 1; too_many - fastest > 1;) {
        unsigned const k = fastest + (too_many - fastest) / 2;
        (each * k * k <= work ? fastest : too_many) = k;
    }
    return fastest;
}

} // namespace detail
ADAMANT_END_NAMESPACE
