// SPDX-License-Identifier: Apache-2.0
// The number of elements of a shard.
#include <adamant/adamant.hpp>

#include "require.hpp"

void context()
{
    std::size_t const n = 100'000;
    // fragment
    REQUIRE(team->size() == cores.adam_pus.size());
    REQUIRE(exp_avg.size() == n && exp_avg[n - 1] == 0);
    REQUIRE(group.active() == group.reason().empty());
    REQUIRE(why_not.empty() == group.active());
}
