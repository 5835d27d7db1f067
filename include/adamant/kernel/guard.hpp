// SPDX-License-Identifier: Apache-2.0
// When the fast path may be taken: constants, and the proof that they suffice.
//
// The contract flushes |x| <= 2^-126 to zero after every operation. Hardware in flush-to-zero and denormals-are-zero
// mode does that by itself for everything but a result or an operand of exactly +-2^-126, about which processors
// disagree: x86 rounds first, Arm (and qemu's x86) compares first. So the fast path leaves the flush to the hardware,
// and is right whenever no operation's exact result lies within rounding of 2^-126, nothing overflows and nothing is
// NaN. It looks at some operands and results, and gives its group of elements to the careful path (which flushes by
// hand) where one is out of bounds. Call x tame above b where |x| < 2^-126 (zero included) or |x| > b.
//
// Looked at: g after scaling, g after L2 decay and p are tame above 2^-50, m above 2^-121, q = m'/d above 2^-84; v is +0,
// subnormal or in (2^-124, 2^40]; d is at most 2^40; p' is finite. (The ordinary variant of the fast path allows no
// zeros and no L2, takes 2^-50 for m and q too, and so looks at less; the lenient one takes just these.) Bounds on the
// coefficients are in ordinary(). Upper ends first: d bounds v' and hence g * g; were m', q or decay * p infinite or NaN,
// then p' would be too. Lower ends, writing lsb for the place of the last bit of an exact product or sum:
//   g * grad_scale       looked at; a g of exactly 2^-126 gives 0 by either rule, or at most 2^-66, which is not tame
//   one_minus_beta1 * g  0, or above 2^-74
//   m'                   one term 0: above 2^-125. Else, to fall below 2^-125 the terms would have to cancel, hence to be
//                        equal within a factor 2, above 2^-75 both, and then lsb >= 2^-122.
//   g * g                0, or above 2^-100
//   beta2 * v            0, or above 2^-125
//   v'                   a sum without cancellation, never negative: 0, or above 2^-125
//   sqrt(v'), d          0 or above 2^-63; at least eps, never 0
//   q                    looked at
//   decay * p            0, or above 2^-60
//   p'                   one term 0: above 2^-124. Else they cancel as above, above 2^-61 both, and lsb >= 2^-108.
// Nothing comes near 2^-126 from either side, and rounding m', v' or p' to bfloat16 does not either.
#pragma once

#include <bit>
#include <cstdint>

#include <adamant/numerics/coefficients.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

inline constexpr std::uint32_t tame_above_bits = std::bit_cast<std::uint32_t>(0x1p-50f);
inline constexpr std::uint32_t tame_exp_avg_above_bits = std::bit_cast<std::uint32_t>(0x1p-121f);
inline constexpr std::uint32_t tame_quotient_above_bits = std::bit_cast<std::uint32_t>(0x1p-84f);
inline constexpr std::uint32_t tame_square_above_bits = std::bit_cast<std::uint32_t>(0x1p-124f);
inline constexpr std::uint32_t tame_up_to_bits = std::bit_cast<std::uint32_t>(0x1p40f);

// The largest float that rounds to a bfloat16 of 2^-126 or below: 2^-126 * (1 + 2^-8), a tie that goes to even.
inline constexpr std::uint32_t bfloat16_flush_bits = 0x00808000u;

// Whether the proof above holds for these coefficients. The ones it leaves out (a learning rate of 1e-12, a beta2 below
// one half, an eps of zero) take the careful path throughout.
[[nodiscard]] inline bool ordinary(coefficients const& c) noexcept
{
    auto const within = [](float x, float low, float high) { return x >= low && x <= high; };
    auto const zero_or_within = [&](float x, float low, float high) { return x == 0 || within(x < 0 ? -x : x, low, high); };
    return zero_or_within(c.beta1, 0x1p-4f, 1) && zero_or_within(c.beta2, 0x1p-1f, 1) &&
           within(c.one_minus_beta1, 0x1p-24f, 1) && within(c.one_minus_beta2, 0x1p-24f, 1) &&
           within(c.inv_sqrt_bias2, 1, 0x1p12f) && within(c.eps, 0x1p-60f, 0x1p40f) &&
           zero_or_within(c.neg_step_size, 0x1p-40f, 0x1p20f) && zero_or_within(c.decay, 0x1p-10f, 0x1p10f) &&
           zero_or_within(c.grad_scale, 0, 0x1p60f);
}

} // namespace kernel

ADAMANT_END_NAMESPACE
