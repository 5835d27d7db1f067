// SPDX-License-Identifier: Apache-2.0
// How the fast paths store what the next step reads: rounded to nearest, or to bfloat16 stochastically. Included by
// detail/kernels/fused_step.inl, once per instruction set.

// A line of random numbers at the elements of a vector, see random_half(). Both x and 2 x + 1 grow from vector to
// vector by constants, which takes less than to make one of the other.
struct random_place {
    simd::u32 x, odd;

    ADAMANT_SIMD random_place() = default;
    // Elements i, i + every, i + 2 * every and so on.
    ADAMANT_SIMD random_place(rounding_line const& line, std::size_t i, std::size_t every)
    {
        alignas(64) std::uint32_t at[simd::lanes];
        for (std::size_t lane = 0; lane < simd::lanes; ++lane)
            at[lane] = line.from(i + lane * every).start;
        x = simd::bits(simd::template load<float>(reinterpret_cast<std::byte const*>(at)));
        odd = simd::add(simd::add(x, x), simd::set(1u));
    }
    // The offset of an element further on, for plus().
    ADAMANT_SIMD static random_place distance(rounding_line const& line, std::size_t by)
    {
        std::uint32_t const x = line.stride * static_cast<std::uint32_t>(by);
        random_place to;
        to.x = simd::set(x);
        to.odd = simd::set(2 * x);
        return to;
    }
    ADAMANT_SIMD random_place plus(random_place const& by) const
    {
        random_place to;
        to.x = simd::add(x, by.x);
        to.odd = simd::add(odd, by.odd);
        return to;
    }
    ADAMANT_SIMD simd::u32 halves(simd::u32 low_half = simd::set(0xffffu)) const
    {
        return simd::template shift_right<16>(simd::mul(x, odd)) ^ (x & low_half);
    }
};

// The random numbers for an array of T, of the pair of vectors that is stored next. There are none where T is not
// rounded stochastically.
template <class T>
struct random_vectors {
    template <bool Interleaved>
    ADAMANT_SIMD void begin(bool, rounding_line const&, std::size_t)
    {
    }
};
template <>
struct random_vectors<bfloat16> {
    bool stochastic;
    random_place first;     // vector of the pair
    random_place to_second; // the distance
    random_place to_next;   // pair

    template <bool Interleaved>
    ADAMANT_SIMD void begin(bool is_stochastic, rounding_line const& line, std::size_t i)
    {
        stochastic = is_stochastic;
        constexpr bool alternate = Interleaved && simd::interleaves;
        first = random_place(line, i, alternate ? 2 : 1);
        to_second = random_place::distance(line, alternate ? 1 : simd::lanes);
        to_next = random_place::distance(line, 2 * simd::lanes);
    }
};

// Two vectors of params.
template <class Param, bool Interleaved>
ADAMANT_SIMD void load_params(std::byte const* param, [[maybe_unused]] std::byte const* weight, simd::f32& a,
                              simd::f32& b)
{
    if constexpr (is_split<Param>) {
        simd::u32 low_a, low_b;
        simd::template load_signed_halves<Interleaved>(param, low_a, low_b);
        simd::template load_pair<bfloat16, Interleaved>(weight, a, b);
        a = simd::from_bits(simd::add(simd::bits(a), low_a));
        b = simd::from_bits(simd::add(simd::bits(b), low_b));
    } else {
        simd::template load_pair<Param, Interleaved>(param, a, b);
    }
}
// And back, of a fast path; see split_master().
template <bool Interleaved>
ADAMANT_SIMD void store_split(std::byte* param, std::byte* weight, simd::f32 a, simd::f32 b)
{
    simd::u32 const half = simd::set(0x8000u);
    simd::template store_lower_halves<Interleaved>(param, simd::bits(a), simd::bits(b));
    simd::template store_upper_halves<Interleaved>(weight, simd::add(simd::bits(a), half),
                                                   simd::add(simd::bits(b), half));
}

// Two vectors of results of a fast path, which are finite and below what could be rounded up to infinity.
template <class T, bool Interleaved, bool Ordinary>
ADAMANT_SIMD void store_rounded(std::byte* address, simd::f32 a, simd::f32 b, bool native_bfloat16,
                                [[maybe_unused]] random_vectors<T>& random)
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (random.stochastic) {
            random_place const second = random.first.plus(random.to_second);
            simd::template store_upper_halves<Interleaved>(address, simd::add(simd::bits(a), random.first.halves()),
                                                           simd::add(simd::bits(b), second.halves()));
            random.first = random.first.plus(random.to_next);
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
            store_split<Interleaved>(param + k * lanes * sizeof(Param),
                                     a.weight_out + (i + k * lanes) * sizeof(WeightOut), p[k], p[k + 1]);
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
