// SPDX-License-Identifier: Apache-2.0
// Preconditions of the fast paths: the bounds, and the proof that they suffice.
//
// The contract flushes |x| <= 2^-126 to zero after every operation. Hardware in flush-to-zero and denormals-are-zero
// mode does the same, except for a result or an operand of exactly +-2^-126, on which processors disagree with the
// contract and with each other: x86 rounds first, Arm (and qemu's x86) compares first. A fast path leaves the flush to
// the hardware. It has the contract's bits if no operand and no result is +-2^-126 and none is a NaN (whose bits differ
// between processors). Before it stores anything, it checks some operands and results. If one is out of bounds, it
// hands its group of elements to a slower path. The bounds on the coefficients are in fast_paths_apply() and
// ordinary_path_applies().
//
// In this proof lsb is the place value of the last bit of an exact product or sum. The last bit of a product of two
// floats is at most 47 places below its leading bit.
//
// The lenient path. It checks that g after scaling, g again after L2 decay, and p are zero (or subnormal) or above
// 2^-40 in magnitude; that m is zero or above 2^-121; that |g| and |m| are at most 2^8, and |p| at most 2^16; that v is
// +0, subnormal or in (2^-124, 2^16]; and that m and g are zero if p is zero.
//   g * grad_scale       checked; a gradient of exactly 2^-126 gives 0 by either rule, or at most 2^-66: out of bounds
//   w = one_minus_beta1 * g
//                        0, or at least 2^-64
//   m'                   If g is zero: 0, or above 2^-125. Otherwise a result below 2^-65 requires cancellation: the
//                        terms are equal within a factor 2, both are at least 2^-65, and lsb >= 2^-112.
//   g * g                0, or above 2^-80
//   beta2 * v            0, or above 2^-125
//   v'                   a sum without cancellation, never negative: 0, or above 2^-125; at most 2^17
//   sqrt(v'), d          0 or above 2^-63; d is at least eps, and at most 2^50
//   decay * p            0, or at least 2^-50
//   q = m' / d           may be near 2^-126. Then p is not zero, because m' is not, and neg_step_size * q is less than
//                        a quarter of decay * p's last place: p' = decay * p by either rule. At most 2^69.
//   p'                   If p is zero: m' is zero, so q and p' are. Otherwise a result below 2^-51 requires
//                        cancellation as above: both terms are at least 2^-51, and lsb >= 2^-98. Finite, by the bounds
//                        on q, neg_step_size and p.
//
// A group of idle parameters. It checks that g is zero or subnormal and that the step has no L2 decay; that |p| is
// zero, subnormal or in (2^-115, 2); that v is, too, and has no sign (-0 is refused); and that |m| is at most
// idle_ratio_of() times |p|. m and m' are flushed explicitly, m' also if storing rounds it to 2^-126, so every such m
// is allowed. A zero m' has the sign that the formula gives it: one_minus_beta1 is positive, so omitting the factor
// changes no sign. g * g is +0, and v' = beta2 * v + 0, which is +0 or above 2^-116. decay * p is 0 or above 2^-125. If
// p is zero, m is zero and d is at least eps, so q = m'. Otherwise neg_step_size * q is less than a quarter of decay *
// p's last place, and so is neg_step_size * m': p' = decay * p with either.
//
// The ordinary path. It checks that |p| and |w| are in [2^-63, 2); that |m| is below 2; and that v is in (2^-124, 2).
// There is no L2 decay and one_minus_beta1 is at most 1/2, so |g| is at least 2^-62 (1 - 2^-24), and below 2^25.
//   g * grad_scale       as above: the result for a gradient of exactly 2^-126 is out of bounds
//   m'                   an m that would be flushed, or is 2^-126, changes the sum by less than a quarter of w's
//                        last place: m' = w by either rule. A result below 2^-64 requires cancellation as above, and
//                        lsb >= 2^-111.
//   g * g                above 2^-125
//   beta2 * v, v'        above 2^-125 (beta2 * v may be 0, if beta2 is: then v' = g * g); v' is at most 2^51
//   sqrt(v'), d          above 2^-63; d is at most 2^67
//   decay * p            at least 2^-73
//   q                    as above; at most 2^62
//   p'                   if the terms cancel, both are at least 2^-74, and lsb >= 2^-121
// No path stores a value near 2^-126, and rounding m', v' or p' to bfloat16 produces none.
#pragma once

