// SPDX-License-Identifier: Apache-2.0
// A checksum of memory that is as fast as the cache, to see whether its contents have changed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Other bytes, another order or another length give another sum, except stochastically. Do not store it: it may change
// with any version. Eight chains let the multiplications overlap. Both halves of a product count: the lower one alone
// hands a changed sign on as one bit, which another sign, further on, rolls back.
[[nodiscard]] inline std::uint64_t checksum(std::byte const* at, std::size_t bytes) noexcept
{
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15u; // 2^64 / golden ratio
    std::uint64_t chain[8] = {bytes, 1, 2, 3, 4, 5, 6, 7};
    __extension__ using product = unsigned __int128;
    auto const mix = [](std::uint64_t sum, std::uint64_t word) {
        product const both = product{sum ^ word} * odd;
        return static_cast<std::uint64_t>(both) ^ static_cast<std::uint64_t>(both >> 64);
    };
    // Written out, as compilers make a loop of vectors of it, for which multiplying 64 bits takes three times as long.
    auto const word_at = [&](std::size_t k) {
        std::uint64_t word;
        std::memcpy(&word, at + k * sizeof word, sizeof word);
        return word;
    };
    auto const mix_all = [&]<std::size_t... K>(std::index_sequence<K...>)
    {
        ((chain[K] = mix(chain[K], word_at(K))), ...);
    };
    for (; bytes >= sizeof chain; at += sizeof chain, bytes -= sizeof chain)
        mix_all(std::make_index_sequence<8>());
    for (std::size_t k = 0; bytes != 0; ++k) {
        std::uint64_t word = 0;
        std::size_t const some = std::min(bytes, sizeof word);
        std::memcpy(&word, at, some);
        chain[k] = mix(chain[k], word);
        at += some;
        bytes -= some;
    }
    for (std::size_t k = 1; k < 8; ++k)
        chain[0] = mix(chain[0], chain[k]);
    return chain[0];
}

} // namespace detail
ADAMANT_END_NAMESPACE
