// SPDX-License-Identifier: Apache-2.0
// The scores of a gradient's columns, and its largest magnitude: the kernels of column_scoring. No thread waits for
// another, and none adds to what another has written, so results need not be cleared.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/cuda/cuda_memory.cuh>
#include <adamant/detail/cuda/gpu_numerics.cuh>
#include <adamant/detail/cuda/gpu_runtime.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

struct score_launch {
    void const* grad;
    std::uint32_t* result;
    std::uint64_t rows, columns;
    float scale;
    dtype type;
    bool squares;
};

inline constexpr unsigned score_threads = 256;

[[nodiscard]] __device__ inline float gradient_at(void const* grad, std::uint64_t i, dtype type)
{
    if (type == dtype::float32)
        return static_cast<float const*>(grad)[i];
    std::uint32_t const bits = static_cast<std::uint16_t const*>(grad)[i];
    return type == dtype::bfloat16 ? widen_bfloat16(bits) : widen_float16(bits);
}
// reference::column_score_of().
[[nodiscard]] __device__ inline std::uint32_t column_score_of(float grad, float scale, bool squares)
{
    float const g = fabsf(flush(grad));
    if (!is_finite(g))
        return 0;
    float const scaled = squares ? flush(__fmul_rn(g, scale)) : g;
    return __float_as_uint(__fmaf_rn(scaled, squares ? scaled : scale, column_score_zero)) - column_score_zero_bits;
}

// A thread has one column of a range of rows; neighbours have neighbouring columns.
__global__ void __launch_bounds__(score_threads) score_columns_kernel(__grid_constant__ score_launch const of)
{
    std::uint64_t const tiles = (of.columns + score_threads - 1) / score_threads;
    std::uint64_t const column = blockIdx.x % tiles * score_threads + threadIdx.x;
    std::uint64_t const first = blockIdx.x / tiles * column_score_rows;
    std::uint64_t const end = first + column_score_rows < of.rows ? first + column_score_rows : of.rows;
    if (column >= of.columns)
        return;
    std::uint32_t sum = 0;
    for (std::uint64_t row = first; row < end; ++row)
        sum += column_score_of(gradient_at(of.grad, row * of.columns + column, of.type), of.scale, of.squares);
    of.result[blockIdx.x / tiles * of.columns + column] = sum;
}

// A thread block has one piece.
__global__ void __launch_bounds__(score_threads) find_largest_kernel(__grid_constant__ score_launch const of)
{
    __shared__ std::uint32_t largest[score_threads];
    std::uint64_t const n = of.rows * of.columns;
    std::uint64_t const first = blockIdx.x * std::uint64_t{column_scoring::piece_elems};
    std::uint64_t const end = first + column_scoring::piece_elems < n ? first + column_scoring::piece_elems : n;
    std::uint32_t own = 0;
    for (std::uint64_t i = first + threadIdx.x; i < end; i += score_threads) {
        float const g = fabsf(gradient_at(of.grad, i, of.type));
        std::uint32_t const bits = is_finite(g) ? __float_as_uint(g) : 0;
        own = own < bits ? bits : own;
    }
    largest[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (unsigned k = 1; k < score_threads; ++k)
        own = own < largest[k] ? largest[k] : own;
    of.result[blockIdx.x] = own;
}

[[nodiscard]] inline score_launch launch_of(column_scoring const& what)
{
    return {address_of(what.grad),
            static_cast<std::uint32_t*>(address_of(what.result)),
            what.rows,
            what.columns,
            what.scale,
            what.type,
            what.kind == column_score::square};
}
inline void find_largest(stream_set& on, column_scoring const& what)
{
    if (what.bytes() == 0)
        return;
    on.enqueue(device_stream::work, {operation::largest, {}, what.rows * what.columns, what.bytes()},
               [=](cudaStream_t stream) {
                   return ADAMANT_GPU_LAUNCH(find_largest_kernel, static_cast<unsigned>(what.largest_pieces()),
                                             score_threads, stream, launch_of(what));
               });
}
inline void score_columns(stream_set& on, column_scoring const& what)
{
    if (what.bytes() == 0)
        return;
    std::size_t const tiles = (what.columns + score_threads - 1) / score_threads;
    std::size_t const chunks = what.scores() / what.columns;
    on.enqueue(device_stream::work, {operation::scores, {}, what.columns, what.bytes()}, [=](cudaStream_t stream) {
        return ADAMANT_GPU_LAUNCH(score_columns_kernel, static_cast<unsigned>(tiles * chunks), score_threads, stream,
                                  launch_of(what));
    });
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
