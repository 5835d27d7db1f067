// SPDX-License-Identifier: Apache-2.0
// Four floats in a NEON register: xsimd's batches. This file implements the operations that some version of xsimd
// rounds differently or compiles to more instructions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <arm_neon.h>
#include <xsimd/xsimd.hpp>

#include <adamant/dtype.hpp>
#include <adamant/detail/kernels/simd_macros.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace vec128 {

using f32 = xsimd::batch<float, xsimd::neon64>;
using u32 = xsimd::batch<std::uint32_t, xsimd::neon64>;
using i32 = xsimd::batch<std::int32_t, xsimd::neon64>;

// The same bits. Not xsimd's bitwise_cast, which takes seconds to compile.
template <class To, class From>
ADAMANT_SIMD To cast(From x) noexcept
{
    return To(std::bit_cast<typename To::register_type>(x.data));
}
// The compiler knows nothing of x from here on.
ADAMANT_SIMD void hold(f32& x) noexcept
{
    asm("" : "+w"(x.data));
}
ADAMANT_SIMD f32 set(float x) noexcept
{
    return f32(x);
}
ADAMANT_SIMD u32 set(std::uint32_t x) noexcept
{
    return u32(x);
}
// Not xsimd's functions, which the compiler does not always inline.
template <int Count>
ADAMANT_SIMD u32 shift_left(u32 x) noexcept
{
    return vshlq_n_u32(x, Count);
}
template <int Count>
ADAMANT_SIMD u32 shift_right(u32 x) noexcept
{
    return vshrq_n_u32(x, Count);
}
template <class Ints>
ADAMANT_SIMD Ints min(Ints a, Ints b) noexcept
{
    return xsimd::min(a, b);
}
template <class Ints>
ADAMANT_SIMD Ints max(Ints a, Ints b) noexcept
{
    return xsimd::max(a, b);
}
ADAMANT_SIMD bool any_sign(u32 x) noexcept
{
    return vminvq_s32(vreinterpretq_s32_u32(x)) < 0;
}

ADAMANT_SIMD uint16x4_t load_u16(std::byte const* address) noexcept
{
    std::uint64_t four;
    std::memcpy(&four, address, sizeof four);
    return vcreate_u16(four);
}
ADAMANT_SIMD void store_u16(std::byte* address, uint16x4_t x) noexcept
{
    std::uint64_t const four = vget_lane_u64(vreinterpret_u64_u16(x), 0);
    std::memcpy(address, &four, sizeof four);
}

