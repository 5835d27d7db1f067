// SPDX-License-Identifier: Apache-2.0
// Definitions of ratio_follower and measured_step_of() of adamant/tune.hpp.
#pragma once

#include <cmath>
#include <cstddef>
#include <string>

#include <adamant/error.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL measured_step measured_step_of(optimizer_report const& step) noexcept
{
    auto const number = [](std::size_t n) { return static_cast<double>(n); };
    return {.cpu_elems = number(step.elements - step.device.elements),
            .cpu_s = step.cpu_busy_s,
            .device_elems = number(step.device.elements),
            .device_s = step.device.work_s,
            .down_bytes = number(step.device.down_bytes),
            .down_s = step.device.down_s,
            .up_bytes = number(step.device.up_bytes),
            .up_s = step.device.up_s};
}

ADAMANT_DECL ratio_follower::ratio_follower(step_rates const& rates, follower_options const& options)
    : rates_(rates), options_(options)
{
    detail::default_mode_scope const mode;
    if (!(options.weight > 0 && options.weight <= 1))
        detail::throw_invalid_argument(
            {"the weight of a measurement is ", options.weight, ", but must be above 0, and at most 1"});
    if (!(options.worth >= 0 && options.worth < 1))
        detail::throw_invalid_argument(
            {"worth is ", options.worth, ", but must be a share of the step, from 0 to below 1"});
    (void)best_ratio(rates_, options_.least, options_.most); // throws for invalid rates and limits
}

ADAMANT_DECL void ratio_follower::observe(measured_step const& step) noexcept
{
    detail::default_mode_scope const mode;
    update_rate(rates_.cpu_elems_per_s, step.cpu_elems, step.cpu_s, known_[0]);
    update_rate(rates_.device_elems_per_s, step.device_elems, step.device_s, known_[1]);
    update_rate(rates_.down_bytes_per_s, step.down_bytes, step.down_s, known_[2]);
    update_rate(rates_.up_bytes_per_s, step.up_bytes, step.up_s, known_[3]);
}

ADAMANT_DECL void ratio_follower::set_times(double backward_s, double forward_s)
{
    detail::default_mode_scope const mode;
    step_rates changed = rates_;
    changed.backward_s = backward_s;
    changed.forward_s = forward_s;
    detail::check_rates(changed);
    rates_ = changed;
}

ADAMANT_DECL std::optional<double> ratio_follower::proposal(double ratio) const
{
    detail::default_mode_scope const mode;
    step_forecast const best = best_ratio(rates_, options_.least, options_.most);
    bool const is_worthwhile = best.step_s < forecast(rates_, ratio).step_s * (1 - options_.worth);
    return is_worthwhile ? std::optional(best.ratio) : std::nullopt;
}

ADAMANT_DECL void ratio_follower::update_rate(double& rate, double amount, double seconds, bool& known) noexcept
{
    double const time = seconds / amount;
    if (!(amount > 0 && seconds > 0) || !std::isnormal(time) || !std::isfinite(amount))
        return;
    double const weight = known ? options_.weight : 1;
    rate = 1 / (weight * time + (1 - weight) / rate);
    known = true;
}

ADAMANT_END_NAMESPACE