#include <bit>
#include <cstdint>

#include <adamant/hyperparameters.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

inline constexpr std::uint32_t in_range_above_bits = std::bit_cast<std::uint32_t>(0x1p-40f);
inline constexpr std::uint32_t in_range_exp_avg_above_bits = std::bit_cast<std::uint32_t>(0x1p-121f);
inline constexpr std::uint32_t in_range_square_above_bits = std::bit_cast<std::uint32_t>(0x1p-124f);
inline constexpr std::uint32_t in_range_idle_above_bits = std::bit_cast<std::uint32_t>(0x1p-115f);
inline constexpr std::uint32_t in_range_up_to_bits = std::bit_cast<std::uint32_t>(0x1p8f);
inline constexpr std::uint32_t in_range_wide_up_to_bits = std::bit_cast<std::uint32_t>(0x1p16f);

// The largest float that rounds to a bfloat16 of 2^-126 or below: 2^-126 * (1 + 2^-8), a tie that goes to even.
inline constexpr std::uint32_t bfloat16_flush_bits = 0x00808000u;
// The largest float that is flushed when it is stored as T.
template <class T>
inline constexpr std::uint32_t flush_bits_of = float_min_normal_bits;
template <>
inline constexpr std::uint32_t flush_bits_of<bfloat16> = bfloat16_flush_bits;

// Whether the proof above covers these coefficients. Other coefficients (a beta2 below one half, an eps of zero, a
// decay of zero) take the careful path for all elements. Every kernel call runs this check, which costs small shards
// measurable time. So it compares bits, which order positive floats like their values, and branches once instead of
// once per bound.
[[nodiscard]] inline bool fast_paths_apply(coefficients const& c) noexcept
{
    auto const bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
    auto const magnitude = [&](float x) { return bits(x) & float_abs_mask; };
    auto const at_most = [&](std::uint32_t x, float high) -> unsigned { return x <= bits(high); };
    auto const within = [&](std::uint32_t x, float low, float high) -> unsigned {
        return x - bits(low) <= bits(high) - bits(low);
    };
    unsigned const no_beta2 = at_most(magnitude(c.beta2), 0) & within(bits(c.one_minus_beta2), 1, 1);
    return ((at_most(magnitude(c.beta1), 0) | within(bits(c.beta1), 0x1p-4f, 1)) &
            (no_beta2 | within(bits(c.beta2), 0x1p-1f, 1)) & within(bits(c.one_minus_beta1), 0x1p-24f, 1) &
            within(bits(c.one_minus_beta2), 0x1p-24f, 1) & within(bits(c.inv_sqrt_bias2), 1, 0x1p40f) &
            within(bits(c.eps), 0x1p-60f, 0x1p40f) & at_most(magnitude(c.neg_step_size), 0x1p20f) &
            within(magnitude(c.decay), 0x1p-10f, 0x1p10f) & at_most(magnitude(c.grad_scale), 0x1p60f)) != 0;
}

// The largest ratio |m| / |p| with which a step without gradient leaves the param unchanged: |q| is at most |m| / eps,
// rounded, and 2^-26 of a float is less than a quarter of its last place. The factor is slightly below 2^-26, because
// the product with |p| is rounded, too. The bound must also hold for |m| in place of |q|, hence the minimum of eps and
// 1.
[[nodiscard]] inline float idle_ratio_of(coefficients const& c) noexcept
{
    auto const magnitude = [](float x) { return x < 0 ? -x : x; };
    float const least_divisor = c.eps < 1 ? c.eps : 1;
    float const step = magnitude(c.neg_step_size);
    return 0x0.fffp-26f * magnitude(c.decay) * least_divisor / (step > 0x1p-60f ? step : 0x1p-60f);
}

// Whether the coefficients allow the ordinary path. With decoupled decay they nearly always do.
[[nodiscard]] inline bool ordinary_path_applies(coefficients const& c) noexcept
{
    return c.l2 == 0 && c.one_minus_beta1 <= 0.5f;
}

} // namespace kernel

ADAMANT_END_NAMESPACE
