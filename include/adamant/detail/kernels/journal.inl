// SPDX-License-Identifier: Apache-2.0
// A step that writes a record from which every bit of param, exp_avg and exp_avg_sq can be restored, and the rollback.
// detail/kernels/step_kernels.inl includes it once per instruction set, after detail/kernels/fused_step.inl.
//
// A step loses little information: the inverse of the formula returns the old values up to a few units in the last
// place. So the record holds the differences, in a code of 16 bits per element. The step checks for each group whether
// the differences fit, and otherwise records the old values themselves. So exactness does not depend on the accuracy of
// the inverse, only on the step and the rollback computing it identically. Both therefore use the functions below, in
// the same mode, on paths whose values are finite, and no sum in them can be contracted.
//
// A record of n elements has three parts, after a copy of all params if they have 16 bits (codes for these would take
// longer, because restored params would have to be rounded to get differences):
// 1. The codes of the whole groups, 16 bits per element. Within a group their order is that of simd::store_halves().
// 2. The old params (unless copied), exp_avg and exp_avg_sq of the remaining elements, less than a group, as arrays of
//    floats.
// 3. The old values of the units that need them, in the order of the elements. A unit is record_unit elements. The code
//    of its first element tells which values follow: the params if its lowest field is all ones, then exp_avg and
//    exp_avg_sq if its highest field is all ones. The field of a copied param is 0.
// Units have the same length on every instruction set, whatever the length of its groups, so an element that needs old
// values takes the same number of bytes everywhere.

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
    // Not fma(-one_minus_beta1, g, m'): the step rounds the product, too, so moments of zero are restored as zeros.
    exp_avg = simd::mul(simd::minus(exp_avg, simd::mul(c.one_minus_beta1, g)), inverse.inv_beta1);
    exp_avg_sq = simd::mul(simd::minus(exp_avg_sq, simd::mul(c.one_minus_beta2, simd::mul(g, g))), inverse.inv_beta2);
}

// The fields of a code, from the lowest bit: the differences of param, exp_avg and exp_avg_sq, in units in the last
// place, each plus `middle` and at most `most`. So the differences are -3 to 3, -256 to 255 and -7 to 7. All ones are
// reserved in two fields: in that of param they mark recorded params, and in that of exp_avg_sq recorded moments.
// exp_avg has no reserved value.
struct param_field {
    static constexpr std::uint16_t shift = 0, bits = 3, middle = 3, most = 6;
};
struct exp_avg_field {
    static constexpr std::uint16_t shift = 3, bits = 9, middle = 256, most = 511;
};
struct exp_avg_sq_field {
    static constexpr std::uint16_t shift = 12, bits = 4, middle = 7, most = 14;
};
inline constexpr std::uint16_t whole_param = 0x0007;
inline constexpr std::uint16_t whole_moments = 0xf000;

// A unit is one or more vectors, and a group is one or more units.
inline constexpr std::size_t units = group_elems / record_unit;
inline constexpr std::size_t unit_vectors = record_unit / simd::lanes;
static_assert(group_elems % record_unit == 0 && record_unit % simd::lanes == 0);
// Byte offset of the code of a unit's first element from the first code of its group.
constexpr std::size_t first_code(std::size_t unit)
{
    return simd::code_offset(unit * unit_vectors);
}

// Difference of the bits of an old value and its approximation by the rollback.
ADAMANT_SIMD simd::u32 missing(simd::f32 old, simd::f32 rolled_back)
{
    return simd::sub(simd::bits(old), simd::bits(rolled_back));
}
// A field's bounds in all lanes. As variables they stay in registers; compilers recompute constants for every group.
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
    simd::u32 const code = simd::template shift_right<Field::shift>(packed) & simd::set((1u << Field::bits) - 1);
    return simd::from_bits(
        simd::sub(simd::bits(rolled_back), simd::sub(simd::set(std::uint32_t{Field::middle}), code)));
}

// Writes a record of params of type Param and float moments.
template <class Param>
struct recorder_of;
template <class Param>
struct record_writer {
    using recorder = recorder_of<Param>;
    static constexpr bool copies_params = sizeof(Param) == 2;
    std::byte* param_copies;      // if copied
    std::byte* codes;             // codes of the shard's first group
    std::byte* old;               // end of the old values that are written
    std::byte* moment_buffers[2]; // old moments of the two groups that are under way; recorded after their params
    bool stream;                  // codes go past the caches

