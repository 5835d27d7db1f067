// SPDX-License-Identifier: Apache-2.0
// The memory that steps write, to tell quickly whether a new gradient lies in it.
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

// The arrays of a shard as extents of memory. grad_is_written: gradients come down from a device into it.
inline void append_extents(std::vector<array_extent>& to, offload_shard const& of, std::size_t shard,
                           bool grad_is_written)
{
    namespace arrays = shard_array;
    for (auto const which :
         {arrays::param, arrays::grad, arrays::exp_avg, arrays::exp_avg_sq, arrays::weight_out, arrays::accumulator})
        append_extent(to, shard_array::names[which], of.data(which), of.bytes(which, of.size()), shard,
                      which != arrays::grad || grad_is_written);
}

class written_memory {
public:
    // Upper bound of the bytes that are allocated for each shard.
    static constexpr std::size_t bytes_for_each_shard = 5 * sizeof(array_extent);

    // Keeps those that are written. Throws invalid_argument where one of them overlaps another extent. Takes time in
    // proportion to n log n.
    void assign(std::vector<array_extent> extents)
    {
        sort_and_refuse_overlaps(extents);
        auto const is_written = [](array_extent const& e) { return e.written; };
        std::vector<array_extent> written;
        written.reserve(static_cast<std::size_t>(std::count_if(extents.begin(), extents.end(), is_written)));
        std::copy_if(extents.begin(), extents.end(), std::back_inserter(written), is_written);
        written_ = std::move(written);
    }
    // Throws invalid_argument where this array, which is read, overlaps one of them. Takes time in proportion to log n,
    // and allocates nothing.
    void refuse(array_extent const& read) const
    {
        auto const at = std::lower_bound(written_.begin(), written_.end(), read.begin,
                                         [](array_extent const& e, std::uintptr_t begin) { return e.end <= begin; });
        if (at != written_.end() && at->begin < read.end)
            refuse_overlap(*at, read);
    }

private:
    std::vector<array_extent> written_; // by address; no two overlap
};

} // namespace detail
ADAMANT_END_NAMESPACE
