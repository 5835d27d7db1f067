// SPDX-License-Identifier: Apache-2.0
// The reference implementation's arithmetic as device functions, operation for operation: see reference.hpp, dtype.hpp.
// Every operation is an intrinsic with defined rounding, so that no flag contracts, approximates or flushes it.
#pragma once

#include <cstdint>

#include <adamant/reference.hpp>
#include <adamant/detail/cuda/gpu_runtime.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

[[nodiscard]] __device__ inline float canonical_nan()
{
    return __uint_as_float(0x7fc00000u);
}
[[nodiscard]] __device__ inline float infinity()
{
    return __uint_as_float(0x7f800000u);
}
[[nodiscard]] __device__ inline bool is_finite(float x)
{
    return fabsf(x) < infinity();
}

// See reference::is_safe().
[[nodiscard]] __device__ inline bool is_safe(double block_sum)
{
    return block_sum >= norm_safe_from && block_sum < static_cast<double>(infinity());
}

// See adamant::flush(). The product with 0 is a zero of x's sign, in one instruction.
[[nodiscard]] __device__ inline float flush(float x)
{
    return fabsf(x) <= 0x1p-126f ? __fmul_rn(x, 0.0f) : x;
}
[[nodiscard]] __device__ inline float canonical(float x)
{
    return fabsf(x) <= infinity() ? x : canonical_nan();
}

[[nodiscard]] __device__ inline float widen_bfloat16(std::uint32_t bits)
{
    return __uint_as_float(bits << 16);
}
// May change the payload of a NaN, but every NaN is made canonical before it is stored.
[[nodiscard]] __device__ inline float widen_float16(std::uint32_t bits)
{
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}

// Bits of reference::stored(). x must be a result of flush() and canonical().
[[nodiscard]] __device__ inline std::uint32_t stored_bfloat16(float x)
{
    std::uint32_t const bits = __float_as_uint(x);
    std::uint32_t const rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16; // the canonical NaN stays one
    return (rounded & 0x7fffu) <= 0x0080u ? rounded & 0x8000u : rounded;
}
[[nodiscard]] __device__ inline std::uint32_t stored_float16(float x)
{
    std::uint32_t const bits = __half_as_ushort(__float2half_rn(x));
    return (bits & 0x7fffu) > 0x7c00u ? 0x7e00u : bits;
}

// Bits of stochastically_rounded(). x must be a result of flush() and canonical().
[[nodiscard]] __device__ inline std::uint32_t stored_stochastically(float x, std::uint32_t random)
{
    if (!is_finite(x))
        return stored_bfloat16(x);
    std::uint32_t const bits = __float_as_uint(x);
    std::uint32_t const sum = bits + random;
    std::uint32_t const rounded = ((sum & 0x7fffffffu) >= 0x7f800000u ? bits : sum) >> 16;
    return (rounded & 0x7fffu) <= 0x0080u ? rounded & 0x8000u : rounded;
}

// reference::update(), without the flush of the square root, which never changes it: a nonzero root is 2^-63 or more.
[[nodiscard]] __device__ inline reference::element update(reference::element old, float grad, coefficients const& c)
{
    float const p = flush(old.param);
    float const m = flush(old.exp_avg);
    float const v = flush(old.exp_avg_sq);
    float g = flush(__fmul_rn(flush(grad), c.grad_scale));
    if (c.l2 != 0)
        g = flush(__fmaf_rn(c.l2, p, g));
    float const m_new = flush(__fmaf_rn(c.beta1, m, flush(__fmul_rn(c.one_minus_beta1, g))));
    float const v_new = flush(__fmaf_rn(c.one_minus_beta2, flush(__fmul_rn(g, g)), flush(__fmul_rn(c.beta2, v))));
    float const d = flush(__fmaf_rn(__fsqrt_rn(v_new), c.inv_sqrt_bias2, c.eps));
    float const p_new = flush(__fmaf_rn(c.neg_step_size, flush(__fdiv_rn(m_new, d)), flush(__fmul_rn(c.decay, p))));
    return {canonical(p_new), canonical(m_new), canonical(v_new)};
}

// reference::added().
[[nodiscard]] __device__ inline float added(float grad, float sum)
{
    return canonical(flush(__fmaf_rn(1.0f, flush(sum), flush(grad))));
}

// reference::clamped().
[[nodiscard]] __device__ inline float clamped(float grad, bool zero_nonfinite, float scale, float bound)
{
    float const g = flush(__fmul_rn(flush(zero_nonfinite && !is_finite(grad) ? 0.0f : grad), scale));
    return fabsf(g) > bound ? copysignf(bound, g) : canonical(g);
}

// Four elements of an array in their format in memory. 16-bit elements are in the first two words.
struct raw_group {
    std::uint32_t word[4];
};
inline constexpr unsigned group_elems = 4;

struct float_group {
    float value[group_elems];
};

