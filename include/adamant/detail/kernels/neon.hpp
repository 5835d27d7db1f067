// SPDX-License-Identifier: Apache-2.0
// The SIMD facade of the kernels for NEON. The AVX2 and AVX-512 facades have the same interface, which is documented
// here.
//
// The caller sets float_mode_scope(subnormals::flushed), so operations round to nearest even and the hardware flushes
// small values. Only stream() and stream_halves() need aligned addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <adamant/detail/kernels/vec128.hpp>
#include <adamant/detail/kernels/vec128_codes.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace neon {

struct simd : vec128::codes {
    using f32 = vec128::f32;
    using u32 = vec128::u32;
    static constexpr std::size_t lanes = 4;               // floats per vector
    static constexpr std::size_t vectors = 4;             // vectors of a group of the fast paths; even
    static constexpr std::size_t vectors_of_bfloat16 = 4; // the same if all arrays are bfloat16; at most `vectors`
    static constexpr bool can_stream = false;             // whether stream() bypasses the caches
    static constexpr bool has_masks = false;              // whether load_first() and store_first() exist
    // Whether load_pair() and rounded_pair() separate even and odd elements if Interleaved.
    static constexpr bool interleaves = false;
    // Whether some processors of the tier have instructions that convert to bfloat16.
    static constexpr bool may_have_bfloat16 = false;

    ADAMANT_SIMD static f32 set(float x) { return vec128::set(x); }
    ADAMANT_SIMD static u32 set(std::uint32_t x) { return vec128::set(x); }
    // a - b. If b is a product, no compiler fuses the two operations.
    ADAMANT_SIMD static f32 minus(f32 a, f32 b)
    {
        vec128::hold(b);
        return a - b;
    }
    ADAMANT_SIMD static f32 mul(f32 a, f32 b) { return a * b; }
    ADAMANT_SIMD static f32 div(f32 a, f32 b) { return vec128::div(a, b); }
    ADAMANT_SIMD static f32 sqrt(f32 a) { return vec128::sqrt(a); }
    // a * b + c, rounded once.
    ADAMANT_SIMD static f32 fma(f32 a, f32 b, f32 c) { return vec128::fma(a, b, c); }

    ADAMANT_SIMD static u32 bits(f32 x) { return vec128::cast<u32>(x); }
    ADAMANT_SIMD static f32 from_bits(u32 x) { return vec128::cast<f32>(x); }
    ADAMANT_SIMD static u32 abs_bits(f32 x) { return bits(x) & set(float_abs_mask); }
    ADAMANT_SIMD static u32 add(u32 a, u32 b) { return a + b; }
    ADAMANT_SIMD static u32 mul(u32 a, u32 b) { return a * b; }
    ADAMANT_SIMD static u32 sub(u32 a, u32 b) { return a - b; }
    ADAMANT_SIMD static u32 min(u32 a, u32 b) { return vec128::min(a, b); }
    ADAMANT_SIMD static u32 max(u32 a, u32 b) { return vec128::max(a, b); }
    ADAMANT_SIMD static u32 min_signed(u32 a, u32 b) // as if the lanes were std::int32_t
    {
        return vec128::cast<u32>(vec128::min(vec128::cast<vec128::i32>(a), vec128::cast<vec128::i32>(b)));
    }
    ADAMANT_SIMD static u32 and3(u32 a, u32 b, u32 c) { return a & b & c; }
    ADAMANT_SIMD static u32 or3(u32 a, u32 b, u32 c) { return a | b | c; }
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
    ADAMANT_SIMD static bool any_sign(u32 x) { return vec128::any_sign(x); }

    // All ones in lanes where x is above `bound`, else zeros. Neither may have the highest bit set: the comparison is a
    // subtraction.
    ADAMANT_SIMD static u32 above(u32 x, std::uint32_t bound)
    {
        return vec128::cast<u32>(vec128::cast<vec128::i32>(set(bound) - x) >> 31);
    }
    // A zero with x's sign in lanes where the bits of |x| are at most up_to, else x.
    ADAMANT_SIMD static f32 flush(f32 x, std::uint32_t up_to)
    {
        return from_bits(bits(x) & (above(abs_bits(x), up_to) | set(float_sign_bit)));
    }
    // The NaN with canonical_nan_bits in lanes where `source` is any NaN, else x.
    ADAMANT_SIMD static f32 canonical(f32 x, f32 source)
    {
        u32 const nan = above(abs_bits(source), float_infinity_bits);
        return from_bits((bits(x) & ~nan) | (set(canonical_nan_bits) & nan));
    }
    // All ones in lanes that are finite, else zeros.
    ADAMANT_SIMD static u32 finite_mask(f32 x) { return ~above(abs_bits(x), float_infinity_bits - 1); }
    // The number of lanes that are infinite or NaN.
    ADAMANT_SIMD static unsigned count_nonfinite(f32 x)
    {
        std::uint32_t abs[lanes];
        store_u32(reinterpret_cast<std::byte*>(abs), abs_bits(x));
        unsigned count = 0;
        for (std::uint32_t const lane : abs)
            count += lane >= float_infinity_bits;
        return count;
    }

