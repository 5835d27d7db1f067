// SPDX-License-Identifier: Apache-2.0
// Two things that facades and kernels need from the compiler and that the language has no word for.
#pragma once

// Before a function of a facade, or one that passes vectors: it must vanish into its caller, at -O0 too, because a
// vector register may not cross a call between functions compiled for different instruction sets.
#define ADAMANT_SIMD [[gnu::always_inline]] inline

// Before a loop over the few vectors of a group: unrolled fully, so that the arrays it indexes stay in registers.
// nvcc knows neither pragma, and what it compiles of these is not used: a program's files of CUDA make the device, and
// its files of C++ the optimizer.
#if defined(__CUDACC__)
#define ADAMANT_UNROLL
#elif defined(__clang__)
#define ADAMANT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ADAMANT_UNROLL _Pragma("GCC unroll 64")
#endif
