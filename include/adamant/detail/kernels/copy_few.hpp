// SPDX-License-Identifier: Apache-2.0
// memcpy for some hundred bytes or fewer, without the call: over small arrays such copies are most of the time.
#pragma once

#include <cstddef>
#include <cstring>

#include <adamant/detail/core/abi.hpp>
#include <adamant/detail/kernels/simd_macros.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

// From Bytes to twice as many, in two copies that overlap, or are the same. Both are read before either is written, so
// that no read waits for a write.
template <std::size_t Bytes>
ADAMANT_SIMD void copy_two(std::byte* to, std::byte const* from, std::size_t bytes) noexcept
{
    std::byte first[Bytes];
    std::byte last[Bytes];
    std::memcpy(first, from, Bytes);
    std::memcpy(last, from + bytes - Bytes, Bytes);
    std::memcpy(to, first, Bytes);
    std::memcpy(to + bytes - Bytes, last, Bytes);
}

// An even number of bytes, of arrays that do not overlap; null is allowed for none.
ADAMANT_SIMD void copy_few(std::byte* to, std::byte const* from, std::size_t bytes) noexcept
{
    for (; bytes > 32; bytes -= 16, to += 16, from += 16)
        std::memcpy(to, from, 16);
    if (bytes >= 16)
        copy_two<16>(to, from, bytes);
    else if (bytes >= 8)
        copy_two<8>(to, from, bytes);
    else if (bytes >= 4)
        copy_two<4>(to, from, bytes);
    else if (bytes >= 2)
        copy_two<2>(to, from, bytes);
}

} // namespace kernel
ADAMANT_END_NAMESPACE
