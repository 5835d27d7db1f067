// SPDX-License-Identifier: Apache-2.0
// Validation of a state_dict, for every file format.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/core/utf8.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Leaves room for the bytes of any type, and for a sign.
inline constexpr std::size_t max_elements = std::numeric_limits<std::size_t>::max() / 8;

// The numbers of a group by name, for writing, reading and comparison.
inline constexpr std::array<std::pair<char const*, double hyperparameters::*>, 5> hyperparameter_numbers = {{
    {"lr", &hyperparameters::lr},
    {"beta1", &hyperparameters::beta1},
    {"beta2", &hyperparameters::beta2},
    {"eps", &hyperparameters::eps},
    {"weight_decay", &hyperparameters::weight_decay},
}};

inline constexpr std::string_view decay_mode_names[] = {"unset", "decoupled", "l2"};
inline constexpr std::string_view rounding_names[] = {"nearest", "stochastic"};

inline std::string in_quotes(std::string_view name)
{
    return text_of({'\'', name, '\''});
}

// Returns the message of an error without its prefix, for an error that adds context.
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
        text += text_of({i == 0 ? "" : ", ", shape[i]});
    return text + ']';
}

inline std::string array_text(state_dict const& state, state_tensor const& tensor)
{
    return text_of({name(tensor.array), " of param ", in_quotes(state.params[tensor.param].name)});
}

// Throws invalid_argument if only one of a state and the optimizer that loads it has a dynamic loss scale.
inline void check_has_scaler(bool saved, bool used)
{
    if (saved != used)
        throw_invalid_argument({"cannot load the state: ",
                                used ? "it has no dynamic loss scale, but this optimizer does"
                                     : "it has a dynamic loss scale, but this optimizer does not",
                                ". Set loss_scaling in the options as in the run that saved it."});
}

// Throws invalid_argument for a shape with more than max_elements. A zero does not hide an overflow, because other
// readers multiply from left to right.
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
                                    " has more elements than fit in memory. Was a negative size converted?"});
        product *= n == 0 ? 1 : n;
    }
    return empty ? 0 : product;
}

