// SPDX-License-Identifier: Apache-2.0
// Marks the elements whose published weight a step has changed. detail/kernels/step_kernels.inl includes it once per
// instruction set, after detail/kernels/fused_step.inl.
//
// The fast paths mark changes when they store params, see detail/kernels/stores.inl. The functions here compare arrays:
// for the careful path, and where the caller has kept the weights of before.

// Numbers of T whose rounding needs no care, as magnitudes of 16-bit words: no NaN, and above what is flushed to zero.
template <class T>
struct plain_words;
template <>
struct plain_words<bfloat16> {
    static constexpr std::uint16_t low = 0x0081, high = 0x7f80;
};
template <>
struct plain_words<float16> {
    static constexpr std::uint16_t low = 0x0000, high = 0x7c00;
};

// Rounds changed_word_elems floats without regard to NaNs and to what is flushed. Returns false if a NaN may look like
// another number then: rounding to bfloat16 carries into the exponent or the sign.
template <class T>
ADAMANT_SIMD bool round_word_quickly(std::byte const* source, std::byte* target)
{
    simd::u32 largest = simd::set(0u);
    for (std::size_t i = 0; i < changed_word_elems; i += 2 * simd::lanes) {
        simd::f32 const a = simd::template load<float>(source + i * sizeof(float));
        simd::f32 const b = simd::template load<float>(source + (i + simd::lanes) * sizeof(float));
        store_pair<T, false, false>(target + i * sizeof(T), a, b, false);
        if (std::is_same_v<T, bfloat16>)
            largest = simd::max(largest, simd::max(simd::abs_bits(a), simd::abs_bits(b)));
    }
    return !std::is_same_v<T, bfloat16> || !simd::any_sign(simd::sub(simd::set(float_infinity_bits), largest));
}
template <class T>
[[gnu::noinline]] void round_word_carefully(std::byte const* source, std::byte* target) noexcept
{
    for (std::size_t i = 0; i < changed_word_elems; i += simd::lanes)
        store_carefully<T>(target + i * sizeof(T),
                           simd::flush(simd::template load<float>(source + i * sizeof(float)), float_min_normal_bits));
}
// The word of changes of changed_word_elems elements. T: std::uint16_t or std::uint32_t to compare bits, or a type to
// which floats are rounded first.
//
// Quick rounding differs from reference::stored() only where the result is a NaN, or so small that it is flushed. Equal
// quick results have equal stored ones, so only differing words need care, and only where the new one is such a result:
// if both are NaNs, or both are flushed, the stored ones may be equal.
template <class T>
[[gnu::noinline]] std::uint64_t word_of_changes(std::byte const* before, std::byte const* after) noexcept
{
    if constexpr (std::is_integral_v<T>) {
        return simd::template differing<T>(before, after);
    } else {
        alignas(64) std::byte rounded[2][changed_word_elems * sizeof(T)];
        bool const was_plain = round_word_quickly<T>(before, rounded[0]);
        bool const is_plain = round_word_quickly<T>(after, rounded[1]);
        std::uint64_t const quick = simd::template differing<std::uint16_t>(rounded[0], rounded[1]);
        if (was_plain && is_plain &&
            (quick & simd::outside(rounded[1], plain_words<T>::low, plain_words<T>::high)) == 0) [[likely]]
            return quick;
        round_word_carefully<T>(before, rounded[0]);
        round_word_carefully<T>(after, rounded[1]);
        return simd::template differing<std::uint16_t>(rounded[0], rounded[1]);
    }
}

// mark_changes() for elements of `size` bytes, whose words word_of() returns.
[[gnu::noinline]] inline void mark_words(std::uint64_t (*word_of)(std::byte const*, std::byte const*) noexcept,
                                         std::size_t size, std::byte const* before, std::byte const* after,
                                         std::size_t n, std::uint64_t* changed) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    alignas(64) std::byte last[2][changed_word_elems * sizeof(float)];
    for (std::size_t const word_bytes = changed_word_elems * size; n != 0; ++changed) {
        if (n < changed_word_elems) {
            __builtin_memset(last, 0, sizeof last);
            copy_few(last[0], before, n * size);
            copy_few(last[1], after, n * size);
            before = last[0];
            after = last[1];
            n = changed_word_elems;
        }
        if (std::uint64_t const word = word_of(before, after); word != 0)
            *changed |= word;
        before += word_bytes;
        after += word_bytes;
        n -= changed_word_elems;
    }
}
// See mark_changes_function.
template <class T>
void mark_changes(std::byte const* before, std::byte const* after, std::size_t n, std::uint64_t* changed) noexcept
{
    mark_words(word_of_changes<T>, std::is_integral_v<T> ? sizeof(T) : sizeof(float), before, after, n, changed);
}
