// SPDX-License-Identifier: Apache-2.0
// Counts and collects changed weights. detail/kernels/collect_kernels.hpp includes it once per instruction set, and
// once more with ADAMANT_VBMI2 inside a region for AVX512_VBMI2.

// Words that are searched together, and the most of them that are searched in one step.
inline constexpr std::size_t words_together = 256;
inline constexpr std::size_t step_words = 8;

// Numbers of the bits of words `begin` to `end`, counted from word 0. They are found and not yet in the caller's
// arrays.
struct bit_buffer {
    static constexpr std::size_t full = 1024; // and up to one step more
    alignas(64) std::uint32_t bits[full + step_words * changed_word_elems];
    std::size_t count = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
};

#if defined(ADAMANT_VBMI2)

// See count_changes_function.
inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    detail::vzeroupper_scope const at_end;
    __m512i counts = _mm512_setzero_si512();
    for (std::size_t w = 0; w < n; w += 8) {
        auto const mask = static_cast<__mmask8>(n - w < 8 ? (1u << (n - w)) - 1 : 0xffu);
        counts = _mm512_add_epi64(counts, _mm512_popcnt_epi64(_mm512_maskz_loadu_epi64(mask, words + w)));
    }
    return static_cast<std::size_t>(_mm512_reduce_add_epi64(counts));
}

// The numbers 0 to 63.
ADAMANT_SIMD __m512i byte_numbers()
{
    return _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928, 0x2726252423222120,
                            0x1f1e1d1c1b1a1918, 0x1716151413121110, 0x0f0e0d0c0b0a0908, 0x0706050403020100);
}
// The first 16 bytes as 32-bit numbers.
ADAMANT_SIMD __m512i widen_bytes(__m512i x)
{
    return _mm512_cvtepu8_epi32(_mm512_castsi512_si128(x));
}

// Writes the numbers of the bits that are set in a word, and returns where they end. first: the number of its lowest
// bit. Has no branch for up to 16 bits.
ADAMANT_SIMD std::uint32_t* append_bits(std::uint32_t* target, std::uint64_t word, std::uint32_t first)
{
    __m512i const firsts = _mm512_set1_epi32(static_cast<int>(first));
    __m512i const set = _mm512_maskz_compress_epi8(word, byte_numbers());
    auto const count = static_cast<std::size_t>(__builtin_popcountll(word));
    _mm512_storeu_si512(target, _mm512_add_epi32(firsts, widen_bytes(set)));
    if (count <= 16) [[likely]]
        return target + count;
    _mm512_storeu_si512(target + 16, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 1))));
    if (count <= 32)
        return target + count;
    _mm512_storeu_si512(target + 32, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 2))));
    _mm512_storeu_si512(target + 48, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 3))));
    return target + count;
}

// Finds the bits of `n` words from number `begin` on. A step searches 8 of them.
class word_search {
public:
    static constexpr bool prefetches_words = false; // collect() prefetches the value of each bit

    ADAMANT_SIMD word_search(std::uint64_t const* words, std::size_t begin, std::size_t n)
        : words_(words), begin_(begin), n_(n)
    {
    }
    [[nodiscard]] ADAMANT_SIMD std::size_t steps() const { return (n_ + step_words - 1) / step_words; }
    // Spreads `values` copies evenly over the steps: returns the number for each step.
    [[nodiscard]] ADAMANT_SIMD std::size_t copies_a_step(std::size_t values) const
    {
        return steps() == 0 ? 0 : values / steps();
    }
    // Index of the first word of a step.
    [[nodiscard]] ADAMANT_SIMD std::size_t word(std::size_t step) const { return begin_ + step * step_words; }
    // Writes the numbers of the bits that a step finds, and returns where they end.
    [[nodiscard]] ADAMANT_SIMD std::uint32_t* append(std::size_t step, std::uint32_t* target) const
    {
        std::size_t const left = n_ - step * step_words;
        std::uint64_t const* const source = words_ + word(step);
        auto const first = static_cast<std::uint32_t>(word(step) * changed_word_elems);
        auto const valid = static_cast<__mmask8>(left < step_words ? (1u << left) - 1 : 0xffu);
        __m512i const bytes = _mm512_maskz_loadu_epi64(valid, source);
        __m512i const minus_one = _mm512_sub_epi8(bytes, _mm512_set1_epi8(1)); // if one bit is set, all bits below it
        __mmask64 const nonzero = _mm512_test_epi8_mask(bytes, bytes);
        auto const count = static_cast<std::size_t>(__builtin_popcountll(nonzero));
        // At a percent of changes, no byte has two bits in six of seven steps.
        if (_mm512_mask_test_epi8_mask(nonzero, bytes, minus_one) == 0 && count <= 16) [[likely]] {
            __m512i const below = _mm512_popcnt_epi32(widen_bytes(_mm512_maskz_compress_epi8(nonzero, minus_one)));
            __m512i const byte = widen_bytes(_mm512_maskz_compress_epi8(nonzero, byte_numbers()));
            __m512i const bit = _mm512_add_epi32(_mm512_slli_epi32(byte, 3), below);
            _mm512_storeu_si512(target, _mm512_add_epi32(bit, _mm512_set1_epi32(static_cast<int>(first))));
            return target + count;
        }
        for (std::size_t w = 0; w < step_words && w < left; ++w)
            target = append_bits(target, source[w], first + static_cast<std::uint32_t>(w * changed_word_elems));
        return target;
    }
    ADAMANT_SIMD static void prefetch_word(std::size_t, std::byte const*, std::size_t) {}

private:
    std::uint64_t const* words_;
    std::size_t begin_;
    std::size_t n_;
};

