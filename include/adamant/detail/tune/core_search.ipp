// SPDX-License-Identifier: Apache-2.0
// Definition of fewest_within() of adamant/tune.hpp.
#pragma once

#include <adamant/error.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL unsigned fewest_within(std::vector<core_time> const& curve, double share)
{
    detail::default_mode_scope const mode;
    double best = 0;
    for (core_time const& point : curve)
        best = best == 0 ? point.median_s : std::min(best, point.median_s);
    for (core_time const& point : curve)
        if (point.median_s <= (1 + share) * best)
            return point.cores;
    return 0;
}

ADAMANT_END_NAMESPACE
