// SPDX-License-Identifier: Apache-2.0
// Scalar conversions between the storage types and float, and the library's flush. Integer arithmetic only, so the
// results do not depend on the floating-point mode. Thread-safe; none throws. Formats: IEEE 754-2019 section 3.6 for
// binary16 and binary32; bfloat16 is binary32 cut to its upper 16 bits.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include <adamant/core/dtype.hpp>

ADAMANT_BEGIN_INLINE_NAMESPACE

inline constexpr std::uint32_t float_sign_bit = 0x80000000u;
inline constexpr std::uint32_t float_abs_mask = 0x7fffffffu;
inline constexpr std::uint32_t float_infinity_bits = 0x7f800000u;
inline constexpr std::uint32_t float_min_normal_bits = 0x00800000u; // 2^-126
inline constexpr std::uint32_t canonical_nan_bits = 0x7fc00000u;    // the one NaN that a step ever writes

// Exact, for every value.
[[nodiscard]] constexpr float widen(float x) noexcept
{
    return x;
}
[[nodiscard]] constexpr float widen(bfloat16 x) noexcept
{
    return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}
[[nodiscard]] constexpr float widen(float16 x) noexcept
{
    std::uint32_t const sign = (x.bits & 0x8000u) << 16;
    std::uint32_t const abs = x.bits & 0x7fffu;
    if (abs >= 0x7c00u) // infinity or NaN, the payload moved up
        return std::bit_cast<float>(sign | float_infinity_bits | (abs & 0x3ffu) << 13);
    if (abs >= 0x0400u) // normal: the exponent's bias goes from 15 to 127
        return std::bit_cast<float>(sign | ((abs << 13) + (112u << 23)));
    if (abs == 0)
        return std::bit_cast<float>(sign);
    auto const top = static_cast<std::uint32_t>(std::bit_width(abs)) - 1; // subnormal: abs * 2^-24, 1.x * 2^(top-24)
    return std::bit_cast<float>(sign | (top + 103u) << 23 | ((abs << (23 - top)) & 0x007fffffu));
}

// Round to nearest, ties to even; too large goes to infinity; every NaN becomes the quiet NaN without a sign.
template <class T>
[[nodiscard]] constexpr T narrow(float x) noexcept;

template <>
[[nodiscard]] constexpr float narrow<float>(float x) noexcept
{
    return x;
}
template <>
[[nodiscard]] constexpr bfloat16 narrow<bfloat16>(float x) noexcept
{
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(x);
    if ((bits & float_abs_mask) > float_infinity_bits)
        return {0x7fc0};
    return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
template <>
[[nodiscard]] constexpr float16 narrow<float16>(float x) noexcept
{
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(x);
    std::uint32_t const sign = bits >> 16 & 0x8000u;
    std::uint32_t const abs = bits & float_abs_mask;
    if (abs > float_infinity_bits)
        return {0x7e00};
    if (abs >= 0x47800000u) // 2^16 and above; what lies between 65520 and 2^16 overflows by the rounding below
        return {static_cast<std::uint16_t>(sign | 0x7c00u)};
    std::uint32_t shift = 13; // how many low bits of the mantissa go
    std::uint32_t mantissa = abs - (112u << 23);
    if (abs < 0x38800000u) {   // below 2^-14: a binary16 subnormal, a multiple of 2^-24
        if (abs < 0x33000000u) // below 2^-25: rounds to zero
            return {static_cast<std::uint16_t>(sign)};
        shift = 126u - (abs >> 23);
        mantissa = (abs & 0x007fffffu) | 0x00800000u;
    }
    std::uint32_t const half = (1u << (shift - 1)) - 1;
    return {static_cast<std::uint16_t>(sign | (mantissa + half + (mantissa >> shift & 1u)) >> shift)};
}

// A float32 in two halves. The weight is the number rounded to bfloat16, to nearest, ties away from zero; because of
// that the pair is one to one: bits = (weight << 16) + low, with low from -2^15 to 2^15 - 1. A NaN becomes the canonical
// one, as the lower bits of others would carry out of the upper half.
struct split_parts {
    bfloat16 weight;
    split_float32 low;
};
[[nodiscard]] constexpr split_parts split_master(float x) noexcept
{
    std::uint32_t const own = std::bit_cast<std::uint32_t>(x);
    std::uint32_t const bits = (own & float_abs_mask) > float_infinity_bits ? canonical_nan_bits : own;
    return {{static_cast<std::uint16_t>((bits + 0x8000u) >> 16)}, {static_cast<std::uint16_t>(bits)}};
}
[[nodiscard]] constexpr float joined_master(bfloat16 weight, split_float32 low) noexcept
{
    std::uint32_t const borrowed = low.bits >> 15; // a low half of 2^15 and above counts as negative
    return std::bit_cast<float>((std::uint32_t{weight.bits} << 16) + low.bits - (borrowed << 16));
}

// Zero of x's sign where |x| <= 2^-126, else x. The smallest normal number goes too, because processors in
// flush-to-zero mode disagree about results that round to it.
[[nodiscard]] constexpr float flush(float x) noexcept
{
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(x);
    return (bits & float_abs_mask) <= float_min_normal_bits ? std::bit_cast<float>(bits & float_sign_bit) : x;
}
// A bfloat16 shares float32's exponents, hence its subnormals; a float16's subnormals are ordinary values here.
[[nodiscard]] constexpr bfloat16 flush(bfloat16 x) noexcept
{
    return (x.bits & 0x7fffu) <= 0x0080u ? bfloat16{static_cast<std::uint16_t>(x.bits & 0x8000u)} : x;
}
[[nodiscard]] constexpr float16 flush(float16 x) noexcept
{
    return x;
}

[[nodiscard]] constexpr bool is_nan(float x) noexcept
{
    return (std::bit_cast<std::uint32_t>(x) & float_abs_mask) > float_infinity_bits;
}
[[nodiscard]] constexpr bool is_finite(float x) noexcept
{
    return (std::bit_cast<std::uint32_t>(x) & float_abs_mask) < float_infinity_bits;
}

// One element from or to any address: arrays may lie at any byte offset.
template <class T>
[[nodiscard]] inline T load_unaligned(std::byte const* address) noexcept
{
    T value;
    std::memcpy(&value, address, sizeof value);
    return value;
}
template <class T>
inline void store_unaligned(std::byte* address, T value) noexcept
{
    std::memcpy(address, &value, sizeof value);
}

ADAMANT_END_INLINE_NAMESPACE
