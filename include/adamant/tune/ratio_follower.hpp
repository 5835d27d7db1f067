// SPDX-License-Identifier: Apache-2.0
// The best ratio during training: every step measures the rates, which change with the machine's other work.
#pragma once

#include <optional>

#include <adamant/device/best_ratio.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

// The work of one step and how long each part was busy with it, from an optimizer's report. A part without work tells
// nothing about its rate.
struct measured_step {
    double cpu_elems = 0, cpu_s = 0;
    double device_elems = 0, device_s = 0;
    double down_bytes = 0, down_s = 0;
    double up_bytes = 0, up_s = 0;
};

// Of an optimizer's step. A step that was taken back and done again counts with the time of all of its work.
[[nodiscard]] measured_step measured_step_of(optimizer_report const& step) noexcept;

struct follower_options {
    double weight = 0.2; // of a new measurement, against all earlier ones
    double worth = 0.02; // a new ratio is proposed if it makes the step shorter by this share
    double least = 0;    // bounds for the ratio, from memory
    double most = 1;
};

// Not thread-safe; a value like any other.
class ratio_follower {
public:
    // Begins with known or guessed rates. Throws invalid_argument for impossible rates or options.
    explicit ratio_follower(step_rates const& rates, follower_options const& options = {});

    // Adds a step's measurements: the first one replaces the guess, later ones count by their weight. Values that are
    // not finite and above 0 are ignored.
    void observe(measured_step const& step) noexcept;
    // Backward and forward are the caller's, who times them. Throws invalid_argument for impossible times, and keeps
    // the old ones.
    void set_times(double backward_s, double forward_s);

    [[nodiscard]] step_rates const& rates() const noexcept { return rates_; }
    // A ratio that is worth moving shards for, given the optimizer's current one; absent: keep that. Throws
    // invalid_argument where the current ratio is not from 0 to 1.
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
