// SPDX-License-Identifier: Apache-2.0
// How long a step takes where a part of it is speculative, by numbers alone: what has room in the journal is stepped
// before the norm is known, and everything else after it.
#pragma once

#include <limits>

#include <adamant/split.hpp>

namespace cli {

struct speculation_rates {
    adamant::step_rates rates;    // cpu_elems_per_s: of a step without records
    double speculative_share = 1; // of the CPU's elements, for whose records the journal has room
    double record_cost = 0;       // the time of a record, as a share of the time of a step without
    double measured_elems_per_s = std::numeric_limits<double>::infinity(); // for the norm of what waits
    bool device_speculates = false; // the device's part has records, too; otherwise it waits for the norm
};

// A step with this ratio. Elements have records as far as there is room and as that makes the step no longer, so more
// room never makes it longer. Throws adamant::invalid_argument for impossible rates and ratios.
adamant::step_forecast forecast_step(speculation_rates const& rates, double ratio);

// The ratio from `least` to `most` with the shortest step; of several the largest, as adamant::best_ratio().
adamant::step_forecast best_step(speculation_rates const& rates, double least, double most);

} // namespace cli
