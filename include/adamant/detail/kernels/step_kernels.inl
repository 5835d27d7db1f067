// SPDX-License-Identifier: Apache-2.0
// The kernels of steps, norms and records. detail/kernels/for_each_target.inl includes it once per instruction set.

#if ADAMANT_TARGET == ADAMANT_TARGET_NEON
using adamant::neon::simd;
#elif ADAMANT_TARGET == ADAMANT_TARGET_AVX2
#include <adamant/detail/kernels/avx2.inl>
#else
#include <adamant/detail/kernels/avx512.inl>
#endif

#include <adamant/detail/kernels/block_squares.inl>
#include <adamant/detail/kernels/fused_step.inl>
//
#if ADAMANT_TARGET == ADAMANT_TARGET_AVX512
using avx2::mark_changes; // for copies of weights, not for steps: not worth its code a second time
#else
#include <adamant/detail/kernels/changes.inl>
#endif
#include <adamant/detail/kernels/gradient.inl>
#include <adamant/detail/kernels/journal.inl>
