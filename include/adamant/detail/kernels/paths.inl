// SPDX-License-Identifier: Apache-2.0
// The paths of the fused step and the checks of each before it stores anything: detail/kernels/guard.hpp over vectors.
// Included by detail/kernels/formula.inl, once per instruction set.

// The ways to compute a group of elements.
enum class path {
    ordinary, // typical training data: no zeros in param and grad, no L2 decay. The hardware flushes small values.
    lenient,  // also zeros, larger values and L2 decay, with a special case for groups of idle parameters
    careful,  // any values: flushes explicitly after each operation and makes NaNs canonical
};

// The values that a path checks before it stores anything, reduced over a group. detail/kernels/guard.hpp has the
// bounds and the proof. No check waits for the square root or the division.
template <path>
struct guard {
};

// Bit 30 is set in numbers of at least 2, infinities and NaNs, and bit 29 in all others that are at least 2^-63. So one
// OR finds values that are too large, and one AND values that are too small.
template <>
struct guard<path::ordinary> {
    simd::u32 all, any, low_square;
};
// Subtracting the bits of 2^-126 makes zeros and subnormals the largest unsigned values, so one minimum finds values
// that are too small but not flushed by the hardware.
template <>
struct guard<path::lenient> {
    simd::u32 low, low_exp_avg, low_square, high, high_wide;
    simd::u32 lost; // sign bit set if a param is zero but its gradient or first moment is not
};

ADAMANT_SIMD void clear(guard<path::ordinary>& seen)
{
    seen = {simd::set(~0u), simd::set(0u), simd::set(~0u >> 1)};
}
ADAMANT_SIMD void clear(guard<path::lenient>& seen)
{
    simd::u32 const none = simd::set(0u);
    seen = {simd::set(~0u), simd::set(~0u), simd::set(~0u), none, none, none};
}
ADAMANT_SIMD void clear(guard<path::careful>&) {}

// These functions return a sign bit in lanes for which the condition holds. x and bound are below 2^31; an x with its
// sign bit set counts as above every bound.
ADAMANT_SIMD simd::u32 at_most(simd::u32 x, std::uint32_t bound)
{
    return simd::sub(x, simd::set(bound + 1)) & ~x;
}
ADAMANT_SIMD simd::u32 above(simd::u32 x, std::uint32_t bound)
{
    return simd::sub(simd::set(bound), x) | x;
}
ADAMANT_SIMD bool is_in_range(guard<path::ordinary> const& seen)
{
    simd::u32 const outside = simd::template shift_left<1>(seen.any) | ~simd::template shift_left<2>(seen.all);
    simd::u32 const too_low = simd::sub(seen.low_square, simd::set(in_range_square_above_bits + 1));
    return !simd::any_sign(simd::or3(outside, too_low, seen.low_square));
}
ADAMANT_SIMD bool is_in_range(guard<path::lenient> const& seen)
{
    constexpr std::uint32_t offset = float_min_normal_bits;
    simd::u32 const too_low = simd::or3(at_most(seen.low, in_range_above_bits - offset),
                                        at_most(seen.low_exp_avg, in_range_exp_avg_above_bits - offset),
                                        at_most(seen.low_square, in_range_square_above_bits - offset));
    simd::u32 const too_high = above(seen.high, in_range_up_to_bits) | above(seen.high_wide, in_range_wide_up_to_bits);
    return !simd::any_sign(simd::or3(too_low, too_high, seen.lost));
}
