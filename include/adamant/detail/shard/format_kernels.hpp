// SPDX-License-Identifier: Apache-2.0
// Shard formats for element types that are known at compile time. Instantiates the kernels of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <adamant/formats.hpp>
#include <adamant/detail/kernels/dispatch.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] kernel::block_kernels make_block_kernels(isa tier) noexcept
{
    kernel::block_kernels k{};
    k.step = kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(tier);
    k.step_scratch = kernel::step_for<Param, float, ExpAvg, ExpAvgSq, WeightOut>(tier);
    k.squares = kernel::block_squares_for<Grad>(tier);
    k.squares_scratch = kernel::block_squares_for<float>(tier);
    if constexpr (std::is_same_v<ExpAvg, float> && std::is_same_v<ExpAvgSq, float>) {
        k.rollback_scratch = kernel::rollback_for<float>(tier);
        if constexpr (kernel::is_split<Param>) {
            k.recorded = kernel::recorded_step_for<float, Grad, void>(tier);
            k.join = kernel::join_masters_for(tier);
            k.split = kernel::split_masters_for(tier);
        } else {
            k.recorded = kernel::recorded_step_for<Param, Grad, WeightOut>(tier);
        }
        if constexpr (sizeof(Param) == sizeof(std::uint16_t) && !kernel::is_split<Param>)
            k.widen_params = kernel::add_gradients_for<Param, void, float>(tier);
    }
    k.to_scratch = kernel::add_gradients_for<Grad, void, float>(tier);
    k.clamp_gradient = kernel::clamp_gradient_for(tier);
    if constexpr (!std::is_void_v<WeightOut> && !kernel::is_split<Param>)
        k.round_weights = kernel::round_weights_for<WeightOut>(tier);
    return k;
}

template <class Sum>
[[nodiscard]] kernel::sum_kernels make_sum_kernels(isa tier) noexcept
{
    return {kernel::add_gradients_for<float, void, Sum>(tier), kernel::add_gradients_for<float, Sum, Sum>(tier),
            kernel::add_gradients_for<float, Sum, float>(tier)};
}

// The kernels of a tier. The first call makes the table of all tiers.
template <class Kernels, Kernels (*Make)(isa) noexcept>
[[nodiscard]] Kernels const& kernels_of(isa tier) noexcept
{
    static Kernels const all[] = {Make(isa::scalar), Make(isa::scalar), Make(isa::neon),
                                  Make(isa::avx2),   Make(isa::avx512), Make(isa::avx512_bf16)};
    return all[static_cast<std::size_t>(tier)];
}

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
inline constexpr shard_dtypes dtypes_of = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>,
                                           dtype_of<WeightOut>};

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
inline constexpr shard_format format_with_all = {
    dtypes_of<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>, kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>,
    kernels_of<kernel::block_kernels, make_block_kernels<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>>};

} // namespace detail

namespace kernel {
template <class Sum>
sum_kernels const& sum_kernels_for(isa tier) noexcept
{
    return detail::kernels_of<sum_kernels, detail::make_sum_kernels<Sum>>(tier);
}
} // namespace kernel

ADAMANT_END_NAMESPACE
