// SPDX-License-Identifier: Apache-2.0
// A checksum of a memory range, at the speed of the cache, to detect changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <adamant/detail/core/abi.hpp>
#include <adamant/detail/core/vzeroupper.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// One round of a chain: mixes both halves of the product. With the lower half alone, a flipped sign bit flips only the
// top bit of its chain, and a second flipped sign further on cancels it.
[[nodiscard]] inline std::uint64_t mix_checksum(std::uint64_t sum, std::uint64_t word) noexcept
{
    constexpr std::uint64_t odd = 0x9e3779b97f4a7c15u; // 2^64 / golden ratio
    __extension__ using product = unsigned __int128;
    product const product_bits = product{sum ^ word} * odd;
    return static_cast<std::uint64_t>(product_bits) ^ static_cast<std::uint64_t>(product_bits >> 64);
}

// The checksum by 64-bit multiplications. Eight chains let them overlap.
[[nodiscard]] inline std::uint64_t scalar_checksum(std::byte const* address, std::size_t bytes) noexcept
{
    std::uint64_t chain[8] = {bytes, 1, 2, 3, 4, 5, 6, 7};
    // Unrolled by hand: compilers vectorize the loop, and vectors take three times as long to multiply 64 bits.
    auto const word_at = [&](std::size_t k) {
        std::uint64_t word;
        std::memcpy(&word, address + k * sizeof word, sizeof word);
        return word;
    };
    auto const mix_all = [&]<std::size_t... K>(std::index_sequence<K...>)
    {
        ((chain[K] = mix_checksum(chain[K], word_at(K))), ...);
    };
    for (; bytes >= sizeof chain; address += sizeof chain, bytes -= sizeof chain)
        mix_all(std::make_index_sequence<8>());
    for (std::size_t k = 0; bytes != 0; ++k) {
        std::uint64_t word = 0;
        std::size_t const word_bytes = std::min(bytes, sizeof word);
        std::memcpy(&word, address, word_bytes);
        chain[k] = mix_checksum(chain[k], word);
        address += word_bytes;
        bytes -= word_bytes;
    }
    for (std::size_t k = 1; k < 8; ++k)
        chain[0] = mix_checksum(chain[0], chain[k]);
    return chain[0];
}

#if defined(__x86_64__)
// The products of the lower and upper 32 bits of four words. GCC 12 does not find the instruction.
#if defined(__clang__)
#define ADAMANT_PRODUCT_OF_32_BITS(words) (((words)&0xffffffffu) * ((words) >> 32))
#else
#define ADAMANT_PRODUCT_OF_32_BITS(words)                                                                              \
    reinterpret_cast<vector>(                                                                                          \
        __builtin_ia32_pmuludq256(reinterpret_cast<halves>(words), reinterpret_cast<halves>((words) >> 32)))
#endif
// The checksum by vectors of 32-bit multiplications, in less than half the time. Each word is added to one sum, so a
// change of one word changes it, and multiplied into another with a key of its own, so the order of words matters.
[[nodiscard, gnu::target("avx2")]] inline std::uint64_t vector_checksum(std::byte const* address,
                                                                        std::size_t bytes) noexcept
{
    vzeroupper_scope const at_end;
    using vector = std::uint64_t __attribute__((vector_size(32)));
    using halves [[maybe_unused]] = int __attribute__((vector_size(32)));
    constexpr std::size_t stride = 2 * sizeof(vector);
    vector first_sum = {bytes, 1, 2, 3}, second_sum = {4, 5, 6, 7};
    vector first_key = {0x9e3779b97f4a7c15u, 0xbf58476d1ce4e5b9u, 0x94d049bb133111ebu, 0xd6e8feb86659fd93u};
    vector second_key = {0xa0761d6478bd642fu, 0xe7037ed1a0b428dbu, 0x8ebc6af09c88c6e3u, 0x589965cc75374cc3u};
    vector const first_step = second_key | 1;
    vector const second_step = first_key | 1;
    std::size_t const rest = bytes % stride;
    for (std::byte const* const end = address + (bytes - rest); address != end; address += stride) {
        vector first, second;
        std::memcpy(&first, address, sizeof first);
        std::memcpy(&second, address + sizeof first, sizeof second);
        first_sum += second + ADAMANT_PRODUCT_OF_32_BITS(first ^ first_key);
        second_sum += first + ADAMANT_PRODUCT_OF_32_BITS(second ^ second_key);
        first_key += first_step;
        second_key += second_step;
    }
    std::uint64_t sum = scalar_checksum(address, rest);
    for (int k = 0; k < 4; ++k)
        sum = mix_checksum(mix_checksum(sum, first_sum[k]), second_sum[k]);
    return sum;
}
#undef ADAMANT_PRODUCT_OF_32_BITS
#endif

// Different bytes, another order or another length give a different checksum, except for chance collisions. Do not
// store a checksum: it depends on the processor, and may change with any version.
[[nodiscard]] inline std::uint64_t checksum(std::byte const* address, std::size_t bytes) noexcept
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        return vector_checksum(address, bytes);
#endif
    return scalar_checksum(address, bytes);
}

} // namespace detail
ADAMANT_END_NAMESPACE
