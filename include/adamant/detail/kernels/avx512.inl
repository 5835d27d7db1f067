// SPDX-License-Identifier: Apache-2.0
// The AVX-512 facade. detail/kernels/step_kernels.inl includes it; detail/kernels/neon.hpp documents its functions. It
// serves AVX512_BF16, too, which adds instructions that convert to bfloat16.

struct simd {
    static constexpr std::size_t lanes = 16;
    static constexpr std::size_t vectors = 2;
    static constexpr std::size_t vectors_of_bfloat16 = 2;
    static constexpr bool can_stream = true;
    static constexpr bool has_masks = true;
    static constexpr bool may_have_bfloat16 = true;
    static constexpr bool interleaves = true;
    using f32 = __m512;
    using u32 = __m512i;

    ADAMANT_SIMD static f32 set(float x) { return _mm512_set1_ps(x); }
    ADAMANT_SIMD static u32 set(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
    ADAMANT_SIMD static f32 mul(f32 a, f32 b) { return a * b; }
    ADAMANT_SIMD static f32 fma(f32 a, f32 b, f32 c) { return _mm512_fmadd_ps(a, b, c); }
    ADAMANT_SIMD static f32 minus(f32 a, f32 b)
    {
#if !defined(ADAMANT_EMULATED_AVX512) // compiled without contraction
        asm("" : "+v"(b));
#endif
        return _mm512_sub_ps(a, b);
    }
    ADAMANT_SIMD static f32 div(f32 a, f32 b)
    {
        return a / b;
    }
    ADAMANT_SIMD static f32 sqrt(f32 a)
    {
        return _mm512_sqrt_ps(a);
    }
    ADAMANT_SIMD static u32 bits(f32 x)
    {
        return reinterpret_cast<__m512i>(x);
    }
    ADAMANT_SIMD static u32 abs_bits(f32 x)
    {
        return bits(x) & set(float_abs_mask);
    }
    ADAMANT_SIMD static u32 add(u32 a, u32 b)
    {
        return _mm512_add_epi32(a, b);
    }
    ADAMANT_SIMD static u32 mul(u32 a, u32 b)
    {
        return _mm512_mullo_epi32(a, b);
    }
    ADAMANT_SIMD static u32 sub(u32 a, u32 b)
    {
        return _mm512_sub_epi32(a, b);
    }
    ADAMANT_SIMD static u32 min(u32 a, u32 b)
    {
        return _mm512_min_epu32(a, b);
    }
    ADAMANT_SIMD static u32 max(u32 a, u32 b)
    {
        return _mm512_max_epu32(a, b);
    }
    ADAMANT_SIMD static u32 min_signed(u32 a, u32 b)
    {
        return _mm512_min_epi32(a, b);
    }
    ADAMANT_SIMD static u32 and3(u32 a, u32 b, u32 c)
    {
        return _mm512_ternarylogic_epi32(a, b, c, 0x80);
    }
    ADAMANT_SIMD static u32 or3(u32 a, u32 b, u32 c)
    {
        return _mm512_ternarylogic_epi32(a, b, c, 0xfe);
    }
    template <int Count>
    ADAMANT_SIMD static u32 shift_left(u32 x)
    {
        return _mm512_slli_epi32(x, Count);
    }
    template <int Count>
    ADAMANT_SIMD static u32 shift_right(u32 x)
    {
        return _mm512_srli_epi32(x, Count);
    }
    ADAMANT_SIMD static f32 from_bits(u32 x)
    {
        return reinterpret_cast<__m512>(x);
    }
    ADAMANT_SIMD static std::uint64_t differing_lanes(f32 const (&a)[2], f32 const (&b)[2])
    {
        return _mm512_kunpackw(differing_floats(a[1], b[1]), differing_floats(a[0], b[0]));
    }
    ADAMANT_SIMD static __mmask16 differing_floats(f32 a, f32 b)
    {
        return _mm512_cmpneq_epi32_mask(bits(a), bits(b));
    }
    ADAMANT_SIMD static std::uint64_t differing_words(u32 const (&a)[1], u32 const (&b)[1])
    {
        return _mm512_cmpneq_epi16_mask(a[0], b[0]);
    }
    ADAMANT_SIMD static bool any_sign(u32 x)
    {
        return _mm512_movepi32_mask(x) != 0;
    }

    ADAMANT_SIMD static f32 flush(f32 x, std::uint32_t up_to)
    {
        __mmask16 const is_small = _mm512_cmple_epu32_mask(abs_bits(x), set(up_to));
        return _mm512_castsi512_ps(_mm512_mask_and_epi32(bits(x), is_small, bits(x), set(float_sign_bit)));
    }
    ADAMANT_SIMD static f32 canonical(f32 x, f32 source)
    {
        __mmask16 const nan = _mm512_cmp_ps_mask(source, source, _CMP_UNORD_Q);
        return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits(x), nan, set(canonical_nan_bits)));
    }
    ADAMANT_SIMD static u32 finite_mask(f32 x)
    {
        return _mm512_movm_epi32(_mm512_cmplt_epu32_mask(abs_bits(x), set(float_infinity_bits)));
    }
    ADAMANT_SIMD static unsigned count_nonfinite(f32 x)
    {
        __mmask16 const bad = _mm512_cmpge_epu32_mask(abs_bits(x), set(float_infinity_bits));
        return static_cast<unsigned>(__builtin_popcount(bad));
    }

    // Permutation that moves word k to word 2k + 1: widens bfloat16 in one operation instead of two.
    ADAMANT_SIMD static u32 upper_words()
    {
        return _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16, 8 << 16, 7 << 16,
                                6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
    }
    template <class T>
    ADAMANT_SIMD static f32 widen(__m256i half)
    {
        if constexpr (std::is_same_v<T, bfloat16>) {
            return _mm512_castsi512_ps(
                _mm512_maskz_permutexvar_epi16(0xaaaaaaaau, upper_words(), _mm512_castsi256_si512(half)));
        } else {
            static_assert(std::is_same_v<T, float16>);
            return _mm512_cvtph_ps(half);
        }
    }
    template <class T>
    ADAMANT_SIMD static f32 load(std::byte const* address)
    {
        if constexpr (std::is_same_v<T, float>)
            return _mm512_loadu_ps(address);
        else
            return widen<T>(_mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(address)));
    }
    ADAMANT_SIMD static __mmask16 first_lanes(std::size_t count)
    {
        return static_cast<__mmask16>((1u << count) - 1);
    }
    template <class T>
    ADAMANT_SIMD static f32 load_first(std::byte const* address, std::size_t count)
    {
        if constexpr (std::is_same_v<T, float>)
            return _mm512_maskz_loadu_ps(first_lanes(count), address);
        else
            return widen<T>(_mm256_maskz_loadu_epi16(first_lanes(count), address));
    }
    // As in detail/kernels/avx2.inl.
    template <bool Ordinary>
    ADAMANT_SIMD static u32 round_upper_word(f32 x)
    {
        if constexpr (Ordinary)
            return bits(fma(x, set(65536.0f), mul(x, set(-65535.0f))));
        u32 const lsb = _mm512_and_epi32(_mm512_srli_epi32(bits(x), 16), set(1u));
        return _mm512_add_epi32(_mm512_add_epi32(bits(x), set(0x7fffu)), lsb);
    }
    template <class T>
    ADAMANT_SIMD static __m256i narrow(f32 x)
    {
        if constexpr (std::is_same_v<T, float16>) {
            return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        } else {
            static_assert(std::is_same_v<T, bfloat16>);
            return _mm512_cvtepi32_epi16(_mm512_srli_epi32(round_upper_word<false>(x), 16));
        }
    }
    template <class T>
    ADAMANT_SIMD static void store(std::byte* address, f32 x)
    {
        if constexpr (std::is_same_v<T, float>)
            _mm512_storeu_ps(address, x);
        else
            _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(address), narrow<T>(x));
    }
    template <class T>
    ADAMANT_SIMD static void store_first(std::byte* address, f32 x, std::size_t count)
    {
        if constexpr (std::is_same_v<T, float>)
            _mm512_mask_storeu_ps(address, first_lanes(count), x);
        else
            _mm256_mask_storeu_epi16(address, first_lanes(count), narrow<T>(x));
    }
    template <class T, bool Interleaved>
    ADAMANT_SIMD static void load_pair(std::byte const* address, f32& a, f32& b)
    {
        if constexpr (Interleaved) {
            load_evens_odds(address, a, b);
        } else {
            a = load<T>(address);
            b = load<T>(address + lanes * sizeof(T));
        }
    }
    // Permutation that separates the interleaved words of two vectors.
    ADAMANT_SIMD static u32 unzipped()
    {
        return _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, //
                                30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    }
    // Two vectors rounded to bfloat16 by the instruction of AVX512_BF16, the elements of a first. It rounds to nearest
    // even in any mode and flushes subnormals. A step stores none. It is assembly, so that compilers do not use that
    // instruction set anywhere else.
    ADAMANT_SIMD static u32 pack_natively(f32 a, f32 b)
    {
#if defined(ADAMANT_EMULATED_AVX512)
        return __builtin_bit_cast(u32, _mm512_cvtne2ps_pbh(b, a));
#else
        u32 halves;
        asm("vcvtne2ps2bf16 {%1, %2, %0|%0, %2, %1}" : "=v"(halves) : "v"(a), "v"(b));
        return halves;
#endif
    }
    // The upper halves of two vectors, in the order of load_pair().
    template <bool Interleaved>
    ADAMANT_SIMD static u32 upper_halves(u32 a, u32 b)
    {
        u32 const both = _mm512_ternarylogic_epi32(shift_right<16>(a), b, set(0xffff0000u), 0xf8); // a | (b & mask)
        return Interleaved ? both : _mm512_permutexvar_epi16(unzipped(), both);
    }
    // Rounds even and odd elements to bfloat16, in the order of memory.
    template <bool Ordinary>
    ADAMANT_SIMD static u32 narrow_evens_odds(f32 evens, f32 odds, bool natively)
    {
        if (natively) {
            u32 const zipped =
                _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a, 0x190009, 0x180008,
                                 0x170007, 0x160006, 0x150005, 0x140004, 0x130003, 0x120002, 0x110001, 0x100000);
            return _mm512_permutexvar_epi16(zipped, pack_natively(evens, odds));
        }
        return upper_halves<true>(round_upper_word<Ordinary>(evens), round_upper_word<Ordinary>(odds));
    }
    template <bool Interleaved>
    ADAMANT_SIMD static u32 lower_halves(u32 a, u32 b)
    {
        return upper_halves<Interleaved>(shift_left<16>(a), shift_left<16>(b));
    }
    template <bool Interleaved>
    ADAMANT_SIMD static void load_signed_halves(std::byte const* address, u32& a, u32& b)
    {
        if constexpr (Interleaved) {
            u32 const both = _mm512_loadu_epi32(address);
            a = _mm512_srai_epi32(shift_left<16>(both), 16);
            b = _mm512_srai_epi32(both, 16);
            return;
        }
        auto const* const source = reinterpret_cast<__m256i_u const*>(address);
        a = _mm512_cvtepi16_epi32(_mm256_loadu_si256(source));
        b = _mm512_cvtepi16_epi32(_mm256_loadu_si256(source + 1));
    }
    template <class T, bool Interleaved, bool Ordinary>
    ADAMANT_SIMD static u32 rounded_pair(f32 a, f32 b, bool natively)
    {
        if constexpr (!std::is_same_v<T, bfloat16>)
            return _mm512_inserti64x4(_mm512_castsi256_si512(narrow<T>(a)), narrow<T>(b), 1);
        else if constexpr (Interleaved)
            return narrow_evens_odds<Ordinary>(a, b, natively);
        else
            return natively ? pack_natively(a, b)
                            : upper_halves<false>(round_upper_word<Ordinary>(a), round_upper_word<Ordinary>(b));
    }
    ADAMANT_SIMD static void stream(std::byte* address, u32 x)
    {
        _mm512_stream_si512(reinterpret_cast<__m512i*>(address), x);
    }
    ADAMANT_SIMD static void stream_fence()
    {
        _mm_sfence();
    }

    using halves = __m512i;
    ADAMANT_SIMD static halves saturated(u32 const (&x)[vectors])
    {
        return _mm512_packs_epi32(x[0], x[1]);
    }
    ADAMANT_SIMD static halves set_halves(std::uint16_t x)
    {
        return _mm512_set1_epi16(static_cast<short>(x));
    }
    ADAMANT_SIMD static halves plus(halves x, halves y)
    {
        return _mm512_add_epi16(x, y);
    }
    ADAMANT_SIMD static halves excess(halves x, halves most)
    {
        return _mm512_subs_epu16(x, most);
    }
    template <int Count>
    ADAMANT_SIMD static halves shifted(halves x)
    {
        return _mm512_slli_epi16(x, Count);
    }
    ADAMANT_SIMD static halves either(halves x, halves y)
    {
        return x | y;
    }
    ADAMANT_SIMD static bool any(halves x)
    {
        return _mm512_test_epi32_mask(x, x) != 0;
    }
    // In each run of eight halves, the first four are of the first vector.
    ADAMANT_SIMD static unsigned nonzero_vectors(halves x)
    {
        __mmask32 const some = _mm512_test_epi16_mask(x, x);
        return ((some & 0x0f0f0f0fu) != 0 ? 1u : 0u) | ((some & 0xf0f0f0f0u) != 0 ? 2u : 0u);
    }
    ADAMANT_SIMD static halves select_vectors(halves x, unsigned which)
    {
        return _mm512_maskz_mov_epi16(((which & 1) != 0 ? 0x0f0f0f0fu : 0) | ((which & 2) != 0 ? 0xf0f0f0f0u : 0), x);
    }
    static constexpr std::size_t code_offset(std::size_t vector)
    {
        return 8 * vector;
    }
    ADAMANT_SIMD static void store_halves(std::byte* address, halves x)
    {
        _mm512_storeu_epi32(address, x);
    }
    ADAMANT_SIMD static void stream_halves(std::byte* address, halves x)
    {
        stream(address, x);
    }
    ADAMANT_SIMD static void load_halves(std::byte const* address, u32 (&x)[vectors])
    {
        u32 const both = _mm512_loadu_epi32(address);
        x[0] = _mm512_unpacklo_epi16(both, _mm512_setzero_si512());
        x[1] = _mm512_unpackhi_epi16(both, _mm512_setzero_si512());
    }

    // See detail/kernels/vec128_codes.hpp.
    using words = __m512i;
    using pair_of_u32 = kernel::pair_of_u32;
    ADAMANT_SIMD static f32 load_signed_bytes(std::byte const* address)
    {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<__m128i_u const*>(address))));
    }
    ADAMANT_SIMD static f32 load_unsigned_bytes(std::byte const* address)
    {
        return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<__m128i_u const*>(address))));
    }
    ADAMANT_SIMD static u32 rounded(f32 x)
    {
        return _mm512_cvtps_epi32(x);
    }
    ADAMANT_SIMD static pair_of_u32 largest(u32 a, u32 b)
    {
        u32 const both = max(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        __m256i const half = _mm256_max_epu32(_mm512_castsi512_si256(both), _mm512_extracti64x4_epi64(both, 1));
        __m128i const four = _mm_max_epu32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        return pair_of_u32(static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_max_epu32(four, _mm_srli_si128(four, 8)))));
    }
    ADAMANT_SIMD static u32 hidden(std::uint32_t x)
    {
        u32 all = set(x);
#if !defined(ADAMANT_EMULATED_AVX512)
        asm("" : "+v"(all));
#endif
        return all;
    }
    ADAMANT_SIMD static u32 subtract_halves(u32 a, u32 b)
    {
        return _mm512_subs_epu16(a, b);
    }
    ADAMANT_SIMD static words pack_signed(u32 a, u32 b)
    {
        return _mm512_packs_epi32(a, b);
    }
    ADAMANT_SIMD static words pack_unsigned(u32 a, u32 b)
    {
        return _mm512_packus_epi32(a, b);
    }
    ADAMANT_SIMD static words set_words(std::uint16_t x)
    {
        return set_halves(x);
    }
    ADAMANT_SIMD static words plus_words(words x, words y)
    {
        return _mm512_add_epi16(x, y);
    }
    ADAMANT_SIMD static words plus_saturated(words x, words y)
    {
        return _mm512_adds_epu16(x, y);
    }
    ADAMANT_SIMD static words magnitude(words x)
    {
        return _mm512_abs_epi16(x);
    }
    ADAMANT_SIMD static words signs(words x)
    {
        return _mm512_srai_epi16(x, 15);
    }
    ADAMANT_SIMD static words lower_byte(words x)
    {
        return x & set_words(0xff);
    }
    ADAMANT_SIMD static words upper_byte(words x)
    {
        return _mm512_srli_epi16(x, 8);
    }
    ADAMANT_SIMD static words upper_byte_signed(words x)
    {
        return _mm512_srai_epi16(x, 8);
    }
    ADAMANT_SIMD static __mmask32 words_above(words x, std::uint16_t bound)
    {
        return _mm512_cmpgt_epi16_mask(x, set_words(bound));
    }
    ADAMANT_SIMD static words upper_byte_signed(words x, __mmask32 kept)
    {
        return _mm512_maskz_srai_epi16(kept, x, 8);
    }
    // Packing splits the words of each vector into four runs; restores the order.
    ADAMANT_SIMD static u32 in_order_of_four(u32 bytes)
    {
        return _mm512_permutexvar_epi32(_mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0), bytes);
    }
    ADAMANT_SIMD static void store_bytes_signed(std::byte* address, words const (&x)[2])
    {
        _mm512_storeu_epi32(address, in_order_of_four(_mm512_packs_epi16(x[0], x[1])));
    }
    ADAMANT_SIMD static void store_bytes_above_zero(std::byte* address, words const (&x)[2])
    {
        u32 const bytes = _mm512_max_epu8(_mm512_packus_epi16(x[0], x[1]), _mm512_set1_epi8(1));
        _mm512_storeu_epi32(address, in_order_of_four(bytes));
    }

    ADAMANT_SIMD static void load_evens_odds(std::byte const* address, f32& evens, f32& odds)
    {
        u32 const words = _mm512_loadu_epi32(address);
        evens = from_bits(shift_left<16>(words));
        odds = from_bits(words & set(0xffff0000u));
    }
    ADAMANT_SIMD static void in_order(f32& evens, f32& odds)
    {
        u32 const first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        u32 const last = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
        f32 const low = _mm512_permutex2var_ps(evens, first, odds);
        odds = _mm512_permutex2var_ps(evens, last, odds);
        evens = low;
    }
};
