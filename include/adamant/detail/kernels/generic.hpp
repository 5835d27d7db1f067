// SPDX-License-Identifier: Apache-2.0
// The facade that every kernel is written against, in its generic form, for the architecture's baseline: NEON on Arm,
// SSE2 on x86-64. The AVX2 and AVX-512 facades offer the same names.
//
// Rounding is to nearest even and small values are flushed by the hardware: the caller has set
// float_mode_scope(subnormals::flushed). Nothing needs alignment but stream_pair().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <adamant/detail/kernels/vec128.hpp>
#include <adamant/detail/kernels/vec128_codes.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace generic {

struct simd : vec128::codes {
    using f32 = vec128::f32;
    using u32 = vec128::u32;
    static constexpr std::size_t lanes = 4;               // floats in a vector
    static constexpr std::size_t vectors = 4;             // that the fast path takes at a time; an even number
    static constexpr std::size_t vectors_of_bfloat16 = 4; // that it takes where all arrays are bfloat16; no more
    static constexpr bool can_stream = false;             // whether stream_pair() does so
    static constexpr bool has_masks = false; // whether there are load_first() and store_first(), of `count` lanes
    // On x86 this tier is for processors without AVX2, which have no fused multiply-add: emulating it takes most of the
    // time, so the careful path alone serves them, and programs compile faster.
#if defined(__x86_64__)
    static constexpr bool has_fast_paths = false;
#else
    static constexpr bool has_fast_paths = true;
#endif
    // Whether load_pair() and store_pair() put evens into one vector and odds into the other where that is allowed.
    static constexpr bool interleaves = false;
    // Whether some processors of the tier convert to bfloat16 themselves.
    static constexpr bool may_have_bfloat16 = false;

    ADAMANT_SIMD static f32 set(float x)
    {
        return vec128::set(x);
    }
    ADAMANT_SIMD static u32 set(std::uint32_t x)
    {
        return vec128::set(x);
    }
    // a - b; where b is a product, no compiler fuses the two.
    ADAMANT_SIMD static f32 minus(f32 a, f32 b)
    {
        vec128::hold(b);
        return a - b;
    }
    ADAMANT_SIMD static f32 mul(f32 a, f32 b)
    {
        return a * b;
    }
    ADAMANT_SIMD static f32 div(f32 a, f32 b)
    {
        return vec128::div(a, b);
    }
    ADAMANT_SIMD static f32 sqrt(f32 a)
    {
        return vec128::sqrt(a);
    }
    // a * b + c, rounded once.
    ADAMANT_SIMD static f32 fma(f32 a, f32 b, f32 c)
    {
        return vec128::fma(a, b, c);
    }

    ADAMANT_SIMD static u32 bits(f32 x)
    {
        return vec128::cast<u32>(x);
    }
    ADAMANT_SIMD static f32 from_bits(u32 x)
    {
        return vec128::cast<f32>(x);
    }
    ADAMANT_SIMD static u32 abs_bits(f32 x)
    {
        return bits(x) & set(float_abs_mask);
    }
    ADAMANT_SIMD static u32 add(u32 a, u32 b)
    {
        return a + b;
    }
    ADAMANT_SIMD static u32 mul(u32 a, u32 b)
    {
        return a * b;
    }
    ADAMANT_SIMD static u32 sub(u32 a, u32 b)
    {
        return a - b;
    }
    ADAMANT_SIMD static u32 min(u32 a, u32 b)
    {
        return vec128::min(a, b);
    }
    ADAMANT_SIMD static u32 max(u32 a, u32 b)
    {
        return vec128::max(a, b);
    }
    ADAMANT_SIMD static u32 min_signed(u32 a, u32 b) // as if the lanes were std::int32_t
    {
        return vec128::cast<u32>(vec128::min(vec128::cast<vec128::i32>(a), vec128::cast<vec128::i32>(b)));
    }
    ADAMANT_SIMD static u32 and3(u32 a, u32 b, u32 c)
    {
        return a & b & c;
    }
    ADAMANT_SIMD static u32 or3(u32 a, u32 b, u32 c)
    {
        return a | b | c;
    }
    template <int Count>
    ADAMANT_SIMD static u32 shift_left(u32 x)
    {
        return vec128::shift_left<Count>(x);
    }
    template <int Count>
    ADAMANT_SIMD static u32 shift_right(u32 x)
    {
        return vec128::shift_right<Count>(x);
    }
    // Whether any lane has its highest bit set.
    ADAMANT_SIMD static bool any_sign(u32 x)
    {
        return vec128::any_sign(x);
    }

