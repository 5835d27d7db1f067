// SPDX-License-Identifier: Apache-2.0
// The best ratio as training goes on: rates are measured by every step, and change with what else the machine does.
#pragma once

#include <cmath>
#include <cstddef>
#include <optional>
#include <string>

#include <adamant/core/error.hpp>
#include <adamant/split/best_ratio.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

// What one step did, and how long who was busy with it: an optimizer's report has these. Whoever did nothing says
// nothing about its rate.
struct measured_step {
    double cpu_elems = 0, cpu_s = 0;
    double device_elems = 0, device_s = 0;
    double down_bytes = 0, down_s = 0;
    double up_bytes = 0, up_s = 0;
};

// Of a step by an optimizer. A step that was taken back and done again has worked twice for its elements, and counts as
// it was.
[[nodiscard]] inline measured_step measured(optimizer_report const& step) noexcept
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

struct follower_options {
    double weight = 0.2; // of a new measurement, against all before
    double worth = 0.02; // a new ratio is proposed where it makes the step shorter by this share of it
    double least = 0;    // bounds for the ratio, from memory
    double most = 1;
};

// Not thread-safe; a value like any other.
class ratio_follower {
public:
    // Begins with what is known, or guessed, about the rates. Throws invalid_argument for what cannot be.
    explicit ratio_follower(step_rates const& rates, follower_options const& options = {})
        : rates_(rates), options_(options)
    {
        if (!(options.weight > 0 && options.weight <= 1))
            throw invalid_argument("adamant: the weight of a measurement is " + detail::text(options.weight) +
                                   ", but must be above 0, and at most 1");
        if (!(options.worth >= 0 && options.worth < 1))
            throw invalid_argument("adamant: worth is " + detail::text(options.worth) +
                                   ", but it is a share of the step, from 0 to below 1");
        (void)best_ratio(rates_, options_.least, options_.most); // throws for the others
    }

    // Takes in what a step has measured: the first measurement instead of what was guessed, others by their weight.
    // What is not finite and above 0 counts for nothing.
    void observe(measured_step const& step) noexcept
    {
        take_in(rates_.cpu_elems_per_s, step.cpu_elems, step.cpu_s, known_[0]);
        take_in(rates_.device_elems_per_s, step.device_elems, step.device_s, known_[1]);
        take_in(rates_.down_bytes_per_s, step.down_bytes, step.down_s, known_[2]);
        take_in(rates_.up_bytes_per_s, step.up_bytes, step.up_s, known_[3]);
    }
    // Backward and forward belong to the caller, who times them. Throws invalid_argument for what is no time, and keeps
    // what it had.
    void set_times(double backward_s, double forward_s)
    {
        step_rates changed = rates_;
        changed.backward_s = backward_s;
        changed.forward_s = forward_s;
        detail::check(changed);
        rates_ = changed;
    }

    [[nodiscard]] step_rates const& rates() const noexcept { return rates_; }
    // A ratio that is worth moving shards for, from the one that the optimizer has; absent: stay. Throws
    // invalid_argument where the latter is not from 0 to 1.
    [[nodiscard]] std::optional<double> proposal(double ratio) const
    {
        step_forecast const best = best_ratio(rates_, options_.least, options_.most);
        bool const worth_it = best.step_s < forecast(rates_, ratio).step_s * (1 - options_.worth);
        return worth_it ? std::optional(best.ratio) : std::nullopt;
    }

private:
    // Times are averaged, not rates: they add up.
    void take_in(double& rate, double amount, double seconds, bool& known) noexcept
    {
        double const time = seconds / amount;
        if (!(amount > 0 && seconds > 0) || !std::isnormal(time) || !std::isfinite(amount))
            return;
        double const weight = known ? options_.weight : 1;
        rate = 1 / (weight * time + (1 - weight) / rate);
        known = true;
    }

    step_rates rates_;
    follower_options options_;
    bool known_[4] = {}; // whether it has been measured yet
};

ADAMANT_END_NAMESPACE
