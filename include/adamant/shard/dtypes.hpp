// SPDX-License-Identifier: Apache-2.0
// The element types of a shard's arrays as a value, and a format: these types with the kernels for them.
#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

#include <adamant/core/dtype.hpp>
#include <adamant/kernel/block_kernels.hpp>
#include <adamant/kernel/isa.hpp>

ADAMANT_BEGIN_NAMESPACE

template <class T>
concept element_type = std::is_same_v<T, float> || std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

// As what gradients are added up.
template <class T>
concept sum_type = std::is_same_v<T, float> || std::is_same_v<T, bfloat16>;

// float16 is left out of the moments: the square of a gradient below 2^-12 would be zero in it.
template <class T>
concept moment_type = sum_type<T> || std::is_same_v<T, quantized8>;

// Moments of 8 bits go together: a second one that is too small under an exact first one makes too large an update.
template <class ExpAvgSq, class ExpAvg>
concept second_moment_type = moment_type<ExpAvgSq> && std::is_same_v<ExpAvgSq, quantized8>
== std::is_same_v<ExpAvg, quantized8>;

// As what params are kept; in two halves, the other half is weight_out.
template <class T>
concept param_storage = element_type<T> || std::is_same_v<T, split_float32>;

// A 16-bit copy of the weights beside 16-bit params would say the same thing twice.
template <class WeightOut, class Param>
concept weight_out_type = (std::is_same_v<Param, split_float32> && std::is_same_v<WeightOut, bfloat16>) ||
                          (!std::is_same_v<Param, split_float32> && std::is_void_v<WeightOut>) ||
                          (std::is_same_v<Param, float> && element_type<WeightOut> &&
                           !std::is_same_v<WeightOut, float>);

// The arrays of a shard, in the order in which all lists of them are; an optimizer's may have an accumulator, too.
namespace shard_array {
enum index : std::size_t { param, grad, exp_avg, exp_avg_sq, weight_out, accumulator };
inline constexpr char const* names[] = {"param", "grad", "exp_avg", "exp_avg_sq", "weight_out", "accumulator"};
} // namespace shard_array
inline constexpr std::size_t shard_arrays = 5;

// The element types of these arrays but the accumulator; none for a weight_out that is not there.
using shard_dtypes = std::array<dtype, shard_arrays>;

// Whether weight_out is the upper half of the params, which a step reads, too.
[[nodiscard]] constexpr bool has_split_param(shard_dtypes const& types) noexcept
{
    return types[shard_array::param] == dtype::split_float32;
}
// Whether an array is state: what a step reads and writes, and what brings it back. The list has all that can be.
inline constexpr shard_array::index state_arrays[] = {shard_array::param, shard_array::exp_avg, shard_array::exp_avg_sq,
                                                      shard_array::weight_out};
[[nodiscard]] constexpr bool is_state(shard_dtypes const& types, shard_array::index array) noexcept
{
    return array != shard_array::grad && (array != shard_array::weight_out || has_split_param(types));
}
// Bytes of the state, of n elements; and of one, on average.
[[nodiscard]] constexpr std::size_t state_bytes(shard_dtypes const& types, std::size_t n) noexcept
{
    std::size_t bytes = 0;
    for (shard_array::index const array : state_arrays)
        bytes += is_state(types, array) ? array_bytes(types[array], n) : 0;
    return bytes;
}
[[nodiscard]] constexpr double state_bytes(shard_dtypes const& types) noexcept
{
    double bytes = 0;
    for (shard_array::index const array : state_arrays)
        bytes += is_state(types, array) ? bytes_each(types[array]) : 0;
    return bytes;
}
// Bytes that a step moves for n elements: it reads the state and writes it back, reads grad, and writes weight_out; and
// for one, on average.
[[nodiscard]] constexpr std::size_t step_bytes(shard_dtypes const& types, std::size_t n) noexcept
{
    using namespace shard_array;
    return 2 * state_bytes(types, n) + array_bytes(types[grad], n) +
           (has_split_param(types) ? 0 : array_bytes(types[weight_out], n));
}
[[nodiscard]] constexpr double step_bytes(shard_dtypes const& types) noexcept
{
    using namespace shard_array;
    return 2 * state_bytes(types) + bytes_each(types[grad]) +
           (has_split_param(types) ? 0 : bytes_each(types[weight_out]));
}
// Bytes that n elements take in all five arrays; and one, on average.
[[nodiscard]] constexpr std::size_t memory_bytes(shard_dtypes const& types, std::size_t n) noexcept
{
    std::size_t bytes = 0;
    for (dtype const type : types)
        bytes += array_bytes(type, n);
    return bytes;
}
[[nodiscard]] constexpr double memory_bytes(shard_dtypes const& types) noexcept
{
    double bytes = 0;
    for (dtype const type : types)
        bytes += bytes_each(type);
    return bytes;
}
// Elements that stay together where a shard of these types is cut, and of whose multiples of its parameter it begins.
[[nodiscard]] constexpr std::size_t elems_together(shard_dtypes const& types) noexcept
{
    return elems_together(types[shard_array::exp_avg]);
}
// Whether a step rounds an array of these types by chance.
[[nodiscard]] constexpr bool rounds_by_chance(shard_dtypes const& types, step_rounding const& how) noexcept
{
    using namespace shard_array;
    return (how.param && types[param] == dtype::bfloat16) ||
           (how.exp_avg_sq && (types[exp_avg_sq] == dtype::bfloat16 || types[exp_avg_sq] == dtype::quantized8));
}
// Formats are constants of the program: compare them by address, or by their types.
struct shard_format {
    shard_dtypes types;
    kernel::step_function (*step_for)(isa) noexcept; // for a tier that resolve_isa() returned
    // For an optimizer; null in a format that only steps.
    kernel::block_kernels const& (*block_kernels_for)(isa) noexcept;
};

ADAMANT_END_NAMESPACE
