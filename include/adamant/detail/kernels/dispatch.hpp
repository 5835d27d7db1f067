// SPDX-License-Identifier: Apache-2.0
// Selects the kernel for a tier and element types. Kernels are instantiated only for the types that a program uses.
#pragma once

#include <adamant/isa.hpp>
#include <adamant/reference.hpp>
#include <adamant/detail/kernels/targets.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

// The reference implementation as a tier. See step_function.
namespace scalar {

template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                         memory_access const&) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    if constexpr (is_quantized<ExpAvg>) {
        return quantized_step(a, begin, end, c, {false},
                              quantized_paths_for<Param, Grad, WeightOut>(
                                  fused_step<Param, Grad, float, float, WeightOut>, moments_codec, nullptr));
    } else {
        std::uint64_t nonfinite = 0;
        rounding_lines lines = {};
        std::size_t line_end = begin;
        if (a.copies != nullptr) {
            auto const copy = [&](std::byte* copies, std::byte const* array, std::size_t bytes) {
                std::memcpy(copies + begin * bytes, array + begin * bytes, (end - begin) * bytes);
            };
            copy(a.copies->param, a.param, sizeof(Param));
            copy(a.copies->exp_avg, a.exp_avg, sizeof(ExpAvg));
            copy(a.copies->exp_avg_sq, a.exp_avg_sq, sizeof(ExpAvgSq));
            if constexpr (is_split<Param>)
                copy(a.copies->weight_out, a.weight_out, sizeof(WeightOut));
        }
        for (std::size_t i = begin; i < end; ++i) {
            if (i == line_end) {
                lines = rounding_lines_at(c.rounding.key, a.position, i);
                line_end = rounding_line_end(a.position, i);
            }
            float const grad = widen(load_unaligned<Grad>(a.grad + i * sizeof(Grad)));
            auto const param = load_unaligned<Param>(a.param + i * sizeof(Param));
            float master;
            if constexpr (is_split<Param>)
                master = joined_master(load_unaligned<WeightOut>(a.weight_out + i * sizeof(WeightOut)), param);
            else
                master = widen(param);
            [[maybe_unused]] auto const published = [&] {
                if constexpr (is_split<Param>)
                    return load_unaligned<WeightOut>(a.weight_out + i * sizeof(WeightOut));
                else
                    return load_unaligned<Param>(a.param + i * sizeof(Param));
            };
            auto const before = published();
            reference::element const updated =
                reference::update({master, widen(load_unaligned<ExpAvg>(a.exp_avg + i * sizeof(ExpAvg))),
                                   widen(load_unaligned<ExpAvgSq>(a.exp_avg_sq + i * sizeof(ExpAvgSq)))},
                                  grad, c);
            if constexpr (is_split<Param>)
                store_unaligned(a.param + i * sizeof(Param), split_master(updated.param).low);
            else
                store_unaligned(a.param + i * sizeof(Param),
                                reference::stored<Param>(updated.param, c.rounding.param, random_half(lines.param, i)));
            store_unaligned(a.exp_avg + i * sizeof(ExpAvg), reference::stored<ExpAvg>(updated.exp_avg));
            store_unaligned(a.exp_avg_sq + i * sizeof(ExpAvgSq),
                            reference::stored<ExpAvgSq>(updated.exp_avg_sq, c.rounding.exp_avg_sq,
                                                        random_half(lines.exp_avg_sq, i)));
            if constexpr (is_split<Param>)
                store_unaligned(a.weight_out + i * sizeof(WeightOut), split_master(updated.param).weight);
            else if constexpr (!std::is_void_v<WeightOut>)
                store_unaligned(a.weight_out + i * sizeof(WeightOut), reference::stored<WeightOut>(updated.param));
            using rounded = std::conditional_t<std::is_same_v<Param, float>, WeightOut, void>;
            if (a.changed != nullptr && reference::is_changed<rounded>(before, published()))
                a.changed[i / changed_word_elems] |= std::uint64_t{1} << i % changed_word_elems;
            nonfinite += !is_finite(grad);
        }
        return nonfinite;
    }
}

template <class Grad>
grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    return reference::block_squares<Grad>(grad, n);
}

template <class Grad, class Sum, class Out>
void add_gradients(std::byte const* grad, std::byte const* sum, std::size_t n, std::byte* out) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    for (std::size_t i = 0; i < n; ++i) {
        float total = widen(load_unaligned<Grad>(grad + i * sizeof(Grad)));
        if constexpr (!std::is_void_v<Sum>)
            total = reference::added(total, widen(load_unaligned<Sum>(sum + i * sizeof(Sum))));
        else if (is_nan(total))
            total = std::bit_cast<float>(canonical_nan_bits);
        store_unaligned(out + i * sizeof(Out), reference::stored<Out>(total));
    }
}

