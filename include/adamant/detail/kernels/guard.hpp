// SPDX-License-Identifier: Apache-2.0
// When a fast path may be taken: constants, and the proof that they suffice.
//
// The contract flushes |x| <= 2^-126 to zero after every operation. Hardware in flush-to-zero and denormals-are-zero
// mode does that by itself but for a result or an operand of exactly +-2^-126, about which processors disagree with
// it and with each other: x86 rounds first, Arm (and qemu's x86) compares first. So a fast path leaves the flush to the
// hardware, and has the contract's bits whenever no operand and no result is +-2^-126 and none is NaN (whose bits
// differ between processors). It looks at some operands and results before it stores anything, and gives its group of
// elements to a slower path where one is out of bounds. Bounds on the coefficients are in the two functions below.
//
// Writing lsb for the place of the last bit of an exact product or sum: that of a product of two floats lies at most 47
// below its leading bit.
//
// The lenient path. Looked at: g after scaling, again after L2 decay, and p are zero (or subnormal) or above 2^-40, m
// is zero or above 2^-121, |g| and |m| are at most 2^8, |p| at most 2^16; v is +0, subnormal or in (2^-124, 2^16]; and
// where p is zero, so are m and g.
//   g * grad_scale       looked at; a gradient of exactly 2^-126 gives 0 by either rule, or at most 2^-66: not in range
//   w = one_minus_beta1 * g
//                        0, or at least 2^-64
//   m'                   g zero: 0, or above 2^-125. Else, to fall below 2^-65 the terms have to cancel, hence to be
//                        equal within a factor 2, at least 2^-65 both, and then lsb >= 2^-112.
//   g * g                0, or above 2^-80
//   beta2 * v            0, or above 2^-125
//   v'                   a sum without cancellation, never negative: 0, or above 2^-125; at most 2^17
//   sqrt(v'), d          0 or above 2^-63; d is at least eps, and at most 2^50
//   decay * p            0, or at least 2^-50
//   q = m' / d           may come near 2^-126, but then p is not zero, for m' is not, and neg_step_size * q is less
//                        than a quarter of decay * p's last place: p' = decay * p by either rule. At most 2^69.
//   p'                   p zero: m' is, so q and p' are. Else, to fall below 2^-51 the terms cancel as above, at least
//                        2^-51 both, and lsb >= 2^-98. Finite, by the bounds on q, neg_step_size and p.
//
// A group of idle parameters. Looked at: g is zero or subnormal, and there is no L2 decay; |p| is zero, subnormal or in
// (2^-115, 2), and so is v, which has no sign (-0 neither); |m| is at most idle_ratio_of() times |p|. m and m' are
// flushed by hand, m' also where storing rounds it to 2^-126, so any such m will do. A zero m' has the sign that the
// formula gives it: one_minus_beta1 is positive, so it changes none. g * g is +0, and v' = beta2 * v + 0, which is +0
// or above 2^-116. decay * p is 0 or above 2^-125. Where p is zero, m is, and d is at least eps, so q = m'. Else
// neg_step_size * q is less than a quarter of decay * p's last place, and so is neg_step_size * m': p' = decay * p with
// either.
//
// The ordinary path. Looked at: p and w are in [2^-63, 2), or the negative of such; |m| is below 2; v is in (2^-124,
// 2). There is no L2 decay and one_minus_beta1 is at most 1/2, so g is at least 2^-62 (1 - 2^-24), and below 2^25.
//   g * grad_scale       as above: what a gradient of exactly 2^-126 gives is not in range
//   m'                   an m that would be flushed, or is 2^-126, changes the sum by less than a quarter of w's
//                        last place: m' = w by either rule. To fall below 2^-64 the terms cancel as above, and
//                        lsb >= 2^-111.
//   g * g                above 2^-125
//   beta2 * v, v'        above 2^-125 (beta2 * v may be 0, if beta2 is: then v' = g * g); v' is at most 2^51
//   sqrt(v'), d          above 2^-63; d is at most 2^67
//   decay * p            at least 2^-73
//   q                    as above; at most 2^62
//   p'                   cancelling terms are at least 2^-74 both, and lsb >= 2^-121
// No path stores what comes near 2^-126, and rounding m', v' or p' to bfloat16 does not either.
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
// The largest float that is flushed where it is stored as T.
template <class T>
inline constexpr std::uint32_t flush_bits_of = float_min_normal_bits;
template <>
inline constexpr std::uint32_t flush_bits_of<bfloat16> = bfloat16_flush_bits;

// Whether the proof above holds for these coefficients. The ones it leaves out (a beta2 below one half, an eps of zero,
// a decay of zero) take the careful path throughout. Every call of a kernel asks this, and small shards notice: so it
// compares bits, which order positive floats as their values do, and branches once instead of once for each bound.
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

// How large a first moment may be, relative to its param, for a step without gradient not to move the param: |q| is at
// most |m| / eps, rounded, and 2^-26 of a float is less than a quarter of its last place. A little less, because the
// product with |p| is rounded, too. The bound holds for |m| itself in place of |q|, hence the 1.
[[nodiscard]] inline float idle_ratio_of(coefficients const& c) noexcept
{
    auto const magnitude = [](float x) { return x < 0 ? -x : x; };
    float const least_divisor = c.eps < 1 ? c.eps : 1;
    float const step = magnitude(c.neg_step_size);
    return 0x0.fffp-26f * magnitude(c.decay) * least_divisor / (step > 0x1p-60f ? step : 0x1p-60f);
}

// Whether the ordinary path may be tried: nearly always with decoupled decay.
[[nodiscard]] inline bool ordinary_path_applies(coefficients const& c) noexcept
{
    return c.l2 == 0 && c.one_minus_beta1 <= 0.5f;
}

} // namespace kernel

ADAMANT_END_NAMESPACE
