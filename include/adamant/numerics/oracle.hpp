// SPDX-License-Identifier: Apache-2.0
// The scalar oracle: the definition of a step and of a gradient's sum of squares. Every other path returns its bits.
// Written to be read, not to be fast. It runs under float_mode_scope(subnormals::kept), so that flush() alone decides
// what small numbers become. No function here allocates or throws; distinct arrays may be used from any thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <adamant/numerics/coefficients.hpp>
#include <adamant/numerics/convert.hpp>

ADAMANT_BEGIN_NAMESPACE

// The gradient's norm is computed over blocks of this many elements, counted from the start of its array; the last may
// be shorter. Shards may be cut at multiples of it only, so that a cut never changes a sum.
inline constexpr std::size_t norm_block_elems = 4096;

// The result of one pass over a gradient.
struct grad_squares {
    double sum = 0;              // of the squares of the finite elements
    std::uint64_t nonfinite = 0; // the number of elements that are infinite or NaN, which are not in the sum
};

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE
namespace oracle {

// Param and both moments of one element.
struct element {
    float param;
    float exp_avg;
    float exp_avg_sq;
};

// One step of one element, in float, each operation rounded to nearest even and then flushed. Every addition is part
// of an fma, so no compiler setting can contract or split one. Adam: Kingma and Ba, arXiv 1412.6980, algorithm 1 with
// the bias corrections folded into neg_step_size and inv_sqrt_bias2; AdamW: Loshchilov and Hutter, arXiv 1711.05101.
[[nodiscard]] inline element update(element old, float grad, coefficients const& c) noexcept
{
    float const p = flush(old.param);
    float const m = flush(old.exp_avg);
    float const v = flush(old.exp_avg_sq);
    float g = flush(flush(grad) * c.grad_scale); // times 1 is exact: the same as leaving it out
    if (c.l2 != 0)
        g = flush(std::fma(c.l2, p, g));
    float const m_new = flush(std::fma(c.beta1, m, flush(c.one_minus_beta1 * g)));
    float const v_new = flush(std::fma(c.one_minus_beta2, flush(g * g), flush(c.beta2 * v)));
    float const d = flush(std::fma(flush(std::sqrt(v_new)), c.inv_sqrt_bias2, c.eps));
    float const p_new = flush(std::fma(c.neg_step_size, flush(m_new / d), flush(c.decay * p)));

    auto const canonical = [](float x) { return is_nan(x) ? std::bit_cast<float>(canonical_nan_bits) : x; };
    return {canonical(p_new), canonical(m_new), canonical(v_new)};
}

// A result as it is stored: rounded, and flushed again, because rounding to bfloat16 can reach 2^-126 from above.
template <class T>
[[nodiscard]] constexpr T stored(float x) noexcept
{
    return flush(narrow<T>(x));
}

// The sum of a gradient and the earlier ones, in float; stored<T>() rounds it to the accumulator's type.
[[nodiscard]] inline float added(float grad, float sum) noexcept
{
    float const total = flush(std::fma(1.0f, flush(sum), flush(grad)));
    return is_nan(total) ? std::bit_cast<float>(canonical_nan_bits) : total;
}

// A gradient, scaled and limited to +-bound, infinities included (bound may be infinite). A NaN stays a NaN.
// zero_nonfinite: infinities and NaNs count as zero. Torch's clip_grad_value_() does the same.
[[nodiscard]] inline float tamed(float grad, bool zero_nonfinite, float scale, float bound) noexcept
{
    float const g = flush(flush(zero_nonfinite && !is_finite(grad) ? 0.0f : grad) * scale);
    if (is_nan(g))
        return std::bit_cast<float>(canonical_nan_bits);
    return std::fabs(g) > bound ? std::copysign(bound, g) : g;
}

// One block of at most norm_block_elems elements: element i goes to partial sum i mod 16, and the partial sums are
// added pairwise, j and j + 8, then j and j + 4, 2, 1. A float's square is exact in double, so it does not matter
// whether square and addition are fused.
template <class Grad>
[[nodiscard]] inline grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    double partial[16] = {};
    std::uint64_t nonfinite = 0;
    for (std::size_t i = 0; i < n; ++i) {
        float const g = flush(widen(load_unaligned<Grad>(grad + i * sizeof(Grad))));
        if (is_finite(g))
            partial[i % 16] += static_cast<double>(g) * static_cast<double>(g);
        else
            ++nonfinite;
    }
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j)
            partial[j] += partial[j + width];
    return {partial[0], nonfinite};
}

} // namespace oracle

ADAMANT_END_INLINE_NAMESPACE
