// SPDX-License-Identifier: Apache-2.0
// Which parts of which shards are stepped on the CPU and which on the device. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <adamant/numerics/oracle.hpp>

ADAMANT_BEGIN_NAMESPACE

enum class step_side : std::uint8_t { cpu, device };

// Elements [begin, begin + elems) of one shard. begin is a multiple of norm_block_elems, so that no cut changes a sum.
struct shard_piece {
    std::size_t shard;
    std::size_t begin;
    std::size_t elems;
    step_side on;
    friend bool operator==(shard_piece const&, shard_piece const&) = default;
};

// Every element of every shard, once: pieces in the order of shards and elements. Shards without elements have none.
struct placement {
    std::vector<shard_piece> pieces;
    std::size_t cpu_elems = 0;
    std::size_t device_elems = 0;
    double ratio_asked = 1;
    // A memory limit did not allow the requested ratio, and this is the nearest that it allows. Not set where a limit
    // only excluded the nearest cut or set of shards; compare ratio() with ratio_asked for that.
    bool limited = false;
    // No other placement of this kind, in this order and within the limits, is nearer to the ratio. False only for
    // whole shards with sizes so different that not all of their sums could be searched; then the placement is a near
    // one.
    bool nearest = true;

    // The share of elements that the CPU has; 1 where there are none.
    [[nodiscard]] double ratio() const noexcept;
    friend bool operator==(placement const&, placement const&) = default;
};

// Throws invalid_argument unless the placement gives each element of shards of these sizes one side, in order, with
// cuts at multiples of norm_block_elems, and counts them correctly.
void validate(placement const& of, std::vector<std::size_t> const& sizes);

namespace detail {

// Call it in the order of pieces. Empty pieces are left out.
void append_piece(placement& to, std::size_t shard, std::size_t begin, std::size_t elems, step_side on);

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/device/placement.ipp>
#endif
