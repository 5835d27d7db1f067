// SPDX-License-Identifier: Apache-2.0
// The words and the arithmetic of device code, on the host: for cuda_runtime.h beside this. The conversions to and from
// half are written in another way than the library's, so that the one tests the other.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __shared__ static // thread blocks run one after another
#define __grid_constant__
#define __launch_bounds__(...)

namespace cuda_on_host {

struct [[gnu::may_alias]] alignas(8) two_words {
    unsigned x, y;
};
struct [[gnu::may_alias]] alignas(16) four_words {
    unsigned x, y, z, w;
};
struct [[gnu::may_alias]] alignas(16) four_floats {
    float x, y, z, w;
};
struct half {
    unsigned short bits;
};
struct index3 {
    unsigned x = 0, y = 0, z = 0;
};

} // namespace cuda_on_host

using uint2 = cuda_on_host::two_words;
using uint4 = cuda_on_host::four_words;
using float4 = cuda_on_host::four_floats;
using __half = cuda_on_host::half;

inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}

inline float __uint_as_float(unsigned bits)
{
    return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float x)
{
    return std::bit_cast<unsigned>(x);
}
inline float __fmul_rn(float a, float b)
{
    return std::fma(a, b, a * b == 0 ? a * b : 0.0f); // no multiplication that could be fused with what follows
}
inline float __fadd_rn(float a, float b)
{
    return a + b;
}
inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}
inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
inline float __fsqrt_rn(float a)
{
    return std::sqrt(a);
}
inline double __fma_rn(double a, double b, double c)
{
    return std::fma(a, b, c);
}
inline double __dadd_rn(double a, double b)
{
    return a + b;
}

inline __half __ushort_as_half(unsigned short bits)
{
    return {bits};
}
inline unsigned short __half_as_ushort(__half x)
{
    return x.bits;
}
inline float __half2float(__half x)
{
    int const exponent = x.bits >> 10 & 31;
    int const fraction = x.bits & 1023;
    if (exponent == 31 && fraction != 0)
        return __uint_as_float(0x7fffffffu); // as the hardware does
    double const size = exponent == 31  ? HUGE_VAL
                        : exponent == 0 ? std::ldexp(fraction, -24)
                                        : std::ldexp(1024 + fraction, exponent - 25);
    return static_cast<float>((x.bits & 0x8000) != 0 ? -size : size);
}
inline __half __float2half_rn(float x)
{
    if (std::isnan(x))
        return {0x7fff}; // as the hardware does
    unsigned const sign = std::signbit(x) ? 0x8000u : 0u;
    double const size = std::fabs(static_cast<double>(x));
    if (size >= 65520)
        return {static_cast<unsigned short>(sign | 0x7c00u)};
    int exponent = size < 0x1p-14 ? -14 : std::ilogb(size);
    // The significand as a whole number, 1024 to 2048 but for subnormal numbers; the double holds it exactly.
    auto significand = static_cast<unsigned>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    if (significand == 2048) {
        significand = 1024;
        ++exponent;
    }
    unsigned const bits =
        significand < 1024 ? significand : (static_cast<unsigned>(exponent + 15) << 10) + significand - 1024;
    return {static_cast<unsigned short>(sign | bits)};
}
