// SPDX-License-Identifier: Apache-2.0
// Compiles the kernels of steps for every instruction set in one translation unit. detail/kernels/for_each_target.inl
// has the rules for what they may contain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <adamant/detail/core/requirements.hpp>
#include <adamant/detail/core/vzeroupper.hpp>
#include <adamant/detail/kernels/copy_few.hpp>
#include <adamant/detail/kernels/few_elements.hpp>
#include <adamant/detail/kernels/guard.hpp>
#include <adamant/detail/kernels/quantized_step.hpp>
#include <adamant/detail/kernels/step_pointers.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

#if !defined(__x86_64__)
#include <adamant/detail/kernels/neon.hpp>
#endif

#if defined(ADAMANT_EMULATED_AVX512) // a header of the tests that emulates AVX-512 intrinsics on other CPUs
#include ADAMANT_EMULATED_AVX512
#endif

// Values of ADAMANT_TARGET.
#define ADAMANT_TARGET_NEON 0
#define ADAMANT_TARGET_AVX2 1
#define ADAMANT_TARGET_AVX512 2

#define ADAMANT_KERNELS <adamant/detail/kernels/step_kernels.inl>
#include <adamant/detail/kernels/for_each_target.inl>

#if defined(__x86_64__)

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

// The code of avx512, told that the processor has instructions that convert to bfloat16.
namespace avx512_bf16 {
using avx512::add_gradients;
using avx512::add_scaled;
using avx512::block_squares;
using avx512::clamp_gradient;
using avx512::group_elems;
using avx512::join_masters;
using avx512::mark_changes;
using avx512::rollback_step;
using avx512::round_weights;
using avx512::split_masters;
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                         memory_access const& access) noexcept
{
    memory_access native = access;
    native.native_bfloat16 = true;
    return avx512::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, end, c, native);
}
template <class Param, class Grad, class WeightOut>
std::byte* recorded_step(step_pointers const& a, std::size_t n, coefficients const& c, memory_access const& access,
                         std::byte* record) noexcept
{
    memory_access native = access;
    native.native_bfloat16 = true;
    return avx512::recorded_step<Param, Grad, WeightOut>(a, n, c, native, record);
}
} // namespace avx512_bf16

} // namespace kernel

ADAMANT_END_NAMESPACE

#endif
