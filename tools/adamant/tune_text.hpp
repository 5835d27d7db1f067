// SPDX-License-Identifier: Apache-2.0
// What `adamant tune` has found, as text.
#pragma once

#include <string>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/tune.hpp>

#include "tune_host.hpp"

namespace cli {

// What a tuning's times are to be read with.
struct tune_circumstances {
    std::string loaded_from; // the file; empty: the times were measured now
    double busy = 0;         // share of the processors' time that others had meanwhile
    bool interrupted = false;
};
// Adds the reasons not to trust the times to found.warnings, which --save and --json keep. Returns those and the ones
// that were there, as they are shown.
std::vector<std::string> add_warnings(adamant::tuned_cores& found, tune_circumstances const& when);

// The share to configure, from all that was measured: for the optimizer alone, unless a split with a host is better, or
// dividing the cores at all is worse.
struct tune_advice {
    unsigned cores = 0; // of each rank, for the optimizer; all: the host shares them
    double share = 1;
    std::string why; // empty: without a host there is nothing to say
};
tune_advice advice_of(adamant::tuned_cores const& found, host_tuning const& with);

// Lines of at most 100 columns. alone: nothing was measured with a host's threads.
std::string curve_text(adamant::tuned_cores const& found, adamant::shard_format const& format);
std::string verdict_text(adamant::tuned_cores const& found, unsigned ranks, bool alone);
std::string host_text(host_tuning const& with, unsigned of, tune_advice const& what);

} // namespace cli
