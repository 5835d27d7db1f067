// SPDX-License-Identifier: Apache-2.0
// Numbers for arrays: the same every time, and each found without the others.
#pragma once

#include <cstdint>

// The finalizer of MurmurHash3 (Appleby): as good as random, and any element's is found without the others'.
inline std::uint32_t random_bits(std::uint32_t x)
{
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// About as a normal distribution of standard deviation 1; never 0, for an odd number is halved.
inline float bell(std::uint32_t random)
{
    int const sum = static_cast<std::int16_t>(random & 0xffff) + static_cast<std::int16_t>(random >> 16);
    return static_cast<float>(2 * sum + 1) * (1 / 53510.0f);
}