    // Loads one vector of elements of type T and widens it exactly, including the subnormals of 16-bit types.
    template <class T>
    ADAMANT_SIMD static f32 load(std::byte const* address)
    {
        return vec128::load(address, T{});
    }
    // Stores one vector, rounded to nearest even. NaNs must be canonical.
    template <class T>
    ADAMANT_SIMD static void store(std::byte* address, f32 x)
    {
        vec128::store(address, x, T{});
    }
    // load_pair() loads two vectors that are adjacent in memory. rounded_pair() rounds two vectors to a 16-bit type and
    // returns them as they are in memory. Interleaved, for bfloat16 only: the facade may distribute the elements over
    // the two vectors in another order, the same in both functions, if that is faster. Ordinary: the values are results
    // of the ordinary path, so they are +0 or from 2^-121 to 2^112 in magnitude. The last argument tells a facade that
    // serves processors with and without instructions that convert to bfloat16 whether this processor has them.
    template <class T, bool Interleaved>
    ADAMANT_SIMD static void load_pair(std::byte const* address, f32& a, f32& b)
    {
        vec128::load_pair(address, a, b, T{});
    }
    template <class T, bool Interleaved, bool Ordinary>
    ADAMANT_SIMD static u32 rounded_pair(f32 a, f32 b, bool)
    {
        if constexpr (Ordinary)
            return vec128::rounded_ordinary_pair(a, b, T{});
        else
            return vec128::rounded_pair(a, b, T{});
    }
    // The upper or lower halves of the lanes, in the order in which load_pair() reads bfloat16.
    template <bool Interleaved>
    ADAMANT_SIMD static u32 upper_halves(u32 a, u32 b)
    {
        return vec128::upper_halves(a, b);
    }
    template <bool Interleaved>
    ADAMANT_SIMD static u32 lower_halves(u32 a, u32 b)
    {
        return vec128::upper_halves(shift_left<16>(a), shift_left<16>(b));
    }
    // Loads adjacent 16-bit halves with sign extension. Interleaved like bfloat16.
    template <bool Interleaved>
    ADAMANT_SIMD static void load_signed_halves(std::byte const* address, u32& a, u32& b)
    {
        vec128::load_signed_halves(address, a, b);
    }
    // Stores one vector past the caches. The address must be a multiple of the vector's bytes. Call stream_fence() to
    // order the stores.
    ADAMANT_SIMD static void stream(std::byte* address, u32 x) { store<float>(address, from_bits(x)); }
    ADAMANT_SIMD static void stream_fence() {}

    // A bit for each lane in which vectors differ, the lowest for the first lane of the first vector.
    template <std::size_t Count>
    ADAMANT_SIMD static std::uint64_t differing_lanes(f32 const (&a)[Count], f32 const (&b)[Count])
    {
        std::uint64_t differing = 0;
        for (std::size_t k = 0; k < Count; ++k) {
            std::uint32_t x[lanes];
            store_u32(reinterpret_cast<std::byte*>(x), bits(a[k]) ^ bits(b[k]));
            for (std::size_t i = 0; i < lanes; ++i)
                differing |= std::uint64_t{x[i] != 0} << (k * lanes + i);
        }
        return differing;
    }
    // The same for the 16-bit words of vectors, in the order of memory.
    template <std::size_t Count>
    ADAMANT_SIMD static std::uint64_t differing_words(u32 const (&a)[Count], u32 const (&b)[Count])
    {
        std::uint64_t differing = 0;
        for (std::size_t k = 0; k < Count; ++k) {
            std::uint16_t x[2 * lanes];
            store_u32(reinterpret_cast<std::byte*>(x), a[k] ^ b[k]);
            for (std::size_t i = 0; i < 2 * lanes; ++i)
                differing |= std::uint64_t{x[i] != 0} << (k * 2 * lanes + i);
        }
        return differing;
    }
    // A bit for each of 64 elements in which two arrays differ, the lowest for the first. Bits: std::uint16_t or
    // std::uint32_t.
    template <class Bits>
    ADAMANT_SIMD static std::uint64_t differing(std::byte const* a, std::byte const* b)
    {
        std::uint8_t flags[64];
        for (std::size_t i = 0; i < 64; ++i) {
            Bits x, y;
            __builtin_memcpy(&x, a + i * sizeof x, sizeof x);
            __builtin_memcpy(&y, b + i * sizeof y, sizeof y);
            flags[i] = static_cast<std::uint8_t>(x != y ? 1u << i % 8 : 0u);
        }
        return gathered_bits(flags);
    }
    // Flag i is 0 or bit i % 8: the product adds eight of them, which have no bit in common, in its highest byte.
    ADAMANT_SIMD static std::uint64_t gathered_bits(std::uint8_t const (&flags)[64])
    {
        std::uint64_t all = 0;
        for (std::size_t byte = 0; byte < 8; ++byte) {
            std::uint64_t eight;
            __builtin_memcpy(&eight, flags + 8 * byte, sizeof eight);
            all |= (eight * 0x0101010101010101u >> 56) << (8 * byte);
        }
        return all;
    }

