// SPDX-License-Identifier: Apache-2.0
// Compiles the kernels of every instruction set in one translation unit, without any -m flag.
//
// The .inl files are included once for the generic facade, and once inside a target region for each x86 tier. Rules for
// code inside a region: include every header before the region opens; use no standard algorithms, containers or
// lambdas; pass only pointers, sizes and plain structs into and out of it. A function that breaks these rules is
// compiled for AVX-512 and may be linked into the rest of the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <adamant/detail/core/requirements.hpp>
#include <adamant/detail/kernels/copy_few.hpp>
#include <adamant/detail/kernels/few_elements.hpp>
#include <adamant/detail/kernels/generic.hpp>
#include <adamant/detail/kernels/guard.hpp>
#include <adamant/detail/kernels/quantized_step.hpp>
#include <adamant/detail/kernels/step_pointers.hpp>
#include <adamant/detail/numerics/column_score.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

#if defined(ADAMANT_EMULATED_AVX512) // a header of the tests that emulates AVX-512 intrinsics on other CPUs
#include ADAMANT_EMULATED_AVX512
#endif

#if !defined(__clang__)
// GCC 12 warns about its own AVX-512 intrinsics, which start from a deliberately undefined register.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

namespace generic {
using adamant::generic::simd;
#if defined(__x86_64__) // see simd::has_fast_paths
#define ADAMANT_NO_FAST_PATHS
#endif
#include <adamant/detail/kernels/block_squares.inl>
#include <adamant/detail/kernels/fused_step.inl>
//
#include <adamant/detail/kernels/changes.inl>
#include <adamant/detail/kernels/collect_changes.inl>
// On x86-64 the generic tier takes the other kernels from the reference implementation, and its records are copies.
#if !defined(__x86_64__)
#include <adamant/detail/kernels/column_scores.inl>
#include <adamant/detail/kernels/gradient.inl>
#include <adamant/detail/kernels/journal.inl>
#endif
#undef ADAMANT_NO_FAST_PATHS
} // namespace generic

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
#include <adamant/detail/kernels/avx2.inl>
//
#include <adamant/detail/kernels/block_squares.inl>
#include <adamant/detail/kernels/column_scores.inl>
#include <adamant/detail/kernels/fused_step.inl>
//
#include <adamant/detail/kernels/changes.inl>
#include <adamant/detail/kernels/collect_changes.inl>
#include <adamant/detail/kernels/gradient.inl>
#include <adamant/detail/kernels/journal.inl>
} // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if defined(ADAMANT_EMULATED_AVX512)
#elif defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))),                   \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")
#endif
namespace avx512 {
using avx2::mark_changes; // for copies of weights, not for steps: not worth its code a second time
#include <adamant/detail/kernels/avx512.inl>
//
#include <adamant/detail/kernels/block_squares.inl>
#include <adamant/detail/kernels/column_scores.inl>
#include <adamant/detail/kernels/fused_step.inl>
//
#include <adamant/detail/kernels/collect_changes.inl>
#include <adamant/detail/kernels/gradient.inl>
#include <adamant/detail/kernels/journal.inl>
} // namespace avx512
#if defined(ADAMANT_EMULATED_AVX512)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#if !defined(ADAMANT_EMULATED_AVX512)
#if defined(__clang__)
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512vpopcntdq"))),                \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512vpopcntdq")
#endif
namespace avx512_vbmi2 {
#define ADAMANT_VBMI2
#include <adamant/detail/kernels/collect_changes.inl>
#undef ADAMANT_VBMI2
} // namespace avx512_vbmi2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

// The code of avx512, told that the processor has instructions that convert to bfloat16.
namespace avx512_bf16 {
using avx512::add_column_scores;
using avx512::add_gradients;
using avx512::add_scaled;
using avx512::block_squares;
using avx512::clamp_gradient;
using avx512::group_elems;
using avx512::join_masters;
using avx512::largest_bits;
using avx512::mark_changes;
using avx512::rollback_step;
using avx512::round_weights;
using avx512::split_masters;
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                         memory_access access) noexcept
{
    access.native_bfloat16 = true;
    return avx512::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, end, c, access);
}
template <class Param, class Grad, class WeightOut>
std::byte* recorded_step(step_pointers const& a, std::size_t n, coefficients const& c, memory_access access,
                         std::byte* record) noexcept
{
    access.native_bfloat16 = true;
    return avx512::recorded_step<Param, Grad, WeightOut>(a, n, c, access, record);
}
// Of the processors with AVX512_BF16, only Cooper Lake lacks AVX512_VBMI2 and AVX512_VPOPCNTDQ.
inline bool has_vbmi2() noexcept
{
#if defined(ADAMANT_EMULATED_AVX512)
    return false;
#else
    return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vpopcntdq");
#endif
}
#if defined(ADAMANT_EMULATED_AVX512)
namespace vbmi2 = avx512;
#else
namespace vbmi2 = avx512_vbmi2;
#endif
inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    return has_vbmi2() ? vbmi2::count_changes(words, n) : avx512::count_changes(words, n);
}
inline void collect_changes(std::uint64_t* words, std::size_t n, std::byte const* weights, std::size_t weight_bytes,
                            std::uint64_t first_index, bool clear, changed_weights_out const& out) noexcept
{
    (has_vbmi2() ? vbmi2::collect_changes : avx512::collect_changes)(words, n, weights, weight_bytes, first_index,
                                                                     clear, out);
}
} // namespace avx512_bf16

#endif // __x86_64__

} // namespace kernel

ADAMANT_END_NAMESPACE

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
