// SPDX-License-Identifier: Apache-2.0
// Marks the elements whose published weight a step has changed. detail/kernels/targets.hpp includes it once per
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
// another number then: arithmetic rounding to bfloat16 carries into the exponent or the sign.
template <class T>
ADAMANT_SIMD bool round_word_quickly(std::byte const* source, std::byte* target, bool native_bfloat16)
{
    simd::u32 largest = simd::set(0u);
    for (std::size_t i = 0; i < changed_word_elems; i += 2 * simd::lanes) {
        simd::f32 const a = simd::template load<float>(source + i * sizeof(float));
        simd::f32 const b = simd::template load<float>(source + (i + simd::lanes) * sizeof(float));
        simd::template store_pair<T, false, false>(target + i * sizeof(T), a, b, native_bfloat16);
        if (std::is_same_v<T, bfloat16> && !native_bfloat16)
            largest = simd::max(largest, simd::max(simd::abs_bits(a), simd::abs_bits(b)));
    }
    return !std::is_same_v<T, bfloat16> || native_bfloat16 ||
           !simd::any_sign(simd::sub(simd::set(float_infinity_bits), largest));
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
ADAMANT_SIMD std::uint64_t word_of_changes(std::byte const* before, std::byte const* after, bool native_bfloat16)
{
    if constexpr (std::is_integral_v<T>) {
        return simd::template differing<T>(before, after);
    } else {
        alignas(64) std::byte rounded[2][changed_word_elems * sizeof(T)];
        bool const was_plain = round_word_quickly<T>(before, rounded[0], native_bfloat16);
        bool const is_plain = round_word_quickly<T>(after, rounded[1], native_bfloat16);
        std::uint64_t const quick = simd::template differing<std::uint16_t>(rounded[0], rounded[1]);
        if (was_plain && is_plain &&
            (quick & simd::outside(rounded[1], plain_words<T>::low, plain_words<T>::high)) == 0) [[likely]]
            return quick;
        round_word_carefully<T>(before, rounded[0]);
        round_word_carefully<T>(after, rounded[1]);
        return simd::template differing<std::uint16_t>(rounded[0], rounded[1]);
    }
}
template <class T>
ADAMANT_SIMD void mark_all_changes(std::byte const* before, std::byte const* after, std::size_t n,
                                   std::uint64_t* changed, bool native_bfloat16)
{
    constexpr std::size_t size = std::is_integral_v<T> ? sizeof(T) : sizeof(float);
    for (; n >= changed_word_elems; n -= changed_word_elems, ++changed) {
        if (std::uint64_t const word = word_of_changes<T>(before, after, native_bfloat16); word != 0)
            *changed |= word;
        before += changed_word_elems * size;
        after += changed_word_elems * size;
    }
    if (n == 0)
        return;
    alignas(64) std::byte last[2][changed_word_elems * size] = {};
    copy_few(last[0], before, n * size);
    copy_few(last[1], after, n * size);
    if (std::uint64_t const word = word_of_changes<T>(last[0], last[1], native_bfloat16); word != 0)
        *changed |= word;
}

inline std::uint64_t few_changes(array_types const& types, std::byte* before, std::byte* after, std::size_t n) noexcept
{
    std::size_t const size = types.param == dtype::float32 ? sizeof(float) : sizeof(std::uint16_t);
    __builtin_memset(before + n * size, 0, (changed_word_elems - n) * size);
    __builtin_memset(after + n * size, 0, (changed_word_elems - n) * size);
    if (types.param != dtype::float32)
        return word_of_changes<std::uint16_t>(before, after, false);
    switch (types.weight_out) {
    case dtype::bfloat16: return word_of_changes<bfloat16>(before, after, false);
    case dtype::float16: return word_of_changes<float16>(before, after, false);
    default: return word_of_changes<std::uint32_t>(before, after, false);
    }
}

// See mark_changes_function.
template <class T>
void mark_changes(std::byte const* before, std::byte const* after, std::size_t n, std::uint64_t* changed) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    mark_all_changes<T>(before, after, n, changed, false);
}
// The same with the instructions of AVX512_BF16.
[[maybe_unused]] inline void mark_changes_natively(std::byte const* before, std::byte const* after, std::size_t n,
                                                   std::uint64_t* changed) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    mark_all_changes<bfloat16>(before, after, n, changed, true);
}

