// SPDX-License-Identifier: Apache-2.0
// Merges the states of the ranks of a run into one.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/io/state_check.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline std::string metadata_text(state_dict const& state, std::string const& key)
{
    auto const entry = state.metadata.find(key);
    return entry == state.metadata.end() ? "missing" : in_quotes(entry->second.substr(0, 100));
}

// Throws if two states cannot belong to one run; their params are not compared. other_label names the second state, as
// in "state 2"; the first one is state 0.
inline void check_same_run(state_dict const& first, state_dict const& other, std::string const& other_label)
{
    auto const refuse = [&](std::string const& key, std::string const& first_value, std::string const& other_value) {
        throw_invalid_argument({"cannot merge states: ", key, " is ", first_value, " in state 0 and ", other_value,
                                " in ", other_label, ". Merge states of one step of one run."});
    };
    if (first.step != other.step)
        refuse("step", std::to_string(first.step), std::to_string(other.step));
    if (first.loss_scaler != other.loss_scaler) {
        auto const scaler = [](state_dict const& state) -> std::string {
            if (!state.loss_scaler)
                return "none";
            return text_of({"(scale ", state.loss_scaler->scale, ", good_steps ", state.loss_scaler->good_steps,
                            ", hysteresis_left ", state.loss_scaler->hysteresis_left, ')'});
        };
        refuse("the loss scaler", scaler(first), scaler(other));
    }
    for (auto const& [one, two] : {std::pair(&first, &other), std::pair(&other, &first)})
        for (auto const& [key, value] : one->metadata) {
            auto const entry = two->metadata.find(key);
            if (entry == two->metadata.end() || entry->second != value)
                refuse("metadata " + in_quotes(key), metadata_text(first, key), metadata_text(other, key));
        }
    auto const find_group = [&](name_index const& names, std::string const& name, bool in_first) {
        auto const group = names.find(name);
        if (!group)
            throw_invalid_argument({"cannot merge states: group ", in_quotes(name), " is in ",
                                    in_first ? "state 0" : other_label, ", but not in ",
                                    in_first ? other_label : "state 0", ". Merge states of one run."});
        return *group;
    };
    name_index const first_groups(first.groups, "group");
    name_index const other_groups(other.groups, "group");
    for (parameter_group const& group : first.groups)
        find_group(other_groups, group.name, true);
    for (parameter_group const& group : other.groups) {
        parameter_group const& first_group = first.groups[find_group(first_groups, group.name, false)];
        std::string const suffix = " of group " + in_quotes(group.name);
        for (auto const& [key, field] : hyperparameter_numbers)
            if (first_group.hyper.*field < group.hyper.*field || first_group.hyper.*field > group.hyper.*field)
                refuse(key + suffix, text_of({first_group.hyper.*field}), text_of({group.hyper.*field}));
        auto const mode = [](parameter_group const& g) {
            return std::string(decay_mode_names[static_cast<unsigned>(g.hyper.mode)]);
        };
        if (first_group.hyper.mode != group.hyper.mode)
            refuse("mode" + suffix, mode(first_group), mode(group));
        auto const check_flag = [&](char const* key, bool first_flag, bool other_flag) {
            if (first_flag != other_flag)
                refuse(key + suffix, first_flag ? "true" : "false", other_flag ? "true" : "false");
        };
        check_flag("bias_correction", first_group.hyper.bias_correction, group.hyper.bias_correction);
        check_flag("maximize", first_group.maximize, group.maximize);
        auto const text = [](bfloat16_rounding const& rounding) {
            return text_of({rounding_names[static_cast<unsigned>(rounding.exp_avg_sq)], " (exp_avg_sq), ",
                            rounding_names[static_cast<unsigned>(rounding.param)], " (param), seed ", rounding.seed});
        };
        if (first_group.hyper.rounding != group.hyper.rounding)
            refuse("rounding" + suffix, text(first_group.hyper.rounding), text(group.hyper.rounding));
    }
}

// Throws if a parameter that is in two states differs between them. The labels name the states.
inline void check_same_param(state_dict const& state, state_param const& param, std::string const& label,
                             state_dict const& other_state, state_param const& other, std::string const& other_label)
{
    auto const refuse = [&](char const* key, std::string const& value, std::string const& other_value) {
        throw_invalid_argument({"cannot merge states: the ", key, " of param ", in_quotes(param.name), " is ", value,
                                " in ", label, " and ", other_value, " in ", other_label,
                                ". Merge states of one run."});
    };
    if (param.shape != other.shape)
        refuse("shape", shape_text(param.shape), shape_text(other.shape));
    std::string const& group = state.groups[param.group].name;
    std::string const& other_group = other_state.groups[other.group].name;
    if (group != other_group)
        refuse("group", in_quotes(group), in_quotes(other_group));
}

} // namespace detail

/// Merges the states of all ranks of a run. Pure; thread-safe.
///
/// All states must have the same step, loss scaler, metadata and groups. Groups and params may be in any order, because
/// names identify them. The result has the params and tensors of all states: first the params of the first state in its
/// order, then those that later states add. It may still lack parts of parameters. Its tensors keep the pointers of the
/// states to memory, sources and targets, which must outlive the result; it shares the owners of all states.
/// @throws invalid_argument naming what differs or overlaps, for no states, and if validate() rejects a state.
[[nodiscard]] inline state_dict merge(std::span<state_dict const> states)
{
    detail::default_mode_scope const mode;
    if (states.empty())
        detail::throw_invalid_argument({"cannot merge states: there are no states. Pass at least one."});
    state_dict result = states.front();
    result.tensors.clear();
    result.params.clear();
    detail::name_index const groups(result.groups, "group");
    std::unordered_map<std::string_view, std::size_t> index; // views of names in the states
    std::vector<std::size_t> origins;                        // index of the first state with each param
    for (std::size_t i = 0; i < states.size(); ++i) {
        state_dict const& state = states[i];
        std::string const label = "state " + std::to_string(i);
        std::vector<state_tensor> const tensors = detail::checked_tensors(state);
        detail::check_same_run(states.front(), state, label);
        for (state_param const& param : state.params) {
            auto const [entry, is_new] = index.emplace(param.name, result.params.size());
            if (is_new) {
                result.params.push_back({param.name, param.shape, groups.find(state.groups[param.group].name).value()});
                origins.push_back(i);
            } else {
                detail::check_same_param(result, result.params[entry->second],
                                         "state " + std::to_string(origins[entry->second]), state, param, label);
            }
        }
        if (i != 0)
            result.owners.insert(result.owners.end(), state.owners.begin(), state.owners.end());
        for (state_tensor tensor : tensors) {
            tensor.param = index.at(state.params[tensor.param].name);
            result.tensors.push_back(tensor);
        }
    }
    result.tensors = detail::checked_tensors(result);
    return result;
}

ADAMANT_END_NAMESPACE
