// SPDX-License-Identifier: Apache-2.0
// The search for the split of the cores between the optimizer and a framework's threads that finishes both first.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/tune.hpp>

#include "progress.hpp"

namespace cli {

// Times of one split, with optimizer and host running concurrently: medians over rounds.
struct split_time {
    unsigned cores = 0; // of each rank for the optimizer, the rest for the host; 0: both share all cores
    double both_s = 0;  // until both have finished
    double both_p10_s = 0;
    double both_p90_s = 0;
    double step_s = 0;
    double host_s = 0;
    double gain = 1;     // time of both on all cores / time of this split, within rounds: above 1 this split is faster
    double gain_low = 1; // confidence interval of the gain
    double gain_high = 1;
};

struct host_tuning {
    unsigned threads = 0;           // of each rank's host
    std::size_t iterations = 0;     // of each host thread
    double host_alone_s = 0;        // time of the host's work without the optimizer
    double step_alone_s = 0;        // on all cores, without the host
    std::vector<split_time> splits; // the first one shares all cores; then by cores
    unsigned best = 0;              // cores; 0: no split is surely better than sharing all cores

    [[nodiscard]] split_time const& chosen() const
    {
        for (split_time const& s : splits)
            if (s.cores == best)
                return s;
        return splits.front();
    }
};

// Measures steps concurrently with `threads` host threads of each rank, on shared cores and with up to seven splits.
// The host's work takes as long, undisturbed, as a step on all cores. `splits` is empty if a rank has one core, or
// after Ctrl-C.
host_tuning tune_with_host(adamant::machine const& host, adamant::core_request const& request,
                           adamant::shard_format const& format, adamant::tuned_cores const& tuned, unsigned threads,
                           std::size_t rounds, progress& bar);

// The number of rounds of tune_with_host(), for the progress bar.
double expected_host_rounds(std::size_t rounds);

} // namespace cli
