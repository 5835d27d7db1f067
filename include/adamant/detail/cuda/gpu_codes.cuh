// SPDX-License-Identifier: Apache-2.0
// Moments of 8 bits on a GPU, operation for operation as detail/numerics/quantized8.hpp has them. A thread has four
// elements; sixteen threads beside one another have a group of codes, come here together, and find its scale among
// themselves.
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
[[nodiscard]] __device__ inline raw_group load_codes(void const* array, std::size_t at)
{
    ADAMANT_GPU_IS_GLOBAL(array);
    auto const* const group =
        static_cast<std::uint32_t const*>(array) + at / quantized_group_elems * (sizeof(quantized8) / 4);
    return {{group[at % quantized_group_elems / 4], group[quantized_group_elems / 4], 0, 0}};
}
__device__ inline void store_codes(void* array, std::size_t at, raw_group const& raw)
{
    ADAMANT_GPU_IS_GLOBAL(array);
    auto* const group = static_cast<std::uint32_t*>(array) + at / quantized_group_elems * (sizeof(quantized8) / 4);
    group[at % quantized_group_elems / 4] = raw.word[0];
    if (at % quantized_group_elems == 0)
        group[quantized_group_elems / 4] = raw.word[1];
}

// See decoded_exp_avg(), decoded_exp_avg_sq(). Device code reads constants of the host's by value alone, so each
// function has its own copy of a curve.
[[nodiscard]] __device__ inline float_group decoded_exp_avg_group(raw_group const& raw)
{
    constexpr code_curve on = exp_avg_curve;
    float const scale = __uint_as_float(raw.word[1]);
    float_group result;
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        int const q = static_cast<std::int8_t>(raw.word[0] >> 8 * k & 0xffu);
        std::uint32_t const z = (__float_as_uint(static_cast<float>(q < 0 ? -q : q)) - on.decode_offset) << on.shift;
        result.value[k] = __fmul_rn(__uint_as_float(q == 0 ? 0 : z | (q < 0 ? float_sign_bit : 0)), scale);
    }
    return result;
}
[[nodiscard]] __device__ inline float_group decoded_exp_avg_sq_group(raw_group const& raw)
{
    constexpr code_curve on = exp_avg_sq_curve;
    float const scale = __uint_as_float(raw.word[1]);
    float_group result;
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        float const q = static_cast<float>(raw.word[0] >> 8 * k & 0xffu);
        result.value[k] = __fmul_rn(__uint_as_float((__float_as_uint(q) - on.decode_offset) << on.shift), scale);
    }
    return result;
}

// See scale_of_group().
[[nodiscard]] __device__ inline float gpu_scale_of_group(code_curve const& on, std::uint32_t largest)
{
    if (largest < on.zero_below)
        return 0.0f;
    std::uint32_t const bits =
        (__float_as_uint(__fmul_rn(__uint_as_float(largest), scale_over_largest)) + 0x20u) & ~0x3fu;
    if (largest >= float_infinity_bits || bits >= float_infinity_bits)
        return canonical_nan();
    std::uint32_t const least = least_scale_bits;
    return __uint_as_float(bits < least ? least : bits);
}
// See encoded(), for an element that is finite.
[[nodiscard]] __device__ inline std::uint32_t gpu_encoded(code_curve const& on, float x, float inverse, bool stochastic,
                                                          std::uint32_t random)
{
    std::uint32_t const own = __float_as_uint(x);
    std::uint32_t const z = __float_as_uint(__fmul_rn(__uint_as_float(own & float_abs_mask), inverse));
    float const y = __fadd_rn(__uint_as_float((z >> on.shift) + on.encode_offset), 0x1p23f);
    int const in_256ths = static_cast<int>(__float_as_uint(y) - 0x4b000000u);
    bool const is_signed = on.least == 0;
    bool const negative = is_signed && (own & float_sign_bit) != 0;
    int const add = stochastic ? static_cast<int>(random >> on.random_shift & 0xffu) : negative ? 127 : 128;
    int q = ((negative ? -in_256ths : in_256ths) + add) >> 8;
    int const least = is_signed ? -on.most : on.least;
    q = q < least ? least : q > on.most ? on.most : q;
    return static_cast<std::uint32_t>(stochastic && is_signed && in_256ths < 256 ? 0 : q) & 0xffu;
}
[[nodiscard]] __device__ inline raw_group encoded_group(code_curve const& on, float_group const& of,
                                                        std::uint32_t largest, bool stochastic,
                                                        std::uint32_t const (&random)[group_elems])
{
    float const scale = gpu_scale_of_group(on, largest);
    std::uint32_t const bits = __float_as_uint(scale); // of a NaN nothing is multiplied
    std::uint32_t const least = least_scale_bits;
    std::uint32_t const most = largest_divisor_bits;
    float const inverse = __fdiv_rn(1.0f, __uint_as_float(bits < least ? least : bits > most ? most : bits));
    bool const spoilt = bits > float_infinity_bits;
    raw_group raw = {{0, bits, 0, 0}};
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k)
        raw.word[0] |= gpu_encoded(on, spoilt ? 0.0f : of.value[k], inverse, stochastic, random[k]) << 8 * k;
    return raw;
}

struct moment_codes {
    raw_group exp_avg, exp_avg_sq;
};
// Both moments of the elements from `at` on, as encode_group() leaves them. All threads of a group of codes call this.
[[nodiscard]] __device__ inline moment_codes encoded_moments(float_group const& exp_avg, float_group const& exp_avg_sq,
                                                             bool stochastic, rounding_line const& line, std::size_t at)
{
    std::uint32_t largest[2] = {0, 0};
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        std::uint32_t const each[2] = {__float_as_uint(exp_avg.value[k]) & float_abs_mask,
                                       __float_as_uint(exp_avg_sq.value[k]) & float_abs_mask};
        for (unsigned i = 0; i < 2; ++i)
            largest[i] = largest[i] < each[i] ? each[i] : largest[i];
    }
    unsigned const together = 0xffffu << (threadIdx.x & coding_threads); // which threads of their warp they are
    ADAMANT_GPU_UNROLL(4)
    for (unsigned apart = coding_threads / 2; apart > 0; apart /= 2)
        for (unsigned i = 0; i < 2; ++i) {
            std::uint32_t const other = __shfl_xor_sync(together, largest[i], apart);
            largest[i] = largest[i] < other ? other : largest[i];
        }
    std::uint32_t random[group_elems] = {0, 0, 0, 0};
    if (stochastic)
        for (unsigned k = 0; k < group_elems; ++k)
            random[k] = random_half(line, at + k);
    constexpr code_curve exp_avg_on = exp_avg_curve;
    constexpr code_curve exp_avg_sq_on = exp_avg_sq_curve;
    return {encoded_group(exp_avg_on, exp_avg, largest[0], stochastic, random),
            encoded_group(exp_avg_sq_on, exp_avg_sq, largest[1], stochastic, random)};
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
