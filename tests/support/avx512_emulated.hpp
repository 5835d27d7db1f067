// SPDX-License-Identifier: Apache-2.0
// The AVX-512 intrinsics of detail/kernels/avx512.inl on CPUs that have only AVX2, by SIMDe, so that every machine
// tests the kernels of those tiers. detail/kernels/targets.hpp includes this where ADAMANT_EMULATED_AVX512 names it.
// SIMDe fuses exactly where AVX-512 does if the file is compiled with -mavx2 -mfma -mf16c -ffp-contract=off.
#pragma once

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || defined(__AVX512F__)
#error "AVX-512 is emulated by AVX2, FMA and F16C: compile with -mavx2 -mfma -mf16c, and without AVX-512"
#endif

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include <simde/x86/avx512.h>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace emulated_avx512 {

using v16 = simde__m512;
using v16i = simde__m512i;

// What SIMDe 0.7.4 lacks.
[[gnu::noinline]] inline __mmask16 cmplt_epu32_mask(v16i a, v16i b)
{
    return static_cast<__mmask16>(~simde_mm512_cmple_epu32_mask(b, a));
}
[[gnu::noinline]] inline __mmask16 cmpge_epu32_mask(v16i a, v16i b)
{
    return simde_mm512_cmple_epu32_mask(b, a);
}
[[gnu::noinline]] inline v16i cvtepi16_epi32(__m256i a)
{
    simde__m256i_private const from = simde__m256i_to_private(a);
    simde__m512i_private to;
    for (std::size_t i = 0; i < 16; ++i)
        to.i32[i] = from.i16[i];
    return simde__m512i_from_private(to);
}
template <class From> // std::int8_t or std::uint8_t
v16i widen_bytes(__m128i a)
{
    From bytes[16];
    __builtin_memcpy(bytes, &a, sizeof bytes);
    simde__m512i_private to;
    for (std::size_t i = 0; i < 16; ++i)
        to.i32[i] = bytes[i];
    return simde__m512i_from_private(to);
}
[[gnu::noinline]] inline v16i cvtepi8_epi32(__m128i a)
{
    return widen_bytes<std::int8_t>(a);
}
[[gnu::noinline]] inline v16i cvtepu8_epi32(__m128i a)
{
    return widen_bytes<std::uint8_t>(a);
}
// From the last to the first.
template <class... Words>
[[gnu::noinline]] v16i set_epi16(Words... words)
{
    std::int16_t const all[] = {static_cast<std::int16_t>(words)...};
    simde__m512i_private to;
    for (std::size_t i = 0; i < 32; ++i)
        to.i16[i] = all[31 - i];
    return simde__m512i_from_private(to);
}
[[gnu::noinline]] inline v16i set1_epi8(int x)
{
    return simde_mm512_set1_epi8(static_cast<std::int8_t>(x));
}
[[gnu::noinline]] inline __mmask32 cmpgt_epi16_mask(v16i a, v16i b)
{
    simde__m512i_private const x = simde__m512i_to_private(a);
    simde__m512i_private const y = simde__m512i_to_private(b);
    __mmask32 greater = 0;
    for (std::size_t i = 0; i < 32; ++i)
        greater |= static_cast<__mmask32>(x.i16[i] > y.i16[i]) << i;
    return greater;
}
[[gnu::noinline]] inline __m256i cvtepi32_epi16(v16i a)
{
    simde__m512i_private const from = simde__m512i_to_private(a);
    simde__m256i_private to;
    for (std::size_t i = 0; i < 16; ++i)
        to.i16[i] = static_cast<std::int16_t>(from.i32[i]);
    return simde__m256i_from_private(to);
}
// To nearest even whatever the rounding mode; subnormals count as zeros, and come out as zeros.
[[gnu::noinline]] inline __m256i cvtneps_pbh(v16 a)
{
    simde__m512_private const from = simde__m512_to_private(a);
    simde__m256i_private to;
    for (std::size_t i = 0; i < 16; ++i) {
        auto const bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(from.f32[i]));
        std::uint32_t const magnitude = bits & 0x7fffffffu;
        std::uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1);
        if (magnitude > 0x7f800000u)
            rounded = bits | 0x00400000u;
        else if (magnitude < 0x00800000u)
            rounded = bits & 0x80000000u;
        to.i16[i] = static_cast<std::int16_t>(rounded >> 16);
    }
    return simde__m256i_from_private(to);
}
inline v16 join(__m256 low, __m256 high)
{
    simde__m512_private to;
    to.m256[0] = low;
    to.m256[1] = high;
    return simde__m512_from_private(to);
}
inline __m256 half(v16 a, int which)
{
    return simde__m512_to_private(a).m256[which];
}
[[gnu::noinline]] inline v16 cvtepi32_ps(v16i a)
{
    simde__m512i_private const from = simde__m512i_to_private(a);
    return join(_mm256_cvtepi32_ps(from.m256i[0]), _mm256_cvtepi32_ps(from.m256i[1]));
}
[[gnu::noinline]] inline v16i cvtps_epi32(v16 a)
{
    simde__m512i_private to;
    to.m256i[0] = _mm256_cvtps_epi32(half(a, 0));
    to.m256i[1] = _mm256_cvtps_epi32(half(a, 1));
    return simde__m512i_from_private(to);
}
[[gnu::noinline]] inline v16 cvtph_ps(__m256i a)
{
    return join(_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
[[gnu::noinline]] inline __m256i cvtps_ph(v16 a)
{
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT;
    return _mm256_set_m128i(_mm256_cvtps_ph(half(a, 1), nearest), _mm256_cvtps_ph(half(a, 0), nearest));
}
[[gnu::noinline]] inline v16i cvtne2ps_pbh(v16 high, v16 low)
{
    simde__m512i_private to;
    to.m256i[0] = cvtneps_pbh(low);
    to.m256i[1] = cvtneps_pbh(high);
    return simde__m512i_from_private(to);
}

// Masked: no byte of a lane that is left out is touched.
[[gnu::noinline]] inline v16 maskz_loadu_ps(__mmask16 which, void const* from)
{
    simde__m512_private to = simde__m512_to_private(simde_mm512_setzero_ps());
    for (std::size_t i = 0; i < 16; ++i)
        if ((which >> i & 1) != 0)
            __builtin_memcpy(&to.f32[i], static_cast<char const*>(from) + i * sizeof(float), sizeof(float));
    return simde__m512_from_private(to);
}
[[gnu::noinline]] inline void mask_storeu_ps(void* to, __mmask16 which, v16 a)
{
    simde__m512_private const from = simde__m512_to_private(a);
    for (std::size_t i = 0; i < 16; ++i)
        if ((which >> i & 1) != 0)
            __builtin_memcpy(static_cast<char*>(to) + i * sizeof(float), &from.f32[i], sizeof(float));
}
[[gnu::noinline]] inline __m256i maskz_loadu_epi16(__mmask16 which, void const* from)
{
    simde__m256i_private to = simde__m256i_to_private(simde_mm256_setzero_si256());
    for (std::size_t i = 0; i < 16; ++i)
        if ((which >> i & 1) != 0)
            __builtin_memcpy(&to.i16[i], static_cast<char const*>(from) + i * sizeof(std::int16_t),
                             sizeof(std::int16_t));
    return simde__m256i_from_private(to);
}
[[gnu::noinline]] inline void mask_storeu_epi16(void* to, __mmask16 which, __m256i a)
{
    simde__m256i_private const from = simde__m256i_to_private(a);
    for (std::size_t i = 0; i < 16; ++i)
        if ((which >> i & 1) != 0)
            __builtin_memcpy(static_cast<char*>(to) + i * sizeof(std::int16_t), &from.i16[i], sizeof(std::int16_t));
}

// Macros there.
[[gnu::noinline]] inline __mmask16 cmp_ps_mask(v16 a, v16 b, int relation)
{
    if (relation == _CMP_NEQ_UQ)
        return simde_mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ);
    return simde_mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q); // only these two are used
}
[[gnu::noinline]] inline __mmask32 cmpneq_epi16_mask(v16i a, v16i b)
{
    simde__m512i_private const x = simde__m512i_to_private(a);
    simde__m512i_private const y = simde__m512i_to_private(b);
    __mmask32 differing = 0;
    for (std::size_t i = 0; i < 32; ++i)
        differing |= __mmask32{x.i16[i] != y.i16[i]} << i;
    return differing;
}
[[gnu::noinline]] inline __m256i extracti64x4_epi64(v16i a, int)
{
    return simde__m512i_to_private(a).m256i[1]; // the only one that is used
}
[[gnu::noinline]] inline v16i inserti64x4(v16i a, __m256i b, int)
{
    simde__m512i_private to = simde__m512i_to_private(a);
    to.m256i[1] = b; // the only one that is used
    return simde__m512i_from_private(to);
}
[[gnu::noinline]] inline v16i maskz_srai_epi16(__mmask32 which, v16i a, unsigned count)
{
    return simde_mm512_maskz_mov_epi16(which, simde_mm512_srai_epi16(a, count));
}
[[gnu::noinline]] inline v16i srai_epi32(v16i a, unsigned count)
{
    simde__m512i_private x = simde__m512i_to_private(a);
    for (std::size_t i = 0; i < 16; ++i)
        x.i32[i] >>= count;
    return simde__m512i_from_private(x);
}
// Which faults where the address is no multiple of 64.
[[gnu::noinline]] inline void stream_si512(void* to, v16i a)
{
    if (reinterpret_cast<std::uintptr_t>(to) % 64 != 0)
        __builtin_trap();
    __builtin_memcpy(to, &a, sizeof a);
}
[[gnu::noinline]] inline void storeu_epi32(void* to, v16i a)
{
    simde_mm512_storeu_si512(to, a);
}

