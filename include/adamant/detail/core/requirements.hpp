// SPDX-License-Identifier: Apache-2.0
// Requirements of files that compile the library's functions: in the header-only build every file that includes a
// header, in the separate build the library's own files.
#pragma once

// hwloc binds threads and memory and describes the machine. A program may opt out of it.
#if !defined(ADAMANT_NO_HWLOC) && !__has_include(<hwloc.h>)
#error                                                                                                                 \
    "adamant needs hwloc 2.5 or newer, and finds no hwloc.h (Debian and Ubuntu: libhwloc-dev; link with -lhwloc). Define ADAMANT_NO_HWLOC for a program that does not bind its threads and memory."
#endif

// These flags allow the compiler to change the bits of a step: to reorder additions, to replace a division by an
// estimate, and to assume that no NaN exists. (Clang has no macro for its partial flags -fassociative-math and
// -freciprocal-math; do not use them either.)
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ > 0) ||                           \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error                                                                                                                 \
    "adamant refuses -ffast-math (and -Ofast, -funsafe-math-optimizations, -ffinite-math-only, -fno-signed-zeros): it would change the bits of a step. Compile the file that includes adamant with -fno-fast-math; the other files of the program may keep the flag."
#endif

// 80-bit registers round twice, and constants of single precision are not those of the formulas.
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0 && __FLT_EVAL_METHOD__ != 16
#error                                                                                                                 \
    "adamant refuses -mfpmath=387 and other ways to compute float with more precision (FLT_EVAL_METHOD): they would change the bits of a step. Use -mfpmath=sse."
#endif
static_assert(0.1 < double{0.1f}, "adamant refuses -fsingle-precision-constant: it would change the bits of a step.");
