// SPDX-License-Identifier: Apache-2.0
// What is to be compared is timed in rounds: each round times each contender once, in an order of its own. A shared
// machine drifts by more than what is to be seen, but not much within a round.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <benchmark/benchmark.h>

namespace race {

enum class part_in_race {
    subject, // what the row is about
    limit,   // what the subject has to do at the least: it cannot be faster than the slowest of these
    aside,   // another way, reported besides
};

struct contender {
    part_in_race part;
    std::string name;    // of several with one name the one with the smallest median counts
    std::string variant; // which of them this is
    std::function<void()> run;
    std::function<void()> prepare = {}; // before it is timed
    std::vector<double> seconds = {};   // of each round, for one run
};

// After an OpenMP region its threads spin for a while, on cores that the next contender wants for its own.
inline constexpr std::chrono::milliseconds pause_after_openmp{5};
inline constexpr std::chrono::milliseconds no_pause{0};

struct timing {
    int repeats = 1; // runs that are timed as one, for those that take less than a millisecond
    std::chrono::milliseconds pause = no_pause; // before each contender
};

inline double seconds_since(std::chrono::steady_clock::time_point start)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One round that does not count, for what happens only once (threads start, the kernel makes up its mind about pages),
// and then as many as the row has iterations. The row's time is the subject's.
inline void run(benchmark::State& state, std::vector<contender>& contenders, timing how = {})
{
    std::vector<std::size_t> order(contenders.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::minstd_rand random;
    auto const round = [&] {
        std::shuffle(order.begin(), order.end(), random); // nothing always finds the caches as the same other left them
        for (std::size_t const k : order) {
            contender& c = contenders[k];
            if (how.pause > no_pause)
                std::this_thread::sleep_for(how.pause);
            if (c.prepare)
                c.prepare();
            auto const start = std::chrono::steady_clock::now();
            for (int i = 0; i < how.repeats; ++i)
                c.run();
            c.seconds.push_back(seconds_since(start) / how.repeats);
        }
    };
    round();
    for (contender& c : contenders)
        c.seconds.clear();
    for (auto _ : state) {
        round();
        for (contender const& c : contenders)
            if (c.part == part_in_race::subject)
                state.SetIterationTime(c.seconds.back());
    }
}

} // namespace race