// Functions that are not inlined: each is compiled once rather than in every kernel, which takes half the time.
#define ADAMANT_EMULATED(name)                                                                                         \
    template <class... Arguments>                                                                                      \
    [[gnu::noinline]] auto name(Arguments... arguments)                                                                \
    {                                                                                                                  \
        return simde_mm512_##name(arguments...);                                                                       \
    }
ADAMANT_EMULATED(abs_epi16)
ADAMANT_EMULATED(add_epi16)
ADAMANT_EMULATED(add_epi32)
ADAMANT_EMULATED(adds_epu16)
ADAMANT_EMULATED(and_epi32)
ADAMANT_EMULATED(castsi256_si512)
ADAMANT_EMULATED(castsi512_ps)
ADAMANT_EMULATED(castsi512_si256)
ADAMANT_EMULATED(cmple_epu32_mask)
ADAMANT_EMULATED(div_ps)
ADAMANT_EMULATED(fmadd_ps)
ADAMANT_EMULATED(loadu_epi32)
ADAMANT_EMULATED(loadu_ps)
ADAMANT_EMULATED(mask_and_epi32)
ADAMANT_EMULATED(mask_mov_epi32)
ADAMANT_EMULATED(maskz_mov_epi16)
ADAMANT_EMULATED(maskz_permutexvar_epi16)
ADAMANT_EMULATED(max_epu32)
ADAMANT_EMULATED(max_epu8)
ADAMANT_EMULATED(min_epi32)
ADAMANT_EMULATED(min_epu32)
ADAMANT_EMULATED(movepi32_mask)
ADAMANT_EMULATED(movm_epi32)
ADAMANT_EMULATED(mul_ps)
ADAMANT_EMULATED(mullo_epi32)
ADAMANT_EMULATED(packs_epi16)
ADAMANT_EMULATED(packs_epi32)
ADAMANT_EMULATED(packus_epi16)
ADAMANT_EMULATED(packus_epi32)
ADAMANT_EMULATED(permutex2var_ps)
ADAMANT_EMULATED(permutexvar_epi16)
ADAMANT_EMULATED(permutexvar_epi32)
ADAMANT_EMULATED(set1_epi16)
ADAMANT_EMULATED(set1_epi32)
ADAMANT_EMULATED(set1_ps)
ADAMANT_EMULATED(set_epi32)
ADAMANT_EMULATED(setzero_si512)
ADAMANT_EMULATED(slli_epi16)
ADAMANT_EMULATED(slli_epi32)
ADAMANT_EMULATED(sqrt_ps)
ADAMANT_EMULATED(srai_epi16)
ADAMANT_EMULATED(srli_epi16)
ADAMANT_EMULATED(srli_epi32)
ADAMANT_EMULATED(storeu_ps)
ADAMANT_EMULATED(sub_epi32)
ADAMANT_EMULATED(sub_ps)
ADAMANT_EMULATED(subs_epu16)
ADAMANT_EMULATED(ternarylogic_epi32)
ADAMANT_EMULATED(test_epi16_mask)
ADAMANT_EMULATED(test_epi32_mask)
ADAMANT_EMULATED(unpackhi_epi16)
ADAMANT_EMULATED(unpackhi_epi32)
ADAMANT_EMULATED(unpacklo_epi16)
ADAMANT_EMULATED(unpacklo_epi32)
#undef ADAMANT_EMULATED

} // namespace emulated_avx512
ADAMANT_END_NAMESPACE

