// SPDX-License-Identifier: Apache-2.0
#include <adamant/adamant.hpp>
#include <adamant/formats.hpp>

#include <vector>

#include "require.hpp"

void context()
{
    std::size_t const n = 1000;
    std::vector<adamant::bfloat16> const grad(n, adamant::narrow<adamant::bfloat16>(0.25f));
    std::vector<float> const master(n, 0.333f);
    std::vector<adamant::bfloat16> split_weight(n);
    std::vector<adamant::split_float32> residual(n);
    adamant::split_masters(master.data(), n, split_weight.data(), residual.data());
    adamant::coefficients const c = make_coefficients(adamant::adamw({.lr = 0.01}), 1);
    adamant::executor const cpu;
    // fragment
    REQUIRE(joined_master(split_weight[0], residual[0]) < 0.33f);
    REQUIRE(m[15].scale > 0 && v[15].scale > 0);
}
