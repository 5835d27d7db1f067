// SPDX-License-Identifier: Apache-2.0
// Opt-in: parses a safetensors file to a state_dict. Input is untrusted: every value is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/io/file_source.hpp>
#include <adamant/detail/io/safetensors_header.hpp>
#include <adamant/detail/io/safetensors_layout.hpp>
#include <adamant/detail/io/state_check.hpp>
#include <adamant/detail/io/state_json.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Parses a tensor's name to its param, array and range of elements. Does not set the data.
inline state_tensor parse_tensor(header_tensor const& tensor, state_dict const& state, name_index const& params)
{
    std::string const subject = tensor_text(tensor.name);
    state_tensor result;
    result.type = dtype::none;
    for (dtype const type : all_dtypes) // split masters are saved joined, as float32
        if (type != dtype::split_float32 && file_type_of(type).name == tensor.type.name)
            result.type = type;
    if (result.type == dtype::none)
        throw malformed(text_of({subject, " has dtype ", tensor.type.name, ", but must have F32, BF16, F16 or U8"}));
    std::string_view rest = tensor.name;
    std::optional<std::uint64_t> begin, end;
    if (rest.ends_with(']')) {
        std::size_t const open = rest.rfind('[');
        std::size_t const colon = rest.rfind(':');
        if (open == rest.npos || colon == rest.npos || colon < open)
            throw malformed(subject + " has a name that ends in ']' but in no range");
        begin = decimal(rest.substr(open + 1, colon - open - 1));
        end = decimal(rest.substr(colon + 1, rest.size() - colon - 2));
        if (!begin || !end || *begin >= *end)
            throw malformed(subject + " has a name with a range that is none");
        rest = rest.substr(0, open);
    }
    std::size_t const dot = rest.rfind('.');
    bool known = false;
    for (state_array const array : {state_array::param, state_array::exp_avg, state_array::exp_avg_sq})
        if (dot != rest.npos && rest.substr(dot + 1) == name(array)) {
            result.array = array;
            known = true;
        }
    auto const param = params.find(rest.substr(0, known ? dot : 0));
    if (!param)
        throw malformed(subject + " is of no param that the state has");
    result.param = *param;
    std::vector<std::size_t> shape = state.params[*param].shape;
    if (end) {
        result.begin = *begin;
        shape = {*end - *begin};
    }
    if (tensor.shape != file_shape(shape, result.type))
        throw malformed(subject + " has another shape than its param or its range");
    result.elements = element_count({tensor.name, std::move(shape)});
    return result;
}

// Parses the state in these bytes. Its tensors point into them. path: for error messages. source: reads the bytes;
// null to read memory directly.
inline state_dict read_safetensors(std::string const& path, std::span<std::byte const> file, state_source const* source)
{
    return add_file_name(path, [&] {
        file_contents const contents(path, file, source, plain_file);
        state_dict state = state_from_text(contents.state());
        state.step = contents.step();
        state.metadata = contents.metadata();
        try {
            name_index const params(state.params, "param");
            for (header_tensor const& tensor : contents.tensors()) {
                state.tensors.push_back(parse_tensor(tensor, state, params));
                state.tensors.back().data = tensor.data;
                state.tensors.back().source = source;
            }
            state.tensors = checked_tensors(state);
        } catch (invalid_argument const& error) {
            throw malformed(reason(error));
        }
        return state;
    });
}
inline state_dict read_safetensors(std::string const& path, file_source const& file)
{
    return read_safetensors(path, {file.data(), file.size()}, &file);
}

} // namespace detail
ADAMANT_END_NAMESPACE
