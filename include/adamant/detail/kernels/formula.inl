// SPDX-License-Identifier: Apache-2.0
// The formula of one step over vectors, as in reference.hpp, on each path. Included by detail/kernels/fused_step.inl,
// once per instruction set.

struct coefficient_vectors {
    simd::f32 beta1, beta2, one_minus_beta1, one_minus_beta2, inv_sqrt_bias2, eps, neg_step_size, decay, l2, grad_scale;
    simd::f32 idle_ratio; // see idle_ratio_of()
    bool has_l2;
};

ADAMANT_SIMD coefficient_vectors broadcast(coefficients const& c)
{
    return {simd::set(c.beta1),           simd::set(c.beta2),          simd::set(c.one_minus_beta1),
            simd::set(c.one_minus_beta2), simd::set(c.inv_sqrt_bias2), simd::set(c.eps),
            simd::set(c.neg_step_size),   simd::set(c.decay),          simd::set(c.l2),
            simd::set(c.grad_scale),      simd::set(idle_ratio_of(c)), c.l2 != 0};
}

#include <adamant/detail/kernels/paths.inl>

template <path Path>
ADAMANT_SIMD simd::f32 flushed(simd::f32 x)
{
    if constexpr (Path == path::careful)
        return simd::flush(x, float_min_normal_bits);
    else
        return x; // the hardware flushes
}

struct state_vectors {
    simd::f32 param, exp_avg, exp_avg_sq;
};

