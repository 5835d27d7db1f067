// SPDX-License-Identifier: Apache-2.0
// An optimizer's state as views of its shards' arrays, and what it takes over from another state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/engine/history.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/io/restore.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

[[nodiscard]] inline state_dict views_of(registry const& over, training_state const& training)
{
    namespace arrays = shard_array;
    param_places const& places = over.places();
    state_dict all{.step = training.steps,
                   .loss_scaler = training.scaler,
                   .groups = over.groups(),
                   .params = places.params(),
                   .tensors = {}};
    for (std::size_t i = 0; i < over.size(); ++i) {
        offload_shard const& s = over[i].shard;
        for (auto const& [array, kept] :
             {std::pair{arrays::param, state_array::param}, std::pair{arrays::exp_avg, state_array::exp_avg},
              std::pair{arrays::exp_avg_sq, state_array::exp_avg_sq}})
            if (split_view const* const split = over.split_param(i); split != nullptr && array == arrays::param)
                all.tensors.push_back(
                    {places[i].param, kept, dtype::float32, places[i].begin, s.size(), nullptr, split, split});
            else
                all.tensors.push_back({places[i].param, kept, s.type(array), places[i].begin, s.size(),
                                       s.size() == 0 ? nullptr : s.data(array)});
    }
    return all;
}

// What is to be taken over from a state. Nothing is changed yet.
struct state_to_load {
    std::vector<state_copy> copies;
    std::vector<parameter_group> groups;
    training_state training;
    std::vector<std::byte> room = {}; // for any of the copies

    // Throws what reading the state does.
    void copy_all()
    {
        for (state_copy const& copy : copies)
            copy.run(room);
    }
};
// Throws invalid_argument that says what is missing or does not fit.
[[nodiscard]] inline state_to_load fit_state(state_dict const& from, registry const& over,
                                             training_state const& training)
{
    state_to_load found{plan_copies(from, views_of(over, training)), over.groups(), {from.step, from.loss_scaler}};
    std::size_t room = 0;
    for (state_copy const& copy : found.copies)
        room = std::max(room, copy.room_bytes());
    found.room.resize(room);
    name_index const by_name(from.groups, "group");
    for (parameter_group& group : found.groups) {
        auto const at = by_name.find(group.name);
        if (!at)
            throw_invalid_argument({"the state that is loaded has no parameter group '", group.name, "'"});
        group = from.groups[*at];
    }
    if (from.loss_scaler.has_value() != training.scaler.has_value())
        throw_invalid_argument({"the state that is loaded ",
                                training.scaler ? "has no dynamic loss scale, but this optimizer scales"
                                                : "has a dynamic loss scale, but this optimizer does not scale",
                                " dynamically; set loss_scaling in the options as it was"});
    return found;
}

} // namespace detail
ADAMANT_END_NAMESPACE
