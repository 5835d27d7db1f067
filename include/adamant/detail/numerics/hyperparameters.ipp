// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/hyperparameters.hpp>: validation.
#pragma once

#include <cfloat>
#include <cmath>
#include <string>
#include <utility>

#include <adamant/hyperparameters.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL bool float_holds(double value) noexcept
{
    return value == 0 || (std::fabs(value) > 0x1.000001p-126 && std::fabs(value) <= double{FLT_MAX});
}

ADAMANT_DECL void refuse_hyperparameter(char const* key, double value, char const* rule)
{
    throw_invalid_argument({key, " is ", value, ", but must be ", rule});
}

} // namespace detail

ADAMANT_DECL void validate(hyperparameters const& hyper)
{
    detail::default_mode_scope const mode;
    auto const at_least_zero = [](char const* key, double value) {
        if (!std::isfinite(value) || value < 0)
            detail::refuse_hyperparameter(key, value, "a finite number, 0 or above");
    };
    auto const unit = [](char const* key, double value) {
        if (!(value >= 0 && value < 1 - 0x1p-25)) // the nearest float of larger values is 1
            detail::refuse_hyperparameter(key, value,
                                          "in [0, 1), and below 1 - 2^-25, because float rounds larger values to 1");
    };
    at_least_zero("lr", hyper.lr);
    unit("beta1", hyper.beta1);
    unit("beta2", hyper.beta2);
    at_least_zero("eps", hyper.eps);
    at_least_zero("weight_decay", hyper.weight_decay);
    for (auto const& [key, value] : {std::pair{"beta1", hyper.beta1}, std::pair{"beta2", hyper.beta2},
                                     std::pair{"eps", hyper.eps}, std::pair{"weight_decay", hyper.weight_decay}})
        if (!detail::float_holds(value))
            detail::refuse_hyperparameter(key, value, "0, or from 1.2e-38 to 3.4e38, which float holds");
    double const largest_step = hyper.bias_correction ? hyper.lr / (1 - hyper.beta1) : hyper.lr;
    if (!(largest_step <= double{FLT_MAX}))
        detail::refuse_hyperparameter("lr", hyper.lr,
                                      "such that lr / (1 - beta1), the step size of step 1, is at most 3.4e38");
    if (hyper.mode == decay_mode::decoupled && !(hyper.lr * hyper.weight_decay <= double{FLT_MAX}))
        detail::refuse_hyperparameter("lr", hyper.lr, "such that lr * weight_decay is at most 3.4e38");
    if (hyper.mode > decay_mode::l2)
        detail::throw_invalid_argument(
            {"mode is not a valid decay_mode. Set decay_mode::decoupled or decay_mode::l2."});
    if (hyper.rounding.exp_avg_sq > rounding::stochastic || hyper.rounding.param > rounding::stochastic)
        detail::throw_invalid_argument({"rounding is not valid. Set rounding::nearest or rounding::stochastic for "
                                        "exp_avg_sq and for param."});
    if (hyper.weight_decay != 0 && hyper.mode == decay_mode::unset)
        detail::throw_invalid_argument(
            {"weight_decay is ", hyper.weight_decay,
             " but mode is unset. Set mode to decay_mode::decoupled (AdamW) or decay_mode::l2 (Adam)."});
}

ADAMANT_DECL void validate(grad_scaling const& scaling)
{
    detail::default_mode_scope const mode;
    if (!std::isfinite(scaling.loss_scale) || scaling.loss_scale <= 0)
        detail::refuse_hyperparameter("loss_scale", scaling.loss_scale, "a finite number above 0");
    if (!std::isfinite(scaling.clip_coefficient) || scaling.clip_coefficient < 0)
        detail::refuse_hyperparameter("clip_coefficient", scaling.clip_coefficient, "a finite number, 0 or above");
    if (double const factor = scaling.clip_coefficient / scaling.loss_scale; !detail::float_holds(factor))
        detail::throw_invalid_argument(
            {"cannot scale gradients by clip_coefficient / loss_scale = ", scaling.clip_coefficient, " / ",
             scaling.loss_scale, " = ", factor, ": float holds 0 and factors from 1.2e-38 to 3.4e38. Use ",
             factor > 1 ? "a larger loss_scale or a smaller clip_coefficient."
                        : "a smaller loss_scale or a larger clip_coefficient."});
}

ADAMANT_END_NAMESPACE
