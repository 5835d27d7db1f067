// SPDX-License-Identifier: Apache-2.0
// The fused step and the sum of squares, written once and included once per instruction set by kernel/targets.hpp,
// each time in a namespace of its own that holds a facade `simd`.
//
// dtypes   param, grad, moments and weight_out are widened exactly to float32, and narrowed to nearest even
// rounding as numerics/oracle.hpp, operation for operation
// speed    the fast path does sqrt and divide exactly and hides them behind memory; it looks ahead prefetch_bytes,
//          because the two long operations fill the out-of-order window that would otherwise find the misses

struct coefficient_vectors {
    simd::f32 beta1, beta2, one_minus_beta1, one_minus_beta2, inv_sqrt_bias2, eps, neg_step_size, decay, l2, grad_scale;
    bool has_l2;
};

ADAMANT_SIMD coefficient_vectors broadcast(coefficients const& c)
{
    return {simd::set(c.beta1),
            simd::set(c.beta2),
            simd::set(c.one_minus_beta1),
            simd::set(c.one_minus_beta2),
            simd::set(c.inv_sqrt_bias2),
            simd::set(c.eps),
            simd::set(c.neg_step_size),
            simd::set(c.decay),
            simd::set(c.l2),
            simd::set(c.grad_scale),
            c.l2 != 0};
}

// The bounds of kernel/guard.hpp, gathered over a group. Subtracting the bits of 2^-126 makes zeros and subnormals the
// largest unsigned values, so that one minimum finds what is too small but not flushed by hardware.
struct guard {
    simd::u32 low, low_square, high;
};

ADAMANT_SIMD void look_at_small(guard& seen, simd::f32 x)
{
    seen.low = simd::min(seen.low, simd::sub(simd::abs_bits(x), simd::set(float_min_normal_bits)));
}
ADAMANT_SIMD void look_at(guard& seen, simd::f32 x)
{
    look_at_small(seen, x);
    seen.high = simd::max(seen.high, simd::abs_bits(x));
}
ADAMANT_SIMD void look_at_square(guard& seen, simd::f32 x)
{
    seen.low_square = simd::min(seen.low_square, simd::sub(simd::bits(x), simd::set(float_min_normal_bits)));
    seen.high = simd::max(seen.high, simd::bits(x)); // with its sign: a negative one is above every bound
}
ADAMANT_SIMD bool is_tame(guard const& seen)
{
    return !simd::any_at_most(seen.low, simd::set(tame_above_bits - float_min_normal_bits)) &&
           !simd::any_at_most(seen.low_square, simd::set(tame_square_above_bits - float_min_normal_bits)) &&
           !simd::any_above(seen.high, simd::set(tame_up_to_bits));
}

template <bool Careful>
ADAMANT_SIMD simd::f32 flushed(simd::f32 x)
{
    if constexpr (Careful)
        return simd::flush(x, float_min_normal_bits);
    else
        return x; // the hardware has done it
}
template <bool Careful>
ADAMANT_SIMD simd::f32 canonical(simd::f32 x)
{
    if constexpr (Careful)
        return simd::canonical(x);
    else
        return x;
}

struct state_vectors {
    simd::f32 param, exp_avg, exp_avg_sq;
};

// The formula, as in oracle::update. `seen` gathers what the fast path has to look at.
template <bool Careful>
ADAMANT_SIMD void update(state_vectors& s, simd::f32 grad, coefficient_vectors const& c, guard& seen)
{
    simd::f32 const p = flushed<Careful>(s.param);
    simd::f32 const m = flushed<Careful>(s.exp_avg);
    simd::f32 const v = flushed<Careful>(s.exp_avg_sq);
    simd::f32 g = flushed<Careful>(simd::mul(flushed<Careful>(grad), c.grad_scale));
    if constexpr (!Careful) {
        look_at(seen, p);
        look_at(seen, m);
        look_at_square(seen, v);
        look_at(seen, g);
    }
    if (c.has_l2) {
        g = flushed<Careful>(simd::fma(c.l2, p, g));
        if constexpr (!Careful)
            look_at(seen, g);
    }
    simd::f32 const m_new = flushed<Careful>(simd::fma(c.beta1, m, flushed<Careful>(simd::mul(c.one_minus_beta1, g))));
    simd::f32 const v_new = flushed<Careful>(simd::fma(c.one_minus_beta2, flushed<Careful>(simd::mul(g, g)),
                                                       flushed<Careful>(simd::mul(c.beta2, v))));
    simd::f32 const d = flushed<Careful>(simd::fma(flushed<Careful>(simd::sqrt(v_new)), c.inv_sqrt_bias2, c.eps));
    simd::f32 const q = flushed<Careful>(simd::div(m_new, d));
    if constexpr (!Careful)
        look_at_small(seen, q);
    simd::f32 const p_new =
        flushed<Careful>(simd::fma(c.neg_step_size, q, flushed<Careful>(simd::mul(c.decay, p))));
    s.param = canonical<Careful>(p_new);
    s.exp_avg = canonical<Careful>(m_new);
    s.exp_avg_sq = canonical<Careful>(v_new);
}

