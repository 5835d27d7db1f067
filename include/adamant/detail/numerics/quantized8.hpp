// SPDX-License-Identifier: Apache-2.0
// 8-bit moments: the encoding, the decoding and their rounding.
//
// Moments are quantized in groups of 64 elements, counted from the start of the parameter. A group has one float32
// scale: 1.0625 bytes per element. Every operation is exact or a correctly rounded IEEE operation, never an estimate,
// so all processors return the same bits.
//
// Curves. A code q is an integer. Its value z(q) lies on a piecewise linear curve, which shifting the bits of float(q)
// by one or two produces. With bits(q) for the bits of float(q),
//     exp_avg     z(q) = float((bits(q) - 0x23400000) << 1), with q's sign; 0 to +-127; z(0) = 0
//     exp_avg_sq  z(q) = float((bits(q) - 0x33a00000) << 2); 1 to 255
// which is close to 2^-14 q^2 and 2^-32 q^4. Each octave of z has as many codes, up to 32, as half an octave of q
// (exp_avg) or a quarter of one (exp_avg_sq). z(127) = z(255) = 63/64 is the largest value.
//
// Decoding. x = z(q) * scale, rounded once. With a scale of encode_group() the product is exact, because z has at most
// 6 bits and the scale has 18.
//
// Encoding. The scale is 64/63 of the largest magnitude, rounded to 18 bits, and at least 2^-80, which keeps every
// second moment far above 2^-126. It is zero for a group of zeros, and for a group of first moments below 2^-80. For
// each element z = |x| * (1 / min(scale, 2^125))      y = float((bits(z) >> shift) + offset), to the nearest integer,
// in 256ths and y is rounded to a code: to nearest, or stochastically, where the probability to round up is the number
// of 256ths by which y exceeds a code. On a linear piece of the curve stochastic rounding has the mean of exact
// arithmetic. With rounding to nearest, a moment that moves by less than half a code does not change: a second moment
// that moves by 0.1% a step where codes are at least 1.5% apart, or a first moment of code 9 or less that moves by 10%.
// Encoding a decoded group returns the same scale and codes with either rounding: z differs from z(q) by less than
// 2^-22 of it, and y by less than one half.
//   - A second moment has at least code 1. If it were rounded to zero under a nonzero first moment, the update would be
//     exp_avg / eps.
//   - Stochastic rounding turns a first moment below code 1 into zero. Otherwise it could rise to code 1 from far below
//     while its second moment falls, and the update would be much too large.
//   - If the scale is zero, codes are clamped to +-127, because z reaches 1 if the group's largest first moment is just
//     below 2^-80.
//   - With scales of 2^125 and more, elements above a quarter of the largest float have the largest code.
//   - If an element or the scale is infinite or NaN, the scale is NaN: one such element turns its whole group into
//     NaNs, which the next steps see.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <adamant/dtype.hpp>
#include <adamant/detail/numerics/rounding.hpp>

ADAMANT_BEGIN_INLINE_NAMESPACE

// Parameters of the encoding that differ between the two moments.
struct code_curve {
    unsigned shift;
    std::uint32_t decode_offset; // see the top of this file
    std::uint32_t encode_offset; // decode_offset for codes in 256ths
    std::int32_t least, most;    // range of codes
    unsigned random_shift;       // selects the byte of an element's random half
    std::uint32_t zero_below;    // a group whose largest magnitude has smaller bits is encoded as zeros
};
inline constexpr std::uint32_t least_scale_bits = 0x17800000u; // 2^-80
inline constexpr code_curve exp_avg_curve = {1, 0x23400000u, 0x27400000u, 0, 127, 0, least_scale_bits};
inline constexpr code_curve exp_avg_sq_curve = {2, 0x33a00000u, 0x37a00000u, 1, 255, 8, float_min_normal_bits + 1};

inline constexpr std::uint32_t largest_divisor_bits = 0x7e000000u; // 2^125
inline constexpr float scale_over_largest = 0x1.041042p+0f;        // 64/63

// Whether codes of first moments must be clamped to +-127, because the scale is zero and z may exceed z(127).
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr bool exp_avg_codes_overflow(std::uint32_t largest) noexcept
{
    constexpr std::uint32_t overflow_bits = 0x177c0000u; // 63/64 of 2^-80
    return largest - overflow_bits < least_scale_bits - overflow_bits;
}