    // Records the old values of elements [begin, end), which are whole groups.
    ADAMANT_SIMD void keep_groups(step_pointers const& a, std::size_t begin, std::size_t end)
    {
        for (std::size_t i = begin; i < end; i += record_unit) {
            std::size_t const in_group = i % group_elems;
            std::uint16_t const empty = 0;
            std::byte* const code = codes + (i - in_group) * sizeof empty + first_code(in_group / record_unit);
            __builtin_memcpy(code, &empty, sizeof empty);
            mark(code, !copies_params, true);
            if constexpr (copies_params)
                copy_few(param_copies + i * sizeof(Param), a.param + i * sizeof(Param), record_unit * sizeof(Param));
            else
                keep_unit(a.param + i * sizeof(float));
            keep_unit(a.exp_avg + i * sizeof(float));
            keep_unit(a.exp_avg_sq + i * sizeof(float));
        }
    }
    // Records the old values of the remaining elements, which are less than a group. Call this first.
    ADAMANT_SIMD void keep_rest(step_pointers const& a, std::size_t begin, std::size_t end)
    {
        if constexpr (copies_params)
            copy_few(param_copies + begin * sizeof(Param), a.param + begin * sizeof(Param),
                     (end - begin) * sizeof(Param));
        else
            keep_few(a.param, begin, end);
        keep_few(a.exp_avg, begin, end);
        keep_few(a.exp_avg_sq, begin, end);
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
    ADAMANT_SIMD void keep_few(std::byte const* floats, std::size_t begin, std::size_t end)
    {
        copy_few(old, floats + begin * sizeof(float), (end - begin) * sizeof(float));
        old += (end - begin) * sizeof(float);
    }
    ADAMANT_SIMD void keep_unit(std::byte const* values)
    {
        __builtin_memcpy(old, values, record_unit * sizeof(float));
        old += record_unit * sizeof(float);
    }
};

// Writes the record of a fast path during the step.
template <class Param>
struct recorder_of : record_writer<Param> {
    using base = record_writer<Param>;
    using base::codes, base::copies_params, base::keep_unit, base::mark, base::moment_buffers, base::param_copies,
        base::stream;
    struct started {
        simd::halves moments; // the fields of both moments
        unsigned misfits;     // a bit for each vector of the units whose old moments are recorded
    };
    inverse_vectors inverse;
    field_vectors param_bounds, exp_avg_bounds, exp_avg_sq_bounds;

    ADAMANT_SIMD recorder_of(base const& writer, coefficients const& c)
        : base(writer), inverse(broadcast_inverse(c)), param_bounds(broadcast_field<param_field>()),
          exp_avg_bounds(broadcast_field<exp_avg_field>()), exp_avg_sq_bounds(broadcast_field<exp_avg_sq_field>())
    {
    }

    ADAMANT_SIMD std::byte* moment_buffer(std::size_t i) const { return moment_buffers[i / group_elems % 2]; }

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
        simd::halves const m = simd::plus(simd::saturated(exp_avg_lacks), exp_avg_bounds.middle);
        simd::halves const v = simd::plus(simd::saturated(exp_avg_sq_lacks), exp_avg_sq_bounds.middle);
        group.misfits =
            misfits(simd::either(simd::excess(m, exp_avg_bounds.most), simd::excess(v, exp_avg_sq_bounds.most)));
        group.moments = simd::either(simd::template shifted<exp_avg_field::shift>(m),
                                     simd::template shifted<exp_avg_sq_field::shift>(v));
        if (group.misfits != 0) [[unlikely]] {
            __builtin_memcpy(moment_buffer(i), a.exp_avg + i * sizeof(float), group_elems * sizeof(float));
            __builtin_memcpy(moment_buffer(i) + group_elems * sizeof(float), a.exp_avg_sq + i * sizeof(float),
                             group_elems * sizeof(float));
        }
    }

