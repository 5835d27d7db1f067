// SPDX-License-Identifier: Apache-2.0
// The forecast of a speculative step from rates: elements with room in the journal are stepped before the norm is
// known, all others after it.
#pragma once

#include <limits>

#include <adamant/split.hpp>

namespace cli {

struct speculation_rates {
    adamant::step_rates rates;    // cpu_elems_per_s: of a step without records
    double speculative_share = 1; // of the CPU's elements, for whose records the journal has room
    double record_cost = 0;       // time of a record, as a share of the time of a step without records
    double measured_elems_per_s = std::numeric_limits<double>::infinity(); // of the norm of elements that wait
    bool device_speculates = false; // the device's part has records, too; otherwise it waits for the norm
};

// The forecast for this ratio. Elements are speculative as far as the journal has room and the step does not become
// longer, so more room never makes it longer. Throws adamant::invalid_argument for impossible rates and ratios.
adamant::step_forecast forecast_step(speculation_rates const& rates, double ratio);

// The forecast for the ratio from `least` to `most` with the shortest step; of several the largest, like
// adamant::best_ratio().
adamant::step_forecast best_step(speculation_rates const& rates, double least, double most);

} // namespace cli