// The scale of a group whose largest magnitude has these bits.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr float scale_of_group(code_curve const& curve,
                                                                   std::uint32_t largest) noexcept
{
    if (largest < curve.zero_below)
        return 0.0f;
    float const wide = std::bit_cast<float>(largest) * scale_over_largest;
    std::uint32_t const bits = (std::bit_cast<std::uint32_t>(wide) + 0x20u) & ~0x3fu;
    if (largest >= float_infinity_bits || bits >= float_infinity_bits)
        return std::bit_cast<float>(canonical_nan_bits);
    return std::bit_cast<float>(bits < least_scale_bits ? least_scale_bits : bits);
}
// The factor that encoding multiplies elements by. The scale must not be a NaN.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr float inverse_of_scale(float scale) noexcept
{
    std::uint32_t bits = std::bit_cast<std::uint32_t>(scale);
    bits = bits < least_scale_bits ? least_scale_bits : bits > largest_divisor_bits ? largest_divisor_bits : bits;
    return 1.0f / std::bit_cast<float>(bits);
}

[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr float decoded_exp_avg(std::uint8_t code, float scale) noexcept
{
    int const q = static_cast<std::int8_t>(code);
    float const abs = static_cast<float>(q < 0 ? -q : q);
    std::uint32_t const z =
        q == 0 ? 0 : (std::bit_cast<std::uint32_t>(abs) - exp_avg_curve.decode_offset) << exp_avg_curve.shift;
    return std::bit_cast<float>(z | (q < 0 ? float_sign_bit : 0)) * scale;
}
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr float decoded_exp_avg_sq(std::uint8_t code, float scale) noexcept
{
    std::uint32_t const q = std::bit_cast<std::uint32_t>(static_cast<float>(code));
    return std::bit_cast<float>((q - exp_avg_sq_curve.decode_offset) << exp_avg_sq_curve.shift) * scale;
}

// The code of an element, as stored. inverse: inverse_of_scale(). random: random_half(), used only if stochastic.
[[nodiscard]] ADAMANT_ALWAYS_INLINE std::uint8_t encoded(code_curve const& curve, float x, float inverse,
                                                         bool stochastic, std::uint16_t random) noexcept
{
    std::uint32_t const x_bits = std::bit_cast<std::uint32_t>(x);
    float const z = std::bit_cast<float>(x_bits & float_abs_mask) * inverse;
    float const y = std::bit_cast<float>((std::bit_cast<std::uint32_t>(z) >> curve.shift) + curve.encode_offset);
    // To the nearest integer, ties to even: y is below 2^17.
    auto const in_256ths =
        static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(y + 0x1p23f) - std::bit_cast<std::uint32_t>(0x1p23f));
    bool const negative = curve.least == 0 && (x_bits & float_sign_bit) != 0;
    std::int32_t const signed_256ths = negative ? -in_256ths : in_256ths;
    // Rounding to nearest sends ties of negative numbers away from zero, too. The shift below rounds down, so the
    // random byte of a negative number acts relative to the code below it.
    std::int32_t const offset = stochastic ? random >> curve.random_shift & 0xff : negative ? 127 : 128;
    if (stochastic && curve.least == 0 && in_256ths < 256)
        return 0;
    std::int32_t const q = (signed_256ths + offset) >> 8;
    std::int32_t const least = curve.least == 0 ? -curve.most : curve.least;
    return static_cast<std::uint8_t>(q < least ? least : q > curve.most ? curve.most : q);
}

// Encodes one group of n elements (1 to 64) and fills it up with codes of zeros. Stochastic rounding of element i uses
// random_half(line, i). The caller's floating-point mode must round to nearest; it may flush small results or keep
// them.
inline void encode_group(code_curve const& curve, float const* x, std::size_t n, bool stochastic,
                         rounding_line const& line, std::byte* group) noexcept
{
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t const abs = std::bit_cast<std::uint32_t>(x[i]) & float_abs_mask;
        largest = largest < abs ? abs : largest;
    }
    float const scale = scale_of_group(curve, largest);
    bool const is_invalid = is_nan(scale);
    float const inverse = is_invalid ? 0.0f : inverse_of_scale(scale);
    for (std::size_t i = 0; i < quantized_group_elems; ++i)
        group[i] = static_cast<std::byte>(
            encoded(curve, i < n && !is_invalid ? x[i] : 0.0f, inverse, stochastic, random_half(line, i)));
    store_unaligned(group + quantized_group_elems, scale);
}
// Decode all 64 elements of a group.
inline void decode_exp_avg(std::byte const* group, float* x) noexcept
{
    float const scale = load_unaligned<float>(group + quantized_group_elems);
    for (std::size_t i = 0; i < quantized_group_elems; ++i)
        x[i] = decoded_exp_avg(static_cast<std::uint8_t>(group[i]), scale);
}
inline void decode_exp_avg_sq(std::byte const* group, float* x) noexcept
{
    float const scale = load_unaligned<float>(group + quantized_group_elems);
    for (std::size_t i = 0; i < quantized_group_elems; ++i)
        x[i] = decoded_exp_avg_sq(static_cast<std::uint8_t>(group[i]), scale);
}

ADAMANT_END_INLINE_NAMESPACE
