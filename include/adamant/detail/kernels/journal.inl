// SPDX-License-Identifier: Apache-2.0
// A step that writes a record, and the rollback that restores every bit of param, exp_avg and exp_avg_sq from it.
// Written once and included once per instruction set by detail/kernels/targets.hpp, after
// detail/kernels/fused_step.inl.
//
// The inverse formula restores the old values up to a few units in the last place. The record holds the differences,
// in 16 bits an element. The step checks for each unit whether they fit; if not, the record holds the old values.
// Exactness therefore depends only on the step and the rollback computing the same inverse. Both use the functions
// below, in one floating-point mode, on paths whose values are finite, and no sum in them can be contracted.
//
// A record of n elements: a code of 16 bits for each element of the whole groups; the old params and moments of the
// remaining elements; then the old values of the units of record_unit elements that need them, in order: params, if
// the code of the unit's first element has whole_param, then both moments, if it has whole_moments. A unit has the same
// number of elements on every instruction set, so a record has the same size everywhere.

struct inverse_vectors {
    simd::f32 step_size, inv_decay, inv_beta1, inv_beta2;
};

ADAMANT_SIMD inverse_vectors broadcast_inverse(coefficients const& c)
{
    return {simd::set(-c.neg_step_size), simd::set(1 / c.decay), simd::set(1 / c.beta1), simd::set(1 / c.beta2)};
}

