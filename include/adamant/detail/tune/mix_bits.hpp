// SPDX-License-Identifier: Apache-2.0
// Hash of an index to pseudo-random bits, and such bits as a float.
#pragma once

#include <cstdint>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Hashes an element's index with the finalizer of MurmurHash3 (Appleby).
[[nodiscard]] constexpr std::uint32_t mix_bits(std::uint32_t x) noexcept
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// Returns a nonzero float from -1 to 1. Its distribution is triangular: it is the sum of two uniform numbers.
[[nodiscard]] constexpr float to_symmetric_float(std::uint32_t random) noexcept
{
    int const sum = static_cast<std::int16_t>(random & 0xffff) + static_cast<std::int16_t>(random >> 16);
    return static_cast<float>(2 * sum + 1) * (1 / 131072.0f);
}

} // namespace detail
ADAMANT_END_NAMESPACE
