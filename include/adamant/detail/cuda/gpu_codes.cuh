// SPDX-License-Identifier: Apache-2.0
// 8-bit moments on a GPU, with the operations of detail/numerics/quantized8.hpp. A thread has four elements. Sixteen
// adjacent threads have a group of codes, call these functions together, and compute its scale by warp shuffles.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/cuda/gpu_numerics.cuh>
#include <adamant/detail/numerics/quantized8.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

inline constexpr unsigned coding_threads = quantized_group_elems / group_elems;
static_assert(coding_threads == 16, "half a warp");

// A thread's part of a group: its codes are word[0], the group's scale is word[1].
[[nodiscard]] __device__ inline raw_group load_codes(void const* array, std::size_t begin)
{
    ADAMANT_GPU_IS_GLOBAL(array);
    auto const* const group =
        static_cast<std::uint32_t const*>(array) + begin / quantized_group_elems * (sizeof(quantized8) / 4);
    return {{group[begin % quantized_group_elems / 4], group[quantized_group_elems / 4], 0, 0}};
}
__device__ inline void store_codes(void* array, std::size_t begin, raw_group const& raw)
{
    ADAMANT_GPU_IS_GLOBAL(array);
    auto* const group = static_cast<std::uint32_t*>(array) + begin / quantized_group_elems * (sizeof(quantized8) / 4);
    group[begin % quantized_group_elems / 4] = raw.word[0];
    if (begin % quantized_group_elems == 0)
        group[quantized_group_elems / 4] = raw.word[1];
}

// See decoded_exp_avg(), decoded_exp_avg_sq(). Device code can use host constants only by value, so each function has
// its own copy of a curve.
[[nodiscard]] __device__ inline float_group decoded_exp_avg_group(raw_group const& raw)
{
    constexpr code_curve curve = exp_avg_curve;
    float const scale = __uint_as_float(raw.word[1]);
    float_group result;
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        int const q = static_cast<std::int8_t>(raw.word[0] >> 8 * k & 0xffu);
        std::uint32_t const z = (__float_as_uint(static_cast<float>(q < 0 ? -q : q)) - curve.decode_offset)
                                << curve.shift;
        result.value[k] = __fmul_rn(__uint_as_float(q == 0 ? 0 : z | (q < 0 ? float_sign_bit : 0)), scale);
    }
    return result;
}
[[nodiscard]] __device__ inline float_group decoded_exp_avg_sq_group(raw_group const& raw)
{
    constexpr code_curve curve = exp_avg_sq_curve;
    float const scale = __uint_as_float(raw.word[1]);
    float_group result;
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        float const q = static_cast<float>(raw.word[0] >> 8 * k & 0xffu);
        result.value[k] = __fmul_rn(__uint_as_float((__float_as_uint(q) - curve.decode_offset) << curve.shift), scale);
    }
    return result;
}

// See scale_of_group().
[[nodiscard]] __device__ inline float gpu_scale_of_group(code_curve const& curve, std::uint32_t largest)
{
    if (largest < curve.zero_below)
        return 0.0f;
    std::uint32_t const bits =
        (__float_as_uint(__fmul_rn(__uint_as_float(largest), scale_over_largest)) + 0x20u) & ~0x3fu;
    if (largest >= float_infinity_bits || bits >= float_infinity_bits)
        return canonical_nan();
    std::uint32_t const least = least_scale_bits;
    return __uint_as_float(bits < least ? least : bits);
}
// See encoded(). The element must be finite.
[[nodiscard]] __device__ inline std::uint32_t gpu_encoded(code_curve const& curve, float x, float inverse,
                                                          bool stochastic, std::uint32_t random)
{
    std::uint32_t const bits = __float_as_uint(x);
    std::uint32_t const z = __float_as_uint(__fmul_rn(__uint_as_float(bits & float_abs_mask), inverse));
    float const y = __fadd_rn(__uint_as_float((z >> curve.shift) + curve.encode_offset), 0x1p23f);
    int const in_256ths = static_cast<int>(__float_as_uint(y) - 0x4b000000u);
    bool const is_signed = curve.least == 0;
    bool const negative = is_signed && (bits & float_sign_bit) != 0;
    int const add = stochastic ? static_cast<int>(random >> curve.random_shift & 0xffu) : negative ? 127 : 128;
    int q = ((negative ? -in_256ths : in_256ths) + add) >> 8;
    int const least = is_signed ? -curve.most : curve.least;
    q = q < least ? least : q > curve.most ? curve.most : q;
    return static_cast<std::uint32_t>(stochastic && is_signed && in_256ths < 256 ? 0 : q) & 0xffu;
}
[[nodiscard]] __device__ inline raw_group encoded_group(code_curve const& curve, float_group const& values,
                                                        std::uint32_t largest, bool stochastic,
                                                        std::uint32_t const (&random)[group_elems])
{
    float const scale = gpu_scale_of_group(curve, largest);
    std::uint32_t const bits = __float_as_uint(scale); // the scale may be a NaN, which is not used in multiplications
    std::uint32_t const least = least_scale_bits;
    std::uint32_t const most = largest_divisor_bits;
    float const inverse = __fdiv_rn(1.0f, __uint_as_float(bits < least ? least : bits > most ? most : bits));
    bool const is_nan = bits > float_infinity_bits;
    raw_group raw = {{0, bits, 0, 0}};
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k)
        raw.word[0] |= gpu_encoded(curve, is_nan ? 0.0f : values.value[k], inverse, stochastic, random[k]) << 8 * k;
    return raw;
}

struct moment_codes {
    raw_group exp_avg, exp_avg_sq;
};
// Encodes both moments of the elements from `begin` on, see encode_group(). All threads of a group of codes call this.
[[nodiscard]] __device__ inline moment_codes encoded_moments(float_group const& exp_avg, float_group const& exp_avg_sq,
                                                             bool stochastic, rounding_line const& line,
                                                             std::size_t begin)
{
    std::uint32_t largest[2] = {0, 0};
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        std::uint32_t const magnitudes[2] = {__float_as_uint(exp_avg.value[k]) & float_abs_mask,
                                             __float_as_uint(exp_avg_sq.value[k]) & float_abs_mask};
        for (unsigned i = 0; i < 2; ++i)
            largest[i] = largest[i] < magnitudes[i] ? magnitudes[i] : largest[i];
    }
    unsigned const group_mask = 0xffffu << (threadIdx.x & coding_threads); // the group's threads in their warp
    ADAMANT_GPU_UNROLL(4)
    for (unsigned distance = coding_threads / 2; distance > 0; distance /= 2)
        for (unsigned i = 0; i < 2; ++i) {
            std::uint32_t const other = __shfl_xor_sync(group_mask, largest[i], distance);
            largest[i] = largest[i] < other ? other : largest[i];
        }
    std::uint32_t random[group_elems] = {0, 0, 0, 0};
    if (stochastic)
        for (unsigned k = 0; k < group_elems; ++k)
            random[k] = random_half(line, begin + k);
    constexpr code_curve exp_avg_codes = exp_avg_curve;
    constexpr code_curve exp_avg_sq_codes = exp_avg_sq_curve;
    return {encoded_group(exp_avg_codes, exp_avg, largest[0], stochastic, random),
            encoded_group(exp_avg_sq_codes, exp_avg_sq, largest[1], stochastic, random)};
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
