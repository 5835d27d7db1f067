// SPDX-License-Identifier: Apache-2.0
// Comparisons of the AVX-512 facade, which includes it; detail/kernels/generic.hpp documents its functions.

struct differing_bits {
    ADAMANT_SIMD static std::uint64_t differing_lanes(__m512 const (&a)[2], __m512 const (&b)[2])
    {
        return _mm512_kunpackw(differing_floats(a[1], b[1]), differing_floats(a[0], b[0]));
    }
    ADAMANT_SIMD static std::uint64_t differing_words(__m512i const (&a)[1], __m512i const (&b)[1])
    {
        return _mm512_cmpneq_epi16_mask(a[0], b[0]);
    }
    template <class Bits>
    ADAMANT_SIMD static std::uint64_t differing(std::byte const* a, std::byte const* b)
    {
        constexpr std::size_t count = 64 / sizeof(Bits); // per vector
        std::uint64_t all = 0;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < 64 / count; ++k) {
            __m512i const x = _mm512_loadu_epi32(a + k * 64);
            __m512i const y = _mm512_loadu_epi32(b + k * 64);
            if constexpr (sizeof(Bits) == 2)
                all |= std::uint64_t{_mm512_cmpneq_epi16_mask(x, y)} << (k * count);
            else
                all |= std::uint64_t{_mm512_cmpneq_epi32_mask(x, y)} << (k * count);
        }
        return all;
    }
    ADAMANT_SIMD static std::uint64_t outside(std::byte const* words, std::uint16_t low, std::uint16_t high)
    {
        std::uint64_t all = 0;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < 2; ++k) {
            __m512i const magnitude = _mm512_loadu_epi32(words + k * 64) & _mm512_set1_epi32(0x7fff7fff);
            __m512i const x =
                _mm512_subs_epu16(_mm512_add_epi16(magnitude, _mm512_set1_epi16(static_cast<short>(-low))),
                                  _mm512_set1_epi16(static_cast<short>(high - low)));
            all |= std::uint64_t{_mm512_test_epi16_mask(x, x)} << (k * 32);
        }
        return all;
    }

private:
    ADAMANT_SIMD static __mmask16 differing_floats(__m512 a, __m512 b)
    {
        return _mm512_cmpneq_epi32_mask(_mm512_castps_si512(a), _mm512_castps_si512(b));
    }
};
