// SPDX-License-Identifier: Apache-2.0
// Measures what it costs to hand work to a team. Implements <adamant/team.hpp>.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>

#include <sched.h>

#include <adamant/team.hpp>
#include <adamant/detail/exec/wait_word.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Measuring gives up after this time: a caller with a real-time policy may keep the team from its only PU.
inline constexpr std::chrono::milliseconds longest_hand_over(2);

// Time until the first `takers` threads have started a request and finished it.
[[gnu::noinline]] inline std::chrono::nanoseconds hand_over_time(team& threads, unsigned takers)
{
    std::atomic<unsigned> started{0};
    auto const begin = std::chrono::steady_clock::now();
    // As many chunks as threads. A thread keeps its chunk until all have started, so each takes one.
    threads.run(
        takers,
        [&](unsigned, std::size_t, std::size_t) {
            started.fetch_add(1, std::memory_order_acq_rel);
            for (unsigned spins = 1; started.load(std::memory_order_acquire) < takers; ++spins) {
                if (spins % 64 != 0) {
                    relax();
                    continue;
                }
                if (std::chrono::steady_clock::now() - begin > longest_hand_over)
                    return;
                sched_yield();
            }
        },
        takers);
    return std::chrono::steady_clock::now() - begin;
}

// The shortest of a few times, because everything else that the machine does makes them longer.
inline std::chrono::nanoseconds shortest_hand_over(team& threads, unsigned takers)
{
    constexpr int most_requests = 5; // fewer on a busy machine
    auto shortest = std::chrono::nanoseconds::max();
    std::chrono::nanoseconds total{0};
    for (int i = 0; i < most_requests && total < longest_hand_over; ++i) {
        std::chrono::nanoseconds const time = hand_over_time(threads, takers);
        shortest = std::min(shortest, time);
        total += time;
    }
    return shortest;
}

inline hand_over_cost measure_hand_over(team& threads)
{
    unsigned const size = threads.size();
    if (size < 2)
        return {};
    std::chrono::nanoseconds const two = shortest_hand_over(threads, 2);
    if (size == 2)
        return {two, {}};
    std::chrono::nanoseconds const all = std::max(two, shortest_hand_over(threads, size));
    return {two, (all - two) / (size - 2)};
}

} // namespace detail
ADAMANT_END_NAMESPACE
