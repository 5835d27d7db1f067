// SPDX-License-Identifier: Apache-2.0
// The memory limit of a step: loops that move exactly its bytes and do no arithmetic. param and both moments are read
// and written back, grad is read, weight_out is written. What a step is measured against.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace limit {

// Elements [begin, end), both multiples of 64, of line-aligned arrays {param, grad, exp_avg, exp_avg_sq, weight_out}.
// Template arguments are bytes per element. prefetch_bytes: how far ahead to prefetch, 0 for not at all. stream: store
// weight_out past the caches.

#if defined(__x86_64__)
#define ADAMANT_BENCH_CONSTRAINT(value) "+x"(value)
namespace narrow {
#define ADAMANT_BENCH_VECTOR_BYTES 16
#define ADAMANT_BENCH_STREAM(at, value) _mm_stream_si128(reinterpret_cast<__m128i*>(at), (__m128i)(value))
#include "limit.inl"
#undef ADAMANT_BENCH_VECTOR_BYTES
#undef ADAMANT_BENCH_STREAM
} // namespace narrow

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
#undef ADAMANT_BENCH_CONSTRAINT
#define ADAMANT_BENCH_CONSTRAINT(value) "+v"(value)
namespace wide {
#define ADAMANT_BENCH_VECTOR_BYTES 64
#define ADAMANT_BENCH_STREAM(at, value) _mm512_stream_si512(reinterpret_cast<__m512i*>(at), (__m512i)(value))
#include "limit.inl"
} // namespace wide
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else
#define ADAMANT_BENCH_CONSTRAINT(value) "+w"(value)
#define ADAMANT_BENCH_VECTOR_BYTES 16
#define ADAMANT_BENCH_STREAM(at, value) (*(at) = (value))
namespace narrow {
#include "limit.inl"
}
namespace wide = narrow;
#endif

template <std::size_t Param, std::size_t Grad, std::size_t Moment, std::size_t WeightOut>
void move_bytes(bool wide_registers, std::byte* const* arrays, std::size_t begin, std::size_t end,
                std::size_t prefetch_bytes, bool stream)
{
    if (wide_registers)
        wide::move_bytes<Param, Grad, Moment, WeightOut>(arrays, begin, end, prefetch_bytes, stream);
    else
        narrow::move_bytes<Param, Grad, Moment, WeightOut>(arrays, begin, end, prefetch_bytes, stream);
}

} // namespace limit
