// SPDX-License-Identifier: Apache-2.0
// How the fast paths store what the next step reads: rounded to nearest, or to bfloat16 by chance. Included by
// kernel/fused_step.inl, once per instruction set.

// The random numbers of numerics/rounding.hpp for an array of T, of the pair of vectors that is stored next. There are
// none where T is not rounded by chance.
template <class T>
struct random_vectors {
    template <bool Interleaved>
    ADAMANT_SIMD void begin(bool, rounding_line const&, std::size_t)
    {
    }
};
template <>
struct random_vectors<bfloat16> {
    bool by_chance;
    simd::u32 first;     // of the pair: x, for each element
    simd::u32 to_second; // what x differs by
    simd::u32 to_next;   // pair

    template <bool Interleaved>
    ADAMANT_SIMD void begin(bool is_by_chance, rounding_line const& line, std::size_t i)
    {
        by_chance = is_by_chance;
        constexpr bool alternate = Interleaved && simd::interleaves;
        alignas(64) std::uint32_t x[simd::lanes];
        for (std::size_t lane = 0; lane < simd::lanes; ++lane)
            x[lane] = line.from(i + lane * (alternate ? 2 : 1)).start;
        first = simd::bits(simd::template load<float>(reinterpret_cast<std::byte const*>(x)));
        to_second = simd::set(line.stride * std::uint32_t{alternate ? 1 : simd::lanes});
        to_next = simd::set(line.stride * std::uint32_t{2 * simd::lanes});
    }
};
// See random_half().
ADAMANT_SIMD simd::u32 random_halves(simd::u32 x, simd::u32 one = simd::set(1u),
                                     simd::u32 low_half = simd::set(0xffffu))
{
    simd::u32 const odd = simd::add(x, x) | one;
    return simd::template shift_right<16>(simd::mul(x, odd)) ^ (x & low_half);
}

// Two vectors of params.
template <class Param, bool Interleaved>
ADAMANT_SIMD void load_params(std::byte const* param, [[maybe_unused]] std::byte const* weight, simd::f32& a,
                              simd::f32& b)
{
    if constexpr (is_split<Param>) {
        simd::u32 low_a, low_b;
        simd::load_signed_halves(param, low_a, low_b);
        simd::template load_pair<bfloat16, false>(weight, a, b);
        a = simd::from_bits(simd::add(simd::bits(a), low_a));
        b = simd::from_bits(simd::add(simd::bits(b), low_b));
    } else {
        simd::template load_pair<Param, Interleaved>(param, a, b);
    }
}
// And back, of a fast path; see split_master().
ADAMANT_SIMD void store_split(std::byte* param, std::byte* weight, simd::f32 a, simd::f32 b)
{
    simd::u32 const half = simd::set(0x8000u);
    simd::store_lower_halves(param, simd::bits(a), simd::bits(b));
    simd::template store_upper_halves<false>(weight, simd::add(simd::bits(a), half), simd::add(simd::bits(b), half));
}

// Two vectors of results of a fast path, which are finite and below what could be rounded up to infinity.
template <class T, bool Interleaved, bool Ordinary>
ADAMANT_SIMD void store_rounded(std::byte* address, simd::f32 a, simd::f32 b, bool native_bfloat16,
                                [[maybe_unused]] random_vectors<T>& random)
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (random.by_chance) {
            simd::u32 const second = simd::add(random.first, random.to_second);
            simd::template store_upper_halves<Interleaved>(address,
                                                           simd::add(simd::bits(a), random_halves(random.first)),
                                                           simd::add(simd::bits(b), random_halves(second)));
            random.first = simd::add(random.first, random.to_next);
            return;
        }
    }
    simd::template store_pair<T, Interleaved, Ordinary>(address, a, b, native_bfloat16);
}

// A group of new params, and of weights.
template <class Param, class WeightOut, bool Interleaved, bool Ordinary, std::size_t Vectors>
ADAMANT_SIMD void store_params(step_pointers const& a, std::size_t i, simd::f32 const (&p)[Vectors], memory_access how,
                               [[maybe_unused]] random_vectors<Param>& random)
{
    constexpr std::size_t lanes = simd::lanes;
    std::byte* const param = a.param + i * sizeof(Param);
    if constexpr (is_split<Param>) {
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Vectors; k += 2)
            store_split(param + k * lanes * sizeof(Param), a.weight_out + (i + k * lanes) * sizeof(WeightOut), p[k],
                        p[k + 1]);
    } else {
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Vectors; k += 2)
            store_rounded<Param, Interleaved, Ordinary>(param + k * lanes * sizeof(Param), p[k], p[k + 1],
                                                        how.native_bfloat16, random);
    }
    if constexpr (!std::is_void_v<WeightOut> && !is_split<Param>) {
        std::byte* const out = a.weight_out + i * sizeof(WeightOut);
        if (how.stream) {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < Vectors; k += 2)
                simd::template stream_pair<WeightOut, Ordinary>(out + k * lanes * sizeof(WeightOut), p[k], p[k + 1],
                                                                how.native_bfloat16);
        } else {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < Vectors; k += 2)
                simd::template store_pair<WeightOut, Interleaved, Ordinary>(out + k * lanes * sizeof(WeightOut), p[k],
                                                                            p[k + 1], how.native_bfloat16);
        }
    }
}
