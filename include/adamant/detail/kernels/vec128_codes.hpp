// SPDX-License-Identifier: Apache-2.0
// Operations of the NEON facade for 8-bit moments, which detail/kernels/quantized.inl uses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/detail/kernels/step_pointers.hpp>
#include <adamant/detail/kernels/vec128.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace vec128 {

struct codes {
    // Load signed or unsigned bytes and convert them to floats.
    ADAMANT_SIMD static f32 load_signed_bytes(std::byte const* address)
    {
        int16x8_t const halves = vmovl_s8(vreinterpret_s8_u32(four_bytes(address)));
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(halves)));
    }
    ADAMANT_SIMD static f32 load_unsigned_bytes(std::byte const* address)
    {
        uint16x8_t const halves = vmovl_u8(vreinterpret_u8_u32(four_bytes(address)));
        return vcvtq_f32_u32(vmovl_u16(vget_low_u16(halves)));
    }
    // Rounds to signed integers, ties to even.
    ADAMANT_SIMD static u32 rounded(f32 x) { return vreinterpretq_u32_s32(vcvtnq_s32_f32(x)); }
    // The largest lane of a, and of b.
    using pair_of_u32 = kernel::pair_of_u32;
    ADAMANT_SIMD static pair_of_u32 largest(u32 a, u32 b) { return {vmaxvq_u32(a), vmaxvq_u32(b)}; }
    // x in every lane, hidden from the compiler's constant propagation.
    ADAMANT_SIMD static u32 hidden(std::uint32_t x)
    {
        uint32x4_t all = set(x);
        asm("" : "+w"(all));
        return all;
    }
    // Subtracts the 16-bit halves of the lanes with unsigned saturation.
    ADAMANT_SIMD static u32 subtract_halves(u32 a, u32 b)
    {
        return vreinterpretq_u32_u16(vqsubq_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
    }

    // Pack two vectors of integers to 16 bits each, with saturation, in an order that is up to the facade.
    // store_bytes_signed() and store_bytes_above_zero() pack 64 of them to bytes, with saturation, in the order of the
    // vectors. The latter stores unsigned bytes and raises zeros to 1.
    using words = uint16x8_t;
    ADAMANT_SIMD static words pack_signed(u32 a, u32 b)
    {
        return vreinterpretq_u16_s16(vqmovn_high_s32(vqmovn_s32(vreinterpretq_s32_u32(a)), vreinterpretq_s32_u32(b)));
    }
    ADAMANT_SIMD static words pack_unsigned(u32 a, u32 b)
    {
        return vqmovun_high_s32(vqmovun_s32(vreinterpretq_s32_u32(a)), vreinterpretq_s32_u32(b));
    }
    ADAMANT_SIMD static words set_words(std::uint16_t x) { return vdupq_n_u16(x); }
    ADAMANT_SIMD static words plus_words(words x, words y) { return vaddq_u16(x, y); }
    ADAMANT_SIMD static words plus_saturated(words x, words y) // unsigned
    {
        return vqaddq_u16(x, y);
    }
    ADAMANT_SIMD static words magnitude(words x) { return vreinterpretq_u16_s16(vabsq_s16(vreinterpretq_s16_u16(x))); }
    ADAMANT_SIMD static words signs(words x) // 0 or -1
    {
        return vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(x), 15));
    }
    ADAMANT_SIMD static words lower_byte(words x) { return x & set_words(0xff); }
    ADAMANT_SIMD static words upper_byte(words x) { return vshrq_n_u16(x, 8); }
    ADAMANT_SIMD static words upper_byte_signed(words x)
    {
        return vreinterpretq_u16_s16(vshrq_n_s16(vreinterpretq_s16_u16(x), 8));
    }
    // Mask of the words that are above a bound, and upper_byte_signed() with the other words cleared.
    ADAMANT_SIMD static words words_above(words x, std::uint16_t bound) { return vcgtq_u16(x, set_words(bound)); }
    ADAMANT_SIMD static words upper_byte_signed(words x, words kept) { return upper_byte_signed(x) & kept; }
    ADAMANT_SIMD static void store_bytes_signed(std::byte* address, words const (&x)[8])
    {
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < 8; k += 2) {
            int8x16_t const bytes =
                vqmovn_high_s16(vqmovn_s16(vreinterpretq_s16_u16(x[k])), vreinterpretq_s16_u16(x[k + 1]));
            vst1q_u8(reinterpret_cast<std::uint8_t*>(address + k * 8), vreinterpretq_u8_s8(bytes));
        }
    }
    ADAMANT_SIMD static void store_bytes_above_zero(std::byte* address, words const (&x)[8])
    {
        ADAMANT_UNROLL
        for (std::size_t k = 0; k < 8; k += 2)
            vst1q_u8(reinterpret_cast<std::uint8_t*>(address + k * 8),
                     vmaxq_u8(vqmovn_high_u16(vqmovn_u16(x[k]), x[k + 1]), vdupq_n_u8(1)));
    }

private:
    ADAMANT_SIMD static uint32x2_t four_bytes(std::byte const* address)
    {
        std::uint32_t four;
        std::memcpy(&four, address, sizeof four);
        return vdup_n_u32(four);
    }
};

} // namespace vec128
ADAMANT_END_NAMESPACE
