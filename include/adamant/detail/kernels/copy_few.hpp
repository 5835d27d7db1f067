// SPDX-License-Identifier: Apache-2.0
// An inline memcpy for up to some hundred bytes. In steps over small arrays, calls of memcpy take most of the time.
#pragma once

#include <cstddef>
#include <cstring>

#include <adamant/detail/core/abi.hpp>
#include <adamant/detail/kernels/simd_macros.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

// Copies between Bytes and 2 * Bytes bytes by two copies of Bytes, which may overlap or coincide. Reads both before it
// writes either, so that no read waits for a write.
template <std::size_t Bytes>
ADAMANT_SIMD void copy_two(std::byte* target, std::byte const* source, std::size_t bytes) noexcept
{
    std::byte first[Bytes];
    std::byte last[Bytes];
    std::memcpy(first, source, Bytes);
    std::memcpy(last, source + bytes - Bytes, Bytes);
    std::memcpy(target, first, Bytes);
    std::memcpy(target + bytes - Bytes, last, Bytes);
}

// Copies an even number of bytes. The arrays must not overlap; null is allowed for zero bytes.
ADAMANT_SIMD void copy_few(std::byte* target, std::byte const* source, std::size_t bytes) noexcept
{
    for (; bytes > 32; bytes -= 16, target += 16, source += 16)
        std::memcpy(target, source, 16);
    if (bytes >= 16)
        copy_two<16>(target, source, bytes);
    else if (bytes >= 8)
        copy_two<8>(target, source, bytes);
    else if (bytes >= 4)
        copy_two<4>(target, source, bytes);
    else if (bytes >= 2)
        copy_two<2>(target, source, bytes);
}

} // namespace kernel
ADAMANT_END_NAMESPACE
