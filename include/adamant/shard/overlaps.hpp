// SPDX-License-Identifier: Apache-2.0
// Whether arrays that different shards bring share memory in a way that threads would meet in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// An array of a shard.
struct array_extent {
    std::uintptr_t begin;
    std::uintptr_t end;
    std::size_t shard;
    bool written;
};
inline void append_extent(std::vector<array_extent>& extents, std::byte const* begin, std::size_t bytes,
                          std::size_t shard, bool written)
{
    auto const at = reinterpret_cast<std::uintptr_t>(begin);
    if (bytes != 0)
        extents.push_back({at, at + bytes, shard, written});
}

// Throws invalid_argument, naming the shards by their numbers, where an array that is written overlaps another. Takes
// time in proportion to n log n.
inline void refuse_overlaps(std::vector<array_extent> extents)
{
    std::sort(extents.begin(), extents.end(),
              [](array_extent const& a, array_extent const& b) { return a.begin < b.begin; });
    // Of those before, the one that reaches furthest, and the furthest that is written: gradients may share memory.
    array_extent const* furthest = nullptr;
    array_extent const* furthest_written = nullptr;
    for (array_extent const& e : extents) {
        array_extent const* const other = e.written ? furthest : furthest_written;
        if (other != nullptr && e.begin < other->end)
            throw invalid_argument("adamant: shards " + std::to_string(std::min(e.shard, other->shard)) + " and " +
                                   std::to_string(std::max(e.shard, other->shard)) +
                                   " of the list overlap in memory that a step writes; each needs arrays of its own");
        if (furthest == nullptr || e.end > furthest->end)
            furthest = &e;
        if (e.written && (furthest_written == nullptr || e.end > furthest_written->end))
            furthest_written = &e;
    }
}

} // namespace detail
ADAMANT_END_NAMESPACE
