// SPDX-License-Identifier: Apache-2.0
// Opt-in: the bytes of a safetensors file as a state_dict. Nothing in them is believed before it was checked.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <adamant/checkpoint/file_source.hpp>
#include <adamant/checkpoint/safetensors_layout.hpp>
#include <adamant/checkpoint/state_check.hpp>
#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/checkpoint/state_json.hpp>
#include <adamant/checkpoint/xxh3.hpp>
#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A tensor as a file's header has it.
struct found_tensor {
    std::string name;
    std::vector<std::size_t> shape;
    std::size_t begin = 0; // of its bytes, in the data
    std::size_t end = 0;
    state_tensor tensor = {};
};

inline std::string tensor_text(std::string const& name)
{
    return "tensor " + in_quotes(name);
}

// All of a text as a decimal number that has no other spelling.
inline std::optional<std::uint64_t> decimal(std::string_view text)
{
    std::uint64_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || std::to_string(value) != text)
        return {};
    return value;
}

// Finds what the name says it is: param, array, and which elements.
inline void place(found_tensor& found, state_dict const& state, name_index const& params)
{
    std::string const what = tensor_text(found.name);
    std::string_view rest = found.name;
    std::optional<std::uint64_t> begin, end;
    if (rest.ends_with(']')) {
        std::size_t const open = rest.rfind('[');
        std::size_t const colon = rest.rfind(':');
        if (open == rest.npos || colon == rest.npos || colon < open)
            throw malformed(what + " has a name that ends in ']' but in no range");
        begin = decimal(rest.substr(open + 1, colon - open - 1));
        end = decimal(rest.substr(colon + 1, rest.size() - colon - 2));
        if (!begin || !end || *begin >= *end)
            throw malformed(what + " has a name with a range that is none");
        rest = rest.substr(0, open);
    }
    std::size_t const dot = rest.rfind('.');
    bool known = false;
    for (state_array const array : {state_array::param, state_array::exp_avg, state_array::exp_avg_sq})
        if (dot != rest.npos && rest.substr(dot + 1) == name(array)) {
            found.tensor.array = array;
            known = true;
        }
    auto const param = params.find(rest.substr(0, known ? dot : 0));
    if (!param)
        throw malformed(what + " is of no param that the state has");
    found.tensor.param = *param;
    std::vector<std::size_t> shape = state.params[*param].shape;
    if (end) {
        found.tensor.begin = *begin;
        shape = {*end - *begin};
    }
    if (found.shape != file_shape(shape, found.tensor.type))
        throw malformed(what + " has another shape than its param or its range");
    found.tensor.elements = element_count({found.name, std::move(shape)});
}

