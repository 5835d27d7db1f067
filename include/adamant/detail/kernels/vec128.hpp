// SPDX-License-Identifier: Apache-2.0
// Four floats in a register of the architecture's baseline (SSE2 on x86-64, NEON on AArch64), for the generic facade.
//
// On Arm, vectors are xsimd's batches. This file implements the operations that some version of xsimd rounds
// differently or compiles to more instructions. On x86-64 they are the compiler's vectors, because including xsimd adds
// a third of a second to the compile time of every program, and this tier is the last resort there.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#include <xsimd/xsimd.hpp>
#endif

#include <adamant/dtype.hpp>
#include <adamant/detail/kernels/simd_macros.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace vec128 {

#if defined(__x86_64__)

using f32 = __m128;
using f64 = __m128d;
using u32 [[gnu::vector_size(16)]] = std::uint32_t;
using i32 [[gnu::vector_size(16)]] = std::int32_t;

template <class To, class From>
ADAMANT_SIMD To cast(From x) noexcept // the same bits
{
    return reinterpret_cast<To>(x);
}
// The compiler knows nothing of x from here on.
ADAMANT_SIMD void hold(f32& x) noexcept
{
    asm("" : "+x"(x));
}
ADAMANT_SIMD f32 set(float x) noexcept
{
    return _mm_set1_ps(x);
}
ADAMANT_SIMD u32 set(std::uint32_t x) noexcept
{
    return u32{x, x, x, x};
}
template <int Count>
ADAMANT_SIMD u32 shift_left(u32 x) noexcept
{
    return x << Count;
}
template <int Count>
ADAMANT_SIMD u32 shift_right(u32 x) noexcept
{
    return x >> Count;
}
template <class Ints>
ADAMANT_SIMD Ints min(Ints a, Ints b) noexcept
{
    return a < b ? a : b;
}
template <class Ints>
ADAMANT_SIMD Ints max(Ints a, Ints b) noexcept
{
    return a < b ? b : a;
}
ADAMANT_SIMD bool any_sign(u32 x) noexcept
{
    return _mm_movemask_ps(cast<f32>(x)) != 0;
}

ADAMANT_SIMD __m128i select(__m128i mask, __m128i if_set, __m128i if_not) noexcept
{
    return _mm_or_si128(_mm_and_si128(mask, if_set), _mm_andnot_si128(mask, if_not));
}
ADAMANT_SIMD __m128i set_all(std::uint32_t x) noexcept
{
    return _mm_set1_epi32(static_cast<int>(x));
}
ADAMANT_SIMD __m128i load_u16(std::byte const* address) noexcept
{
    return _mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<__m128i_u const*>(address)), _mm_setzero_si128());
}
ADAMANT_SIMD u32 upper_halves(u32 a, u32 b) noexcept
{
    return cast<u32>(_mm_packs_epi32(_mm_srai_epi32(cast<__m128i>(a), 16), _mm_srai_epi32(cast<__m128i>(b), 16)));
}
// Sign-extends the halves first, because SSE2 packs with signed saturation only.
ADAMANT_SIMD u32 lower_halves(__m128i a, __m128i b) noexcept
{
    return upper_halves(shift_left<16>(cast<u32>(a)), shift_left<16>(cast<u32>(b)));
}
ADAMANT_SIMD void store_u16(std::byte* address, __m128i x) noexcept
{
    _mm_storel_epi64(reinterpret_cast<__m128i_u*>(address), cast<__m128i>(lower_halves(x, x)));
}

ADAMANT_SIMD void load_signed_halves(std::byte const* address, u32& a, u32& b) noexcept
{
    __m128i const eight = _mm_loadu_si128(reinterpret_cast<__m128i_u const*>(address));
    a = cast<u32>(_mm_srai_epi32(_mm_unpacklo_epi16(eight, eight), 16));
    b = cast<u32>(_mm_srai_epi32(_mm_unpackhi_epi16(eight, eight), 16));
}

