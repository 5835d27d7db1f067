// SPDX-License-Identifier: Apache-2.0
// The scalar reference implementation of a step and of a gradient's sum of squares.
//
// It is the specification: every other path returns its bits. It favors clarity over speed. Callers run it under
// float_mode_scope(subnormals::kept), so that flush() alone decides what small numbers become. No function here
// allocates or throws. Calls on distinct arrays are thread-safe.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <adamant/dtype.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/detail/numerics/grad_squares.hpp>

ADAMANT_BEGIN_NAMESPACE

inline constexpr std::size_t norm_lanes = 64;       ///< partial sums of a block; see reference::block_squares()
inline constexpr float norm_lane_start = 0x1p-125f; ///< initial value of each partial sum
inline constexpr double norm_safe_from = 0x1p-90;   ///< smaller block sums are recomputed in double

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE
/// The scalar reference implementation.
namespace reference {

/// Parameter and moments of one element.
struct element {
    float param;      ///< master weight
    float exp_avg;    ///< first moment
    float exp_avg_sq; ///< second moment
};

/// Computes one step of one element in float.
///
/// Each operation is rounded to nearest even and then flushed. Every addition is part of an fma, so no compiler setting
/// can contract or split it. Adam: Kingma and Ba, arXiv 1412.6980, algorithm 1 with the bias corrections folded into
/// neg_step_size and inv_sqrt_bias2. AdamW: Loshchilov and Hutter, arXiv 1711.05101.
[[nodiscard]] inline element update(element old, float grad, coefficients const& c) noexcept
{
    float const p = flush(old.param);
    float const m = flush(old.exp_avg);
    float const v = flush(old.exp_avg_sq);
    float g = flush(flush(grad) * c.grad_scale); // multiplying by 1 is exact, so paths may skip it
    if (c.l2 != 0)
        g = flush(std::fma(c.l2, p, g));
    float const m_new = flush(std::fma(c.beta1, m, flush(c.one_minus_beta1 * g)));
    float const v_new = flush(std::fma(c.one_minus_beta2, flush(g * g), flush(c.beta2 * v)));
    float const d = flush(std::fma(flush(std::sqrt(v_new)), c.inv_sqrt_bias2, c.eps));
    float const p_new = flush(std::fma(c.neg_step_size, flush(m_new / d), flush(c.decay * p)));

    auto const canonical = [](float x) { return is_nan(x) ? std::bit_cast<float>(canonical_nan_bits) : x; };
    return {canonical(p_new), canonical(m_new), canonical(v_new)};
}

/// Rounds a result to its storage type, and flushes again: rounding to bfloat16 can reach 2^-126 from above.
template <class T>
[[nodiscard]] constexpr T stored(float x) noexcept
{
    return flush(narrow<T>(x));
}

/// Rounds a result to its storage type; if `stochastic` and T is bfloat16, by stochastic rounding.
template <class T>
[[nodiscard]] constexpr T stored(float x, bool stochastic, std::uint16_t random) noexcept
{
    if constexpr (std::is_same_v<T, bfloat16>) {
        if (stochastic)
            return stochastically_rounded(x, random);
    }
    return stored<T>(x);
}

/// Bits of the weight that an element publishes, if it is stored as T: in weight_out, or in param without one.
template <class T>
[[nodiscard]] constexpr std::uint32_t published_bits(T weight) noexcept
{
    if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<std::uint32_t>(weight);
    else
        return weight.bits;
}
/// The same for a float param with a weight_out of T: the bits of its rounding, which weight_out holds after each step.
template <class T>
[[nodiscard]] constexpr std::uint32_t rounded_bits(float param) noexcept
{
    return published_bits(stored<T>(is_nan(param) ? std::bit_cast<float>(canonical_nan_bits) : param));
}
/// Whether a step changes the published weight of an element whose param was `before` and is `after`. Split masters
/// publish the bfloat16 weight: pass that. WeightOut: type of a 16-bit weight_out of a float param, otherwise void.
template <class WeightOut = void, class T>
[[nodiscard]] constexpr bool is_changed(T before, T after) noexcept
{
    if constexpr (std::is_void_v<WeightOut>)
        return published_bits(before) != published_bits(after);
    else
        return rounded_bits<WeightOut>(before) != rounded_bits<WeightOut>(after);
}

/// Adds a gradient to an accumulated sum, in float. stored<T>() rounds the result to the accumulator's type.
[[nodiscard]] inline float added(float grad, float sum) noexcept
{
    float const total = flush(std::fma(1.0f, flush(sum), flush(grad)));
    return is_nan(total) ? std::bit_cast<float>(canonical_nan_bits) : total;
}

/// Scales a gradient and clamps it to +-bound, infinities included. bound may be infinite. A NaN remains a NaN.
///
/// With zero_nonfinite, infinities and NaNs count as 0. Clamps as torch's clip_grad_value_() does.
[[nodiscard]] inline float clamped(float grad, bool zero_nonfinite, float scale, float bound) noexcept
{
    float const g = flush(flush(zero_nonfinite && !is_finite(grad) ? 0.0f : grad) * scale);
    if (is_nan(g))
        return std::bit_cast<float>(canonical_nan_bits);
    return std::fabs(g) > bound ? std::copysign(bound, g) : g;
}

/// Adds the partial sums of a block pairwise, in double: j and j + Width, halving Width each time.
template <std::size_t Width = norm_lanes / 2>
ADAMANT_ALWAYS_INLINE double add_pairwise(double (&partial)[norm_lanes]) noexcept
{
    for (std::size_t j = 0; j < Width; ++j)
        partial[j] += partial[j + Width];
    if constexpr (Width > 1)
        return add_pairwise<Width / 2>(partial);
    else
        return partial[0];
}
/// Returns the sum of a block from its float partial sums, each of which started at norm_lane_start.
ADAMANT_ALWAYS_INLINE double add_lanes(float const (&lane)[norm_lanes]) noexcept
{
    double partial[norm_lanes];
    for (std::size_t j = 0; j < norm_lanes; ++j)
        partial[j] = static_cast<double>(lane[j]) - static_cast<double>(norm_lane_start);
    return add_pairwise(partial);
}
/// Returns whether block_squares() may use a block sum that was computed in float.
[[nodiscard]] ADAMANT_ALWAYS_INLINE bool is_safe(double block_sum) noexcept
{
    return block_sum >= norm_safe_from && block_sum < static_cast<double>(INFINITY);
}
/// Sums the squares of a block in double, for blocks whose float sum is not safe.
///
/// Squares of floats are exact in double and cannot overflow it.
template <class Grad>
[[nodiscard]] inline grad_squares block_squares_in_double(std::byte const* grad, std::size_t n) noexcept
{
    double partial[norm_lanes] = {};
    std::uint64_t nonfinite = 0;
    for (std::size_t i = 0; i < n; ++i) {
        float const g = flush(widen(load_unaligned<Grad>(grad + i * sizeof(Grad))));
        if (is_finite(g))
            partial[i % norm_lanes] += static_cast<double>(g) * static_cast<double>(g);
        else
            ++nonfinite;
    }
    return {add_pairwise(partial), nonfinite};
}

/// Sums the squares of a block of at most norm_block_elems elements.
///
/// Element i is added to partial sum i mod 64, in float, by one fused multiply-add. The partial sums are added
/// pairwise, in double. If the result is not finite or small, the block is recomputed in double; the bits of the result
/// decide that, so every path decides alike.
///
/// The relative error is at most 2^-18; a comment in the function has the proof.
template <class Grad>
[[nodiscard]] inline grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    // Why partial sums start at 2^-125: no result comes near 2^-126, where processors flush differently. A gradient of
    // at most 2^-126, which some processors read as 0, changes no sum: its square is less than 2^-102 of the last
    // place. The starts are subtracted again at the end, so a block of zeros has a sum of 0.
    //
    // Proof of the error bound. Let u = 2^-24 / (1 + 2^-24), the largest error of a result rounded to nearest, relative
    // to the exact result. For n terms x_k >= 0 let S_k be the exact sum of the first k and T_k the computed one:
    // T_k = round(T_(k-1) + x_k). Then |T_k - S_k| <= k u S_k, by induction. The error of step k is at most
    // u (T_(k-1) + x_k), and at most x_k, because T_(k-1) is a float itself.
    //   x_k <= u S_(k-1):  (k-1) u S_(k-1) + x_k <= k u S_(k-1)
    //   x_k >  u S_(k-1):  (k-1) u S_(k-1) + u (S_(k-1) + (k-1) u S_(k-1) + x_k) < (k-1) u S_(k-1) + u S_k
    //                      + (k-1) u x_k = k u S_k
    // (Jeannerod and Rump, SIAM J. Matrix Anal. Appl. 34, 2013, prove this for inner products.) A lane has 64 terms in
    // addition to its start: 64 u = 2^-18 (1 - 2^-24) at most. The remaining 2^-42 of the sum covers the seven
    // operations in double, 2^-50, and the error from the 64 starts, 2^-18 of 2^-119, if the sum is at least 2^-90.
    float lane[norm_lanes];
    for (float& sum : lane)
        sum = norm_lane_start;
    for (std::size_t i = 0; i < n; ++i) {
        float const g = widen(load_unaligned<Grad>(grad + i * sizeof(Grad)));
        lane[i % norm_lanes] = std::fma(g, g, lane[i % norm_lanes]);
    }
    double const sum = add_lanes(lane);
    return is_safe(sum) ? grad_squares{sum, 0} : block_squares_in_double<Grad>(grad, n);
}

} // namespace reference

ADAMANT_END_INLINE_NAMESPACE
