// SPDX-License-Identifier: Apache-2.0
// A plan: the request and all results of `adamant plan`, and their output as text and JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/split.hpp>

#include "plan_memory.hpp"
#include "plan_time.hpp"
#include "plan_ways.hpp"

namespace cli {

struct plan_result {
    plan_request request;
    std::size_t share_elems = 0;
    bool fits = false;
    fitting_range range;
    fitting_range roomy; // ratios that leave headroom, too; equal to range if there are none
    bool roomy_exists = false;
    adamant::placement split;
    memory_plan memory;
    plan_rates rates;
    std::optional<adamant::step_forecast> best;     // of the ratios in roomy, or of all if none fits
    std::optional<adamant::step_forecast> forecast; // of the plan's ratio
    std::optional<zenflow_plan> zenflow;            // if requested
    std::string ratio_source;                       // how the ratio was chosen
    std::vector<std::string> advice;                // changes that would make it fit
};

// "3% of each memory"
std::string headroom_text();

plan_result make_plan(plan_request const& request, given_rates const& rates);

// Lines of at most 100 columns.
std::string plan_text(plan_result const& plan);
// The rows of a step, or of a window of steps, over the time.
std::string draw_timeline(adamant::step_forecast const& step);
std::string draw_timeline(zenflow_forecast const& window);
// A JSON object.
std::string plan_json(plan_result const& plan);

} // namespace cli