ADAMANT_SIMD simd::f32 rollback_param(simd::f32 param, simd::f32 quotient, inverse_vectors const& inverse)
{
    return simd::mul(simd::fma(inverse.step_size, quotient, param), inverse.inv_decay);
}
template <path Path>
ADAMANT_SIMD void rollback_moments(simd::f32& exp_avg, simd::f32& exp_avg_sq, simd::f32 grad, simd::f32 old_param,
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

// The fields of a code, from the lowest bit: differences of param (-3 to 3), exp_avg (-256 to 255) and exp_avg_sq (-7
// to 7) in units in the last place, plus `middle`. All ones in the field of param mean that the old params are kept
// whole; all ones in that of exp_avg_sq mean the same of both moments. The field of exp_avg uses all of its values.
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

// A unit is one vector or more, and a group one unit or more.
inline constexpr std::size_t units = group_elems / record_unit;
inline constexpr std::size_t unit_vectors = record_unit / simd::lanes;
static_assert(group_elems % record_unit == 0 && record_unit % simd::lanes == 0);
// Where the code of the first element of a unit is, from the first code of its group on.
constexpr std::size_t first_code(std::size_t unit)
{
    return simd::code_at(unit * unit_vectors);
}

ADAMANT_SIMD simd::u32 missing(simd::f32 old, simd::f32 rolled_back)
{
    return simd::sub(simd::bits(old), simd::bits(rolled_back));
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
ADAMANT_SIMD simd::f32 restored(simd::f32 rolled_back, simd::u32 packed)
{
    simd::u32 const code = simd::template shift_right<Field::at>(packed) & simd::set((1u << Field::bits) - 1);
    return simd::from_bits(
        simd::sub(simd::bits(rolled_back), simd::sub(simd::set(std::uint32_t{Field::middle}), code)));
}

// A record of float params and moments that is being written.
struct record_writer {
    using recorder = struct recorder;
    std::byte* codes;         // of the shard's first element
    std::byte* old;           // where the next old values go
    std::byte* moments_of[2]; // room for the old moments of two groups, which go to the record with their params

    // The old values of elements [begin, end): whole groups.
    ADAMANT_SIMD void keep_groups(step_pointers const& a, std::size_t begin, std::size_t end)
    {
        for (std::size_t i = begin; i < end; i += record_unit) {
            std::size_t const in_group = i % group_elems;
            std::uint16_t const nothing = 0;
            std::byte* const at = codes + (i - in_group) * sizeof nothing + first_code(in_group / record_unit);
            __builtin_memcpy(at, &nothing, sizeof nothing);
            mark(at, true, true);
            keep_unit(a.param + i * sizeof(float));
            keep_unit(a.exp_avg + i * sizeof(float));
            keep_unit(a.exp_avg_sq + i * sizeof(float));
        }
    }
    // What is less than a group; before all else.
    ADAMANT_SIMD void keep_rest(step_pointers const& a, std::size_t begin, std::size_t end)
    {
        std::byte const* const arrays[] = {a.param, a.exp_avg, a.exp_avg_sq};
        for (std::byte const* const array : arrays) {
            copy_few(old, array + begin * sizeof(float), (end - begin) * sizeof(float));
            old += (end - begin) * sizeof(float);
        }
    }

protected:
    ADAMANT_SIMD void mark(std::byte* code, bool param_is_whole, bool moments_are_whole) const
    {
        std::uint16_t first;
        __builtin_memcpy(&first, code, sizeof first);
        first = static_cast<std::uint16_t>(first | (param_is_whole ? whole_param : 0) |
                                           (moments_are_whole ? whole_moments : 0));
        __builtin_memcpy(code, &first, sizeof first);
    }
    ADAMANT_SIMD void keep_unit(std::byte const* values)
    {
        __builtin_memcpy(old, values, record_unit * sizeof(float));
        old += record_unit * sizeof(float);
    }
};

// Writes it beside a step.
struct recorder : record_writer {
    struct started {
        simd::halves moments; // their fields, in place
        unsigned misfits;     // vectors of units whose old moments are kept whole, a bit for each
    };
    inverse_vectors inverse;
    field_vectors of_param, of_exp_avg, of_exp_avg_sq;

    ADAMANT_SIMD recorder(record_writer const& to, coefficients const& c)
        : record_writer(to), inverse(broadcast_inverse(c)), of_param(broadcast_field<param_field>()),
          of_exp_avg(broadcast_field<exp_avg_field>()), of_exp_avg_sq(broadcast_field<exp_avg_sq_field>())
    {
    }

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
            rollback_moments<Path>(exp_avg, exp_avg_sq, grad[k], before[k].param, c, inverse);
            exp_avg_lacks[k] = missing(before[k].exp_avg, exp_avg);
            exp_avg_sq_lacks[k] = missing(before[k].exp_avg_sq, exp_avg_sq);
        }
        simd::halves const m = simd::plus(simd::saturated(exp_avg_lacks), of_exp_avg.middle);
        simd::halves const v = simd::plus(simd::saturated(exp_avg_sq_lacks), of_exp_avg_sq.middle);
        group.misfits = misfits(simd::either(simd::excess(m, of_exp_avg.most), simd::excess(v, of_exp_avg_sq.most)));
        group.moments =
            simd::either(simd::template shifted<exp_avg_field::at>(m), simd::template shifted<exp_avg_sq_field::at>(v));
        if (group.misfits != 0) [[unlikely]] {
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
            lacks[k] = missing(before, rollback_param(param[k], group.updates[k].quotient, inverse));
        }
        simd::halves const p = simd::plus(simd::saturated(lacks), of_param.middle);
        unsigned const of_params = misfits(simd::excess(p, of_param.most));
        unsigned const of_moments = group.recorded.misfits;
        std::byte* const at = codes + i * sizeof(std::uint16_t);
        if ((of_params | of_moments) == 0) [[likely]] {
            simd::store_halves(at, simd::either(p, group.recorded.moments));
            return;
        }
        // What does not fit would reach into other fields.
        simd::store_halves(
            at, simd::either(simd::of_vectors(p, ~of_params), simd::of_vectors(group.recorded.moments, ~of_moments)));
        for (std::size_t unit = 0; unit < units; ++unit) {
            bool const param_is_whole = of_params >> unit * unit_vectors & 1;
            bool const moments_are_whole = of_moments >> unit * unit_vectors & 1;
            mark(at + first_code(unit), param_is_whole, moments_are_whole);
            std::size_t const in_group = unit * record_unit * sizeof(float);
            if (param_is_whole)
                keep_unit(a.param + i * sizeof(float) + in_group);
            if (moments_are_whole) {
                keep_unit(room(i) + in_group);
                keep_unit(room(i) + group_elems * sizeof(float) + in_group);
            }
        }
    }

private:
    // All vectors of the units in which something is too much for its field.
    ADAMANT_SIMD unsigned misfits(simd::halves excess) const
    {
        if (!simd::any(excess)) [[likely]]
            return 0;
        constexpr unsigned one_unit = (1u << unit_vectors) - 1;
        unsigned const vectors = simd::vectors_of(excess);
        unsigned all = 0;
        for (std::size_t k = 0; k < simd::vectors; k += unit_vectors)
            all |= (vectors >> k & one_unit) != 0 ? one_unit << k : 0;
        return all;
    }
};

// One pair of loops for gradients of their own type and of floats.
template <class Grad, class WeightOut>
constexpr paths_of_types<record_writer> recorded_paths(bool grad_is_float)
{
    using either = or_float_unless_it_is<Grad>;
    return {ordinary_step<float, either, float, float, WeightOut, record_writer>,
            fast_step<path::lenient, native_bfloat16::either, float, either, float, float, WeightOut, record_writer>,
            grad_is_float ? step_rest<float, float, float, float, WeightOut>
                          : step_rest<float, Grad, float, float, WeightOut>,
            grad_is_float ? types_of<float, float, float, float, WeightOut>
                          : types_of<float, Grad, float, float, WeightOut>};
}

// See recorded_step_function.
template <class Grad, class WeightOut>
std::byte* recorded_step(step_pointers const& a, std::size_t n, coefficients const& c, memory_access how,
                         std::byte* record) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    alignas(64) std::byte moments[2][2 * group_elems * sizeof(float)];
    record_writer to{record, record + (n - n % group_elems) * sizeof(std::uint16_t), {moments[0], moments[1]}};
    if constexpr (std::is_void_v<WeightOut> || !simd::can_stream)
        how.stream = false;
    else
        how.stream = how.stream && reinterpret_cast<std::uintptr_t>(a.weight_out) % 64 == 0;
    static constexpr paths_of_types<record_writer> own = recorded_paths<Grad, WeightOut>(false);
    static constexpr paths_of_types<record_writer> of_floats = recorded_paths<Grad, WeightOut>(true);
    step_stretch(a, 0, n, {c, {}}, how, how.grad_is_float ? of_floats : own, to);
    if (how.stream)
        simd::stream_fence();
    return to.old;
}

