// SPDX-License-Identifier: Apache-2.0
// What one step of ZenFlow does to the selection and to the window. Pure functions of plain data.
#pragma once

#include <cstdint>
#include <optional>

#include <adamant/optimizer_options.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/numerics/grad_squares.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The gradients that a step applies immediately, and the deferred ones of the window after it, over all ranks.
struct window_squares {
    grad_squares done, deferred;
};
// What happens to the deferred gradients when a step is over.
enum class deferral : std::uint8_t {
    goes_on,
    ends,   // they are applied
    dropped // their sum overflowed, and non-finite gradients are skipped
};
struct window_step {
    bool warm_up = false; // a window of one step without selected columns
    bool selects = false;
    zenflow_position after = {}; // position after the step
    double deferred_norm = 0;    // upper bound of the norm of the window's deferred gradients; 0 if it is not measured
    bool is_automatic = false;   // squares decide whether the window ends
    bool may_overflow = false;   // the deferred sum may be non-finite, and a policy depends on it
    deferral deferred = deferral::goes_on;

    [[nodiscard]] bool needs_squares() const noexcept { return is_automatic || may_overflow; }
    [[nodiscard]] bool ends_window() const noexcept { return deferred != deferral::goes_on; }
};

// step_norm: of this step's clipped gradients. If it is absent, no policy depends on whether the sums are finite.
[[nodiscard]] inline window_step make_window_step(zenflow_options const& options, zenflow_position const& before,
                                                  double deferred_norm, std::optional<double> step_norm)
{
    window_step step;
    step.warm_up = is_in_warm_up(options, before);
    step.selects = selects_next(options, before);
    step.after = before;
    ++step.after.steps;
    ++step.after.in_window;
    step.after.since_selection = step.selects ? 1 : before.since_selection + !step.warm_up;
    step.after.has_selection = before.has_selection || step.selects;
    step.deferred_norm = deferred_norm + step_norm.value_or(0);
    step.is_automatic = !options.update_interval && !step.warm_up;
    step.may_overflow = step_norm && !(step.deferred_norm < 1e38);
    return step;
}
// Call once the squares are known, if needs_squares().
inline void decide_deferral(window_step& step, zenflow_options const& options, window_squares const& squares,
                            nonfinite_policy policy)
{
    bool ends = false;
    rounded_to_nearest([&] {
        step.after.done_squares += step.is_automatic ? squares.done.sum : 0;
        ends = ends_window(options, step.after, squares.deferred.sum);
    });
    bool const drops = policy == nonfinite_policy::skip && squares.deferred.nonfinite != 0;
    step.deferred = !ends ? deferral::goes_on : drops ? deferral::dropped : deferral::ends;
}

} // namespace detail
ADAMANT_END_NAMESPACE
