// SPDX-License-Identifier: Apache-2.0
// Kernels of column_scoring: the scores of a gradient's columns, and its largest magnitude. Every result is written
// once by one thread, so results need not be cleared.
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

// A thread has one column of a range of rows. Adjacent threads have adjacent columns.
template <int = 0>
__global__ void __launch_bounds__(score_threads) score_columns_kernel(__grid_constant__ score_launch const args)
{
    std::uint64_t const tiles = (args.columns + score_threads - 1) / score_threads;
    std::uint64_t const column = blockIdx.x % tiles * score_threads + threadIdx.x;
    std::uint64_t const first = blockIdx.x / tiles * column_score_rows;
    std::uint64_t const end = first + column_score_rows < args.rows ? first + column_score_rows : args.rows;
    if (column >= args.columns)
        return;
    std::uint32_t sum = 0;
    for (std::uint64_t row = first; row < end; ++row)
        sum +=
            column_score_of(gradient_at(args.grad, row * args.columns + column, args.type), args.scale, args.squares);
    args.result[blockIdx.x / tiles * args.columns + column] = sum;
}

// A thread block has one piece.
template <int = 0>
__global__ void __launch_bounds__(score_threads) find_largest_kernel(__grid_constant__ score_launch const args)
{
    __shared__ std::uint32_t largest[score_threads];
    std::uint64_t const n = args.rows * args.columns;
    std::uint64_t const first = blockIdx.x * std::uint64_t{column_scoring::piece_elems};
    std::uint64_t const end = first + column_scoring::piece_elems < n ? first + column_scoring::piece_elems : n;
    std::uint32_t thread_largest = 0;
    for (std::uint64_t i = first + threadIdx.x; i < end; i += score_threads) {
        float const g = fabsf(gradient_at(args.grad, i, args.type));
        std::uint32_t const bits = is_finite(g) ? __float_as_uint(g) : 0;
        thread_largest = thread_largest < bits ? bits : thread_largest;
    }
    largest[threadIdx.x] = thread_largest;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (unsigned k = 1; k < score_threads; ++k)
        thread_largest = thread_largest < largest[k] ? largest[k] : thread_largest;
    args.result[blockIdx.x] = thread_largest;
}

[[nodiscard]] inline score_launch launch_of(column_scoring const& scoring)
{
    return {address_of(scoring.grad),
            static_cast<std::uint32_t*>(address_of(scoring.result)),
            scoring.rows,
            scoring.columns,
            scoring.scale,
            scoring.type,
            scoring.kind == column_score::square};
}
inline void find_largest(stream_set& streams, column_scoring const& scoring)
{
    if (scoring.bytes() == 0)
        return;
    streams.enqueue(device_stream::work, {operation::largest, {}, scoring.rows * scoring.columns, scoring.bytes()},
                    [=](cudaStream_t stream) {
                        return ADAMANT_GPU_LAUNCH(find_largest_kernel<0>,
                                                  static_cast<unsigned>(scoring.largest_pieces()), score_threads,
                                                  stream, launch_of(scoring));
                    });
}
inline void score_columns(stream_set& streams, column_scoring const& scoring)
{
    if (scoring.bytes() == 0)
        return;
    std::size_t const tiles = (scoring.columns + score_threads - 1) / score_threads;
    std::size_t const chunks = scoring.scores() / scoring.columns;
    streams.enqueue(device_stream::work, {operation::scores, {}, scoring.columns, scoring.bytes()},
                    [=](cudaStream_t stream) {
                        return ADAMANT_GPU_LAUNCH(score_columns_kernel<0>, static_cast<unsigned>(tiles * chunks),
                                                  score_threads, stream, launch_of(scoring));
                    });
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
