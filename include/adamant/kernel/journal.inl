// SPDX-License-Identifier: Apache-2.0
// A step that leaves a record from which every bit of param, exp_avg and exp_avg_sq comes back, and the way back.
// Written once and included once per instruction set by kernel/targets.hpp, after kernel/fused_step.inl.
//
// A step loses little: the formula turned round gives the old values but for a few units in the last place, so the
// record holds what is missing, in 16 bits an element. Whether that is so is looked at for each group when it is
// stepped, and where it is not, the record holds the old values themselves. So being exact does not depend on how good
// the way back is, only on its being the same both times. That is why both use the functions below, in one mode, on
// paths whose values are finite, and why no sum in them can be contracted.
//
// A record of n elements: 16 bits for each, n rounded up to whole groups; then old values of those groups that need
// them, in order: params, if the first element's lowest field says so, then both moments, if its highest does.

struct inverse_vectors {
    simd::f32 step_size, inv_decay, inv_beta1, inv_beta2;
};

ADAMANT_SIMD inverse_vectors broadcast_inverse(coefficients const& c)
{
    return {simd::set(-c.neg_step_size), simd::set(1 / c.decay), simd::set(1 / c.beta1), simd::set(1 / c.beta2)};
}

ADAMANT_SIMD simd::f32 undo_param(simd::f32 param, simd::f32 quotient, inverse_vectors const& inverse)
{
    return simd::mul(simd::fma(inverse.step_size, quotient, param), inverse.inv_decay);
}
template <path Path>
ADAMANT_SIMD void undo_moments(simd::f32& exp_avg, simd::f32& exp_avg_sq, simd::f32 grad, simd::f32 old_param,
                               coefficient_vectors const& c, inverse_vectors const& inverse)
{
    simd::f32 g = simd::mul(grad, c.grad_scale);
    if constexpr (Path != path::ordinary) {
        if (c.has_l2)
            g = simd::fma(c.l2, old_param, g);
    }
    // Not fma(-one_minus_beta1, g, m'), for the step rounded the product, too: moments of zero come back as zeros.
    exp_avg = simd::mul(simd::minus(exp_avg, simd::mul(c.one_minus_beta1, g)), inverse.inv_beta1);
    exp_avg_sq = simd::mul(simd::minus(exp_avg_sq, simd::mul(c.one_minus_beta2, simd::mul(g, g))), inverse.inv_beta2);
}

// The fields of 16 bits, from the lowest: what is missing of param, exp_avg and exp_avg_sq, from -middle to +middle;
// all ones stand for old values that are kept whole.
struct param_field {
    static constexpr std::uint16_t at = 0, bits = 3, middle = 3, most = 6;
};
struct exp_avg_field {
    static constexpr std::uint16_t at = 3, bits = 9, middle = 256, most = 511;
};
struct exp_avg_sq_field {
    static constexpr std::uint16_t at = 12, bits = 4, middle = 7, most = 14;
};
inline constexpr std::uint16_t whole_param = 0x0007;
inline constexpr std::uint16_t whole_moments = 0xf000;

ADAMANT_SIMD simd::u32 missing(simd::f32 old, simd::f32 undone)
{
    return simd::sub(simd::bits(old), simd::bits(undone));
}
// A field's bounds in all lanes. Where a compiler does not see that they are constants, it does not make them anew for
// every group.
struct field_vectors {
    simd::halves middle, most;
};
template <class Field>
ADAMANT_SIMD field_vectors broadcast_field()
{
    return {simd::set_halves(Field::middle), simd::set_halves(Field::most)};
}
template <class Field>
ADAMANT_SIMD simd::f32 restored(simd::f32 undone, simd::u32 packed)
{
    simd::u32 const code = simd::template shift_right<Field::at>(packed) & simd::set((1u << Field::bits) - 1);
    return simd::from_bits(simd::sub(simd::bits(undone), simd::sub(simd::set(std::uint32_t{Field::middle}), code)));
}

// Writes a record beside a step of float params and moments.
struct recorder {
    struct started {
        simd::halves moments; // their fields, in place
        bool fits;
    };
    inverse_vectors inverse;
    field_vectors of_param, of_exp_avg, of_exp_avg_sq;
    std::byte* codes;         // of the shard's first element
    std::byte* old;           // where the next old values go
    std::byte* moments_of[2]; // room for the old moments of two groups, which go to the record with their params

