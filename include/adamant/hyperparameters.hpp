// SPDX-License-Identifier: Apache-2.0
// Adam's hyperparameters and the coefficients of one step.
#pragma once

#include <cstdint>

#include <adamant/error.hpp>
#include <adamant/detail/numerics/rounding.hpp>

// The values that a caller chooses for a step, and their check.

ADAMANT_BEGIN_NAMESPACE

/// How weight_decay acts. There is deliberately no default: the two differ a thousandfold in strength, and are often
/// confused.
enum class decay_mode : std::uint8_t {
    unset,     ///< allowed only while weight_decay is 0
    decoupled, ///< AdamW: the parameter shrinks by lr * weight_decay (Loshchilov and Hutter, arXiv 1711.05101)
    l2,        ///< Adam: weight_decay * param is added to the gradient (Kingma and Ba, arXiv 1412.6980, with L2)
};

/// Adam's hyperparameters.
struct hyperparameters {
    double lr = 1e-3;                    ///< learning rate
    double beta1 = 0.9;                  ///< decay of the first moment, in [0, 1)
    double beta2 = 0.999;                ///< decay of the second moment, in [0, 1)
    double eps = 1e-8;                   ///< added to the root of the bias-corrected second moment
    double weight_decay = 0.0;           ///< needs mode
    decay_mode mode = decay_mode::unset; ///< AdamW's decoupled decay, or L2 regularization
    bool bias_correction = true;         ///< whether moments are corrected for their start at zero
    bfloat16_rounding rounding = {};     ///< of arrays of bfloat16 only
};

/// The same without the mode, which the function's name says: adamw({.lr = 1e-3, .weight_decay = 0.1}).
struct adam_values {
    double lr = 1e-3;                ///< learning rate
    double beta1 = 0.9;              ///< decay of the first moment
    double beta2 = 0.999;            ///< decay of the second moment
    double eps = 1e-8;               ///< added to the root of the second moment
    double weight_decay = 0.0;       ///< weight decay
    bool bias_correction = true;     ///< whether moments are corrected for their start at zero
    bfloat16_rounding rounding = {}; ///< what is rounded stochastically
};
/// AdamW: decoupled decay. Pure.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr hyperparameters adamw(adam_values const& v = {}) noexcept
{
    return {v.lr, v.beta1, v.beta2, v.eps, v.weight_decay, decay_mode::decoupled, v.bias_correction, v.rounding};
}
/// Adam: weight_decay * param is added to the gradient, as L2 regularisation. Pure.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr hyperparameters adam(adam_values const& v = {}) noexcept
{
    return {v.lr, v.beta1, v.beta2, v.eps, v.weight_decay, decay_mode::l2, v.bias_correction, v.rounding};
}

/// A gradient is multiplied by clip_coefficient / loss_scale before it is used. Given with every call.
struct grad_scaling {
    double loss_scale = 1.0;       ///< the factor that the loss was multiplied with; finite and above 0
    double clip_coefficient = 1.0; ///< finite, 0 or above
};

namespace detail {

// Whether the value, rounded to nearest, is zero or a finite float that is not flushed: above 2^-126 and half a unit.
[[nodiscard]] bool float_holds(double value) noexcept;

[[noreturn]] void refuse_hyperparameter(char const* key, double value, char const* rule);

} // namespace detail

/// Throws invalid_argument naming the first impossible field: NaN or infinite, lr, eps or weight_decay below 0, a beta
/// outside [0, 1) or so close to 1 that its float is 1 (from 1 - 2^-25 on), a weight_decay whose mode is unset, and a
/// value that float does not hold (above 3.4e38, or not 0 and at most 2^-126). Only lr may be arbitrarily small,
/// because schedules end there: where lr / (1 - beta1^step) is at most 2^-126, the step is 0. Values that pass here are
/// valid in every step. Pure; thread-safe.
void validate(hyperparameters const& hyper);

/// Throws invalid_argument where a factor is NaN, infinite, negative, or zero (loss_scale), and where float does not
/// hold their quotient (see above), so that gradients would silently count for nothing or for infinity.
void validate(grad_scaling const& scaling);

// What one step computes with, made from hyperparameters: ten floats, and how bfloat16 is rounded.

/// Computed in double, rounded once to float. They are a pure function of the step number and the hyperparameters,
/// never accumulated from step to step, so a resumed run has the coefficients of an uninterrupted one.
struct coefficients {
    float beta1;                 ///< decay of the first moment
    float beta2;                 ///< decay of the second moment
    float one_minus_beta1;       ///< subtracted in double: 1 - 0.999f in float would be off in its fourth digit
    float one_minus_beta2;       ///< 1 - beta2, rounded once
    float inv_sqrt_bias2;        ///< 1 / sqrt(1 - beta2^step); 1 without bias correction
    float eps;                   ///< added to the root of the second moment
    float neg_step_size;         ///< -lr / (1 - beta1^step); -lr without bias correction
    float decay;                 ///< AdamW: 1 - lr * weight_decay; Adam: 1
    float l2;                    ///< Adam: weight_decay; AdamW: 0. Where it is 0, the fma of L2 decay is left out.
    float grad_scale;            ///< clip_coefficient / loss_scale
    step_rounding rounding = {}; ///< what is rounded stochastically in this step
};

namespace detail {

// base^exponent for two bases in [0, 1), correctly rounded except in the rarest cases, and the same on every machine,
// which libm's pow is not. Squares and multiplies in double-double; fma(a, b, 0) is a product that no compiler may
// fuse.
void powers(double const (&base)[2], std::uint64_t exponent, double (&out)[2]) noexcept;

// validate() has refused values that would overflow, and those that would become zero, except for the learning rate's.
float round_coefficient(double value) noexcept;

// Apart and not inlined, so that no compiler moves its arithmetic out of the floating-point scope around the call.
void compute_coefficients(hyperparameters const& hyper, std::uint64_t step, grad_scaling const& scaling,
                          coefficients& out) noexcept;

} // namespace detail

/// The coefficients of step number `step`, which counts from 1. Throws invalid_argument where validate() does, and for
/// step 0. The caller's floating-point mode neither matters nor changes. Pure; thread-safe.
[[nodiscard]] coefficients make_coefficients(hyperparameters const& hyper, std::uint64_t step,
                                             grad_scaling const& scaling = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/numerics/coefficients.ipp>
#include <adamant/detail/numerics/hyperparameters.ipp>
#endif
