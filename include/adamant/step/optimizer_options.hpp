// SPDX-License-Identifier: Apache-2.0
// What an optimizer is made with, and its parameter groups.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

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
    // A bound for the records that it takes to go back; no more is allocated than a step's records can take. They take,
    // in bytes an element, by the types of param and moments:
    //
    //   float32, moments float32           2 in a first step, 2.1 to 2.3 in ordinary training, 14 at most; tier scalar
    //   12 float32, moments bfloat16          8 float32, a moment of each          10 16 bits, moments float32 10 16
    //   bits, a moment of each          8 16 bits, moments bfloat16          6
    //
    // and an eighth more, and some KiB a thread, as pages are not filled to the end. Absent: 3 bytes an element with
    // float32 throughout, the state's bytes with others; with keep_last_step, the most that they can take. A block that
    // finds it full waits for the norm.
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
    // step(), or, for step_async(), in one of the team's threads. May throw; a sum that is negative or not
    // finite, or a count below this process's, is invalid_argument. step() and step_async() then leave everything as
    // before; after finish() the step stays open: finish() again, or abandon() it.
    std::function<grad_squares(grad_squares)> reduce = {};
};
namespace detail {

inline void check_limits(double max_norm, double max_abs_grad)
{
    for (auto const& [key, value] : {std::pair{"max_norm", max_norm}, std::pair{"max_abs_grad", max_abs_grad}})
        if (!std::isfinite(value) || value < 0)
            refuse_hyperparameter(key, value, "a finite number, 0 or above");
    if (!float_holds(max_abs_grad))
        refuse_hyperparameter("max_abs_grad", max_abs_grad, "0, or from 1.2e-38 to 3.4e38, which float holds");
    if (max_norm != 0 && max_abs_grad != 0)
        throw invalid_argument("adamant: max_norm is " + text(max_norm) + " and max_abs_grad is " + text(max_abs_grad) +
                               ", but a gradient is clipped by one of them; set the other to 0");
}
// Of all ranks; options.reduce must be set. Throws what the hook throws, and where what it returns cannot be: a
// step by that would be clipped to anything, or not at all.
[[nodiscard]] inline grad_squares reduced(optimizer_options const& options, grad_squares const& own)
{
    grad_squares const all = options.reduce(own);
    if (!std::isfinite(all.sum) || all.sum < 0 || all.nonfinite < own.nonfinite)
        throw invalid_argument("adamant: reduce was given the sum of squares " + text(own.sum) + " and " +
                               std::to_string(own.nonfinite) + " non-finite gradients of this process, and returned " +
                               text(all.sum) + " and " + std::to_string(all.nonfinite) +
                               " for all processes; the sum must be a finite number, 0 or above (non-finite gradients "
                               "are not in it), and the count no less than this process's own");
    return all;
}
} // namespace detail

// Throws invalid_argument naming the first option that cannot be.
inline void check(optimizer_options const& options)
{
    detail::check_limits(options.max_norm, options.max_abs_grad);
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
