// SPDX-License-Identifier: Apache-2.0
// The step over 8-bit moments, for every instruction set.
//
// Stretches of both moments are decoded to floats in cache, stepped as float moments, and encoded again. Only the codec
// depends on the codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <adamant/detail/kernels/guard.hpp>
#include <adamant/detail/kernels/step_pointers.hpp>
#include <adamant/detail/numerics/quantized8.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

template <class Moment>
inline constexpr bool is_quantized = std::is_same_v<Moment, quantized8>;

// Decodes and encodes whole groups. `line` is relative to the first element of the groups; both moments use it.
struct quantized_codec {
    void (*decode)(std::byte const* exp_avg, std::byte const* exp_avg_sq, std::size_t groups, float* m, float* v,
                   prefetch_distances const& ahead) noexcept;
    void (*encode)(float const* m, float const* v, std::size_t groups, bool stochastic, rounding_line const& line,
                   std::byte* exp_avg, std::byte* exp_avg_sq) noexcept;
};

// The functions that a step over quantized moments calls, for the types of the other arrays.
struct quantized_paths {
    step_function step; // the step with float moments
    quantized_codec const& codec;
    // Steps whole groups within one line of random numbers, from `begin` on, while they are ordinary. Returns the
    // element at which it stopped. May be null.
    std::size_t (*ordinary)(step_pointers const&, std::size_t begin, std::size_t end, step_scalars const&,
                            memory_access const&) noexcept;
    std::size_t param_bytes, grad_bytes, weight_bytes; // per element
};
template <class Param, class Grad, class WeightOut>
ADAMANT_ALWAYS_INLINE constexpr quantized_paths
quantized_paths_for(step_function step, quantized_codec const& codec,
                    std::size_t (*ordinary)(step_pointers const&, std::size_t, std::size_t, step_scalars const&,
                                            memory_access const&) noexcept) noexcept
{
    return {step, codec, ordinary, sizeof(Param), sizeof(Grad), size_bytes(dtype_of<WeightOut>)};
}

// Elements per stretch. Their decoded moments and the other arrays of a step fit into the first-level cache.
inline constexpr std::size_t quantized_stretch_elems = 512;

// Steps a stretch by decoding its moments to floats. Returns the number of gradients that are not finite.
inline std::uint64_t step_decoded(step_pointers const& a, std::size_t i, std::size_t n, step_scalars const& c,
                                  memory_access const& permitted, quantized_paths const& paths) noexcept
{
    memory_access access = permitted;
    access.stream = false;
    alignas(64) float m[quantized_stretch_elems];
    alignas(64) float v[quantized_stretch_elems];
    std::byte* const exp_avg = a.exp_avg + array_bytes(dtype::quantized8, i);
    std::byte* const exp_avg_sq = a.exp_avg_sq + array_bytes(dtype::quantized8, i);
    std::size_t const groups = (n + quantized_group_elems - 1) / quantized_group_elems;
    paths.codec.decode(exp_avg, exp_avg_sq, groups, m, v, access.ahead);
    step_pointers const stretch{a.param + i * paths.param_bytes,
                                a.grad + i * paths.grad_bytes,
                                reinterpret_cast<std::byte*>(m),
                                reinterpret_cast<std::byte*>(v),
                                a.weight_out == nullptr ? nullptr : a.weight_out + i * paths.weight_bytes,
                                {a.position.param, a.position.begin + i},
                                a.changed == nullptr ? nullptr : a.changed + i / changed_word_elems};
    std::uint64_t const nonfinite = paths.step(stretch, 0, n, c, access);
    std::size_t const rest = groups * quantized_group_elems - n;
    std::memset(m + n, 0, rest * sizeof(float));
    std::memset(v + n, 0, rest * sizeof(float));
    paths.codec.encode(m, v, groups, c.rounding.exp_avg_sq, c.lines.exp_avg_sq.from(i), exp_avg, exp_avg_sq);
    return nonfinite;
}

// See step_function. `begin` is a multiple of 64, and so is `end` except at the shard's end. While groups are not
// ordinary, stretches grow, so that little is computed twice.
inline std::uint64_t quantized_step(step_pointers const& a, std::size_t begin, std::size_t end, coefficients const& c,
                                    memory_access const& permitted, quantized_paths const& paths) noexcept
{
    bool const ordinary = paths.ordinary != nullptr && fast_paths_apply(c) && ordinary_path_applies(c);
    memory_access access = permitted;
    access.stream = access.stream && ordinary &&
                    reinterpret_cast<std::uintptr_t>(a.weight_out + begin * paths.weight_bytes) % 64 == 0;
    std::uint64_t nonfinite = 0;
    std::size_t stretch = ordinary ? quantized_group_elems : quantized_stretch_elems;
    for (std::size_t i = begin; i < end;) {
        step_scalars const scalars{c, rounding_lines_at(c.rounding.key, a.position, i)};
        // The moments of a group use the line of its first element, so a line ends at a group boundary for them.
        std::size_t const line_rest = rounding_line_end(a.position, i) - i;
        std::size_t const line_elems =
            (line_rest + quantized_group_elems - 1) / quantized_group_elems * quantized_group_elems;
        std::size_t const line_end = line_elems < end - i ? i + line_elems : end;
        // Params use the lines of their own elements, so the fast path excludes a group in which a line ends.
        std::size_t const in_line = line_rest < end - i ? line_rest : end - i;
        std::size_t const whole_end = i + in_line / quantized_group_elems * quantized_group_elems;
        while (i < line_end) {
            if (ordinary && i < whole_end) {
                std::size_t const start = i;
                i = paths.ordinary(a, i, whole_end, scalars, access);
                stretch = i != start                          ? quantized_group_elems
                          : stretch < quantized_stretch_elems ? 2 * stretch
                                                              : quantized_stretch_elems;
                if (i == line_end)
                    break;
            }
            std::size_t const n = stretch < line_end - i ? stretch : line_end - i;
            nonfinite += step_decoded(a, i, n, scalars, access, paths);
            i += n;
        }
    }
    return nonfinite;
}

namespace scalar {

inline void decode_moments(std::byte const* exp_avg, std::byte const* exp_avg_sq, std::size_t groups, float* m,
                           float* v, prefetch_distances const&) noexcept
{
    for (std::size_t g = 0; g < groups; ++g) {
        decode_exp_avg(exp_avg + g * sizeof(quantized8), m + g * quantized_group_elems);
        decode_exp_avg_sq(exp_avg_sq + g * sizeof(quantized8), v + g * quantized_group_elems);
    }
}
inline void encode_moments(float const* m, float const* v, std::size_t groups, bool stochastic,
                           rounding_line const& line, std::byte* exp_avg, std::byte* exp_avg_sq) noexcept
{
    for (std::size_t g = 0; g < groups; ++g) {
        std::size_t const first = g * quantized_group_elems;
        encode_group(exp_avg_curve, m + first, quantized_group_elems, stochastic, line.from(first),
                     exp_avg + g * sizeof(quantized8));
        encode_group(exp_avg_sq_curve, v + first, quantized_group_elems, stochastic, line.from(first),
                     exp_avg_sq + g * sizeof(quantized8));
    }
}
inline constexpr quantized_codec moments_codec = {decode_moments, encode_moments};

} // namespace scalar

} // namespace kernel
ADAMANT_END_NAMESPACE
