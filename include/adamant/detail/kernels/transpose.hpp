// SPDX-License-Identifier: Apache-2.0
// A matrix by rows into one by columns, in tiles: with the compiler's vectors of 16 bytes, which every processor has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/detail/kernels/simd_macros.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

// Elements of two or four bytes, in vectors; and the halves of two vectors taken in turns.
template <class Bits>
struct turning;
template <>
struct turning<std::uint16_t> {
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
struct turning<std::uint32_t> {
    using vector [[gnu::vector_size(16)]] = std::uint32_t;
    static constexpr std::size_t lanes = 4;
    ADAMANT_SIMD static vector low(vector a, vector b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
    ADAMANT_SIMD static vector high(vector a, vector b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
};

// A square of as many rows as a vector has lanes.
template <class Bits>
ADAMANT_SIMD void transpose_square(std::byte const* from, std::size_t from_pitch, std::byte* to, std::size_t to_pitch)
{
    using of = turning<Bits>;
    typename of::vector rows[of::lanes], transposed[of::lanes];
    ADAMANT_UNROLL
    for (std::size_t i = 0; i < of::lanes; ++i)
        std::memcpy(&rows[i], from + i * from_pitch, sizeof rows[i]);
    ADAMANT_UNROLL
    for (std::size_t round = of::lanes; round > 1;
         round /= 2) { // each is a perfect shuffle; log2(lanes) of them are the transpose
        ADAMANT_UNROLL
        for (std::size_t i = 0; i < of::lanes / 2; ++i) {
            transposed[2 * i] = of::low(rows[i], rows[i + of::lanes / 2]);
            transposed[2 * i + 1] = of::high(rows[i], rows[i + of::lanes / 2]);
        }
        ADAMANT_UNROLL
        for (std::size_t i = 0; i < of::lanes; ++i)
            rows[i] = transposed[i];
    }
    ADAMANT_UNROLL
    for (std::size_t i = 0; i < of::lanes; ++i)
        std::memcpy(to + i * to_pitch, &rows[i], sizeof rows[i]);
}

// Element c of row r becomes element r of row c, of `rows` rows of `columns` elements. Pitches are in bytes. The arrays
// do not overlap. Meant for tiles that stay in the first cache. Asks for rows that far ahead, as no processor sees them
// come: they are too far from each other.
template <class Bits>
void transpose(std::byte const* from, std::size_t from_pitch, std::byte* to, std::size_t to_pitch, std::size_t rows,
               std::size_t columns, std::size_t rows_ahead) noexcept
{
    constexpr std::size_t lanes = turning<Bits>::lanes;
    std::size_t const whole_rows = rows / lanes * lanes;
    std::size_t const whole_columns = columns / lanes * lanes;
    for (std::size_t r = 0; r < whole_rows; r += lanes) {
        for (std::size_t i = 0; i < lanes; ++i)
            for (std::size_t line = 0; line < columns * sizeof(Bits); line += 64)
                __builtin_prefetch(from + (r + i + rows_ahead) * from_pitch + line);
        for (std::size_t c = 0; c < whole_columns; c += lanes)
            transpose_square<Bits>(from + r * from_pitch + c * sizeof(Bits), from_pitch,
                                   to + c * to_pitch + r * sizeof(Bits), to_pitch);
    }
    for (std::size_t r = 0; r < rows; ++r)
        for (std::size_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c)
            std::memcpy(to + c * to_pitch + r * sizeof(Bits), from + r * from_pitch + c * sizeof(Bits), sizeof(Bits));
}

} // namespace kernel
ADAMANT_END_NAMESPACE
