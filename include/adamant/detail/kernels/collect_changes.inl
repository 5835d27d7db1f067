// SPDX-License-Identifier: Apache-2.0
// Counts and collects changed weights. detail/kernels/collect_kernels.hpp includes it once per instruction set, and once more
// with ADAMANT_VBMI2 inside a region for AVX512_VBMI2.

// Numbers of the bits of words `begin` to `end`, counted from word 0. They are found and not yet in the caller's arrays.
struct bit_buffer {
    static constexpr std::size_t full = 1024; // and up to one word more
    alignas(64) std::uint32_t bits[full + changed_word_elems];
    std::size_t count = 0;
    std::size_t begin = 0;
    std::size_t end = 0;
};

// Words that are searched together: a multiple of 8.
inline constexpr std::size_t words_together = 256;

#if defined(ADAMANT_VBMI2)

// See count_changes_function.
inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    __m512i counts = _mm512_setzero_si512();
    for (std::size_t w = 0; w < n; w += 8) {
        auto const mask = static_cast<__mmask8>(n - w < 8 ? (1u << (n - w)) - 1 : 0xffu);
        counts = _mm512_add_epi64(counts, _mm512_popcnt_epi64(_mm512_maskz_loadu_epi64(mask, words + w)));
    }
    return static_cast<std::size_t>(_mm512_reduce_add_epi64(counts));
}

// Writes the numbers of the bits that are set in a word, which is not zero, and returns where they end. first: the
// number of its lowest bit. Has no branch for up to 16 bits.
ADAMANT_SIMD std::uint32_t* append_bits(std::uint32_t* target, std::uint64_t word, std::uint32_t first)
{
    __m512i const all =
        _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928, 0x2726252423222120,
                         0x1f1e1d1c1b1a1918, 0x1716151413121110, 0x0f0e0d0c0b0a0908, 0x0706050403020100);
    __m512i const firsts = _mm512_set1_epi32(static_cast<int>(first));
    __m512i const set = _mm512_maskz_compress_epi8(word, all);
    auto const count = static_cast<std::size_t>(__builtin_popcountll(word));
    _mm512_storeu_si512(target, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(set))));
    if (count <= 16) [[likely]]
        return target + count;
    _mm512_storeu_si512(target + 16, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 1))));
    if (count <= 32)
        return target + count;
    _mm512_storeu_si512(target + 32, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 2))));
    _mm512_storeu_si512(target + 48, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 3))));
    return target + count;
}
// Lists the numbers, from `first` on, of up to words_together words that are not zero. Returns how many there are.
ADAMANT_SIMD std::size_t list_words(std::uint64_t const* words, std::size_t n, std::uint32_t first,
                                    std::uint32_t* numbers)
{
    std::size_t count = 0;
    __m256i next =
        _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    for (std::size_t w = 0; w < n; w += 8) {
        auto const mask = static_cast<__mmask8>(n - w < 8 ? (1u << (n - w)) - 1 : 0xffu);
        __m512i const eight = _mm512_maskz_loadu_epi64(mask, words + w);
        __mmask8 const nonzero = _mm512_test_epi64_mask(eight, eight);
        _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(numbers + count), _mm256_maskz_compress_epi32(nonzero, next));
        count += static_cast<std::size_t>(__builtin_popcount(nonzero));
        next = _mm256_add_epi32(next, _mm256_set1_epi32(8));
    }
    return count;
}

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
// Lists the numbers, from `first` on, of up to words_together words that are not zero. Returns how many there are.
ADAMANT_SIMD std::size_t list_words(std::uint64_t const* words, std::size_t n, std::uint32_t first,
                                    std::uint32_t* numbers)
{
    std::size_t count = 0;
    for (std::size_t w = 0; w < n; ++w) {
        numbers[count] = first + static_cast<std::uint32_t>(w);
        count += words[w] != 0 ? 1 : 0;
    }
    return count;
}

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

// Appends the bits of word w, and prefetches the cache lines of its first and its last weight. Value: an unsigned
// integer of a weight's size, or void if no values are collected.
template <class Value>
ADAMANT_SIMD std::uint32_t* find_bits(collected_arrays const& a, std::size_t w, std::uint32_t* target)
{
    std::uint64_t const word = a.words[w];
    auto const first = static_cast<std::uint32_t>(w * changed_word_elems);
    if constexpr (!std::is_void_v<Value>) {
        std::byte const* const own = a.weights + std::size_t{first} * sizeof(Value);
        __builtin_prefetch(own + static_cast<std::size_t>(__builtin_ctzll(word)) * sizeof(Value));
        __builtin_prefetch(own + static_cast<std::size_t>(63 ^ __builtin_clzll(word)) * sizeof(Value));
    }
    return append_bits(target, word, first);
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
    // Most of the time is waiting for the cache lines of the values. They are prefetched when a word's bits are found.
    // Those of the words before are copied meanwhile, two for each word, so that cache misses are always under way.
    bit_buffer buffers[2];
    bit_buffer* found = &buffers[0];
    bit_buffer* waiting = &buffers[1];
    // At a few percent of changes, half of the words have no bits, and a branch on that is mispredicted. So words with
    // bits are listed first.
    std::uint32_t nonzero[words_together + 8];
    for (std::size_t begin = 0; begin < n;) {
        std::size_t const together = n - begin < words_together ? n - begin : words_together;
        for (std::size_t w = 0; w < together; w += 8)
            __builtin_prefetch(a.words + begin + a.prefetch_words + w);
        std::size_t const count = list_words(a.words + begin, together, static_cast<std::uint32_t>(begin), nonzero);
        std::uint32_t* target = found->bits;
        std::uint32_t const* const limit = target + bit_buffer::full;
        if (waiting->count > a.out.room)
            return false;
        std::size_t const pairs = std::is_void_v<Value> ? 0 : waiting->count / 2;
        std::size_t const both = pairs < count ? pairs : count;
        std::size_t k = 0;
        for (; k < both && target < limit; ++k) {
            target = find_bits<Value>(a, nonzero[k], target);
            copy_value<Value>(a, *waiting, 2 * k);
            copy_value<Value>(a, *waiting, 2 * k + 1);
        }
        std::size_t const copied = 2 * k;
        for (; k < count && target < limit; ++k)
            target = find_bits<Value>(a, nonzero[k], target);
        found->count = static_cast<std::size_t>(target - found->bits);
        found->begin = begin;
        begin = k < count ? nonzero[k] : begin + together;
        found->end = begin;
        flush_bits<Value>(a, *waiting, copied);
        bit_buffer* const empty = waiting;
        waiting = found;
        found = empty;
    }
    if (waiting->count > a.out.room)
        return false;
    flush_bits<Value>(a, *waiting, 0);
    return true;
}
// See collect_changes_function. n: at most 2^26 words, whose bits have 32-bit numbers.
inline bool collect_changes(std::uint64_t* words, std::size_t n, std::size_t prefetch_words, std::byte const* weights,
                            std::size_t weight_bytes, std::uint64_t first_index, bool clear,
                            changed_weights_out& out) noexcept
{
    collected_arrays arrays{words, prefetch_words, weights, first_index, clear, out};
    bool const fits = out.values == nullptr                     ? collect<void>(arrays, n)
                      : weight_bytes == sizeof(std::uint16_t) ? collect<std::uint16_t>(arrays, n)
                                                              : collect<std::uint32_t>(arrays, n);
    out = arrays.out;
    return fits;
}