#define __m512 simde__m512
#define __m512i simde__m512i

#undef _mm256_mask_storeu_epi16
#define _mm256_mask_storeu_epi16 emulated_avx512::mask_storeu_epi16
#undef _mm256_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16 emulated_avx512::maskz_loadu_epi16
#undef _mm512_abs_epi16
#define _mm512_abs_epi16 emulated_avx512::abs_epi16
#undef _mm512_add_epi16
#define _mm512_add_epi16 emulated_avx512::add_epi16
#undef _mm512_add_epi32
#define _mm512_add_epi32 emulated_avx512::add_epi32
#undef _mm512_adds_epu16
#define _mm512_adds_epu16 emulated_avx512::adds_epu16
#undef _mm512_and_epi32
#define _mm512_and_epi32 emulated_avx512::and_epi32
#undef _mm512_castsi256_si512
#define _mm512_castsi256_si512 emulated_avx512::castsi256_si512
#undef _mm512_castsi512_ps
#define _mm512_castsi512_ps emulated_avx512::castsi512_ps
#undef _mm512_castsi512_si256
#define _mm512_castsi512_si256 emulated_avx512::castsi512_si256
#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask emulated_avx512::cmp_ps_mask
#undef _mm512_cmpge_epu32_mask
#define _mm512_cmpge_epu32_mask emulated_avx512::cmpge_epu32_mask
#undef _mm512_cmpgt_epi16_mask
#define _mm512_cmpgt_epi16_mask emulated_avx512::cmpgt_epi16_mask
#undef _mm512_cmpneq_epi16_mask
#define _mm512_cmpneq_epi16_mask emulated_avx512::cmpneq_epi16_mask
#undef _mm512_cmple_epu32_mask
#define _mm512_cmple_epu32_mask emulated_avx512::cmple_epu32_mask
#undef _mm512_cmplt_epu32_mask
#define _mm512_cmplt_epu32_mask emulated_avx512::cmplt_epu32_mask
#undef _mm512_cvtepi16_epi32
#define _mm512_cvtepi16_epi32 emulated_avx512::cvtepi16_epi32
#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 emulated_avx512::cvtepi32_epi16
#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps emulated_avx512::cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#define _mm512_cvtepi8_epi32 emulated_avx512::cvtepi8_epi32
#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 emulated_avx512::cvtepu8_epi32
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh emulated_avx512::cvtne2ps_pbh
#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps emulated_avx512::cvtph_ps
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 emulated_avx512::cvtps_epi32
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(x, rounding) emulated_avx512::cvtps_ph(x)
#undef _mm512_div_ps
#define _mm512_div_ps emulated_avx512::div_ps
#undef _mm512_extracti64x4_epi64
#define _mm512_extracti64x4_epi64 emulated_avx512::extracti64x4_epi64
#undef _mm512_fmadd_ps
#define _mm512_fmadd_ps emulated_avx512::fmadd_ps
#undef _mm512_inserti64x4
#define _mm512_inserti64x4 emulated_avx512::inserti64x4
#undef _mm512_loadu_epi32
#define _mm512_loadu_epi32 emulated_avx512::loadu_epi32
#undef _mm512_loadu_ps
#define _mm512_loadu_ps emulated_avx512::loadu_ps
#undef _mm512_mask_and_epi32
#define _mm512_mask_and_epi32 emulated_avx512::mask_and_epi32
#undef _mm512_mask_mov_epi32
#define _mm512_mask_mov_epi32 emulated_avx512::mask_mov_epi32
#undef _mm512_mask_storeu_ps
#define _mm512_mask_storeu_ps emulated_avx512::mask_storeu_ps
#undef _mm512_maskz_loadu_ps
#define _mm512_maskz_loadu_ps emulated_avx512::maskz_loadu_ps
#undef _mm512_maskz_mov_epi16
#define _mm512_maskz_mov_epi16 emulated_avx512::maskz_mov_epi16
#undef _mm512_maskz_permutexvar_epi16
#define _mm512_maskz_permutexvar_epi16 emulated_avx512::maskz_permutexvar_epi16
#undef _mm512_maskz_srai_epi16
#define _mm512_maskz_srai_epi16 emulated_avx512::maskz_srai_epi16
#undef _mm512_max_epu32
#define _mm512_max_epu32 emulated_avx512::max_epu32
#undef _mm512_max_epu8
#define _mm512_max_epu8 emulated_avx512::max_epu8
#undef _mm512_min_epi32
#define _mm512_min_epi32 emulated_avx512::min_epi32
#undef _mm512_min_epu32
#define _mm512_min_epu32 emulated_avx512::min_epu32
#undef _mm512_movepi32_mask
#define _mm512_movepi32_mask emulated_avx512::movepi32_mask
#undef _mm512_movm_epi32
#define _mm512_movm_epi32 emulated_avx512::movm_epi32
#undef _mm512_mul_ps
#define _mm512_mul_ps emulated_avx512::mul_ps
#undef _mm512_mullo_epi32
#define _mm512_mullo_epi32 emulated_avx512::mullo_epi32
#undef _mm512_packs_epi16
#define _mm512_packs_epi16 emulated_avx512::packs_epi16
#undef _mm512_packs_epi32
#define _mm512_packs_epi32 emulated_avx512::packs_epi32
#undef _mm512_packus_epi16
#define _mm512_packus_epi16 emulated_avx512::packus_epi16
#undef _mm512_packus_epi32
#define _mm512_packus_epi32 emulated_avx512::packus_epi32
#undef _mm512_permutex2var_ps
#define _mm512_permutex2var_ps emulated_avx512::permutex2var_ps
#undef _mm512_permutexvar_epi16
#define _mm512_permutexvar_epi16 emulated_avx512::permutexvar_epi16
#undef _mm512_permutexvar_epi32
#define _mm512_permutexvar_epi32 emulated_avx512::permutexvar_epi32
#undef _mm512_set1_epi16
#define _mm512_set1_epi16 emulated_avx512::set1_epi16
#undef _mm512_set1_epi32
#define _mm512_set1_epi32 emulated_avx512::set1_epi32
#undef _mm512_set1_epi8
#define _mm512_set1_epi8 emulated_avx512::set1_epi8
#undef _mm512_set1_ps
#define _mm512_set1_ps emulated_avx512::set1_ps
#undef _mm512_set_epi16
#define _mm512_set_epi16 emulated_avx512::set_epi16
#undef _mm512_set_epi32
#define _mm512_set_epi32 emulated_avx512::set_epi32
#undef _mm512_setzero_si512
#define _mm512_setzero_si512 emulated_avx512::setzero_si512
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 emulated_avx512::slli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emulated_avx512::slli_epi32
#undef _mm512_sqrt_ps
#define _mm512_sqrt_ps emulated_avx512::sqrt_ps
#undef _mm512_srai_epi16
#define _mm512_srai_epi16 emulated_avx512::srai_epi16
#undef _mm512_srli_epi16
#define _mm512_srli_epi16 emulated_avx512::srli_epi16
#undef _mm512_srai_epi32
#define _mm512_srai_epi32 emulated_avx512::srai_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 emulated_avx512::srli_epi32
#undef _mm512_storeu_epi32
#define _mm512_storeu_epi32 emulated_avx512::storeu_epi32
#undef _mm512_storeu_ps
#define _mm512_storeu_ps emulated_avx512::storeu_ps
#undef _mm512_stream_si512
#define _mm512_stream_si512 emulated_avx512::stream_si512
#undef _mm512_sub_epi32
#define _mm512_sub_epi32 emulated_avx512::sub_epi32
#undef _mm512_sub_ps
#define _mm512_sub_ps emulated_avx512::sub_ps
#undef _mm512_subs_epu16
#define _mm512_subs_epu16 emulated_avx512::subs_epu16
#undef _mm512_ternarylogic_epi32
#define _mm512_ternarylogic_epi32 emulated_avx512::ternarylogic_epi32
#undef _mm512_test_epi16_mask
#define _mm512_test_epi16_mask emulated_avx512::test_epi16_mask
#undef _mm512_test_epi32_mask
#define _mm512_test_epi32_mask emulated_avx512::test_epi32_mask
#undef _mm512_unpackhi_epi16
#define _mm512_unpackhi_epi16 emulated_avx512::unpackhi_epi16
#undef _mm512_unpackhi_epi32
#define _mm512_unpackhi_epi32 emulated_avx512::unpackhi_epi32
#undef _mm512_unpacklo_epi16
#define _mm512_unpacklo_epi16 emulated_avx512::unpacklo_epi16
#undef _mm512_unpacklo_epi32
#define _mm512_unpacklo_epi32 emulated_avx512::unpacklo_epi32
