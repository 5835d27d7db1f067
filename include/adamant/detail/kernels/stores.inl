// SPDX-License-Identifier: Apache-2.0
// Stores of the fast paths, with rounding to nearest and stochastic rounding to bfloat16. Included by
// detail/kernels/fused_step.inl, once per instruction set.

// The state of a line of random numbers for the elements of a vector, see random_half(). From vector to vector, x and 2
// x + 1 both grow by constants. Keeping both takes less time than computing one from the other.
struct random_state {
    simd::u32 x, odd;

    ADAMANT_SIMD random_state() = default;
    // Elements i, i + every, i + 2 * every and so on.
    ADAMANT_SIMD random_state(rounding_line const& line, std::size_t i, std::size_t every)
    {
        alignas(64) std::uint32_t starts[simd::lanes];
        for (std::size_t lane = 0; lane < simd::lanes; ++lane)
            starts[lane] = line.from(i + lane * every).start;
        x = simd::bits(simd::template load<float>(reinterpret_cast<std::byte const*>(starts)));
        odd = simd::add(simd::add(x, x), simd::set(1u));
    }
    // The increment for plus() that advances by `elems` elements.
    ADAMANT_SIMD static random_state distance(rounding_line const& line, std::size_t elems)
    {
        std::uint32_t const step = line.stride * static_cast<std::uint32_t>(elems);
        random_state increment;
        increment.x = simd::set(step);
        increment.odd = simd::set(2 * step);
        return increment;
    }
    ADAMANT_SIMD random_state plus(random_state const& increment) const
    {
        random_state sum;
        sum.x = simd::add(x, increment.x);
        sum.odd = simd::add(odd, increment.odd);
        return sum;
    }
    ADAMANT_SIMD simd::u32 halves(simd::u32 low_half = simd::set(0xffffu)) const
    {
        return simd::template shift_right<16>(simd::mul(x, odd)) ^ (x & low_half);
    }
};

// The random numbers for the next pair of vectors of an array of T that is stored. Empty for types without stochastic
// rounding.
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
    random_state first;     // of the first vector of the pair
    random_state to_second; // increment to the second vector
    random_state to_next;   // increment to the next pair

    template <bool Interleaved>
    ADAMANT_SIMD void begin(bool is_stochastic, rounding_line const& line, std::size_t i)
    {
        stochastic = is_stochastic;
        constexpr bool alternate = Interleaved && simd::interleaves;
        first = random_state(line, i, alternate ? 2 : 1);
        to_second = random_state::distance(line, alternate ? 1 : simd::lanes);
        to_next = random_state::distance(line, 2 * simd::lanes);
    }
};

// Loads two vectors of params.
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
// The weights of two vectors of split masters from a fast path, as in memory; see split_master().
template <bool Interleaved>
ADAMANT_SIMD simd::u32 weights_of_split(simd::f32 a, simd::f32 b)
{
    simd::u32 const half = simd::set(0x8000u);
    return simd::template upper_halves<Interleaved>(simd::add(simd::bits(a), half), simd::add(simd::bits(b), half));
}
ADAMANT_SIMD void store_raw(std::byte* address, simd::u32 raw)
{
    simd::template store<float>(address, simd::from_bits(raw));
}
template <bool Interleaved>
ADAMANT_SIMD void store_split(std::byte* param, simd::f32 a, simd::f32 b)
{
    store_raw(param, simd::template lower_halves<Interleaved>(simd::bits(a), simd::bits(b)));
}
// Stores two vectors that are adjacent in memory, rounded to nearest even as simd::rounded_pair() does.
template <class T, bool Interleaved, bool Ordinary>
ADAMANT_SIMD void store_pair(std::byte* address, simd::f32 a, simd::f32 b, bool native_bfloat16)
{
    if constexpr (std::is_same_v<T, float>) {
        simd::template store<float>(address, a);
        simd::template store<float>(address + simd::lanes * sizeof(float), b);
    } else {
        store_raw(address, simd::template rounded_pair<T, Interleaved, Ordinary>(a, b, native_bfloat16));
    }
}

