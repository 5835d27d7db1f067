// SPDX-License-Identifier: Apache-2.0
// ZenFlow compared with plain offloading and speculation, which defer no gradients: times, bytes over the link, memory.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <adamant/device.hpp>

#include "plan_memory.hpp"
#include "plan_time.hpp"
#include "plan_zenflow.hpp"

namespace cli {

// One of the three ways to offload.
struct offload_way {
    std::string key;  // in JSON
    std::string name; // in text
    std::optional<double> step_s = {};
    // Part of step_s, on average, in which the GPU waits for the link or the host, or publishes weights.
    std::optional<double> stall_s = {};
    double down_bytes = 0; // of a step, on average
    double up_bytes = 0;   // likewise
    memory_plan memory = {};
    bool fits = false;
};

struct zenflow_plan {
    std::size_t selected_elems = 0; // of one GPU's share, with its vectors
    std::size_t deferred_elems = 0;
    std::optional<zenflow_forecast> forecast;
    std::vector<offload_way> ways; // plain offloading, the plan's own, ZenFlow
};

// Requires request.zenflow. Plain offloading and speculation have the plan's split.
zenflow_plan plan_zenflow(plan_request const& request, plan_rates const& rates, adamant::placement const& split,
                          memory_plan const& memory, std::optional<adamant::step_forecast> const& forecast);

} // namespace cli
