// SPDX-License-Identifier: Apache-2.0
// Many shards as one: what a step over all tensors of a model works on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <adamant/shard/any_shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// A shard and its parameter group: shards of one group are stepped with the same coefficients.
struct grouped_shard {
    any_shard shard;
    std::size_t group = 0;
};

// Shards in an order of their own, set up once and stepped together many times: one hand-over to the threads, however
// many there are. Owns none of the arrays. Const access from many threads is fine.
class shard_list {
public:
    // Throws invalid_argument, naming the shards by their place, where an array that is written overlaps one of another
    // shard: two threads would work on it at once. Takes time in proportion to n log n of the number of shards.
    explicit shard_list(std::vector<grouped_shard> shards);
    // All in one group, number 0.
    explicit shard_list(std::vector<any_shard> const& shards);

    [[nodiscard]] std::size_t size() const noexcept { return shards_.size(); }
    [[nodiscard]] grouped_shard const& operator[](std::size_t i) const noexcept;
    // Groups are numbered from 0 to this; 0 for an empty list.
    [[nodiscard]] std::size_t groups() const noexcept { return groups_; }
    // Of all shards together.
    [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
    [[nodiscard]] std::size_t bytes_moved() const noexcept { return bytes_moved_; }

    // The shards lie end to end on a line of granules (see granule_elems), each beginning at a granule of its own.
    [[nodiscard]] std::size_t granules() const noexcept { return begins_.back(); }

    // Calls piece(grouped_shard, begin, end) for what lies in granules first to last - 1, in order: elements of a
    // shard.
    template <class Piece>
    void for_each_piece(std::size_t first, std::size_t last, Piece const& piece) const
    {
        if (first >= last)
            return;
        auto next = std::upper_bound(begins_.begin(), begins_.end(), first);
        for (auto i = static_cast<std::size_t>(next - begins_.begin()) - 1; i < shards_.size() && begins_[i] < last;
             ++i) {
            std::size_t const begin = first > begins_[i] ? (first - begins_[i]) * granule_elems : 0;
            std::size_t const end = std::min(shards_[i].shard.size(), (last - begins_[i]) * granule_elems);
            if (begin < end)
                piece(shards_[i], begin, end);
        }
    }

private:
    static std::vector<grouped_shard> in_one_group(std::vector<any_shard> const& shards);

    void check_shards() const;

    std::vector<grouped_shard> shards_;
    std::vector<std::size_t> begins_; // in granules, one more than shards
    std::size_t elements_ = 0;
    std::size_t bytes_moved_ = 0;
    std::size_t groups_ = 0;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/shard/shard_list.ipp>
#endif