// What a header says of a tensor; its place in the state is still to be found.
inline found_tensor read_entry(std::string const& name, json const& entry)
{
    std::string const what = tensor_text(name);
    json_members const members(entry, what, 3);
    found_tensor found{name, members.counts("shape")};
    std::string const type = members.string("dtype");
    found.tensor.type = dtype::none;
    for (auto const& [text, value] : file_types)
        found.tensor.type = text == type ? value : found.tensor.type;
    if (found.tensor.type == dtype::none)
        throw malformed(text_of({what, " has dtype ", type, ", but must have F32, BF16, F16 or U8"}));
    std::size_t const stored = element_count({name, found.shape}); // bytes, of moments in groups
    std::size_t const each = found.tensor.type == dtype::quantized8 ? 1 : size_bytes(found.tensor.type);
    std::vector<std::size_t> const offsets = members.counts("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] - offsets[0] != stored * each)
        throw malformed(what + " has data_offsets that do not match its shape and dtype");
    found.begin = offsets[0];
    found.end = offsets[1];
    return found;
}

// The tensors of a header, in the order of their bytes, which follow each other from the data's begin on.
inline std::vector<found_tensor> find_tensors(json const& header)
{
    std::vector<found_tensor> result;
    for (auto const& item : header.items())
        if (item.key() != "__metadata__")
            result.push_back(read_entry(item.key(), item.value()));
    std::sort(result.begin(), result.end(), [](found_tensor const& a, found_tensor const& b) {
        return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::size_t end = 0;
    for (found_tensor const& found : result) {
        if (found.begin != end)
            throw malformed(text_of({tensor_text(found.name), " begins at byte ", found.begin,
                                     " of the data, but those before it end at ", end}));
        end = found.end;
    }
    return result;
}

// A file without our checksum of the header: not ours, or ours no longer.
[[noreturn]] inline void refuse_foreign(std::string const& path, std::string_view header)
{
    json const parsed = parse_json(header);
    std::string keys;
    std::size_t count = 0;
    auto const metadata = parsed.find("__metadata__");
    if (metadata != parsed.end() && metadata->is_object())
        for (auto const& item : metadata->items()) {
            if (item.key().starts_with("adamant."))
                throw malformed("it has " + item.key().substr(0, 100) +
                                " but no adamant.header_xxh3 as we write it; "
                                "another program may have written it anew");
            if (++count <= 5)
                keys += (keys.empty() ? "" : ", ") + in_quotes(item.key().substr(0, 100));
        }
    throw_invalid_argument({path, " is a safetensors file that adamant has not written: its metadata has ",
                            count == 0 ? "no keys" : text_of({count, " keys (", keys, count > 5 ? ", ...)" : ")"}),
                            ", none of them adamant's. Give a file of save_safetensors()"});
}

struct header_parts {
    state_dict state;                  // without tensors
    std::vector<found_tensor> tensors; // in the order of their bytes
    json digests;
};

// A header whose checksum is right.
inline header_parts read_header(std::string const& path, std::string_view header)
{
    json const parsed = parse_json(header);
    auto const metadata = parsed.find("__metadata__");
    if (metadata == parsed.end() || !metadata->is_object())
        throw malformed("it has no __metadata__");
    auto const text = [&](std::string const& key) -> std::string const& {
        auto const found = metadata->find(key);
        if (found == metadata->end() || !found->is_string())
            throw malformed("its metadata has no text as " + key.substr(0, 100));
        return found->get_ref<std::string const&>();
    };
    auto const number = [&](char const* key) {
        auto const result = decimal(text(key));
        if (!result)
            throw malformed(std::string(key) + " is no number");
        return *result;
    };
    std::uint64_t const version = number("adamant.format_version");
    if (version > format_version)
        throw_unavailable({path, " has version ", version, " of the format, but this library reads up to ",
                           format_version, "; update adamant"});
    if (version != format_version)
        throw malformed(text_of({"there is no version ", version, " of the format"}));
    header_parts result{state_from_text(text("adamant.state")), {}, parse_json(text("adamant.xxh3"))};
    result.state.step = number("adamant.step");
    for (auto const& item : metadata->items())
        if (!item.key().starts_with(own_metadata))
            result.state.metadata.emplace(item.key(), text(item.key()));
    try {
        result.tensors = find_tensors(parsed);
        name_index const params(result.state.params, "param");
        for (found_tensor& found : result.tensors)
            place(found, result.state, params);
    } catch (invalid_argument const& error) {
        throw malformed(reason(error));
    }
    return result;
}

// Empty where the bytes are those that were written.
inline std::string digest_problem(found_tensor const& found, tensor_reader& reader, json_members const& digests)
{
    xxh3 hash;
    reader.each_piece(found.tensor, [&](std::byte const* data, std::size_t bytes) { hash.add(data, bytes); });
    std::string const digest = digest_text(hash.digest());
    if (std::string const expected = digests.string(found.name); digest != expected)
        return text_of({"is corrupted: ", tensor_text(found.name), " has the checksum ", digest,
                        ", but was written with ", expected});
    return {};
}

// The state in these bytes, its tensors pointing into them. path: for the messages. source: that the bytes are read
// through, or null.
inline state_dict read_safetensors(std::string const& path, std::span<std::byte const> file, state_source const* source)
{
    auto const damaged = [&](std::string const& what) { return corrupted(text_of({"adamant: ", path, ' ', what})); };
    auto const copy = [&](std::size_t count, void* to) { // from the beginning
        if (source != nullptr)
            source->read(file.data(), count, static_cast<std::byte*>(to));
        else
            std::memcpy(to, file.data(), count);
    };
    std::uint64_t length = 0;
    if (file.size() < sizeof length)
        throw damaged(text_of({"is truncated or no safetensors file: it has ", file.size(), " bytes"}));
    copy(sizeof length, &length);
    if (length > max_header_bytes)
        throw damaged(
            text_of({"is no safetensors file, or its header is corrupted: its first 8 bytes say that the header has ",
                     length, " bytes, and ", max_header_bytes, " is the most"}));
    std::size_t const head = sizeof length + length;
    if (head > file.size())
        throw damaged(text_of({"is truncated or no safetensors file: it has ", file.size(),
                               " bytes, but its header alone would end at ", head}));
    std::string bytes(head, '\0');
    copy(head, bytes.data());
    std::string_view const header = std::string_view(bytes).substr(sizeof length);
    try {
        if (!header.starts_with('{'))
            throw malformed("it does not begin with {");
        std::size_t digits = bytes.find(header_digest_key, sizeof length);
        if (digits == bytes.npos)
            refuse_foreign(path, header);
        digits += header_digest_key.size();
        if (digits + 16 > head || bytes.compare(digits, 16, header_digest(bytes, digits)) != 0)
            throw malformed("its checksum does not match; another program may have written it anew");

        header_parts parts = read_header(path, header);
        // Not head + end, which a hostile header could have overflow.
        std::size_t const data_bytes = file.size() - head;
        std::size_t const end = parts.tensors.empty() ? 0 : parts.tensors.back().end;
        if (data_bytes < end)
            throw damaged(text_of({"is truncated: it has ", data_bytes, " bytes of data, but its header says ", end}));
        if (data_bytes > end)
            throw damaged(text_of({"has ", data_bytes - end, " bytes after its last tensor"}));
        json_members const digests(parts.digests, "adamant.xxh3", parts.tensors.size());
        tensor_reader reader;
        for (found_tensor& found : parts.tensors) {
            found.tensor.data = file.data() + head + found.begin;
            found.tensor.source = source;
            if (std::string const problem = digest_problem(found, reader, digests); !problem.empty())
                throw damaged(problem);
            parts.state.tensors.push_back(found.tensor);
        }
        try {
            parts.state.tensors = checked_tensors(parts.state);
        } catch (invalid_argument const& error) {
            throw malformed(reason(error));
        }
        return std::move(parts.state);
    } catch (malformed const& error) {
        throw damaged(std::string("is no safetensors file, or its header is corrupted: ") + error.what());
    }
}
inline state_dict read_safetensors(std::string const& path, file_source const& file)
{
    return read_safetensors(path, {file.data(), file.size()}, &file);
}

} // namespace detail
ADAMANT_END_NAMESPACE
