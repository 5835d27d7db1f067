// SPDX-License-Identifier: Apache-2.0
// What a pass of an optimizer does to a block of a shard, as plain data: for the CPU's side and for a device's.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/hyperparameters.hpp>

ADAMANT_BEGIN_NAMESPACE

// What a block's gradient is before the step sees it.
struct gradient_rules {
    bool zero_nonfinite = false;
    bool limited = false; // multiplied by scale and then limited to +-bound, before the step applies its own factor
    float scale = 1;
    float bound = 0;
};

// What a pass does to each block.
enum class block_pass : std::uint8_t {
    measure,   // sum of squares
    step,      // sum of squares, and the step
    speculate, // the same with a record; where there is no room for one, the block waits
    rest,      // the step, of blocks without a record
    redo,      // back by the record where there is one, and the step
    rollback,  // back by the record
    compare,   // whether the gradients are those of the last step
};

[[nodiscard]] constexpr char const* name(block_pass of) noexcept
{
    constexpr char const* names[] = {"measure", "step", "speculate", "rest", "redo", "rollback", "compare"};
    return names[static_cast<std::size_t>(of)];
}
// Whether it leaves sums of squares.
[[nodiscard]] constexpr bool is_first(block_pass of) noexcept
{
    return of <= block_pass::speculate || of == block_pass::compare;
}
// Whether it leaves params and moments as they are.
[[nodiscard]] constexpr bool only_reads(block_pass of) noexcept
{
    return of == block_pass::measure || of == block_pass::compare;
}

// How the shards of one parameter group are stepped.
struct group_step {
    coefficients c;
    gradient_rules rules;
};

ADAMANT_END_NAMESPACE
