// SPDX-License-Identifier: Apache-2.0
// The step as a user would write it without this library; see plain.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace plain {

// Of AdamW, named like those of adamant::coefficients.
struct coefficients {
    float beta1;
    float beta2;
    float inv_sqrt_bias2;
    float eps;
    float step_size;
    float decay;
};

void step(float* param, float const* grad, float* exp_avg, float* exp_avg_sq, std::size_t n, coefficients c,
          unsigned threads);

// param and grad are bfloat16, as the 16-bit integers that hold them.
void step(std::uint16_t* param, std::uint16_t const* grad, float* exp_avg, float* exp_avg_sq, std::size_t n,
          coefficients c, unsigned threads);

} // namespace plain
