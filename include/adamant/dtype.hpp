// SPDX-License-Identifier: Apache-2.0
// Element types and conversions between them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <adamant/detail/core/abi.hpp>

// The element types of a shard: float, storage types of 16 bits, and of 8 bits in groups.

ADAMANT_BEGIN_NAMESPACE

/// bfloat16: sign, 8 exponent bits, 7 mantissa bits: the upper half of a float32. Storage only; see widen() and
/// narrow() in dtype.hpp. Same layout as the 16-bit integer that holds it elsewhere (torch, CUDA).
struct bfloat16 {
    std::uint16_t bits;                                   ///< the 16 bits
    friend bool operator==(bfloat16, bfloat16) = default; ///< compares bits: NaN equals itself, -0 differs from +0
};

/// IEEE 754 binary16: sign, 5 exponent bits, 10 mantissa bits. Storage only, as above.
struct float16 {
    std::uint16_t bits; ///< the 16 bits
    /// Compares all members.
    friend bool operator==(float16, float16) = default;
};

/// The 16-bit residual of a split float32 master, whose bits are (weight << 16) + residual; see split_master().
struct split_float32 {
    std::uint16_t bits; ///< the lower 16 bits of the master
    /// Compares all members.
    friend bool operator==(split_float32, split_float32) = default;
};

/// Number of elements in a group of 8-bit moments, see detail/numerics/quantized8.hpp. An array of n elements has a
/// group for each 64 of them, and one for what is left.
inline constexpr std::size_t quantized_group_elems = 64;
/// A group of 64 8-bit moments and their scale.
struct quantized8 {
    std::uint8_t codes[quantized_group_elems]; ///< one code for each element
    float scale;                               ///< scale of the group
    /// Compares all members.
    friend bool operator==(quantized8 const&, quantized8 const&) = default;
};

static_assert(sizeof(quantized8) == 68);
static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2 && sizeof(split_float32) == 2 && sizeof(float) == 4);

/// The same types as a value, for reports. `none`: an absent array, such as weight_out.
enum class dtype : std::uint8_t { none, float32, bfloat16, float16, split_float32, quantized8 };

/// Describes the storage format of elements of type T: everything about it but its arithmetic.
///
/// A specialization has `type` (the dtype), `name` (in reports and files), `elems` (elements stored together), `bytes`
/// (of these), `file_type` and `file_bytes` (type and bytes of an element in safetensors files), and the four members
/// below. Add one for a new format; docs/formats.md lists the other places, and switches without a default do not
/// compile until they know it.
template <class T>
struct storage {
    static constexpr bool is_param = false;   ///< whether params may have it
    static constexpr bool is_element = false; ///< whether gradients, params and weights may have it
    static constexpr bool is_sum = false;     ///< whether gradients may be accumulated in it
    static constexpr bool is_moment = false;  ///< whether moments may have it
};
/// @cond
// An absent array.
template <>
struct storage<void> {
    static constexpr dtype type = dtype::none;
    static constexpr std::string_view name = "none";  // in reports and files
    static constexpr std::size_t elems = 1;           // elements stored together
    static constexpr std::size_t bytes = 0;           // bytes of these
    static constexpr std::string_view file_type = ""; // type in safetensors files
    static constexpr std::size_t file_bytes = 0;      // bytes of an element of that type
    static constexpr bool is_param = false;           // whether params may have it
    static constexpr bool is_element = false;         // whether gradients, params and weights may have it
    static constexpr bool is_sum = false;             // whether gradients may be accumulated in it
    static constexpr bool is_moment = false;          // whether moments may have it
};
// float32.
template <>
struct storage<float> {
    static constexpr dtype type = dtype::float32;
    static constexpr std::string_view name = "float32";
    static constexpr std::size_t elems = 1;
    static constexpr std::size_t bytes = sizeof(float);
    static constexpr std::string_view file_type = "F32";
    static constexpr std::size_t file_bytes = sizeof(float);
    static constexpr bool is_param = true;
    static constexpr bool is_element = true;
    static constexpr bool is_sum = true;
    static constexpr bool is_moment = true;
};
// bfloat16.
template <>
struct storage<bfloat16> {
    static constexpr dtype type = dtype::bfloat16;
    static constexpr std::string_view name = "bfloat16";
    static constexpr std::size_t elems = 1;
    static constexpr std::size_t bytes = sizeof(bfloat16);
    static constexpr std::string_view file_type = "BF16";
    static constexpr std::size_t file_bytes = sizeof(bfloat16);
    static constexpr bool is_param = true;
    static constexpr bool is_element = true;
    static constexpr bool is_sum = true;
    static constexpr bool is_moment = true;
};
// float16. Moments cannot have it: the square of a gradient below 2^-12 would be zero.
template <>
struct storage<float16> {
    static constexpr dtype type = dtype::float16;
    static constexpr std::string_view name = "float16";
    static constexpr std::size_t elems = 1;
    static constexpr std::size_t bytes = sizeof(float16);
    static constexpr std::string_view file_type = "F16";
    static constexpr std::size_t file_bytes = sizeof(float16);
    static constexpr bool is_param = true;
    static constexpr bool is_element = true;
    static constexpr bool is_sum = false;
    static constexpr bool is_moment = false;
};
// The residual of a split master weight.
template <>
struct storage<split_float32> {
    static constexpr dtype type = dtype::split_float32;
    static constexpr std::string_view name = "split_float32";
    static constexpr std::size_t elems = 1;
    static constexpr std::size_t bytes = sizeof(split_float32);
    static constexpr std::string_view file_type = "U16";
    static constexpr std::size_t file_bytes = sizeof(split_float32);
    static constexpr bool is_param = true;
    static constexpr bool is_element = false;
    static constexpr bool is_sum = false;
    static constexpr bool is_moment = false;
};
// 8-bit moments in groups.
template <>
struct storage<quantized8> {
    static constexpr dtype type = dtype::quantized8;
    static constexpr std::string_view name = "quantized8";
    static constexpr std::size_t elems = quantized_group_elems;
    static constexpr std::size_t bytes = sizeof(quantized8);
    static constexpr std::string_view file_type = "U8";
    static constexpr std::size_t file_bytes = 1;
    static constexpr bool is_param = false;
    static constexpr bool is_element = false;
    static constexpr bool is_sum = false;
    static constexpr bool is_moment = true;
};

