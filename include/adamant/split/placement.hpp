// SPDX-License-Identifier: Apache-2.0
// Which parts of which shards are stepped on the CPU and which on the device. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <adamant/core/error.hpp>
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
    [[nodiscard]] double ratio() const noexcept
    {
        std::size_t const all = cpu_elems + device_elems;
        return all == 0 ? 1.0 : static_cast<double>(cpu_elems) / static_cast<double>(all);
    }
    friend bool operator==(placement const&, placement const&) = default;
};

// Throws invalid_argument where the placement does not give each element of shards of these sizes one side, in order,
// with cuts at multiples of norm_block_elems, or counts them wrongly.
inline void check(placement const& of, std::vector<std::size_t> const& sizes)
{
    std::size_t shard = 0;
    std::size_t at = 0;
    std::size_t elems[2] = {};
    auto const refuse = [](std::string const& what) {
        throw invalid_argument("adamant: a placement " + what +
                               "; make it by split() from the sizes of the shards, in their order");
    };
    auto const pass_full_shards = [&] {
        while (shard < sizes.size() && at == sizes[shard]) {
            ++shard;
            at = 0;
        }
    };
    for (shard_piece const& piece : of.pieces) {
        pass_full_shards();
        if (piece.elems == 0)
            refuse("has a piece without elements, of shard " + std::to_string(piece.shard));
        if (piece.on != side::cpu && piece.on != side::device)
            refuse("has a piece of shard " + std::to_string(piece.shard) +
                   " that is neither on the CPU nor on the device");
        if (piece.shard != shard || piece.begin != at || shard == sizes.size() || piece.elems > sizes[shard] - at)
            refuse("has elements " + std::to_string(piece.begin) + " to " + std::to_string(piece.begin + piece.elems) +
                   " of shard " + std::to_string(piece.shard) + " where " +
                   (shard == sizes.size() ? "all shards are complete"
                                          : "element " + std::to_string(at) + " of shard " + std::to_string(shard) +
                                                ", which has " + std::to_string(sizes[shard]) + ", is next"));
        if (piece.begin % norm_block_elems != 0)
            refuse("cuts shard " + std::to_string(shard) + " at element " + std::to_string(at) +
                   ", which is no multiple of " + std::to_string(norm_block_elems));
        at += piece.elems;
        elems[static_cast<std::size_t>(piece.on)] += piece.elems;
    }
    pass_full_shards();
    if (shard != sizes.size())
        refuse("lacks element " + std::to_string(at) + " of shard " + std::to_string(shard) + ", which has " +
               std::to_string(sizes[shard]));
    if (elems[0] != of.cpu_elems || elems[1] != of.device_elems)
        refuse("counts " + std::to_string(of.cpu_elems) + " elements on the CPU and " +
               std::to_string(of.device_elems) + " on the device, but its pieces have " + std::to_string(elems[0]) +
               " and " + std::to_string(elems[1]));
}

namespace detail {

// Pieces come in order; what is empty is left out.
inline void append_piece(placement& to, std::size_t shard, std::size_t begin, std::size_t elems, side on)
{
    if (elems == 0)
        return;
    (on == side::cpu ? to.cpu_elems : to.device_elems) += elems;
    to.pieces.push_back({shard, begin, elems, on});
}

} // namespace detail

ADAMANT_END_NAMESPACE