    // 16 bits for each lane of a group. The order is up to the facade, but the first lane is first. Values that do not
    // fit int16_t saturate and stay above every bound that is passed to excess(). excess() is nonzero, as seen by
    // any(), in lanes where x, as an unsigned number, is above `most`. In this facade the lanes keep 32 bits.
    struct halves {
        u32 parts[vectors];
    };
    ADAMANT_SIMD static halves saturated(u32 const (&x)[vectors]) { return {{x[0], x[1], x[2], x[3]}}; }
    ADAMANT_SIMD static halves set_halves(std::uint16_t x)
    {
        u32 const all = set(std::uint32_t{x});
        return {{all, all, all, all}};
    }
    ADAMANT_SIMD static halves plus(halves x, halves const& y)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            x.parts[k] = x.parts[k] + y.parts[k];
        return x;
    }
    ADAMANT_SIMD static halves excess(halves x, halves const& most)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            x.parts[k] = x.parts[k] | sub(most.parts[k], x.parts[k]);
        return x;
    }
    template <int Count>
    ADAMANT_SIMD static halves shifted(halves x)
    {
        for (u32& part : x.parts)
            part = shift_left<Count>(part);
        return x;
    }
    ADAMANT_SIMD static halves either(halves x, halves const& y)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            x.parts[k] = x.parts[k] | y.parts[k];
        return x;
    }
    ADAMANT_SIMD static bool any(halves const& x)
    {
        return any_sign((x.parts[0] | x.parts[1]) | (x.parts[2] | x.parts[3]));
    }
    // A bit for each vector with nonzero excess; and x with the vectors cleared whose bit is not set.
    ADAMANT_SIMD static unsigned nonzero_vectors(halves const& x)
    {
        unsigned bits_of_vectors = 0;
        for (std::size_t k = 0; k < vectors; ++k)
            bits_of_vectors |= (any_sign(x.parts[k]) ? 1u : 0u) << k;
        return bits_of_vectors;
    }
    ADAMANT_SIMD static halves select_vectors(halves x, unsigned which)
    {
        for (std::size_t k = 0; k < vectors; ++k)
            if ((which >> k & 1) == 0)
                x.parts[k] = set(0u);
        return x;
    }
    // Byte offset at which store_halves() puts the first lane of a vector.
    static constexpr std::size_t code_offset(std::size_t vector)
    {
        return vector / 2 * lanes * sizeof(std::uint32_t) + vector % 2 * sizeof(std::uint16_t);
    }
    ADAMANT_SIMD static void store_halves(std::byte* address, halves const& x)
    {
        store_u32(address, x.parts[0] | shift_left<16>(x.parts[1]));
        store_u32(address + sizeof(u32), x.parts[2] | shift_left<16>(x.parts[3]));
    }
    // The same past the caches, see stream().
    ADAMANT_SIMD static void stream_halves(std::byte* address, halves const& x) { store_halves(address, x); }
    ADAMANT_SIMD static void load_halves(std::byte const* address, u32 (&x)[vectors])
    {
        for (std::size_t k = 0; k < vectors; k += 2) {
            u32 both;
            std::memcpy(&both, address + k * lanes * sizeof(std::uint16_t), sizeof both);
            x[k] = both & set(0xffffu);
            x[k + 1] = shift_right<16>(both);
        }
    }

    // Loads two adjacent vectors of bfloat16 as even and odd elements. in_order() rearranges such vectors into the
    // order of memory.
    ADAMANT_SIMD static void load_evens_odds(std::byte const* address, f32& evens, f32& odds)
    {
        u32 words;
        std::memcpy(&words, address, sizeof words);
        evens = from_bits(shift_left<16>(words));
        odds = from_bits(words & set(0xffff0000u));
    }
    ADAMANT_SIMD static void in_order(f32& evens, f32& odds) { vec128::zip(evens, odds); }

private:
    ADAMANT_SIMD static void store_u32(std::byte* address, u32 x) { std::memcpy(address, &x, sizeof x); }
};

} // namespace neon

ADAMANT_END_NAMESPACE
