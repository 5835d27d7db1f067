// SPDX-License-Identifier: Apache-2.0
// Opt-in: parses the bytes of a safetensors file into a zenflow_state. Validates everything before using it.
#pragma once

#include <bit>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/io/file_source.hpp>
#include <adamant/detail/io/safetensors_header.hpp>
#include <adamant/detail/io/state_check.hpp>
#include <adamant/detail/io/state_json.hpp>
#include <adamant/detail/zenflow/zenflow_safetensors_layout.hpp>
#include <adamant/detail/zenflow/zenflow_state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The inverse of number_json().
inline double number_from(json_members const& members, std::string const& key)
{
    if (!members.at(key).is_string())
        return members.number(key);
    std::string const text = members.string(key);
    std::uint64_t bits = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
    auto const x = std::bit_cast<double>(bits);
    if (error != std::errc() || end != text.data() + text.size() || digest_text(bits) != text || std::isfinite(x))
        throw malformed(text_of({in_quotes(key), " is a string, but not a hex-encoded NaN or infinity"}));
    return x;
}

inline shard_dtypes types_from(json const& array, std::string const& param)
{
    shard_dtypes types = {};
    if (array.size() != types.size())
        throw malformed(text_of({param, " does not have ", types.size(), " types"}));
    for (std::size_t i = 0; i < types.size(); ++i) {
        bool known = false;
        for (dtype const each : all_dtypes)
            if (array[i] == json(name(each))) {
                types[i] = each;
                known = true;
            }
        if (!known)
            throw malformed(text_of({param, " has an unknown type"}));
    }
    return types;
}

// The inverse of state_text(). Throws malformed if the structure differs. validate() checks the values.
inline zenflow_state zenflow_state_from_text(std::string_view text)
{
    json const parsed = parse_json(text);
    json_members const all(parsed, "the state", 5);
    zenflow_state state;
    state.loss_scaler = loss_scaler_from(all.at("loss_scaler"));
    state.groups = groups_from(all.array("groups"));
    state.deferred_norm = number_from(all, "deferred_norm");
    json_members const position(all.at("position"), "the position", 4);
    state.position.since_selection = position.count<std::uint64_t>("since_selection");
    state.position.in_window = position.count<std::uint64_t>("in_window");
    state.position.has_selection = position.boolean("has_selection");
    state.position.done_squares = number_from(position, "done_squares");
    for (json const& entry : all.array("params")) {
        std::string const param = "param " + std::to_string(state.params.size());
        json_members const members(entry, param, 8);
        zenflow_state_param p;
        p.name = members.string("name");
        p.group = members.count("group");
        p.columns = members.count("columns");
        p.all_rows = members.count("all_rows");
        p.first_row = members.count("first_row");
        p.rows = members.count("rows");
        p.types = types_from(members.array("types"), param);
        if (!are_shard_types(p.types)) // the sizes of tensors follow from them
            throw malformed("param " + in_quotes(p.name) + " has an unsupported combination of types");
        p.summed = members.count<std::uint64_t>("summed");
        state.params.push_back(std::move(p));
    }
    return state;
}

// Sets a member of a param to the data of a tensor: a pointer to the data, or a copy for vectors.
inline void take(header_tensor const& tensor, state_source const*, std::byte const*& array)
{
    array = tensor.data;
}
inline void take(header_tensor const& tensor, state_source const*, float const*& array)
{
    if (reinterpret_cast<std::uintptr_t>(tensor.data) % alignof(float) != 0)
        throw malformed(tensor_text(tensor.name) + " is not aligned to its elements");
    array = reinterpret_cast<float const*>(tensor.data);
}
template <class T>
void take(header_tensor const& tensor, state_source const* source, std::vector<T>& values)
{
    std::size_t const bytes = tensor.end - tensor.begin;
    values.resize(bytes / sizeof(T));
    auto* const target = reinterpret_cast<std::byte*>(values.data());
    if (source != nullptr)
        source->read(tensor.data, bytes, target);
    else if (bytes != 0)
        std::memcpy(target, tensor.data, bytes);
}

// The tensors of a file by name. Each must belong to one param.
class zenflow_tensors {
public:
    explicit zenflow_tensors(std::vector<header_tensor> const& all)
        : all_(all), names_(all, "tensor"), is_taken_(all.size())
    {
    }
    // Returns null if an optional tensor is missing. Throws malformed if a required tensor is missing, or if the type
    // or shape differs.
    [[nodiscard]] header_tensor const* find(zenflow_tensor const& wanted)
    {
        auto const index = names_.find(wanted.name);
        if (!index && wanted.may_be_missing)
            return nullptr;
        if (!index)
            throw malformed("there is no " + tensor_text(wanted.name));
        if (all_[*index].type.name != wanted.type.name || all_[*index].shape != wanted.shape)
            throw malformed(text_of({tensor_text(wanted.name), " has dtype ", all_[*index].type.name, " and shape ",
                                     shape_text(all_[*index].shape), ", but its param requires ", wanted.type.name,
                                     " and ", shape_text(wanted.shape)}));
        is_taken_[*index] = true;
        return &all_[*index];
    }
    void check_taken() const
    {
        for (std::size_t i = 0; i < all_.size(); ++i)
            if (!is_taken_[i])
                throw malformed(tensor_text(all_[i].name) + " belongs to no param of the state");
    }

private:
    std::vector<header_tensor> const& all_;
    name_index names_;
    std::vector<bool> is_taken_;
};

// Parses the state in these bytes. Its arrays point into them. path: for error messages. source: reads the bytes of
// arrays; null to read memory directly.
inline zenflow_state read_zenflow_safetensors(std::string const& path, std::span<std::byte const> file,
                                              state_source const* source)
{
    return add_file_name(path, [&] {
        file_contents const contents(path, file, source, zenflow_file);
        zenflow_state state = zenflow_state_from_text(contents.state());
        state.position.steps = contents.step();
        state.metadata = contents.metadata();
        try {
            zenflow_tensors tensors(contents.tensors());
            for (zenflow_state_param& p : state.params) {
                p.source = source;
                each_tensor(p, [&](zenflow_tensor const& wanted, auto& member) {
                    if (header_tensor const* const tensor = tensors.find(wanted); tensor != nullptr)
                        take(*tensor, source, member);
                });
            }
            tensors.check_taken();
            validate(state);
        } catch (invalid_argument const& error) {
            throw malformed(reason(error));
        }
        return state;
    });
}
inline zenflow_state read_zenflow_safetensors(std::string const& path, file_source const& file)
{
    return read_zenflow_safetensors(path, {file.data(), file.size()}, &file);
}

} // namespace detail
ADAMANT_END_NAMESPACE
