// SPDX-License-Identifier: Apache-2.0
// The element types of a shard: float, and storage types of 16 bits.
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

static_assert(sizeof(bfloat16) == 2 && sizeof(float16) == 2 && sizeof(split_float32) == 2 && sizeof(float) == 4);

// The same types as a value, for reports. `none` stands for an array that is not there (no weight_out).
enum class dtype : std::uint8_t { none, float32, bfloat16, float16, split_float32 };

[[nodiscard]] constexpr std::string_view name(dtype type) noexcept
{
    switch (type) {
    case dtype::float32: return "float32";
    case dtype::bfloat16: return "bfloat16";
    case dtype::float16: return "float16";
    case dtype::split_float32: return "split_float32";
    case dtype::none: break;
    }
    return "none";
}

// Size of one element in bytes; 0 for none.
[[nodiscard]] constexpr std::size_t size_bytes(dtype type) noexcept
{
    return type == dtype::none ? 0 : type == dtype::float32 ? 4 : 2;
}

// dtype_of<T>: the value that names the C++ type; void is none. Any other type does not compile.
template <class T>
inline constexpr dtype dtype_of = [] {
    static_assert(
        sizeof(T) == 0,
        "adamant knows the element types float, adamant::bfloat16, adamant::float16 and adamant::split_float32");
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

ADAMANT_END_NAMESPACE
