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

// Time of one request to all threads of the team.
[[gnu::noinline]] inline std::chrono::nanoseconds hand_over_to_all(team& threads)
{
    auto const begin = std::chrono::steady_clock::now();
    threads.run([](unsigned) {});
    return std::chrono::steady_clock::now() - begin;
}

// Time until the first two threads have started a request and finished it.
[[gnu::noinline]] inline std::chrono::nanoseconds hand_over_to_two(team& threads)
{
    std::atomic<unsigned> started{0};
    auto const begin = std::chrono::steady_clock::now();
    // Two chunks. A thread keeps its chunk until both have started, so each takes one.
    threads.run(
        2,
        [&](unsigned, std::size_t, std::size_t) {
            started.fetch_add(1, std::memory_order_acq_rel);
            for (unsigned spins = 1; started.load(std::memory_order_acquire) < 2; ++spins) {
                if (spins % 64 != 0) {
                    relax();
                    continue;
                }
                if (std::chrono::steady_clock::now() - begin > longest_hand_over)
                    return;
                sched_yield();
            }
        },
        2);
    return std::chrono::steady_clock::now() - begin;
}

// The shortest of a few times, because everything else that the machine does makes them longer.
inline std::chrono::nanoseconds shortest_hand_over(team& threads, std::chrono::nanoseconds (*hand_over)(team&))
{
    constexpr int most_requests = 5; // fewer on a busy machine
    auto shortest = std::chrono::nanoseconds::max();
    std::chrono::nanoseconds total{0};
    for (int i = 0; i < most_requests && total < longest_hand_over; ++i) {
        std::chrono::nanoseconds const time = hand_over(threads);
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
    std::chrono::nanoseconds const two = shortest_hand_over(threads, hand_over_to_two);
    if (size == 2)
        return {two, {}};
    // No barrier here: a counter that all threads raise would take as long as the request.
    std::chrono::nanoseconds const all = std::max(two, shortest_hand_over(threads, hand_over_to_all));
    return {two, (all - two) / (size - 2)};
}

} // namespace detail
ADAMANT_END_NAMESPACE