// Two vectors of results of a fast path, rounded to a 16-bit type. They are finite and too small to be rounded up to
// infinity.
template <class T, bool Interleaved, bool Ordinary>
ADAMANT_SIMD simd::u32 rounded_results(simd::f32 a, simd::f32 b, bool native_bfloat16,
                                       [[maybe_unused]] random_vectors<T>& random)
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (random.stochastic) {
            random_state const second = random.first.plus(random.to_second);
            simd::u32 const rounded = simd::template upper_halves<Interleaved>(
                simd::add(simd::bits(a), random.first.halves()), simd::add(simd::bits(b), second.halves()));
            random.first = random.first.plus(random.to_next);
            return rounded;
        }
    }
    return simd::template rounded_pair<T, Interleaved, Ordinary>(a, b, native_bfloat16);
}

// Stores two vectors of results of a fast path.
template <class T, bool Interleaved, bool Ordinary>
ADAMANT_SIMD void store_results(std::byte* address, simd::f32 a, simd::f32 b, bool native_bfloat16,
                                random_vectors<T>& random)
{
    if constexpr (std::is_same_v<T, float>)
        store_pair<T, Interleaved, Ordinary>(address, a, b, native_bfloat16);
    else
        store_raw(address, rounded_results<T, Interleaved, Ordinary>(a, b, native_bfloat16, random));
}

// Sets bits of changed weights; the lowest belongs to element i. count: number of elements.
ADAMANT_SIMD void set_changed(std::uint64_t* changed, std::size_t i, std::uint64_t bits, std::size_t count)
{
    std::uint64_t* const word = changed + i / changed_word_elems;
    std::size_t const shift = i % changed_word_elems;
    word[0] |= bits << shift;
    if (shift + count > changed_word_elems) [[unlikely]]
        word[1] |= bits >> (changed_word_elems - shift);
}
// The same for the bits of a group. It may begin at any element: after a line of random numbers, or where a cache line
// begins.
template <std::size_t Count>
ADAMANT_SIMD void set_group_changed(std::uint64_t* changed, std::size_t i, std::uint64_t bits)
{
    using part =
        std::conditional_t<Count == 32, std::uint32_t, std::conditional_t<Count == 16, std::uint16_t, std::uint8_t>>;
    std::byte* const address = reinterpret_cast<std::byte*>(changed) + i / 8; // words are little-endian
    if (Count == 8 * sizeof(part) && i % Count == 0) [[likely]] {
        part word;
        __builtin_memcpy(&word, address, sizeof word);
        word = static_cast<part>(word | bits);
        __builtin_memcpy(address, &word, sizeof word);
        return;
    }
    set_changed(changed, i, bits, Count);
}
// 16-bit weights of a group, as in memory.
template <std::size_t Vectors>
struct raw_weights {
    simd::u32 vectors[Vectors / 2];
};
// Weights in memory.
template <std::size_t Vectors>
ADAMANT_SIMD raw_weights<Vectors> load_raw(std::byte const* weights)
{
    raw_weights<Vectors> raw;
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors / 2; ++k)
        raw.vectors[k] = simd::bits(simd::template load<float>(weights + k * simd::lanes * sizeof(float)));
    return raw;
}
// Params in memory, rounded to 16-bit weights. On a fast path, they are results of the path, or zero.
template <class WeightOut, bool Ordinary, std::size_t Vectors>
ADAMANT_SIMD raw_weights<Vectors> load_rounded(std::byte const* params, bool native_bfloat16)
{
    raw_weights<Vectors> raw;
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2) {
        simd::f32 a = simd::template load<float>(params + k * simd::lanes * sizeof(float));
        simd::f32 b = simd::template load<float>(params + (k + 1) * simd::lanes * sizeof(float));
        if constexpr (!Ordinary) { // a zero may be a subnormal that the step has read as zero
            a = simd::flush(a, float_min_normal_bits);
            b = simd::flush(b, float_min_normal_bits);
        }
        raw.vectors[k / 2] = simd::template rounded_pair<WeightOut, false, Ordinary>(a, b, native_bfloat16);
    }
    return raw;
}
// The bits of a group's elements whose param in memory differs from the new one.
template <std::size_t Vectors>
ADAMANT_SIMD std::uint64_t differing_params(std::byte const* params, simd::f32 const (&p)[Vectors])
{
    simd::f32 old[Vectors];
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; ++k)
        old[k] = simd::template load<float>(params + k * simd::lanes * sizeof(float));
    return simd::differing_lanes(old, p);
}