/// @endcond

/// Returns visit(storage<T>{}) for the T that `type` names.
template <class Visit>
constexpr auto visit_storage(dtype type, Visit const& visit) noexcept
{
    switch (type) {
    case dtype::float32: return visit(storage<float>{});
    case dtype::bfloat16: return visit(storage<bfloat16>{});
    case dtype::float16: return visit(storage<float16>{});
    case dtype::split_float32: return visit(storage<split_float32>{});
    case dtype::quantized8: return visit(storage<quantized8>{});
    case dtype::none: break;
    }
    return visit(storage<void>{});
}

/// All values of dtype, in order.
inline constexpr dtype all_dtypes[] = {dtype::none,    dtype::float32,       dtype::bfloat16,
                                       dtype::float16, dtype::split_float32, dtype::quantized8};
/// The last of them.
inline constexpr dtype last_dtype = all_dtypes[sizeof all_dtypes / sizeof all_dtypes[0] - 1];

/// dtype_of<T>: the value that names the C++ type; void is none. Any other type does not compile.
template <class T>
inline constexpr dtype dtype_of = [] {
    static_assert(
        requires { storage<T>::type; },
        "adamant knows the element types float, adamant::bfloat16, adamant::float16, adamant::split_float32 and "
        "adamant::quantized8");
    return storage<T>::type;
}();

/// The name of the type, as in reports and files.
[[nodiscard]] constexpr std::string_view name(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return format.name; });
}
/// Elements that are stored together: 1, or a group. Arrays are divided at multiples of it.
[[nodiscard]] constexpr std::size_t elems_together(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return format.elems; });
}
/// Size in bytes of what is stored together; 0 for none.
[[nodiscard]] constexpr std::size_t size_bytes(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return format.bytes; });
}
/// Bytes of an array of n elements. If n is a multiple of elems_together(), also the byte offset of element n in a
/// longer array.
[[nodiscard]] constexpr std::size_t array_bytes(dtype type, std::size_t n) noexcept
{
    return visit_storage(type, [n](auto format) {
        return format.elems == 1 ? n * format.bytes : (n + format.elems - 1) / format.elems * format.bytes;
    });
}
/// Bytes that an element takes, on average over a long array.
[[nodiscard]] constexpr double bytes_each(dtype type) noexcept
{
    return static_cast<double>(size_bytes(type)) / static_cast<double>(elems_together(type));
}
/// Whether a param may have the type.
[[nodiscard]] constexpr bool is_param_type(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return format.is_param; });
}
/// Whether gradients, params that are not split, and published weights may have the type.
[[nodiscard]] constexpr bool is_element_type(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return format.is_element; });
}
/// Whether gradients may be accumulated in the type.
[[nodiscard]] constexpr bool is_sum_type(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return format.is_sum; });
}
/// Whether moments may have the type.
[[nodiscard]] constexpr bool is_moment_type(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return format.is_moment; });
}