template <class Grad>
void add_scaled(std::byte const* grad, std::size_t n, float scale, bool first, float* sum) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    for (std::size_t i = 0; i < n; ++i) {
        float const g = reference::clamped(widen(load_unaligned<Grad>(grad + i * sizeof(Grad))), false, scale,
                                           std::bit_cast<float>(float_infinity_bits));
        sum[i] = first ? g : reference::added(g, sum[i]);
    }
}

inline void clamp_gradient(std::byte* grad, std::size_t n, bool zero_nonfinite, float scale, float bound) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    for (std::size_t i = 0; i < n; ++i) {
        std::byte* const element = grad + i * sizeof(float);
        store_unaligned(element, reference::clamped(load_unaligned<float>(element), zero_nonfinite, scale, bound));
    }
}

template <class WeightOut>
void round_weights(std::byte const* param, std::size_t n, std::byte* out) noexcept
{
    add_gradients<float, void, WeightOut>(param, nullptr, n, out);
}

template <class T>
void mark_changes(std::byte const* before, std::byte const* after, std::size_t n, std::uint64_t* changed) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    for (std::size_t i = 0; i < n; ++i) {
        bool differs;
        if constexpr (std::is_integral_v<T>)
            differs = load_unaligned<T>(before + i * sizeof(T)) != load_unaligned<T>(after + i * sizeof(T));
        else
            differs = reference::is_changed<T>(load_unaligned<float>(before + i * sizeof(float)),
                                               load_unaligned<float>(after + i * sizeof(float)));
        if (differs)
            changed[i / changed_word_elems] |= std::uint64_t{1} << i % changed_word_elems;
    }
}

} // namespace scalar

// Returns the function of a tier; on the scalar tier, the expression on_scalar, which may be null.
#if defined(ADAMANT_EMULATED_AVX512) // this build has only these tiers and the reference implementation
#define ADAMANT_FOR_TIER(tier, on_scalar, ...)                                                                         \
    if ((tier) == isa::scalar)                                                                                         \
        return on_scalar;                                                                                              \
    if ((tier) == isa::avx512_bf16)                                                                                    \
        return avx512_bf16::__VA_ARGS__;                                                                               \
    return avx512::__VA_ARGS__
#elif defined(__x86_64__)
#define ADAMANT_FOR_TIER(tier, on_scalar, ...)                                                                         \
    switch (tier) {                                                                                                    \
    case isa::avx2: return avx2::__VA_ARGS__;                                                                          \
    case isa::avx512: return avx512::__VA_ARGS__;                                                                      \
    case isa::avx512_bf16: return avx512_bf16::__VA_ARGS__;                                                            \
    default: return on_scalar;                                                                                         \
    }
#else
#define ADAMANT_FOR_TIER(tier, on_scalar, ...) return (tier) == isa::scalar ? on_scalar : neon::__VA_ARGS__
#endif

// Elements of a group, which a step of the tier computes together.
[[nodiscard]] inline std::size_t group_elems_of(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, 1, group_elems);
}

// The step for these element types on the tier. WeightOut is void for shards without weight_out. The tier must be a
// result of resolve_isa(). Thread-safe, like all functions below.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[nodiscard]] step_function step_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>),
                     fused_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>);
}

// The sum of squares of one block.
template <class Grad>
[[nodiscard]] block_squares_function block_squares_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::block_squares<Grad>), block_squares<Grad>);
}

// Null on the scalar tier, whose records are copies. WeightOut may be void.
template <class Param, class Grad, class WeightOut>
[[nodiscard]] recorded_step_function recorded_step_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, nullptr, recorded_step<Param, Grad, WeightOut>);
}

template <class Grad>
[[nodiscard]] rollback_function rollback_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, nullptr, rollback_step<Grad>);
}

// Sum is void if there is nothing to add to.
template <class Grad, class Sum, class Out>
[[nodiscard]] add_gradients_function add_gradients_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::add_gradients<Grad, Sum, Out>), add_gradients<Grad, Sum, Out>);
}

// Null on the scalar tier, whose records are copies.
[[nodiscard]] inline join_function join_masters_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, nullptr, join_masters);
}
[[nodiscard]] inline split_function split_masters_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, nullptr, split_masters);
}

[[nodiscard]] inline clamp_gradient_function clamp_gradient_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::clamp_gradient), clamp_gradient);
}

template <class WeightOut>
[[nodiscard]] round_weights_function round_weights_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::round_weights<WeightOut>), round_weights<WeightOut>);
}

// T: std::uint16_t or std::uint32_t for arrays of that size, or the type of weight_out, to which floats are rounded.
template <class T>
[[nodiscard]] mark_changes_function mark_changes_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::mark_changes<T>), mark_changes<T>);
}

template <class Grad>
[[nodiscard]] add_scaled_function add_scaled_of(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::add_scaled<Grad>), add_scaled<Grad>);
}
} // namespace kernel

ADAMANT_END_NAMESPACE
