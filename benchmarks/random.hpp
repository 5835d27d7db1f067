// SPDX-License-Identifier: Apache-2.0
// Numbers for arrays: the same every time, and each found without the others.
#pragma once

#include <cstdint>

#include <adamant/detail/tune/mix_bits.hpp>

// As good as random, and any element's is found without the others'.
inline std::uint32_t random_bits(std::uint32_t x)
{
    return adamant::detail::mix_bits(x);
}

// About as a normal distribution of standard deviation 1; never 0, for an odd number is halved.
inline float bell(std::uint32_t random)
{
    int const sum = static_cast<std::int16_t>(random & 0xffff) + static_cast<std::int16_t>(random >> 16);
    return static_cast<float>(2 * sum + 1) * (1 / 53510.0f);
}