ADAMANT_SIMD f32 load(std::byte const* address, float) noexcept
{
    return _mm_loadu_ps(reinterpret_cast<float const*>(address));
}
ADAMANT_SIMD f32 load(std::byte const* address, bfloat16) noexcept
{
    return _mm_castsi128_ps(_mm_slli_epi32(load_u16(address), 16));
}
ADAMANT_SIMD f32 load(std::byte const* address, float16) noexcept
{
    __m128i const half = load_u16(address);
    __m128i const abs = _mm_and_si128(half, set_all(0x7fffu));
    __m128i const rebias = set_all(112u << 23); // exponent bias 127 instead of 15
    __m128i const shifted = _mm_slli_epi32(abs, 13);
    __m128i const special = _mm_and_si128(_mm_cmpgt_epi32(abs, set_all(0x7bffu)), rebias); // infinity, NaN: all ones
    __m128i const normal = _mm_add_epi32(_mm_add_epi32(shifted, rebias), special);
    // A subnormal is abs * 2^-24: put abs into the mantissa of 2^-14 and take 2^-14 away again, which is exact.
    __m128i const smallest_normal = set_all(113u << 23);
    __m128i const offset = _mm_add_epi32(shifted, smallest_normal);
    __m128i const subnormal = _mm_castps_si128(_mm_sub_ps(_mm_castsi128_ps(offset), _mm_castsi128_ps(smallest_normal)));
    __m128i const value = select(_mm_cmplt_epi32(abs, set_all(0x0400u)), subnormal, normal);
    return _mm_castsi128_ps(_mm_or_si128(value, _mm_slli_epi32(_mm_and_si128(half, set_all(0x8000u)), 16)));
}
ADAMANT_SIMD void store(std::byte* address, f32 x, float) noexcept
{
    _mm_storeu_ps(reinterpret_cast<float*>(address), x);
}
// The rounded lanes, in the lower half of each.
ADAMANT_SIMD __m128i rounded(f32 x, bfloat16) noexcept
{
    __m128i const bits = _mm_castps_si128(x);
    __m128i const lsb = _mm_and_si128(_mm_srli_epi32(bits, 16), set_all(1u));
    return _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(bits, set_all(0x7fffu)), lsb), 16);
}
ADAMANT_SIMD __m128i rounded(f32 x, float16) noexcept
{
    __m128i const bits = _mm_castps_si128(x);
    __m128i const abs = _mm_and_si128(bits, set_all(float_abs_mask));
    __m128i const sign = _mm_srli_epi32(_mm_and_si128(bits, set_all(float_sign_bit)), 16);
    __m128i const lsb = _mm_and_si128(_mm_srli_epi32(abs, 13), set_all(1u));
    __m128i const rebased = _mm_sub_epi32(abs, set_all(112u << 23));
    __m128i const normal = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(rebased, set_all(0x0fffu)), lsb), 13);
    // Below 2^-14 the result counts in units of 2^-24, which is the last place of 0.5: adding 0.5 rounds to it.
    __m128i const half = set_all(0x3f000000u);
    __m128i const subnormal =
        _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(abs), _mm_castsi128_ps(half))), half);
    __m128i result = select(_mm_cmplt_epi32(abs, set_all(0x38800000u)), subnormal, normal);
    result = select(_mm_cmpgt_epi32(abs, set_all(0x477fffffu)), set_all(0x7c00u), result);
    result = select(_mm_cmpgt_epi32(abs, set_all(float_infinity_bits)), set_all(0x7e00u), result);
    return _mm_or_si128(result, sign);
}
// Two vectors rounded to T, in the order of memory.
template <class T>
ADAMANT_SIMD u32 rounded_pair(f32 a, f32 b, T) noexcept
{
    return lower_halves(rounded(a, T{}), rounded(b, T{}));
}
ADAMANT_SIMD f64 widen_low(f32 x) noexcept
{
    return _mm_cvtps_pd(x);
}
ADAMANT_SIMD f64 widen_high(f32 x) noexcept
{
    return _mm_cvtps_pd(_mm_movehl_ps(x, x));
}

// a * b + c in double, rounded to odd. The product of two floats is exact in double. Knuth's two-sum computes the
// rounding error of the sum. An inexact result whose last bit is even moves one unit towards the error. Rounding the
// result to float then returns the same value as rounding the exact sum (Boldo and Melquiond, "Emulation of FMA and
// correctly rounded sums", 2008).
ADAMANT_SIMD f64 fma_to_odd(f64 a, f64 b, f64 c) noexcept
{
    f64 const product = _mm_mul_pd(a, b);
    f64 const sum = _mm_add_pd(product, c);
    f64 const c_part = _mm_sub_pd(sum, product);
    f64 const error = _mm_add_pd(_mm_sub_pd(product, _mm_sub_pd(sum, c_part)), _mm_sub_pd(c, c_part));
    // The error is a NaN only for infinities and NaNs, whose sum is already right.
    __m128i const inexact =
        _mm_castpd_si128(_mm_and_pd(_mm_cmpord_pd(error, error), _mm_cmpneq_pd(error, _mm_setzero_pd())));
    __m128i const one = _mm_set_epi32(0, 1, 0, 1);
    __m128i const bits = _mm_castpd_si128(sum);
    __m128i const odd = _mm_and_si128(bits, one);
    __m128i const is_even = _mm_sub_epi64(odd, one); // all ones where the last bit is 0
    __m128i const signs = _mm_srai_epi32(_mm_castpd_si128(_mm_xor_pd(error, sum)), 31);
    __m128i const unit = _mm_or_si128(_mm_shuffle_epi32(signs, _MM_SHUFFLE(3, 3, 1, 1)), one); // -1 or 1
    return _mm_castsi128_pd(_mm_add_epi64(bits, _mm_and_si128(unit, _mm_and_si128(is_even, inexact))));
}
#if defined(__FMA__)
ADAMANT_SIMD f32 fma(f32 a, f32 b, f32 c) noexcept
{
    return _mm_fmadd_ps(a, b, c);
}
#else
// Not inlined: two dozen copies in each path were a third of the code of all kernels and a quarter of their compile
// time, and gained a sixth of the speed of CPUs without FMA. Vectors may be passed, because no code of another
// instruction set calls this function.
[[gnu::noinline]] inline f32 fma(f32 a, f32 b, f32 c) noexcept
{
    __m128 const low = _mm_cvtpd_ps(fma_to_odd(widen_low(a), widen_low(b), widen_low(c)));
    __m128 const high = _mm_cvtpd_ps(fma_to_odd(widen_high(a), widen_high(b), widen_high(c)));
    return _mm_movelh_ps(low, high);
}
#endif
// Interleaves two vectors: a becomes {a0, b0, a1, b1}, and b becomes {a2, b2, a3, b3}.
ADAMANT_SIMD void zip(f32& a, f32& b) noexcept
{
    f32 const low = _mm_unpacklo_ps(a, b);
    b = _mm_unpackhi_ps(a, b);
    a = low;
}
ADAMANT_SIMD f32 div(f32 a, f32 b) noexcept
{
    return _mm_div_ps(a, b);
}
ADAMANT_SIMD f32 sqrt(f32 a) noexcept
{
    return _mm_sqrt_ps(a);
}

#else

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

#endif

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
