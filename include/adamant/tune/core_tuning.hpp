// SPDX-License-Identifier: Apache-2.0
// How many cores an optimizer needs on this machine, by steps that are taken and timed.
#pragma once

#include <cstddef>
#include <functional>

#include <adamant/tune/tuned_cores.hpp>

ADAMANT_BEGIN_NAMESPACE

struct core_tuning_options {
    double deadline_s = 60; // for all of it; then what is known is the answer, and says that it is not finished
    // Of each rank's arrays. 0: some eight times what the machine's last caches hold, as a model's are never in cache,
    // or what a quarter of the available memory holds, if that is less.
    std::size_t elements = 0;
    isa tier = isa::automatic;
    core_search_options search = {}; // its boundaries come from the machine
    bool settings = true;            // whether other settings of the executor are tried on the cores found
    double settings_worth = 0.03;    // by which share another setting has to be faster to be taken
    // If not empty: called after each timed step, with the count of cores that it was on and its time; what it throws
    // ends the tuning.
    std::function<void(unsigned cores, double seconds)> on_step = {};
};

// Grows the number of cores that each of the request's ranks has for its optimizer, as select_cores() would give them,
// all ranks stepping at once, in this process, until more are not worth having; and then tries what other chunks and
// prefetching bring on those. The request's own size does not matter. Takes up to a quarter of the available memory,
// and both the cores and the memory bandwidth of the machine: nothing else should run. For set-up, on one thread.
// Throws invalid_argument for options that cannot be, and what select_cores(), team, memory_block and options.on_step
// throw.
[[nodiscard]] tuned_cores tune_cores(machine const& on, core_request const& request, shard_format const& format,
                                     core_tuning_options const& options = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/core_tuning.ipp>
#endif
