// SPDX-License-Identifier: Apache-2.0
// What the library is measured against. The memory limit: loops that move exactly a step's bytes and do no arithmetic
// (param and both moments are read and written back, grad is read, weight_out is written), and loops that only read.
// The divider limit: a loop that does nothing but the square root and the division of each element.
//
// Elements [begin, end), both multiples of 64, of arrays that begin at a cache line where stores go past the caches.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <adamant/detail/kernels/simd_macros.hpp>

namespace limit {

// Which stores go past the caches.
enum class stores { cached, weight_out_streamed, all_streamed };

// What stands for the size of a moment of quantized8, 68 bytes for 64 elements.
inline constexpr std::size_t in_groups = 1;

#if defined(__x86_64__)
inline constexpr bool can_stream = true;

#define ADAMANT_BENCH_VECTOR_BYTES 16
#define ADAMANT_BENCH_REGISTER "+x"
#define ADAMANT_BENCH_SQRT "sqrtps %0, %0"
#define ADAMANT_BENCH_STREAM(at, value)                                                                                \
    _mm_stream_si128(reinterpret_cast<__m128i*>(at), reinterpret_cast<__m128i>(value))
#define ADAMANT_BENCH_FENCE() _mm_sfence()
namespace sse2 {
#include "limit.inl"
} // namespace sse2
#undef ADAMANT_BENCH_VECTOR_BYTES
#undef ADAMANT_BENCH_SQRT
#undef ADAMANT_BENCH_STREAM

#define ADAMANT_BENCH_VECTOR_BYTES 32
#define ADAMANT_BENCH_SQRT "vsqrtps %0, %0"
#define ADAMANT_BENCH_STREAM(at, value)                                                                                \
    _mm256_stream_si256(reinterpret_cast<__m256i*>(at), reinterpret_cast<__m256i>(value))
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif
namespace avx2 {
#include "limit.inl"
} // namespace avx2
#undef ADAMANT_BENCH_VECTOR_BYTES
#undef ADAMANT_BENCH_REGISTER
#undef ADAMANT_BENCH_STREAM

#define ADAMANT_BENCH_VECTOR_BYTES 64
#define ADAMANT_BENCH_REGISTER "+v"
#define ADAMANT_BENCH_STREAM(at, value)                                                                                \
    _mm512_stream_si512(reinterpret_cast<__m512i*>(at), reinterpret_cast<__m512i>(value))
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
namespace avx512 {
#include "limit.inl"
} // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
inline constexpr bool can_stream = false;

#define ADAMANT_BENCH_VECTOR_BYTES 16
#define ADAMANT_BENCH_REGISTER "+w"
#define ADAMANT_BENCH_SQRT "fsqrt %0.4s, %0.4s"
#define ADAMANT_BENCH_STREAM(at, value) (*(at) = (value))
#define ADAMANT_BENCH_FENCE() static_cast<void>(0)
namespace neon {
#include "limit.inl"
} // namespace neon
#endif
#undef ADAMANT_BENCH_VECTOR_BYTES
#undef ADAMANT_BENCH_REGISTER
#undef ADAMANT_BENCH_SQRT
#undef ADAMANT_BENCH_STREAM
#undef ADAMANT_BENCH_FENCE

// How wide the registers of the loops are: the widest that this CPU has, whatever the library has been told to use.
inline std::size_t vector_bytes() noexcept
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f"))
        return 64;
    if (__builtin_cpu_supports("avx2"))
        return 32;
#endif
    return 16;
}

#if defined(__x86_64__)
#define ADAMANT_BENCH_WIDEST(...)                                                                                      \
    switch (vector_bytes()) {                                                                                          \
    case 64: return avx512::__VA_ARGS__;                                                                               \
    case 32: return avx2::__VA_ARGS__;                                                                                 \
    default: return sse2::__VA_ARGS__;                                                                                 \
    }
#else
#define ADAMANT_BENCH_WIDEST(...) return neon::__VA_ARGS__;
#endif

// Of arrays {param, grad, exp_avg, exp_avg_sq, weight_out}; the template arguments are their bytes per element, both
// moments having the same, or in_groups. prefetch_bytes: how far ahead to prefetch, 0 for not at all. ReadsWeights:
// weight_out is read, too, as the upper half of the params. Fences: ends with a fence where stores go past the caches.
// Divides: float moments are divided, exp_avg / sqrt(exp_avg_sq), and the quotients thrown away.
template <std::size_t Param, std::size_t Grad, std::size_t Moment, std::size_t WeightOut, stores Stores,
          bool ReadsWeights = false, bool Fences = true, bool Divides = false>
void move_bytes(std::byte* const* arrays, std::size_t begin, std::size_t end, std::size_t prefetch_bytes)
{
    if constexpr (Moment == in_groups) {
        ADAMANT_BENCH_WIDEST(move_beside_groups<Param, Grad, WeightOut, Stores, ReadsWeights, Fences>(
            arrays, begin, end, prefetch_bytes))
    } else {
        ADAMANT_BENCH_WIDEST(move_bytes<Param, Grad, Moment, WeightOut, Stores, ReadsWeights, Fences, Divides>(
            arrays, begin, end, prefetch_bytes))
    }
}

// Of one array, whose elements have this many bytes.
template <std::size_t ElemBytes>
void read_bytes(std::byte const* array, std::size_t begin, std::size_t end, std::size_t prefetch_bytes)
{
    ADAMANT_BENCH_WIDEST(read_bytes<ElemBytes>(array, begin, end, prefetch_bytes))
}

// numerator / sqrt(square), thrown away.
inline void divide(float const* numerator, float const* square, std::size_t begin, std::size_t end)
{
    ADAMANT_BENCH_WIDEST(divide(numerator, square, begin, end))
}

#undef ADAMANT_BENCH_WIDEST

} // namespace limit
