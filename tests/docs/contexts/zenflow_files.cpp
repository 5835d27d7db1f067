// SPDX-License-Identifier: Apache-2.0
// An optimizer in the middle of a window, and one to go on with; one rank, and no model beside it.
#include <filesystem>
#include <string>
#include <vector>

#include <adamant/adamant.hpp>
#include <adamant/zenflow.hpp>

#include "require.hpp"

struct one_matrix {
    std::size_t const rows = 64, columns = 8;
    std::vector<float> master = std::vector<float>(rows * columns, 0.5f), exp_avg = std::vector<float>(rows * columns),
                       exp_avg_sq = exp_avg, weights = master, grad = std::vector<float>(rows * columns, 0.25f);
    adamant::zenflow_optimizer optimizer{adamant::executor({.threads = 1})};
    one_matrix()
    {
        adamant::group_id const all = optimizer.add_group("all", adamant::adamw({.lr = 0.01}));
        optimizer.add_param({.group = all,
                             .name = "weight",
                             .shard = adamant::shard(master, grad, exp_avg, exp_avg_sq),
                             .columns = columns,
                             .weights = weights.data()});
    }
};

void context()
{
    one_matrix first, second;
    first.optimizer.step();
    adamant::zenflow_optimizer& optimizer = first.optimizer;
    adamant::zenflow_optimizer& resumed = second.optimizer;
    std::string const rank = "0";
    std::size_t const ranks = 1;
    // fragment
    REQUIRE(resumed.steps() == 1);
    for (int i = 0; i < 8; ++i) {
        optimizer.step();
        resumed.step();
    }
    REQUIRE(first.weights == second.weights && first.master == second.master);
    REQUIRE(first.weights[0] != 0.5f);
    std::filesystem::remove("run.0.safetensors");
}
