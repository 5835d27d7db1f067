// SPDX-License-Identifier: Apache-2.0
// The elements of parameters that an optimizer's shards hold, for checkpoints.
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

class param_places {
public:
    struct placed {
        std::size_t param; // in params()
        std::size_t begin;
        std::size_t elements;
        shard_dtypes types;
    };

    [[nodiscard]] std::size_t size() const noexcept { return places_.size(); }
    [[nodiscard]] placed const& operator[](std::size_t shard) const noexcept { return places_[shard]; }
    [[nodiscard]] std::string const& name(std::size_t shard) const { return params_[places_.at(shard).param].name; }
    [[nodiscard]] std::vector<state_param> const& params() const noexcept { return params_; }

    // The shard of that parameter which begins at its element `begin`; one that has elements before one that has none.
    [[nodiscard]] std::optional<std::size_t> find(std::string_view name, std::size_t begin) const
    {
        std::optional<std::size_t> const param = find_param(name);
        if (!param)
            return std::nullopt;
        std::size_t const at = from(*param, begin);
        if (at != filled_.size() && places_[filled_[at]].param == *param && places_[filled_[at]].begin == begin)
            return filled_[at];
        for (std::size_t i = 0; i < places_.size(); ++i)
            if (places_[i].param == *param && places_[i].begin == begin)
                return i;
        return std::nullopt;
    }
    // Removes a shard, as if it had never been added. Takes time in proportion to n, as the numbers of later shards
    // change.
    void remove(std::size_t shard) noexcept
    {
        std::size_t const param = places_[shard].param;
        auto const is_same = [&](placed const& p) { return p.param == param; };
        auto const here = places_.begin() + offset(shard);
        bool const was_first = std::none_of(places_.begin(), here, is_same);
        auto const next = std::find_if(here + 1, places_.end(), is_same);
        // Params are in the order of their first shards, so this one may move behind others, or go.
        std::size_t last = param;
        if (was_first)
            for (auto each = here + 1; each != next; ++each)
                last = std::max(last, each->param);
        bool const is_gone = was_first && next == places_.end();
        auto const renumbered = [&](std::size_t each) {
            return each == param ? last : each - (each > param && each <= last);
        };
        if (places_[shard].elements != 0)
            filled_.erase(filled_.begin() + offset(from(param, places_[shard].begin)));
        std::rotate(filled_.begin() + offset(from(param, 0)), filled_.begin() + offset(from(param + 1, 0)),
                    filled_.begin() + offset(from(last + 1, 0)));
        for (std::size_t& each : filled_)
            each -= each > shard;
        std::rotate(params_.begin() + offset(param), params_.begin() + offset(param) + 1,
                    params_.begin() + offset(last) + 1);
        for (std::size_t& each : by_name_)
            each = renumbered(each);
        for (placed& each : places_)
            each.param = renumbered(each.param);
        places_.erase(here);
        if (is_gone) {
            params_.pop_back(); // it has moved behind all others
            by_name_.erase(std::find(by_name_.begin(), by_name_.end(), last));
        }
    }
    // The groups behind that one, which has no parameters, move down by one number.
    void remove_group(std::size_t group) noexcept
    {
        for (state_param& each : params_)
            each.group -= each.group > group;
    }

