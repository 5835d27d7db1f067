// SPDX-License-Identifier: Apache-2.0
// VZEROUPPER at the end of functions that use AVX. While the upper bits of vector registers are set, SSE code, which is
// all that is not compiled for AVX, may take many times as long on Intel CPUs. Clang clears them at each optimization
// level, GCC only from -O2 on: a step compiled at -Og took four times as long.
#pragma once

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The first variable of a function that is compiled for AVX, uses vectors, and is called by code that is not, or calls
// such code afterwards. No vector may be in use where it ends: before GCC 12, compilers do not save it.
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
