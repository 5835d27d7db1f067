// SPDX-License-Identifier: Apache-2.0
// The rates of CPU, GPU and link, each with its source, for the library's forecast of the step time.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/split.hpp>

#include "plan_memory.hpp"
#include "plan_step.hpp"

namespace cli {

// Times and rates from the command line. Absent ones follow from the machine.
struct given_rates {
    std::optional<double> cpu_elems_per_s;
    std::optional<double> gpu_elems_per_s;
    std::optional<double> backward_s;
    std::optional<double> forward_s;
    double utilisation = 0.5; // of the peak, by backward and forward
    bool overlap_forward = false;
    bool measure = false;
};

struct plan_rates {
    adamant::step_rates rates; // the CPU's without records
    speculation_rates speculation;
    std::vector<std::pair<std::string, std::string>> lines; // a rate with its number, and its source
    std::string missing; // options that a forecast still needs; empty: there is a forecast
};

// The rates with the journal and records of the request.
speculation_rates speculation_of(plan_request const& request, adamant::step_rates const& rates);

// share_elems: of one GPU. Runs a measurement if it is requested, and throws its exceptions.
plan_rates rates_of(plan_request const& request, given_rates const& options, std::size_t share_elems);

} // namespace cli
