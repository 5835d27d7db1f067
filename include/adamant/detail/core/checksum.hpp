// SPDX-License-Identifier: Apache-2.0
// A checksum of a memory range, at the speed of the cache, to detect changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Different bytes, another order or another length give a different checksum, except for chance collisions. Do not
// store a checksum: the algorithm may change with any version. Eight chains let the multiplications overlap. Each round
// mixes both halves of the product. With the lower half alone, a flipped sign bit flips only the top bit of its chain,
// and a second flipped sign further on cancels it.
[[nodiscard]] inline std::uint64_t checksum(std::byte const* address, std::size_t bytes) noexcept
{
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15u; // 2^64 / golden ratio
    std::uint64_t chain[8] = {bytes, 1, 2, 3, 4, 5, 6, 7};
    __extension__ using product = unsigned __int128;
    auto const mix = [](std::uint64_t sum, std::uint64_t word) {
        product const product_bits = product{sum ^ word} * odd;
        return static_cast<std::uint64_t>(product_bits) ^ static_cast<std::uint64_t>(product_bits >> 64);
    };
    // Unrolled by hand: compilers vectorize the loop, and vectors take three times as long to multiply 64 bits.
    auto const word_at = [&](std::size_t k) {
        std::uint64_t word;
        std::memcpy(&word, address + k * sizeof word, sizeof word);
        return word;
    };
    auto const mix_all = [&]<std::size_t... K>(std::index_sequence<K...>)
    {
        ((chain[K] = mix(chain[K], word_at(K))), ...);
    };
    for (; bytes >= sizeof chain; address += sizeof chain, bytes -= sizeof chain)
        mix_all(std::make_index_sequence<8>());
    for (std::size_t k = 0; bytes != 0; ++k) {
        std::uint64_t word = 0;
        std::size_t const word_bytes = std::min(bytes, sizeof word);
        std::memcpy(&word, address, word_bytes);
        chain[k] = mix(chain[k], word);
        address += word_bytes;
        bytes -= word_bytes;
    }
    for (std::size_t k = 1; k < 8; ++k)
        chain[0] = mix(chain[0], chain[k]);
    return chain[0];
}

} // namespace detail
ADAMANT_END_NAMESPACE
