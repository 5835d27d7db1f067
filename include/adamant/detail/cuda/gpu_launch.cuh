// SPDX-License-Identifier: Apache-2.0
// What a launch tells the kernels that do passes: pieces, tasks, runs of blocks; and how a thread block finds its norm
// block there.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/cuda/gpu_numerics.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

// A piece as kernels see it. In device memory, made once.
struct piece {
    void* arrays[6];  // as shard_array::index names them
    void* records[4]; // copies of state_arrays
    std::uint64_t elems;
    std::uint32_t first_block; // of all blocks of the part
    std::uint32_t group;
    dtype types[6];
    place_in_param place;
};

// What the kernels find of a part. In device memory.
struct part_memory {
    piece const* pieces;
    std::uint32_t const* piece_of; // of each block
    grad_squares* squares;         // of each block
    std::uint32_t* recorded;       // of each block: the epoch that its record is of; 0 where it was used up
};

// What a launch does to its blocks.
enum task : std::uint32_t {
    sums = 1,         // leaves the sum of squares
    steps = 2,        // takes the step ...
    back = 4,         // ... from the record, where there is one, which is then used up; without steps: goes back only
    keeps = 8,        // there is a record of what the step began with, in the end
    unrecorded = 16,  // leaves alone what has a record
    reads_state = 32, // looks whether there is a record
};

// Consecutive blocks of a part, as a launch numbers them. Those of one run have one answer to whether they are summed.
struct block_run {
    std::uint32_t launch_block; // the first of them
    std::uint32_t part_block;   // the first of them, and summed_bit
};
inline constexpr std::uint32_t summed_bit = 0x80000000u;

struct group_rules {
    coefficients c;
    float scale; // of reference::clamped()
    float bound;
    bool clamps;
    bool zero_nonfinite;
};

// A launch, as its one parameter: so nothing of the host's is read once it is enqueued, and nothing has to be copied.
struct launch {
    static constexpr std::size_t most_runs = 192;
    static constexpr std::size_t most_groups = 32;
    part_memory part;
    std::uint32_t tasks;
    std::uint32_t runs;
    std::uint32_t first_group; // of the groups, for pieces of these groups only
    std::uint32_t epoch;       // records of others are forgotten
    block_run run[most_runs];
    group_rules group[most_groups];
};
static_assert(sizeof(launch) <= 4000, "CUDA takes 4 KiB of parameters at most");

inline constexpr unsigned step_threads = 256;
inline constexpr unsigned sum_threads = norm_lanes / 2;
inline constexpr unsigned groups_each = norm_block_elems / group_elems / step_threads;
static_assert(groups_each * step_threads * group_elems == norm_block_elems);

// Types as kernels' parameters: the number of a dtype, or any of them, looked up. (Numbers, because CUDA 13.0 writes
// code that does not compile for parameters of an enumeration in a namespace.)
inline constexpr int any_dtype = -1;
// Moments of 8 bits are never looked up: kernels are for these or for others.
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
    std::size_t begin;   // in the piece
    unsigned elems;      // 1 to norm_block_elems
    std::uint32_t piece; // its number
    std::uint32_t part_block;
    bool summed;
};
[[nodiscard]] __device__ inline block find_block(launch const& of, std::uint32_t launch_block)
{
    unsigned low = 0; // the last run that begins at or before the block
    for (unsigned high = of.runs; high - low > 1;) {
        unsigned const middle = (low + high) / 2;
        (of.run[middle].launch_block <= launch_block ? low : high) = middle;
    }
    std::uint32_t const first = of.run[low].part_block;
    std::uint32_t const at = (first & ~summed_bit) + (launch_block - of.run[low].launch_block);
    std::uint32_t const number = of.part.piece_of[at];
    piece const& p = of.part.pieces[number];
    std::size_t const begin = static_cast<std::size_t>(at - p.first_block) * norm_block_elems;
    std::uint64_t const left = p.elems - begin;
    return {begin, static_cast<unsigned>(left < norm_block_elems ? left : norm_block_elems), number, at,
            (first & summed_bit) != 0};
}

// How many elements of a block group `group` has.
[[nodiscard]] __device__ inline unsigned group_count(unsigned elems, unsigned group)
{
    unsigned const begin = group * group_elems;
    return elems <= begin ? 0 : elems - begin < group_elems ? elems - begin : group_elems;
}

// How many elements of a block the arrays hold: groups of codes are whole.
template <int Moment>
[[nodiscard]] __device__ inline unsigned held_elems(unsigned elems)
{
    constexpr unsigned together = is_coded<Moment> ? quantized_group_elems : 1;
    return (elems + (together - 1)) / together * together;
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