    ADAMANT_SIMD void params(step_pointers const& a, std::size_t i, started_group<recorder_of> const& group,
                             simd::f32 const (&param)[simd::vectors])
    {
        simd::halves p = simd::set_halves(0);
        unsigned param_misfits = 0;
        if constexpr (copies_params) {
            copy_vectors<Param, simd::vectors>(param_copies, a.param, i, stream);
        } else {
            p = param_codes(a, i, group, param);
            param_misfits = misfits(simd::excess(p, param_bounds.most));
        }
        unsigned const moment_misfits = group.recorded.misfits;
        std::byte* const group_codes = codes + i * sizeof(std::uint16_t);
        if ((param_misfits | moment_misfits) == 0) [[likely]] {
            if (stream)
                simd::stream_halves(group_codes, simd::either(p, group.recorded.moments));
            else
                simd::store_halves(group_codes, simd::either(p, group.recorded.moments));
            return;
        }
        // Zeroes differences that do not fit, because they would overflow into other fields.
        simd::store_halves(group_codes, simd::either(simd::select_vectors(p, ~param_misfits),
                                                     simd::select_vectors(group.recorded.moments, ~moment_misfits)));
        for (std::size_t unit = 0; unit < units; ++unit) {
            bool const param_is_whole = param_misfits >> unit * unit_vectors & 1;
            bool const moments_are_whole = moment_misfits >> unit * unit_vectors & 1;
            mark(group_codes + first_code(unit), param_is_whole, moments_are_whole);
            std::size_t const in_group = unit * record_unit * sizeof(float);
            if (param_is_whole)
                keep_unit(a.param + i * sizeof(float) + in_group);
            if (moments_are_whole) {
                keep_unit(moment_buffer(i) + in_group);
                keep_unit(moment_buffer(i) + group_elems * sizeof(float) + in_group);
            }
        }
    }

private:
    ADAMANT_SIMD simd::halves param_codes(step_pointers const& a, std::size_t i,
                                          started_group<recorder_of> const& group,
                                          simd::f32 const (&param)[simd::vectors]) const
    {
        simd::u32 lacks[simd::vectors];
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            simd::f32 const before = simd::load<float>(a.param + (i + k * simd::lanes) * sizeof(float));
            lacks[k] = missing(before, rollback_param(param[k], group.updates[k].quotient, inverse));
        }
        return simd::plus(simd::saturated(lacks), param_bounds.middle);
    }
    // A bit for each vector of the units in which a difference does not fit its field.
    ADAMANT_SIMD unsigned misfits(simd::halves excess) const
    {
        if (!simd::any(excess)) [[likely]]
            return 0;
        constexpr unsigned one_unit = (1u << unit_vectors) - 1;
        unsigned const vectors = simd::nonzero_vectors(excess);
        unsigned all = 0;
        for (std::size_t k = 0; k < simd::vectors; k += unit_vectors)
            all |= (vectors >> k & one_unit) != 0 ? one_unit << k : 0;
        return all;
    }
};

// The paths with a record. The loops for gradients of 16 bits serve gradients of floats, too.
template <class Param, class Grad, class WeightOut>
constexpr paths_of_types<record_writer<Param>> recorded_paths(bool grad_is_float)
{
    using loaded = any_grad_unless_float<Grad>;
    return {
        ordinary_step<Param, loaded, float, float, WeightOut, record_writer<Param>>,
        fast_step<path::lenient, native_bfloat16::either, Param, loaded, float, float, WeightOut, record_writer<Param>>,
        grad_is_float ? ordinary_step<Param, float, float, float, WeightOut, no_record>
                      : ordinary_step<Param, Grad, float, float, WeightOut, no_record>,
        grad_is_float ? types_of<Param, float, float, float, WeightOut>
                      : types_of<Param, Grad, float, float, WeightOut>};
}

// See recorded_step_function.
template <class Param, class Grad, class WeightOut>
std::byte* recorded_step(step_pointers const& a, std::size_t n, coefficients const& c, memory_access const& permitted,
                         std::byte* record) noexcept
{
    detail::vzeroupper_scope const at_end;
    float_mode_scope const mode(subnormals::flushed);
    alignas(64) std::byte moments[2][2 * group_elems * sizeof(float)];
    memory_access access = permitted;
    if (access.grad == dtype::none)
        access.grad = dtype_of<Grad>;
    bool const stream = simd::can_stream && access.stream;
    std::byte* const codes = record + (record_writer<Param>::copies_params ? param_copy_bytes(n) : 0);
    std::byte* const old = codes + (n - n % group_elems) * sizeof(std::uint16_t);
    record_writer<Param> writer{record, codes, old, {moments[0], moments[1]}, stream};
    bool const stream_weights =
        !std::is_void_v<WeightOut> && stream && reinterpret_cast<std::uintptr_t>(a.weight_out) % 64 == 0;
    static constexpr paths_of_types<record_writer<Param>> grad_paths = recorded_paths<Param, Grad, WeightOut>(false);
    static constexpr paths_of_types<record_writer<Param>> float_paths = recorded_paths<Param, Grad, WeightOut>(true);
    step_stretch(a, 0, 0, n, {c, {}}, access, stream_weights, access.grad == dtype::float32 ? float_paths : grad_paths,
                 writer);
    if (stream && access.fences)
        simd::stream_fence();
    return writer.old;
}

