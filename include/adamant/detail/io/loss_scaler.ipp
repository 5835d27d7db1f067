// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/optimizer_options.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include <adamant/optimizer_options.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL bool is_loss_scale(double scale) noexcept
{
    return scale >= 0x1p-125 && scale <= 0x1p125;
}

} // namespace detail

ADAMANT_DECL void validate(loss_scaling_options const& options)
{
    detail::default_mode_scope const mode;
    auto const refuse = [](char const* key, double value, char const* rule) {
        detail::throw_invalid_argument({key, " is ", value, ", but must be ", rule});
    };
    auto const scale = [&](char const* key, double value) {
        if (!detail::is_loss_scale(value))
            refuse(key, value, detail::loss_scale_rule);
    };
    scale("initial_scale", options.initial_scale);
    scale("min_scale", options.min_scale);
    scale("max_scale", options.max_scale);
    if (options.min_scale > options.max_scale)
        refuse("min_scale", options.min_scale, "at most max_scale");
    if (options.min_scale > options.initial_scale || options.initial_scale > options.max_scale)
        refuse("initial_scale", options.initial_scale, "from min_scale to max_scale");
    if (!(std::isfinite(options.growth_factor) && options.growth_factor >= 1))
        refuse("growth_factor", options.growth_factor, "a finite number, 1 or above");
    if (!(options.backoff_factor > 0 && options.backoff_factor <= 1))
        refuse("backoff_factor", options.backoff_factor, "above 0 and at most 1");
    if (options.growth_interval == 0)
        refuse("growth_interval", 0, "1 or above");
    if (options.hysteresis == 0)
        refuse("hysteresis", 0, "1 or above");
}

ADAMANT_DECL loss_scaler_state initial_state(loss_scaling_options const& options)
{
    return {options.initial_scale, 0, options.hysteresis};
}

ADAMANT_DECL loss_scaler_state after_step(loss_scaler_state state, loss_scaling_options const& options,
                                          bool overflow) noexcept
{
    detail::default_mode_scope const mode;
    if (overflow) {
        state.good_steps = 0;
        if (state.hysteresis_left > 1)
            --state.hysteresis_left;
        else
            state.scale = std::max(state.scale * options.backoff_factor, options.min_scale);
    } else if (++state.good_steps >= options.growth_interval) {
        state.good_steps = 0;
        state.hysteresis_left = options.hysteresis;
        state.scale = std::min(state.scale * options.growth_factor, options.max_scale);
    }
    return state;
}

ADAMANT_END_NAMESPACE
