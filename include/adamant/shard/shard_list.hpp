// SPDX-License-Identifier: Apache-2.0
// Many shards as one: what a step over all tensors of a model works on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/kernel/dispatch.hpp>
#include <adamant/shard/overlaps.hpp>
#include <adamant/shard/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// A shard of any types: a view as shard is, from which it converts.
class any_shard {
public:
    template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
    any_shard(shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& of) // NOLINT: meant to convert
        : pointers_(of.pointers()), size_(of.size()),
          step_for_(kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>),
          elem_bytes_{sizeof(Param), sizeof(Grad), sizeof(ExpAvg), sizeof(ExpAvgSq), size_bytes(dtype_of<WeightOut>)}
    {
    }

    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] kernel::step_pointers const& pointers() const noexcept { return pointers_; }
    // The kernel for its types on a tier that resolve_isa() returned.
    [[nodiscard]] kernel::step_function step_for(isa tier) const noexcept { return step_for_(tier); }
    // Of param, grad, exp_avg, exp_avg_sq and weight_out, in this order; 0 where there is no weight_out.
    [[nodiscard]] std::size_t elem_bytes(std::size_t array) const noexcept { return elem_bytes_[array]; }
    // See shard::bytes_per_element().
    [[nodiscard]] std::size_t bytes_per_element() const noexcept
    {
        return 2 * (elem_bytes_[0] + elem_bytes_[2] + elem_bytes_[3]) + elem_bytes_[1] + elem_bytes_[4];
    }

private:
    friend class shard_list;

    kernel::step_pointers pointers_;
    std::size_t size_;
    kernel::step_function (*step_for_)(isa) noexcept;
    std::size_t elem_bytes_[5]; // param, grad, exp_avg, exp_avg_sq, weight_out
};

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
    explicit shard_list(std::vector<grouped_shard> shards) : shards_(std::move(shards))
    {
        check();
        begins_.reserve(shards_.size() + 1);
        begins_.push_back(0);
        for (grouped_shard const& s : shards_) {
            elements_ += s.shard.size();
            bytes_moved_ += s.shard.size() * s.shard.bytes_per_element();
            begins_.push_back(begins_.back() + (s.shard.size() + granule_elems - 1) / granule_elems);
            groups_ = std::max(groups_, s.group + 1);
        }
    }
    // All in one group, number 0.
    explicit shard_list(std::vector<any_shard> const& shards) : shard_list(in_one_group(shards)) {}

    [[nodiscard]] std::size_t size() const noexcept { return shards_.size(); }
    [[nodiscard]] grouped_shard const& operator[](std::size_t i) const noexcept { return shards_[i]; }
    // Groups are numbered from 0 to this; 0 for an empty list.
    [[nodiscard]] std::size_t groups() const noexcept { return groups_; }
    // Of all shards together.
    [[nodiscard]] std::size_t elements() const noexcept { return elements_; }
    [[nodiscard]] std::size_t bytes_moved() const noexcept { return bytes_moved_; }

    // The shards lie end to end on a line of granules, each beginning at a granule of its own.
    static constexpr std::size_t granule_elems = 64;
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
    static std::vector<grouped_shard> in_one_group(std::vector<any_shard> const& shards)
    {
        std::vector<grouped_shard> grouped;
        grouped.reserve(shards.size());
        for (any_shard const& s : shards)
            grouped.push_back({s, 0});
        return grouped;
    }

    void check() const
    {
        std::vector<detail::array_extent> extents;
        extents.reserve(shards_.size() * 5);
        for (std::size_t i = 0; i < shards_.size(); ++i) {
            any_shard const& s = shards_[i].shard;
            std::byte const* const begins[] = {s.pointers_.param, s.pointers_.grad, s.pointers_.exp_avg,
                                               s.pointers_.exp_avg_sq, s.pointers_.weight_out};
            for (std::size_t a = 0; a < 5; ++a)
                detail::append_extent(extents, detail::array_names[a], begins[a], s.size_ * s.elem_bytes_[a], i,
                                      a != 1);
        }
        detail::refuse_overlaps(std::move(extents));
    }

    std::vector<grouped_shard> shards_;
    std::vector<std::size_t> begins_; // in granules, one more than shards
    std::size_t elements_ = 0;
    std::size_t bytes_moved_ = 0;
    std::size_t groups_ = 0;
};

ADAMANT_END_NAMESPACE
