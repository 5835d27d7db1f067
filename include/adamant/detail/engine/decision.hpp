// SPDX-License-Identifier: Apache-2.0
// Decisions of a step: its clip coefficient and next pass, from the norm and the facts of the last pass. Pure
// functions.
#pragma once

#include <cmath>

#include <adamant/hyperparameters.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/reference.hpp>
#include <adamant/detail/engine/step_machine.hpp>
#include <adamant/detail/shard/block_pass.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A gradient factor too small for a float is split into this factor and a remainder: see set_gradient_factor().
inline constexpr float small_factor_unit = 0x1p-125f;

// Whether the step is skipped or clipped, by the sum of squares.
struct norm_verdict {
    bool skips = false;
    double norm = 0; // unscaled
    double clip = 1; // see optimizer_report::clip_coefficient
};

// squares: over all ranks. max_norm 0: no limit. The result depends on the rounding mode.
[[nodiscard]] inline norm_verdict judge(grad_squares const& squares, double loss_scale, double max_norm,
                                        nonfinite_policy on_nonfinite) noexcept
{
    norm_verdict verdict;
    verdict.skips = on_nonfinite == nonfinite_policy::skip && squares.nonfinite != 0;
    verdict.norm = std::sqrt(squares.sum) / loss_scale;
    if (verdict.skips || max_norm == 0)
        return verdict;
    verdict.clip = clip_coefficient(verdict.norm, max_norm);
    double const factor = verdict.clip / loss_scale;
    if (factor == 0 || !(float_holds(factor) || float_holds(factor / double{small_factor_unit})))
        verdict.clip = 0; // the factor that is applied and reported
    return verdict;
}

// The work that the first pass has done, and the step that the norm requires.
struct first_pass_facts {
    block_pass pass = block_pass::measure; // or step, or speculate
    bool skips = false;                    // the step must change nothing
    bool same_scales = true;               // the assumed gradient factors are the final ones
    bool stepped = false;                  // some blocks are stepped, on either backend
    bool left_on_cpu = false;              // some blocks of the CPU are not stepped yet
    bool left_on_device = false;           // some blocks of the device are not stepped yet
    bool keeps_records = false;            // every block that is stepped must leave a record
    bool has_device = false;
};

struct decision {
    step_state state = step_state::over; // the next state; over: no work is left
    block_pass pass = block_pass::rest;  // the pass of that state
    bool rolled_back = false;            // the pass rolls back stepped blocks
};

[[nodiscard]] constexpr decision decide(first_pass_facts const& facts) noexcept
{
    bool const assumed = facts.pass == block_pass::speculate;
    if (facts.skips)
        return assumed && facts.stepped ? decision{step_state::skipping, block_pass::rollback, true} : decision{};
    if (facts.pass == block_pass::step)
        return {};
    if (!assumed || facts.same_scales) {
        if (!facts.left_on_cpu && !facts.left_on_device)
            return {};
        // A device that has completed its part cannot fail any more, so the CPU's remaining blocks need no records.
        bool const device_is_done = facts.has_device && !facts.left_on_device;
        return {device_is_done ? step_state::finishing : step_state::stepping, block_pass::rest, false};
    }
    if (!facts.stepped)
        return {step_state::stepping, block_pass::rest, false};
    // Rolls back and steps again in one pass; in two passes if the second step must leave records.
    return facts.keeps_records ? decision{step_state::rolling_back, block_pass::rollback, true}
                               : decision{step_state::stepping, block_pass::redo, true};
}

// The decision after a later pass. some_deferred: blocks of the CPU wait until the device is done, because the journal
// had no room for their records.
[[nodiscard]] constexpr decision after_pass(step_state state, bool some_deferred) noexcept
{
    if (state == step_state::rolling_back)
        return {step_state::stepping, block_pass::rest};
    if (state == step_state::stepping && some_deferred)
        return {step_state::finishing, block_pass::rest};
    return {};
}

} // namespace detail
ADAMANT_END_NAMESPACE
