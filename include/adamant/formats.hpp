// SPDX-License-Identifier: Apache-2.0
// Storage formats of shards: valid element types, their sizes and their kernels; split master weights.
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

ADAMANT_BEGIN_NAMESPACE

/// A type of gradients: float, bfloat16 or float16.
template <class T>
concept element_type = std::is_same_v<T, float> || std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>;

/// A type of accumulators: float or bfloat16.
template <class T>
concept sum_type = std::is_same_v<T, float> || std::is_same_v<T, bfloat16>;

/// A type of first moments: float, bfloat16 or quantized8.
///
/// Not float16, because it flushes the square of a gradient below 2^-12 to zero.
template <class T>
concept moment_type = sum_type<T> || std::is_same_v<T, quantized8>;

/// A type of second moments for a type of first moments. Either both are quantized8 or neither is.
///
/// An underestimated second moment under an exact first moment would make the update too large.
template <class ExpAvgSq, class ExpAvg>
concept second_moment_type = moment_type<ExpAvgSq> && std::is_same_v<ExpAvgSq, quantized8>
== std::is_same_v<ExpAvg, quantized8>;

/// A storage type of params: an element type, or split_float32 (the residual; weight_out is the weight).
template <class T>
concept param_storage = element_type<T> || std::is_same_v<T, split_float32>;

/// A type of weight_out for a type of params: bfloat16 for split_float32; void, bfloat16 or float16 for float; else
/// void.
///
/// A 16-bit copy of 16-bit params would be redundant.
template <class WeightOut, class Param>
concept weight_out_type = (std::is_same_v<Param, split_float32> && std::is_same_v<WeightOut, bfloat16>) ||
                          (!std::is_same_v<Param, split_float32> && std::is_void_v<WeightOut>) ||
                          (std::is_same_v<Param, float> && element_type<WeightOut> &&
                           !std::is_same_v<WeightOut, float>);

/// Indexes of a shard's arrays.
namespace shard_array {
/// Index of an array in lists of a shard's arrays.
enum index : std::size_t {
    param,       ///< master weights, or their residuals (split_float32)
    grad,        ///< gradients
    exp_avg,     ///< first moments
    exp_avg_sq,  ///< second moments
    weight_out,  ///< 16-bit weights
    accumulator, ///< accumulated gradients; shards of an optimizer only
};
/// Names of the arrays, by index.
inline constexpr char const* names[] = {"param", "grad", "exp_avg", "exp_avg_sq", "weight_out", "accumulator"};
} // namespace shard_array
/// Number of a shard's arrays without the accumulator.
inline constexpr std::size_t shard_arrays = 5;

/// Element types of a shard's arrays without the accumulator; `none` for weight_out if the shard lacks it.
using shard_dtypes = std::array<dtype, shard_arrays>;

/// Returns whether the master weights are split. A step then also reads weight_out.
[[nodiscard]] constexpr bool has_split_param(shard_dtypes const& types) noexcept
{
    return types[shard_array::param] == dtype::split_float32;
}
/// The arrays that can be state; see is_state().
inline constexpr shard_array::index state_arrays[] = {shard_array::param, shard_array::exp_avg, shard_array::exp_avg_sq,
                                                      shard_array::weight_out};
/// Returns whether an array is state: a step reads and writes it, and a checkpoint needs it.
[[nodiscard]] constexpr bool is_state(shard_dtypes const& types, shard_array::index array) noexcept
{
    return array != shard_array::grad && (array != shard_array::weight_out || has_split_param(types));
}
/// Returns the bytes of the state of n elements.
[[nodiscard]] constexpr std::size_t state_bytes(shard_dtypes const& types, std::size_t n) noexcept
{
    std::size_t bytes = 0;
    for (shard_array::index const array : state_arrays)
        bytes += is_state(types, array) ? array_bytes(types[array], n) : 0;
    return bytes;
}
/// Returns the average bytes of the state of one element.
[[nodiscard]] constexpr double state_bytes(shard_dtypes const& types) noexcept
{
    double bytes = 0;
    for (shard_array::index const array : state_arrays)
        bytes += is_state(types, array) ? bytes_each(types[array]) : 0;
    return bytes;
}
/// Returns the bytes that a step of n elements moves: it reads and writes the state, reads grad, writes weight_out.
[[nodiscard]] constexpr std::size_t step_bytes(shard_dtypes const& types, std::size_t n) noexcept
{
    using namespace shard_array;
    return 2 * state_bytes(types, n) + array_bytes(types[grad], n) +
           (has_split_param(types) ? 0 : array_bytes(types[weight_out], n));
}
/// Returns the average bytes that a step moves for one element.
[[nodiscard]] constexpr double step_bytes(shard_dtypes const& types) noexcept
{
    using namespace shard_array;
    return 2 * state_bytes(types) + bytes_each(types[grad]) +
           (has_split_param(types) ? 0 : bytes_each(types[weight_out]));
}
/// Returns the bytes of n elements in all five arrays.
[[nodiscard]] constexpr std::size_t memory_bytes(shard_dtypes const& types, std::size_t n) noexcept
{
    std::size_t bytes = 0;
    for (dtype const type : types)
        bytes += array_bytes(type, n);
    return bytes;
}
/// Returns the average bytes of one element in all five arrays.
[[nodiscard]] constexpr double memory_bytes(shard_dtypes const& types) noexcept
{
    double bytes = 0;
    for (dtype const type : types)
        bytes += bytes_each(type);
    return bytes;
}
/// Returns the granularity of shard boundaries in elements: 64 with quantized moments, else 1.
///
/// A shard begins at a multiple of it in its parameter.
[[nodiscard]] constexpr std::size_t elems_together(shard_dtypes const& types) noexcept
{
    return elems_together(types[shard_array::exp_avg]);
}
/// Returns whether a step rounds an array of these types stochastically.
[[nodiscard]] constexpr bool rounds_stochastically(shard_dtypes const& types, step_rounding const& rounding) noexcept
{
    using namespace shard_array;
    return (rounding.param && types[param] == dtype::bfloat16) ||
           (rounding.exp_avg_sq && (types[exp_avg_sq] == dtype::bfloat16 || types[exp_avg_sq] == dtype::quantized8));
}
/// Element types of a shard with the kernels for them.
///
/// Formats are constants of the program: compare them by address or by types. Both functions take a tier that
/// resolve_isa() returned.
struct shard_format {
    shard_dtypes types;                              ///< element types
    kernel::step_function (*step_for)(isa) noexcept; ///< returns the kernel of a step
    /// Returns the kernels of an optimizer. Null in a format that only supports step().
    kernel::block_kernels const& (*block_kernels_for)(isa) noexcept;
};