// See count_changes_function.
inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i)
        count += static_cast<std::size_t>(__builtin_popcountll(words[i]));
    return count;
}

// Bits of a few words as numbers, before they go to the caller's arrays.
struct bit_buffer {
    static constexpr std::size_t full = 256;
    std::size_t count = 0;
    std::uint32_t bits[full + 64]; // counted from the first word
};
// Appends the bits of a word, not zero, whose first bit has this number. Writes four numbers first, however many there
// are: at a few bits a word, branches that depend on their number are mispredicted.
ADAMANT_SIMD void append_bits(bit_buffer& buffer, std::uint64_t word, std::uint32_t first)
{
    auto const set = static_cast<std::size_t>(__builtin_popcountll(word));
    std::uint32_t* target = buffer.bits + buffer.count;
    buffer.count += set;
    std::uint64_t left = word;
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < 4; ++k) {
        target[k] = first + static_cast<std::uint32_t>(__builtin_ctzll(left | std::uint64_t{1} << 63));
        left &= left - 1;
    }
    for (target += 4; left != 0; ++target, left &= left - 1)
        *target = first + static_cast<std::uint32_t>(__builtin_ctzll(left));
}
template <class Bits>
ADAMANT_SIMD void copy_values(bit_buffer const& buffer, std::byte const* weights, std::byte* values)
{
    for (std::size_t i = 0; i < buffer.count; ++i)
        __builtin_memcpy(values + i * sizeof(Bits), weights + std::size_t{buffer.bits[i]} * sizeof(Bits), sizeof(Bits));
}
ADAMANT_SIMD void flush_bits(bit_buffer& buffer, std::byte const* weights, std::size_t weight_bytes,
                             std::uint64_t first_index, changed_weights_out& out)
{
    if (out.indices != nullptr) {
        for (std::size_t i = 0; i < buffer.count; ++i)
            out.indices[i] = static_cast<std::uint32_t>(first_index) + buffer.bits[i];
        out.indices += buffer.count;
    } else {
        for (std::size_t i = 0; i < buffer.count; ++i)
            out.wide_indices[i] = first_index + buffer.bits[i];
        out.wide_indices += buffer.count;
    }
    if (out.values != nullptr) {
        if (weight_bytes == sizeof(std::uint16_t))
            copy_values<std::uint16_t>(buffer, weights, out.values);
        else
            copy_values<std::uint32_t>(buffer, weights, out.values);
        out.values += buffer.count * weight_bytes;
    }
    buffer.count = 0;
}
// See collect_changes_function. n: at most 2^26 words, whose bits have 32-bit numbers.
inline void collect_changes(std::uint64_t* words, std::size_t n, std::byte const* weights, std::size_t weight_bytes,
                            std::uint64_t first_index, bool clear, changed_weights_out const& target) noexcept
{
    changed_weights_out out = target;
    bit_buffer buffer;
    // At a few percent of changes, half of the words have no bits, and a branch on that is mispredicted. So words with
    // bits are listed first.
    constexpr std::size_t words_together = 512;
    std::uint32_t nonzero[words_together];
    for (std::size_t begin = 0; begin < n; begin += words_together) {
        std::size_t const end = n - begin < words_together ? n : begin + words_together;
        std::size_t count = 0;
        for (std::size_t w = begin; w < end; ++w) {
            nonzero[count] = static_cast<std::uint32_t>(w);
            count += words[w] != 0 ? 1 : 0;
        }
        for (std::size_t k = 0; k < count; ++k) {
            std::size_t const w = nonzero[k];
            std::uint64_t const word = words[w];
            auto const first = static_cast<std::uint32_t>(w * changed_word_elems);
            // flush_bits() copies the values later. Most of the time is waiting for their cache lines.
            if (out.values != nullptr) {
                std::byte const* const own = weights + std::size_t{first} * weight_bytes;
                __builtin_prefetch(own + static_cast<std::size_t>(__builtin_ctzll(word)) * weight_bytes);
                __builtin_prefetch(own + static_cast<std::size_t>(63 - __builtin_clzll(word)) * weight_bytes);
            }
            append_bits(buffer, word, first);
            if (clear)
                words[w] = 0;
            if (buffer.count >= bit_buffer::full)
                flush_bits(buffer, weights, weight_bytes, first_index, out);
        }
    }
    flush_bits(buffer, weights, weight_bytes, first_index, out);
}
