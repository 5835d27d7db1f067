// SPDX-License-Identifier: Apache-2.0
// Marks the elements in which two arrays of published weights differ: for rollbacks, and for steps over copies of small
// shards. Steps mark changes themselves, see detail/kernels/stores.inl. detail/kernels/step_kernels.inl includes it,
// for one instruction set of each architecture.

// Rounds changed_word_elems floats as a step does.
template <class T>
ADAMANT_SIMD void round_word(std::byte const* source, std::byte* target)
{
    for (std::size_t i = 0; i < changed_word_elems; i += simd::lanes)
        store_carefully<T>(target + i * sizeof(T),
                           simd::flush(simd::template load<float>(source + i * sizeof(float)), float_min_normal_bits));
}
// The word of changes of changed_word_elems elements. T: std::uint16_t or std::uint32_t to compare bits, or a type to
// which floats are rounded first.
template <class T>
std::uint64_t word_of_changes(std::byte const* before, std::byte const* after) noexcept
{
    if constexpr (std::is_integral_v<T>) {
        return simd::template differing<T>(before, after);
    } else {
        alignas(64) std::byte rounded[2][changed_word_elems * sizeof(T)];
        round_word<T>(before, rounded[0]);
        round_word<T>(after, rounded[1]);
        return simd::template differing<std::uint16_t>(rounded[0], rounded[1]);
    }
}

// mark_changes() for elements of `size` bytes, whose words word_of() returns.
[[gnu::noinline]] inline void mark_words(std::uint64_t (*word_of)(std::byte const*, std::byte const*) noexcept,
                                         std::size_t size, std::byte const* before, std::byte const* after,
                                         std::size_t n, std::uint64_t* changed) noexcept
{
    detail::vzeroupper_scope const at_end;
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
