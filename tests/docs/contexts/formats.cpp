// SPDX-License-Identifier: Apache-2.0
#include <adamant/adamant.hpp>

#include "require.hpp"

void context()
{
    // fragment
    adamant::coefficients const c = make_coefficients(hyper, 1);
    REQUIRE(c.rounding.exp_avg_sq && c.rounding.param);
    REQUIRE(c.rounding.key == adamant::rounding_key(17, 1));
}
