// SPDX-License-Identifier: Apache-2.0
// Supported compilers and flags, and the ABI namespace. Every header includes this file.
#pragma once

#include <adamant/version.hpp>

#if __cplusplus < 202002L
#error "adamant needs C++20: compile with -std=c++20 or newer"
#endif

#if !defined(__GNUC__)
#error "adamant needs GCC 12 or newer, or Clang 14 or newer: it relies on their target regions and inline assembly"
#endif

#if !defined(__cpp_exceptions)
#error                                                                                                                 \
    "adamant reports errors by exceptions: compile the files that include it without -fno-exceptions. The other files of the program may keep the flag, and the C interface (adamant/adamant.h) throws nothing."
#endif

#if !defined(__linux__) || !(defined(__x86_64__) || (defined(__aarch64__) && !defined(__AARCH64EB__)))
#error "adamant supports Linux on x86-64 and on little-endian AArch64: its results are untested on other platforms"
#endif

// One source compiles in two ways. By default the library is header-only, and every function is inline. If all files of
// a program define ADAMANT_SEPARATE_COMPILATION, headers only declare, and one file of the program (or the library
// adamant::compiled) includes adamant/src.hpp, which holds the definitions. Functions of X.hpp that are not templates
// are defined in X.ipp.
//
// Functions that take long anyway (set-up, begin_step(), finish()) and helpers with many callers are noinline:
// compilers take less time for a call than for a copy. They are not cold, because compilers treat all that follows a
// call of a cold function as cold, too, even in users' functions.
#if defined(ADAMANT_SEPARATE_COMPILATION)
#define ADAMANT_DECL
#else
#define ADAMANT_HEADER_ONLY
#define ADAMANT_DECL inline
#endif

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/core/requirements.hpp>
#endif

// In the header-only build two translation units with different -m flags define the same inline function, and the
// linker keeps either definition, perhaps one that this CPU cannot run. A namespace named after the instruction set
// keeps the definitions apart. It also turns passing our types between such units into a link error. Flags that differ
// in other extensions only, such as dot products, share a name.
//
// In the separate build a function has one definition and one name. Only templates and constants stay in headers. Those
// that compute are in an inner namespace, which is named after the instruction set.
#if defined(__AVX512FP16__)
#define ADAMANT_ABI_ISA x86_64_avx512_fp16
#elif defined(__AVX512VBMI2__)
#define ADAMANT_ABI_ISA x86_64_avx512_vbmi2
#elif defined(__AVX512F__)
#define ADAMANT_ABI_ISA x86_64_avx512
#elif defined(__AVX2__) && defined(__FMA__) && defined(__BMI2__)
#define ADAMANT_ABI_ISA x86_64_avx2_fma_bmi2
#elif defined(__AVX2__) && defined(__FMA__)
#define ADAMANT_ABI_ISA x86_64_avx2_fma
#elif defined(__AVX2__)
#define ADAMANT_ABI_ISA x86_64_avx2
#elif defined(__AVX__)
#define ADAMANT_ABI_ISA x86_64_avx
#elif defined(__SSE4_1__)
#define ADAMANT_ABI_ISA x86_64_sse4
#elif defined(__x86_64__)
#define ADAMANT_ABI_ISA x86_64
#elif defined(__ARM_FEATURE_SVE2) && defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS != 0
#define ADAMANT_ABI_ISA ADAMANT_CONCAT(aarch64, sve2, __ARM_FEATURE_SVE_BITS)
#elif defined(__ARM_FEATURE_SVE2)
#define ADAMANT_ABI_ISA aarch64_sve2
#elif defined(__ARM_FEATURE_SVE) && defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS != 0
#define ADAMANT_ABI_ISA ADAMANT_CONCAT(aarch64, sve, __ARM_FEATURE_SVE_BITS)
#elif defined(__ARM_FEATURE_SVE)
#define ADAMANT_ABI_ISA aarch64_sve
#elif defined(__ARM_FEATURE_ATOMICS)
#define ADAMANT_ABI_ISA aarch64_lse
#else
#define ADAMANT_ABI_ISA aarch64
#endif

#if defined(_OPENMP) && !defined(ADAMANT_NO_HWLOC)
#define ADAMANT_ABI_THREADS openmp
#elif defined(_OPENMP)
#define ADAMANT_ABI_THREADS openmp_no_hwloc
#elif !defined(ADAMANT_NO_HWLOC)
#define ADAMANT_ABI_THREADS serial
#else
#define ADAMANT_ABI_THREADS serial_no_hwloc
#endif

#define ADAMANT_CONCAT_(a, b, c) a##_##b##_##c
#define ADAMANT_CONCAT(a, b, c) ADAMANT_CONCAT_(a, b, c)
#define ADAMANT_FLAGS_ABI ADAMANT_CONCAT(v0, ADAMANT_ABI_ISA, ADAMANT_ABI_THREADS)
#if defined(ADAMANT_HEADER_ONLY)
#define ADAMANT_ABI ADAMANT_FLAGS_ABI
#else
#define ADAMANT_ABI v0
#endif

#define ADAMANT_BEGIN_NAMESPACE                                                                                        \
    namespace adamant {                                                                                                \
    inline namespace ADAMANT_ABI {
#define ADAMANT_END_NAMESPACE                                                                                          \
    }                                                                                                                  \
    }

// For templates and functions that the including file compiles in both builds.
#if defined(ADAMANT_HEADER_ONLY)
#define ADAMANT_BEGIN_INLINE_NAMESPACE ADAMANT_BEGIN_NAMESPACE
#define ADAMANT_END_INLINE_NAMESPACE ADAMANT_END_NAMESPACE
#else
#define ADAMANT_BEGIN_INLINE_NAMESPACE                                                                                 \
    ADAMANT_BEGIN_NAMESPACE                                                                                            \
    inline namespace ADAMANT_FLAGS_ABI {
#define ADAMANT_END_INLINE_NAMESPACE                                                                                   \
    }                                                                                                                  \
    ADAMANT_END_NAMESPACE
#endif

// For functions that CUDA kernels call, too.
#if defined(__CUDACC__)
#define ADAMANT_ON_GPU __host__ __device__
#else
#define ADAMANT_ON_GPU
#endif

// For small functions of types whose name does not depend on the flags. Always inlined, they leave the linker no copy
// to choose from.
#define ADAMANT_ALWAYS_INLINE [[gnu::always_inline]] inline
