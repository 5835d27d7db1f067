// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/formats.hpp>.
#pragma once

#include <string>

#include <adamant/dtype.hpp>
#include <adamant/formats.hpp>
#include <adamant/detail/shard/format_kernels.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL std::string to_text(shard_dtypes const& types)
{
    std::string all;
    for (dtype const type : types) {
        all += all.empty() ? "" : "/";
        all += type == dtype::none ? "-" : name(type);
    }
    return all;
}

#if defined(ADAMANT_HEADER_ONLY)

namespace detail {
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
inline constexpr shard_format format_to_step = {
    dtypes_of<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>,
    kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq,
                     std::conditional_t<std::is_same_v<WeightOut, float>, void, WeightOut>>,
    nullptr};
}

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
shard_format const& step_format() noexcept
{
    return detail::format_to_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
}
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
shard_format const& optimizer_format() noexcept
{
    return detail::format_with_all<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
}

#endif

namespace kernel {

ADAMANT_DECL std::size_t step_elems_for(isa tier) noexcept
{
    return group_elems_of(tier);
}
ADAMANT_DECL mark_changes_function mark_changes_for(shard_dtypes const& types, isa tier) noexcept
{
    if (!publishes_rounded(types))
        return size_bytes(types[published_array(types)]) == 2 ? mark_changes_for<std::uint16_t>(tier)
                                                              : mark_changes_for<std::uint32_t>(tier);
    return types[shard_array::weight_out] == dtype::bfloat16 ? mark_changes_for<bfloat16>(tier)
                                                             : mark_changes_for<float16>(tier);
}
ADAMANT_DECL sum_kernels_function sum_kernels_of(dtype sum) noexcept
{
    switch (sum) {
    case dtype::float32: return &sum_kernels_for<float>;
    case dtype::bfloat16: return &sum_kernels_for<bfloat16>;
    case dtype::float16: // no type for sums
    case dtype::split_float32:
    case dtype::quantized8:
    case dtype::none: break;
    }
    return nullptr;
}
} // namespace kernel

ADAMANT_END_NAMESPACE
