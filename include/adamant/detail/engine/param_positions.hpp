// SPDX-License-Identifier: Apache-2.0
// Positions of an optimizer's shards in their parameters: parameter, first element and size. Checkpoints use them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/formats.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/core/utf8.hpp>
#include <adamant/detail/io/state_check.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Reserves memory for one more element.
template <class T>
void reserve_one(std::vector<T>& all)
{
    if (all.size() == all.capacity())
        all.reserve(2 * all.size() + 1);
}

class param_positions {
public:
    struct element_range {
        std::size_t param; // index in params()
        std::size_t begin;
        std::size_t elements;
        shard_dtypes types;
    };

    [[nodiscard]] std::size_t size() const noexcept { return positions_.size(); }
    [[nodiscard]] element_range const& operator[](std::size_t shard) const noexcept { return positions_[shard]; }
    [[nodiscard]] std::string const& name(std::size_t shard) const { return params_[positions_[shard].param].name; }
    [[nodiscard]] std::vector<state_param> const& params() const noexcept { return params_; }

    // The shard of parameter `name` that begins at element `begin`. Prefers a shard with elements to an empty one.
    [[nodiscard]] std::optional<std::size_t> find(std::string_view name, std::size_t begin) const
    {
        std::optional<std::size_t> const param = find_param(name);
        if (!param)
            return std::nullopt;
        std::size_t const k = first_filled(*param, begin);
        if (k != filled_.size() && positions_[filled_[k]].param == *param && positions_[filled_[k]].begin == begin)
            return filled_[k];
        for (std::size_t i = 0; i < positions_.size(); ++i)
            if (positions_[i].param == *param && positions_[i].begin == begin)
                return i;
        return std::nullopt;
    }
    // Removes a shard, as if it had never been added. O(n), because the indices of later shards change.
    void remove(std::size_t shard) noexcept
    {
        std::size_t const param = positions_[shard].param;
        auto const is_same = [&](element_range const& p) { return p.param == param; };
        auto const removed = positions_.begin() + offset(shard);
        bool const was_first = std::none_of(positions_.begin(), removed, is_same);
        auto const next = std::find_if(removed + 1, positions_.end(), is_same);
        // Params are sorted by their first shards, so this one may move behind others, or disappear.
        std::size_t last = param;
        if (was_first)
            for (auto each = removed + 1; each != next; ++each)
                last = std::max(last, each->param);
        bool const is_gone = was_first && next == positions_.end();
        auto const renumbered = [&](std::size_t each) {
            return each == param ? last : each - (each > param && each <= last);
        };
        if (positions_[shard].elements != 0)
            filled_.erase(filled_.begin() + offset(first_filled(param, positions_[shard].begin)));
        std::rotate(filled_.begin() + offset(first_filled(param, 0)),
                    filled_.begin() + offset(first_filled(param + 1, 0)),
                    filled_.begin() + offset(first_filled(last + 1, 0)));
        for (std::size_t& each : filled_)
            each -= each > shard;
        std::rotate(params_.begin() + offset(param), params_.begin() + offset(param) + 1,
                    params_.begin() + offset(last) + 1);
        for (std::size_t& each : by_name_)
            each = renumbered(each);
        for (element_range& each : positions_)
            each.param = renumbered(each.param);
        positions_.erase(removed);
        if (is_gone) {
            params_.pop_back(); // the rotation moved it to the end
            by_name_.erase(std::find(by_name_.begin(), by_name_.end(), last));
        }
    }
    // Renumbers the groups after this one. Requires that it has no parameters.
    void remove_group(std::size_t group) noexcept
    {
        for (state_param& each : params_)
            each.group -= each.group > group;
    }

