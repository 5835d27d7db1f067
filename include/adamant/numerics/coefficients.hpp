// SPDX-License-Identifier: Apache-2.0
// Hyperparameters -> the ten floats that one step computes with.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include <adamant/numerics/convert.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/numerics/hyperparameters.hpp>

ADAMANT_BEGIN_NAMESPACE

// Computed in double, rounded once to float. They are a pure function of the step number and the hyperparameters,
// never multiplied up from step to step, so a resumed run has the very coefficients of an uninterrupted one.
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
};

namespace detail {

// base^exponent for base in [0, 1), correctly rounded but for the rarest cases, and the same on every machine: libm's
// pow is neither. Squaring and multiplying in double-double; fma(a, b, 0) is a product that no compiler may fuse.
inline double power(double base, std::uint64_t exponent) noexcept
{
    struct pair {
        double high, low;
    };
    auto const multiply = [](pair a, pair b) -> pair {
        double const product = std::fma(a.high, b.high, 0.0);
        double error = std::fma(a.high, b.high, -product);
        error = std::fma(a.high, b.low, error);
        error = std::fma(a.low, b.high, error);
        double const high = product + error;
        return {high, error - (high - product)};
    };
    pair result{1.0, 0.0};
    pair square{base, 0.0};
    for (;; square = multiply(square, square)) {
        if (exponent & 1)
            result = multiply(result, square);
        if ((exponent >>= 1) == 0 || square.high < 1e-100) // what is left can only make a tiny result tinier
            return exponent == 0 ? result.high : 0.0;
    }
}

// check() has refused what would overflow, and what would become zero, but for the learning rate's.
inline float round_coefficient(double value) noexcept
{
    return flush(static_cast<float>(value));
}

// Apart and not inlined, so that no compiler moves its arithmetic out of the floating-point scope around the call.
[[gnu::noinline]] inline void compute_coefficients(hyperparameters const& hyper, std::uint64_t step,
                                                   grad_scaling const& scaling, coefficients& out) noexcept
{
    double bias1 = 1.0;
    double bias2 = 1.0;
    if (hyper.bias_correction) {
        bias1 = 1.0 - power(hyper.beta1, step);
        bias2 = 1.0 - power(hyper.beta2, step);
    }
    bool const l2 = hyper.mode == decay_mode::l2;
    out.beta1 = round_coefficient(hyper.beta1);
    out.beta2 = round_coefficient(hyper.beta2);
    out.one_minus_beta1 = round_coefficient(1.0 - hyper.beta1);
    out.one_minus_beta2 = round_coefficient(1.0 - hyper.beta2);
    out.inv_sqrt_bias2 = round_coefficient(1.0 / std::sqrt(bias2));
    out.eps = round_coefficient(hyper.eps);
    out.neg_step_size = round_coefficient(-hyper.lr / bias1);
    out.decay = round_coefficient(l2 ? 1.0 : std::fma(-hyper.lr, hyper.weight_decay, 1.0));
    out.l2 = round_coefficient(l2 ? hyper.weight_decay : 0.0);
    out.grad_scale = round_coefficient(scaling.clip_coefficient / scaling.loss_scale);
}

} // namespace detail

// The coefficients of step number `step`, which counts from 1. Throws invalid_argument where check() does, and for step
// 0. The caller's floating-point mode neither matters nor changes. Pure; thread-safe.
[[nodiscard]] inline coefficients make_coefficients(hyperparameters const& hyper, std::uint64_t step,
                                                    grad_scaling const& scaling = {})
{
    float_mode_scope const mode(subnormals::kept);
    check(hyper);
    check(scaling);
    if (step == 0)
        throw invalid_argument("adamant: step is 0, but steps count from 1: bias correction divides by 1 - beta^step");
    coefficients result;
    detail::compute_coefficients(hyper, step, scaling, result);
    return result;
}

ADAMANT_END_NAMESPACE
