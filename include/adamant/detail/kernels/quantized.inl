// SPDX-License-Identifier: Apache-2.0
// Vectorized steps over 8-bit moments. While groups of 64 are ordinary, each is decoded, stepped and encoded in one
// pass, so that arithmetic hides behind divisions. Other groups are decoded and encoded separately.
// detail/numerics/quantized8.hpp defines the codes. Included by detail/kernels/fused_step.inl, once per instruction
// set.

inline constexpr std::size_t code_vectors = quantized_group_elems / simd::lanes; // vectors of a group
using code_words = simd::words;                                                  // two vectors, as 16 bits each

// Constants that are hidden from the compiler. Otherwise it recomputes them for every group, with the execution units
// that shuffles need.
struct code_constants {
    simd::u32 sign, decode_m, decode_v, encode_m, encode_v, low_half;
};
ADAMANT_SIMD code_constants make_code_constants()
{
    return {simd::hidden(float_sign_bit),
            simd::hidden(exp_avg_curve.decode_offset << exp_avg_curve.shift),
            simd::hidden(exp_avg_sq_curve.decode_offset),
            simd::hidden(exp_avg_curve.encode_offset),
            simd::hidden(exp_avg_sq_curve.encode_offset),
            simd::hidden(0xffffu)};
}

ADAMANT_SIMD simd::f32 decode_exp_avg(std::byte const* codes, simd::f32 scale, code_constants const& k)
{
    simd::u32 const q = simd::bits(simd::load_signed_bytes(codes));
    // Both operands have zero lower halves, so halves can be subtracted. The subtraction saturates, so code 0 gives 0.
    static_assert(exp_avg_curve.shift == 1);
    simd::u32 const z = simd::subtract_halves(simd::add(q, q), k.decode_m);
    return simd::mul(simd::from_bits(z | (q & k.sign)), scale);
}
ADAMANT_SIMD simd::f32 decode_exp_avg_sq(std::byte const* codes, simd::f32 scale, code_constants const& k)
{
    simd::u32 const q = simd::bits(simd::load_unsigned_bytes(codes));
    simd::u32 const z = simd::template shift_left<exp_avg_sq_curve.shift>(simd::sub(q, k.decode_v));
    return simd::mul(simd::from_bits(z), scale);
}
ADAMANT_SIMD float scale_at(std::byte const* group)
{
    float scale;
    __builtin_memcpy(&scale, group + quantized_group_elems, sizeof scale);
    return scale;
}

// Returns codes in 256ths.
ADAMANT_SIMD simd::u32 encode_exp_avg(simd::f32 x, simd::f32 inverse, code_constants const& k)
{
    simd::u32 const z = simd::bits(simd::mul(x, inverse));
    simd::u32 const y = simd::add(simd::template shift_right<exp_avg_curve.shift>(z & ~k.sign), k.encode_m);
    return simd::rounded(simd::from_bits(y | (z & k.sign)));
}
ADAMANT_SIMD simd::u32 encode_exp_avg_sq(simd::f32 x, simd::f32 inverse, code_constants const& k)
{
    simd::u32 const z = simd::bits(simd::mul(x, inverse));
    return simd::rounded(simd::from_bits(simd::add(simd::template shift_right<exp_avg_sq_curve.shift>(z), k.encode_v)));
}

// Random halves of a group's elements, two vectors at a time; see detail/numerics/rounding.hpp.
struct code_randoms {
    bool stochastic;
    random_state next;    // of the next vector
    random_state to_next; // increment to the vector after it

    ADAMANT_SIMD code_randoms(bool is_stochastic, rounding_line const& line, std::size_t i)
        : stochastic(is_stochastic), next(line, i, 1), to_next(random_state::distance(line, simd::lanes))
    {
    }
    ADAMANT_SIMD code_words draw(code_constants const& k)
    {
        simd::u32 const a = next.halves(k.low_half);
        next = next.plus(to_next);
        simd::u32 const b = next.halves(k.low_half);
        next = next.plus(to_next);
        return simd::pack_unsigned(a, b);
    }
};

// The scales of a group, and the factors that encoding multiplies its elements by.
struct group_scales {
    float exp_avg, exp_avg_sq, exp_avg_inverse, exp_avg_sq_inverse;
};
// For finite largest magnitudes whose scales are below the limit of inverse_of_scale().
ADAMANT_SIMD group_scales make_scales(simd::pair_of_u32 largest)
{
    float const m = scale_of_group(exp_avg_curve, largest.a);
    float const v = scale_of_group(exp_avg_sq_curve, largest.b);
    return {m, v, inverse_of_scale(m), inverse_of_scale(v)};
}
// The bits of the largest magnitudes of both moments. A negative second moment or a NaN is above all other values.
ADAMANT_SIMD simd::pair_of_u32 largest_of(simd::f32 const (&m)[code_vectors], simd::f32 const (&v)[code_vectors])
{
    simd::u32 most_m = simd::abs_bits(m[0]);
    simd::u32 most_v = simd::bits(v[0]);
    ADAMANT_UNROLL
    for (std::size_t k = 1; k < code_vectors; ++k) {
        most_m = simd::max(most_m, simd::abs_bits(m[k]));
        most_v = simd::max(most_v, simd::bits(v[k]));
    }
    return simd::largest(most_m, most_v);
}

