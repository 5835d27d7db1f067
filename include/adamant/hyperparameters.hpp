// SPDX-License-Identifier: Apache-2.0
// Hyperparameters of Adam and AdamW, and the coefficients of a step that are computed from them.
#pragma once

#include <cstdint>

#include <adamant/error.hpp>
#include <adamant/detail/numerics/rounding.hpp>

ADAMANT_BEGIN_NAMESPACE

/// How weight_decay acts. No default, because the two modes differ a thousandfold in strength and are often confused.
enum class decay_mode : std::uint8_t {
    unset,     ///< valid only while weight_decay is 0
    decoupled, ///< AdamW: param shrinks by the factor 1 - lr * weight_decay (Loshchilov and Hutter, arXiv 1711.05101)
    l2,        ///< Adam: weight_decay * param is added to the gradient (Kingma and Ba, arXiv 1412.6980, with L2)
};

/// Hyperparameters of a step. Make them with adamw() or adam(); validate() checks them.
struct hyperparameters {
    double lr = 1e-3;                    ///< learning rate
    double beta1 = 0.9;                  ///< decay rate of the first moment
    double beta2 = 0.999;                ///< decay rate of the second moment
    double eps = 1e-8;                   ///< added to the square root of the bias-corrected second moment
    double weight_decay = 0.0;           ///< a value other than 0 requires a mode
    decay_mode mode = decay_mode::unset; ///< how weight_decay acts
    bool bias_correction = true;         ///< whether to correct the bias of both moments
    bfloat16_rounding rounding = {};     ///< rounding of bfloat16 arrays and 8-bit moments
};

/// Arguments of adamw() and adam(): hyperparameters without the mode. See hyperparameters for the fields.
struct adam_values {
    double lr = 1e-3;                ///< learning rate
    double beta1 = 0.9;              ///< decay rate of the first moment
    double beta2 = 0.999;            ///< decay rate of the second moment
    double eps = 1e-8;               ///< added to the square root of the bias-corrected second moment
    double weight_decay = 0.0;       ///< strength of the decay
    bool bias_correction = true;     ///< whether to correct the bias of both moments
    bfloat16_rounding rounding = {}; ///< rounding of bfloat16 arrays and 8-bit moments
};
/// Returns hyperparameters of AdamW (decoupled decay): adamw({.lr = 1e-3, .weight_decay = 0.1}). Pure.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr hyperparameters adamw(adam_values const& v = {}) noexcept
{
    return {v.lr, v.beta1, v.beta2, v.eps, v.weight_decay, decay_mode::decoupled, v.bias_correction, v.rounding};
}
/// Returns hyperparameters of Adam with L2 regularization: weight_decay * param is added to the gradient. Pure.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr hyperparameters adam(adam_values const& v = {}) noexcept
{
    return {v.lr, v.beta1, v.beta2, v.eps, v.weight_decay, decay_mode::l2, v.bias_correction, v.rounding};
}

/// Gradient scaling of one step: gradients are multiplied by clip_coefficient / loss_scale before use.
struct grad_scaling {
    double loss_scale = 1.0;       ///< factor that the loss was multiplied by; finite and above 0
    double clip_coefficient = 1.0; ///< factor of gradient clipping; finite, 0 or above
};

/// Checks hyperparameters. Values that pass are valid in every step. Pure; thread-safe.
///
/// lr may be arbitrarily small, because schedules end there: if lr / (1 - beta1^step) is at most 2^-126, the step is 0.
/// @throws invalid_argument  naming the first invalid field: NaN or infinite; lr, eps or weight_decay below 0; a beta
/// outside [0, 1) or so close to 1 that its float is 1 (1 - 2^-25 or more); weight_decay with an unset mode; a mode or
/// a rounding that is no enumerator; a value that float cannot represent (above 3.4e38, or at most 2^-126 without
/// being 0; lr may be smaller); lr / (1 - beta1), or for AdamW lr * weight_decay, above 3.4e38.
void validate(hyperparameters const& hyper);

/// Checks a gradient scaling. Pure; thread-safe.
/// @throws invalid_argument  if a factor is NaN, infinite or negative, if loss_scale is 0, or if float cannot represent
///     clip_coefficient / loss_scale (as for hyperparameters): gradients would silently become 0 or infinite.
void validate(grad_scaling const& scaling);

/// Coefficients of one step: ten floats and the rounding of bfloat16 arrays and 8-bit moments. Made by
/// make_coefficients().
///
/// Computed in double and rounded once to float. A pure function of the step number and the hyperparameters, never
/// accumulated over steps, so a resumed run has the coefficients of an uninterrupted run.
struct coefficients {
    float beta1;                 ///< hyperparameters::beta1
    float beta2;                 ///< hyperparameters::beta2
    float one_minus_beta1;       ///< subtracted in double: 1 - 0.999f in float would be wrong in its fourth digit
    float one_minus_beta2;       ///< subtracted in double
    float inv_sqrt_bias2;        ///< 1 / sqrt(1 - beta2^step); 1 without bias correction
    float eps;                   ///< hyperparameters::eps
    float neg_step_size;         ///< -lr / (1 - beta1^step); -lr without bias correction
    float decay;                 ///< AdamW: 1 - lr * weight_decay; Adam: 1
    float l2;                    ///< Adam: weight_decay; AdamW: 0. If it is 0, the step skips the fma of L2 decay.
    float grad_scale;            ///< clip_coefficient / loss_scale
    step_rounding rounding = {}; ///< random key and the arrays to round stochastically
};

/// Computes the coefficients of a step. Pure; thread-safe.
///
/// Neither depends on nor changes the caller's floating-point mode.
/// @throws invalid_argument  for step 0, and as validate() does.
[[nodiscard]] coefficients make_coefficients(hyperparameters const& hyper, std::uint64_t step,
                                             grad_scaling const& scaling = {});

namespace detail {

// Whether the value is 0, or its magnitude is at most the largest float and exceeds 2^-126 by more than half an ulp, so
// that it rounds to a float that flush() keeps.
[[nodiscard]] bool float_holds(double value) noexcept;

[[noreturn]] void refuse_hyperparameter(char const* key, double value, char const* rule);

// Computes base^exponent for two bases in [0, 1): correctly rounded except in the rarest cases and, unlike libm's pow,
// identical on every machine. Squares and multiplies in double-double; fma(a, b, 0) is a product that compilers cannot
// contract.
void powers(double const (&base)[2], std::uint64_t exponent, double (&out)[2]) noexcept;

// Rounds to float. validate() has refused values that would overflow or become 0, except an lr so small that
// the step size becomes 0.
float round_coefficient(double value) noexcept;

// Never inlined: otherwise compilers could move its arithmetic out of the region in which the caller has set the
// floating-point mode.
void compute_coefficients(hyperparameters const& hyper, std::uint64_t step, grad_scaling const& scaling,
                          coefficients& out) noexcept;

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/numerics/coefficients.ipp>
#include <adamant/detail/numerics/hyperparameters.ipp>
#endif