    // Adds the next shard. Throws invalid_argument, and changes nothing, for a position outside the parameter and for
    // shards that a checkpoint cannot hold: a name that is empty or not UTF-8, a shape or group that differs from the
    // parameter's, types that differ from its other shards', or elements that another shard has.
    void add(std::string const& name, std::size_t group, shard_dtypes const& types, std::size_t size,
             shard_position position)
    {
        if (name.empty())
            throw_invalid_argument(
                {"cannot add a shard: it has no name. Checkpoints identify shards by the parameter's name."});
        check_utf8("the name of a shard", name);
        bool const whole = position.shape.empty() && position.begin == 0;
        state_param param{name, position.shape.empty() ? std::vector{size} : std::move(position.shape), group};
        std::size_t const all = element_count(param);
        if (position.begin > all || size > all - position.begin)
            throw_invalid_argument({"cannot add a shard of '", name, "': it has elements ", position.begin, " to ",
                                    position.begin + size, ", but the parameter has ", all,
                                    ". Pass the shape of the whole parameter."});
        std::size_t const together = elems_together(types);
        if (position.begin % together != 0 || (size % together != 0 && position.begin + size != all))
            throw_invalid_argument({"cannot add a shard of '", name, "': it has elements ", position.begin, " to ",
                                    position.begin + size, " of ", all, ", but its moments are in groups of ", together,
                                    ". Begin at a multiple of ", together,
                                    ", and end at one or at the end of the parameter."});
        element_range added{params_.size(), position.begin, size, types};
        if (std::optional<std::size_t> const index = find_param(name)) {
            state_param const& known = params_[*index];
            if (whole)
                throw_invalid_argument({"cannot add a shard of '", name,
                                        "' without a position: the parameter has another shard. Use another name, or "
                                        "pass the whole parameter's shape for all its shards."});
            if (known.shape != param.shape || known.group != group)
                throw_invalid_argument({"cannot add a shard of '", name, "': another shard of it has another ",
                                        known.group != group ? "group" : "shape",
                                        ". Pass the same group and the whole parameter's shape for all its shards."});
            added.param = *index;
            check_neighbors(added);
        }
        // Allocate everything first, so that a failure changes nothing.
        reserve_one(positions_);
        reserve_one(filled_);
        reserve_one(by_name_);
        if (added.param == params_.size()) {
            params_.push_back(std::move(param));
            by_name_.insert(by_name_.begin() + offset(first_named(name)), added.param);
        }
        if (size != 0)
            filled_.insert(filled_.begin() + offset(first_filled(added.param, added.begin)), positions_.size());
        positions_.push_back(added);
    }

private:
    // Checks a shard against its neighbors in the parameter. The other shards have been checked already.
    void check_neighbors(element_range const& added) const
    {
        if (added.elements == 0)
            return;
        std::size_t const next = first_filled(added.param, added.begin);
        if (next != filled_.size() && positions_[filled_[next]].param == added.param)
            check_pair(filled_[next], added);
        if (next != 0 && positions_[filled_[next - 1]].param == added.param)
            check_pair(filled_[next - 1], added);
    }
    void check_pair(std::size_t shard, element_range const& added) const
    {
        element_range const& known = positions_[shard];
        if (added.begin < known.begin + known.elements && known.begin < added.begin + added.elements)
            throw_invalid_argument({"cannot add a shard of '", name(shard), "' with elements ", added.begin, " to ",
                                    added.begin + added.elements, ": shard ", shard, " has elements ", known.begin,
                                    " to ", known.begin + known.elements, ". Shards must not overlap."});
        using namespace shard_array;
        for (auto const which : {param, exp_avg, exp_avg_sq})
            if (known.types[which] != added.types[which])
                throw_invalid_argument({"cannot add a shard of '", name(shard), "': its ", shard_array::names[which],
                                        " is ", adamant::name(added.types[which]), ", but that of shard ", shard,
                                        " is ", adamant::name(known.types[which]),
                                        ". Use the same types for all shards of a parameter."});
    }

    static std::ptrdiff_t offset(std::size_t i) noexcept { return static_cast<std::ptrdiff_t>(i); }
    // Index of the name in by_name_, or of its insertion point.
    [[nodiscard]] std::size_t first_named(std::string_view name) const noexcept
    {
        auto const entry =
            std::lower_bound(by_name_.begin(), by_name_.end(), name,
                             [&](std::size_t param, std::string_view wanted) { return params_[param].name < wanted; });
        return static_cast<std::size_t>(entry - by_name_.begin());
    }
    [[nodiscard]] std::optional<std::size_t> find_param(std::string_view name) const noexcept
    {
        std::size_t const k = first_named(name);
        if (k == by_name_.size() || params_[by_name_[k]].name != name)
            return std::nullopt;
        return by_name_[k];
    }
    // Index in filled_ of the first shard that begins at or after this element of the parameter.
    [[nodiscard]] std::size_t first_filled(std::size_t param, std::size_t begin) const noexcept
    {
        auto const entry = std::lower_bound(filled_.begin(), filled_.end(), begin, [&](std::size_t shard, std::size_t) {
            element_range const& p = positions_[shard];
            return p.param != param ? p.param < param : p.begin < begin;
        });
        return static_cast<std::size_t>(entry - filled_.begin());
    }

    std::vector<element_range> positions_;
    std::vector<state_param> params_;
    std::vector<std::size_t> by_name_; // indices of params, sorted by name
    std::vector<std::size_t> filled_;  // shards with elements, sorted by param and first element
};

} // namespace detail
ADAMANT_END_NAMESPACE
