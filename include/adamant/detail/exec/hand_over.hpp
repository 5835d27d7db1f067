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

// Time until the first `takers` threads have started a request and finished it: the shortest of a few times,
// because everything else that the machine does makes them longer.
inline std::chrono::nanoseconds shortest_hand_over(team& threads, unsigned takers)
{
    using clock = std::chrono::steady_clock;
    constexpr int most_requests = 5;
    constexpr auto enough = std::chrono::milliseconds(2); // on a busy machine
    auto const first = clock::now();
    clock::duration shortest = clock::duration::max();
    for (int i = 0; i < most_requests; ++i) {
        std::atomic<unsigned> started{0};
        auto const begin = clock::now();
        // As many chunks as threads. A thread keeps its chunk until all have started, so each takes one.
        threads.run(
            takers,
            [&](unsigned, std::size_t, std::size_t) {
                started.fetch_add(1, std::memory_order_acq_rel);
                while (started.load(std::memory_order_acquire) != takers) {
                    for (int spins = 0; spins < 64 && started.load(std::memory_order_relaxed) != takers; ++spins)
                        relax();
                    if (started.load(std::memory_order_relaxed) != takers)
                        sched_yield();
                }
            },
            takers);
        auto const end = clock::now();
        shortest = std::min(shortest, end - begin);
        if (end - first > enough)
            break;
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