template <bool Careful, class T>
ADAMANT_SIMD void store(std::byte* address, simd::f32 x)
{
    if constexpr (Careful && std::is_same_v<T, bfloat16>)
        x = simd::flush(x, bfloat16_flush_bits);
    simd::store<T>(address, x);
}

// Any number of elements from `begin` on, one vector at a time, each operation flushed by hand. What is left over for
// less than a vector goes through buffers, so nothing outside the arrays is read or written.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[gnu::noinline]] std::uint64_t careful_step(step_pointers const& a, std::size_t begin, std::size_t end,
                                                            coefficients const& scalars) noexcept
{
    coefficient_vectors const c = broadcast(scalars);
    std::uint64_t nonfinite = 0;
    for (std::size_t i = begin; i < end; i += simd::lanes) {
        std::size_t const count = end - i < simd::lanes ? end - i : simd::lanes;
        alignas(64) std::byte spare[5][simd::lanes * sizeof(float)];
        step_pointers at{a.param + i * sizeof(Param), a.grad + i * sizeof(Grad), a.exp_avg + i * sizeof(ExpAvg),
                         a.exp_avg_sq + i * sizeof(ExpAvgSq), nullptr};
        if constexpr (!std::is_void_v<WeightOut>)
            at.weight_out = a.weight_out + i * sizeof(WeightOut);
        step_pointers const in_place = at;
        if (count < simd::lanes) {
            at = {spare[0], spare[1], spare[2], spare[3], spare[4]};
            __builtin_memset(spare, 0, sizeof spare);
            __builtin_memcpy(at.param, in_place.param, count * sizeof(Param));
            __builtin_memcpy(spare[1], in_place.grad, count * sizeof(Grad));
            __builtin_memcpy(at.exp_avg, in_place.exp_avg, count * sizeof(ExpAvg));
            __builtin_memcpy(at.exp_avg_sq, in_place.exp_avg_sq, count * sizeof(ExpAvgSq));
        }
        simd::f32 const grad = simd::load<Grad>(at.grad);
        state_vectors s{simd::load<Param>(at.param), simd::load<ExpAvg>(at.exp_avg),
                        simd::load<ExpAvgSq>(at.exp_avg_sq)};
        guard unused;
        nonfinite += simd::count_nonfinite(grad);
        update<true>(s, grad, c, unused);
        store<true, Param>(at.param, s.param);
        store<true, ExpAvg>(at.exp_avg, s.exp_avg);
        store<true, ExpAvgSq>(at.exp_avg_sq, s.exp_avg_sq);
        if constexpr (!std::is_void_v<WeightOut>)
            store<true, WeightOut>(at.weight_out, s.param);
        if (count < simd::lanes) {
            __builtin_memcpy(in_place.param, at.param, count * sizeof(Param));
            __builtin_memcpy(in_place.exp_avg, at.exp_avg, count * sizeof(ExpAvg));
            __builtin_memcpy(in_place.exp_avg_sq, at.exp_avg_sq, count * sizeof(ExpAvgSq));
            if constexpr (!std::is_void_v<WeightOut>)
                __builtin_memcpy(in_place.weight_out, at.weight_out, count * sizeof(WeightOut));
        }
    }
    return nonfinite;
}

inline constexpr std::size_t group_elems = simd::lanes * simd::vectors;
inline constexpr std::size_t prefetch_bytes = ADAMANT_PREFETCH_BYTES;

// Asks for the cache lines that one group of T covers, prefetch_bytes on. Past the end of an array that does nothing.
template <class T>
ADAMANT_SIMD void prefetch(std::byte const* address)
{
    ADAMANT_UNROLL
    for (std::size_t line = 0; line < group_elems * sizeof(T); line += 64)
        __builtin_prefetch(address + prefetch_bytes + line);
}

