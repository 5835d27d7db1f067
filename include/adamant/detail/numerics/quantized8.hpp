// SPDX-License-Identifier: Apache-2.0
// Moments of 8 bits, in groups of 64 elements counted from the start of the parameter, with a float32 scale
// each: 1.0625 bytes an element. Every operation is exact or an IEEE one, and none is an estimate, so that all
// processors agree.
//
// Curves. Codes lie on curves of straight pieces, which halved and quartered bits make: q is a whole number, and
//     exp_avg     z(q) = float((bits(q) - 0x23400000) << 1), with q's sign; 0 to +-127; z(0) = 0
//     exp_avg_sq  z(q) = float((bits(q) - 0x33a00000) << 2); 1 to 255
// where bits(q) are those of float(q). That is close to 2^-14 q^2 and 2^-32 q^4: each octave of z has as many codes, up
// to 32, as one of the upper octaves of q or half one has. z(127) = z(255) = 63/64, the largest.
//
// Decoding. x = z(q) * scale, rounded once; for scales of encode_group() that is exact, as z has 6 bits at most and the
// scale 18.
//
// Encoding. The scale is 64/63 of the largest magnitude, rounded to 18 bits, and at least 2^-80: so every second moment
// is far above 2^-126. It is zero for a group of zeros, and of first moments below 2^-80. Then for each element
//     z = |x| * (1 / min(scale, 2^125))      y = float((bits(z) >> shift) + offset), to the nearest integer, in 256ths
// and y becomes a code: to nearest, or stochastically, which is up with as many 256ths as y is above a code. On a piece
// of the curve that has the mean of exact arithmetic. Under rounding to nearest what moves less than half a code stands
// still: a second moment, by 0.1% a step where codes are 2% apart or more, and a first moment of code 9 or less, by
// 10%. What was decoded has the same scale and codes again, by either: z differs from z(q) by less than 2^-22 of it,
// and y, by less than a half.
//   - A second moment has code 1 at least: one that was rounded to zero under a first one that was not would make an
//     update of exp_avg / eps.
//   - Under stochastic rounding a first moment below code 1 becomes zero: it would come up to code 1 from far below
//   while its second
//     moment may go down, and make much too large an update.
//   - If the scale is zero, codes are clamped to +-127: z reaches 1 where the group's largest first moment is just
//     below 2^-80.
//   - From scales of 2^125 on, what is above a quarter of the largest that float holds has the largest code.
//   - Where an element is infinite or NaN, or the scale would be, the scale is NaN: one element spoils its group, and
//     steps see what has happened.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <adamant/dtype.hpp>
#include <adamant/detail/numerics/rounding.hpp>

ADAMANT_BEGIN_INLINE_NAMESPACE

// What is different for the two moments.
struct code_curve {
    unsigned shift;
    std::uint32_t decode_offset; // see above
    std::uint32_t encode_offset; // the same, in 256ths of a code
    std::int32_t least, most;    // code
    unsigned random_shift;       // of the byte of an element's random half
    std::uint32_t zero_below;    // bits of the largest magnitude of a group that becomes zeros
};
inline constexpr std::uint32_t least_scale_bits = 0x17800000u; // 2^-80
inline constexpr code_curve exp_avg_curve = {1, 0x23400000u, 0x27400000u, 0, 127, 0, least_scale_bits};
inline constexpr code_curve exp_avg_sq_curve = {2, 0x33a00000u, 0x37a00000u, 1, 255, 8, float_min_normal_bits + 1};

inline constexpr std::uint32_t largest_divisor_bits = 0x7e000000u; // 2^125
inline constexpr float scale_over_largest = 0x1.041042p+0f;        // 64/63

// Whether codes of first moments must be clamped to +-127: the scale is zero and z may exceed z(127).
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr bool exp_avg_codes_overflow(std::uint32_t largest) noexcept
{
    constexpr std::uint32_t from = 0x177c0000u; // 63/64 of 2^-80
    return largest - from < least_scale_bits - from;
}

// The scale of a group whose largest magnitude has these bits.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr float scale_of_group(code_curve const& on, std::uint32_t largest) noexcept
{
    if (largest < on.zero_below)
        return 0.0f;
    float const wide = std::bit_cast<float>(largest) * scale_over_largest;
    std::uint32_t const bits = (std::bit_cast<std::uint32_t>(wide) + 0x20u) & ~0x3fu;
    if (largest >= float_infinity_bits || bits >= float_infinity_bits)
        return std::bit_cast<float>(canonical_nan_bits);
    return std::bit_cast<float>(bits < least_scale_bits ? least_scale_bits : bits);
}
// What elements are multiplied by, for a scale that is no NaN.
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

// The code of an element, as it is stored. inverse: inverse_of_scale(); random: random_half(), or none stochastically.
[[nodiscard]] ADAMANT_ALWAYS_INLINE std::uint8_t encoded(code_curve const& on, float x, float inverse, bool stochastic,
                                                         std::uint16_t random) noexcept
{
    std::uint32_t const own = std::bit_cast<std::uint32_t>(x);
    float const z = std::bit_cast<float>(own & float_abs_mask) * inverse;
    float const y = std::bit_cast<float>((std::bit_cast<std::uint32_t>(z) >> on.shift) + on.encode_offset);
    // To the nearest integer, ties to even: y is below 2^17.
    auto const in_256ths =
        static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(y + 0x1p23f) - std::bit_cast<std::uint32_t>(0x1p23f));
    bool const negative = on.least == 0 && (own & float_sign_bit) != 0;
    std::int32_t const at = negative ? -in_256ths : in_256ths;
    // A negative number's ties go away from zero, too, and its chance is of the code below it.
    std::int32_t const add = stochastic ? random >> on.random_shift & 0xff : negative ? 127 : 128;
    if (stochastic && on.least == 0 && in_256ths < 256)
        return 0;
    std::int32_t const q = (at + add) >> 8;
    std::int32_t const least = on.least == 0 ? -on.most : on.least;
    return static_cast<std::uint8_t>(q < least ? least : q > on.most ? on.most : q);
}

// One group, of n elements (1 to 64); further codes are those of zeros. Stochastic rounding of element i uses
// random_half(line, i). The mode of the caller is to round to nearest, and small results may be flushed or not.
inline void encode_group(code_curve const& on, float const* x, std::size_t n, bool stochastic,
                         rounding_line const& line, std::byte* group) noexcept
{
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t const abs = std::bit_cast<std::uint32_t>(x[i]) & float_abs_mask;
        largest = largest < abs ? abs : largest;
    }
    float const scale = scale_of_group(on, largest);
    bool const spoilt = is_nan(scale);
    float const inverse = spoilt ? 0.0f : inverse_of_scale(scale);
    for (std::size_t i = 0; i < quantized_group_elems; ++i)
        group[i] = static_cast<std::byte>(
            encoded(on, i < n && !spoilt ? x[i] : 0.0f, inverse, stochastic, random_half(line, i)));
    store_unaligned(group + quantized_group_elems, scale);
}
// And back, all 64.
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
