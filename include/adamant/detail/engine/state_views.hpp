// SPDX-License-Identifier: Apache-2.0
// The state of an optimizer as views of its shards' arrays, and the copies that load() makes from another state.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/engine/history.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/io/restore.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

[[nodiscard]] inline state_dict views_of(registry const& shard_registry, training_state const& training)
{
    namespace arrays = shard_array;
    param_positions const& positions = shard_registry.positions();
    state_dict all{.step = training.steps,
                   .loss_scaler = training.scaler,
                   .groups = shard_registry.groups(),
                   .params = positions.params(),
                   .tensors = {}};
    for (std::size_t i = 0; i < shard_registry.size(); ++i) {
        offload_shard const& s = shard_registry[i].shard;
        for (auto const& [array, kept] :
             {std::pair{arrays::param, state_array::param}, std::pair{arrays::exp_avg, state_array::exp_avg},
              std::pair{arrays::exp_avg_sq, state_array::exp_avg_sq}})
            if (auto const& split = shard_registry.split_param(i); split != nullptr && array == arrays::param) {
                all.tensors.push_back({positions[i].param, kept, dtype::float32, positions[i].begin, s.size(), nullptr,
                                       split.get(), split.get()});
                all.owners.push_back(split);
            } else
                all.tensors.push_back({positions[i].param, kept, s.type(array), positions[i].begin, s.size(),
                                       s.size() == 0 ? nullptr : s.data(array)});
    }
    return all;
}

// A checked plan for loading a state. Making it changes nothing.
struct state_to_load {
    std::vector<state_copy> copies;
    std::vector<parameter_group> groups;
    training_state training;
    std::vector<std::byte> room = {}; // scratch memory for any of the copies

    // Throws what reading the state does.
    void copy_all()
    {
        for (state_copy const& copy : copies)
            copy.run(room);
    }
};
// Throws invalid_argument that names what is missing or does not fit.
[[nodiscard]] inline state_to_load fit_state(state_dict const& state, registry const& shard_registry,
                                             training_state const& training)
{
    check_steps(state.step);
    state_to_load result{plan_copies(state, views_of(shard_registry, training)),
                         shard_registry.groups(),
                         {state.step, state.loss_scaler}};
    std::size_t room = 0;
    for (state_copy const& copy : result.copies)
        room = std::max(room, copy.buffer_bytes());
    result.room.resize(room);
    name_index const by_name(state.groups, "group");
    for (parameter_group& group : result.groups) {
        auto const index = by_name.find(group.name);
        if (!index)
            throw_invalid_argument({"cannot load the state: it has no parameter group '", group.name, "'"});
        group = state.groups[*index];
    }
    check_has_scaler(state.loss_scaler.has_value(), training.scaler.has_value());
    return result;
}

} // namespace detail
ADAMANT_END_NAMESPACE
