// SPDX-License-Identifier: Apache-2.0
// Opt-in: the layout of a safetensors file of a zenflow_state. detail/io/safetensors_file.hpp describes what all files
// of this library have in common.
//
// The tensors of a matrix:
//     PARAM.param, PARAM.exp_avg, PARAM.exp_avg_sq    by columns, shape [columns, rows]
//     PARAM.weight_out                                by columns, BF16; only for split master weights. PARAM.param is
//                                                     their 16-bit residual then, U16
//     PARAM.weights                                   by rows, [rows, columns]; missing if the state has none
//     PARAM.sums                                      F32, [rows, columns]; only with deferred gradients
//     PARAM.counts                                    U64, [columns]
//     PARAM.selected, PARAM.publishing                BOOL, [columns]
// A vector has the first four, of shape [rows], and PARAM.counts, of shape [1]. quantized8 moments are tensors of
// bytes, of shape [columns, groups, 68], or [groups, 68] for a vector: each group has 64 codes and a float32 scale. If
// a state has only rows [BEGIN, END), each of these names ends with "[BEGIN:END]".
//
// In the metadata, adamant.format_version is "2", and adamant.state has groups with every hyperparameter, the loss
// scaler or null, position, deferred_norm, and the scalar fields of each param. A non-finite number is stored as the 16
// hex digits of its bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <adamant/zenflow.hpp>
#include <adamant/detail/io/safetensors_file.hpp>
#include <adamant/detail/io/state_json.hpp>
#include <adamant/detail/zenflow/zenflow_state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline constexpr file_type zenflow_counts_type = file_types[0];
inline constexpr file_type zenflow_flags_type = file_types[6];
static_assert(zenflow_counts_type.name == "U64" && zenflow_flags_type.name == "BOOL");

struct zenflow_tensor {
    std::string name;
    file_type type;
    std::vector<std::size_t> shape;
    bool may_be_missing = false; // then its array is null in the state

    [[nodiscard]] std::size_t bytes() const noexcept
    {
        std::size_t bytes = type.bytes;
        for (std::size_t const n : shape)
            bytes *= n;
        return bytes;
    }
};

// Calls visit(tensor, member) for each tensor of a param. The param may be const; the member is a pointer or a vector.
template <class Param, class Visit>
void each_tensor(Param& p, Visit const& visit)
{
    std::string const rows = p.rows == p.all_rows ? "" : text_of({'[', p.first_row, ':', p.first_row + p.rows, ']'});
    auto const named = [&](char const* array) { return text_of({p.name, '.', array, rows}); };
    bool const is_matrix = p.columns != 0;
    for (shard_array::index const which : state_arrays) {
        if (!is_state(p.types, which))
            continue;
        dtype const type = p.types[which];
        std::vector<std::size_t> shape;
        if (is_matrix)
            shape.push_back(p.columns);
        shape.push_back(array_bytes(type, p.rows) / size_bytes(type));
        if (type == dtype::quantized8)
            shape.push_back(size_bytes(type));
        visit(zenflow_tensor{named(shard_array::names[which]), file_type_of(type), std::move(shape)}, p.arrays[which]);
    }
    if (!is_matrix) {
        visit(zenflow_tensor{named("counts"), zenflow_counts_type, {1}}, p.counts);
        return;
    }
    visit(zenflow_tensor{named("weights"), file_type_of(weights_type(p.types)), {p.rows, p.columns}, true}, p.weights);
    if (p.summed != 0)
        visit(zenflow_tensor{named("sums"), file_type_of(dtype::float32), {p.rows, p.columns}}, p.sums);
    visit(zenflow_tensor{named("counts"), zenflow_counts_type, {p.columns}}, p.counts);
    visit(zenflow_tensor{named("selected"), zenflow_flags_type, {p.columns}}, p.selected);
    visit(zenflow_tensor{named("publishing"), zenflow_flags_type, {p.columns}}, p.publishing);
}

// The bytes of a member.
template <class T>
stored_bytes bytes_of(T const* array, std::size_t bytes, state_source const* source) noexcept
{
    return {reinterpret_cast<std::byte const*>(array), bytes, source};
}
template <class T>
stored_bytes bytes_of(std::vector<T> const& values, std::size_t bytes, state_source const*) noexcept
{
    return {reinterpret_cast<std::byte const*>(values.data()), bytes, nullptr};
}

inline json number_json(double x)
{
    if (std::isfinite(x))
        return x;
    return digest_text(std::bit_cast<std::uint64_t>(x));
}

// The state as JSON, without the step, the arrays, and the per-column values. params: indices of the params to write.
inline std::string state_text(zenflow_state const& state, std::vector<std::size_t> const& params)
{
    json entries = json::array();
    for (std::size_t const i : params) {
        zenflow_state_param const& p = state.params[i];
        json types = json::array();
        for (dtype const type : p.types)
            types.push_back(name(type));
        entries.push_back({{"name", p.name},
                           {"group", p.group},
                           {"columns", p.columns},
                           {"all_rows", p.all_rows},
                           {"first_row", p.first_row},
                           {"rows", p.rows},
                           {"types", std::move(types)},
                           {"summed", p.summed}});
    }
    json position = {{"since_selection", state.position.since_selection},
                     {"in_window", state.position.in_window},
                     {"has_selection", state.position.has_selection},
                     {"done_squares", number_json(state.position.done_squares)}};
    return json{{"groups", groups_json(state.groups)},
                {"loss_scaler", loss_scaler_json(state.loss_scaler)},
                {"params", std::move(entries)},
                {"position", std::move(position)},
                {"deferred_norm", number_json(state.deferred_norm)}}
        .dump();
}

// The file of the state. Throws as validate().
inline file_image image_of(zenflow_state const& state, file_image::extent needed = file_image::extent::content)
{
    std::vector<std::size_t> const params = checked_params(state);
    std::vector<file_tensor> tensors;
    for (std::size_t const i : params) {
        zenflow_state_param const& p = state.params[i];
        each_tensor(p, [&](zenflow_tensor tensor, auto const& member) {
            stored_bytes const bytes = bytes_of(member, tensor.bytes(), p.source);
            if (bytes.data != nullptr || !tensor.may_be_missing)
                tensors.push_back({std::move(tensor.name), tensor.type, std::move(tensor.shape), {bytes}});
        });
    }
    return {
        {zenflow_file, state.position.steps, state_text(state, params), state.metadata}, std::move(tensors), needed};
}

} // namespace detail
ADAMANT_END_NAMESPACE