ADAMANT_SIMD u32 upper_halves(u32 a, u32 b) noexcept
{
    return vreinterpretq_u32_u16(vuzp2q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}

ADAMANT_SIMD void load_signed_halves(std::byte const* address, u32& a, u32& b) noexcept
{
    int16x8_t const eight = vreinterpretq_s16_u8(vld1q_u8(reinterpret_cast<std::uint8_t const*>(address)));
    a = vreinterpretq_u32_s32(vmovl_s16(vget_low_s16(eight)));
    b = vreinterpretq_u32_s32(vmovl_high_s16(eight));
}

ADAMANT_SIMD f32 load(std::byte const* address, float) noexcept
{
    return f32::load_unaligned(reinterpret_cast<float const*>(address));
}
ADAMANT_SIMD f32 load(std::byte const* address, bfloat16) noexcept
{
    return vreinterpretq_f32_u32(vshll_n_u16(load_u16(address), 16));
}
ADAMANT_SIMD f32 load(std::byte const* address, float16) noexcept
{
    return vcvt_f32_f16(vreinterpret_f16_u16(load_u16(address)));
}
ADAMANT_SIMD void store(std::byte* address, f32 x, float) noexcept
{
    x.store_unaligned(reinterpret_cast<float*>(address));
}
// The addend for rounding to bfloat16 by RADDHN, which adds 0x8000 and returns the upper half: -1 in lanes whose last
// place is even, so that a tie rounds down, else 0. Additions, comparisons and interleaving run on every pipeline,
// shifts only on half of them.
ADAMANT_SIMD uint32x4_t to_nearest_even(uint32x4_t bits) noexcept
{
    uint32x4_t even = vceqzq_u32(vandq_u32(bits, vdupq_n_u32(0x10000)));
    asm("" : "+w"(even)); // keeps Clang from turning the comparison into shifts
    return even;
}
ADAMANT_SIMD uint16x4_t rounded(f32 x, bfloat16) noexcept
{
    uint32x4_t const bits = vreinterpretq_u32_f32(x);
    return vraddhn_u32(bits, to_nearest_even(bits));
}
ADAMANT_SIMD uint16x4_t rounded(f32 x, float16) noexcept
{
    return vreinterpret_u16_f16(vcvt_f16_f32(x));
}
// Loads two vectors that are adjacent in memory, in one access.
ADAMANT_SIMD void load_pair(std::byte const* address, f32& a, f32& b, bfloat16) noexcept
{
    uint16x8_t const eight = vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<std::uint8_t const*>(address)));
    uint16x8_t const zeros = vdupq_n_u16(0);
    a = vreinterpretq_f32_u16(vzip1q_u16(zeros, eight));
    b = vreinterpretq_f32_u16(vzip2q_u16(zeros, eight));
}
// Two vectors rounded to a 16-bit type, in the order of memory.
ADAMANT_SIMD u32 rounded_pair(f32 a, f32 b, bfloat16) noexcept
{
    uint32x4_t const b_bits = vreinterpretq_u32_f32(b);
    return vreinterpretq_u32_u16(vraddhn_high_u32(rounded(a, bfloat16{}), b_bits, to_nearest_even(b_bits)));
}
ADAMANT_SIMD u32 rounded_pair(f32 a, f32 b, float16) noexcept
{
    return vreinterpretq_u32_f16(vcvt_high_f16_f32(vcvt_f16_f32(a), b));
}
// Rounds results of the ordinary path to bfloat16, in the upper half of each lane, as round_upper_word() in
// detail/kernels/avx2.inl does.
ADAMANT_SIMD uint16x8_t rounded_ordinary(f32 x) noexcept
{
    return vreinterpretq_u16_f32(vfmaq_n_f32(vmulq_n_f32(x, -65535.0f), x, 65536.0f));
}
ADAMANT_SIMD u32 rounded_ordinary_pair(f32 a, f32 b, bfloat16) noexcept
{
    return upper_halves(vreinterpretq_u32_u16(rounded_ordinary(a)), vreinterpretq_u32_u16(rounded_ordinary(b)));
}
// Not xsimd's: some versions multiply and then add, which the compiler may or may not fuse.
ADAMANT_SIMD f32 fma(f32 a, f32 b, f32 c) noexcept
{
    return vfmaq_f32(c, a, b);
}
// Not xsimd's: some versions refine an estimate, which is not correctly rounded.
ADAMANT_SIMD f32 div(f32 a, f32 b) noexcept
{
    return vdivq_f32(a, b);
}
ADAMANT_SIMD void zip(f32& a, f32& b) noexcept
{
    f32 const low = vzip1q_f32(a, b);
    b = vzip2q_f32(a, b);
    a = low;
}
ADAMANT_SIMD f32 sqrt(f32 a) noexcept
{
    return vsqrtq_f32(a);
}

// Loads two vectors that are adjacent in memory.
template <class T>
ADAMANT_SIMD void load_pair(std::byte const* address, f32& a, f32& b, T) noexcept
{
    a = load(address, T{});
    b = load(address + sizeof(f32) / sizeof(float) * sizeof(T), T{});
}
template <class T>
ADAMANT_SIMD void store(std::byte* address, f32 x, T) noexcept
{
    store_u16(address, rounded(x, T{}));
}
// The same as rounded_pair() for results of the ordinary path.
template <class T>
ADAMANT_SIMD u32 rounded_ordinary_pair(f32 a, f32 b, T) noexcept
{
    return rounded_pair(a, b, T{});
}

} // namespace vec128

ADAMANT_END_NAMESPACE
