// SPDX-License-Identifier: Apache-2.0
// The check of a state_dict and the merging of several, for every file format.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/core/error.hpp>
#include <adamant/core/utf8.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// With room for the bytes of any type, and for a sign.
inline constexpr std::size_t max_elements = std::numeric_limits<std::size_t>::max() / 8;

// The numbers of a group by name, to be written, read and compared.
inline constexpr std::array<std::pair<char const*, double hyperparameters::*>, 5> hyperparameter_numbers = {{
    {"lr", &hyperparameters::lr},
    {"beta1", &hyperparameters::beta1},
    {"beta2", &hyperparameters::beta2},
    {"eps", &hyperparameters::eps},
    {"weight_decay", &hyperparameters::weight_decay},
}};

inline constexpr std::string_view decay_mode_names[] = {"unset", "decoupled", "l2"};

inline std::string in_quotes(std::string_view name)
{
    return '\'' + std::string(name) + '\'';
}

// The text of an error, for another one that adds the place.
inline std::string reason(error const& inner)
{
    return std::string(inner.what()).substr(std::string_view("adamant: ").size());
}

inline std::string range_text(std::size_t begin, std::size_t end)
{
    return text_of({'[', begin, ", ", end, ')'});
}

inline std::string shape_text(std::vector<std::size_t> const& shape)
{
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + "]";
}

inline std::string array_text(state_dict const& state, state_tensor const& tensor)
{
    return text_of({name(tensor.array), " of param ", in_quotes(state.params[tensor.param].name)});
}

// Throws invalid_argument for a shape that no memory holds. Zeros do not hide an overflow, because other readers
// multiply from left to right.
inline std::size_t element_count(state_param const& param)
{
    if (param.shape.size() > max_dimensions)
        throw_invalid_argument({"the shape of param ", in_quotes(param.name), " has ", param.shape.size(),
                                " dimensions, but may have ", max_dimensions});
    std::size_t product = 1;
    bool empty = false;
    for (std::size_t const n : param.shape) {
        empty = empty || n == 0;
        if (n != 0 && product > max_elements / n)
            throw_invalid_argument({"the shape of param ", in_quotes(param.name),
                                    " has more elements than fit in memory; was a negative size converted?"});
        product *= n == 0 ? 1 : n;
    }
    return empty ? 0 : product;
}

// Each element's index by its name. Throws for an empty name, one that is not UTF-8, and a name that appears twice.
template <class Named>
std::unordered_map<std::string_view, std::size_t> index_of_names(std::vector<Named> const& all, char const* what)
{
    std::unordered_map<std::string_view, std::size_t> result;
    for (std::size_t i = 0; i < all.size(); ++i) {
        if (all[i].name.empty())
            throw_invalid_argument({what, ' ', i, " has no name"});
        check_utf8(std::string("the name of a ") + what, all[i].name);
        auto const [there, is_new] = result.emplace(all[i].name, i);
        if (!is_new)
            throw_invalid_argument(
                {what, "s ", there->second, " and ", i, " have the same name, ", in_quotes(all[i].name)});
    }
    return result;
}

inline void check_tensor(state_dict const& state, std::vector<std::size_t> const& counts, std::size_t i)
{
    state_tensor const& tensor = state.tensors[i];
    auto const refuse = [&](std::initializer_list<text_part> what) {
        throw_invalid_argument({"tensor ", i, " of the state ", text_of(what)});
    };
    if (tensor.param >= state.params.size())
        refuse({"is for param ", tensor.param, ", but there are ", state.params.size()});
    if (tensor.array > state_array::exp_avg_sq)
        refuse({"is of an array that is not a valid state_array"});
    std::string const what = array_text(state, tensor);
    bool const known = tensor.type == dtype::float32 || tensor.type == dtype::bfloat16 ||
                       (tensor.type == dtype::float16 && tensor.array == state_array::param);
    if (!known)
        refuse({"(", what, ") has elements of type ", name(tensor.type), ", but must have float32",
                tensor.array == state_array::param ? ", bfloat16 or float16" : " or bfloat16"});
    std::size_t const count = counts[tensor.param];
    if (tensor.begin > count || tensor.elements > count - tensor.begin)
        refuse({"(", what, ") has ", tensor.elements, " elements from ", tensor.begin, ", but the param has ", count});
    if (tensor.data == nullptr && tensor.elements != 0)
        refuse({"(", what, ") has no data"});
}

inline constexpr std::string_view own_metadata = "adamant."; // what keys of the library begin with

inline void check_metadata(state_dict const& state)
{
    for (auto const& [key, value] : state.metadata) {
        check_utf8("a key of the metadata", key);
        check_utf8(text_of({"the metadata's text of '", key, "'"}), value);
        if (key.empty() || key.starts_with(own_metadata))
            throw_invalid_argument({"the metadata have the key '", key,
                                    "', but must have keys that are not "
                                    "empty and do not begin with 'adamant.', which are the library's"});
    }
}