// A bit for each unit of a group whose old values are in the record.
struct kept_units {
    unsigned params, moments;
};
ADAMANT_SIMD kept_units find_kept_units(std::byte const* codes)
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
void rollback_step(step_pointers const& arrays, std::size_t n, coefficients const& scalars, memory_access const& access,
                   std::byte const* record) noexcept
{
    detail::vzeroupper_scope const at_end;
    float_mode_scope const mode(subnormals::flushed);
    step_pointers const a = arrays;
    coefficient_vectors const c = broadcast(scalars);
    inverse_vectors const inverse = broadcast_inverse(scalars);
    std::size_t const rest = n % group_elems;
    std::size_t const whole_end = n - rest;
    std::byte const* old = record + whole_end * sizeof(std::uint16_t);
    std::byte* const rest_arrays[] = {a.param, a.exp_avg, a.exp_avg_sq};
    for (std::byte* const array : rest_arrays) {
        if (array == a.param && access.param_is_old)
            continue;
        copy_few(array + whole_end * sizeof(float), old, rest * sizeof(float));
        old += rest * sizeof(float);
    }
    constexpr std::size_t unit_bytes = record_unit * sizeof(float); // per array
    for (std::size_t i = 0; i < whole_end; i += group_elems) {
        std::byte const* const codes = record + i * sizeof(std::uint16_t);
        std::byte* const param = a.param + i * sizeof(float);
        std::byte* const exp_avg = a.exp_avg + i * sizeof(float);
        std::byte* const exp_avg_sq = a.exp_avg_sq + i * sizeof(float);
        prefetch<std::uint16_t>(codes, access.ahead.param);
        prefetch<float>(param, access.ahead.param);
        prefetch<float>(exp_avg, access.ahead.exp_avg);
        prefetch<float>(exp_avg_sq, access.ahead.exp_avg_sq);

        // Applies the inverse formula to all units, then overwrites units whose old values are in the record. Params
        // are overwritten before the moments are restored, because L2 decay needs the old params to recompute the
        // gradient that the moments were updated with.
        simd::u32 packed[simd::vectors];
        simd::load_halves(codes, packed);
        if (!access.param_is_old) {
            ADAMANT_UNROLL
            for (std::size_t k = 0; k < simd::vectors; ++k) {
                std::size_t const byte = k * simd::lanes * sizeof(float);
                state_vectors const s{simd::load<float>(param + byte), simd::load<float>(exp_avg + byte),
                                      simd::load<float>(exp_avg_sq + byte)};
                simd::f32 const quotient = start_param<path::lenient>(s, c).quotient;
                simd::store<float>(param + byte,
                                   restored<param_field>(rollback_param(s.param, quotient, inverse), packed[k]));
            }
        }
        kept_units const kept = find_kept_units(codes);
        std::byte const* const group_old = old;
        for (unsigned unit = 0; (kept.params | kept.moments) >> unit != 0; ++unit) { // rarely
            if ((kept.params >> unit & 1) != 0) {
                __builtin_memcpy(param + unit * unit_bytes, old, unit_bytes);
                old += unit_bytes;
            }
            old += (kept.moments >> unit & 1) * 2 * unit_bytes;
        }
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < simd::vectors; ++k) {
            std::size_t const byte = k * simd::lanes * sizeof(float);
            simd::f32 m = simd::load<float>(exp_avg + byte);
            simd::f32 v = simd::load<float>(exp_avg_sq + byte);
            rollback_moments<path::lenient>(m, v, simd::load<Grad>(a.grad + (i + k * simd::lanes) * sizeof(Grad)),
                                            simd::load<float>(param + byte), c, inverse);
            simd::store<float>(exp_avg + byte, restored<exp_avg_field>(m, packed[k]));
            simd::store<float>(exp_avg_sq + byte, restored<exp_avg_sq_field>(v, packed[k]));
        }
        std::byte const* source = group_old;
        for (unsigned unit = 0; kept.moments >> unit != 0; ++unit) {
            source += (kept.params >> unit & 1) * unit_bytes;
            if ((kept.moments >> unit & 1) != 0) {
                __builtin_memcpy(exp_avg + unit * unit_bytes, source, unit_bytes);
                __builtin_memcpy(exp_avg_sq + unit * unit_bytes, source + unit_bytes, unit_bytes);
                source += 2 * unit_bytes;
            }
        }
    }
}
