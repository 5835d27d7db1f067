// SPDX-License-Identifier: Apache-2.0
// Moments of 8 bits by vectors: a group of 64 is decoded, stepped and encoded in one go while it is ordinary, so that
// arithmetic hides behind divisions; and what decodes and encodes the rest. detail/numerics/quantized8.hpp says what
// codes are. Included by detail/kernels/fused_step.inl, once per instruction set.

#if defined(ADAMANT_NO_FAST_PATHS)

template <class Param, class Grad, class WeightOut>
constexpr quantized_paths quantized_paths_for(step_function step)
{
    return quantized_paths_for<Param, Grad, WeightOut>(step, scalar::moments_codec, nullptr);
}

#else

inline constexpr std::size_t code_vectors = quantized_group_elems / simd::lanes; // of a group
using code_words = simd::words;                                                  // two vectors, as 16 bits each

// What a compiler would make anew for every group if it knew that these are constants, which takes what shuffles need.
struct code_constants {
    simd::u32 sign, decode_m, decode_v, encode_m, encode_v, low_half;
};
ADAMANT_SIMD code_constants constants_of_codes()
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
    // Both have zeros in their lower halves, so halves may be subtracted; zero, which is below, stays zero.
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

// In 256ths of a code.
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

// Random halves of a group's elements, two vectors at a time; detail/numerics/rounding.hpp.
struct code_randoms {
    bool stochastic;
    random_place next;    // vector
    random_place to_next; // the distance

