// SPDX-License-Identifier: Apache-2.0
// The forecast of a step with ZenFlow from rates: the GPU steps the selected columns in every step, and the host
// accumulates the gradients of the others and steps them once in a window of steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace cli {

// Rates of one GPU and its share of the host. A rate that limits nothing is infinite.
struct zenflow_rates {
    double selected_elems = 0; // with those of vectors, which are always selected
    double deferred_elems = 0;
    double all_elems = 0;            // all gradients are downloaded, in whole rows
    double matrix_elems = 0;         // of all columns: sums are by rows, and whole matrices of weights are uploaded
    std::size_t update_interval = 4; // steps of a window, at least 1
    bool overlap = true;             // apply the deferred gradients of a window during the next one
    // Bytes of an element:
    double grad_bytes = 2;         // of its gradient, on the link
    double weight_bytes = 2;       // of its weight, on the link
    double publishing_bytes = 4;   // read and written to publish a weight
    double device_step_bytes = 28; // read and written by a step on the GPU
    double host_step_bytes = 30;   // by a step on the host, whose gradient is a float32 sum
    double first_sum_bytes = 6;    // by accumulation in a window's first step
    double sum_bytes = 10;         // and in its other steps
    double device_bytes_per_s = std::numeric_limits<double>::infinity();
    double host_bytes_per_s = std::numeric_limits<double>::infinity();
    double down_bytes_per_s = std::numeric_limits<double>::infinity(); // from the GPU to the host
    double up_bytes_per_s = std::numeric_limits<double>::infinity();
    double backward_s = 0;
    double forward_s = 0;
    double moved_bytes = 0;             // state that a selection downloads; it uploads as much
    std::size_t selection_interval = 0; // windows from one selection to the next; 0: selections are not counted
};

// A busy time of one row, in seconds from the beginning of a window.
enum class zenflow_row : std::uint8_t { backward, down, sums, host_step, up, device, forward };
struct zenflow_span {
    zenflow_row row;
    double begin_s;
    double end_s;
};

struct zenflow_forecast {
    double step_s = 0;                  // on average, with its part of a selection
    double stall_s = 0;                 // part of step_s in which the GPU waits for the link or the host
    double window_s = 0;                // without a selection
    double host_s = 0;                  // time in a window that the host works
    double down_bytes = 0;              // of a step, on average
    double up_bytes = 0;                // likewise
    std::vector<zenflow_span> timeline; // of a window in the middle of many
};

// The model: every step downloads gradients during backward, but not before the host has accumulated those of the
// previous step, which use the same memory. When all are downloaded and their norm is known, the GPU steps the selected
// part; then the host accumulates, during forward and the next backward. Without overlap a window's last step waits
// until the host has accumulated and stepped and the weights are uploaded; they are uploaded while the host steps. With
// overlap the host steps in the next window, whenever it has nothing to accumulate, and weights are uploaded meanwhile
// to a second copy; the last step of that window waits for them and publishes them. A selection stops the GPU while
// state is downloaded and then uploaded.
zenflow_forecast forecast_zenflow(zenflow_rates const& rates);

} // namespace cli