// Index of named objects. A view: the names must outlive it.
class name_index {
public:
    // Throws invalid_argument for a name that is empty, not UTF-8 or duplicate. noun: for error messages, "group".
    template <class Named>
    name_index(std::vector<Named> const& all, char const* noun)
    {
        names_.reserve(all.size());
        for (Named const& object : all)
            names_.push_back(object.name);
        sort(noun);
    }
    [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const noexcept
    {
        auto const match = std::lower_bound(order_.begin(), order_.end(), name,
                                            [&](std::size_t i, std::string_view target) { return names_[i] < target; });
        if (match == order_.end() || names_[*match] != name)
            return std::nullopt;
        return *match;
    }

private:
    void sort(char const* noun)
    {
        for (std::size_t i = 0; i < names_.size(); ++i) {
            if (names_[i].empty())
                throw_invalid_argument({noun, ' ', i, " has no name"});
            check_utf8(text_of({"the name of a ", noun}), names_[i]);
        }
        order_ = sorted_order(names_, std::less<>());
        for (std::size_t i = 1; i < order_.size(); ++i)
            if (names_[order_[i - 1]] == names_[order_[i]])
                throw_invalid_argument({noun, "s ", order_[i - 1], " and ", order_[i], " have the same name, ",
                                        in_quotes(names_[order_[i]])});
    }

    std::vector<std::string_view> names_;
    std::vector<std::size_t> order_; // of the names
};

inline void check_tensor(state_dict const& state, std::vector<std::size_t> const& counts, std::size_t i)
{
    state_tensor const& tensor = state.tensors[i];
    auto const refuse = [&](std::initializer_list<text_part> problem) {
        throw_invalid_argument({"tensor ", i, " of the state ", text_of(problem)});
    };
    if (tensor.param >= state.params.size())
        refuse({"is for param ", tensor.param, ", but there are ", state.params.size()});
    if (tensor.array > state_array::exp_avg_sq)
        refuse({"is of an array that is not a valid state_array"});
    std::string const subject = array_text(state, tensor);
    bool const known = tensor.array == state_array::param ? is_element_type(tensor.type) : is_moment_type(tensor.type);
    if (!known)
        refuse({"(", subject, ") has elements of type ", name(tensor.type), ", but must have float32, bfloat16 or ",
                tensor.array == state_array::param ? "float16" : "quantized8"});
    std::size_t const count = counts[tensor.param];
    if (tensor.begin > count || tensor.elements > count - tensor.begin)
        refuse({"(", subject, ") has ", counted(tensor.elements, "element"), " from ", tensor.begin,
                ", but the param has ", count});
    std::size_t const unit = elems_together(tensor.type);
    if (tensor.begin % unit != 0 || (tensor.elements % unit != 0 && tensor.begin + tensor.elements != count))
        refuse({"(", subject, ") has elements ", range_text(tensor.begin, tensor.begin + tensor.elements), " of ",
                count, ", but groups of ", unit, " elements are not cut"});
    if (tensor.data == nullptr && tensor.source == nullptr && tensor.elements != 0)
        refuse({"(", subject, ") has no data"});
}

inline constexpr std::string_view reserved_prefix = "adamant."; // of the library's metadata keys

inline void check_metadata(std::map<std::string, std::string> const& metadata)
{
    for (auto const& [key, value] : metadata) {
        check_utf8("a key of the metadata", key);
        check_utf8(text_of({"the metadata's text of '", key, "'"}), value);
        if (key.empty() || key.starts_with(reserved_prefix))
            throw_invalid_argument({"the metadata have the key '", key,
                                    "', but must have keys that are not empty and do not begin with 'adamant.', which "
                                    "are the library's"});
    }
}

inline void check_groups(std::vector<parameter_group> const& groups)
{
    name_index(groups, "group");
    for (parameter_group const& group : groups)
        try {
            validate(group.hyper);
        } catch (invalid_argument const& error) {
            throw_invalid_argument({"group ", in_quotes(group.name), ": ", reason(error)});
        }
}
inline void check_loss_scaler(std::optional<loss_scaler_state> const& scaler)
{
    if (scaler && !is_loss_scale(scaler->scale))
        throw_invalid_argument({"the loss scaler's scale is ", scaler->scale, ", but must be ", loss_scale_rule});
}

// Throws invalid_argument for a number of steps that no step may follow.
inline void check_steps(std::uint64_t steps)
{
    if (steps == std::numeric_limits<std::uint64_t>::max())
        throw_invalid_argument({"the number of steps is ", steps, ", but must be less than 2^64 - 1"});
}

// Returns the tensors with elements, and one for each array without elements, sorted by param, array and begin. Throws
// what validate() throws.
inline std::vector<state_tensor> checked_tensors(state_dict const& state)
{
    default_mode_scope const mode;
    check_groups(state.groups);
    check_loss_scaler(state.loss_scaler);
    check_metadata(state.metadata);
    name_index(state.params, "param");
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
    sort_stably(result, [](state_tensor const& a, state_tensor const& b) {
        if (a.param != b.param)
            return a.param < b.param;
        if (a.array != b.array)
            return a.array < b.array;
        return a.begin != b.begin ? a.begin < b.begin : a.elements < b.elements;
    });
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
    // Keep only one tensor of an array without elements.
    std::size_t kept = 0;
    for (state_tensor const& t : result) {
        state_tensor const* const last = kept == 0 ? nullptr : &result[kept - 1];
        if (last == nullptr || last->elements != 0 || last->param != t.param || last->array != t.array)
            result[kept++] = t;
    }
    result.resize(kept);
    return result;
}

} // namespace detail

/// Checks a state, which may be partial: one rank's share. Pure; reads no data; thread-safe.
/// @throws invalid_argument naming the first problem: hyperparameters that validate() refuses; a loss scale outside
/// [2^-125, 2^125]; params or groups without a name, with the same name, or with a name that is not UTF-8; metadata
/// that are not UTF-8 or have a reserved key; a shape that no memory holds or with more than 64 dimensions; an index
/// out of range; a tensor past its param's end, of a type that the array cannot have, or without data; parts of one
/// array that overlap or differ in type
inline void validate(state_dict const& state)
{
    static_cast<void>(detail::checked_tensors(state));
}

ADAMANT_END_NAMESPACE
