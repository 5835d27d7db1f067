// SPDX-License-Identifier: Apache-2.0
// The memory that steps write, as a sorted list: checks quickly whether a new gradient overlaps it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include <adamant/formats.hpp>
#include <adamant/detail/shard/offload_shard.hpp>
#include <adamant/detail/shard/overlaps.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Appends the arrays of a shard as extents of memory. grad_is_written: gradients are downloaded into grad.
inline void append_extents(std::vector<array_extent>& extents, offload_shard const& view, std::size_t shard,
                           bool grad_is_written)
{
    namespace arrays = shard_array;
    for (auto const which :
         {arrays::param, arrays::grad, arrays::exp_avg, arrays::exp_avg_sq, arrays::weight_out, arrays::accumulator})
        append_extent(extents, shard_array::names[which], view.data(which), view.bytes(which, view.size()), shard,
                      which != arrays::grad || grad_is_written);
    if (view.changed() != nullptr)
        append_extent(extents, "changed", reinterpret_cast<std::byte const*>(view.changed()),
                      changed_words(view.size()) * sizeof(std::uint64_t), shard, true);
}

class written_memory {
public:
    // Upper bound of the bytes allocated per shard.
    static constexpr std::size_t bytes_for_each_shard = 7 * sizeof(array_extent); // append_extents() adds up to seven

    // Stores the written extents. Throws invalid_argument if one of them overlaps another extent. O(n).
    void assign(std::vector<array_extent> extents)
    {
        sort_and_refuse_overlaps(extents);
        auto const is_written = [](array_extent const& e) { return e.written; };
        std::vector<array_extent> written;
        written.reserve(static_cast<std::size_t>(std::count_if(extents.begin(), extents.end(), is_written)));
        std::copy_if(extents.begin(), extents.end(), std::back_inserter(written), is_written);
        written_ = std::move(written);
    }
    // Throws invalid_argument if this array, which steps read, overlaps a written one. O(log n); allocates nothing.
    void refuse(array_extent const& read) const
    {
        auto const candidate =
            std::lower_bound(written_.begin(), written_.end(), read.begin,
                             [](array_extent const& e, std::uintptr_t begin) { return e.end <= begin; });
        if (candidate != written_.end() && candidate->begin < read.end)
            refuse_overlap(*candidate, read);
    }

private:
    std::vector<array_extent> written_; // sorted by address, disjoint
};

} // namespace detail
ADAMANT_END_NAMESPACE
