// SPDX-License-Identifier: Apache-2.0
// Kernel of column_copy: copies columns between a row-major and a column-major array.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/cuda/cuda_memory.cuh>
#include <adamant/detail/cuda/gpu_runtime.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

struct column_launch {
    void* by_rows;
    void* by_columns;
    std::uint32_t const* list;
    std::uint64_t rows, columns, count, pitch;
    bool indexed;
};

inline constexpr unsigned column_tile = 32;
inline constexpr unsigned column_threads = 256;

// A thread block transposes a tile of column_tile rows of column_tile listed columns. Adjacent threads access adjacent
// elements of both arrays.
template <class Bits, bool Gathers>
__global__ void __launch_bounds__(column_threads) copy_columns_kernel(__grid_constant__ column_launch const args)
{
    __shared__ Bits tile[column_tile][column_tile + 1];
    std::uint64_t const tiles = (args.count + column_tile - 1) / column_tile;
    std::uint64_t const first = blockIdx.x % tiles * column_tile;
    std::uint64_t const first_row = blockIdx.x / tiles * column_tile;
    unsigned const x = threadIdx.x % column_tile;
    unsigned const step = column_threads / column_tile;
    auto* const by_rows = static_cast<Bits*>(args.by_rows);
    auto* const by_columns = static_cast<Bits*>(args.by_columns);
    for (unsigned y = threadIdx.x / column_tile; y < column_tile; y += step) {
        std::uint64_t const row = Gathers ? first_row + y : first_row + x;
        std::uint64_t const i = Gathers ? first + x : first + y;
        if (row < args.rows && i < args.count) {
            if constexpr (Gathers)
                tile[x][y] = by_rows[row * args.columns + args.list[i]];
            else
                tile[y][x] = by_columns[(args.indexed ? args.list[i] : i) * args.pitch + row];
        }
    }
    __syncthreads();
    for (unsigned y = threadIdx.x / column_tile; y < column_tile; y += step) {
        std::uint64_t const row = Gathers ? first_row + x : first_row + y;
        std::uint64_t const i = Gathers ? first + y : first + x;
        if (row < args.rows && i < args.count) {
            if constexpr (Gathers)
                by_columns[(args.indexed ? args.list[i] : i) * args.pitch + row] = tile[y][x];
            else
                by_rows[row * args.columns + args.list[i]] = tile[x][y];
        }
    }
}

inline void copy_columns(stream_set& streams, column_copy const& copy, bool gathers)
{
    if (copy.bytes() == 0)
        return;
    auto const tiles = [](std::size_t n) { return (n + column_tile - 1) / column_tile; };
    column_launch const args{address_of(copy.by_rows),
                             address_of(copy.by_columns),
                             static_cast<std::uint32_t const*>(address_of(copy.list)),
                             copy.rows,
                             copy.columns,
                             copy.count,
                             copy.pitch,
                             copy.indexed};
    using two = std::uint16_t;
    using four = std::uint32_t;
    auto const by_two = gathers ? copy_columns_kernel<two, true> : copy_columns_kernel<two, false>;
    auto const by_four = gathers ? copy_columns_kernel<four, true> : copy_columns_kernel<four, false>;
    auto const run = copy.elem_bytes == sizeof(two) ? by_two : by_four;
    streams.enqueue(device_stream::work, {operation::columns, {}, copy.count, copy.bytes()}, [&](cudaStream_t stream) {
        return ADAMANT_GPU_LAUNCH(run, static_cast<unsigned>(tiles(copy.rows) * tiles(copy.count)), column_threads,
                                  stream, args);
    });
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
