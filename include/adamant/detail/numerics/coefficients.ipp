// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/hyperparameters.hpp>: the coefficients of a step.
#pragma once

#include <cmath>
#include <string>

#include <adamant/dtype.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Implements powers(). Inlined into one function for CPUs with FMA and one for CPUs without. Both return the same bits,
// but a call of libm's fma takes 2 ns, and there are about a hundred. Computes the two powers together, because each is
// a chain of dependent operations.
ADAMANT_ALWAYS_INLINE void compute_powers(double const (&base)[2], std::uint64_t exponent, double (&out)[2]) noexcept
{
    struct pair {
        double high, low;
    };
    auto const multiply = [](pair& a, pair b) {
        double const product = std::fma(a.high, b.high, 0.0);
        double error = std::fma(a.high, b.high, -product);
        error = std::fma(a.high, b.low, error);
        error = std::fma(a.low, b.high, error);
        double const high = product + error;
        a = {high, error - (high - product)};
    };
    struct power {
        pair result, square;
    };
    power a{{1.0, 0.0}, {base[0], 0.0}};
    power b{{1.0, 0.0}, {base[1], 0.0}};
    auto const next_square = [&](power& p) {
        if (p.square.high < 1e-100) // the remaining factors can only make a tiny result smaller
            p = {};
        multiply(p.square, p.square);
    };
    for (;;) {
        if (exponent & 1) {
            multiply(a.result, a.square);
            multiply(b.result, b.square);
        }
        if ((exponent >>= 1) == 0)
            break;
        next_square(a);
        next_square(b);
    }
    out[0] = a.result.high;
    out[1] = b.result.high;
}
#if defined(__x86_64__) && !defined(__FMA__)
[[gnu::target("fma")]] inline void compute_powers_with_fma(double const (&base)[2], std::uint64_t exponent,
                                                           double (&out)[2]) noexcept
{
    compute_powers(base, exponent, out);
}
#endif

ADAMANT_DECL void powers(double const (&base)[2], std::uint64_t exponent, double (&out)[2]) noexcept
{
#if defined(__x86_64__) && !defined(__FMA__)
    if (__builtin_cpu_supports("fma"))
        return compute_powers_with_fma(base, exponent, out);
#endif
    compute_powers(base, exponent, out);
}

ADAMANT_DECL float round_coefficient(double value) noexcept
{
    return flush(static_cast<float>(value));
}

[[gnu::noinline]] ADAMANT_DECL void compute_coefficients(hyperparameters const& hyper, std::uint64_t step,
                                                         grad_scaling const& scaling, coefficients& out) noexcept
{
    double bias1 = 1.0;
    double bias2 = 1.0;
    if (hyper.bias_correction) {
        double const betas[2] = {hyper.beta1, hyper.beta2};
        double powers_at_step[2];
        powers(betas, step, powers_at_step);
        bias1 = 1.0 - powers_at_step[0];
        bias2 = 1.0 - powers_at_step[1];
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
    out.rounding = {rounding_key(hyper.rounding.seed, step), hyper.rounding.exp_avg_sq == rounding::stochastic,
                    hyper.rounding.param == rounding::stochastic};
}

} // namespace detail

ADAMANT_DECL coefficients make_coefficients(hyperparameters const& hyper, std::uint64_t step,
                                            grad_scaling const& scaling)
{
    float_mode_scope const mode(subnormals::kept);
    validate(hyper);
    validate(scaling);
    if (step == 0)
        detail::throw_invalid_argument(
            {"cannot make the coefficients of step 0: bias correction divides by 1 - beta^step. Count steps from 1."});
    coefficients result;
    detail::compute_coefficients(hyper, step, scaling, result);
    return result;
}

ADAMANT_END_NAMESPACE
