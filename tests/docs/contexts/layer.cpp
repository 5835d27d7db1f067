// SPDX-License-Identifier: Apache-2.0
// An engine with one layer: its arrays, an executor, a backward pass and a sum over ranks.
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include <adamant/adamant.hpp>

#include "require.hpp"

void context()
{
    std::size_t const n = 100'000;
    std::vector<float> param(n, 0.5f), exp_avg(n), exp_avg_sq(n), sums(n);
    std::vector<adamant::bfloat16> grad(n), weight(n, adamant::narrow<adamant::bfloat16>(0.5f));
    adamant::shard const layer(param, grad, exp_avg, exp_avg_sq, weight);
    adamant::executor const cpu({.threads = 1});
    int backwards = 0;
    auto const backward = [&] {
        grad.assign(n, adamant::narrow<adamant::bfloat16>(0.25f));
        ++backwards;
    };
    auto const sum_over_ranks = [](std::int64_t* words, std::size_t count) { // of two that are alike
        for (std::size_t i = 0; i < count; ++i)
            words[i] *= 2;
    };
    // fragment
    REQUIRE(backwards != 0);
    REQUIRE(optimizer.steps() == expected_steps);
    REQUIRE((param[0] == 0.5f) == (expected_steps == 0));
}
