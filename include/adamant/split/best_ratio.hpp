// SPDX-License-Identifier: Apache-2.0
// The ratio that makes a step shortest, from the rates of everybody who takes part, with the timeline that it predicts.
// Pure functions.
#pragma once

#include <adamant/split/step_rates.hpp>

ADAMANT_BEGIN_NAMESPACE

// What a step with this ratio (from 0 to 1) takes. Throws invalid_argument for rates, times or a ratio that cannot be.
[[nodiscard]] step_forecast forecast(step_rates const& rates, double ratio);

// The ratio from `least` to `most` (which memory may have narrowed) with the shortest step; of several the largest,
// which leaves the device the most memory. The time is the largest of a few lines over the ratio, so the best is where
// two of them cross, or at a bound. Throws invalid_argument as forecast() does, and where least is above most.
[[nodiscard]] step_forecast best_ratio(step_rates const& rates, double least = 0, double most = 1);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/split/best_ratio.ipp>
#endif
