// SPDX-License-Identifier: Apache-2.0
// Opt-in: the layout of a safetensors file of a state_dict. safetensors_file.hpp describes what all files have in
// common.
//
// Tensors of 32 bits come first, then those of 16 bits, then bytes:
//     PARAM.param, PARAM.exp_avg, PARAM.exp_avg_sq    complete arrays, in the param's shape
//     PARAM.exp_avg[BEGIN:END]                        elements of a partial array, one-dimensional
// quantized8 moments are tensors of bytes in the shape [groups, 68]: each group has 64 codes and a float32 scale.
// The metadata's adamant.format_version is "1". adamant.state has groups with every hyperparameter, loss scaler or
// null, and params with name, shape and group.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/detail/io/safetensors_file.hpp>
#include <adamant/detail/io/state_check.hpp>
#include <adamant/detail/io/state_json.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Returns the shape of a tensor in a file: of its elements, or of the bytes of its groups.
inline std::vector<std::size_t> file_shape(std::vector<std::size_t> const& shape, dtype type)
{
    std::size_t const unit = elems_together(type);
    if (unit == 1)
        return shape;
    std::size_t const n = element_count({"", shape});
    return {(n + unit - 1) / unit, size_bytes(type)};
}

// Builds the tensors of a file: adjacent sorted tensors become one.
inline std::vector<file_tensor> build_layout(state_dict const& state, std::vector<state_tensor> const& sorted)
{
    std::vector<file_tensor> result;
    for (std::size_t i = 0, next = 0; i < sorted.size(); i = next) {
        state_tensor const& first = sorted[i];
        std::vector<stored_bytes> pieces;
        std::size_t end = first.begin;
        for (next = i; next < sorted.size() && sorted[next].begin == end && sorted[next].param == first.param &&
                       sorted[next].array == first.array;
             ++next) {
            state_tensor const& piece = sorted[next];
            pieces.push_back({piece.data, array_bytes(piece.type, piece.elements), piece.source});
            end += piece.elements;
        }
        state_param const& param = state.params[first.param];
        std::string name = param.name + '.' + std::string(adamant::name(first.array));
        std::vector<std::size_t> shape = param.shape;
        if (end - first.begin != element_count(param)) {
            name += '[' + std::to_string(first.begin) + ':' + std::to_string(end) + ']';
            shape = {end - first.begin};
        }
        result.push_back({std::move(name), file_type_of(first.type), file_shape(shape, first.type), std::move(pieces)});
    }
    return result;
}

// Returns the file of a state. Throws what validate() throws.
inline file_image image_of(state_dict const& state, file_image::extent needed = file_image::extent::content)
{
    std::vector<state_tensor> const sorted = checked_tensors(state);
    return {{plain_file, state.step, state_text(state), state.metadata}, build_layout(state, sorted), needed};
}

} // namespace detail
ADAMANT_END_NAMESPACE
