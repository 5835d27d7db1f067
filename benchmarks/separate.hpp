// SPDX-License-Identifier: Apache-2.0
// What an offload engine does around its Adam, one pass over everything after the other; see separate.cpp. bfloat16 is
// passed as the 16-bit integers that hold it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace separate {

void widen(std::uint16_t const* from, float* to, std::size_t n, unsigned threads);
bool all_finite(float const* x, std::size_t n, unsigned threads);
double sum_of_squares(float const* x, std::size_t n, unsigned threads);
void scale(float* x, float factor, std::size_t n, unsigned threads);
void narrow(float const* from, std::uint16_t* to, std::size_t n, unsigned threads);

} // namespace separate
