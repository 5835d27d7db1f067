// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to bfloat16.
//
// A value is rounded away from zero with a probability equal to the truncated fraction of its last place, and toward
// zero otherwise, so the mean of many roundings is the exact value. The random bits are a pure function of (seed, step,
// parameter, element): they are the same for any instruction set, partition of the work, backend and rank, and a
// repeated step rounds in the same way.
//
// Random halves. The elements of a parameter are divided into lines of 2^16. For each stochastically rounded array, a
// line has a random start and a random odd stride. Element i of the line has x = start + stride * i mod 2^32 and these
// 16 random bits:
//     r = (x * (2 x + 1) mod 2^32) >> 16, exclusive or x mod 2^16
// With x = h * 2^16 + l, the upper half of x (2 x + 1) is h (4 l + 1) + c(l) mod 2^16, where c(l) depends on l alone.
// For each l it takes every value once as h does. So r is uniform. (RC6 uses this permutation: Rivest, Robshaw, Sidney
// and Yin, 1998.) For elements i and j of one line let i - j = 2^k * odd; k is at most 15. Given x_i, bits k + 1 to 31
// of x_j are uniform, h_j among them, whatever l_j is. So r_j is uniform and does not depend on r_i. Across lines,
// arrays, parameters, steps and seeds, starts and strides are as independent as a 64-bit mixing function makes them. So
// a sum of rounding errors has the mean and the variance of a sum of independent errors. Tests check the rest:
// distances, steps, parameters, seeds. An element costs three additions, a multiplication, a shift and an exclusive or.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <adamant/dtype.hpp>
#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

/// The rounding of a result to bfloat16, or to a code of quantized8.
enum class rounding : std::uint8_t {
    nearest,    ///< to nearest, ties to even
    stochastic, ///< to either neighbor at random, so that the mean is exact
};

/// Rounding of arrays that the next step reads again: bfloat16 arrays and 8-bit moments.
///
/// bfloat16 exp_avg, weight_out and all other types are rounded to nearest.
struct bfloat16_rounding {
    /// Rounding of bfloat16 second moments, and of the codes of both moments if they are quantized8. With rounding to
    /// nearest, a bfloat16 second moment never decreases if 1 - beta2 is less than half a unit of bfloat16, 0.2%, as it
    /// is with the usual beta2 of 0.999.
    rounding exp_avg_sq = rounding::stochastic;
    /// Rounding of bfloat16 params. With rounding to nearest, an update of less than half a unit leaves one unchanged.
    rounding param = rounding::nearest;
    std::uint64_t seed = 0; ///< seed of stochastic rounding
    /// Compares all members.
    friend bool operator==(bfloat16_rounding const&, bfloat16_rounding const&) = default;
};

/// Position of a shard in its parameter, for stochastic rounding.
struct param_position {
    /// Number of the parameter, the same on every rank and backend. A named parameter has param_number_of(name).
    std::uint64_t param = 0;
    std::uint64_t begin = 0; ///< index of the shard's first element in the parameter
};

/// Rounding of one step, see make_coefficients().
struct step_rounding {
    std::uint64_t key = 0;   ///< rounding_key() of seed and step
    bool exp_avg_sq = false; ///< whether what bfloat16_rounding::exp_avg_sq selects is rounded stochastically
    bool param = false;      ///< whether bfloat16 params are rounded stochastically
    /// Compares all members.
    friend bool operator==(step_rounding const&, step_rounding const&) = default;
};

/// Elements of a line: see the top of this file.
inline constexpr std::size_t rounding_line_elems = std::size_t{1} << 16;

/// The generator of one line of one array, relative to any origin: element i has x = start + stride * i.
struct rounding_line {
    std::uint32_t start;  ///< x of the origin
    std::uint32_t stride; ///< difference of x between neighbors; odd

    /// The same line, relative to element `origin`.
    [[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr rounding_line from(std::size_t origin) const noexcept
    {
        return {start + stride * static_cast<std::uint32_t>(origin), stride};
    }
};
/// The generators of one line of a parameter.
struct rounding_lines {
    rounding_line exp_avg_sq, ///< for second moments, and codes of quantized8
        param;                ///< for params
};

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

// Maps neighboring numbers to unrelated ones. Bijective: Stafford's thirteenth variant of the finalizer of
// MurmurHash3, as in SplitMix64.
[[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr std::uint64_t mixed_bits(std::uint64_t x) noexcept
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr std::uint64_t rounding_key(std::uint64_t seed,
                                                                         std::uint64_t step) noexcept
{
    return mixed_bits(mixed_bits(seed) + step);
}
// The lines of the shard's element `index`, relative to its first element, which is at `position`.
[[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr rounding_lines
rounding_lines_at(std::uint64_t key, param_position const& position, std::size_t index) noexcept
{
    std::uint64_t const line = (position.begin + index) / rounding_line_elems;
    std::uint64_t const line_key = mixed_bits(mixed_bits(key + position.param) + line);
    std::uint64_t const exp_avg_sq = mixed_bits(line_key + 1);
    std::uint64_t const param = mixed_bits(line_key + 2);
    // If the shard starts in an earlier line, its first element has a negative index in this one, modulo 2^64.
    std::size_t const first = static_cast<std::size_t>(position.begin - line * rounding_line_elems);
    return {
        rounding_line{static_cast<std::uint32_t>(exp_avg_sq), static_cast<std::uint32_t>(exp_avg_sq >> 32) | 1}.from(
            first),
        rounding_line{static_cast<std::uint32_t>(param), static_cast<std::uint32_t>(param >> 32) | 1}.from(first)};
}
// The index in the shard of the first element of the next line.
[[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr std::size_t
rounding_line_end(param_position const& position, std::size_t index) noexcept
{
    return index + (rounding_line_elems - static_cast<std::size_t>((position.begin + index) % rounding_line_elems));
}

/// Returns the number of a named parameter (FNV-1a, 64 bits).
[[nodiscard]] constexpr std::uint64_t param_number_of(std::string_view name) noexcept
{
    std::uint64_t number = 0xcbf29ce484222325u;
    for (char const each : name)
        number = (number ^ static_cast<unsigned char>(each)) * 0x100000001b3u;
    return number;
}

// 16 random bits for element i.
[[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr std::uint16_t random_half(rounding_line const& line,
                                                                                       std::size_t i) noexcept
{
    std::uint32_t const x = line.from(i).start;
    return static_cast<std::uint16_t>((x * (2 * x + 1)) >> 16 ^ x);
}
// x rounded to bfloat16, then flushed. The magnitude is rounded up if `random` plus the lower half of x's bits carries
// into the upper half, and down otherwise. Never rounds a finite x to infinity. Rounds infinity and NaN as narrow()
// does.
[[nodiscard]] ADAMANT_ALWAYS_INLINE constexpr bfloat16 stochastically_rounded(float x, std::uint16_t random) noexcept
{
    std::uint32_t const bits = std::bit_cast<std::uint32_t>(x);
    if (!is_finite(x))
        return narrow<bfloat16>(x);
    std::uint32_t const sum = bits + random;
    bool const overflows = (sum & float_abs_mask) >= float_infinity_bits;
    return flush(bfloat16{static_cast<std::uint16_t>((overflows ? bits : sum) >> 16)});
}

ADAMANT_END_INLINE_NAMESPACE
