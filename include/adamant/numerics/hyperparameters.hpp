// SPDX-License-Identifier: Apache-2.0
// What a caller chooses about a step, and the check of it.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

// How weight_decay acts. There is no default on purpose: the two differ a thousandfold in strength, and are confused.
enum class decay_mode : std::uint8_t {
    unset,     // allowed only while weight_decay is 0
    decoupled, // AdamW: the parameter shrinks by lr * weight_decay (Loshchilov and Hutter, arXiv 1711.05101)
    l2,        // Adam: weight_decay * param is added to the gradient (Kingma and Ba, arXiv 1412.6980, with L2)
};

struct hyperparameters {
    double lr = 1e-3;
    double beta1 = 0.9;
    double beta2 = 0.999;
    double eps = 1e-8;         // added to the root of the bias-corrected second moment
    double weight_decay = 0.0; // says nothing without mode
    decay_mode mode = decay_mode::unset;
    bool bias_correction = true;
};

// What is multiplied onto a gradient before it is used: clip_coefficient / loss_scale. Comes with every call.
struct grad_scaling {
    double loss_scale = 1.0;       // the factor the loss was multiplied with; finite and above 0
    double clip_coefficient = 1.0; // finite, 0 or above
};

namespace detail {

[[noreturn]] inline void refuse_hyperparameter(char const* key, double value, char const* rule)
{
    throw invalid_argument(std::string("adamant: ") + key + " is " + text(value) + ", but must be " + rule);
}

} // namespace detail

// Throws invalid_argument naming the first field that cannot be: NaN or infinite, lr, eps or weight_decay below 0, a
// beta outside [0, 1), a weight_decay whose mode is unset. Pure; thread-safe.
inline void check(hyperparameters const& hyper)
{
    auto const at_least_zero = [](char const* key, double value) {
        if (!std::isfinite(value) || value < 0)
            detail::refuse_hyperparameter(key, value, "a finite number, 0 or above");
    };
    auto const unit = [](char const* key, double value) {
        if (!(value >= 0 && value < 1))
            detail::refuse_hyperparameter(key, value, "in [0, 1)");
    };
    at_least_zero("lr", hyper.lr);
    unit("beta1", hyper.beta1);
    unit("beta2", hyper.beta2);
    at_least_zero("eps", hyper.eps);
    at_least_zero("weight_decay", hyper.weight_decay);
    if (hyper.mode > decay_mode::l2)
        throw invalid_argument("adamant: mode holds no decay_mode; set decay_mode::decoupled or decay_mode::l2");
    if (hyper.weight_decay != 0 && hyper.mode == decay_mode::unset)
        throw invalid_argument("adamant: weight_decay is " + detail::text(hyper.weight_decay) +
                               " but mode is unset; set mode to decay_mode::decoupled (AdamW) or decay_mode::l2 (Adam)");
}

// Throws invalid_argument where a factor is NaN, infinite, or has a sign or zero that it cannot have.
inline void check(grad_scaling const& scaling)
{
    if (!std::isfinite(scaling.loss_scale) || scaling.loss_scale <= 0)
        detail::refuse_hyperparameter("loss_scale", scaling.loss_scale, "a finite number above 0");
    if (!std::isfinite(scaling.clip_coefficient) || scaling.clip_coefficient < 0)
        detail::refuse_hyperparameter("clip_coefficient", scaling.clip_coefficient, "a finite number, 0 or above");
}

ADAMANT_END_NAMESPACE
