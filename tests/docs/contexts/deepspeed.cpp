// SPDX-License-Identifier: Apache-2.0
// An executor; ds_config.json is the one that the page shows.
#include <cstdio>

#include <adamant/adamant.hpp>

#include "require.hpp"

void context()
{
    adamant::executor const cpu({.threads = 1});
    // fragment
    REQUIRE(job.warnings.size() == 1);
    REQUIRE(optimizer.group(0).hyper.lr == 1e-4);
    REQUIRE(optimizer.group(0).hyper.mode == adamant::decay_mode::decoupled);
    REQUIRE(optimizer.loss_scale() == 65536);
    REQUIRE(!values.loss_scale);
}
