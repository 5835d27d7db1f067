// SPDX-License-Identifier: Apache-2.0
// The formats of a param and a weight_out type, with their kernels: most of the compiling, so each pair may be compiled
// by itself.
#pragma once

#include <array>

#include <adamant/detail/shard/format_kernels.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// 3 grads, and 2 types of each moment, and 8 bits for both.
inline constexpr std::size_t formats_in_part = 15;
using formats_part = std::array<shard_format, formats_in_part>;

template <class Param, class WeightOut, class Grad>
constexpr void put_formats(formats_part& all, std::size_t at) noexcept
{
    all[at] = format_with_all<Param, Grad, float, float, WeightOut>;
    all[at + 1] = format_with_all<Param, Grad, float, bfloat16, WeightOut>;
    all[at + 2] = format_with_all<Param, Grad, bfloat16, float, WeightOut>;
    all[at + 3] = format_with_all<Param, Grad, bfloat16, bfloat16, WeightOut>;
    all[at + 4] = format_with_all<Param, Grad, quantized8, quantized8, WeightOut>;
}
template <class Param, class WeightOut>
[[nodiscard]] formats_part make_formats() noexcept
{
    formats_part all;
    put_formats<Param, WeightOut, float>(all, 0);
    put_formats<Param, WeightOut, bfloat16>(all, 5);
    put_formats<Param, WeightOut, float16>(all, 10);
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
