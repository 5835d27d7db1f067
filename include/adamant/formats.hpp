// SPDX-License-Identifier: Apache-2.0
// Storage formats: the element types of a shard, with their kernels; split master weights.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <adamant/dtype.hpp>
#include <adamant/isa.hpp>
#include <adamant/detail/kernels/block_kernels.hpp>

// ---- Element types of a shard

ADAMANT_BEGIN_NAMESPACE

/// Types of gradients and of params that are not split. weight_out has one of these types, too.
template <class T>
concept element_type = storage<T>::is_element;

/// Types in which gradients are accumulated.
template <class T>
concept sum_type = storage<T>::is_sum;

/// Types of moments.
template <class T>
concept moment_type = storage<T>::is_moment;

/// Either both moments have 8 bits or neither has: if an exact first moment were divided by a second moment that was
/// rounded down too far, the update would be too large.
template <class ExpAvgSq, class ExpAvg>
concept second_moment_type = moment_type<ExpAvgSq> && std::is_same_v<ExpAvgSq, quantized8>
== std::is_same_v<ExpAvg, quantized8>;

/// Types of params. A split param holds the 16-bit residual; weight_out holds the bfloat16 weight.
template <class T>
concept param_storage = storage<T>::is_param;

/// Types of weight_out for a param. 16-bit params have none, because they are the weights. A float32 weight_out is a
/// copy of the params; only step() writes one.
template <class WeightOut, class Param>
concept weight_out_type = (std::is_same_v<Param, split_float32> && std::is_same_v<WeightOut, bfloat16>) ||
                          (!std::is_same_v<Param, split_float32> && std::is_void_v<WeightOut>) ||
                          (std::is_same_v<Param, float> && element_type<WeightOut>);

/// The arrays of a shard.
namespace shard_array {
/// Index of an array in lists of all of them. An optimizer's shard may also have an accumulator.
enum index : std::size_t { param, grad, exp_avg, exp_avg_sq, weight_out, accumulator };
/// Names of the arrays.
inline constexpr char const* names[] = {"param", "grad", "exp_avg", "exp_avg_sq", "weight_out", "accumulator"};
} // namespace shard_array
/// Number of arrays without the accumulator.
inline constexpr std::size_t shard_arrays = 5;

/// Element types of these arrays except the accumulator; none for an absent weight_out.
using shard_dtypes = std::array<dtype, shard_arrays>;

/// Whether params are split, so that a step also reads weight_out.
[[nodiscard]] constexpr bool has_split_param(shard_dtypes const& types) noexcept
{
    return types[shard_array::param] == dtype::split_float32;
}
/// Whether weight_out is a float32 copy of the params, which step() makes block by block.
[[nodiscard]] constexpr bool has_param_copy(shard_dtypes const& types) noexcept
{
    return types[shard_array::weight_out] == dtype::float32;
}
/// The array whose elements are the published weights: weight_out, or param without one.
[[nodiscard]] constexpr shard_array::index published_array(shard_dtypes const& types) noexcept
{
    return types[shard_array::weight_out] == dtype::none ? shard_array::param : shard_array::weight_out;
}
/// Whether the published weights are float params rounded to a 16-bit weight_out.
[[nodiscard]] constexpr bool publishes_rounded(shard_dtypes const& types) noexcept
{
    return types[shard_array::param] == dtype::float32 &&
           (types[shard_array::weight_out] == dtype::bfloat16 || types[shard_array::weight_out] == dtype::float16);
}
/// The array that is compared with its old values to find changed weights: float32 params (rounded as weight_out is),
/// else the weights. Params are still in a cache when a step ends; a weight_out that was written past the caches is
/// not.
[[nodiscard]] constexpr shard_array::index compared_array(shard_dtypes const& types) noexcept
{
    return types[shard_array::param] == dtype::float32 ? shard_array::param : published_array(types);
}
/// Arrays that may be state, which is_state() decides.
inline constexpr shard_array::index state_arrays[] = {shard_array::param, shard_array::exp_avg, shard_array::exp_avg_sq,
                                                      shard_array::weight_out};
/// Whether an array is state, which a step reads and writes.
[[nodiscard]] constexpr bool is_state(shard_dtypes const& types, shard_array::index array) noexcept
{
    return array != shard_array::grad && (array != shard_array::weight_out || has_split_param(types));
}
/// State bytes of n elements. Without n: the average for one element.
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
/// Bytes that a step moves for n elements: it reads and writes state, reads grad, and writes weight_out. Without n: the
/// average for one element.
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
/// Bytes of n elements in all five arrays. Without n: the average for one element.
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
/// Unit of shard boundaries: a shard of these types begins at a multiple of it and is divided at multiples of it.
[[nodiscard]] constexpr std::size_t elems_together(shard_dtypes const& types) noexcept
{
    return elems_together(types[shard_array::exp_avg]);
}
/// Whether a step rounds an array of these types stochastically.
[[nodiscard]] constexpr bool rounds_stochastically(shard_dtypes const& types, step_rounding const& how) noexcept
{
    using namespace shard_array;
    return (how.param && types[param] == dtype::bfloat16) ||
           (how.exp_avg_sq && (types[exp_avg_sq] == dtype::bfloat16 || types[exp_avg_sq] == dtype::quantized8));
}
/// Element types of a shard with the kernels for them. Formats are constants: compare their addresses or types.
struct shard_format {
    shard_dtypes types;                              ///< element types
    kernel::step_function (*step_for)(isa) noexcept; ///< for a tier that resolve_isa() returned
    /// Kernels for an optimizer; null in a format of step_format() without ADAMANT_SEPARATE_COMPILATION.
    kernel::block_kernels const& (*block_kernels_for)(isa) noexcept;
};