    ADAMANT_SIMD code_randoms(bool is_stochastic, rounding_line const& line, std::size_t i)
        : stochastic(is_stochastic), next(line, i, 1), to_next(random_place::distance(line, simd::lanes))
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

// The scales of a group, and what its elements are multiplied by.
struct group_scales {
    float exp_avg, exp_avg_sq, exp_avg_inverse, exp_avg_sq_inverse;
};
// For largest magnitudes that divide without a limit, and are finite.
ADAMANT_SIMD group_scales scales_of(simd::pair_of_u32 largest)
{
    float const m = scale_of_group(exp_avg_curve, largest.a);
    float const v = scale_of_group(exp_avg_sq_curve, largest.b);
    return {m, v, inverse_of_scale(m), inverse_of_scale(v)};
}
// The largest magnitudes of both moments, as bits. A negative second moment is above all others, as is a NaN.
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

// The codes of two vectors, before they are packed as bytes.
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
    // Ties away from zero: a negative number gets one less.
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
                                             float* m, float* v, std::uint32_t prefetch_bytes) noexcept
{
    code_constants const constants = constants_of_codes();
    for (std::size_t g = 0; g < groups; ++g) {
        std::byte const* const m_group = exp_avg + g * sizeof(quantized8);
        std::byte const* const v_group = exp_avg_sq + g * sizeof(quantized8);
        __builtin_prefetch(m_group + prefetch_bytes);
        __builtin_prefetch(v_group + prefetch_bytes);
        simd::f32 const m_scale = simd::set(scale_at(m_group));
        simd::f32 const v_scale = simd::set(scale_at(v_group));
        for (std::size_t k = 0; k < quantized_group_elems; k += simd::lanes) {
            std::size_t const at = (g * quantized_group_elems + k) * sizeof(float);
            simd::template store<float>(reinterpret_cast<std::byte*>(m) + at,
                                        decode_exp_avg(m_group + k, m_scale, constants));
            simd::template store<float>(reinterpret_cast<std::byte*>(v) + at,
                                        decode_exp_avg_sq(v_group + k, v_scale, constants));
        }
    }
}
[[gnu::noinline]] inline void encode_moments(float const* m, float const* v, std::size_t groups, bool stochastic,
                                             rounding_line const& line, std::byte* exp_avg,
                                             std::byte* exp_avg_sq) noexcept
{
    code_constants const constants = constants_of_codes();
    for (std::size_t g = 0; g < groups; ++g) {
        std::size_t const first = g * quantized_group_elems;
        std::byte* const m_group = exp_avg + g * sizeof(quantized8);
        std::byte* const v_group = exp_avg_sq + g * sizeof(quantized8);
        simd::f32 ms[code_vectors];
        simd::f32 vs[code_vectors];
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < code_vectors; ++k) {
            std::size_t const at = (first + k * simd::lanes) * sizeof(float);
            ms[k] = simd::template load<float>(reinterpret_cast<std::byte const*>(m) + at);
            vs[k] = simd::template load<float>(reinterpret_cast<std::byte const*>(v) + at);
        }
        simd::pair_of_u32 const largest = largest_of(ms, vs);
        // Scales and codes that are limited, and what is not finite.
        constexpr std::uint32_t most = largest_divisor_bits - 0x01000000u;
        if (largest.a > most || largest.b > most || exp_avg_codes_overflow(largest.a)) [[unlikely]] {
            scalar::encode_moments(m + first, v + first, 1, stochastic, line.from(first), m_group, v_group);
            continue;
        }
        code_randoms random(stochastic, line, first);
        group_scales const scales = scales_of(largest);
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

// What is carried from the first half of a group's work to the second, as in fast_step(): new moments, their scales,
// and params whose divisions have begun.
struct started_codes {
    simd::f32 exp_avg[code_vectors], exp_avg_sq[code_vectors];
    param_update updates[code_vectors];
    group_scales scales;
};

// Vectors whose 16-bit weights are a cache line, which streams badly where other accesses come between.
inline constexpr std::size_t line_vectors = 32 / simd::lanes;

// Groups from `begin` on while they are ordinary; returns where it stopped. Some vectors of a group are started, then
// as many of the group before it are finished, and so on: a group has as many divisions as fill the out-of-order
// window, so they are spread over all of the work. The first group is preceded by one of nothing, whose results go to
// scratch.
//
// Whether moments are ordinary is seen from their scales: the smallest second moment is 2^-32 of its scale.
template <class Param, class Grad, class WeightOut>
[[gnu::noinline]] std::size_t fast_quantized_step(step_pointers const& arrays, std::size_t begin, std::size_t end,
                                                  step_scalars const& scalars, memory_access how) noexcept
{
    step_pointers const a = arrays;
    coefficient_vectors const c = broadcast(scalars);
    code_constants const constants = constants_of_codes();
    code_randoms random(scalars.rounding.exp_avg_sq, scalars.lines.exp_avg_sq, begin - quantized_group_elems);
    random_vectors<Param> for_param;
    for_param.template begin<false>(scalars.rounding.param, scalars.lines.param, begin - quantized_group_elems);
    alignas(64) std::byte scratch[4][quantized_group_elems * sizeof(float)];
    step_pointers to{scratch[0], nullptr, scratch[1], scratch[2], scratch[3]};
    started_codes group = {};
    std::size_t i = begin;
    for (;; i += quantized_group_elems) {
        // At the end the last group is started once more, to no effect.
        std::size_t const at = i < end ? i : i - quantized_group_elems;
        std::byte* const param = a.param + at * sizeof(Param);
        std::byte* const exp_avg = a.exp_avg + at / quantized_group_elems * sizeof(quantized8);
        std::byte* const exp_avg_sq = a.exp_avg_sq + at / quantized_group_elems * sizeof(quantized8);
        __builtin_prefetch(exp_avg + how.prefetch_bytes);
        __builtin_prefetch(exp_avg_sq + how.prefetch_bytes);
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
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < code_vectors; k += line_vectors) {
            std::size_t const in_group = k * simd::lanes;
            prefetch<Param, line_vectors>(param + in_group * sizeof(Param), how.prefetch_bytes);
            if constexpr (is_split<Param>)
                prefetch<bfloat16, line_vectors>(a.weight_out + (at + in_group) * sizeof(bfloat16), how.prefetch_bytes);
            simd::f32 g[line_vectors];
            simd::f32 p[line_vectors];
            load_grads<false>(a.grad, at + in_group, how, Grad{}, g);
            ADAMANT_UNROLL
            for (std::size_t j = 0; j < line_vectors; j += 2)
                load_params<Param, false>(param + (in_group + j * simd::lanes) * sizeof(Param),
                                          a.weight_out + (at + in_group + j * simd::lanes) * sizeof(bfloat16), p[j],
                                          p[j + 1]);
            ADAMANT_UNROLL
            for (std::size_t j = 0; j < line_vectors; ++j) {
                std::size_t const lane = in_group + j * simd::lanes;
                state_vectors s{p[j], decode_exp_avg(exp_avg + lane, m_scales, constants),
                                decode_exp_avg_sq(exp_avg_sq + lane, v_scales, constants)};
                update_moments<path::ordinary, false>(s, g[j], c, seen);
                next.updates[k + j] = start_param<path::ordinary>(s, c);
                next.exp_avg[k + j] = s.exp_avg;
                next.exp_avg_sq[k + j] = s.exp_avg_sq;
            }
            ADAMANT_UNROLL
            for (std::size_t j = 0; j < line_vectors; ++j)
                p[j] = finish_param<path::ordinary>(group.updates[k + j], c);
            store_params<Param, WeightOut, false, true>(to, in_group, p, how, for_param);
            ADAMANT_UNROLL
            for (std::size_t j = k; j < k + line_vectors; j += 2) {
                code_pair const codes = encode_pair({group.exp_avg[j], group.exp_avg[j + 1]},
                                                    {group.exp_avg_sq[j], group.exp_avg_sq[j + 1]}, m_inverse,
                                                    v_inverse, random, constants);
                m_words[j / 2] = codes.m;
                v_words[j / 2] = codes.v;
            }
        }
        store_codes(m_words, v_words, group.scales, to.exp_avg, to.exp_avg_sq);
        simd::pair_of_u32 const largest = largest_of(next.exp_avg, next.exp_avg_sq);
        if (i >= end || !scales_are_ordinary || !is_in_range(seen) || exp_avg_codes_overflow(largest.a)) [[unlikely]]
            break;
        next.scales = scales_of(largest);
        group = next;
        to = {param, nullptr, exp_avg, exp_avg_sq, nullptr};
        if constexpr (!std::is_void_v<WeightOut>)
            to.weight_out = a.weight_out + i * sizeof(WeightOut);
    }
    return i;
}

template <class Param, class Grad, class WeightOut>
constexpr quantized_paths quantized_paths_for(step_function step)
{
    return quantized_paths_for<Param, Grad, WeightOut>(step, moments_codec,
                                                       fast_quantized_step<Param, Grad, WeightOut>);
}

#endif
