// SPDX-License-Identifier: Apache-2.0
// The formats that there are, and kernels by the types that they work on.
#pragma once

#include <span>
#include <string>

#include <adamant/shard/dtypes.hpp>

ADAMANT_BEGIN_NAMESPACE

// "float32/bfloat16/float32/float32/bfloat16", with "-" for none: the same types have the same text.
[[nodiscard]] std::string to_text(shard_dtypes const& types);

namespace kernel {
// How many elements a step of that tier computes together.
[[nodiscard]] std::size_t step_elems_for(isa tier) noexcept;
} // namespace kernel

#if defined(ADAMANT_HEADER_ONLY)

// The format of a shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>, to step it; and with all that an optimizer needs,
// which takes a compiler much longer. Compiled separately they are the same.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& step_format() noexcept;
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& optimizer_format() noexcept;

#else

// All formats that there are, always in the same order: for each param (float32, bfloat16, float16, split_float32) and
// grad the five pairs of moments, and for each of these with a float32 param no weight_out, bfloat16 and float16.
inline constexpr std::size_t format_count = 90;
[[nodiscard]] std::span<shard_format const> all_formats() noexcept;
// The one with these types; null where no shard has them.
[[nodiscard]] shard_format const* find_format(shard_dtypes const& types) noexcept;

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] shard_format const& step_format() noexcept
{
    return *find_format({dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>, dtype_of<WeightOut>});
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
// For an accumulator of float or bfloat16.
template <class Sum>
[[nodiscard]] sum_kernels const& sum_kernels_for(isa tier) noexcept;
using sum_kernels_function = sum_kernels const& (*)(isa) noexcept;
// The same by a type that is known at run time; null for any other.
[[nodiscard]] sum_kernels_function sum_kernels_of(dtype sum) noexcept;
// oracle::block_squares on that tier.
template <class Grad>
[[nodiscard]] block_squares_function block_squares_for(isa tier) noexcept;
} // namespace kernel

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/shard/format.ipp>
#endif
