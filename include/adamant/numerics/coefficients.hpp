// SPDX-License-Identifier: Apache-2.0
// What one step computes with, made from hyperparameters: ten floats, and how bfloat16 is rounded.
#pragma once

#include <cstdint>

#include <adamant/numerics/hyperparameters.hpp>

ADAMANT_BEGIN_NAMESPACE

// Computed in double, rounded once to float. They are a pure function of the step number and the hyperparameters, never
// accumulated from step to step, so a resumed run has the coefficients of an uninterrupted one.
struct coefficients {
    float beta1;
    float beta2;
    float one_minus_beta1; // subtracted in double: 1 - 0.999f in float would be off in its fourth digit
    float one_minus_beta2;
    float inv_sqrt_bias2; // 1 / sqrt(1 - beta2^step); 1 without bias correction
    float eps;
    float neg_step_size; // -lr / (1 - beta1^step); -lr without bias correction
    float decay;         // AdamW: 1 - lr * weight_decay; Adam: 1
    float l2;            // Adam: weight_decay; AdamW: 0. Where it is 0, the fma of L2 decay is left out.
    float grad_scale;    // clip_coefficient / loss_scale
    step_rounding rounding = {};
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

// The coefficients of step number `step`, which counts from 1. Throws invalid_argument where validate() does, and for
// step 0. The caller's floating-point mode neither matters nor changes. Pure; thread-safe.
[[nodiscard]] coefficients make_coefficients(hyperparameters const& hyper, std::uint64_t step,
                                             grad_scaling const& scaling = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/numerics/coefficients.ipp>
#endif
