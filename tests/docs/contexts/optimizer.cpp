// SPDX-License-Identifier: Apache-2.0
// An engine with one layer, whose gradient is ready, and an optimizer of it that has taken no step.
#include <vector>

#include <adamant/adamant.hpp>

#include "require.hpp"

void context()
{
    std::size_t const n = 100'000;
    std::vector<float> param(n, 0.5f), exp_avg(n), exp_avg_sq(n), sums(n);
    std::vector<adamant::bfloat16> grad(n), weight(n, adamant::narrow<adamant::bfloat16>(0.5f));
    auto const backward = [&] { grad.assign(n, adamant::narrow<adamant::bfloat16>(0.25f)); };
    backward();
    adamant::optimizer optimizer(adamant::executor({.threads = 1}), {.max_norm = 1});
    adamant::group_id const all = optimizer.add_group("all", adamant::adamw({.lr = 1e-3}));
    optimizer.add_shard({.group = all,
                         .name = "layer",
                         .shard = adamant::shard(param, grad, exp_avg, exp_avg_sq, weight),
                         .accumulator = sums});
    adamant::shard_id const layer = optimizer.find_shard("layer").value();
    // fragment
    REQUIRE(optimizer.steps() == 1);
    REQUIRE(param[0] < 0.5f);
}