// Whole groups from `begin` on while they are tame; returns where it stopped: at the first group that is not, or
// where less than a group is left. Nothing of the group it stopped at has been written.
template <bool Stream, class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
[[gnu::noinline]] std::size_t fast_step(step_pointers const& a, std::size_t begin, std::size_t end,
                                                       coefficients const& scalars) noexcept
{
    coefficient_vectors const c = broadcast(scalars);
    std::size_t i = begin;
    for (; end - i >= group_elems; i += group_elems) {
        prefetch<Param>(a.param + i * sizeof(Param));
        prefetch<Grad>(a.grad + i * sizeof(Grad));
        prefetch<ExpAvg>(a.exp_avg + i * sizeof(ExpAvg));
        prefetch<ExpAvgSq>(a.exp_avg_sq + i * sizeof(ExpAvgSq));

        guard seen{simd::set(~0u), simd::set(~0u), simd::set(0u)};
        state_vectors s[simd::vectors];
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            std::size_t const at = i + k * simd::lanes;
            s[k].param = simd::load<Param>(a.param + at * sizeof(Param));
            s[k].exp_avg = simd::load<ExpAvg>(a.exp_avg + at * sizeof(ExpAvg));
            s[k].exp_avg_sq = simd::load<ExpAvgSq>(a.exp_avg_sq + at * sizeof(ExpAvgSq));
            update<false>(s[k], simd::load<Grad>(a.grad + at * sizeof(Grad)), c, seen);
        }
        if (!is_tame(seen)) [[unlikely]]
            break;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            std::size_t const at = i + k * simd::lanes;
            simd::store<Param>(a.param + at * sizeof(Param), s[k].param);
            simd::store<ExpAvg>(a.exp_avg + at * sizeof(ExpAvg), s[k].exp_avg);
            simd::store<ExpAvgSq>(a.exp_avg_sq + at * sizeof(ExpAvgSq), s[k].exp_avg_sq);
            if constexpr (!std::is_void_v<WeightOut>) {
                if constexpr (Stream)
                    simd::stream<WeightOut>(a.weight_out + at * sizeof(WeightOut), s[k].param);
                else
                    simd::store<WeightOut>(a.weight_out + at * sizeof(WeightOut), s[k].param);
            }
        }
    }
    return i;
}

// The fast path wherever it can go, the careful one over what stops it. Where groups fail one after the other, the
// careful path takes ever longer stretches, so that data that is nowhere tame is not computed twice.
template <bool Stream, class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t alternate(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c) noexcept
{
    std::uint64_t nonfinite = 0;
    std::size_t stretch = group_elems;
    for (std::size_t i = begin; i < end;) {
        std::size_t const stopped = fast_step<Stream, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, i, end, c);
        if (stopped > i)
            stretch = group_elems;
        else if (stretch < 64 * group_elems)
            stretch *= 2;
        i = end - stopped < stretch ? end : stopped + stretch;
        if (stopped < i)
            nonfinite += careful_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, stopped, i, c);
    }
    return nonfinite;
}

// See step_function.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
std::uint64_t fused_step(step_pointers const& a, std::size_t begin, std::size_t end,
                                        coefficients const& c, bool stream) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    if (!ordinary(c))
        return careful_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, end, c);
    if constexpr (simd::can_stream && !std::is_void_v<WeightOut>) {
        // Whole cache lines only: a line written in two goes to memory twice. So the first elements go by themselves.
        std::size_t const before_line = -reinterpret_cast<std::uintptr_t>(a.weight_out + begin * sizeof(WeightOut)) % 64;
        if (stream && before_line % sizeof(WeightOut) == 0 && end - begin > before_line) {
            std::size_t const aligned = begin + before_line / sizeof(WeightOut);
            std::uint64_t nonfinite = careful_step<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, aligned, c);
            nonfinite += alternate<true, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, aligned, end, c);
            simd::stream_fence();
            return nonfinite;
        }
    }
    return alternate<false, Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(a, begin, end, c);
}

template <class Grad, std::size_t Part = 0>
ADAMANT_SIMD void add_sixteen(simd::partial_sums& sums, std::byte const* grad)
{
    if constexpr (Part * simd::lanes < 16) {
        simd::f32 g = simd::load<Grad>(grad + Part * simd::lanes * sizeof(Grad));
        if constexpr (!std::is_same_v<Grad, float16>) // which has no value that small
            g = simd::flush(g, float_min_normal_bits);
        simd::template add_squares<Part>(sums, g);
        add_sixteen<Grad, Part + 1>(sums, grad);
    }
}

// See block_squares_function. A block whose sum is not finite holds something that is not: squares of floats cannot
// overflow a double. Then the oracle counts, and sums the rest.
template <class Grad>
grad_squares block_squares(std::byte const* grad, std::size_t n) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    simd::partial_sums sums;
    simd::clear(sums);
    std::size_t i = 0;
    for (; n - i >= 16; i += 16)
        add_sixteen<Grad>(sums, grad + i * sizeof(Grad));
    if (i < n) {
        alignas(64) std::byte padded[16 * sizeof(Grad)] = {};
        __builtin_memcpy(padded, grad + i * sizeof(Grad), (n - i) * sizeof(Grad));
        add_sixteen<Grad>(sums, padded); // adding zeros changes nothing
    }
    alignas(64) double partial[16];
    simd::read(sums, partial);
    for (int width = 8; width > 0; width /= 2)
        for (int j = 0; j < width; ++j)
            partial[j] += partial[j + width];
    if (!(partial[0] <= 0x1p1000))
        return oracle::block_squares<Grad>(grad, n);
    return {partial[0], 0};
}
