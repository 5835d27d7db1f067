// SPDX-License-Identifier: Apache-2.0
// What a column of a gradient counts for: the definition. Scores are sums of integers, so they have the same bits for
// any order of additions, any cut of the rows and any number of ranks.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <adamant/dtype.hpp>

ADAMANT_BEGIN_NAMESPACE

// The accumulated gradient over the rows of a column.
enum class column_score : std::uint8_t {
    magnitude, // |g|
    square,    // g squared
};

// A gradient's magnitudes are scaled by a power of two and rounded to integers of column_score_bits bits at most.
inline constexpr int column_score_bits = 22;
// Adding this to a number from 0 to 2^22 rounds it to an integer, which is then in the lowest bits.
inline constexpr float column_score_zero = 0x1p23f;
inline constexpr std::uint32_t column_score_zero_bits = 0x4b000000u;
// Integers of this many rows sum to less than 2^32.
inline constexpr std::size_t column_score_rows = 512;

// What turns gradients into integers, and these back.
struct column_score_scale {
    float scale = 1; // of a gradient, before it is squared
    double unit = 1; // of the integers: a score is their sum times this
};

// For gradients whose finite values are at most `largest` in magnitude (finite, at least 0). An integer is at most
// 2^22; with `magnitude` those of gradients below 2^-23 of the largest are zero, with `square` those below 2^-11.5 of
// it. Where the largest is below 2^-102 scores lose bits, as what is flushed to zero must count as zero. Pure.
[[nodiscard]] inline column_score_scale column_score_scale_for(float largest, column_score kind) noexcept
{
    int exponent = 0;
    (void)std::frexp(flush(largest), &exponent); // below 2^exponent
    bool const squares = kind == column_score::square;
    int const wanted = (squares ? column_score_bits / 2 : column_score_bits) - exponent;
    int const shift = wanted > 124 ? 124 : wanted;
    return {std::ldexp(1.0f, shift), std::ldexp(1.0, squares ? -2 * shift : -shift)};
}

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE
namespace reference {

// The integer that one gradient adds to its column: rounded to nearest even. One that is infinite or NaN adds nothing.
[[nodiscard]] inline std::uint32_t column_score_of(float grad, float scale, bool squares) noexcept
{
    float const g = std::fabs(flush(grad));
    if (!is_finite(g))
        return 0;
    float const scaled = flush(g * scale);
    float const rounded = squares ? std::fma(scaled, scaled, column_score_zero) : std::fma(g, scale, column_score_zero);
    return std::bit_cast<std::uint32_t>(rounded) - column_score_zero_bits;
}

} // namespace reference
ADAMANT_END_INLINE_NAMESPACE
