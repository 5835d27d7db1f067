// SPDX-License-Identifier: Apache-2.0
// What an optimizer is made with, and its parameter groups.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <adamant/core/error.hpp>
#include <adamant/numerics/hyperparameters.hpp>
#include <adamant/numerics/oracle.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

// Parameters that are stepped with the same hyperparameters.
struct parameter_group {
    std::string name;
    hyperparameters hyper;
    bool maximize = false; // steps go up the gradient
};

// Whether begin_step() lets shards be stepped before the norm is known. It changes no bit.
enum class speculation : std::uint8_t {
    automatic, // unless most of the last eight steps had to be taken back for it
    always,
    never, // submit() only measures
};

struct optimizer_options {
    double max_norm = 0;     // see step_values; 0: not clipped
    double max_abs_grad = 0; // the same
    nonfinite_policy on_nonfinite = nonfinite_policy::skip;
    std::optional<loss_scaling_options> loss_scaling = {}; // dynamic; else every step says its scale, or it is 1
    speculation speculate = speculation::automatic;
    // For what it takes to go back. Absent: 3 bytes an element with float params and moments (ordinary training takes
    // 2.1), the state's bytes with others; with keep_last_step, all that it can take. A shard that finds it full waits
    // for the norm.
    std::optional<std::size_t> journal_budget_bytes = {};
    bool keep_last_step = false; // so that rollback() can take it back
    // How long a device may take for what it was given for a step before it counts as one that has stopped answering.
    double device_timeout_s = 300;
    // Whether a device has room for records of all of its part: as much again as its params and moments. Without, it
    // never begins before the norm is known, and where it fails in the update itself, there is no way back: the error
    // says so, and a state has to be loaded.
    bool device_records = true;
    // Where gradients are spread over ranks: is given this process's sum and count, returns those of all (a sum by MPI
    // or NCCL). Every rank must add in the same order, or their bits differ. Called once in every step, by finish(),
    // step(), or, for step_async(), in one of the team's threads. May throw: the step is then taken back.
    std::function<grad_squares(grad_squares)> reduce = {};
};
namespace detail {

inline void check_limit(char const* key, double value)
{
    if (!std::isfinite(value) || value < 0)
        refuse_hyperparameter(key, value, "a finite number, 0 or above");
}
inline void check_one_limit(double max_norm, double max_abs_grad)
{
    if (max_norm != 0 && max_abs_grad != 0)
        throw invalid_argument("adamant: max_norm is " + text(max_norm) + " and max_abs_grad is " + text(max_abs_grad) +
                               ", but a gradient is clipped by one of them; set the other to 0");
}
} // namespace detail

// Throws invalid_argument naming the first option that cannot be.
inline void check(optimizer_options const& options)
{
    detail::check_limit("max_norm", options.max_norm);
    detail::check_limit("max_abs_grad", options.max_abs_grad);
    detail::check_one_limit(options.max_norm, options.max_abs_grad);
    if (!(options.device_timeout_s > 0 && options.device_timeout_s <= 1e6))
        detail::refuse_hyperparameter("device_timeout_s", options.device_timeout_s, "above 0, and at most 1e6");
    if (options.on_nonfinite > nonfinite_policy::apply)
        throw invalid_argument("adamant: on_nonfinite holds no nonfinite_policy");
    if (options.speculate > speculation::never)
        throw invalid_argument("adamant: speculate holds no speculation");
    if (options.loss_scaling)
        check(*options.loss_scaling);
}

ADAMANT_END_NAMESPACE
