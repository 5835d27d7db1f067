// SPDX-License-Identifier: Apache-2.0
// Definition of the score of a gradient's column, by which ZenFlow selects columns.
//
// Scores are sums of integers, so they have the same bits for any order of additions, any partition of the rows and any
// number of ranks. Calls built-in functions, because <cmath> takes long to compile (see grad_squares.hpp).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include <adamant/dtype.hpp>

ADAMANT_BEGIN_NAMESPACE

/// The term that a score sums over the rows of a column.
enum class column_score : std::uint8_t {
    magnitude, ///< |g|
    square,    ///< g squared
};

// A gradient's magnitudes are scaled by a power of two and rounded to integers of column_score_bits bits at most.
inline constexpr int column_score_bits = 22;
// Adding this to a number from 0 to 2^22 rounds it to an integer and leaves that integer in the lowest bits.
inline constexpr float column_score_zero = 0x1p23f;
inline constexpr std::uint32_t column_score_zero_bits = 0x4b000000u;
/// The integers of this many rows sum to less than 2^32.
inline constexpr std::size_t column_score_rows = 512;

/// Factors that convert gradients to integers and sums of integers to scores.
struct column_score_scale {
    float scale = 1; ///< multiplies a gradient before it is squared
    double unit = 1; ///< a score is the sum of the integers times this
};

/// Returns the scale for gradients whose largest finite magnitude is at most `largest` (finite, at least 0). The
/// integers are at most 2^22. With `magnitude`, gradients below 2^-23 of the largest become zero; with `square`, those
/// below 2^-11.5 of it. If `largest` is below 2^-102, scores lose bits, because a gradient that is flushed to zero must
/// count as zero. Pure.
[[nodiscard]] inline column_score_scale column_score_scale_for(float largest, column_score kind) noexcept
{
    int exponent = 0;
    (void)__builtin_frexpf(flush(largest), &exponent); // below 2^exponent
    bool const squares = kind == column_score::square;
    int const unlimited_shift = (squares ? column_score_bits / 2 : column_score_bits) - exponent;
    int const shift = unlimited_shift > 124 ? 124 : unlimited_shift;
    return {__builtin_ldexpf(1.0f, shift), __builtin_ldexp(1.0, squares ? -2 * shift : -shift)};
}

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE
namespace reference {

/// The integer that one gradient adds to its column, rounded to nearest even; 0 for an infinity or a NaN.
[[nodiscard]] inline std::uint32_t column_score_of(float grad, float scale, bool squares) noexcept
{
    float const g = __builtin_fabsf(flush(grad));
    if (!is_finite(g))
        return 0;
    float const scaled = flush(g * scale);
    float const rounded =
        squares ? __builtin_fmaf(scaled, scaled, column_score_zero) : __builtin_fmaf(g, scale, column_score_zero);
    return std::bit_cast<std::uint32_t>(rounded) - column_score_zero_bits;
}

} // namespace reference
ADAMANT_END_INLINE_NAMESPACE
