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
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

namespace race {

// Linear between the two values nearest.
inline double quantile(std::vector<double> values, double q)
{
    std::sort(values.begin(), values.end());
    double const at = q * static_cast<double>(values.size() - 1);
    auto const below = static_cast<std::size_t>(at);
    std::size_t const above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

inline double median(std::vector<double> values)
{
    return quantile(std::move(values), 0.5);
}

enum class part_in_race {
    subject,   // what the row is about
    reference, // what it is held against; the one with the smallest median counts
    aside,     // reported besides
};

struct contender {
    part_in_race part;
    std::string name;
    std::function<void()> run;
    std::function<void()> prepare = {}; // before each run, not timed
    std::vector<double> seconds = {};   // of each round
};

// One round that does not count, for what happens only once (threads start, the kernel makes up its mind about pages),
// and then as many as the row has iterations. The row's time is the subject's, of one of `repeats` runs in one.
inline void run(benchmark::State& state, std::vector<contender>& contenders, double repeats)
{
    std::vector<std::size_t> order(contenders.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::minstd_rand random;
    auto const round = [&] {
        std::shuffle(order.begin(), order.end(), random); // nothing always finds the caches as the same other left them
        for (std::size_t const k : order) {
            contender& c = contenders[k];
            if (c.prepare)
                c.prepare();
            auto const start = std::chrono::steady_clock::now();
            c.run();
            c.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        }
    };
    round();
    for (contender& c : contenders)
        c.seconds.clear();
    for (auto _ : state) {
        round();
        for (contender const& c : contenders)
            if (c.part == part_in_race::subject)
                state.SetIterationTime(c.seconds.back() / repeats);
    }
}

} // namespace race
