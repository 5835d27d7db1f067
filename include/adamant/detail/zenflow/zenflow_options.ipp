// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/zenflow.hpp>: validation of options, and the schedule of selections and windows.
#pragma once

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL void validate(zenflow_options const& options)
{
    detail::default_mode_scope const mode;
    if (!(options.topk_ratio >= 0 && options.topk_ratio <= 1))
        detail::throw_invalid_argument({"topk_ratio is ", options.topk_ratio, ", but must be from 0 to 1"});
    if (options.select_interval == 0)
        detail::throw_invalid_argument({"select_interval is 0, but must be at least 1"});
    if (options.update_interval == 0u)
        detail::throw_invalid_argument({"update_interval is 0, but must be at least 1"});
    if (!(options.auto_ratio >= 0) || options.auto_ratio > 1e300)
        detail::throw_invalid_argument({"auto_ratio is ", options.auto_ratio, ", but must be finite and at least 0"});
    if (options.max_deferred == 0)
        detail::throw_invalid_argument({"max_deferred is 0, but must be at least 1"});
}

ADAMANT_DECL bool is_in_warm_up(zenflow_options const& options, zenflow_position const& position) noexcept
{
    return position.steps < options.full_warm_up_rounds;
}

ADAMANT_DECL bool selects_next(zenflow_options const& options, zenflow_position const& position) noexcept
{
    return !is_in_warm_up(options, position) && position.in_window == 0 &&
           (!position.has_selection || position.since_selection >= options.select_interval);
}

ADAMANT_DECL bool ends_window(zenflow_options const& options, zenflow_position const& position,
                              double deferred_squares) noexcept
{
    detail::default_mode_scope const mode;
    if (position.steps <= options.full_warm_up_rounds) // the step belonged to the warm-up
        return true;
    if (options.update_interval)
        return position.in_window >= *options.update_interval;
    return position.in_window >= options.max_deferred ||
           (deferred_squares > 0 && deferred_squares >= options.auto_ratio * position.done_squares);
}

ADAMANT_DECL zenflow_options zenflow_options_of(zenflow_config const& config)
{
    zenflow_options options;
    options.topk_ratio = config.topk_ratio;
    options.select_interval = config.select_interval;
    options.update_interval = config.update_interval;
    options.full_warm_up_rounds = config.full_warm_up_rounds;
    options.overlap = config.overlap;
    validate(options);
    return options;
}

ADAMANT_END_NAMESPACE