    // All ones in lanes above `bound`, else zeros; neither has the highest bit set, so that they are subtracted, where
    // SSE2 lacks an unsigned comparison.
    ADAMANT_SIMD static u32 above(u32 x, std::uint32_t bound)
    {
        return vec128::cast<u32>(vec128::cast<vec128::i32>(set(bound) - x) >> 31);
    }
    // Zero of x's sign where the bits of |x| are at most up_to, else x.
    ADAMANT_SIMD static f32 flush(f32 x, std::uint32_t up_to)
    {
        return from_bits(bits(x) & (above(abs_bits(x), up_to) | set(float_sign_bit)));
    }
    // x, and the NaN with canonical_nan_bits where `of` is any NaN.
    ADAMANT_SIMD static f32 canonical(f32 x, f32 of)
    {
        u32 const nan = above(abs_bits(of), float_infinity_bits);
        return from_bits((bits(x) & ~nan) | (set(canonical_nan_bits) & nan));
    }
    // All ones in lanes that are finite, else zeros.
    ADAMANT_SIMD static u32 finite_mask(f32 x)
    {
        return ~above(abs_bits(x), float_infinity_bits - 1);
    }
    // How many lanes are infinite or NaN.
    ADAMANT_SIMD static unsigned count_nonfinite(f32 x)
    {
        std::uint32_t abs[lanes];
        store_u32(reinterpret_cast<std::byte*>(abs), abs_bits(x));
        unsigned count = 0;
        for (std::uint32_t const lane : abs)
            count += lane >= float_infinity_bits;
        return count;
    }

    // One vector of elements of type T from memory, widened exactly; a 16-bit type's subnormals are kept.
    template <class T>
    ADAMANT_SIMD static f32 load(std::byte const* address)
    {
        return vec128::load(address, T{});
    }
    // One vector to memory, rounded to nearest even. A NaN must be canonical.
    template <class T>
    ADAMANT_SIMD static void store(std::byte* address, f32 x)
    {
        vec128::store(address, x, T{});
    }
    // Two vectors that follow each other in memory. Interleaved, which is for bfloat16: the elements may be spread over
    // the two in another order, the same in load_pair and store_pair, if that is faster. Ordinary: what is stored are
    // results of the ordinary path, hence no -0, nothing below 2^-121 but +0, and nothing above 2^112. The last
    // argument says that the processor has a conversion to bfloat16 of its own, where a facade serves processors with
    // and without.
    template <class T, bool Interleaved>
    ADAMANT_SIMD static void load_pair(std::byte const* address, f32& a, f32& b)
    {
        vec128::load_pair(address, a, b, T{});
    }
    template <class T, bool Interleaved, bool Ordinary>
    ADAMANT_SIMD static void store_pair(std::byte* address, f32 a, f32 b, bool)
    {
        if constexpr (Ordinary)
            vec128::store_ordinary_pair(address, a, b, T{});
        else
            vec128::store_pair(address, a, b, T{});
    }
    // The upper halves of the lanes, in the order in which load_pair() reads bfloat16.
    template <bool Interleaved>
    ADAMANT_SIMD static void store_upper_halves(std::byte* address, u32 a, u32 b)
    {
        vec128::store_upper_halves(address, a, b);
    }
    // Halves that follow each other in memory, with their signs, and the lower halves of the lanes back; interleaved as
    // bfloat16.
    template <bool Interleaved>
    ADAMANT_SIMD static void load_signed_halves(std::byte const* address, u32& a, u32& b)
    {
        vec128::load_signed_halves(address, a, b);
    }
    template <bool Interleaved>
    ADAMANT_SIMD static void store_lower_halves(std::byte* address, u32 a, u32 b)
    {
        vec128::store_upper_halves(address, shift_left<16>(a), shift_left<16>(b));
    }
    // Like store_pair for a 16-bit type, not interleaved, past the caches; the address is a multiple of the bytes
    // written. stream_fence() orders it.
    template <class T, bool Ordinary>
    ADAMANT_SIMD static void stream_pair(std::byte* address, f32 a, f32 b, bool)
    {
        store_pair<T, false, Ordinary>(address, a, b, false);
    }
    ADAMANT_SIMD static void stream_fence() {}

