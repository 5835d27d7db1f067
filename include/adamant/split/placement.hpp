// SPDX-License-Identifier: Apache-2.0
// Which parts of which shards are stepped on the CPU and which on the device. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <adamant/numerics/oracle.hpp>

ADAMANT_BEGIN_NAMESPACE

enum class side : std::uint8_t { cpu, device };

// Elements [begin, begin + elems) of one shard. begin is a multiple of norm_block_elems, so that no cut changes a sum.
struct shard_piece {
    std::size_t shard;
    std::size_t begin;
    std::size_t elems;
    side on;
    friend bool operator==(shard_piece const&, shard_piece const&) = default;
};

// Every element of every shard, once: pieces in the order of shards and elements. Shards without elements have none.
struct placement {
    std::vector<shard_piece> pieces;
    std::size_t cpu_elems = 0;
    std::size_t device_elems = 0;
    double ratio_asked = 1;
    // A memory limit stood against the ratio that was asked, and this is the nearest that it allows. Where one only
    // stood against the nearest place for a cut, or set of shards, the ratio is what tells.
    bool limited = false;
    // No other placement of this kind, in this order and within the limits, comes nearer to the ratio. Always so but
    // for whole shards whose sizes have too little in common for all of their sums to be gone through; then it is a
    // near one.
    bool nearest = true;

    // The share of elements that the CPU has; 1 where there are none.
    [[nodiscard]] double ratio() const noexcept;
    friend bool operator==(placement const&, placement const&) = default;
};

// Throws invalid_argument where the placement does not give each element of shards of these sizes one side, in order,
// with cuts at multiples of norm_block_elems, or counts them wrongly.
void validate(placement const& of, std::vector<std::size_t> const& sizes);

namespace detail {

// Pieces come in order; what is empty is left out.
void append_piece(placement& to, std::size_t shard, std::size_t begin, std::size_t elems, side on);

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/split/placement.ipp>
#endif
