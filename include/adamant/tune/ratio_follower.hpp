// SPDX-License-Identifier: Apache-2.0
// The best ratio as training goes on: rates are measured by every step, and change with what else the machine does.
#pragma once

#include <optional>

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
[[nodiscard]] measured_step measured(optimizer_report const& step) noexcept;

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
    explicit ratio_follower(step_rates const& rates, follower_options const& options = {});

    // Takes in what a step has measured: the first measurement instead of what was guessed, others by their weight.
    // What is not finite and above 0 counts for nothing.
    void observe(measured_step const& step) noexcept;
    // Backward and forward belong to the caller, who times them. Throws invalid_argument for what is no time, and keeps
    // what it had.
    void set_times(double backward_s, double forward_s);

    [[nodiscard]] step_rates const& rates() const noexcept { return rates_; }
    // A ratio that is worth moving shards for, from the one that the optimizer has; absent: stay. Throws
    // invalid_argument where the latter is not from 0 to 1.
    [[nodiscard]] std::optional<double> proposal(double ratio) const;

private:
    // Times are averaged, not rates: they add up.
    void take_in(double& rate, double amount, double seconds, bool& known) noexcept;

    step_rates rates_;
    follower_options options_;
    bool known_[4] = {}; // whether it has been measured yet
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/ratio_follower.ipp>
#endif