// The formula up to both moments, as in reference::update(). start_param() and finish_param() are the rest of it.
// ChecksMoments: whether the guard of the ordinary path checks the moments; those of the other paths always do.
template <path Path, bool ChecksMoments = true>
ADAMANT_SIMD void update_moments(state_vectors& s, simd::f32 grad, coefficient_vectors const& c, guard<Path>& seen)
{
    simd::f32 const p = flushed<Path>(s.param);
    simd::f32 const m = flushed<Path>(s.exp_avg);
    simd::f32 const v = flushed<Path>(s.exp_avg_sq);
    simd::f32 g = flushed<Path>(simd::mul(flushed<Path>(grad), c.grad_scale));
    if constexpr (Path != path::ordinary) {
        if (c.has_l2) {
            if constexpr (Path == path::lenient)
                seen.low = simd::min(seen.low, simd::sub(simd::abs_bits(g), simd::set(float_min_normal_bits)));
            g = flushed<Path>(simd::fma(c.l2, p, g));
        }
    }
    simd::f32 const w = flushed<Path>(simd::mul(c.one_minus_beta1, g));
    simd::f32 const m_new = flushed<Path>(simd::fma(c.beta1, m, w));
    simd::f32 const v_new = flushed<Path>(
        simd::fma(c.one_minus_beta2, flushed<Path>(simd::mul(g, g)), flushed<Path>(simd::mul(c.beta2, v))));
    if constexpr (Path == path::ordinary) {
        seen.all = simd::and3(seen.all, simd::bits(p), simd::bits(w));
        seen.any = simd::or3(seen.any, simd::bits(p), simd::bits(w));
        if constexpr (ChecksMoments) {
            seen.any = simd::or3(seen.any, simd::bits(m), simd::bits(v));
            seen.low_square = simd::min_signed(seen.low_square, simd::bits(v));
        }
    } else if constexpr (Path == path::lenient) {
        simd::u32 const abs_p = simd::abs_bits(p);
        simd::u32 const abs_m = simd::abs_bits(m);
        simd::u32 const abs_g = simd::abs_bits(g);
        simd::u32 const offset = simd::set(float_min_normal_bits);
        simd::u32 const low_p = simd::sub(abs_p, offset);
        simd::u32 const low_m = simd::sub(abs_m, offset);
        simd::u32 const low_g = simd::sub(abs_g, offset);
        seen.low = simd::min(simd::min(seen.low, low_p), low_g);
        seen.low_exp_avg = simd::min(seen.low_exp_avg, low_m);
        seen.low_square = simd::min(seen.low_square, simd::sub(simd::bits(v), offset));
        seen.high = simd::max(simd::max(seen.high, abs_m), abs_g);
        seen.high_wide = simd::max(simd::max(seen.high_wide, abs_p),
                                   simd::bits(v)); // the sign bit puts a negative v above every bound
        seen.lost = seen.lost | (low_p & ~(low_m & low_g));
    }
    s.param = p;
    s.exp_avg = m_new;
    s.exp_avg_sq = v_new;
}
// State of an element after its moments are stored: the new param is decayed_param + neg_step_size * quotient.
struct param_update {
    simd::f32 decayed_param, quotient;
};
template <path Path>
ADAMANT_SIMD param_update start_param(state_vectors const& s, coefficient_vectors const& c)
{
    simd::f32 const root = flushed<Path>(simd::sqrt(s.exp_avg_sq));
    simd::f32 const d = flushed<Path>(simd::fma(root, c.inv_sqrt_bias2, c.eps));
    return {flushed<Path>(simd::mul(c.decay, s.param)), flushed<Path>(simd::div(s.exp_avg, d))};
}
// Does the work of update_moments() and start_param() for a group of idle parameters: its gradients are zero, and its
// first moments are zero or too small to move a param. Such parameters are rows of an embedding that are not in the
// batch, or in none of some hundred batches. Needs no division. Returns false if the group is not idle or out of
// bounds; it may then have flushed first moments, and has changed nothing else. ExpAvg: the type in which first moments
// are stored.
template <class ExpAvg, std::size_t Vectors>
ADAMANT_SIMD bool update_idle(state_vectors (&s)[Vectors], simd::f32 const (&grad)[Vectors],
                              coefficient_vectors const& c, param_update (&updates)[Vectors])
{
    if (c.has_l2)
        return false;
    simd::u32 any_grad = simd::set(0u);
    simd::u32 any_exp_avg = simd::set(0u);
    simd::u32 any_param = simd::set(0u);
    simd::u32 any_square = simd::set(0u);
    simd::u32 low = simd::set(~0u);
    simd::u32 const offset = simd::set(float_min_normal_bits);
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; ++k) {
        simd::u32 const v = simd::bits(s[k].exp_avg_sq);
        any_grad = any_grad | simd::bits(grad[k]);
        any_exp_avg = any_exp_avg | simd::bits(s[k].exp_avg);
        any_param = any_param | simd::bits(s[k].param);
        any_square = any_square | v;
        low = simd::min(simd::min(low, simd::sub(simd::abs_bits(s[k].param), offset)), simd::sub(v, offset));
    }
    simd::u32 const abs_mask = simd::set(float_abs_mask);
    simd::u32 const has_grad = above(any_grad & abs_mask, float_min_normal_bits - 1);
    simd::u32 const too_large = simd::template shift_left<1>(any_param | any_square);
    simd::u32 const too_low = at_most(low, in_range_idle_above_bits - float_min_normal_bits);
    if (simd::any_sign(simd::or3(has_grad, too_large, too_low) | any_square))
        return false;
    bool const fading = simd::any_sign(above(any_exp_avg & abs_mask, float_min_normal_bits - 1));
    if (fading) {
        simd::u32 moves = simd::set(0u); // sign bit set if a first moment is too large
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < Vectors; ++k) {
            s[k].exp_avg = simd::flush(s[k].exp_avg, float_min_normal_bits);
            simd::f32 const most = simd::mul(simd::from_bits(simd::abs_bits(s[k].param)), c.idle_ratio);
            moves = moves | simd::sub(simd::bits(most), simd::abs_bits(s[k].exp_avg));
        }
        if (simd::any_sign(moves))
            return false;
    }
    ADAMANT_UNROLL
    for (std::size_t k = 0; k < Vectors; ++k) {
        s[k].exp_avg = simd::fma(c.beta1, s[k].exp_avg, simd::mul(grad[k], c.grad_scale));
        if (fading)
            s[k].exp_avg = simd::flush(s[k].exp_avg, flush_bits_of<ExpAvg>);
        s[k].exp_avg_sq = simd::fma(c.beta2, s[k].exp_avg_sq, simd::set(0.0f)); // +0 also for a beta2 of -0
        updates[k] = {simd::mul(c.decay, s[k].param), s[k].exp_avg};
    }
    return true;
}

template <path Path>
ADAMANT_SIMD simd::f32 finish_param(param_update const& u, coefficient_vectors const& c)
{
    return flushed<Path>(simd::fma(c.neg_step_size, u.quotient, u.decayed_param));
}
