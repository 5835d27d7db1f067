// SPDX-License-Identifier: Apache-2.0
// Transposes a matrix in tiles, with the compiler's 16-byte vectors, which every processor has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/detail/kernels/simd_macros.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

// Vectors of 2-byte or 4-byte elements. low() and high() interleave the lower or upper halves of two vectors.
template <class Bits>
struct shuffle;
template <>
struct shuffle<std::uint16_t> {
    using vector [[gnu::vector_size(16)]] = std::uint16_t;
    static constexpr std::size_t lanes = 8;
    ADAMANT_SIMD static vector low(vector a, vector b)
    {
        return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    }
    ADAMANT_SIMD static vector high(vector a, vector b)
    {
        return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    }
};
template <>
struct shuffle<std::uint32_t> {
    using vector [[gnu::vector_size(16)]] = std::uint32_t;
    static constexpr std::size_t lanes = 4;
    ADAMANT_SIMD static vector low(vector a, vector b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
    ADAMANT_SIMD static vector high(vector a, vector b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
};

// Transposes a square tile whose number of rows is the number of lanes of a vector.
template <class Bits>
ADAMANT_SIMD void transpose_square(std::byte const* source, std::size_t source_pitch, std::byte* target,
                                   std::size_t target_pitch)
{
    using shuffles = shuffle<Bits>;
    typename shuffles::vector rows[shuffles::lanes], transposed[shuffles::lanes];
    ADAMANT_UNROLL
    for (std::size_t i = 0; i < shuffles::lanes; ++i)
        std::memcpy(&rows[i], source + i * source_pitch, sizeof rows[i]);
    // log2(lanes) perfect shuffles transpose the tile.
    ADAMANT_UNROLL
    for (std::size_t round = shuffles::lanes; round > 1; round /= 2) {
        ADAMANT_UNROLL
        for (std::size_t i = 0; i < shuffles::lanes / 2; ++i) {
            transposed[2 * i] = shuffles::low(rows[i], rows[i + shuffles::lanes / 2]);
            transposed[2 * i + 1] = shuffles::high(rows[i], rows[i + shuffles::lanes / 2]);
        }
        ADAMANT_UNROLL
        for (std::size_t i = 0; i < shuffles::lanes; ++i)
            rows[i] = transposed[i];
    }
    ADAMANT_UNROLL
    for (std::size_t i = 0; i < shuffles::lanes; ++i)
        std::memcpy(target + i * target_pitch, &rows[i], sizeof rows[i]);
}

// Transposes `rows` rows of `columns` elements: element c of row r becomes element r of row c. Pitches are in bytes.
// The arrays must not overlap. Meant for tiles that stay in the first-level cache. Prefetches rows_ahead rows ahead,
// because the rows are too far apart for hardware prefetchers.
template <class Bits>
void transpose(std::byte const* source, std::size_t source_pitch, std::byte* target, std::size_t target_pitch,
               std::size_t rows, std::size_t columns, std::size_t rows_ahead) noexcept
{
    constexpr std::size_t lanes = shuffle<Bits>::lanes;
    std::size_t const whole_rows = rows / lanes * lanes;
    std::size_t const whole_columns = columns / lanes * lanes;
    for (std::size_t r = 0; r < whole_rows; r += lanes) {
        for (std::size_t i = 0; i < lanes; ++i)
            for (std::size_t byte = 0; byte < columns * sizeof(Bits); byte += 64)
                __builtin_prefetch(source + (r + i + rows_ahead) * source_pitch + byte);
        for (std::size_t c = 0; c < whole_columns; c += lanes)
            transpose_square<Bits>(source + r * source_pitch + c * sizeof(Bits), source_pitch,
                                   target + c * target_pitch + r * sizeof(Bits), target_pitch);
    }
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
            std::memcpy(target + c * target_pitch + r * sizeof(Bits), source + r * source_pitch + c * sizeof(Bits),
                        sizeof(Bits));
}

} // namespace kernel
ADAMANT_END_NAMESPACE
