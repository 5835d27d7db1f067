// SPDX-License-Identifier: Apache-2.0
// Which elements of which parameters an optimizer's shards hold: checkpoints go by that.
#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/checkpoint/state_check.hpp>
#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/core/error.hpp>
#include <adamant/core/utf8.hpp>
#include <adamant/shard/format.hpp>
#include <adamant/step/optimizer_options.hpp>

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
        auto const param = by_name_.find(name);
        if (param == by_name_.end())
            return std::nullopt;
        auto const at = by_begin_.find(std::pair(param->second, begin));
        if (at != by_begin_.end())
            return at->second;
        for (std::size_t i = 0; i < places_.size(); ++i)
            if (places_[i].param == param->second && places_[i].begin == begin)
                return i;
        return std::nullopt;
    }
    // The places of all shards but that one, as if it had never been added. Takes time in proportion to n log n.
    [[nodiscard]] param_places without(std::size_t shard) const
    {
        param_places rest;
        for (std::size_t i = 0; i < places_.size(); ++i) {
            placed const& p = places_[i];
            state_param const& of = params_[p.param];
            if (i != shard)
                rest.add(of.name, of.group, p.types, p.elements, {of.shape, p.begin});
        }
        return rest;
    }
    // The groups behind that one, which has no parameters, move up by one number.
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
        placed here{params_.size(), place.begin, size, types};
        auto const at = by_name_.find(name);
        if (at != by_name_.end()) {
            state_param const& known = params_[at->second];
            if (whole || known.shape != param.shape || known.group != group)
                throw_invalid_argument({"there is a shard of '", name, "' already, ",
                                        known.group != group ? "in another group" : "of another shape",
                                        "; shards of one parameter have one group, and the whole parameter's shape"});
            here.param = at->second;
            refuse_beside_neighbours(here);
        }
        std::size_t const params = params_.size();
        places_.push_back(here);
        try {
            if (here.param == params) {
                params_.push_back(std::move(param));
                by_name_.emplace(name, params);
            }
            if (size != 0)
                by_begin_.emplace(std::pair(here.param, here.begin), places_.size() - 1);
        } catch (...) {
            places_.pop_back();
            params_.resize(params);
            if (here.param == params)
                by_name_.erase(name);
            throw;
        }
    }

private:
    // The others have been compared with each other already.
    void refuse_beside_neighbours(placed const& added) const
    {
        if (added.elements == 0)
            return;
        auto const next = by_begin_.lower_bound(std::pair(added.param, added.begin));
        if (next != by_begin_.end() && next->first.first == added.param)
            refuse_beside(next->second, added);
        if (next != by_begin_.begin() && std::prev(next)->first.first == added.param)
            refuse_beside(std::prev(next)->second, added);
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

    std::vector<placed> places_;
    std::vector<state_param> params_;
    std::map<std::string, std::size_t, std::less<>> by_name_;
    // The shards that have elements, by param and first element.
    std::map<std::pair<std::size_t, std::size_t>, std::size_t> by_begin_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
