// SPDX-License-Identifier: Apache-2.0
// Opt-in: the bytes of a safetensors file as a zenflow_state. Nothing in them is believed before it was checked.
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
        throw malformed(text_of({in_quotes(key), " is a string, but not a hexadecimal NaN or infinity"}));
    return x;
}

inline shard_dtypes types_from(json const& array, std::string const& what)
{
    shard_dtypes types = {};
    if (array.size() != types.size())
        throw malformed(text_of({what, " has other than ", types.size(), " types"}));
    for (std::size_t i = 0; i < types.size(); ++i) {
        bool known = false;
        for (dtype const each : all_dtypes)
            if (array[i] == json(name(each))) {
                types[i] = each;
                known = true;
            }
        if (!known)
            throw malformed(text_of({what, " has a type that is none"}));
    }
    return types;
}

// The inverse of state_text(). Throws malformed for another structure; what the values mean is validate()'s
// business.
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
        std::string const what = "param " + std::to_string(state.params.size());
        json_members const members(entry, what, 8);
        zenflow_state_param p;
        p.name = members.string("name");
        p.group = members.count("group");
        p.columns = members.count("columns");
        p.all_rows = members.count("all_rows");
        p.first_row = members.count("first_row");
        p.rows = members.count("rows");
        p.types = types_from(members.array("types"), what);
        p.summed = members.count<std::uint64_t>("summed");
        state.params.push_back(std::move(p));
    }
    return state;
}

// The data of a tensor as a member of a param: a pointer to them, or a copy.
inline void take(found_tensor const& found, state_source const*, std::byte const*& array)
{
    array = found.data;
}
inline void take(found_tensor const& found, state_source const*, float const*& array)
{
    if (reinterpret_cast<std::uintptr_t>(found.data) % alignof(float) != 0)
        throw malformed(tensor_text(found.name) + " is not aligned to its elements");
    array = reinterpret_cast<float const*>(found.data);
}
template <class T>
void take(found_tensor const& found, state_source const* source, std::vector<T>& own)
{
    std::size_t const bytes = found.end - found.begin;
    own.resize(bytes / sizeof(T));
    auto* const to = reinterpret_cast<std::byte*>(own.data());
    if (source != nullptr)
        source->read(found.data, bytes, to);
    else if (bytes != 0)
        std::memcpy(to, found.data, bytes);
}

// The tensors of a file by their names, each of which belongs to one param.
class zenflow_tensors {
public:
    explicit zenflow_tensors(std::vector<found_tensor> const& all)
        : all_(all), names_(all, "tensor"), is_taken_(all.size())
    {
    }
    // Throws malformed where it is not there or has another type or shape. Null: it may be missing, and is.
    [[nodiscard]] found_tensor const* find(zenflow_tensor const& wanted)
    {
        auto const at = names_.find(wanted.name);
        if (!at && wanted.may_be_missing)
            return nullptr;
        if (!at)
            throw malformed("there is no " + tensor_text(wanted.name));
        if (all_[*at].type.name != wanted.type.name || all_[*at].shape != wanted.shape)
            throw malformed(text_of({tensor_text(wanted.name), " has dtype ", all_[*at].type.name, " and shape ",
                                     shape_text(all_[*at].shape), ", but by its param ", wanted.type.name, " and ",
                                     shape_text(wanted.shape)}));
        is_taken_[*at] = true;
        return &all_[*at];
    }
    void check_taken() const
    {
        for (std::size_t i = 0; i < all_.size(); ++i)
            if (!is_taken_[i])
                throw malformed(tensor_text(all_[i].name) + " is of no param that the state has");
    }

private:
    std::vector<found_tensor> const& all_;
    name_index names_;
    std::vector<bool> is_taken_;
};

// The state in these bytes, its arrays pointing into them. path: for the messages. source: that the bytes are read
// through, or null.
inline zenflow_state read_zenflow_safetensors(std::string const& path, std::span<std::byte const> file,
                                              state_source const* source)
{
    return naming_file(path, [&] {
        file_contents contents(path, file, source, zenflow_file);
        zenflow_state state = zenflow_state_from_text(contents.state());
        state.position.steps = contents.step();
        state.metadata = contents.metadata();
        try {
            zenflow_tensors tensors(contents.tensors());
            for (zenflow_state_param& p : state.params)
                each_tensor(p, [&](zenflow_tensor const& wanted, auto&) { static_cast<void>(tensors.find(wanted)); });
            tensors.check_taken();
            contents.check_data();
            for (zenflow_state_param& p : state.params) {
                p.source = source;
                each_tensor(p, [&](zenflow_tensor const& wanted, auto& member) {
                    if (found_tensor const* const found = tensors.find(wanted); found != nullptr)
                        take(*found, source, member);
                });
            }
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
