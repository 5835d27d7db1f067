// SPDX-License-Identifier: Apache-2.0
// What every header of the library stands on: the version, the compilers and flags that keep its promise, and the
// ABI namespace.
#pragma once

#define ADAMANT_VERSION_MAJOR 0
#define ADAMANT_VERSION_MINOR 1
#define ADAMANT_VERSION_PATCH 0

#if __cplusplus < 202002L
#error "adamant needs C++20: compile with -std=c++20 or newer"
#endif

#if !defined(__GNUC__)
#error "adamant needs GCC 12 or newer, or Clang 14 or newer: it relies on their target regions and inline assembly"
#endif

#if !defined(__cpp_exceptions)
#error                                                                                                                 \
    "adamant reports errors by exceptions: compile the files that include it without -fno-exceptions. The other files of the program may keep the flag, and the C interface (adamant/c/adamant_c.h) throws nothing."
#endif

#if !defined(__linux__) || !(defined(__x86_64__) || (defined(__aarch64__) && !defined(__AARCH64EB__)))
#error "adamant runs on Linux on x86-64 and on little-endian AArch64: elsewhere its bits have never been checked"
#endif

// hwloc binds threads and memory and knows where cores are. A program may do without, by its own word.
#if !defined(ADAMANT_NO_HWLOC) && !__has_include(<hwloc.h>)
#error                                                                                                                 \
    "adamant needs hwloc 2.5 or newer, and finds no hwloc.h (Debian and Ubuntu: libhwloc-dev; link with -lhwloc). Define ADAMANT_NO_HWLOC for a program whose threads and memory need not be bound to anything."
#endif

// The bits of a step are a promise, and these flags allow the compiler to break it: it may then reorder additions,
// replace a division by an estimate, and assume that no NaN exists. Refused rather than broken in silence. (Clang has
// no macro for its partial flags -fassociative-math and -freciprocal-math; do not use them either.)
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0) ||                           \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error                                                                                                                 \
    "adamant refuses -ffast-math (and -Ofast, -funsafe-math-optimizations, -ffinite-math-only, -fno-signed-zeros): it would change the bits of a step. Compile the file that includes adamant with -fno-fast-math; the other files of the program may keep the flag."
#endif

// Functions of this library are inline, so two translation units of one program compiled with different -m flags would
// otherwise define the same function twice, and the linker would keep either one: perhaps the one this CPU cannot run.
// A name per instruction set keeps them apart, and makes passing our types between such units a link error.
#if defined(__AVX512F__)
#define ADAMANT_ABI_ISA x86_64_avx512
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
#elif defined(__ARM_FEATURE_SVE)
#define ADAMANT_ABI_ISA aarch64_sve
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
#define ADAMANT_ABI ADAMANT_CONCAT(v0, ADAMANT_ABI_ISA, ADAMANT_ABI_THREADS)

#define ADAMANT_BEGIN_NAMESPACE                                                                                        \
    namespace adamant {                                                                                                \
    inline namespace ADAMANT_ABI {
#define ADAMANT_END_NAMESPACE                                                                                          \
    }                                                                                                                  \
    }
