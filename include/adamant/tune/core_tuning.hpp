// SPDX-License-Identifier: Apache-2.0
// How many cores an optimizer needs on this machine, found by taking and timing steps.
#pragma once

#include <cstddef>
#include <functional>

#include <adamant/tune/tuned_cores.hpp>

ADAMANT_BEGIN_NAMESPACE

struct core_tuning_options {
    double deadline_s = 60; // for the whole search; after it the result is what is known so far, marked as not finished
    // Of each rank's arrays. 0: some eight times the size of the machine's last caches, because a model is never in
    // cache; or a quarter of the available memory, if that is less.
    std::size_t elements = 0;
    isa tier = isa::automatic;
    core_search_options search = {}; // its boundaries come from the machine
    bool settings = true;            // whether other settings of the executor are tried on the cores that were found
    double settings_worth = 0.03;    // another setting is taken if it is faster by at least this share
    // If not empty: called after each timed step, with its number of cores and its time. An exception ends the tuning.
    std::function<void(unsigned cores, double seconds)> on_step = {};
};

// Adds cores to the optimizer of each of the request's ranks, as select_cores() would give them, until the next one
// gains too little (core_search_options::worth), or the CPU quota keeps no more threads busy. All ranks step at once,
// in this process. Then it tries other chunk sizes and prefetch distances on these cores. The request's own size is
// ignored. Uses up to a quarter of the available memory, and all cores and the memory bandwidth of the machine: nothing
// else should run. Meant for set-up, on one thread. Throws invalid_argument for impossible options, and what
// select_cores(), team, memory_block and options.on_step throw.
[[nodiscard]] tuned_cores tune_cores(machine const& on, core_request const& request, shard_format const& format,
                                     core_tuning_options const& options = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/core_tuning.ipp>
#endif