// The codes of two vectors of both moments, before they are packed to bytes.
struct code_pair {
    code_words m, v;
};
ADAMANT_SIMD code_pair encode_pair(simd::f32 const (&m)[2], simd::f32 const (&v)[2], simd::f32 m_inverse,
                                   simd::f32 v_inverse, code_randoms& random, code_constants const& constants)
{
    code_words const m_words =
        simd::pack_signed(encode_exp_avg(m[0], m_inverse, constants), encode_exp_avg(m[1], m_inverse, constants));
    code_words const v_words = simd::pack_unsigned(encode_exp_avg_sq(v[0], v_inverse, constants),
                                                   encode_exp_avg_sq(v[1], v_inverse, constants));
    if (random.stochastic) {
        code_words const r = random.draw(constants);
        return {simd::upper_byte_signed(simd::plus_words(m_words, simd::lower_byte(r)),
                                        simd::words_above(simd::magnitude(m_words), 255)),
                simd::upper_byte(simd::plus_saturated(v_words, simd::upper_byte(r)))};
    }
    code_words const half = simd::set_words(128);
    // Ties go away from zero: a negative number gets an offset of 127 instead of 128.
    return {simd::upper_byte_signed(simd::plus_words(simd::plus_words(m_words, half), simd::signs(m_words))),
            simd::upper_byte(simd::plus_saturated(v_words, half))};
}
ADAMANT_SIMD void store_codes(code_words const (&m)[code_vectors / 2], code_words const (&v)[code_vectors / 2],
                              group_scales const& scales, std::byte* exp_avg, std::byte* exp_avg_sq)
{
    simd::store_bytes_signed(exp_avg, m);
    simd::store_bytes_above_zero(exp_avg_sq, v);
    __builtin_memcpy(exp_avg + quantized_group_elems, &scales.exp_avg, sizeof scales.exp_avg);
    __builtin_memcpy(exp_avg_sq + quantized_group_elems, &scales.exp_avg_sq, sizeof scales.exp_avg_sq);
}

[[gnu::noinline]] inline void decode_moments(std::byte const* exp_avg, std::byte const* exp_avg_sq, std::size_t groups,
                                             float* m, float* v, prefetch_distances const& ahead) noexcept
{
    detail::vzeroupper_scope const at_end;
    code_constants const constants = make_code_constants();
    for (std::size_t g = 0; g < groups; ++g) {
        std::byte const* const m_group = exp_avg + g * sizeof(quantized8);
        std::byte const* const v_group = exp_avg_sq + g * sizeof(quantized8);
        __builtin_prefetch(m_group + ahead.exp_avg);
        __builtin_prefetch(v_group + ahead.exp_avg_sq);
        simd::f32 const m_scale = simd::set(scale_at(m_group));
        simd::f32 const v_scale = simd::set(scale_at(v_group));
        for (std::size_t k = 0; k < quantized_group_elems; k += simd::lanes) {
            std::size_t const byte = (g * quantized_group_elems + k) * sizeof(float);
            simd::template store<float>(reinterpret_cast<std::byte*>(m) + byte,
                                        decode_exp_avg(m_group + k, m_scale, constants));
            simd::template store<float>(reinterpret_cast<std::byte*>(v) + byte,
                                        decode_exp_avg_sq(v_group + k, v_scale, constants));
        }
    }
}
[[gnu::noinline]] inline void encode_moments(float const* m, float const* v, std::size_t groups, bool stochastic,
                                             rounding_line const& line, std::byte* exp_avg,
                                             std::byte* exp_avg_sq) noexcept
{
    detail::vzeroupper_scope const at_end;
    code_constants const constants = make_code_constants();
    for (std::size_t g = 0; g < groups; ++g) {
        std::size_t const first = g * quantized_group_elems;
        std::byte* const m_group = exp_avg + g * sizeof(quantized8);
        std::byte* const v_group = exp_avg_sq + g * sizeof(quantized8);
        simd::f32 ms[code_vectors];
        simd::f32 vs[code_vectors];
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < code_vectors; ++k) {
            std::size_t const byte = (first + k * simd::lanes) * sizeof(float);
            ms[k] = simd::template load<float>(reinterpret_cast<std::byte const*>(m) + byte);
            vs[k] = simd::template load<float>(reinterpret_cast<std::byte const*>(v) + byte);
        }
        simd::pair_of_u32 const largest = largest_of(ms, vs);
        // Limited scales, clamped codes, and values that are not finite go to the scalar code.
        constexpr std::uint32_t most = largest_divisor_bits - 0x01000000u;
        if (largest.a > most || largest.b > most || exp_avg_codes_overflow(largest.a)) [[unlikely]] {
            scalar::encode_moments(m + first, v + first, 1, stochastic, line.from(first), m_group, v_group);
            continue;
        }
        code_randoms random(stochastic, line, first);
        group_scales const scales = make_scales(largest);
        simd::f32 const m_inverse = simd::set(scales.exp_avg_inverse);
        simd::f32 const v_inverse = simd::set(scales.exp_avg_sq_inverse);
        code_words m_words[code_vectors / 2];
        code_words v_words[code_vectors / 2];
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < code_vectors; k += 2) {
            code_pair const codes =
                encode_pair({ms[k], ms[k + 1]}, {vs[k], vs[k + 1]}, m_inverse, v_inverse, random, constants);
            m_words[k / 2] = codes.m;
            v_words[k / 2] = codes.v;
        }
        store_codes(m_words, v_words, scales, m_group, v_group);
    }
}
inline constexpr quantized_codec moments_codec = {decode_moments, encode_moments};

