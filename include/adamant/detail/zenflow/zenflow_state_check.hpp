// SPDX-License-Identifier: Apache-2.0
// Validation of a zenflow_state, independent of the file format.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/formats.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/core/utf8.hpp>
#include <adamant/detail/io/state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The type of a matrix's weights.
constexpr dtype weights_type(shard_dtypes const& types) noexcept
{
    return types[types[shard_array::weight_out] == dtype::none ? shard_array::param : shard_array::weight_out];
}

// The concepts of formats.hpp as a run-time check.
constexpr bool are_shard_types(shard_dtypes const& types) noexcept
{
    using enum dtype;
    auto const [param, grad, exp_avg, exp_avg_sq, weight_out] = types;
    if (!is_element_type(grad) || !is_moment_type(exp_avg) || !is_moment_type(exp_avg_sq) ||
        (exp_avg == quantized8) != (exp_avg_sq == quantized8))
        return false;
    if (param == split_float32)
        return weight_out == bfloat16;
    return is_element_type(param) &&
           (weight_out == none || (param == float32 && weight_out != float32 && is_element_type(weight_out)));
}

inline void check_param(zenflow_state_param const& p, std::size_t number, std::size_t groups)
{
    if (p.name.empty())
        throw_invalid_argument({"param ", number, " has no name"});
    check_utf8("the name of a param", p.name);
    auto const refuse = [&](std::initializer_list<text_part> problem) {
        throw_invalid_argument({"param ", in_quotes(p.name), ' ', text_of(problem)});
    };
    if (p.group >= groups)
        refuse({"is in group ", p.group, ", but there are ", counted(groups, "group")});
    if (!are_shard_types(p.types))
        refuse({"has an unsupported combination of types: ", name(p.types[0]), ", ", name(p.types[1]), ", ",
                name(p.types[2]), ", ", name(p.types[3]), " and ", name(p.types[4])});
    bool const is_matrix = p.columns != 0;
    static_cast<void>(
        element_count({p.name, is_matrix ? std::vector{p.all_rows, p.columns} : std::vector{p.all_rows}}));
    if (p.first_row > p.all_rows || p.rows > p.all_rows - p.first_row)
        refuse({"has rows ", range_text(p.first_row, p.first_row + p.rows), ", but the whole param has ", p.all_rows});
    std::size_t const together = elems_together(p.types);
    bool const ends = !is_matrix && p.first_row + p.rows == p.all_rows;
    if (p.first_row % together != 0 || (p.rows % together != 0 && !ends))
        refuse({"has rows ", range_text(p.first_row, p.first_row + p.rows), " of ", p.all_rows,
                ", which split a group of ", together, " rows"});
    if (p.counts.size() != (is_matrix ? p.columns : 1) || p.selected.size() != p.columns ||
        p.publishing.size() != p.columns)
        refuse({"has ", counted(p.columns, "column"), ", but ", counted(p.counts.size(), "update count"), ", ",
                counted(p.selected.size(), "`selected` flag"), " and ",
                counted(p.publishing.size(), "`publishing` flag")});
    for (auto const* const flags : {&p.selected, &p.publishing})
        if (std::any_of(flags->begin(), flags->end(), [](auto flag) { return flag > 1; }))
            refuse({"has a column flag that is neither 0 nor 1"});
    for (shard_array::index const which : state_arrays)
        if (is_state(p.types, which) && p.arrays[which] == nullptr && p.rows != 0)
            refuse({"has no data for ", shard_array::names[which]});
    if (is_matrix && p.summed != 0 && p.sums == nullptr && p.rows != 0)
        refuse({"has deferred gradients of ", counted(p.summed, "step"), ", but no sums"});
}

// Indices of the params to write: all, but of several params without rows at one position only the first. Throws as
// validate().
inline std::vector<std::size_t> checked_params(zenflow_state const& state)
{
    default_mode_scope const mode;
    check_groups(state.groups);
    check_loss_scaler(state.loss_scaler);
    check_metadata(state.metadata);
    for (std::size_t i = 0; i < state.params.size(); ++i)
        check_param(state.params[i], i, state.groups.size());
    std::vector<std::size_t> const order =
        sorted_order(state.params, [](zenflow_state_param const& a, zenflow_state_param const& b) {
            if (int const less = a.name.compare(b.name); less != 0)
                return less < 0;
            return a.first_row != b.first_row ? a.first_row < b.first_row : a.rows < b.rows;
        });
    std::vector<std::size_t> result;
    for (std::size_t k = 0; k < order.size(); ++k) {
        zenflow_state_param const& p = state.params[order[k]];
        zenflow_state_param const* const last = k == 0 ? nullptr : &state.params[order[k - 1]];
        if (last == nullptr || last->name != p.name) {
            result.push_back(order[k]);
            continue;
        }
        if (last->columns != p.columns || last->all_rows != p.all_rows || last->types != p.types ||
            last->group != p.group)
            throw_invalid_argument({"params ", order[k - 1], " and ", order[k], " both belong to ", in_quotes(p.name),
                                    ", but differ in columns, rows, types or group"});
        if (last->first_row + last->rows > p.first_row)
            throw_invalid_argument({"params ", order[k - 1], " and ", order[k], " both belong to ", in_quotes(p.name),
                                    " and overlap: rows ", range_text(last->first_row, last->first_row + last->rows),
                                    " and ", range_text(p.first_row, p.first_row + p.rows)});
        if (last->first_row != p.first_row || last->rows != p.rows)
            result.push_back(order[k]);
    }
    std::sort(result.begin(), result.end());
    return result;
}

} // namespace detail

/// Checks a state, which may be that of one rank. Reads no arrays; thread-safe.
/// @throws invalid_argument naming the first problem: invalid hyperparameters; a loss scale outside [2^-125, 2^125];
/// groups without a name or with equal names; params without a name; names and metadata that are not UTF-8, or metadata
/// with a key reserved for the library; an index out of range; rows past the param's end, or that overlap; an
/// unsupported combination of types; a wrong number of counts or flags; null arrays
inline void validate(zenflow_state const& state)
{
    static_cast<void>(detail::checked_params(state));
}

ADAMANT_END_NAMESPACE