    ADAMANT_SIMD std::byte* room(std::size_t i) const { return moments_of[i / group_elems % 2]; }

    template <path Path>
    ADAMANT_SIMD void moments(step_pointers const& a, std::size_t i, coefficient_vectors const& c,
                              state_vectors const (&before)[simd::vectors], simd::f32 const (&grad)[simd::vectors],
                              state_vectors const (&after)[simd::vectors], started& group)
    {
        simd::u32 exp_avg_lacks[simd::vectors];
        simd::u32 exp_avg_sq_lacks[simd::vectors];
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            simd::f32 exp_avg = after[k].exp_avg;
            simd::f32 exp_avg_sq = after[k].exp_avg_sq;
            undo_moments<Path>(exp_avg, exp_avg_sq, grad[k], before[k].param, c, inverse);
            exp_avg_lacks[k] = missing(before[k].exp_avg, exp_avg);
            exp_avg_sq_lacks[k] = missing(before[k].exp_avg_sq, exp_avg_sq);
        }
        simd::halves const m = simd::plus(simd::saturated(exp_avg_lacks), of_exp_avg.middle);
        simd::halves const v = simd::plus(simd::saturated(exp_avg_sq_lacks), of_exp_avg_sq.middle);
        group.fits = !simd::any(simd::either(simd::excess(m, of_exp_avg.most), simd::excess(v, of_exp_avg_sq.most)));
        group.moments =
            simd::either(simd::template shifted<exp_avg_field::at>(m), simd::template shifted<exp_avg_sq_field::at>(v));
        if (!group.fits) [[unlikely]] {
            __builtin_memcpy(room(i), a.exp_avg + i * sizeof(float), group_elems * sizeof(float));
            __builtin_memcpy(room(i) + group_elems * sizeof(float), a.exp_avg_sq + i * sizeof(float),
                             group_elems * sizeof(float));
        }
    }

    ADAMANT_SIMD void params(step_pointers const& a, std::size_t i, started_group<recorder> const& group,
                             simd::f32 const (&param)[simd::vectors])
    {
        simd::u32 lacks[simd::vectors];
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            simd::f32 const before = simd::load<float>(a.param + (i + k * simd::lanes) * sizeof(float));
            lacks[k] = missing(before, undo_param(param[k], group.updates[k].quotient, inverse));
        }
        simd::halves const p = simd::plus(simd::saturated(lacks), of_param.middle);
        bool const fits = !simd::any(simd::excess(p, of_param.most));
        std::byte* const at = codes + i * sizeof(std::uint16_t);
        if (fits && group.recorded.fits) [[likely]] {
            simd::store_halves(at, simd::either(p, group.recorded.moments));
            return;
        }
        // What does not fit would reach into other fields.
        simd::u32 const none[simd::vectors] = {};
        simd::halves packed = simd::saturated(none);
        if (fits)
            packed = p;
        if (group.recorded.fits)
            packed = simd::either(packed, group.recorded.moments);
        simd::store_halves(at, packed);
        std::uint16_t first;
        __builtin_memcpy(&first, at, sizeof first);
        first =
            static_cast<std::uint16_t>(first | (fits ? 0 : whole_param) | (group.recorded.fits ? 0 : whole_moments));
        __builtin_memcpy(at, &first, sizeof first);
        if (!fits)
            keep(a.param + i * sizeof(float), group_elems);
        if (!group.recorded.fits)
            keep(room(i), 2 * group_elems);
    }

    // The old values of elements [begin, end), whole groups but for the last.
    void keep_all(step_pointers const& a, std::size_t begin, std::size_t end)
    {
        for (std::size_t i = begin; i < end; i += group_elems) {
            std::uint16_t const marked = whole_param | whole_moments;
            __builtin_memcpy(codes + i * sizeof marked, &marked, sizeof marked);
            std::size_t const elements = end - i < group_elems ? end - i : group_elems;
            keep(a.param + i * sizeof(float), elements);
            keep(a.exp_avg + i * sizeof(float), elements);
            keep(a.exp_avg_sq + i * sizeof(float), elements);
        }
    }

private:
    ADAMANT_SIMD void keep(std::byte const* values, std::size_t elements)
    {
        __builtin_memcpy(old, values, elements * sizeof(float));
        old += elements * sizeof(float);
    }
};

template <class Grad, class WeightOut>
struct recorded_steps {
    step_pointers const& a;
    coefficients const& c;
    memory_access how;
    recorder& record;