ADAMANT_END_NAMESPACE

// Scalar conversions between the storage types and float, and the library's flush. Integer arithmetic only, so the
// results do not depend on the floating-point mode. Thread-safe; none throws. Formats: IEEE 754-2019 section 3.6 for
// binary16 and binary32; bfloat16 is binary32 cut to its upper 16 bits.

ADAMANT_BEGIN_INLINE_NAMESPACE

inline constexpr std::uint32_t float_sign_bit = 0x80000000u;
inline constexpr std::uint32_t float_abs_mask = 0x7fffffffu;
inline constexpr std::uint32_t float_infinity_bits = 0x7f800000u;
inline constexpr std::uint32_t float_min_normal_bits = 0x00800000u; // 2^-126
inline constexpr std::uint32_t canonical_nan_bits = 0x7fc00000u;    // the one NaN that a step ever writes

/// Converts to float. Exact.
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

/// Rounds to nearest, ties to even. Overflow gives infinity; every NaN becomes the quiet NaN without a sign.
/// narrow<float>() returns x unchanged.
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

/// A split float32 master. The weight is the number rounded to bfloat16, to nearest, ties away from zero; because of
/// that the pair is one to one: bits = (weight << 16) + low, with low from -2^15 to 2^15 - 1. A NaN becomes the
/// canonical one, because rounding other NaNs could overflow the bits of the weight.
struct split_parts {
    bfloat16 weight;   ///< the bfloat16 weight
    split_float32 low; ///< the residual
};
/// Splits a master. Exact, except that a NaN becomes canonical.
[[nodiscard]] constexpr split_parts split_master(float x) noexcept
{
    std::uint32_t const own = std::bit_cast<std::uint32_t>(x);
    std::uint32_t const bits = (own & float_abs_mask) > float_infinity_bits ? canonical_nan_bits : own;
    return {{static_cast<std::uint16_t>((bits + 0x8000u) >> 16)}, {static_cast<std::uint16_t>(bits)}};
}
/// Joins a split master: the inverse of split_master().
[[nodiscard]] constexpr float joined_master(bfloat16 weight, split_float32 low) noexcept
{
    std::uint32_t const borrowed = low.bits >> 15; // a residual of 2^15 and above counts as negative
    return std::bit_cast<float>((std::uint32_t{weight.bits} << 16) + low.bits - (borrowed << 16));
}

/// Returns x, or a zero of its sign if |x| <= 2^-126. Includes the smallest normal number, because processors in
/// flush-to-zero mode disagree about results that round to it.
[[nodiscard]] constexpr float flush(float x) noexcept
{
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(x);
    return (bits & float_abs_mask) <= float_min_normal_bits ? std::bit_cast<float>(bits & float_sign_bit) : x;
}
/// A bfloat16 shares float32's exponents, hence its subnormals; a float16's subnormals are ordinary values here.
[[nodiscard]] constexpr bfloat16 flush(bfloat16 x) noexcept
{
    return (x.bits & 0x7fffu) <= 0x0080u ? bfloat16{static_cast<std::uint16_t>(x.bits & 0x8000u)} : x;
}
[[nodiscard]] constexpr float16 flush(float16 x) noexcept
{
    return x;
}

/// Whether x is a NaN, in any floating-point mode.
[[nodiscard]] constexpr bool is_nan(float x) noexcept
{
    return (std::bit_cast<std::uint32_t>(x) & float_abs_mask) > float_infinity_bits;
}
/// Whether x is neither infinite nor a NaN, in any floating-point mode.
[[nodiscard]] constexpr bool is_finite(float x) noexcept
{
    return (std::bit_cast<std::uint32_t>(x) & float_abs_mask) < float_infinity_bits;
}

/// Loads or stores one element at any byte address.
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
