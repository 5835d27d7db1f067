// SPDX-License-Identifier: Apache-2.0
// VZEROUPPER at the end of functions that use AVX. While the upper bits of vector registers are in use, SSE code (all
// code that is not compiled for AVX) can be many times slower on Intel CPUs. Clang clears them at every optimization
// level, GCC only from -O2 on. Before this, a step compiled by GCC at -Og took four times as long.
#pragma once

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Declare it first in a function that is compiled for AVX, uses vectors, and returns to code that is not. No vector may
// be live where the scope ends: GCC before 12 does not save it.
struct vzeroupper_scope {
#if defined(__x86_64__) && !defined(ADAMANT_EMULATED_AVX512)
    [[gnu::target("avx"), gnu::always_inline]] ~vzeroupper_scope()
    {
        __builtin_ia32_vzeroupper();
    }
#else
    ADAMANT_ALWAYS_INLINE ~vzeroupper_scope() {}
#endif
};

} // namespace detail
ADAMANT_END_NAMESPACE
