// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/shard.hpp>: shard_list.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include <adamant/shard.hpp>
#include <adamant/detail/shard/overlaps.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL shard_list::shard_list(std::vector<grouped_shard> shards)
    : shards_(std::move(shards)), layout_(shards_.size())
{
    check_shards();
    for (grouped_shard const& s : shards_) {
        elements_ += s.shard.size();
        bytes_moved_ += s.shard.bytes_moved();
        layout_.append(s.shard.size());
        groups_ = std::max(groups_, s.group + 1);
    }
}

ADAMANT_DECL shard_list::shard_list(std::vector<any_shard> const& shards) : shard_list(in_one_group(shards)) {}

ADAMANT_DECL grouped_shard const& shard_list::operator[](std::size_t i) const noexcept
{
    return shards_[i];
}

ADAMANT_DECL std::vector<grouped_shard> shard_list::in_one_group(std::vector<any_shard> const& shards)
{
    std::vector<grouped_shard> grouped;
    grouped.reserve(shards.size());
    for (any_shard const& s : shards)
        grouped.push_back({s, 0});
    return grouped;
}

ADAMANT_DECL void shard_list::check_shards() const
{
    std::vector<detail::array_extent> extents;
    extents.reserve(shards_.size() * (shard_arrays + 1));
    for (std::size_t i = 0; i < shards_.size(); ++i) {
        if (shards_[i].group == std::numeric_limits<std::size_t>::max())
            detail::throw_invalid_argument({"cannot make a shard_list: shard ", i, " is in group ", shards_[i].group,
                                            ". Was a negative number converted?"});
        any_shard const& s = shards_[i].shard;
        for (std::size_t a = 0; a < shard_arrays; ++a)
            detail::append_extent(extents, shard_array::names[a], s.data(static_cast<shard_array::index>(a)),
                                  s.bytes(a, s.size()), i, a != shard_array::grad);
        if (s.changed() != nullptr)
            detail::append_extent(extents, "changed", reinterpret_cast<std::byte const*>(s.changed()),
                                  changed_words(s.size()) * sizeof(std::uint64_t), i, true);
    }
    detail::refuse_overlaps(std::move(extents));
}

ADAMANT_END_NAMESPACE
