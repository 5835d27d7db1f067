// SPDX-License-Identifier: Apache-2.0
// Element types of a shard's arrays, and scalar conversions between them and float.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

/// bfloat16: sign, 8 exponent bits, 7 mantissa bits; the upper half of a float32.
///
/// Storage only: convert with widen() and narrow(). Same layout as the 16-bit values of torch and CUDA.
struct bfloat16 {
    std::uint16_t bits; ///< the encoding
    /// Compares bits: a NaN equals itself, and -0 differs from +0.
    friend bool operator==(bfloat16, bfloat16) = default;
};

/// IEEE 754 binary16: sign, 5 exponent bits, 10 mantissa bits.
///
/// Storage only: convert with widen() and narrow().
struct float16 {
    std::uint16_t bits; ///< the encoding
    /// Compares bits, as for bfloat16.
    friend bool operator==(float16, float16) = default;
};

/// The 16-bit residual of a split master weight: a float32 stored as a bfloat16 weight and this. See split_master().
struct split_float32 {
    std::uint16_t bits; ///< the lower 16 bits of the float32
    /// Compares bits.
    friend bool operator==(split_float32, split_float32) = default;
};

/// Elements that share one scale in an array of 8-bit moments.
inline constexpr std::size_t quantized_group_elems = 64;

/// A group of 64 quantized (8-bit) moments and their scale. See detail/numerics/quantized8.hpp for the codes.
///
/// An array of n elements has (n + 63) / 64 groups.
struct quantized8 {
    std::uint8_t codes[quantized_group_elems]; ///< one code for each element
    float scale;                               ///< scale of the group
    /// Compares the codes' bits and the scale.
    friend bool operator==(quantized8 const&, quantized8 const&) = default;
};

static_assert(sizeof(quantized8) == 68);
static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2 && sizeof(split_float32) == 2 && sizeof(float) == 4);

/// An element type as a run-time value.
enum class dtype : std::uint8_t {
    none,          ///< no array, such as a shard without weight_out
    float32,       ///< float
    bfloat16,      ///< adamant::bfloat16
    float16,       ///< adamant::float16
    split_float32, ///< adamant::split_float32
    quantized8,    ///< adamant::quantized8
};

/// Returns the type's name, such as "bfloat16".
[[nodiscard]] constexpr std::string_view name(dtype type) noexcept
{
    switch (type) {
    case dtype::float32: return "float32";
    case dtype::bfloat16: return "bfloat16";
    case dtype::float16: return "float16";
    case dtype::split_float32: return "split_float32";
    case dtype::quantized8: return "quantized8";
    case dtype::none: break;
    }
    return "none";
}

/// Returns how many elements are stored as one unit: 64 for quantized8, else 1.
///
/// Shard boundaries are multiples of it.
[[nodiscard]] constexpr std::size_t elems_together(dtype type) noexcept
{
    return type == dtype::quantized8 ? quantized_group_elems : 1;
}
/// Returns the bytes of one storage unit: an element, or a group of quantized8; 0 for none.
[[nodiscard]] constexpr std::size_t size_bytes(dtype type) noexcept
{
    switch (type) {
    case dtype::none: return 0;
    case dtype::float32: return sizeof(float);
    case dtype::quantized8: return sizeof(quantized8);
    default: return sizeof(bfloat16);
    }
}
/// Returns the bytes of an array of n elements.
///
/// If n is a multiple of elems_together(), this is also the byte offset of element n.
[[nodiscard]] constexpr std::size_t array_bytes(dtype type, std::size_t n) noexcept
{
    return type == dtype::quantized8 ? (n + quantized_group_elems - 1) / quantized_group_elems * sizeof(quantized8)
                                     : n * size_bytes(type);
}
/// Returns the average bytes of one element in a long array.
[[nodiscard]] constexpr double bytes_each(dtype type) noexcept
{
    return static_cast<double>(size_bytes(type)) / static_cast<double>(elems_together(type));
}

/// The dtype of the C++ element type T; `none` for void. Other types do not compile.
template <class T>
inline constexpr dtype dtype_of = [] {
    static_assert(sizeof(T) == 0,
                  "not an element type: use float, adamant::bfloat16, adamant::float16, adamant::split_float32 or "
                  "adamant::quantized8");
    return dtype::none;
}();
template <>
inline constexpr dtype dtype_of<void> = dtype::none;
template <>
inline constexpr dtype dtype_of<float> = dtype::float32;
template <>
inline constexpr dtype dtype_of<bfloat16> = dtype::bfloat16;
template <>
inline constexpr dtype dtype_of<float16> = dtype::float16;
template <>
inline constexpr dtype dtype_of<split_float32> = dtype::split_float32;
template <>
inline constexpr dtype dtype_of<quantized8> = dtype::quantized8;

ADAMANT_END_NAMESPACE

// Scalar conversions and flush(). They use integer arithmetic only, so results do not depend on the floating-point
// mode. Formats: IEEE 754-2019 section 3.6 for binary16 and binary32; bfloat16 is binary32 truncated to its upper 16
// bits.

ADAMANT_BEGIN_INLINE_NAMESPACE