    // Adds the next shard. Throws invalid_argument, and changes nothing, for a place outside the parameter, and for
    // what no checkpoint could hold: an empty name or one that is not UTF-8, another shape or group than the parameter
    // has, other types than its other shards have, elements that one of those has.
    void add(std::string const& name, std::size_t group, shard_dtypes const& types, std::size_t size, shard_place place)
    {
        if (name.empty())
            throw_invalid_argument({"a shard has no name; checkpoints go by the parameter's name"});
        check_utf8("the name of a shard", name);
        bool const whole = place.shape.empty() && place.begin == 0;
        state_param param{name, place.shape.empty() ? std::vector{size} : std::move(place.shape), group};
        std::size_t const all = element_count(param);
        if (place.begin > all || size > all - place.begin)
            throw_invalid_argument({"a shard of '", name, "' has elements ", place.begin, " to ", place.begin + size,
                                    " of ", all, "; give the whole parameter's shape, and a place inside it"});
        std::size_t const together = elems_together(types);
        if (place.begin % together != 0 || (size % together != 0 && place.begin + size != all))
            throw_invalid_argument({"a shard of '", name, "' has elements ", place.begin, " to ", place.begin + size,
                                    " of ", all, ", but its moments are in groups of ", together,
                                    "; begin at a multiple of that, and end at one or with the parameter"});
        placed here{params_.size(), place.begin, size, types};
        if (std::optional<std::size_t> const at = find_param(name)) {
            state_param const& known = params_[*at];
            if (whole || known.shape != param.shape || known.group != group)
                throw_invalid_argument({"there is a shard of '", name, "' already, ",
                                        known.group != group ? "in another group" : "of another shape",
                                        "; shards of one parameter have one group, and the whole parameter's shape"});
            here.param = *at;
            refuse_beside_neighbours(here);
        }
        // Whatever fails from here on changes nothing: all that allocates comes first.
        make_room(places_);
        make_room(filled_);
        make_room(by_name_);
        if (here.param == params_.size()) {
            params_.push_back(std::move(param));
            by_name_.insert(by_name_.begin() + offset(first_named(name)), here.param);
        }
        if (size != 0)
            filled_.insert(filled_.begin() + offset(from(here.param, here.begin)), places_.size());
        places_.push_back(here);
    }

private:
    // The others have been compared with each other already.
    void refuse_beside_neighbours(placed const& added) const
    {
        if (added.elements == 0)
            return;
        std::size_t const next = from(added.param, added.begin);
        if (next != filled_.size() && places_[filled_[next]].param == added.param)
            refuse_beside(filled_[next], added);
        if (next != 0 && places_[filled_[next - 1]].param == added.param)
            refuse_beside(filled_[next - 1], added);
    }
    void refuse_beside(std::size_t shard, placed const& added) const
    {
        placed const& there = places_[shard];
        if (added.begin < there.begin + there.elements && there.begin < added.begin + added.elements)
            throw_invalid_argument({"a shard of '", name(shard), "' has elements ", added.begin, " to ",
                                    added.begin + added.elements, ", but shard ", shard, " has ", there.begin, " to ",
                                    there.begin + there.elements, " of it; each element is stepped once"});
        using namespace shard_array;
        for (auto const which : {param, exp_avg, exp_avg_sq})
            if (there.types[which] != added.types[which])
                throw_invalid_argument({"a shard of '", name(shard), "' has ", shard_array::names[which], " of ",
                                        adamant::name(added.types[which]), ", but shard ", shard, " of ",
                                        adamant::name(there.types[which]),
                                        "; shards of one parameter have the same types"});
    }

    // For one more.
    template <class T>
    static void make_room(std::vector<T>& in)
    {
        if (in.size() == in.capacity())
            in.reserve(2 * in.size() + 1);
    }
    static std::ptrdiff_t offset(std::size_t i) noexcept { return static_cast<std::ptrdiff_t>(i); }
    // Where it is in by_name_, or would be.
    [[nodiscard]] std::size_t first_named(std::string_view name) const noexcept
    {
        auto const at =
            std::lower_bound(by_name_.begin(), by_name_.end(), name,
                             [&](std::size_t param, std::string_view wanted) { return params_[param].name < wanted; });
        return static_cast<std::size_t>(at - by_name_.begin());
    }
    [[nodiscard]] std::optional<std::size_t> find_param(std::string_view name) const noexcept
    {
        std::size_t const at = first_named(name);
        if (at == by_name_.size() || params_[by_name_[at]].name != name)
            return std::nullopt;
        return by_name_[at];
    }
    // The first in filled_ at or behind that element.
    [[nodiscard]] std::size_t from(std::size_t param, std::size_t begin) const noexcept
    {
        auto const at = std::lower_bound(filled_.begin(), filled_.end(), begin, [&](std::size_t shard, std::size_t) {
            placed const& p = places_[shard];
            return p.param != param ? p.param < param : p.begin < begin;
        });
        return static_cast<std::size_t>(at - filled_.begin());
    }

    std::vector<placed> places_;
    std::vector<state_param> params_;
    std::vector<std::size_t> by_name_; // the params, sorted
    std::vector<std::size_t> filled_;  // the shards that have elements, by param and first element
};

} // namespace detail
ADAMANT_END_NAMESPACE
