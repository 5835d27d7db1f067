// SPDX-License-Identifier: Apache-2.0
// Compiled by itself with -O3 -march=native -ffast-math, and without a line of adamant, as plain.cpp is. Each pass is
// one that a compiler makes vectors of, and each thread has the same part of the arrays in all of them.

#include "separate.hpp"

namespace separate {

namespace {

constexpr std::size_t block_elems = 4096;

} // namespace

void widen(std::uint16_t const* from, float* to, std::size_t n, unsigned threads)
{
#pragma omp parallel for simd schedule(static) num_threads(static_cast <int>(threads))
    for (std::size_t i = 0; i < n; ++i)
        to[i] = __builtin_bit_cast(float, std::uint32_t{from[i]} << 16);
}

// By the bits: under -ffast-math the compiler takes it that there is nothing to be found.
bool all_finite(float const* x, std::size_t n, unsigned threads)
{
    std::uint32_t found = 0;
#pragma omp parallel for simd schedule(static) num_threads(static_cast <int>(threads)) reduction(| : found)
    for (std::size_t i = 0; i < n; ++i)
        found |= (__builtin_bit_cast(std::uint32_t, x[i]) & 0x7fffffffu) >= 0x7f800000u ? 1u : 0u;
    return found == 0;
}

double sum_of_squares(float const* x, std::size_t n, unsigned threads)
{
    double sum = 0;
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(threads)) reduction(+ : sum)
    for (std::size_t begin = 0; begin < n; begin += block_elems) {
        std::size_t const end = n - begin < block_elems ? n : begin + block_elems;
        float of_block = 0;
        for (std::size_t i = begin; i < end; ++i)
            of_block += x[i] * x[i];
        sum += static_cast<double>(of_block);
    }
    return sum;
}

void scale(float* x, float factor, std::size_t n, unsigned threads)
{
#pragma omp parallel for simd schedule(static) num_threads(static_cast <int>(threads))
    for (std::size_t i = 0; i < n; ++i)
        x[i] *= factor;
}

// To nearest even. Under -ffast-math there are no NaNs to look after.
void narrow(float const* from, std::uint16_t* to, std::size_t n, unsigned threads)
{
#pragma omp parallel for simd schedule(static) num_threads(static_cast <int>(threads))
    for (std::size_t i = 0; i < n; ++i) {
        auto const bits = __builtin_bit_cast(std::uint32_t, from[i]);
        to[i] = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

} // namespace separate
