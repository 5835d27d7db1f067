// SPDX-License-Identifier: Apache-2.0
// The kernels that an optimizer needs for a shard, on one instruction set.
//
// A step reads a block's gradient from the shard's array, or from a scratch block of floats. A rollback, which is rare,
// reads it from scratch only.
#pragma once

#include <adamant/detail/kernels/step_pointers.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

struct block_kernels {
    step_function step;
    step_function step_scratch; // step with a gradient of floats
    block_squares_function squares;
    block_squares_function squares_scratch;
    recorded_step_function recorded; // with either gradient, see memory_access; null: records are copies
    rollback_function rollback_scratch;
    join_function join; // for split masters, because recorded and rollback_scratch take floats; else null
    split_function split;
    add_gradients_function widen_params; // 16-bit params -> float, for rollback_scratch; else null
    add_gradients_function to_scratch;   // grad -> float
    clamp_gradient_function clamp_gradient;
    round_weights_function round_weights; // null without weight_out, and if weight_out is state
};

// Kernels of an accumulator, for gradients of floats.
struct sum_kernels {
    add_gradients_function begin;      // grad -> sum
    add_gradients_function add;        // grad + sum -> sum
    add_gradients_function to_scratch; // grad + sum -> float
};

} // namespace kernel
ADAMANT_END_NAMESPACE
