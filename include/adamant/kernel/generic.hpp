// SPDX-License-Identifier: Apache-2.0
// The facade that every kernel is written against, in its generic form: xsimd's batches for whatever the including
// program is compiled for, hence NEON on Arm. The AVX2 and AVX-512 facades offer the same names.
//
// Rounding is to nearest even and small values are flushed by the hardware: the caller has set
// float_mode_scope(subnormals::flushed). Nothing needs alignment but stream_pair().
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <xsimd/xsimd.hpp>

#include <adamant/kernel/quad.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace generic {

struct simd {
    using f32 = xsimd::batch<float>;
    using u32 = xsimd::batch<std::uint32_t>;
    static constexpr std::size_t lanes = f32::size; // floats in a vector
    static constexpr std::size_t vectors = 4;       // that the fast path takes at a time; an even number
    static constexpr bool can_stream = false;       // whether stream_pair() does so
    static constexpr bool has_masks = false; // whether there are load_first() and store_first(), of `count` lanes
    // On x86 this tier is for processors without AVX2, which have no fused multiply-add: emulating it takes most of the
    // time, so the careful path alone serves them, and programs compile faster.
#if defined(__x86_64__)
    static constexpr bool has_fast_paths = false;
#else
    static constexpr bool has_fast_paths = true;
#endif
    static constexpr bool may_have_bfloat16 =
        false; // whether some processors of the tier convert to bfloat16 themselves

    ADAMANT_SIMD static f32 set(float x)
    {
        return f32(x);
    }
    // a - b; where b is a product, no compiler fuses the two.
    ADAMANT_SIMD static f32 minus(f32 a, f32 b)
    {
#if defined(__x86_64__)
        asm("" : "+x"(b.data));
#else
        asm("" : "+w"(b.data));
#endif
        return a - b;
    }
    ADAMANT_SIMD static u32 set(std::uint32_t x)
    {
        return u32(x);
    }
    ADAMANT_SIMD static f32 mul(f32 a, f32 b)
    {
        return a * b;
    }
    // Templates, so that what does not fit a wider batch is not compiled for it.
    template <class Batch>
    ADAMANT_SIMD static Batch div(Batch a, Batch b)
    {
        if constexpr (Batch::size == 4)
            return quad::div(a, b);
        else
            return a / b;
    }
    template <class Batch>
    ADAMANT_SIMD static Batch sqrt(Batch a)
    {
        if constexpr (Batch::size == 4)
            return quad::sqrt(a);
        else
            return xsimd::sqrt(a);
    }
    // a * b + c, rounded once. Not xsimd's fma: where a version of it has none for an architecture it multiplies and
    // then adds, and it is up to the compiler whether that becomes one instruction.
    template <class Batch>
    ADAMANT_SIMD static Batch fma(Batch a, Batch b, Batch c)
    {
#if defined(__AVX512F__)
        if constexpr (Batch::size == 16)
            return Batch(_mm512_fmadd_ps(a, b, c));
#endif
#if defined(__FMA__)
        if constexpr (Batch::size == 8)
            return Batch(_mm256_fmadd_ps(a, b, c));
#endif
        return fma_by_quads(a, b, c);
    }

    // Not xsimd's bitwise_cast, which takes seconds to compile for NEON.
    template <class To, class From>
    ADAMANT_SIMD static To cast(From x)
    {
        return To(std::bit_cast<typename To::register_type>(x.data));
    }
    ADAMANT_SIMD static u32 bits(f32 x)
    {
        return cast<u32>(x);
    }
    ADAMANT_SIMD static f32 from_bits(u32 x)
    {
        return cast<f32>(x);
    }
    ADAMANT_SIMD static u32 abs_bits(f32 x)
    {
        return bits(x) & set(float_abs_mask);
    }
    ADAMANT_SIMD static u32 sub(u32 a, u32 b)
    {
        return a - b;
    }
    ADAMANT_SIMD static u32 min(u32 a, u32 b)
    {
        return xsimd::min(a, b);
    }
    ADAMANT_SIMD static u32 max(u32 a, u32 b)
    {
        return xsimd::max(a, b);
    }
    ADAMANT_SIMD static u32 min_signed(u32 a, u32 b) // as if the lanes were std::int32_t
    {
        using i32 = xsimd::batch<std::int32_t>;
        return cast<u32>(xsimd::min(cast<i32>(a), cast<i32>(b)));
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
        return x << Count;
    }
    template <int Count>
    ADAMANT_SIMD static u32 shift_right(u32 x)
    {
        return x >> Count;
    }
    // Whether any lane has its highest bit set.
    ADAMANT_SIMD static bool any_sign(u32 x)
    {
        return xsimd::any(x >= set(float_sign_bit));
    }

    // All ones in lanes above `bound`, else zeros; neither has the highest bit set, so that they are subtracted, where
    // SSE2 lacks an unsigned comparison.
    ADAMANT_SIMD static u32 above(u32 x, std::uint32_t bound)
    {
        using i32 = xsimd::batch<std::int32_t>;
        return cast<u32>(cast<i32>(set(bound) - x) >> 31);
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
        abs_bits(x).store_unaligned(abs);
        unsigned count = 0;
        for (std::uint32_t const lane : abs)
            count += lane >= float_infinity_bits;
        return count;
    }

