// SPDX-License-Identifier: Apache-2.0
// How long a step takes with ZenFlow, by numbers alone: the GPU steps the selected columns in every step, and the host
// accumulates the gradients of the others and steps them once in a window of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace cli {

// Of one GPU and what of the host is for it. A rate that limits nothing is infinite.
struct zenflow_rates {
    double selected_elems = 0; // those of vectors among them, which are always selected
    double deferred_elems = 0;
    double all_elems = 0;            // whose gradients come down: rows come down whole
    double matrix_elems = 0;         // of the columns, selected or not: sums are by rows, and weights go up by matrices
    std::size_t update_interval = 4; // steps of a window, at least 1
    bool overlap = true;             // apply the deferred gradients of a window while the next one goes on
    // Bytes of an element: of its gradient, on its way down; of its weight, on its way up, and read and written when it
    // publishes; what a step on the GPU reads and writes; what the host's does, whose gradient is a sum in float32; and
    // what adding up does in a window's first step, and in the others.
    double grad_bytes = 2;
    double weight_bytes = 2;
    double publishing_bytes = 4;
    double device_step_bytes = 28;
    double host_step_bytes = 30;
    double first_sum_bytes = 6;
    double sum_bytes = 10;
    double device_bytes_per_s = std::numeric_limits<double>::infinity();
    double host_bytes_per_s = std::numeric_limits<double>::infinity();
    double down_bytes_per_s = std::numeric_limits<double>::infinity(); // from the GPU to the host
    double up_bytes_per_s = std::numeric_limits<double>::infinity();
    double backward_s = 0;
    double forward_s = 0;
    double moved_bytes = 0;             // state that comes down in a selection, and as much that goes up
    std::size_t selection_interval = 0; // windows from one selection to the next; 0: none is counted
};

// What is busy from when to when, in seconds from the beginning of a window.
enum class zenflow_row : std::uint8_t { backward, down, sums, host_step, up, device, forward };
struct zenflow_span {
    zenflow_row on;
    double begin_s;
    double end_s;
};

struct zenflow_forecast {
    double step_s = 0;     // on average, with its part of a selection
    double stall_s = 0;    // of that: the GPU waits for the link or the host
    double window_s = 0;   // without a selection
    double host_s = 0;     // of a window, in which the host works
    double down_bytes = 0; // of a step, on average; the same for the next
    double up_bytes = 0;
    std::vector<zenflow_span> timeline; // of a window in the middle of many
};

// The model. In every step the GPU does backward, while gradients come down, which begins when those of the step before
// are accumulated, for they come to the same place. When all are down and their norm is known, the GPU steps what is
// selected; then the host sums, during forward and the next backward. Without overlap a window's last step waits
// until the host has accumulated and stepped, and the weights have gone up as they were stepped. With overlap the host
// steps in the next window, whenever there is nothing to add up, and weights go up as they are stepped, beside those in
// use; the last step of that window waits for it, and then they publish. A selection stops the GPU while state comes
// down, and, after that, goes up.
zenflow_forecast forecast_zenflow(zenflow_rates const& rates);

} // namespace cli
