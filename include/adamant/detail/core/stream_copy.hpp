// SPDX-License-Identifier: Apache-2.0
// Copies memory past the caches, where the copy is not read soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Like memcpy, without reading the lines of `to` into a cache first if it is a multiple of 16 bytes. Call
// stream_fence() after the last copy, before another thread may read it.
inline void stream_copy(std::byte* target, std::byte const* source, std::size_t bytes) noexcept
{
#if defined(__x86_64__)
    using vector = long long __attribute__((vector_size(16)));
    bool const aligned = reinterpret_cast<std::uintptr_t>(target) % sizeof(vector) == 0;
    for (; aligned && bytes >= sizeof(vector);
         target += sizeof(vector), source += sizeof(vector), bytes -= sizeof(vector)) {
        vector value;
        std::memcpy(&value, source, sizeof value);
#if defined(__clang__)
        __builtin_nontemporal_store(value, reinterpret_cast<vector*>(target));
#else
        __builtin_ia32_movntdq(reinterpret_cast<vector*>(target), value);
#endif
    }
#endif
    std::memcpy(target, source, bytes);
}
inline void stream_fence() noexcept
{
#if defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

} // namespace detail
ADAMANT_END_NAMESPACE