[[nodiscard]] __device__ inline bool is_wide(dtype type)
{
    return type == dtype::float32;
}

// Loads elements [begin, begin + count) of an array that is aligned to 16 bytes. begin is a multiple of 4. The other
// elements of the group are zero.
[[nodiscard]] __device__ inline raw_group load_group(void const* array, std::size_t begin, unsigned count, dtype type)
{
    ADAMANT_GPU_IS_GLOBAL(array);
    raw_group raw = {{0, 0, 0, 0}};
    if (is_wide(type)) {
        auto const* const src = static_cast<std::uint32_t const*>(array) + begin;
        if (count == group_elems) {
            uint4 const all = *reinterpret_cast<uint4 const*>(src);
            raw = {{all.x, all.y, all.z, all.w}};
        } else {
            ADAMANT_GPU_UNROLL(4)
            for (unsigned k = 0; k < group_elems; ++k)
                if (k < count)
                    raw.word[k] = src[k];
        }
    } else {
        auto const* const src = static_cast<std::uint16_t const*>(array) + begin;
        if (count == group_elems) {
            uint2 const all = *reinterpret_cast<uint2 const*>(src);
            raw.word[0] = all.x;
            raw.word[1] = all.y;
        } else {
            ADAMANT_GPU_UNROLL(4)
            for (unsigned k = 0; k < group_elems; ++k)
                if (k < count)
                    raw.word[k / 2] |= static_cast<std::uint32_t>(src[k]) << (k % 2 * 16);
        }
    }
    return raw;
}
__device__ inline void store_group(void* array, std::size_t begin, unsigned count, dtype type, raw_group const& raw)
{
    ADAMANT_GPU_IS_GLOBAL(array);
    if (is_wide(type)) {
        auto* const dst = static_cast<std::uint32_t*>(array) + begin;
        if (count == group_elems) {
            *reinterpret_cast<uint4*>(dst) = make_uint4(raw.word[0], raw.word[1], raw.word[2], raw.word[3]);
        } else {
            ADAMANT_GPU_UNROLL(4)
            for (unsigned k = 0; k < group_elems; ++k)
                if (k < count)
                    dst[k] = raw.word[k];
        }
    } else {
        auto* const dst = static_cast<std::uint16_t*>(array) + begin;
        if (count == group_elems) {
            *reinterpret_cast<uint2*>(dst) = make_uint2(raw.word[0], raw.word[1]);
        } else {
            ADAMANT_GPU_UNROLL(4)
            for (unsigned k = 0; k < group_elems; ++k)
                if (k < count)
                    dst[k] = static_cast<std::uint16_t>(raw.word[k / 2] >> (k % 2 * 16) & 0xffffu);
        }
    }
}

// Add a new dtype to what distinguishes types at run time, where compilers do not miss it: widen_group(), stored_group(),
// gradient_at() and pass_kernel_of(). Then count it here.
static_assert(sizeof all_dtypes / sizeof all_dtypes[0] == 6);

[[nodiscard]] __device__ inline float_group widen_group(raw_group const& raw, dtype type)
{
    float_group result;
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        std::uint32_t const half = raw.word[k / 2] >> (k % 2 * 16) & 0xffffu;
        result.value[k] = type == dtype::float32    ? __uint_as_float(raw.word[k])
                          : type == dtype::bfloat16 ? widen_bfloat16(half)
                                                    : widen_float16(half);
    }
    return result;
}
// joined_master() and split_master() of results of canonical().
[[nodiscard]] __device__ inline float_group joined_group(raw_group const& weight, raw_group const& low)
{
    float_group result;
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        std::uint32_t const upper = weight.word[k / 2] >> (k % 2 * 16) & 0xffffu;
        std::uint32_t const lower = low.word[k / 2] >> (k % 2 * 16) & 0xffffu;
        result.value[k] = __uint_as_float((upper << 16) + lower - (lower >> 15 << 16));
    }
    return result;
}
__device__ inline void split_group(float_group const& values, raw_group& weight, raw_group& low)
{
    weight = low = {{0, 0, 0, 0}};
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        std::uint32_t const bits = __float_as_uint(values.value[k]);
        weight.word[k / 2] |= (bits + 0x8000u) >> 16 << (k % 2 * 16);
        low.word[k / 2] |= (bits & 0xffffu) << (k % 2 * 16);
    }
}
// reference::stored() of results of flush() and canonical().
[[nodiscard]] __device__ inline raw_group stored_group(float_group const& values, dtype type)
{
    raw_group raw = {{0, 0, 0, 0}};
    ADAMANT_GPU_UNROLL(4)
    for (unsigned k = 0; k < group_elems; ++k) {
        if (type == dtype::float32)
            raw.word[k] = __float_as_uint(values.value[k]);
        else
            raw.word[k / 2] |=
                (type == dtype::bfloat16 ? stored_bfloat16(values.value[k]) : stored_float16(values.value[k]))
                << (k % 2 * 16);
    }
    return raw;
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
