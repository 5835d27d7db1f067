// SPDX-License-Identifier: Apache-2.0
// Columns of a matrix that lies by rows, and the same columns one after another: the kernel of column_copy.
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
    bool own_places;
};

inline constexpr unsigned column_tile = 32;
inline constexpr unsigned column_threads = 256;

// A thread block transposes a tile of column_tile rows of column_tile listed columns: neighbouring threads have
// neighbouring elements on either side.
template <class Bits, bool Gathers>
__global__ void __launch_bounds__(column_threads) copy_columns_kernel(__grid_constant__ column_launch const of)
{
    __shared__ Bits tile[column_tile][column_tile + 1];
    std::uint64_t const tiles = (of.count + column_tile - 1) / column_tile;
    std::uint64_t const first = blockIdx.x % tiles * column_tile;
    std::uint64_t const first_row = blockIdx.x / tiles * column_tile;
    unsigned const x = threadIdx.x % column_tile;
    unsigned const step = column_threads / column_tile;
    auto* const by_rows = static_cast<Bits*>(of.by_rows);
    auto* const by_columns = static_cast<Bits*>(of.by_columns);
    for (unsigned y = threadIdx.x / column_tile; y < column_tile; y += step) {
        std::uint64_t const row = Gathers ? first_row + y : first_row + x;
        std::uint64_t const i = Gathers ? first + x : first + y;
        if (row < of.rows && i < of.count) {
            if constexpr (Gathers)
                tile[x][y] = by_rows[row * of.columns + of.list[i]];
            else
                tile[y][x] = by_columns[(of.own_places ? of.list[i] : i) * of.pitch + row];
        }
    }
    __syncthreads();
    for (unsigned y = threadIdx.x / column_tile; y < column_tile; y += step) {
        std::uint64_t const row = Gathers ? first_row + x : first_row + y;
        std::uint64_t const i = Gathers ? first + y : first + x;
        if (row < of.rows && i < of.count) {
            if constexpr (Gathers)
                by_columns[(of.own_places ? of.list[i] : i) * of.pitch + row] = tile[y][x];
            else
                by_rows[row * of.columns + of.list[i]] = tile[x][y];
        }
    }
}

inline void copy_columns(stream_set& on, column_copy const& what, bool gathers)
{
    if (what.bytes() == 0)
        return;
    auto const tiles = [](std::size_t n) { return (n + column_tile - 1) / column_tile; };
    column_launch const of{address_of(what.by_rows),
                           address_of(what.by_columns),
                           static_cast<std::uint32_t const*>(address_of(what.list)),
                           what.rows,
                           what.columns,
                           what.count,
                           what.pitch,
                           what.own_places};
    using two = std::uint16_t;
    using four = std::uint32_t;
    auto const by_two = gathers ? copy_columns_kernel<two, true> : copy_columns_kernel<two, false>;
    auto const by_four = gathers ? copy_columns_kernel<four, true> : copy_columns_kernel<four, false>;
    auto const run = what.elem_bytes == sizeof(two) ? by_two : by_four;
    on.enqueue(device_stream::work, {operation::columns, {}, what.count, what.bytes()}, [&](cudaStream_t stream) {
        return ADAMANT_GPU_LAUNCH(run, static_cast<unsigned>(tiles(what.rows) * tiles(what.count)), column_threads,
                                  stream, of);
    });
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
