// SPDX-License-Identifier: Apache-2.0
// The passes of an optimizer over the blocks of a shard, as plain data shared by the CPU and device backends.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/hyperparameters.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Preprocessing of a block's gradient before the step reads it.
struct gradient_rules {
    bool zero_nonfinite = false; ///< replace infinite and NaN elements by zero
    bool limited = false; ///< multiply by scale and then clamp to +-bound, before the step applies its own factor
    float scale = 1;      ///< factor if `limited`
    float bound = 0;      ///< largest magnitude if `limited`
};

/// The work of a pass on each block.
enum class block_pass : std::uint8_t {
    measure,   ///< compute the sum of squares
    step,      ///< compute the sum of squares and step
    speculate, ///< the same, and write a record for rollback; without room for a record, leave the step to `rest`
    rest,      ///< step if the block has no record
    redo,      ///< roll back if the block has a record, then step
    rollback,  ///< roll back if the block has a record
    compare,   ///< compute the sum of squares and check that the gradient is that of the last step
};

/// Name of the pass, such as "measure".
[[nodiscard]] constexpr char const* name(block_pass pass) noexcept
{
    constexpr char const* names[] = {"measure", "step", "speculate", "rest", "redo", "rollback", "compare"};
    return names[static_cast<std::size_t>(pass)];
}
/// Whether the pass computes sums of squares.
[[nodiscard]] constexpr bool is_first(block_pass pass) noexcept
{
    return pass <= block_pass::speculate || pass == block_pass::compare;
}
/// Whether the pass leaves params and moments unchanged.
[[nodiscard]] constexpr bool only_reads(block_pass pass) noexcept
{
    return pass == block_pass::measure || pass == block_pass::compare;
}

/// Settings of a step for the shards of one parameter group.
struct group_step {
    coefficients c;       ///< coefficients of the step
    gradient_rules rules; ///< preprocessing of gradients
};

ADAMANT_END_NAMESPACE