// Whether a loop marks changed weights: known at compile time, or a branch in the loop.
enum class tracking { no, yes, either };
template <tracking Tracking>
ADAMANT_SIMD bool is_tracked(step_pointers const& a)
{
    if constexpr (Tracking == tracking::either)
        return __builtin_expect(a.changed != nullptr, false);
    return Tracking == tracking::yes;
}

// Stores new params and their weights. Before that, marks changed weights if they are tracked. Returns the bits that it
// marks; with tracking::yes the caller marks them, because it joins the bits of several calls first.
template <class Param, class WeightOut, bool Interleaved, bool Ordinary, tracking Tracking = tracking::either,
          std::size_t Vectors>
ADAMANT_SIMD std::uint64_t store_params(step_pointers const& a, std::size_t i, simd::f32 const (&p)[Vectors],
                                        memory_access const& access, [[maybe_unused]] random_vectors<Param>& random)
{
    constexpr bool has_floats = std::is_same_v<Param, float>;
    std::byte* const param = a.param + i * sizeof(Param);
    // The 16-bit weights that are published.
    std::byte* published = param;
    if constexpr (!std::is_void_v<WeightOut>)
        published = a.weight_out + i * sizeof(WeightOut);
    [[maybe_unused]] raw_weights<Vectors> weights;
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2) {
        if constexpr (is_split<Param>)
            weights.vectors[k / 2] = weights_of_split<Interleaved>(p[k], p[k + 1]);
        else if constexpr (!has_floats)
            weights.vectors[k / 2] =
                rounded_results<Param, Interleaved, Ordinary>(p[k], p[k + 1], access.native_bfloat16, random);
        else if constexpr (!std::is_void_v<WeightOut>)
            weights.vectors[k / 2] =
                simd::template rounded_pair<WeightOut, Interleaved, Ordinary>(p[k], p[k + 1], access.native_bfloat16);
    }
    std::uint64_t bits = 0;
    if (is_tracked<Tracking>(a)) {
        if constexpr (!has_floats)
            bits = simd::differing_words(load_raw<Vectors>(published).vectors, weights.vectors);
        else if constexpr (!std::is_void_v<WeightOut>)
            bits = simd::differing_words(
                load_rounded<WeightOut, Ordinary, Vectors>(param, access.native_bfloat16).vectors, weights.vectors);
        else
            bits = differing_params(param, p);
        if constexpr (is_split<Param>) // has the most arrays, and would wait for these bits
            __builtin_prefetch(reinterpret_cast<std::byte*>(a.changed) + i / 8 + 256, 1);
        if constexpr (Tracking != tracking::yes)
            set_group_changed<Vectors * simd::lanes>(a.changed, i, bits);
    }
    constexpr std::size_t pair_bytes = simd::lanes * sizeof(float); // of 16-bit weights
    if constexpr (!has_floats || !std::is_void_v<WeightOut>) {
        if (has_floats && access.stream) {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < Vectors / 2; ++k)
                simd::stream(published + k * pair_bytes, weights.vectors[k]);
        } else {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < Vectors / 2; ++k)
                store_raw(published + k * pair_bytes, weights.vectors[k]);
        }
    }
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; k += 2) {
        if constexpr (has_floats)
            store_pair<float, false, false>(param + k * simd::lanes * sizeof(float), p[k], p[k + 1], false);
        else if constexpr (is_split<Param>)
            store_split<Interleaved>(param + k / 2 * pair_bytes, p[k], p[k + 1]);
    }
    return bits;
}
