// SPDX-License-Identifier: Apache-2.0
// Opt-in: the bytes of a safetensors file of ours, of whatever state: its header, and the check of its data. Nothing in
// them is believed before it was checked.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/io/file_source.hpp>
#include <adamant/detail/io/safetensors_file.hpp>
#include <adamant/detail/io/state_check.hpp>
#include <adamant/detail/io/state_json.hpp>
#include <adamant/detail/io/xxh3.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A tensor as a file's header has it.
struct found_tensor {
    std::string name;
    file_type type = {};
    std::vector<std::size_t> shape = {};
    std::size_t begin = 0; // of its bytes, in the data
    std::size_t end = 0;
    std::byte const* data = nullptr; // once the data were checked
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

// What a header says of a tensor.
inline found_tensor read_entry(std::string const& name, json const& entry)
{
    std::string const what = tensor_text(name);
    json_members const members(entry, what, 3);
    found_tensor found{name};
    found.shape = members.counts("shape");
    std::string const type = members.string("dtype");
    for (file_type const& each : file_types)
        found.type = each.name == type ? each : found.type;
    if (found.type.bytes == 0)
        throw malformed(text_of({what, " has dtype ", type, ", which no file of ours has"}));
    std::size_t const stored = element_count({name, found.shape});
    std::vector<std::size_t> const offsets = members.counts("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] - offsets[0] != stored * found.type.bytes)
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

// The file's name before what is wrong with it.
template <class Read>
auto naming_file(std::string const& path, Read const& read)
{
    try {
        return read();
    } catch (malformed const& error) {
        throw_corrupted({path, " is no safetensors file, or its header is corrupted: ", error.what()});
    }
}

// In naming_file(): its functions throw malformed, too.
class file_contents {
public:
    // The header, whose checksum is right then. path: for the messages. source: that the bytes are read through, or
    // null. Throws invalid_argument for another kind.
    file_contents(std::string const& path, std::span<std::byte const> file, state_source const* source,
                  file_kind const& wanted)
        : path_(path), file_(file), source_(source)
    {
        std::uint64_t length = 0;
        if (file.size() < sizeof length)
            damaged("is truncated or no safetensors file: it has ", file.size(), " bytes");
        copy(sizeof length, &length);
        if (length > max_header_bytes)
            damaged("is no safetensors file, or its header is corrupted: its first 8 bytes say that the header has ",
                    length, " bytes, and ", max_header_bytes, " is the most");
        head_ = sizeof length + length;
        if (head_ > file.size())
            damaged("is truncated or no safetensors file: it has ", file.size(),
                    " bytes, but its header alone would end at ", head_);
        std::string bytes(head_, '\0');
        copy(head_, bytes.data());
        std::string_view const header = std::string_view(bytes).substr(sizeof length);
        if (!header.starts_with('{'))
            throw malformed("it does not begin with {");
        std::size_t digits = bytes.find(header_digest_key, sizeof length);
        if (digits == bytes.npos)
            refuse_foreign(path, header);
        digits += header_digest_key.size();
        if (digits + 16 > head_ || bytes.compare(digits, 16, header_digest(bytes, digits)) != 0)
            throw malformed("its checksum does not match; another program may have written it anew");
        read_header(header, wanted);
    }

    [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
    [[nodiscard]] std::string const& state() const noexcept { return state_; } // JSON
    [[nodiscard]] std::map<std::string, std::string> const& metadata() const noexcept { return metadata_; }
    // In the order of their bytes.
    [[nodiscard]] std::vector<found_tensor> const& tensors() const noexcept { return tensors_; }

    // All data are there, and are those that were written; from here on tensors() says where.
    void check_data()
    {
        // Not head + end, which a hostile header could have overflow.
        std::size_t const data_bytes = file_.size() - head_;
        std::size_t const end = tensors_.empty() ? 0 : tensors_.back().end;
        if (data_bytes < end)
            damaged("is truncated: it has ", data_bytes, " bytes of data, but its header says ", end);
        if (data_bytes > end)
            damaged("has ", data_bytes - end, " bytes after its last tensor");
        json_members const digests(digests_, "adamant.xxh3", tensors_.size());
        stored_reader reader;
        for (found_tensor& found : tensors_) {
            found.data = file_.data() + head_ + found.begin;
            xxh3 hash;
            reader.each_piece({found.data, found.end - found.begin, source_},
                              [&](std::byte const* data, std::size_t bytes) { hash.add(data, bytes); });
            std::string const digest = digest_text(hash.digest());
            if (std::string const expected = digests.string(found.name); digest != expected)
                damaged("is corrupted: ", tensor_text(found.name), " has the checksum ", digest,
                        ", but was written with ", expected);
        }
    }

private:
    template <class... Parts>
    [[noreturn]] void damaged(Parts const&... what) const
    {
        throw_corrupted({path_, ' ', what...});
    }
    void copy(std::size_t count, void* to) const // from the beginning
    {
        if (source_ != nullptr)
            source_->read(file_.data(), count, static_cast<std::byte*>(to));
        else
            std::memcpy(to, file_.data(), count);
    }
    void read_header(std::string_view header, file_kind const& wanted)
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
        check_kind(number("adamant.format_version"), wanted);
        state_ = text("adamant.state");
        step_ = number("adamant.step");
        digests_ = parse_json(text("adamant.xxh3"));
        for (auto const& item : metadata->items())
            if (!item.key().starts_with(own_metadata))
                metadata_.emplace(item.key(), text(item.key()));
        try {
            tensors_ = find_tensors(parsed);
        } catch (invalid_argument const& error) {
            throw malformed(reason(error));
        }
    }
    void check_kind(std::uint64_t version, file_kind const& wanted) const
    {
        if (version == wanted.version)
            return;
        for (file_kind const& each : file_kinds)
            if (each.version == version)
                throw_invalid_argument(
                    {path_, " has the state of ", each.whose, ", but the state of ", wanted.whose, " is to be read"});
        unsigned const newest = std::rbegin(file_kinds)->version;
        if (version > newest)
            throw_unavailable({path_, " has version ", version, " of the format, but this library reads up to ", newest,
                               "; update adamant"});
        throw malformed(text_of({"there is no version ", version, " of the format"}));
    }

    std::string const& path_;
    std::span<std::byte const> file_;
    state_source const* source_;
    std::size_t head_ = 0; // bytes before the data
    std::uint64_t step_ = 0;
    std::string state_;
    std::map<std::string, std::string> metadata_;
    json digests_;
    std::vector<found_tensor> tensors_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
