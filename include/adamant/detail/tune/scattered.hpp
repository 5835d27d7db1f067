// SPDX-License-Identifier: Apache-2.0
// Pseudo-random numbers, each computed from its index alone.
#pragma once

#include <cstdint>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The finalizer of MurmurHash3 (Appleby), of an element's index.
[[nodiscard]] constexpr std::uint32_t scattered(std::uint32_t x) noexcept
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// From -1 to 1, never 0: the sum of two even numbers, so that the middle is more frequent.
[[nodiscard]] constexpr float around_zero(std::uint32_t random) noexcept
{
    int const sum = static_cast<std::int16_t>(random & 0xffff) + static_cast<std::int16_t>(random >> 16);
    return static_cast<float>(2 * sum + 1) * (1 / 131072.0f);
}

} // namespace detail
ADAMANT_END_NAMESPACE
