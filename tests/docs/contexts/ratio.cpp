// SPDX-License-Identifier: Apache-2.0
// An optimizer on CPU and device, a step of which has just been taken; the CPU is known to be far slower than it was.
#include <memory>
#include <vector>

#include <adamant/adamant.hpp>
#include <adamant/emulated_device.hpp>
#include <adamant/split.hpp>
#include <adamant/tune.hpp>

#include "require.hpp"

void context()
{
    std::size_t const n = 100'000;
    std::vector<float> param(n, 0.5f), grad(n, 0.25f), exp_avg(n), exp_avg_sq(n);
    adamant::optimizer optimizer(adamant::executor({.threads = 1}));
    optimizer.add_group("all", adamant::adamw());
    optimizer.add_shard({.group = 0, .name = "layer", .shard = adamant::shard(param, grad, exp_avg, exp_avg_sq)});
    auto const gpu = std::make_shared<adamant::emulated_device>();
    double const backward_s = 0, forward_s = 0;
    // fragment
    REQUIRE(optimizer.steps() == 1);
    REQUIRE(follower.rates().cpu_elems_per_s != 1e9);
    (void)best;
}