    template <path Path>
    std::size_t fast(std::size_t begin, std::size_t end) noexcept
    {
        return fast_step<Path, float, Grad, float, float, WeightOut>(a, begin, end, c, how, record);
    }
    std::uint64_t careful(std::size_t begin, std::size_t end) noexcept
    {
        record.keep_all(a, begin, end);
        return careful_step<float, Grad, float, float, WeightOut>(a, begin, end, c);
    }
};

ADAMANT_SIMD std::size_t whole_groups(std::size_t n)
{
    return (n + group_elems - 1) / group_elems * group_elems;
}

// See recorded_step_function.
template <class Grad, class WeightOut>
std::byte* recorded_step(step_pointers const& a, std::size_t n, coefficients const& c, memory_access how,
                         std::byte* record) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    alignas(64) std::byte moments[2][2 * group_elems * sizeof(float)];
    recorder records{broadcast_inverse(c),
                     broadcast_field<param_field>(),
                     broadcast_field<exp_avg_field>(),
                     broadcast_field<exp_avg_sq_field>(),
                     record,
                     record + whole_groups(n) * sizeof(std::uint16_t),
                     {moments[0], moments[1]}};
    if constexpr (std::is_void_v<WeightOut> || !simd::can_stream)
        how.stream = false;
    else
        how.stream = how.stream && reinterpret_cast<std::uintptr_t>(a.weight_out) % 64 == 0;
    recorded_steps<Grad, WeightOut> steps{a, c, how, records};
    if (fast_paths_apply(c))
        alternate(steps, 0, n, ordinary_path_applies(c));
    else
        steps.careful(0, n);
    if (how.stream)
        simd::stream_fence();
    return records.old;
}

// See undo_function.
template <class Grad>
void undo_step(step_pointers const& arrays, std::size_t n, coefficients const& scalars,
               std::byte const* record) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    step_pointers const a = arrays;
    coefficient_vectors const c = broadcast(scalars);
    inverse_vectors const inverse = broadcast_inverse(scalars);
    std::byte const* old = record + whole_groups(n) * sizeof(std::uint16_t);
    for (std::size_t i = 0; i < n; i += group_elems) {
        std::byte const* const codes = record + i * sizeof(std::uint16_t);
        std::size_t const elements = n - i < group_elems ? n - i : group_elems;
        std::uint16_t first;
        __builtin_memcpy(&first, codes, sizeof first);
        bool const param_is_whole = (first & whole_param) == whole_param;
        bool const moments_are_whole = (first & whole_moments) == whole_moments;
        std::byte const* const old_moments = old + (param_is_whole ? elements * sizeof(float) : 0);
        if (!param_is_whole || !moments_are_whole) {
            simd::u32 packed[simd::vectors];
            simd::load_halves(codes, packed);
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < simd::vectors; ++k) {
                std::size_t const in_group = k * simd::lanes * sizeof(float);
                std::size_t const here = i * sizeof(float) + in_group;
                state_vectors s{simd::load<float>(a.param + here), simd::load<float>(a.exp_avg + here),
                                simd::load<float>(a.exp_avg_sq + here)};
                simd::f32 const quotient = start_param<path::lenient>(s, c).quotient;
                s.param = param_is_whole ? simd::load<float>(old + in_group)
                                         : restored<param_field>(undo_param(s.param, quotient, inverse), packed[k]);
                undo_moments<path::lenient>(s.exp_avg, s.exp_avg_sq,
                                            simd::load<Grad>(a.grad + (i + k * simd::lanes) * sizeof(Grad)), s.param, c,
                                            inverse);
                simd::store<float>(a.param + here, s.param);
                simd::store<float>(a.exp_avg + here, restored<exp_avg_field>(s.exp_avg, packed[k]));
                simd::store<float>(a.exp_avg_sq + here, restored<exp_avg_sq_field>(s.exp_avg_sq, packed[k]));
            }
        }
        if (param_is_whole) {
            __builtin_memcpy(a.param + i * sizeof(float), old, elements * sizeof(float));
            old += elements * sizeof(float);
        }
        if (moments_are_whole) {
            __builtin_memcpy(a.exp_avg + i * sizeof(float), old_moments, elements * sizeof(float));
            __builtin_memcpy(a.exp_avg_sq + i * sizeof(float), old_moments + elements * sizeof(float),
                             elements * sizeof(float));
            old += 2 * elements * sizeof(float);
        }
    }
}
