// SPDX-License-Identifier: Apache-2.0
// Whether the arrays of shards overlap in memory so that a step would write into another array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/detail/core/sorting.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// An array of a shard.
struct array_extent {
    char const* name;
    std::uintptr_t begin;
    std::uintptr_t end;
    std::size_t shard;
    bool written;
};
inline void append_extent(std::vector<array_extent>& extents, char const* name, std::byte const* begin,
                          std::size_t bytes, std::size_t shard, bool written)
{
    auto const at = reinterpret_cast<std::uintptr_t>(begin);
    if (bytes != 0)
        extents.push_back({name, at, at + bytes, shard, written});
}

[[noreturn]] inline void refuse_overlap(array_extent a, array_extent b)
{
    if (b.shard < a.shard)
        std::swap(a, b);
    auto const of_shard = [](array_extent const& e) { return " of shard " + std::to_string(e.shard); };
    throw_invalid_argument({a.name, a.shard == b.shard ? "" : of_shard(a), " and ", b.name, of_shard(b),
                            " overlap in memory, and a step writes there; each needs memory of its own"});
}

// Throws invalid_argument, naming the arrays and the shards by their numbers, where an array that is written overlaps
// another. Sorts the extents by address. Takes time in proportion to n log n.
inline void sort_and_refuse_overlaps(std::vector<array_extent>& extents)
{
    sort_stably(extents, [](array_extent const& a, array_extent const& b) { return a.begin < b.begin; });
    // Of the extents before, the one that ends last, and of those that are written: gradients may share memory.
    array_extent const* furthest = nullptr;
    array_extent const* furthest_written = nullptr;
    for (array_extent const& e : extents) {
        array_extent const* const other = e.written ? furthest : furthest_written;
        if (other != nullptr && e.begin < other->end)
            refuse_overlap(*other, e);
        if (furthest == nullptr || e.end > furthest->end)
            furthest = &e;
        if (e.written && (furthest_written == nullptr || e.end > furthest_written->end))
            furthest_written = &e;
    }
}
inline void refuse_overlaps(std::vector<array_extent> extents)
{
    sort_and_refuse_overlaps(extents);
}

} // namespace detail
ADAMANT_END_NAMESPACE
