// SPDX-License-Identifier: Apache-2.0
// Detects arrays of shards that overlap in memory so that a step would write into another array.
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

// Address range of one array of a shard.
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
    auto const address = reinterpret_cast<std::uintptr_t>(begin);
    if (bytes != 0)
        extents.push_back({name, address, address + bytes, shard, written});
}

[[noreturn]] inline void refuse_overlap(array_extent a, array_extent b)
{
    if (b.shard < a.shard)
        std::swap(a, b);
    auto const shard_text = [](array_extent const& e) { return text_of({" of shard ", e.shard}); };
    throw_invalid_argument({a.name, a.shard == b.shard ? "" : shard_text(a), " and ", b.name, shard_text(b),
                            " overlap in memory, and a step writes there. Give each array separate memory."});
}

// Throws invalid_argument if an array that a step writes overlaps another array. The message has the names of the
// arrays and the numbers of their shards. Sorts the extents by address, in O(n).
inline void sort_and_refuse_overlaps(std::vector<array_extent>& extents)
{
    std::vector<std::uint64_t> begins;
    begins.reserve(extents.size());
    for (array_extent const& e : extents)
        begins.push_back(e.begin);
    permute(extents, sorted_order(begins));
    // The last end among all preceding extents, and among the written ones. An extent that is only read is compared
    // with the written ones alone, because gradients may share memory.
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
