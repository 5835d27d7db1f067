// SPDX-License-Identifier: Apache-2.0
// The kernels that an optimizer needs for a shard, on one instruction set. A block's gradient is used where it lies, or
// made in a scratch block of floats first. A step is rolled back from there only, as that is rare.
#pragma once

#include <adamant/detail/kernels/step_pointers.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

struct block_kernels {
    step_function step;
    step_function step_scratch; // the same with a gradient of floats
    block_squares_function squares;
    block_squares_function squares_scratch;
    recorded_step_function recorded; // of either gradient, see memory_access; null: records are copies
    rollback_function rollback_scratch;
    join_function join; // of split master weights, for these two, which take floats; else null
    split_function split;
    add_gradients_function to_scratch; // grad -> float
    clamp_gradient_function clamp_gradient;
    round_weights_function round_weights; // null: there is no weight_out, or it is state
};

// For an accumulator, with a gradient of floats.
struct sum_kernels {
    add_gradients_function begin;      // grad -> sum
    add_gradients_function add;        // grad + sum -> sum
    add_gradients_function to_scratch; // grad + sum -> float
};

} // namespace kernel
ADAMANT_END_NAMESPACE