#else

// See count_changes_function.
inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i)
        count += static_cast<std::size_t>(__builtin_popcountll(words[i]));
    return count;
}

// Writes the numbers of the bits that are set in a word, which is not zero, and returns where they end. first: the
// number of its lowest bit. Writes four numbers first, however many there are: at a few bits a word, branches that
// depend on how many there are would be mispredicted.
ADAMANT_SIMD std::uint32_t* append_bits(std::uint32_t* target, std::uint64_t word, std::uint32_t first)
{
    std::uint32_t* const end = target + __builtin_popcountll(word);
    std::uint64_t left = word;
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < 4; ++k) {
        target[k] = first + static_cast<std::uint32_t>(__builtin_ctzll(left | std::uint64_t{1} << 63));
        left &= left - 1;
    }
    for (target += 4; left != 0; ++target, left &= left - 1)
        *target = first + static_cast<std::uint32_t>(__builtin_ctzll(left));
    return end;
}

// Finds the bits of `n` words from number `begin` on. A step searches one that is not zero: at a percent of changes
// half of them are zero, and a branch on that would be mispredicted.
class word_search {
public:
    static constexpr bool prefetches_words = true;

    ADAMANT_SIMD word_search(std::uint64_t const* words, std::size_t begin, std::size_t n) : words_(words)
    {
        for (std::size_t w = begin; w < begin + n; ++w) {
            nonzero_[steps_] = static_cast<std::uint32_t>(w);
            steps_ += words[w] != 0 ? 1 : 0;
        }
    }
    [[nodiscard]] ADAMANT_SIMD std::size_t steps() const { return steps_; }
    // Number of values to copy in each step. It is a constant, because after the branches of append_bits() the end of
    // a loop would be mispredicted.
    [[nodiscard]] ADAMANT_SIMD static constexpr std::size_t copies_a_step(std::size_t) { return 2; }
    // Index of the word of a step.
    [[nodiscard]] ADAMANT_SIMD std::size_t word(std::size_t step) const { return nonzero_[step]; }
    // Writes the numbers of the bits that a step finds, and returns where they end.
    [[nodiscard]] ADAMANT_SIMD std::uint32_t* append(std::size_t step, std::uint32_t* target) const
    {
        return append_bits(target, words_[word(step)], static_cast<std::uint32_t>(word(step) * changed_word_elems));
    }
    // Prefetches the cache lines of the first and the last weight that a step finds.
    ADAMANT_SIMD void prefetch_word(std::size_t step, std::byte const* weights, std::size_t weight_bytes) const
    {
        std::uint64_t const bits = words_[word(step)];
        std::byte const* const values = weights + word(step) * changed_word_elems * weight_bytes;
        __builtin_prefetch(values + static_cast<std::size_t>(__builtin_ctzll(bits)) * weight_bytes);
        __builtin_prefetch(values + static_cast<std::size_t>(63 ^ __builtin_clzll(bits)) * weight_bytes);
    }

private:
    std::uint64_t const* words_;
    std::uint32_t nonzero_[words_together];
    std::size_t steps_ = 0;
};

#endif

// The arrays of one call.
struct collected_arrays {
    std::uint64_t* words;
    std::size_t prefetch_words;
    std::byte const* weights;
    std::uint64_t first_index;
    bool clear;
    changed_weights_out out;
};

