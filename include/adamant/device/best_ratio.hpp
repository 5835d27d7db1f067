// SPDX-License-Identifier: Apache-2.0
// The ratio with the shortest step, from the rates of CPU, device and link, and the timeline that it predicts. Pure
// functions.
#pragma once

#include <adamant/device/step_rates.hpp>

ADAMANT_BEGIN_NAMESPACE

// How long a step with this ratio (from 0 to 1) takes. Throws invalid_argument for impossible rates, times or ratios.
[[nodiscard]] step_forecast forecast(step_rates const& rates, double ratio);

// The ratio from `least` to `most` (bounds by memory, for example) with the shortest step; of several the largest,
// which leaves the device the most memory. The time is the maximum of a few linear functions of the ratio, so the best
// ratio is where two of them cross, or a bound. Throws invalid_argument as forecast() does, and where least is above
// most.
[[nodiscard]] step_forecast best_ratio(step_rates const& rates, double least = 0, double most = 1);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/device/best_ratio.ipp>
#endif
