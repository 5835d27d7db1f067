// SPDX-License-Identifier: Apache-2.0
// A checksum of memory that is as fast as the cache, to see whether its contents have changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Other bytes, another order or another length give another sum, except by chance. Do not store it: it may change with
// any version. Four chains let the multiplications overlap; each step is one to one, so that no single change is lost.
[[nodiscard]] inline std::uint64_t checksum(std::byte const* at, std::size_t bytes) noexcept
{
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15u; // 2^64 / golden ratio
    std::uint64_t chain[4] = {bytes, 1, 2, 3};
    auto const mix = [](std::uint64_t sum, std::uint64_t word) {
        sum = (sum ^ word) * odd;
        return sum ^ sum >> 32;
    };
    for (; bytes >= sizeof chain; at += sizeof chain, bytes -= sizeof chain) {
        std::uint64_t words[4];
        std::memcpy(words, at, sizeof words);
        for (std::size_t k = 0; k < 4; ++k)
            chain[k] = mix(chain[k], words[k]);
    }
    for (std::size_t k = 0; bytes != 0; ++k) {
        std::uint64_t word = 0;
        std::size_t const some = std::min(bytes, sizeof word);
        std::memcpy(&word, at, some);
        chain[k] = mix(chain[k], word);
        at += some;
        bytes -= some;
    }
    return mix(mix(mix(chain[0], chain[1]), chain[2]), chain[3]);
}

} // namespace detail
ADAMANT_END_NAMESPACE