// Value: an unsigned integer of a weight's size, or void if no values are collected.
template <class Value>
ADAMANT_SIMD void prefetch_value(collected_arrays const& a, bit_buffer const& buffer, std::size_t i)
{
    if constexpr (!std::is_void_v<Value> && !word_search::prefetches_words)
        __builtin_prefetch(a.weights + std::size_t{buffer.bits[i]} * sizeof(Value));
}
template <class Value>
ADAMANT_SIMD void copy_value(collected_arrays const& a, bit_buffer const& buffer, std::size_t i)
{
    if constexpr (!std::is_void_v<Value>)
        __builtin_memcpy(a.out.values + i * sizeof(Value), a.weights + std::size_t{buffer.bits[i]} * sizeof(Value),
                         sizeof(Value));
}
// Copies the bits of a buffer to the caller's arrays, which have room for them, and the values from number `copied` on.
// Then empties the buffer and clears its words.
template <class Value>
ADAMANT_SIMD void flush_bits(collected_arrays& a, bit_buffer& buffer, std::size_t copied)
{
    if (a.out.indices != nullptr) {
        for (std::size_t i = 0; i < buffer.count; ++i)
            a.out.indices[i] = static_cast<std::uint32_t>(a.first_index) + buffer.bits[i];
        a.out.indices += buffer.count;
    } else {
        for (std::size_t i = 0; i < buffer.count; ++i)
            a.out.wide_indices[i] = a.first_index + buffer.bits[i];
        a.out.wide_indices += buffer.count;
    }
    if constexpr (!std::is_void_v<Value>) {
        for (std::size_t i = copied; i < buffer.count; ++i)
            copy_value<Value>(a, buffer, i);
        a.out.values += buffer.count * sizeof(Value);
    }
    if (a.clear)
        for (std::size_t w = buffer.begin; w < buffer.end; ++w)
            a.words[w] = 0;
    a.out.room -= buffer.count;
    buffer.count = 0;
}
template <class Value>
ADAMANT_SIMD bool collect(collected_arrays& a, std::size_t n)
{
    // Most of the time is waiting for the cache lines of the values. So that cache misses are always under way, one
    // loop finds bits, prefetches the lines of those found before, and copies the values whose lines were prefetched
    // earlier still, the same number in each step.
    bit_buffer buffers[3];
    bit_buffer* search_buffer = &buffers[0];
    bit_buffer* prefetch_buffer = &buffers[1];
    bit_buffer* copy_buffer = &buffers[2];
    for (std::size_t begin = 0; begin < n || prefetch_buffer->count + copy_buffer->count != 0;) {
        std::size_t const together = n - begin < words_together ? n - begin : words_together;
        word_search const search(a.words, begin, together);
        if (copy_buffer->count > a.out.room)
            return false;
        // The processor itself prefetches lines that are all read.
        bool const prefetches =
            !std::is_void_v<Value> && prefetch_buffer->count < 16 * (prefetch_buffer->end - prefetch_buffer->begin);
        std::size_t const interleaved = !prefetches                                   ? 0
                                        : prefetch_buffer->count < copy_buffer->count ? prefetch_buffer->count
                                                                                      : copy_buffer->count;
        std::size_t const copies_a_step = search.copies_a_step(interleaved);
        std::uint32_t* target = search_buffer->bits;
        std::uint32_t const* const limit = target + bit_buffer::full;
        std::size_t step = 0;
        auto const find = [&] {
            __builtin_prefetch(a.words + search.word(step) + a.prefetch_words);
            if constexpr (!std::is_void_v<Value>)
                search.prefetch_word(step, a.weights, sizeof(Value));
            target = search.append(step, target);
            ++step;
        };
        std::size_t copied = 0;
        while (step < search.steps() && target < limit && interleaved - copied >= copies_a_step && copies_a_step != 0) {
            find();
            for (std::size_t const end = copied + copies_a_step; copied < end; ++copied) {
                prefetch_value<Value>(a, *prefetch_buffer, copied);
                copy_value<Value>(a, *copy_buffer, copied);
            }
        }
        while (step < search.steps() && target < limit)
            find();
        for (std::size_t i = prefetches ? copied : prefetch_buffer->count; i < prefetch_buffer->count; ++i)
            prefetch_value<Value>(a, *prefetch_buffer, i);
        search_buffer->count = static_cast<std::size_t>(target - search_buffer->bits);
        search_buffer->begin = begin;
        begin = step < search.steps() ? search.word(step) : begin + together;
        search_buffer->end = begin;
        flush_bits<Value>(a, *copy_buffer, copied);
        bit_buffer* const empty = copy_buffer;
        copy_buffer = prefetch_buffer;
        prefetch_buffer = search_buffer;
        search_buffer = empty;
    }
    return true;
}
// See collect_changes_function. n: at most 2^26 words, whose bits have 32-bit numbers.
inline bool collect_changes(std::uint64_t* words, std::size_t n, std::size_t prefetch_words, std::byte const* weights,
                            std::size_t weight_bytes, std::uint64_t first_index, bool clear,
                            changed_weights_out& out) noexcept
{
    detail::vzeroupper_scope const at_end;
    collected_arrays arrays{words, prefetch_words, weights, first_index, clear, out};
    bool const fits = out.values == nullptr                   ? collect<void>(arrays, n)
                      : weight_bytes == sizeof(std::uint16_t) ? collect<std::uint16_t>(arrays, n)
                                                              : collect<std::uint32_t>(arrays, n);
    out = arrays.out;
    return fits;
}
