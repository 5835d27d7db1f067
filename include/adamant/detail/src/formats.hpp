// SPDX-License-Identifier: Apache-2.0
// The formats of each pair of a param and a weight_out type, with their kernels. They take most of the compile time, so
// each pair may be compiled in a file of its own.
#pragma once

#include <array>

#include <adamant/detail/shard/format_kernels.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// 3 types of grad, times 5 of the moments: float32 or bfloat16 for each, or quantized8 for both.
inline constexpr std::size_t formats_in_part = 15;
using formats_part = std::array<shard_format, formats_in_part>;

template <class Param, class WeightOut, class Grad>
constexpr void set_formats(formats_part& all, std::size_t first) noexcept
{
    all[first] = format_with_all<Param, Grad, float, float, WeightOut>;
    all[first + 1] = format_with_all<Param, Grad, float, bfloat16, WeightOut>;
    all[first + 2] = format_with_all<Param, Grad, bfloat16, float, WeightOut>;
    all[first + 3] = format_with_all<Param, Grad, bfloat16, bfloat16, WeightOut>;
    all[first + 4] = format_with_all<Param, Grad, quantized8, quantized8, WeightOut>;
}
template <class Param, class WeightOut>
[[nodiscard]] formats_part make_formats() noexcept
{
    formats_part all;
    set_formats<Param, WeightOut, float>(all, 0);
    set_formats<Param, WeightOut, bfloat16>(all, 5);
    set_formats<Param, WeightOut, float16>(all, 10);
    return all;
}

[[nodiscard]] formats_part formats_float32() noexcept;
[[nodiscard]] formats_part formats_float32_to_bfloat16() noexcept;
[[nodiscard]] formats_part formats_float32_to_float16() noexcept;
[[nodiscard]] formats_part formats_bfloat16() noexcept;
[[nodiscard]] formats_part formats_float16() noexcept;
[[nodiscard]] formats_part formats_split_float32() noexcept;

} // namespace detail
ADAMANT_END_NAMESPACE

// Defines one of these functions. CMake compiles each in a file of its own, because each takes a minute or more.
#define ADAMANT_DEFINE_FORMATS(name, ...)                                                                              \
    ADAMANT_BEGIN_NAMESPACE                                                                                            \
    namespace detail {                                                                                                 \
    formats_part name() noexcept                                                                                       \
    {                                                                                                                  \
        return make_formats<__VA_ARGS__>();                                                                            \
    }                                                                                                                  \
    }                                                                                                                  \
    ADAMANT_END_NAMESPACE