    // One vector of elements of type T from memory, widened exactly; a 16-bit type's subnormals are kept.
    template <class T>
    ADAMANT_SIMD static f32 load(std::byte const* address)
    {
        if constexpr (std::is_same_v<T, float>) {
            return f32::load_unaligned(reinterpret_cast<float const*>(address));
        } else if constexpr (lanes == 4) {
            return quad::load(address, T{});
        } else {
            float wide[lanes];
            for (std::size_t i = 0; i < lanes; i += 4)
                put(wide + i, quad::load(address + i * sizeof(T), T{}));
            return f32::load_unaligned(wide);
        }
    }
    // One vector to memory, rounded to nearest even. A NaN must be canonical.
    template <class T>
    ADAMANT_SIMD static void store(std::byte* address, f32 x)
    {
        if constexpr (std::is_same_v<T, float>) {
            x.store_unaligned(reinterpret_cast<float*>(address));
        } else if constexpr (lanes == 4) {
            quad::store(address, x, T{});
        } else {
            float wide[lanes];
            x.store_unaligned(wide);
            for (std::size_t i = 0; i < lanes; i += 4)
                quad::store(address + i * sizeof(T), get(wide + i), T{});
        }
    }
    // Two vectors that follow each other in memory. Interleaved, which is for bfloat16: the elements may be spread over
    // the two in another order, the same in load_pair and store_pair, if that is faster. The last argument says that
    // the processor has a conversion to bfloat16 of its own, where a facade serves processors with and without.
    template <class T, bool Interleaved>
    ADAMANT_SIMD static void load_pair(std::byte const* address, f32& a, f32& b)
    {
        a = load<T>(address);
        b = load<T>(address + lanes * sizeof(T));
    }
    template <class T, bool Interleaved>
    ADAMANT_SIMD static void store_pair(std::byte* address, f32 a, f32 b, bool)
    {
        store<T>(address, a);
        store<T>(address + lanes * sizeof(T), b);
    }
    // Like store_pair for a 16-bit type, not interleaved, past the caches; the address is a multiple of the bytes
    // written. stream_fence() orders it.
    template <class T>
    ADAMANT_SIMD static void stream_pair(std::byte* address, f32 a, f32 b, bool)
    {
        store_pair<T, false>(address, a, b, false);
    }
    ADAMANT_SIMD static void stream_fence() {}

    // 16 bits of every lane of a group, in an order of its own, the first lane's first. What is no int16_t when it
    // becomes one stays above every bound that excess() knows, and excess() is anything but zero, as any() sees it,
    // where x, as unsigned, is above `most`. Here lanes keep their width, for that needs nothing that xsimd lacks.
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
        (x.of[0] | shift_left<16>(x.of[1])).store_unaligned(reinterpret_cast<std::uint32_t*>(address));
        (x.of[2] | shift_left<16>(x.of[3])).store_unaligned(reinterpret_cast<std::uint32_t*>(address) + lanes);
    }
    ADAMANT_SIMD static void load_halves(std::byte const* address, u32 (&x)[vectors])
    {
        for (std::size_t k = 0; k < vectors; k += 2) {
            u32 const both = u32::load_unaligned(
                reinterpret_cast<std::uint32_t const*>(address + k * lanes * sizeof(std::uint16_t)));
            x[k] = both & set(0xffffu);
            x[k + 1] = shift_right<16>(both);
        }
    }

    // Sixteen partial sums in double of the squares of T, which is added by the lanes, Part saying which stretch of the
    // sixteen x is, or sixteen at once by the sums' own function. Squares of what is not finite make a sum that is not.
    struct float_sums {
        quad::f64 pair[8];
    };
    template <class T>
    using partial_sums = float_sums;
    template <class T>
    static constexpr bool adds_sixteen = false;
    ADAMANT_SIMD static void clear(float_sums& sums)
    {
        for (quad::f64& pair : sums.pair)
            pair = quad::f64{0.0, 0.0};
    }
    template <std::size_t Part, class Batch>
    ADAMANT_SIMD static void add_squares(float_sums& sums, Batch x)
    {
        if constexpr (Batch::size == 4) {
            add_quad(sums.pair + 2 * Part, x);
        } else {
            float wide[lanes];
            x.store_unaligned(wide);
            for (std::size_t i = 0; i < lanes; i += 4)
                add_quad(sums.pair + (Part * lanes + i) / 2, get(wide + i));
        }
    }
    ADAMANT_SIMD static void read(float_sums const& sums, double* out)
    {
        std::memcpy(out, sums.pair, sizeof sums.pair);
    }

private:
    ADAMANT_SIMD static void put(float* to, quad::f32 x)
    {
        std::memcpy(to, &x, sizeof x);
    }
    ADAMANT_SIMD static quad::f32 get(float const* from)
    {
        quad::f32 x;
        std::memcpy(&x, from, sizeof x);
        return x;
    }
    ADAMANT_SIMD static void add_quad(quad::f64* sums, quad::f32 x)
    {
        quad::f64 const low = quad::widen_low(x);
        quad::f64 const high = quad::widen_high(x);
        sums[0] += low * low; // exact squares, so fused or not is the same
        sums[1] += high * high;
    }
    template <class Batch>
    ADAMANT_SIMD static Batch fma_by_quads(Batch a, Batch b, Batch c)
    {
        if constexpr (Batch::size == 4) {
            return quad::fma(a, b, c);
        } else {
            float wide[3][lanes];
            a.store_unaligned(wide[0]);
            b.store_unaligned(wide[1]);
            c.store_unaligned(wide[2]);
            for (std::size_t i = 0; i < lanes; i += 4)
                put(wide[0] + i, quad::fma(get(wide[0] + i), get(wide[1] + i), get(wide[2] + i)));
            return Batch::load_unaligned(wide[0]);
        }
    }
};

} // namespace generic

ADAMANT_END_NAMESPACE
