// SPDX-License-Identifier: Apache-2.0
// The part of the example hybrid that compares ZenFlow with plain offloading and speculation.
#pragma once

#include <cstddef>
#include <string>

#include <adamant/formats.hpp>
#include <adamant/zenflow.hpp>

struct zenflow_settings {
    adamant::zenflow_options options;
    std::size_t layers = 1;
    std::size_t steps = 0; // 0: five windows and a selection
    adamant::shard_dtypes types = {};
    std::string link;
    double backward_ms = 0, forward_ms = 0; // 0: half the time of the CPU's step of all elements, and half of that
    bool only_digest = false;
};

// Runs plain offloading, speculation and ZenFlow with the same model, device and waits. Prints how long steps take, how
// long the device waits in them, and the forecasts of `adamant plan` for the measured rates.
void run_zenflow(zenflow_settings const& chosen);
