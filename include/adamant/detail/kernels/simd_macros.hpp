// SPDX-License-Identifier: Apache-2.0
// Compiler-specific macros for the kernels.
#pragma once

// For functions of a facade and functions that pass vectors. They must be inlined, even at -O0, because a vector
// register must not cross a call between functions compiled for different instruction sets.
#define ADAMANT_SIMD [[gnu::always_inline]] inline

// For loops over the few vectors of a group: unrolls them fully, so that the arrays they index stay in registers. nvcc
// knows neither pragma. Its code of these loops is unused: the CUDA files of a program make the device, and its C++
// files make the optimizer.
#if defined(__CUDACC__)
#define ADAMANT_UNROLL
#elif defined(__clang__)
#define ADAMANT_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ADAMANT_UNROLL _Pragma("GCC unroll 64")
#endif