// Units of a group that a record keeps whole, a bit for each.
struct kept_units {
    unsigned params, moments;
};
ADAMANT_SIMD kept_units kept_of(std::byte const* codes)
{
    kept_units kept = {0, 0};
    for (std::size_t unit = 0; unit < units; ++unit) {
        std::uint16_t first;
        __builtin_memcpy(&first, codes + first_code(unit), sizeof first);
        kept.params |= static_cast<unsigned>((first & whole_param) == whole_param) << unit;
        kept.moments |= static_cast<unsigned>((first & whole_moments) == whole_moments) << unit;
    }
    return kept;
}
// See rollback_function.
template <class Grad>
void rollback_step(step_pointers const& arrays, std::size_t n, coefficients const& scalars, memory_access how,
                   std::byte const* record) noexcept
{
    float_mode_scope const mode(subnormals::flushed);
    step_pointers const a = arrays;
    coefficient_vectors const c = broadcast(scalars);
    inverse_vectors const inverse = broadcast_inverse(scalars);
    std::size_t const rest = n % group_elems;
    std::size_t const whole_end = n - rest;
    std::byte const* old = record + whole_end * sizeof(std::uint16_t);
    std::byte* const arrays_of_rest[] = {a.param, a.exp_avg, a.exp_avg_sq};
    for (std::byte* const array : arrays_of_rest) {
        copy_few(array + whole_end * sizeof(float), old, rest * sizeof(float));
        old += rest * sizeof(float);
    }
    constexpr std::size_t unit_bytes = record_unit * sizeof(float); // of one array
    for (std::size_t i = 0; i < whole_end; i += group_elems) {
        std::byte const* const codes = record + i * sizeof(std::uint16_t);
        std::byte* const param = a.param + i * sizeof(float);
        std::byte* const exp_avg = a.exp_avg + i * sizeof(float);
        std::byte* const exp_avg_sq = a.exp_avg_sq + i * sizeof(float);
        prefetch<std::uint16_t>(codes, how.prefetch_bytes);
        prefetch<float>(param, how.prefetch_bytes);
        prefetch<float>(exp_avg, how.prefetch_bytes);
        prefetch<float>(exp_avg_sq, how.prefetch_bytes);

        // All come back by the formula, and units that are kept whole are then overwritten: with params before L2 decay
        // reads them, to get at the gradient that moments were updated with.
        simd::u32 packed[simd::vectors];
        simd::load_halves(codes, packed);
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            std::size_t const at = k * simd::lanes * sizeof(float);
            state_vectors const s{simd::load<float>(param + at), simd::load<float>(exp_avg + at),
                                  simd::load<float>(exp_avg_sq + at)};
            simd::f32 const quotient = start_param<path::lenient>(s, c).quotient;
            simd::store<float>(param + at,
                               restored<param_field>(rollback_param(s.param, quotient, inverse), packed[k]));
        }
        kept_units const kept = kept_of(codes);
        std::byte const* const old_of_group = old;
        for (unsigned unit = 0; (kept.params | kept.moments) >> unit != 0; ++unit) { // hardly ever
            if ((kept.params >> unit & 1) != 0) {
                __builtin_memcpy(param + unit * unit_bytes, old, unit_bytes);
                old += unit_bytes;
            }
            old += (kept.moments >> unit & 1) * 2 * unit_bytes;
        }
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            std::size_t const at = k * simd::lanes * sizeof(float);
            simd::f32 m = simd::load<float>(exp_avg + at);
            simd::f32 v = simd::load<float>(exp_avg_sq + at);
            rollback_moments<path::lenient>(m, v, simd::load<Grad>(a.grad + (i + k * simd::lanes) * sizeof(Grad)),
                                            simd::load<float>(param + at), c, inverse);
            simd::store<float>(exp_avg + at, restored<exp_avg_field>(m, packed[k]));
            simd::store<float>(exp_avg_sq + at, restored<exp_avg_sq_field>(v, packed[k]));
        }
        std::byte const* from = old_of_group;
        for (unsigned unit = 0; kept.moments >> unit != 0; ++unit) {
            from += (kept.params >> unit & 1) * unit_bytes;
            if ((kept.moments >> unit & 1) != 0) {
                __builtin_memcpy(exp_avg + unit * unit_bytes, from, unit_bytes);
                __builtin_memcpy(exp_avg_sq + unit * unit_bytes, from + unit_bytes, unit_bytes);
                from += 2 * unit_bytes;
            }
        }
    }
}
