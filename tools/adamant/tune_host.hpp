// SPDX-License-Identifier: Apache-2.0
// The cores split between the optimizer and a framework's threads, so that both together are through first.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/tune.hpp>

#include "progress.hpp"

namespace cli {

// Both concurrently: medians over rounds.
struct split_time {
    unsigned cores = 0; // of each rank for the optimizer, the rest for the host; 0: all for both
    double both_s = 0;  // until both are through
    double both_p10_s = 0;
    double both_p90_s = 0;
    double step_s = 0;
    double host_s = 0;
    double gain = 1;     // of all for both over this one, within rounds: above 1 this one is faster
    double gain_low = 1; // and the range it lies in
    double gain_high = 1;
};

struct host_tuning {
    unsigned threads = 0; // of each rank's host
    std::size_t turns = 0;
    double host_alone_s = 0;        // what its work takes without the optimizer
    double step_alone_s = 0;        // on all cores, without the host
    std::vector<split_time> splits; // the first is all for both; then by cores
    unsigned best = 0;              // cores; 0: no split is surely better than all for both

    [[nodiscard]] split_time const& chosen() const
    {
        for (split_time const& s : splits)
            if (s.cores == best)
                return s;
        return splits.front();
    }
};

// `threads` of each rank's host do as much as takes them, undisturbed, as long as a step on all cores; then both at
// once, for all for both and for up to seven splits. Empty splits where a rank has one core, or after Ctrl-C.
host_tuning tune_with_host(adamant::machine const& on, adamant::core_request const& request,
                           adamant::shard_format const& format, adamant::tuned_cores const& found, unsigned threads,
                           std::size_t rounds, progress& bar);

// The rounds of the bar that this takes.
double expected_host_rounds(std::size_t rounds);

} // namespace cli
