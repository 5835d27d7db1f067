// SPDX-License-Identifier: Apache-2.0
// Includes ADAMANT_KERNELS, a file of kernels, once for each instruction set that the binary contains, without any -m
// flag: for NEON on AArch64, and on x86-64 inside a target region for each tier. Each time it is in the namespace of
// the tier, which ADAMANT_TARGET names. detail/kernels/targets.hpp includes this file first, for the kernels of a step.
//
// Rules for code inside a region: include every header before the region opens; use no standard algorithms, containers
// or lambdas; pass only pointers, sizes and plain structs into and out of it. A function that breaks these rules is
// compiled for AVX-512 and may be linked into the rest of the program. A function that uses vectors and is called from
// outside begins with a detail::vzeroupper_scope.

#if !defined(__clang__)
// GCC 12 warns about its own AVX-512 intrinsics, which start from a deliberately undefined register.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define ADAMANT_TARGET ADAMANT_TARGET_AVX2
namespace avx2 {
#include ADAMANT_KERNELS
} // namespace avx2
#undef ADAMANT_TARGET
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
#define ADAMANT_TARGET ADAMANT_TARGET_AVX512
namespace avx512 {
#include ADAMANT_KERNELS
} // namespace avx512
#undef ADAMANT_TARGET
#if defined(ADAMANT_EMULATED_AVX512)
#elif defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#else

#define ADAMANT_TARGET ADAMANT_TARGET_NEON
namespace neon {
#include ADAMANT_KERNELS
} // namespace neon
#undef ADAMANT_TARGET

#endif

} // namespace kernel

ADAMANT_END_NAMESPACE

#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#undef ADAMANT_KERNELS
