// SPDX-License-Identifier: Apache-2.0
// Compiled by itself with -O3 -march=native -ffast-math, and without a line of adamant: what a compiler makes of the
// obvious loop. Nothing is defined inline here, so those flags stay in this file.

#include "plain.hpp"

#include <cmath>

namespace plain {

namespace {

float from_bfloat16(std::uint16_t bits)
{
    return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
}

// To nearest even. Under -ffast-math there are no NaNs to look after.
std::uint16_t to_bfloat16(float x)
{
    auto const bits = __builtin_bit_cast(std::uint32_t, x);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

} // namespace

void step(float* param, float const* grad, float* exp_avg, float* exp_avg_sq, std::size_t n, coefficients const c,
          unsigned threads)
{
#pragma omp parallel for simd schedule(static) num_threads(static_cast<int>(threads))
    for (std::size_t i = 0; i < n; ++i) {
        float const g = grad[i];
        float const m = c.beta1 * exp_avg[i] + (1 - c.beta1) * g;
        float const v = c.beta2 * exp_avg_sq[i] + (1 - c.beta2) * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] = c.decay * param[i] - c.step_size * m / (std::sqrt(v) * c.inv_sqrt_bias2 + c.eps);
    }
}

void step(std::uint16_t* param, std::uint16_t const* grad, float* exp_avg, float* exp_avg_sq, std::size_t n,
          coefficients const c, unsigned threads)
{
#pragma omp parallel for simd schedule(static) num_threads(static_cast<int>(threads))
    for (std::size_t i = 0; i < n; ++i) {
        float const g = from_bfloat16(grad[i]);
        float const m = c.beta1 * exp_avg[i] + (1 - c.beta1) * g;
        float const v = c.beta2 * exp_avg_sq[i] + (1 - c.beta2) * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        float const p = c.decay * from_bfloat16(param[i]) - c.step_size * m / (std::sqrt(v) * c.inv_sqrt_bias2 + c.eps);
        param[i] = to_bfloat16(p);
    }
}

} // namespace plain
