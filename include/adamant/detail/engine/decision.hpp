// SPDX-License-Identifier: Apache-2.0
// What becomes of a step once its norm is known, and after each pass: pure functions of plain data.
#pragma once

#include <cmath>

#include <adamant/hyperparameters.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/reference.hpp>
#include <adamant/detail/engine/step_machine.hpp>
#include <adamant/detail/shard/block_pass.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A factor of gradients that is too small for a float is applied as this one and the rest: see set_gradient_factor().
inline constexpr float small_factor_unit = 0x1p-125f;

// What the sum of squares means for the step.
struct norm_verdict {
    bool skips = false;
    double norm = 0; // unscaled
    double clip = 1; // see optimizer_report::clip_coefficient
};

// found: of all ranks. max_norm 0: no limit. Depends on the rounding mode, as all arithmetic does.
[[nodiscard]] inline norm_verdict judge(grad_squares const& found, double loss_scale, double max_norm,
                                        bool skips_nonfinite) noexcept
{
    norm_verdict verdict;
    verdict.skips = skips_nonfinite && found.nonfinite != 0;
    verdict.norm = std::sqrt(found.sum) / loss_scale;
    if (verdict.skips || max_norm == 0)
        return verdict;
    verdict.clip = clip_coefficient(verdict.norm, max_norm);
    double const factor = verdict.clip / loss_scale;
    if (factor == 0 || !(float_holds(factor) || float_holds(factor / double{small_factor_unit})))
        verdict.clip = 0; // the factor that is applied; see the report
    return verdict;
}

// What the first pass has done, and what the norm calls for.
struct first_pass_facts {
    block_pass pass = block_pass::measure; // or step, or speculate
    bool skips = false;                    // the step is to change nothing
    bool same_scales = true;               // the step that was assumed is the one that is due
    bool stepped = false;                  // blocks have been stepped, on either side
    bool left_on_cpu = false;              // blocks have not been stepped on the CPU,
    bool left_on_device = false;           // and on the device
    bool keeps_records = false;            // every block that is stepped is to leave a record
    bool has_device = false;
};

struct decision {
    step_state state = step_state::over; // the next one; over: nothing is left to do
    block_pass pass = block_pass::rest;  // of that state
    bool rolled_back = false;            // what was stepped is rolled back
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
        // A device that is through cannot fail any more, so what the CPU has left need not be can_roll_back.
        bool const device_is_through = facts.has_device && !facts.left_on_device;
        return {device_is_through ? step_state::finishing : step_state::stepping, block_pass::rest, false};
    }
    if (!facts.stepped)
        return {step_state::stepping, block_pass::rest, false};
    // Back and again in one pass, or in two where the right step is to leave records.
    return facts.keeps_records ? decision{step_state::rolling_back, block_pass::rollback, true}
                               : decision{step_state::stepping, block_pass::redo, true};
}

// What follows a later pass. without_room: the CPU has blocks that wait for the device to be through, because there was
// no room for their records.
[[nodiscard]] constexpr decision after_pass(step_state in, bool without_room) noexcept
{
    if (in == step_state::rolling_back)
        return {step_state::stepping, block_pass::rest};
    if (in == step_state::stepping && without_room)
        return {step_state::finishing, block_pass::rest};
    return {};
}

} // namespace detail
ADAMANT_END_NAMESPACE
