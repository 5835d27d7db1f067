// SPDX-License-Identifier: Apache-2.0
// Merging the states of several ranks.
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
    auto const at = state.metadata.find(key);
    return at == state.metadata.end() ? "nothing" : in_quotes(at->second.substr(0, 100));
}

// Throws where two states cannot be of one run, apart from their params. what: "state 2".
inline void check_same_run(state_dict const& first, state_dict const& other, std::string const& what)
{
    auto const refuse = [&](std::string const& key, std::string const& in_first, std::string const& in_other) {
        throw_invalid_argument(
            {"states to merge differ: ", key, " is ", in_first, " in state 0 and ", in_other, " in ", what});
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
            auto const at = two->metadata.find(key);
            if (at == two->metadata.end() || at->second != value)
                refuse("metadata " + in_quotes(key), metadata_text(first, key), metadata_text(other, key));
        }
    auto const there = [&](name_index const& names, std::string const& name, char const* kind, bool in_first) {
        auto const at = names.find(name);
        if (!at)
            throw_invalid_argument({"states to merge differ: ", kind, ' ', in_quotes(name), " is in ",
                                    in_first ? "state 0" : what, " only, of these two: state 0 and ", what});
        return *at;
    };
    name_index const first_groups(first.groups, "group");
    name_index const other_groups(other.groups, "group");
    for (parameter_group const& group : first.groups)
        there(other_groups, group.name, "group", true);
    for (parameter_group const& group : other.groups) {
        parameter_group const& ours = first.groups[there(first_groups, group.name, "group", false)];
        std::string const of = " of group " + in_quotes(group.name);
        for (auto const& [key, field] : hyperparameter_numbers)
            if (ours.hyper.*field < group.hyper.*field || ours.hyper.*field > group.hyper.*field)
                refuse(key + of, text_of({ours.hyper.*field}), text_of({group.hyper.*field}));
        auto const mode = [](parameter_group const& g) {
            return std::string(decay_mode_names[static_cast<unsigned>(g.hyper.mode)]);
        };
        if (ours.hyper.mode != group.hyper.mode)
            refuse("mode" + of, mode(ours), mode(group));
        auto const same = [&](char const* key, bool a, bool b) {
            if (a != b)
                refuse(key + of, a ? "true" : "false", b ? "true" : "false");
        };
        same("bias_correction", ours.hyper.bias_correction, group.hyper.bias_correction);
        same("maximize", ours.maximize, group.maximize);
        auto const text = [](bfloat16_rounding const& how) {
            return text_of({rounding_names[static_cast<unsigned>(how.exp_avg_sq)], " (exp_avg_sq), ",
                            rounding_names[static_cast<unsigned>(how.param)], " (param), seed ", how.seed});
        };
        if (ours.hyper.rounding != group.hyper.rounding)
            refuse("rounding" + of, text(ours.hyper.rounding), text(group.hyper.rounding));
    }
}

// The same for a parameter that is in two states, `what` and `other_what`.
inline void check_same_param(state_dict const& of, state_param const& param, std::string const& what,
                             state_dict const& other_of, state_param const& other, std::string const& other_what)
{
    auto const refuse = [&](char const* key, std::string const& here, std::string const& there) {
        throw_invalid_argument({"states to merge differ: the ", key, " of param ", in_quotes(param.name), " is ", here,
                                " in ", what, " and ", there, " in ", other_what});
    };
    if (param.shape != other.shape)
        refuse("shape", shape_text(param.shape), shape_text(other.shape));
    std::string const& group = of.groups[param.group].name;
    std::string const& other_group = other_of.groups[other.group].name;
    if (group != other_group)
        refuse("group", in_quotes(group), in_quotes(other_group));
}

} // namespace detail

/// Joins the states of one run's ranks, which must have the same step, loss scaler, metadata and groups. The result has
/// the params and tensors of all: first the params of the first state in its order, then those that others add. Groups
/// and params may be in any order; names identify them. The tensors point to the same memory as before, which must live
/// on. Throws invalid_argument naming what differs or overlaps; also for no states, and for what validate() refuses.
/// The result may still be partial. Pure; thread-safe.
[[nodiscard]] inline state_dict merge(std::span<state_dict const> states)
{
    detail::default_mode_scope const mode;
    if (states.empty())
        detail::throw_invalid_argument({"there are no states to merge"});
    state_dict result = states.front();
    result.tensors.clear();
    result.params.clear();
    detail::name_index const groups(result.groups, "group");
    std::unordered_map<std::string_view, std::size_t> index; ///< views of names in the states
    std::vector<std::size_t> found_in;
    for (std::size_t i = 0; i < states.size(); ++i) {
        state_dict const& state = states[i];
        std::string const what = "state " + std::to_string(i);
        std::vector<state_tensor> const tensors = detail::checked_tensors(state);
        detail::check_same_run(states.front(), state, what);
        for (state_param const& param : state.params) {
            auto const [at, is_new] = index.emplace(param.name, result.params.size());
            if (is_new) {
                result.params.push_back({param.name, param.shape, groups.find(state.groups[param.group].name).value()});
                found_in.push_back(i);
            } else {
                detail::check_same_param(result, result.params[at->second],
                                         "state " + std::to_string(found_in[at->second]), state, param, what);
            }
        }
        for (state_tensor tensor : tensors) {
            tensor.param = index.at(state.params[tensor.param].name);
            result.tensors.push_back(tensor);
        }
    }
    result.tensors = detail::checked_tensors(result);
    return result;
}

ADAMANT_END_NAMESPACE