// The tensors with elements, and one of each array without elements, sorted by param, array and begin. Throws what
// validate() throws.
inline std::vector<state_tensor> checked_tensors(state_dict const& state)
{
    index_of_names(state.groups, "group");
    for (parameter_group const& group : state.groups)
        try {
            validate(group.hyper);
        } catch (invalid_argument const& error) {
            throw_invalid_argument({"group ", in_quotes(group.name), ": ", reason(error)});
        }
    if (state.loss_scaler && !is_loss_scale(state.loss_scaler->scale))
        throw_invalid_argument(
            {"the loss scaler's scale is ", state.loss_scaler->scale, ", but must be ", loss_scale_rule});
    check_metadata(state);
    index_of_names(state.params, "param");
    std::vector<std::size_t> counts;
    for (state_param const& param : state.params) {
        counts.push_back(element_count(param));
        if (param.group >= state.groups.size())
            throw_invalid_argument({"param ", in_quotes(param.name), " is in group ", param.group, ", but there are ",
                                    state.groups.size()});
    }
    std::vector<state_tensor> result;
    for (std::size_t i = 0; i < state.tensors.size(); ++i) {
        check_tensor(state, counts, i);
        if (state.tensors[i].elements != 0 || counts[state.tensors[i].param] == 0)
            result.push_back(state.tensors[i]);
    }
    auto const place = [](state_tensor const& t) { return std::tuple(t.param, t.array, t.begin, t.elements); };
    std::sort(result.begin(), result.end(), [&](auto const& a, auto const& b) { return place(a) < place(b); });
    for (std::size_t i = 1; i < result.size(); ++i) {
        state_tensor const& a = result[i - 1];
        state_tensor const& b = result[i];
        if (a.param != b.param || a.array != b.array)
            continue;
        if (a.type != b.type)
            throw_invalid_argument({"parts of ", array_text(state, b), " have elements of type ", name(a.type),
                                    " and of type ", name(b.type)});
        if (a.begin + a.elements > b.begin)
            throw_invalid_argument({"parts of ", array_text(state, b), " overlap: elements ",
                                    range_text(a.begin, a.begin + a.elements), " and ",
                                    range_text(b.begin, b.begin + b.elements)});
    }
    // Of an array without elements one is enough.
    auto const same = [](auto const& a, auto const& b) {
        return a.elements == 0 && std::tuple(a.param, a.array) == std::tuple(b.param, b.array);
    };
    result.erase(std::unique(result.begin(), result.end(), same), result.end());
    return result;
}

} // namespace detail

// Throws invalid_argument naming the first problem: hyperparameters that validate() refuses; a loss scale whose inverse
// float does not hold; params or groups without a name, with the same name, or with a name that is not UTF-8; metadata
// that are not UTF-8 or have a key of the library's; a shape that no memory holds or with more than 64 dimensions; an
// index out of range; a tensor past its param's end, of a type that the array cannot have, or without data; parts of
// one array that overlap or differ in type. A state may be partial: one rank's share. Pure; reads no data; thread-safe.
inline void validate(state_dict const& state)
{
    static_cast<void>(detail::checked_tensors(state));
}

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
    auto const there = [&](auto const& names, std::string const& name, char const* kind, bool in_first) {
        auto const at = names.find(name);
        if (at == names.end())
            throw_invalid_argument({"states to merge differ: ", kind, ' ', in_quotes(name), " is in ",
                                    in_first ? "state 0" : what, " only, of these two: state 0 and ", what});
        return at->second;
    };
    auto const first_groups = index_of_names(first.groups, "group");
    auto const other_groups = index_of_names(other.groups, "group");
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

// Joins the states of one run's ranks, which must have the same step, loss scaler, metadata and groups. The result has
// the params and tensors of all: first the params of the first state in its order, then those that others add. Groups
// and params may be in any order; names identify them. The tensors point to the same memory as before, which must live
// on. Throws invalid_argument naming what differs or overlaps; also for no states, and for what validate() refuses. The
// result may still be partial. Pure; thread-safe.
[[nodiscard]] inline state_dict merge(std::span<state_dict const> states)
{
    if (states.empty())
        detail::throw_invalid_argument({"there are no states to merge"});
    state_dict result = states.front();
    result.tensors.clear();
    result.params.clear();
    auto const groups = detail::index_of_names(result.groups, "group");
    std::unordered_map<std::string_view, std::size_t> index; // views of names in the states
    std::vector<std::size_t> found_in;
    for (std::size_t i = 0; i < states.size(); ++i) {
        state_dict const& state = states[i];
        std::string const what = "state " + std::to_string(i);
        std::vector<state_tensor> const tensors = detail::checked_tensors(state);
        detail::check_same_run(states.front(), state, what);
        for (state_param const& param : state.params) {
            auto const [at, is_new] = index.emplace(param.name, result.params.size());
            if (is_new) {
                result.params.push_back({param.name, param.shape, groups.at(state.groups[param.group].name)});
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