    // 16 bits of every lane of a group, in an order of its own, the first lane's first. What is no int16_t when it
    // becomes one stays above every bound that excess() knows, and excess() is anything but zero, as any() sees it,
    // where x, as unsigned, is above `most`. Here lanes keep their width.
    struct halves {
        u32 of[vectors];
    };
    ADAMANT_SIMD static halves saturated(u32 const (&x)[vectors])
    {
        return {{x[0], x[1], x[2], x[3]}};
    }
    ADAMANT_SIMD static halves set_halves(std::uint16_t x)
    {
        u32 const all = set(std::uint32_t{x});
        return {{all, all, all, all}};
    }
    ADAMANT_SIMD static halves plus(halves x, halves const& y)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            x.of[k] = x.of[k] + y.of[k];
        return x;
    }
    ADAMANT_SIMD static halves excess(halves x, halves const& most)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            x.of[k] = x.of[k] | sub(most.of[k], x.of[k]);
        return x;
    }
    template <int Count>
    ADAMANT_SIMD static halves shifted(halves x)
    {
        for (u32& part : x.of)
            part = shift_left<Count>(part);
        return x;
    }
    ADAMANT_SIMD static halves either(halves x, halves const& y)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            x.of[k] = x.of[k] | y.of[k];
        return x;
    }
    ADAMANT_SIMD static bool any(halves const& x)
    {
        return any_sign((x.of[0] | x.of[1]) | (x.of[2] | x.of[3]));
    }
    // The vectors that hold such excess, a bit for each; and x of those vectors, with zeros in the others.
    ADAMANT_SIMD static unsigned vectors_of(halves const& x)
    {
        unsigned found = 0;
        for (std::size_t k = 0; k < vectors; ++k)
            found |= (any_sign(x.of[k]) ? 1u : 0u) << k;
        return found;
    }
    ADAMANT_SIMD static halves of_vectors(halves x, unsigned which)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            if ((which >> k & 1) == 0)
                x.of[k] = set(0u);
        return x;
    }
    // Where store_halves() puts the first element of a vector, in bytes.
    static constexpr std::size_t code_at(std::size_t vector)
    {
        return vector / 2 * lanes * sizeof(std::uint32_t) + vector % 2 * sizeof(std::uint16_t);
    }
    ADAMANT_SIMD static void store_halves(std::byte* address, halves const& x)
    {
        store_u32(address, x.of[0] | shift_left<16>(x.of[1]));
        store_u32(address + sizeof(u32), x.of[2] | shift_left<16>(x.of[3]));
    }
    ADAMANT_SIMD static void load_halves(std::byte const* address, u32 (&x)[vectors])
    {
        for (std::size_t k = 0; k < vectors; k += 2) {
            u32 both;
            std::memcpy(&both, address + k * lanes * sizeof(std::uint16_t), sizeof both);
            x[k] = both & set(0xffffu);
            x[k + 1] = shift_right<16>(both);
        }
    }

    // Two vectors of bfloat16 that follow each other in memory, by evens and odds, and such vectors brought into the
    // order of memory.
    ADAMANT_SIMD static void load_evens_odds(std::byte const* address, f32& evens, f32& odds)
    {
        u32 words;
        std::memcpy(&words, address, sizeof words);
        evens = from_bits(shift_left<16>(words));
        odds = from_bits(words & set(0xffff0000u));
    }
    ADAMANT_SIMD static void in_order(f32& evens, f32& odds)
    {
        vec128::zip(evens, odds);
    }

private:
    ADAMANT_SIMD static void store_u32(std::byte* address, u32 x)
    {
        std::memcpy(address, &x, sizeof x);
    }
};

} // namespace generic

ADAMANT_END_NAMESPACE
