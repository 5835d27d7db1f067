// SPDX-License-Identifier: Apache-2.0
// The AVX2 + FMA facade. detail/kernels/step_kernels.inl includes it; detail/kernels/neon.hpp documents its functions.

struct simd {
    static constexpr std::size_t lanes = 8;
    static constexpr std::size_t vectors = 4; // a group of 16-bit weights fills a line; half a line streams slowly
    static constexpr std::size_t vectors_of_bfloat16 = 2; // no array is read twice, so more would not fit in registers
    static constexpr bool can_stream = true;
    static constexpr bool has_masks = false;
    static constexpr bool may_have_bfloat16 = false;
    static constexpr bool interleaves = true;
    using f32 = __m256;
    using u32 = __m256i;

    ADAMANT_SIMD static f32 set(float x) { return _mm256_set1_ps(x); }
    ADAMANT_SIMD static u32 set(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
    ADAMANT_SIMD static f32 mul(f32 a, f32 b) { return a * b; }
    ADAMANT_SIMD static f32 fma(f32 a, f32 b, f32 c) { return _mm256_fmadd_ps(a, b, c); }
    ADAMANT_SIMD static f32 minus(f32 a, f32 b)
    {
        asm("" : "+x"(b));
        return _mm256_sub_ps(a, b);
    }
    ADAMANT_SIMD static f32 div(f32 a, f32 b) { return a / b; }
    ADAMANT_SIMD static f32 sqrt(f32 a) { return _mm256_sqrt_ps(a); }
    ADAMANT_SIMD static u32 bits(f32 x) { return reinterpret_cast<__m256i>(x); }
    ADAMANT_SIMD static u32 abs_bits(f32 x) { return bits(x) & set(float_abs_mask); }
    ADAMANT_SIMD static u32 add(u32 a, u32 b) { return _mm256_add_epi32(a, b); }
    ADAMANT_SIMD static u32 mul(u32 a, u32 b) { return _mm256_mullo_epi32(a, b); }
    ADAMANT_SIMD static u32 sub(u32 a, u32 b) { return _mm256_sub_epi32(a, b); }
    ADAMANT_SIMD static u32 min(u32 a, u32 b) { return _mm256_min_epu32(a, b); }
    ADAMANT_SIMD static u32 max(u32 a, u32 b) { return _mm256_max_epu32(a, b); }
    ADAMANT_SIMD static u32 min_signed(u32 a, u32 b) { return _mm256_min_epi32(a, b); }
    ADAMANT_SIMD static u32 and3(u32 a, u32 b, u32 c) { return a & b & c; }
    ADAMANT_SIMD static u32 or3(u32 a, u32 b, u32 c) { return a | b | c; }
    template <int Count>
    ADAMANT_SIMD static u32 shift_left(u32 x)
    {
        return _mm256_slli_epi32(x, Count);
    }
    template <int Count>
    ADAMANT_SIMD static u32 shift_right(u32 x)
    {
        return _mm256_srli_epi32(x, Count);
    }
    ADAMANT_SIMD static f32 from_bits(u32 x) { return reinterpret_cast<__m256>(x); }
    ADAMANT_SIMD static bool any_sign(u32 x) { return _mm256_movemask_ps(_mm256_castsi256_ps(x)) != 0; }

    ADAMANT_SIMD static f32 flush(f32 x, std::uint32_t up_to)
    {
        // abs_bits() is never negative as an integer, so a signed comparison suffices.
        u32 const large = _mm256_cmpgt_epi32(abs_bits(x), set(up_to));
        return _mm256_castsi256_ps(_mm256_and_si256(bits(x), _mm256_or_si256(large, set(float_sign_bit))));
    }
    ADAMANT_SIMD static f32 canonical(f32 x, f32 source)
    {
        __m256 const nan = _mm256_cmp_ps(source, source, _CMP_UNORD_Q);
        return _mm256_blendv_ps(x, _mm256_castsi256_ps(set(canonical_nan_bits)), nan);
    }
    ADAMANT_SIMD static u32 finite_mask(f32 x) { return _mm256_cmpgt_epi32(set(float_infinity_bits), abs_bits(x)); }
    ADAMANT_SIMD static unsigned count_nonfinite(f32 x)
    {
        u32 const bad = _mm256_cmpgt_epi32(abs_bits(x), set(float_infinity_bits - 1));
        return static_cast<unsigned>(
            __builtin_popcount(static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(bad)))));
    }

    template <class T>
    ADAMANT_SIMD static f32 load(std::byte const* address)
    {
        if constexpr (std::is_same_v<T, float>) {
            return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(address)));
        } else {
            __m128i const half = _mm_loadu_si128(reinterpret_cast<__m128i_u const*>(address));
            if constexpr (std::is_same_v<T, bfloat16>) {
                return _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(half), upper_words()));
            } else {
                static_assert(std::is_same_v<T, float16>);
                return widen_float16(half);
            }
        }
    }
    // Shuffle that moves each word of a half to the upper word of a lane, with zeros below. One shuffle replaces a
    // shuffle and a shift, for which processors have the fewest execution units.
    ADAMANT_SIMD static u32 upper_words()
    {
        return _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, //
                                -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
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
    // Widens float16 by integer arithmetic, as detail/kernels/vec128.hpp does. The instructions of F16C keep float16's
    // subnormals regardless of DAZ and FTZ, but common emulators do not. This code is right on both, and memory
    // accesses still hide its time.
    ADAMANT_SIMD static f32 widen_float16(__m128i half)
    {
        u32 const wide = _mm256_cvtepu16_epi32(half);
        u32 const abs = _mm256_and_si256(wide, set(0x7fffu));
        u32 const shifted = _mm256_slli_epi32(abs, 13);
        u32 const special = _mm256_and_si256(_mm256_cmpgt_epi32(abs, set(0x7bffu)), set(112u << 23));
        u32 const normal = _mm256_add_epi32(_mm256_add_epi32(shifted, set(112u << 23)), special);
        f32 const offset = _mm256_castsi256_ps(_mm256_add_epi32(shifted, set(113u << 23)));
        u32 const subnormal = bits(_mm256_sub_ps(offset, _mm256_castsi256_ps(set(113u << 23))));
        u32 const value = _mm256_blendv_epi8(subnormal, normal, _mm256_cmpgt_epi32(abs, set(0x03ffu)));
        return _mm256_castsi256_ps(_mm256_or_si256(value, _mm256_slli_epi32(_mm256_and_si256(wide, set(0x8000u)), 16)));
    }
    // Rounds to bfloat16, in the upper word of each lane; the lower word is unspecified. If Ordinary, uses two
    // operations instead of four: x * 2^16 - round(x * (2^16 - 1)) is x rounded to eight bits, to nearest even
    // (Veltkamp's splitting). Otherwise the multiplication _mm256_madd_epi16 replaces a shift by 16.
    template <bool Ordinary>
    ADAMANT_SIMD static u32 round_upper_word(f32 x)
    {
        if constexpr (Ordinary)
            return bits(fma(x, set(65536.0f), mul(x, set(-65535.0f))));
        u32 const odd = _mm256_madd_epi16(_mm256_and_si256(bits(x), set(0x00010000u)), set(0x00010000u));
        return _mm256_add_epi32(_mm256_add_epi32(bits(x), set(0x7fffu)), odd);
    }
    template <class T>
    ADAMANT_SIMD static __m128i narrow(f32 x)
    {
        u32 half;
        if constexpr (std::is_same_v<T, float16>) {
            u32 const abs = abs_bits(x);
            u32 const lsb = _mm256_and_si256(_mm256_srli_epi32(bits(x), 13), set(1u));
            u32 const rebased = _mm256_sub_epi32(abs, set((112u << 23) - 0x0fffu));
            u32 const normal = _mm256_srli_epi32(_mm256_add_epi32(rebased, lsb), 13);
            f32 const one_half = set(0.5f);
            u32 const subnormal =
                _mm256_sub_epi32(bits(_mm256_add_ps(_mm256_castsi256_ps(abs), one_half)), bits(one_half));
            half = _mm256_blendv_epi8(subnormal, normal, _mm256_cmpgt_epi32(abs, set(0x387fffffu)));
            half = _mm256_blendv_epi8(half, set(0x7c00u), _mm256_cmpgt_epi32(abs, set(0x477fffffu)));
            half = _mm256_blendv_epi8(half, set(0x7e00u), _mm256_cmpgt_epi32(abs, set(float_infinity_bits)));
            half = _mm256_or_si256(half, _mm256_srli_epi32(_mm256_and_si256(bits(x), set(float_sign_bit)), 16));
        } else {
            static_assert(std::is_same_v<T, bfloat16>);
            half = _mm256_srli_epi32(round_upper_word<false>(x), 16);
        }
        return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    }
    template <class T, bool Interleaved, bool Ordinary>
    ADAMANT_SIMD static u32 rounded_pair(f32 a, f32 b, bool)
    {
        if constexpr (std::is_same_v<T, bfloat16>)
            return upper_halves<Interleaved>(round_upper_word<Ordinary>(a), round_upper_word<Ordinary>(b));
        else
            return _mm256_setr_m128i(narrow<T>(a), narrow<T>(b));
    }
    template <bool Interleaved>
    ADAMANT_SIMD static u32 upper_halves(u32 a, u32 b)
    {
        if constexpr (Interleaved)
            return _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xaa);
        u32 const to_lower = _mm256_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1, //
                                              2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1);
        u32 const to_upper = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 2, 3, 6, 7, 10, 11, 14, 15, //
                                              -1, -1, -1, -1, -1, -1, -1, -1, 2, 3, 6, 7, 10, 11, 14, 15);
        u32 const interleaved = _mm256_or_si256(_mm256_shuffle_epi8(a, to_lower), _mm256_shuffle_epi8(b, to_upper));
        return _mm256_permute4x64_epi64(interleaved, 0xd8); // quarters 0, 2, 1, 3
    }
    template <bool Interleaved>
    ADAMANT_SIMD static u32 lower_halves(u32 a, u32 b)
    {
        return Interleaved ? _mm256_blend_epi16(a, shift_left<16>(b), 0xaa)
                           : upper_halves<false>(shift_left<16>(a), shift_left<16>(b));
    }
    template <bool Interleaved>
    ADAMANT_SIMD static void load_signed_halves(std::byte const* address, u32& a, u32& b)
    {
        if constexpr (Interleaved) {
            u32 const both = _mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(address));
            a = _mm256_srai_epi32(shift_left<16>(both), 16);
            b = _mm256_srai_epi32(both, 16);
            return;
        }
        auto const* const source = reinterpret_cast<__m128i_u const*>(address);
        a = _mm256_cvtepi16_epi32(_mm_loadu_si128(source));
        b = _mm256_cvtepi16_epi32(_mm_loadu_si128(source + 1));
    }
    template <class T>
    ADAMANT_SIMD static void store(std::byte* address, f32 x)
    {
        if constexpr (std::is_same_v<T, float>)
            _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(address), bits(x));
        else
            _mm_storeu_si128(reinterpret_cast<__m128i_u*>(address), narrow<T>(x));
    }
    ADAMANT_SIMD static void stream(std::byte* address, u32 x)
    {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(address), x);
    }
    ADAMANT_SIMD static void stream_fence() { _mm_sfence(); }

    ADAMANT_SIMD static std::uint32_t lanes_unless(u32 same)
    {
        return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(same))) ^ 0xffu;
    }
    template <std::size_t Count>
    ADAMANT_SIMD static std::uint64_t differing_lanes(f32 const (&a)[Count], f32 const (&b)[Count])
    {
        std::uint64_t differing = 0;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Count; ++k)
            differing |= std::uint64_t{lanes_unless(_mm256_cmpeq_epi32(bits(a[k]), bits(b[k])))} << (k * lanes);
        return differing;
    }
    ADAMANT_SIMD static std::uint32_t words_unless(u32 same, u32 same_next)
    {
        u32 const packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(same, same_next), 0xd8);
        return ~static_cast<std::uint32_t>(_mm256_movemask_epi8(packed));
    }
    ADAMANT_SIMD static std::uint64_t differing_words(u32 const (&a)[1], u32 const (&b)[1])
    {
        u32 const same = _mm256_cmpeq_epi16(a[0], b[0]);
        return words_unless(same, same) & 0xffffu;
    }
    ADAMANT_SIMD static std::uint64_t differing_words(u32 const (&a)[2], u32 const (&b)[2])
    {
        return words_unless(_mm256_cmpeq_epi16(a[0], b[0]), _mm256_cmpeq_epi16(a[1], b[1]));
    }
    // See detail/kernels/neon.hpp.
    template <class Bits>
    ADAMANT_SIMD static std::uint64_t differing(std::byte const* a, std::byte const* b)
    {
        std::uint64_t all = 0;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < 2; ++k) {
            std::size_t const first = k * 32 * sizeof(Bits);
            u32 same;
            if constexpr (sizeof(Bits) == 2)
                same = _mm256_permute4x64_epi64(
                    _mm256_packs_epi16(same_words(a, b, first), same_words(a, b, first + 32)), 0xd8);
            else
                same = _mm256_permutevar8x32_epi32(
                    _mm256_packs_epi16(
                        _mm256_packs_epi32(same_floats(a, b, first), same_floats(a, b, first + 32)),
                        _mm256_packs_epi32(same_floats(a, b, first + 64), same_floats(a, b, first + 96))),
                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            all |= std::uint64_t{~static_cast<std::uint32_t>(_mm256_movemask_epi8(same))} << (k * 32);
        }
        return all;
    }
    ADAMANT_SIMD static u32 same_words(std::byte const* a, std::byte const* b, std::size_t byte)
    {
        return _mm256_cmpeq_epi16(_mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(a + byte)),
                                  _mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(b + byte)));
    }
    ADAMANT_SIMD static u32 same_floats(std::byte const* a, std::byte const* b, std::size_t byte)
    {
        return _mm256_cmpeq_epi32(_mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(a + byte)),
                                  _mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(b + byte)));
    }
    struct halves { // a: of the first two vectors, b: of the last two
        __m256i a, b;
    };
    ADAMANT_SIMD static halves saturated(u32 const (&x)[vectors])
    {
        return {_mm256_packs_epi32(x[0], x[1]), _mm256_packs_epi32(x[2], x[3])};
    }
    ADAMANT_SIMD static halves set_halves(std::uint16_t x)
    {
        __m256i const all = _mm256_set1_epi16(static_cast<short>(x));
        return {all, all};
    }
    ADAMANT_SIMD static halves plus(halves x, halves y)
    {
        return {_mm256_add_epi16(x.a, y.a), _mm256_add_epi16(x.b, y.b)};
    }
    ADAMANT_SIMD static halves excess(halves x, halves most)
    {
        return {_mm256_subs_epu16(x.a, most.a), _mm256_subs_epu16(x.b, most.b)};
    }
    template <int Count>
    ADAMANT_SIMD static halves shifted(halves x)
    {
        return {_mm256_slli_epi16(x.a, Count), _mm256_slli_epi16(x.b, Count)};
    }
    ADAMANT_SIMD static halves either(halves x, halves y) { return {x.a | y.a, x.b | y.b}; }
    ADAMANT_SIMD static bool any(halves x) { return !_mm256_testz_si256(x.a | x.b, x.a | x.b); }
    // In each run of eight halves, the first four are of the first vector of a pair.
    ADAMANT_SIMD static unsigned nonzero_vectors(__m256i x)
    {
        auto const zeros = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi16(x, _mm256_setzero_si256())));
        return ((zeros & 0x00ff00ffu) != 0x00ff00ffu ? 1u : 0u) | ((zeros & 0xff00ff00u) != 0xff00ff00u ? 2u : 0u);
    }
    ADAMANT_SIMD static unsigned nonzero_vectors(halves x) { return nonzero_vectors(x.a) | nonzero_vectors(x.b) << 2; }
    ADAMANT_SIMD static halves select_vectors(halves x, unsigned which)
    {
        auto const mask = [&](unsigned vector) { return (which >> vector & 1) != 0 ? -1LL : 0; };
        return {x.a & _mm256_set_epi64x(mask(1), mask(0), mask(1), mask(0)),
                x.b & _mm256_set_epi64x(mask(3), mask(2), mask(3), mask(2))};
    }
    static constexpr std::size_t code_offset(std::size_t vector) { return vector / 2 * 32 + vector % 2 * 8; }
    ADAMANT_SIMD static void store_halves(std::byte* address, halves x)
    {
        _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(address), x.a);
        _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(address + 32), x.b);
    }
    ADAMANT_SIMD static void stream_halves(std::byte* address, halves x)
    {
        stream(address, x.a);
        stream(address + 32, x.b);
    }
    ADAMANT_SIMD static void load_halves(std::byte const* address, u32 (&x)[vectors])
    {
        for (std::size_t k = 0; k < vectors; k += 2) {
            u32 const both = _mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(address + k * 16));
            x[k] = _mm256_unpacklo_epi16(both, _mm256_setzero_si256());
            x[k + 1] = _mm256_unpackhi_epi16(both, _mm256_setzero_si256());
        }
    }

    // See detail/kernels/vec128_codes.hpp.
    using words = __m256i;
    using pair_of_u32 = kernel::pair_of_u32;
    ADAMANT_SIMD static f32 load_signed_bytes(std::byte const* address)
    {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<__m128i_u const*>(address))));
    }
    ADAMANT_SIMD static f32 load_unsigned_bytes(std::byte const* address)
    {
        return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<__m128i_u const*>(address))));
    }
    ADAMANT_SIMD static u32 rounded(f32 x) { return _mm256_cvtps_epi32(x); }
    ADAMANT_SIMD static pair_of_u32 largest(u32 a, u32 b)
    {
        u32 const both = max(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        __m128i const four = _mm_max_epu32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        return pair_of_u32(static_cast<std::uint64_t>(_mm_cvtsi128_si64(_mm_max_epu32(four, _mm_srli_si128(four, 8)))));
    }
    ADAMANT_SIMD static u32 hidden(std::uint32_t x)
    {
        u32 all = set(x);
        asm("" : "+x"(all));
        return all;
    }
    ADAMANT_SIMD static u32 subtract_halves(u32 a, u32 b) { return _mm256_subs_epu16(a, b); }
    ADAMANT_SIMD static words pack_signed(u32 a, u32 b) { return _mm256_packs_epi32(a, b); }
    ADAMANT_SIMD static words pack_unsigned(u32 a, u32 b) { return _mm256_packus_epi32(a, b); }
    ADAMANT_SIMD static words set_words(std::uint16_t x) { return _mm256_set1_epi16(static_cast<short>(x)); }
    ADAMANT_SIMD static words plus_words(words x, words y) { return _mm256_add_epi16(x, y); }
    ADAMANT_SIMD static words plus_saturated(words x, words y) { return _mm256_adds_epu16(x, y); }
    ADAMANT_SIMD static words magnitude(words x) { return _mm256_abs_epi16(x); }
    ADAMANT_SIMD static words signs(words x) { return _mm256_srai_epi16(x, 15); }
    ADAMANT_SIMD static words lower_byte(words x) { return x & set_words(0xff); }
    ADAMANT_SIMD static words upper_byte(words x) { return _mm256_srli_epi16(x, 8); }
    ADAMANT_SIMD static words upper_byte_signed(words x) { return _mm256_srai_epi16(x, 8); }
    ADAMANT_SIMD static words words_above(words x, std::uint16_t bound)
    {
        return _mm256_cmpgt_epi16(x, set_words(bound));
    }
    ADAMANT_SIMD static words upper_byte_signed(words x, words kept) { return upper_byte_signed(x) & kept; }
    // Packing splits the words of each vector into two runs; restores the order.
    ADAMANT_SIMD static void store_in_order(std::byte* address, __m256i bytes)
    {
        _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(address),
                            _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    }
    ADAMANT_SIMD static void store_bytes_signed(std::byte* address, words const (&x)[4])
    {
        store_in_order(address, _mm256_packs_epi16(x[0], x[1]));
        store_in_order(address + 32, _mm256_packs_epi16(x[2], x[3]));
    }
    ADAMANT_SIMD static void store_bytes_above_zero(std::byte* address, words const (&x)[4])
    {
        __m256i const one = _mm256_set1_epi8(1);
        store_in_order(address, _mm256_max_epu8(_mm256_packus_epi16(x[0], x[1]), one));
        store_in_order(address + 32, _mm256_max_epu8(_mm256_packus_epi16(x[2], x[3]), one));
    }

    ADAMANT_SIMD static void load_evens_odds(std::byte const* address, f32& evens, f32& odds)
    {
        u32 const words = _mm256_loadu_si256(reinterpret_cast<__m256i_u const*>(address));
        evens = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
        odds = _mm256_castsi256_ps(_mm256_and_si256(words, set(0xffff0000u)));
    }
    ADAMANT_SIMD static void in_order(f32& evens, f32& odds)
    {
        f32 const low = _mm256_unpacklo_ps(evens, odds);
        f32 const high = _mm256_unpackhi_ps(evens, odds);
        evens = _mm256_permute2f128_ps(low, high, 0x20);
        odds = _mm256_permute2f128_ps(low, high, 0x31);
    }
};
