// SPDX-License-Identifier: Apache-2.0
// The report of a step that puts gradients off.
#pragma once

#include <cstddef>

#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

struct zenflow_report : optimizer_report { // elements: those that were stepped at once
    bool warm_up = false;                  // a plain step of all elements: nothing is deferred, and no window ends
    bool selected = false;                 // columns were selected anew,
    std::size_t columns_moved = 0;         // so many of which were not selected before
    std::size_t put_off = 0;               // elements whose gradients were added up
    bool window_ended = false;             // and so many of them are stepped with what has been added up: now, or, with
    std::size_t put_off_stepped = 0;       // overlap, while the next window goes on
    bool put_off_skipped = false; // what was added up was not finite, and was dropped whole (nonfinite_policy::skip)
    double waited_s = 0;          // for what the last window had put off, when this one ended
    double landing_s = 0;         // and then for its weights to come into use
    // How long the executor's threads have worked, on average, on the sums of the step before (with a device), and,
    // where a window ends, on what the one before it had put off.
    double sums_s = 0;
    double put_off_s = 0;
};

ADAMANT_END_NAMESPACE