// ---- Formats and kernels

/// Returns the types as text, such as "float32/bfloat16/float32/float32/bfloat16", with "-" for none. Equal types have
/// equal texts.
[[nodiscard]] std::string to_text(shard_dtypes const& types);

namespace kernel {
/// Elements that a step of that tier computes together.
[[nodiscard]] std::size_t step_elems_for(isa tier) noexcept;
/// Marks changes of the published weights of a shard of these types. It compares compared_array().
[[nodiscard]] mark_changes_function mark_changes_for(shard_dtypes const& types, isa tier) noexcept;
} // namespace kernel

#if defined(ADAMANT_HEADER_ONLY)

/// Format of a shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> for step(); optimizer_format() has everything that an
/// optimizer needs, which takes much longer to compile. With ADAMANT_SEPARATE_COMPILATION both are the same. The kernel
/// does not write a float32 weight_out; step() writes it after each block.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& step_format() noexcept;
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& optimizer_format() noexcept;

#else

/// Number of formats.
inline constexpr std::size_t format_count = 90;
/// All formats, always in the same order. Each combination of a param (float32, bfloat16, float16, split_float32), a
/// grad and one of the five pairs of moments has one format; with float32 params it has three: without weight_out, with
/// bfloat16 weight_out, and with float16 weight_out.
[[nodiscard]] std::span<shard_format const> all_formats() noexcept;
/// The format with these types; null if no shard of an optimizer can have them.
[[nodiscard]] shard_format const* find_format(shard_dtypes const& types) noexcept;
/// The same for step(), which also writes a float32 weight_out.
[[nodiscard]] shard_format const* find_step_format(shard_dtypes const& types) noexcept;

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& step_format() noexcept
{
    return *find_step_format(
        {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>, dtype_of<WeightOut>});
}
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& optimizer_format() noexcept
{
    return step_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>();
}

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE

#endif

namespace kernel {
/// Kernels for an accumulator of float or bfloat16.
template <class Sum>
[[nodiscard]] sum_kernels const& sum_kernels_for(isa tier) noexcept;
using sum_kernels_function = sum_kernels const& (*)(isa) noexcept;
/// The same for a type known at run time; null for other types.
[[nodiscard]] sum_kernels_function sum_kernels_of(dtype sum) noexcept;
/// reference::block_squares on that tier.
template <class Grad>
[[nodiscard]] block_squares_function block_squares_for(isa tier) noexcept;
} // namespace kernel

// ---- Names of storage formats

/// Types of a shard with this storage format. Pure.
///
/// - float32: float32 master and moments
/// - split_float32: split master weights (bfloat16 weight and 16-bit residual), float32 moments
/// - bfloat16, quantized8: float32 master, moments of this type
/// - split_float32+bfloat16, split_float32+quantized8: split master weights, moments of this type
///
/// find_format() says whether a shard can have these types.
/// @param name one of these
/// @param grad type of the gradients
/// @param weight bfloat16 or float16; none if the master is the weight
/// @return nullopt for an unknown name, and for split masters without bfloat16 weights
[[nodiscard]] constexpr std::optional<shard_dtypes> types_of_state(std::string_view name, dtype grad,
                                                                   dtype weight) noexcept
{
    constexpr std::string_view master_names[] = {"float32", "split_float32"};
    dtype master = dtype::float32;
    dtype moments = dtype::float32;
    constexpr dtype narrow_moments[] = {dtype::bfloat16, dtype::quantized8};
    for (dtype const type : narrow_moments) {
        std::string_view const text = adamant::name(type);
        if (name == text)
            name = master_names[0];
        else if (name.ends_with(text) && name.substr(0, name.size() - text.size()).ends_with('+'))
            name.remove_suffix(text.size() + 1);
        else
            continue;
        moments = type;
        break;
    }
    if (name == master_names[1])
        master = dtype::split_float32;
    else if (name != master_names[0])
        return std::nullopt;
    if (master == dtype::split_float32 && weight != dtype::bfloat16)
        return std::nullopt;
    return shard_dtypes{master, grad, moments, moments, weight};
}

// ---- Split master weights

/// Splits n masters into weights and residuals; see split_master(). `low` may begin where `master` does. Then the
/// residuals are in the first half of the masters' memory, and you may reuse the second half. Other overlaps are not
/// allowed. Any alignment. Thread-safe for distinct arrays.
inline void split_masters(float const* master, std::size_t n, bfloat16* weight, split_float32* low) noexcept
{
    auto const* const source = reinterpret_cast<std::byte const*>(master);
    for (std::size_t i = 0; i < n; ++i) {
        split_parts const parts = split_master(load_unaligned<float>(source + i * sizeof(float)));
        store_unaligned(reinterpret_cast<std::byte*>(weight) + i * sizeof(bfloat16), parts.weight);
        store_unaligned(reinterpret_cast<std::byte*>(low) + i * sizeof(split_float32), parts.low);
    }
}

/// Joins weights and residuals to masters, with the same bits except for NaNs, which become canonical. `low` may begin
/// where `master` does.
inline void join_masters(bfloat16 const* weight, split_float32 const* low, std::size_t n, float* master) noexcept
{
    for (std::size_t i = n; i-- != 0;) // from the end, so that no residual is overwritten before it is read
        store_unaligned(
            reinterpret_cast<std::byte*>(master) + i * sizeof(float),
            joined_master(
                load_unaligned<bfloat16>(reinterpret_cast<std::byte const*>(weight) + i * sizeof(bfloat16)),
                load_unaligned<split_float32>(reinterpret_cast<std::byte const*>(low) + i * sizeof(split_float32))));
}

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/shard/format.ipp>
#endif
