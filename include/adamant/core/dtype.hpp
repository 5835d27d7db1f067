// SPDX-License-Identifier: Apache-2.0
// The element types of a shard: float, storage types of 16 bits, and of 8 bits in groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

// bfloat16: sign, 8 exponent bits, 7 mantissa bits: the upper half of a float32. Storage only; see widen() and
// narrow() in numerics/convert.hpp. Same layout as the 16-bit integer that holds it elsewhere (torch, CUDA).
struct bfloat16 {
    std::uint16_t bits;
    friend bool operator==(bfloat16, bfloat16) = default; // compares bits: NaN equals itself, -0 differs from +0
};

// IEEE 754 binary16: sign, 5 exponent bits, 10 mantissa bits. Storage only, as above.
struct float16 {
    std::uint16_t bits;
    friend bool operator==(float16, float16) = default;
};

// The lower half of a float32 master whose upper half is a bfloat16 weight; see split_master() in numerics/convert.hpp.
struct split_float32 {
    std::uint16_t bits;
    friend bool operator==(split_float32, split_float32) = default;
};

// A group of 64 moments of 8 bits with their scale, see numerics/quantized8.hpp. An array of n elements has a group for
// each 64 of them, and one for what is left.
inline constexpr std::size_t quantized_group_elems = 64;
struct quantized8 {
    std::uint8_t codes[quantized_group_elems];
    float scale;
    friend bool operator==(quantized8 const&, quantized8 const&) = default;
};

static_assert(sizeof(quantized8) == 68);
static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2 && sizeof(split_float32) == 2 && sizeof(float) == 4);

// The same types as a value, for reports. `none` stands for an array that is not there (no weight_out).
enum class dtype : std::uint8_t { none, float32, bfloat16, float16, split_float32, quantized8 };

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

// Elements that are stored together: 1, or a group. Arrays are cut at multiples of it.
[[nodiscard]] constexpr std::size_t elems_together(dtype type) noexcept
{
    return type == dtype::quantized8 ? quantized_group_elems : 1;
}
// Size in bytes of what is stored together; 0 for none.
[[nodiscard]] constexpr std::size_t size_bytes(dtype type) noexcept
{
    switch (type) {
    case dtype::none: return 0;
    case dtype::float32: return sizeof(float);
    case dtype::quantized8: return sizeof(quantized8);
    default: return sizeof(bfloat16);
    }
}
// Bytes of an array of n elements; and, for a multiple of elems_together(), where element n is in one.
[[nodiscard]] constexpr std::size_t array_bytes(dtype type, std::size_t n) noexcept
{
    return type == dtype::quantized8 ? (n + quantized_group_elems - 1) / quantized_group_elems * sizeof(quantized8)
                                     : n * size_bytes(type);
}
// Bytes that an element takes, on average over a long array.
[[nodiscard]] constexpr double bytes_each(dtype type) noexcept
{
    return static_cast<double>(size_bytes(type)) / static_cast<double>(elems_together(type));
}

// dtype_of<T>: the value that names the C++ type; void is none. Any other type does not compile.
template <class T>
inline constexpr dtype dtype_of = [] {
    static_assert(
        sizeof(T) == 0,
        "adamant knows the element types float, adamant::bfloat16, adamant::float16, adamant::split_float32 and "
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
