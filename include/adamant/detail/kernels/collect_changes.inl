// SPDX-License-Identifier: Apache-2.0
// Counts and collects changed weights. detail/kernels/targets.hpp includes it once per instruction set, and once more
// with ADAMANT_VBMI2 inside a region for AVX512_VBMI2.

// See count_changes_function.
inline std::size_t count_changes(std::uint64_t const* words, std::size_t n) noexcept
{
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i)
        count += static_cast<std::size_t>(__builtin_popcountll(words[i]));
    return count;
}

// Numbers of bits, counted from the first word, before they go to the caller's arrays.
struct bit_buffer {
    static constexpr std::size_t full = 1024;
    std::size_t count = 0;
    std::uint32_t bits[full + changed_word_elems];
};

// Words that are searched together: a multiple of 8.
inline constexpr std::size_t words_together = 256;

#if defined(ADAMANT_VBMI2)

// Appends the bits of a word, not zero, whose first bit has this number: without a branch for up to 16 of them.
ADAMANT_SIMD void append_bits(bit_buffer& buffer, std::uint64_t word, std::uint32_t first)
{
    __m512i const all =
        _mm512_set_epi64(0x3f3e3d3c3b3a3938, 0x3736353433323130, 0x2f2e2d2c2b2a2928, 0x2726252423222120,
                         0x1f1e1d1c1b1a1918, 0x1716151413121110, 0x0f0e0d0c0b0a0908, 0x0706050403020100);
    __m512i const firsts = _mm512_set1_epi32(static_cast<int>(first));
    __m512i const set = _mm512_maskz_compress_epi8(word, all);
    std::uint32_t* const target = buffer.bits + buffer.count;
    auto const count = static_cast<std::size_t>(__builtin_popcountll(word));
    buffer.count += count;
    _mm512_storeu_si512(target, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_castsi512_si128(set))));
    if (count <= 16) [[likely]]
        return;
    _mm512_storeu_si512(target + 16, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 1))));
    if (count <= 32)
        return;
    _mm512_storeu_si512(target + 32, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 2))));
    _mm512_storeu_si512(target + 48, _mm512_add_epi32(firsts, _mm512_cvtepu8_epi32(_mm512_extracti32x4_epi32(set, 3))));
}
// Lists the numbers, from `first` on, of up to words_together words that are not zero. Returns how many there are.
ADAMANT_SIMD std::size_t list_words(std::uint64_t const* words, std::size_t n, std::uint32_t first,
                                    std::uint32_t* numbers)
{
    std::size_t count = 0;
    __m256i next =
        _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(first)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    for (std::size_t w = 0; w < n; w += 8) {
        auto const here = static_cast<__mmask8>(n - w < 8 ? (1u << (n - w)) - 1 : 0xffu);
        __m512i const eight = _mm512_maskz_loadu_epi64(here, words + w);
        __mmask8 const nonzero = _mm512_test_epi64_mask(eight, eight);
        _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(numbers + count), _mm256_maskz_compress_epi32(nonzero, next));
        count += static_cast<std::size_t>(__builtin_popcount(nonzero));
        next = _mm256_add_epi32(next, _mm256_set1_epi32(8));
    }
    return count;
}

#else

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
    // Most of the time is waiting for the cache lines of the values. They are prefetched when a word's bits are found,
    // and copied when those of the next words have been found, too.
    bit_buffer buffers[2];
    bit_buffer* found = &buffers[0];
    bit_buffer* waiting = &buffers[1];
    // At a few percent of changes, half of the words have no bits, and a branch on that is mispredicted. So words with
    // bits are listed first.
    std::uint32_t nonzero[words_together + 8];
    for (std::size_t begin = 0; begin < n; begin += words_together) {
        std::size_t const together = n - begin < words_together ? n - begin : words_together;
        std::size_t const count = list_words(words + begin, together, static_cast<std::uint32_t>(begin), nonzero);
        for (std::size_t k = 0; k < count; ++k) {
            std::size_t const w = nonzero[k];
            std::uint64_t const word = words[w];
            auto const first = static_cast<std::uint32_t>(w * changed_word_elems);
            if (out.values != nullptr) {
                std::byte const* const own = weights + std::size_t{first} * weight_bytes;
                __builtin_prefetch(own + static_cast<std::size_t>(__builtin_ctzll(word)) * weight_bytes);
                __builtin_prefetch(own + static_cast<std::size_t>(63 - __builtin_clzll(word)) * weight_bytes);
            }
            append_bits(*found, word, first);
            if (clear)
                words[w] = 0;
            if (found->count >= bit_buffer::full) {
                flush_bits(*waiting, weights, weight_bytes, first_index, out);
                flush_bits(*found, weights, weight_bytes, first_index, out);
            }
        }
        flush_bits(*waiting, weights, weight_bytes, first_index, out);
        bit_buffer* const empty = waiting;
        waiting = found;
        found = empty;
    }
    flush_bits(*waiting, weights, weight_bytes, first_index, out);
}