// State of a group that is started and not yet finished, as in fast_step(): new moments, their scales, and params whose
// divisions are under way.
struct started_codes {
    simd::f32 exp_avg[code_vectors], exp_avg_sq[code_vectors];
    param_update updates[code_vectors];
    group_scales scales;
};

// Vectors whose 16-bit weights fill a cache line. A line streams badly if other accesses come between its stores.
inline constexpr std::size_t line_vectors = 32 / simd::lanes;

// Steps groups from `begin` on while they are ordinary. Returns the element at which it stopped. The loop is
// software-pipelined: it starts some vectors of a group, finishes as many of the group before, and so on. The divisions
// of a group fill the out-of-order window, so they are spread over all of the work. A dummy group precedes the first
// group; its results go to scratch.
//
// The scales tell whether moments are ordinary: the smallest second moment is 2^-32 of its scale.
template <tracking Tracking, class Param, class Grad, class WeightOut>
[[gnu::noinline]] std::size_t fast_quantized_groups(step_pointers const& arrays, std::size_t begin, std::size_t end,
                                                    step_scalars const& scalars, memory_access const& given) noexcept
{
    detail::vzeroupper_scope const at_end;
    step_pointers const a = arrays;
    memory_access const access = given;
    coefficient_vectors const c = broadcast(scalars);
    code_constants const constants = make_code_constants();
    code_randoms random(scalars.rounding.exp_avg_sq, scalars.lines.exp_avg_sq, begin - quantized_group_elems);
    random_vectors<Param> for_param;
    for_param.template begin<false>(scalars.rounding.param, scalars.lines.param, begin - quantized_group_elems);
    alignas(64) std::byte scratch[4][quantized_group_elems * sizeof(float)];
    std::uint64_t scratch_bits = 0;
    step_pointers target{scratch[0],
                         nullptr,
                         scratch[1],
                         scratch[2],
                         scratch[3],
                         {},
                         Tracking == tracking::yes ? &scratch_bits : nullptr};
    started_codes group = {};
    std::size_t i = begin;
    for (;; i += quantized_group_elems) {
        // In the last iteration the last group is started again, and the result is discarded.
        std::size_t const group_begin = i < end ? i : i - quantized_group_elems;
        std::byte* const param = a.param + group_begin * sizeof(Param);
        std::byte* const exp_avg = a.exp_avg + group_begin / quantized_group_elems * sizeof(quantized8);
        std::byte* const exp_avg_sq = a.exp_avg_sq + group_begin / quantized_group_elems * sizeof(quantized8);
        __builtin_prefetch(exp_avg + access.ahead.exp_avg);
        __builtin_prefetch(exp_avg_sq + access.ahead.exp_avg_sq);
        float const m_scale = scale_at(exp_avg);
        float const v_scale = scale_at(exp_avg_sq);
        bool const scales_are_ordinary = m_scale >= 0 && m_scale < 1 && v_scale >= 0x1p-81f && v_scale < 1;
        simd::f32 const m_scales = simd::set(m_scale);
        simd::f32 const v_scales = simd::set(v_scale);
        simd::f32 const m_inverse = simd::set(group.scales.exp_avg_inverse);
        simd::f32 const v_inverse = simd::set(group.scales.exp_avg_sq_inverse);
        guard<path::ordinary> seen;
        clear(seen);
        started_codes next;
        code_words m_words[code_vectors / 2];
        code_words v_words[code_vectors / 2];
        std::uint64_t changed_bits = 0;
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < code_vectors; k += line_vectors) {
            std::size_t const in_group = k * simd::lanes;
            prefetch<Param, line_vectors>(param + in_group * sizeof(Param), access.ahead.param);
            if constexpr (is_split<Param>)
                prefetch<bfloat16, line_vectors>(a.weight_out + (group_begin + in_group) * sizeof(bfloat16),
                                                 access.ahead.weight_out);
            simd::f32 g[line_vectors];
            simd::f32 p[line_vectors];
            load_grads<false>(a.grad, group_begin + in_group, access, Grad{}, g);
            ADAMANT_UNROLL
            for (std::size_t j = 0; j < line_vectors; j += 2)
                load_params<Param, false>(param + (in_group + j * simd::lanes) * sizeof(Param),
                                          a.weight_out + (group_begin + in_group + j * simd::lanes) * sizeof(bfloat16),
                                          p[j], p[j + 1]);
            ADAMANT_UNROLL
            for (std::size_t j = 0; j < line_vectors; ++j) {
                std::size_t const element = in_group + j * simd::lanes;
                state_vectors s{p[j], decode_exp_avg(exp_avg + element, m_scales, constants),
                                decode_exp_avg_sq(exp_avg_sq + element, v_scales, constants)};
                update_moments<path::ordinary, false>(s, g[j], c, seen);
                next.updates[k + j] = start_param<path::ordinary>(s, c);
                next.exp_avg[k + j] = s.exp_avg;
                next.exp_avg_sq[k + j] = s.exp_avg_sq;
            }
            ADAMANT_UNROLL
            for (std::size_t j = 0; j < line_vectors; ++j)
                p[j] = finish_param<path::ordinary>(group.updates[k + j], c);
            std::uint64_t const bits =
                store_params<Param, WeightOut, false, true, Tracking>(target, in_group, p, access, for_param);
            changed_bits |= bits << in_group;
            ADAMANT_UNROLL
            for (std::size_t j = k; j < k + line_vectors; j += 2) {
                code_pair const codes = encode_pair({group.exp_avg[j], group.exp_avg[j + 1]},
                                                    {group.exp_avg_sq[j], group.exp_avg_sq[j + 1]}, m_inverse,
                                                    v_inverse, random, constants);
                m_words[j / 2] = codes.m;
                v_words[j / 2] = codes.v;
            }
        }
        if constexpr (Tracking == tracking::yes) {
            static_assert(quantized_group_elems == changed_word_elems);
            *target.changed |= changed_bits;
        }
        store_codes(m_words, v_words, group.scales, target.exp_avg, target.exp_avg_sq);
        simd::pair_of_u32 const largest = largest_of(next.exp_avg, next.exp_avg_sq);
        if (i >= end || !scales_are_ordinary || !is_in_range(seen) || exp_avg_codes_overflow(largest.a)) [[unlikely]]
            break;
        next.scales = make_scales(largest);
        group = next;
        target = {param,
                  nullptr,
                  exp_avg,
                  exp_avg_sq,
                  nullptr,
                  {},
                  is_tracked<Tracking>(a) ? a.changed + i / changed_word_elems : nullptr};
        if constexpr (!std::is_void_v<WeightOut>)
            target.weight_out = a.weight_out + i * sizeof(WeightOut);
    }
    return i;
}
// Weights beside float params are compared with the old params, rounded again. A branch around that work costs as much
// as the work, so these loops are compiled twice.
template <class Param, class Grad, class WeightOut>
std::size_t fast_quantized_step(step_pointers const& a, std::size_t begin, std::size_t end, step_scalars const& c,
                                memory_access const& access) noexcept
{
    if constexpr (std::is_same_v<Param, float> && !std::is_void_v<WeightOut>) {
        if (a.changed != nullptr)
            return fast_quantized_groups<tracking::yes, Param, Grad, WeightOut>(a, begin, end, c, access);
        return fast_quantized_groups<tracking::no, Param, Grad, WeightOut>(a, begin, end, c, access);
    } else {
        return fast_quantized_groups<tracking::either, Param, Grad, WeightOut>(a, begin, end, c, access);
    }
}

template <class Param, class Grad, class WeightOut>
constexpr quantized_paths quantized_paths_for(step_function step)
{
    return quantized_paths_for<Param, Grad, WeightOut>(step, moments_codec,
                                                       fast_quantized_step<Param, Grad, WeightOut>);
}
