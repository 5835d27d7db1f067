// SPDX-License-Identifier: Apache-2.0
// How long a step takes: rates of everybody who takes part, each with its source, for the library's forecast.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/split.hpp>

#include "plan_memory.hpp"
#include "plan_step.hpp"

namespace cli {

// What the command line says of times; what is absent follows from the machine.
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
    std::string missing; // options without which there is no forecast; empty: there is one
};

// What the request's journal and records add to the rates.
speculation_rates speculation_of(plan_request const& request, adamant::step_rates const& rates);

// share_elems: of one GPU. Runs a measurement where that is asked for, and throws what it throws.
plan_rates rates_of(plan_request const& request, given_rates const& given, std::size_t share_elems);

} // namespace cli
