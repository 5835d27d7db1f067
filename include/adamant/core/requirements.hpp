// SPDX-License-Identifier: Apache-2.0
// What a file must be compiled with that has the library's functions in it: all that include a header, or where the
// library is compiled separately, its own.
#pragma once

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
