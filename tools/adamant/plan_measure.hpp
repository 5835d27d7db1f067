// SPDX-License-Identifier: Apache-2.0
// The rate of optimizer steps on this machine, for `adamant plan --measure`.
#pragma once

#include <string>

#include "plan_memory.hpp"

namespace cli {

struct measured_rate {
    double bytes_per_s; // moved by a step
    std::string source; // in words
};

// Steps arrays of the plan's types, out of cache, for about a second, on the cores that this process may use. Throws
// adamant::unavailable where memory is short.
measured_rate measure_cpu(plan_request const& request);

} // namespace cli
