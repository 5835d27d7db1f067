// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding to bfloat16: up or down stochastically, in proportion to what is cut off, so that the mean of
// many roundings is the exact value. The chance is a pure function of (seed, step, parameter, element): the bits are
// the same for any instruction set, cut, side and rank, and a step that is taken again rounds as it did.
//
// Random halves. The elements of a parameter are taken in lines of 2^16. Element i of a line has, for each array that
// is rounded so, x = start + stride * i mod 2^32, with a random start and a random odd stride, and these 16 bits:
//     r = (x * (2 x + 1) mod 2^32) >> 16, exclusive or x mod 2^16
// With x = h * 2^16 + l, the upper half of x (2 x + 1) is h (4 l + 1) + c(l) mod 2^16, where c(l) depends on l alone:
// for each l it takes every value once as h does. So r is uniform. (RC6 has this permutation: Rivest, Robshaw, Sidney
// and Yin, 1998.) For elements i and j of one line let i - j = 2^k * odd; k is at most 15. Given x_i, bits k + 1 to 31
// of x_j are uniform, h_j among them, whatever l_j is: so r_j is uniform and does not depend on r_i. Over lines,
// arrays, parameters, steps and seeds, starts and strides are as independent as a 64-bit mixing function makes them. So
// a sum of rounding errors has the mean and the variance of independent ones. Tests look at the rest: distances, steps,
// parameters, seeds. An element costs three additions, a multiplication, a shift and an exclusive or.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <adamant/dtype.hpp>
#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

// How a result becomes a bfloat16.
enum class rounding : std::uint8_t {
    nearest,    // to nearest, ties to even
    stochastic, // as above
};

// How a step rounds arrays of bfloat16 that are read again by the next step. Other types, and exp_avg and weight_out,
// are rounded to nearest.
struct bfloat16_rounding {
    // Under rounding to nearest a second moment never comes down where 1 - beta2 is less than half a unit of bfloat16,
    // 0.2%: as with the usual 0.999.
    rounding exp_avg_sq = rounding::stochastic;
    // Under rounding to nearest a param of bfloat16 does not move by an update of less than half its unit.
    rounding param = rounding::nearest;
    std::uint64_t seed = 0;

    friend bool operator==(bfloat16_rounding const&, bfloat16_rounding const&) = default;
};

// A shard's elements as rounding knows them: a number for the parameter, the same wherever the parameter is stepped,
// and the shard's first element in it. A named parameter's number is param_number_of(name).
struct place_in_param {
    std::uint64_t param = 0;
    std::uint64_t begin = 0;
};

// What one step rounds with, see make_coefficients().
struct step_rounding {
    std::uint64_t key = 0; // of seed and step
    bool exp_avg_sq = false;
    bool param = false;

    friend bool operator==(step_rounding const&, step_rounding const&) = default;
};

inline constexpr std::size_t rounding_line_elems = std::size_t{1} << 16;

// One line of one array, counted from any element: that of element i is start + stride * i.
struct rounding_line {
    std::uint32_t start;
    std::uint32_t stride; // odd

    // The same line, counted from element `by`.
    [[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr rounding_line from(std::size_t by) const noexcept
    {
        return {start + stride * static_cast<std::uint32_t>(by), stride};
    }
};
struct rounding_lines {
    rounding_line exp_avg_sq, param;
};

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

// Neighbouring numbers become unlike: multiplications and shifts that are one to one (Stafford's thirteenth variant of
// the finalizer of MurmurHash3, as SplitMix64 has it).
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
// The line that holds the element at `index` of the shard at that place, counted from the shard's first element.
[[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr rounding_lines
rounding_lines_at(std::uint64_t key, place_in_param const& place, std::size_t index) noexcept
{
    std::uint64_t const line = (place.begin + index) / rounding_line_elems;
    std::uint64_t const of_line = mixed_bits(mixed_bits(key + place.param) + line);
    std::uint64_t const exp_avg_sq = mixed_bits(of_line + 1);
    std::uint64_t const param = mixed_bits(of_line + 2);
    // The shard's first element may lie in another line: then it is counted from before the line's beginning.
    std::size_t const first = static_cast<std::size_t>(place.begin - line * rounding_line_elems);
    return {
        rounding_line{static_cast<std::uint32_t>(exp_avg_sq), static_cast<std::uint32_t>(exp_avg_sq >> 32) | 1}.from(
            first),
        rounding_line{static_cast<std::uint32_t>(param), static_cast<std::uint32_t>(param >> 32) | 1}.from(first)};
}
// The shard's element with which the next line begins.
[[nodiscard]] ADAMANT_ON_GPU ADAMANT_ALWAYS_INLINE constexpr std::size_t rounding_line_end(place_in_param const& place,
                                                                                           std::size_t index) noexcept
{
    return index + (rounding_line_elems - static_cast<std::size_t>((place.begin + index) % rounding_line_elems));
}

// A number for a named parameter (FNV-1a, 64 bits).
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
// x rounded up, away from zero, in random / 2^16 of the cases that lie so far above the lower neighbour, but never to
// infinity, and flushed. Infinity and NaN are rounded as narrow() does.
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
