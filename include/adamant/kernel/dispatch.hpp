// SPDX-License-Identifier: Apache-2.0
// From a tier and element types to a function. A table holds one function per tier and is instantiated only for the
// types that a program uses.
#pragma once

#include <adamant/isa/isa.hpp>
#include <adamant/kernel/targets.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

// The oracle as a tier. See step_function.
namespace scalar {

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                         bool /*stream*/) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    std::uint64_t nonfinite = 0;
    for (std::size_t i = begin; i < end; ++i) {
        float const grad = widen(load_unaligned<Grad>(a.grad + i * sizeof(Grad)));
        oracle::element const updated =
            oracle::update({widen(load_unaligned<Param>(a.param + i * sizeof(Param))),
                            widen(load_unaligned<ExpAvg>(a.exp_avg + i * sizeof(ExpAvg))),
                            widen(load_unaligned<ExpAvgSq>(a.exp_avg_sq + i * sizeof(ExpAvgSq)))},
                           grad, c);
        store_unaligned(a.param + i * sizeof(Param), oracle::stored<Param>(updated.param));
        store_unaligned(a.exp_avg + i * sizeof(ExpAvg), oracle::stored<ExpAvg>(updated.exp_avg));
        store_unaligned(a.exp_avg_sq + i * sizeof(ExpAvgSq), oracle::stored<ExpAvgSq>(updated.exp_avg_sq));
        if constexpr (!std::is_void_v<WeightOut>)
            store_unaligned(a.weight_out + i * sizeof(WeightOut), oracle::stored<WeightOut>(updated.param));
        nonfinite += !is_finite(grad);
    }
    return nonfinite;
}

template <class Grad>
grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    return oracle::block_squares<Grad>(grad, n);
}

} // namespace scalar

// The step for these element types on that tier. WeightOut is void where there is no weight_out. The tier must be one
// that resolve_isa() returned. Thread-safe.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] step_function step_for(isa tier) noexcept
{
    switch (tier) {
    case isa::scalar: return scalar::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
#if defined(__x86_64__)
    case isa::avx2: return avx2::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
    case isa::avx512: return avx512::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
    case isa::avx512_bf16: return avx512_bf16::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
#endif
    default: return generic::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>;
    }
}

// The same for the sum of squares of one block.
template <class Grad>
[[nodiscard]] block_squares_function block_squares_for(isa tier) noexcept
{
    switch (tier) {
    case isa::scalar: return scalar::block_squares<Grad>;
#if defined(__x86_64__)
    case isa::avx2: return avx2::block_squares<Grad>;
    case isa::avx512: return avx512::block_squares<Grad>;
    case isa::avx512_bf16: return avx512_bf16::block_squares<Grad>;
#endif
    default: return generic::block_squares<Grad>;
    }
}

} // namespace kernel

ADAMANT_END_NAMESPACE
