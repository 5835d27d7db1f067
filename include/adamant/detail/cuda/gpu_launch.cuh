// SPDX-License-Identifier: Apache-2.0
// Arguments of the kernels of passes: pieces, tasks and runs of blocks, and how a thread block finds its norm block.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/cuda/gpu_numerics.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

// A piece in the kernels' table in device memory.
struct piece {
    void* arrays[6];       // by shard_array::index
    void* records[4];      // copies of state_arrays
    std::uint8_t* changed; // see device_piece; may be null
    std::uint64_t elems;
    std::uint32_t first_block; // number among all blocks of the part
    std::uint32_t group;
    dtype types[6];
    param_position position;
};

// A part's tables and results in device memory.
struct part_memory {
    piece const* pieces;
    std::uint32_t const* piece_of; // of each block
    grad_squares* squares;         // of each block
    std::uint32_t* recorded;       // epoch of each block's record; 0: no record
};

// Tasks of a launch for each of its blocks.
enum task : std::uint32_t {
    sums = 1,          // compute the sum of squares
    steps = 2,         // take the step
    from_records = 4,  // step from the record if there is one, and invalidate it
    keeps_records = 8, // record the state before the step
    unrecorded = 16,   // skip blocks with a record
    reads_state = 32,  // read whether there is a record
};

// Consecutive blocks of a part that are consecutive in a launch, too. Either all or none of them are summed.
struct block_run {
    std::uint32_t launch_block; // number of the first block in the launch
    std::uint32_t part_block;   // number of the first block in the part, and summed_bit
};
inline constexpr std::uint32_t summed_bit = 0x80000000u;

struct group_rules {
    coefficients c;
    float scale; // of reference::clamped()
    float bound;
    bool clamps;
    bool zero_nonfinite;
};

// The single argument of a launch. CUDA copies it when the launch is enqueued, so no host memory must stay valid.
struct launch {
    static constexpr std::size_t most_runs = 192;
    static constexpr std::size_t most_groups = 32;
    part_memory part;
    std::uint32_t tasks;
    std::uint32_t runs;
    std::uint32_t first_group; // number of group[0]; all pieces are of these groups
    std::uint32_t epoch;       // records of other epochs are invalid
    block_run run[most_runs];
    group_rules group[most_groups];
};
static_assert(sizeof(launch) <= 4000, "CUDA takes 4 KiB of parameters at most");

inline constexpr unsigned step_threads = 256;
inline constexpr unsigned sum_threads = norm_lanes / 2;
inline constexpr unsigned groups_each = norm_block_elems / group_elems / step_threads;
static_assert(groups_each * step_threads * group_elems == norm_block_elems);

// Types as template arguments of kernels: the number of a dtype, or any_dtype for a lookup. (Numbers, because CUDA 13.0
// generates invalid code for template parameters of an enumeration in a namespace.)
inline constexpr int any_dtype = -1;
// 8-bit moments are never looked up: a kernel is either for these or for all others.
template <int Moment>
inline constexpr bool is_coded = Moment == static_cast<int>(dtype::quantized8);
template <int Known>
[[nodiscard]] __device__ inline dtype type_of([[maybe_unused]] piece const& p, [[maybe_unused]] unsigned array)
{
    if constexpr (Known == any_dtype)
        return p.types[array];
    else
        return static_cast<dtype>(Known);
}

// One norm block of a piece.
struct block {
    std::size_t begin;   // first element in the piece
    unsigned elems;      // 1 to norm_block_elems
    std::uint32_t piece; // number of the piece
    std::uint32_t part_block;
    bool summed;
};
[[nodiscard]] __device__ inline block find_block(launch const& args, std::uint32_t launch_block)
{
    unsigned low = 0; // the last run that begins at or before the block
    for (unsigned high = args.runs; high - low > 1;) {
        unsigned const middle = (low + high) / 2;
        (args.run[middle].launch_block <= launch_block ? low : high) = middle;
    }
    std::uint32_t const first = args.run[low].part_block;
    std::uint32_t const part_block = (first & ~summed_bit) + (launch_block - args.run[low].launch_block);
    std::uint32_t const number = args.part.piece_of[part_block];
    piece const& p = args.part.pieces[number];
    std::size_t const begin = static_cast<std::size_t>(part_block - p.first_block) * norm_block_elems;
    std::uint64_t const remaining = p.elems - begin;
    return {begin, static_cast<unsigned>(remaining < norm_block_elems ? remaining : norm_block_elems), number,
            part_block, (first & summed_bit) != 0};
}

// Returns the number of a block's elements in group `group`.
[[nodiscard]] __device__ inline unsigned group_count(unsigned elems, unsigned group)
{
    unsigned const begin = group * group_elems;
    return elems <= begin ? 0 : elems - begin < group_elems ? elems - begin : group_elems;
}

// Returns the number of a block's elements in memory: groups of codes are complete.
template <int Moment>
[[nodiscard]] __device__ inline unsigned elems_in_memory(unsigned elems)
{
    constexpr unsigned unit = is_coded<Moment> ? quantized_group_elems : 1;
    return (elems + (unit - 1)) / unit * unit;
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