/// Formats types as "float32/bfloat16/float32/float32/bfloat16", with "-" for none. One to one.
[[nodiscard]] std::string to_text(shard_dtypes const& types);

/// Kernels, selected by type and tier.
namespace kernel {
/// Returns how many elements a step of that tier computes at a time.
[[nodiscard]] std::size_t step_elems_for(isa tier) noexcept;
} // namespace kernel

#if defined(ADAMANT_HEADER_ONLY)

/// Returns the format of a shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> with the kernels for step() only.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& step_format() noexcept;
/// Returns the same format with the kernels of an optimizer, too, which take much longer to compile.
///
/// With separate compilation it is identical to step_format().
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& optimizer_format() noexcept;

#else

/// Number of formats.
inline constexpr std::size_t format_count = 90;
/// Returns all formats, always in the same order.
///
/// For each type of param (float32, bfloat16, float16, split_float32) and grad: the five pairs of moments; for each of
/// these with a float32 param: no weight_out, bfloat16 and float16.
[[nodiscard]] std::span<shard_format const> all_formats() noexcept;
/// Returns the format with these types, or null if no shard can have them.
[[nodiscard]] shard_format const* find_format(shard_dtypes const& types) noexcept;

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// Returns the format of a shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& step_format() noexcept
{
    return *find_format({dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>, dtype_of<WeightOut>});
}
/// Returns step_format(): with separate compilation every format has the kernels of an optimizer.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& optimizer_format() noexcept
{
    return step_format<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>();
}

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE

#endif

namespace kernel {
/// Returns the kernels that accumulate gradients in an accumulator of float or bfloat16.
template <class Sum>
[[nodiscard]] sum_kernels const& sum_kernels_for(isa tier) noexcept;
/// Type of sum_kernels_for<Sum>.
using sum_kernels_function = sum_kernels const& (*)(isa) noexcept;
/// Returns sum_kernels_for<> of a run-time type; null unless it is float32 or bfloat16.
[[nodiscard]] sum_kernels_function sum_kernels_of(dtype sum) noexcept;
/// Returns the kernel of reference::block_squares() on that tier.
template <class Grad>
[[nodiscard]] block_squares_function block_squares_for(isa tier) noexcept;
} // namespace kernel

/// Returns the element types of a shard for the name of a state format, or nullopt. Pure.
///
/// The names are:
///   - "float32": float32 master weights and moments
///   - "split_float32": split master weights (bfloat16 weight and 16-bit residual), float32 moments
///   - "bfloat16": float32 master weights, bfloat16 moments
///   - "quantized8": float32 master weights, 8-bit moments
///   - "split_float32+bfloat16", "split_float32+quantized8": split master weights, such moments
///
/// Returns nullopt for other names, and for split master weights unless weight is bfloat16.
/// @param weight  type of weight_out: bfloat16 or float16; none if the master weights are the weights.
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

/// Splits n float32 master weights into bfloat16 weights and 16-bit residuals, see split_master().
///
/// Arrays may have any alignment. `low` may begin where `master` does; the second half of the masters' memory is then
/// free afterwards. No other overlap is allowed. Thread-safe for distinct arrays.
inline void split_masters(float const* master, std::size_t n, bfloat16* weight, split_float32* low) noexcept
{
    auto const* const masters = reinterpret_cast<std::byte const*>(master);
    for (std::size_t i = 0; i < n; ++i) {
        split_parts const parts = split_master(load_unaligned<float>(masters + i * sizeof(float)));
        store_unaligned(reinterpret_cast<std::byte*>(weight) + i * sizeof(bfloat16), parts.weight);
        store_unaligned(reinterpret_cast<std::byte*>(low) + i * sizeof(split_float32), parts.low);
    }
}

/// Joins n split master weights; the inverse of split_masters() except that NaNs are canonical.
///
/// Arrays may have any alignment. `low` may begin where `master` does; no other overlap is allowed.
inline void join_masters(bfloat16 const* weight, split_float32 const* low, std::size_t n, float* master) noexcept
{
    for (std::size_t i = n; i-- != 0;) // backwards, so that no residual is overwritten before it is read
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
