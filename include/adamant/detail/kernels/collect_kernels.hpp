// SPDX-License-Identifier: Apache-2.0
// Kernels that count and collect changed weights, selected by the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/detail/kernels/dispatch.hpp>

#define ADAMANT_KERNELS <adamant/detail/kernels/collect_changes.inl>
#include <adamant/detail/kernels/for_each_target.inl>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

namespace scalar {

inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    std::size_t count = 0;
    for (std::size_t i = 0; i < n * changed_word_elems; ++i)
        count += words[i / changed_word_elems] >> i % changed_word_elems & 1;
    return count;
}

inline bool collect_changes(std::uint64_t* words, std::size_t n, std::size_t, std::byte const* weights,
                            std::size_t weight_bytes, std::uint64_t first_index, bool clear,
                            changed_weights_out& out) noexcept
{
    for (std::size_t w = 0; w < n; ++w) {
        if (count_changes(words + w, 1) > out.room)
            return false;
        for (std::size_t i = w * changed_word_elems; i < (w + 1) * changed_word_elems; ++i) {
            if ((words[w] >> i % changed_word_elems & 1) == 0)
                continue;
            if (out.indices != nullptr)
                *out.indices++ = static_cast<std::uint32_t>(first_index + i);
            else
                *out.wide_indices++ = first_index + i;
            if (out.values != nullptr) {
                std::memcpy(out.values, weights + i * weight_bytes, weight_bytes);
                out.values += weight_bytes;
            }
            --out.room;
        }
        if (clear)
            words[w] = 0;
    }
    return true;
}

} // namespace scalar

#if defined(__x86_64__)
#if !defined(ADAMANT_EMULATED_AVX512)
#if defined(__clang__)
#pragma clang attribute push(                                                                                          \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512vpopcntdq"))),                \
    apply_to = function)
#else
#pragma GCC diagnostic push // see detail/kernels/for_each_target.inl
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi2,avx512vpopcntdq")
#endif
namespace avx512_vbmi2 {
#define ADAMANT_VBMI2
#include <adamant/detail/kernels/collect_changes.inl>
#undef ADAMANT_VBMI2
} // namespace avx512_vbmi2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif
#endif

namespace avx512_bf16 {
// Of the processors with AVX512_BF16, only Cooper Lake lacks AVX512_VBMI2 and AVX512_VPOPCNTDQ.
inline bool has_vbmi2() noexcept
{
#if defined(ADAMANT_EMULATED_AVX512)
    return false;
#else
    return __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vpopcntdq");
#endif
}
#if defined(ADAMANT_EMULATED_AVX512)
namespace vbmi2 = avx512;
#else
namespace vbmi2 = avx512_vbmi2;
#endif
inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    return has_vbmi2() ? vbmi2::count_changes(words, n) : avx512::count_changes(words, n);
}
inline bool collect_changes(std::uint64_t* words, std::size_t n, std::size_t prefetch_words, std::byte const* weights,
                            std::size_t weight_bytes, std::uint64_t first_index, bool clear,
                            changed_weights_out& out) noexcept
{
    return (has_vbmi2() ? vbmi2::collect_changes : avx512::collect_changes)(words, n, prefetch_words, weights,
                                                                            weight_bytes, first_index, clear, out);
}
} // namespace avx512_bf16
#endif

[[nodiscard]] inline count_changes_function count_changes_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::count_changes), count_changes);
}
[[nodiscard]] inline collect_changes_function collect_changes_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::collect_changes), collect_changes);
}

} // namespace kernel

ADAMANT_END_NAMESPACE