inline constexpr std::uint32_t float_sign_bit = 0x80000000u;        ///< sign bit of a float32
inline constexpr std::uint32_t float_abs_mask = 0x7fffffffu;        ///< all other bits of a float32
inline constexpr std::uint32_t float_infinity_bits = 0x7f800000u;   ///< encoding of +infinity
inline constexpr std::uint32_t float_min_normal_bits = 0x00800000u; ///< encoding of 2^-126, the smallest normal float
inline constexpr std::uint32_t canonical_nan_bits = 0x7fc00000u;    ///< the only NaN that a step writes

/// Converts to float. Exact for every value; a NaN keeps its payload. The overload for float is the identity.
[[nodiscard]] constexpr float widen(float x) noexcept
{
    return x;
}
/// @overload
[[nodiscard]] constexpr float widen(bfloat16 x) noexcept
{
    return std::bit_cast<float>(std::uint32_t{x.bits} << 16);
}
/// @overload
[[nodiscard]] constexpr float widen(float16 x) noexcept
{
    std::uint32_t const sign = (x.bits & 0x8000u) << 16;
    std::uint32_t const abs = x.bits & 0x7fffu;
    if (abs >= 0x7c00u) // infinity or NaN, with its payload shifted
        return std::bit_cast<float>(sign | float_infinity_bits | (abs & 0x3ffu) << 13);
    if (abs >= 0x0400u) // normal: the exponent's bias changes from 15 to 127
        return std::bit_cast<float>(sign | ((abs << 13) + (112u << 23)));
    if (abs == 0)
        return std::bit_cast<float>(sign);
    auto const top = static_cast<std::uint32_t>(std::bit_width(abs)) - 1; // subnormal: abs * 2^-24, 1.x * 2^(top-24)
    return std::bit_cast<float>(sign | (top + 103u) << 23 | ((abs << (23 - top)) & 0x007fffffu));
}

/// Converts a float to T: rounds to nearest, ties to even; values too large become infinity.
///
/// Every NaN becomes the positive quiet NaN. The specialization for float returns its argument unchanged.
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
    if (abs >= 0x47800000u) // at least 2^16; values from 65520 to 2^16 overflow in the rounding below
        return {static_cast<std::uint16_t>(sign | 0x7c00u)};
    std::uint32_t shift = 13; // number of mantissa bits to round off
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

/// A split float32 master weight: a bfloat16 weight and a 16-bit residual.
struct split_parts {
    bfloat16 weight;   ///< the master rounded to bfloat16: to nearest, ties away from zero
    split_float32 low; ///< the residual
};
/// Splits a master weight into a bfloat16 weight and a 16-bit residual. joined_master() is the exact inverse.
///
/// The mapping is one to one because of the rounding of ties: bits = (weight << 16) + low, with low from -2^15 to
/// 2^15 - 1. Every NaN becomes the canonical NaN, because the lower bits of other NaNs would carry out of the upper
/// half.
[[nodiscard]] constexpr split_parts split_master(float x) noexcept
{
    std::uint32_t const original = std::bit_cast<std::uint32_t>(x);
    std::uint32_t const bits = (original & float_abs_mask) > float_infinity_bits ? canonical_nan_bits : original;
    return {{static_cast<std::uint16_t>((bits + 0x8000u) >> 16)}, {static_cast<std::uint16_t>(bits)}};
}
/// Joins the two parts of a split master weight; the inverse of split_master().
[[nodiscard]] constexpr float joined_master(bfloat16 weight, split_float32 low) noexcept
{
    std::uint32_t const borrowed = low.bits >> 15; // a residual of 2^15 or more is negative
    return std::bit_cast<float>((std::uint32_t{weight.bits} << 16) + low.bits - (borrowed << 16));
}

/// Returns zero with x's sign if |x| <= 2^-126, else x.
///
/// Flushes the smallest normal number, too, because processors in flush-to-zero mode disagree about results that round
/// to it.
[[nodiscard]] constexpr float flush(float x) noexcept
{
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(x);
    return (bits & float_abs_mask) <= float_min_normal_bits ? std::bit_cast<float>(bits & float_sign_bit) : x;
}
/// Flushes as for float, because a bfloat16 has the exponents and therefore the subnormals of float32.
[[nodiscard]] constexpr bfloat16 flush(bfloat16 x) noexcept
{
    return (x.bits & 0x7fffu) <= 0x0080u ? bfloat16{static_cast<std::uint16_t>(x.bits & 0x8000u)} : x;
}
/// Returns x: subnormals of float16 are ordinary values of float32.
[[nodiscard]] constexpr float16 flush(float16 x) noexcept
{
    return x;
}

/// Returns whether x is a NaN.
[[nodiscard]] constexpr bool is_nan(float x) noexcept
{
    return (std::bit_cast<std::uint32_t>(x) & float_abs_mask) > float_infinity_bits;
}
/// Returns whether x is neither infinite nor a NaN.
[[nodiscard]] constexpr bool is_finite(float x) noexcept
{
    return (std::bit_cast<std::uint32_t>(x) & float_abs_mask) < float_infinity_bits;
}

/// Loads an element from an address of any alignment.
template <class T>
[[nodiscard]] inline T load_unaligned(std::byte const* address) noexcept
{
    T value;
    std::memcpy(&value, address, sizeof value);
    return value;
}
/// Stores an element at an address of any alignment.
template <class T>
inline void store_unaligned(std::byte* address, T value) noexcept
{
    std::memcpy(address, &value, sizeof value);
}

ADAMANT_END_INLINE_NAMESPACE
