// SPDX-License-Identifier: Apache-2.0
// The result of `adamant tune`, as text.
#pragma once

#include <string>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/tune.hpp>

#include "tune_host.hpp"

namespace cli {

// The conditions of a tuning, which decide how far to trust its times.
struct tune_circumstances {
    std::string loaded_from; // the file; empty: the times were measured now
    double busy = 0;         // share of the processors' time that other processes used meanwhile
    bool interrupted = false;
};
// Adds reasons to distrust the times to tuned.warnings, which --save and --json keep. Returns all warnings as text to
// show.
std::vector<std::string> add_warnings(adamant::tuned_cores& tuned, tune_circumstances const& conditions);

// The share to configure. Without a host's threads it is the optimizer's; with them it is the best split, or all cores
// if no split helps.
struct tune_advice {
    unsigned cores = 0; // of each rank, for the optimizer; all: the host shares them
    double share = 1;
    std::string why; // empty without a host
};
tune_advice advice_of(adamant::tuned_cores const& tuned, host_tuning const& host);

// Lines of at most 100 columns. alone: nothing was measured with a host's threads.
std::string curve_text(adamant::tuned_cores const& tuned, adamant::shard_format const& format);
std::string verdict_text(adamant::tuned_cores const& tuned, unsigned ranks, bool alone);
std::string host_text(host_tuning const& host, unsigned cores, tune_advice const& advice);

} // namespace cli
