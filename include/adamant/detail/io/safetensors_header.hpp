// SPDX-License-Identifier: Apache-2.0
// Opt-in: reads the header of a safetensors file of any kind of state, and checks its data. Input is untrusted: every
// value is checked before use.
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

// A tensor of a file's header.
struct header_tensor {
    std::string name;
    file_type type = {};
    std::vector<std::size_t> shape = {};
    std::size_t begin = 0; // range of bytes in the data
    std::size_t end = 0;
    std::byte const* data = nullptr;
};

inline std::string tensor_text(std::string const& name)
{
    return "tensor " + in_quotes(name);
}

// Returns the number if all of the text is its canonical decimal spelling.
inline std::optional<std::uint64_t> decimal(std::string_view text)
{
    std::uint64_t value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || std::to_string(value) != text)
        return {};
    return value;
}

// Parses a header's entry of a tensor.
inline header_tensor read_entry(std::string const& name, json const& entry)
{
    std::string const subject = tensor_text(name);
    json_members const members(entry, subject, 3);
    header_tensor tensor{name};
    tensor.shape = members.counts("shape");
    std::string const type = members.string("dtype");
    for (file_type const& type_of_file : file_types)
        tensor.type = type_of_file.name == type ? type_of_file : tensor.type;
    if (tensor.type.bytes == 0)
        throw malformed(text_of({subject, " has dtype ", type, ", which no file of ours has"}));
    std::size_t const stored = element_count({name, tensor.shape});
    std::vector<std::size_t> const offsets = members.counts("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] - offsets[0] != stored * tensor.type.bytes)
        throw malformed(subject + " has data_offsets that do not match its shape and dtype");
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
    return tensor;
}

// Parses the tensors of a header and sorts them by offset. Their bytes must be adjacent and begin at offset 0.
inline std::vector<header_tensor> find_tensors(json const& header)
{
    std::vector<header_tensor> result;
    for (auto const& item : header.items())
        if (item.key() != "__metadata__")
            result.push_back(read_entry(item.key(), item.value()));
    std::sort(result.begin(), result.end(), [](header_tensor const& a, header_tensor const& b) {
        return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::size_t end = 0;
    for (header_tensor const& tensor : result) {
        if (tensor.begin != end)
            throw malformed(text_of({tensor_text(tensor.name), " begins at byte ", tensor.begin,
                                     " of the data, but those before it end at ", end}));
        end = tensor.end;
    }
    return result;
}

// Throws for a file without the header checksum: another program wrote or changed it.
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

// Calls read() and adds the file's name to the message of malformed.
template <class Read>
auto add_file_name(std::string const& path, Read const& read)
{
    try {
        return read();
    } catch (malformed const& error) {
        throw_corrupted({path, " is no safetensors file, or its header is corrupted: ", error.what()});
    }
}

// The checked content of a file. Call its functions in add_file_name(), because they also throw malformed.
class file_contents {
public:
    // Reads the header, and checks all checksums. path: for error messages. source: reads the bytes; null to read
    // memory directly. Throws invalid_argument for another kind of state.
    file_contents(std::string const& path, std::span<std::byte const> file, state_source const* source,
                  file_kind const& expected_kind)
        : path_(path), file_(file), source_(source)
    {
        std::uint64_t length = 0;
        if (file.size() < sizeof length)
            fail("is truncated or no safetensors file: it has ", file.size(), " bytes");
        copy(sizeof length, &length);
        if (length > max_header_bytes)
            fail("is no safetensors file, or its header is corrupted: its first 8 bytes say that the header has ",
                 length, " bytes, and ", max_header_bytes, " is the most");
        data_offset_ = sizeof length + length;
        if (data_offset_ > file.size())
            fail("is truncated or no safetensors file: it has ", file.size(),
                 " bytes, but its header alone would end at ", data_offset_);
        std::string bytes(data_offset_, '\0');
        copy(data_offset_, bytes.data());
        std::string_view const header = std::string_view(bytes).substr(sizeof length);
        if (!header.starts_with('{'))
            throw malformed("it does not begin with {");
        std::size_t digits = bytes.find(header_digest_key, sizeof length);
        if (digits == bytes.npos)
            refuse_foreign(path, header);
        digits += header_digest_key.size();
        if (digits + 16 > data_offset_ || bytes.compare(digits, 16, header_digest(bytes, digits)) != 0)
            throw malformed("its checksum does not match; another program may have written it anew");
        read_header(header, expected_kind);
        check_data();
    }

    [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
    [[nodiscard]] std::string const& state() const noexcept { return state_; } // JSON
    [[nodiscard]] std::map<std::string, std::string> const& metadata() const noexcept { return metadata_; }
    // Returns the tensors in the order of their bytes.
    [[nodiscard]] std::vector<header_tensor> const& tensors() const noexcept { return tensors_; }

private:
    template <class... Parts>
    [[noreturn]] void fail(Parts const&... problem) const
    {
        throw_corrupted({path_, ' ', problem...});
    }
    // Checks the size and the checksums of the data, and sets header_tensor::data.
    void check_data()
    {
        // A difference, because with a hostile header the sum of data_offset_ and end could overflow.
        std::size_t const data_bytes = file_.size() - data_offset_;
        std::size_t const end = tensors_.empty() ? 0 : tensors_.back().end;
        if (data_bytes < end)
            fail("is truncated: it has ", data_bytes, " bytes of data, but its header says ", end);
        if (data_bytes > end)
            fail("has ", data_bytes - end, " bytes after its last tensor");
        json_members const digests(digests_, "adamant.xxh3", tensors_.size());
        stored_reader reader;
        for (header_tensor& tensor : tensors_) {
            tensor.data = file_.data() + data_offset_ + tensor.begin;
            xxh3 hash;
            reader.each_piece({tensor.data, tensor.end - tensor.begin, source_},
                              [&](std::byte const* data, std::size_t bytes) { hash.add(data, bytes); });
            std::string const digest = digest_text(hash.digest());
            if (std::string const expected = digests.string(tensor.name); digest != expected)
                fail("is corrupted: ", tensor_text(tensor.name), " has the checksum ", digest,
                     ", but was written with ", expected);
        }
    }
    void copy(std::size_t count, void* dst) const // from the beginning
    {
        if (source_ != nullptr)
            source_->read(file_.data(), count, static_cast<std::byte*>(dst));
        else
            std::memcpy(dst, file_.data(), count);
    }
    void read_header(std::string_view header, file_kind const& expected_kind)
    {
        json const parsed = parse_json(header);
        auto const metadata = parsed.find("__metadata__");
        if (metadata == parsed.end() || !metadata->is_object())
            throw malformed("it has no __metadata__");
        auto const text = [&](std::string const& key) -> std::string const& {
            auto const match = metadata->find(key);
            if (match == metadata->end() || !match->is_string())
                throw malformed("its metadata has no text as " + key.substr(0, 100));
            return match->get_ref<std::string const&>();
        };
        auto const number = [&](char const* key) {
            auto const result = decimal(text(key));
            if (!result)
                throw malformed(std::string(key) + " is no number");
            return *result;
        };
        check_kind(number("adamant.format_version"), expected_kind);
        state_ = text("adamant.state");
        step_ = number("adamant.step");
        digests_ = parse_json(text("adamant.xxh3"));
        for (auto const& item : metadata->items())
            if (!item.key().starts_with(reserved_prefix))
                metadata_.emplace(item.key(), text(item.key()));
        try {
            tensors_ = find_tensors(parsed);
        } catch (invalid_argument const& error) {
            throw malformed(reason(error));
        }
    }
    void check_kind(std::uint64_t version, file_kind const& expected_kind) const
    {
        if (version == expected_kind.version)
            return;
        for (file_kind const& kind : file_kinds)
            if (kind.version == version)
                throw_invalid_argument(
                    {path_, " has the state of ", kind.owner, ", but must have the state of ", expected_kind.owner});
        unsigned const newest = std::rbegin(file_kinds)->version;
        if (version > newest)
            throw_unavailable({path_, " has version ", version, " of the format, but this library reads up to ", newest,
                               "; update adamant"});
        throw malformed(text_of({"there is no version ", version, " of the format"}));
    }

    std::string const& path_;
    std::span<std::byte const> file_;
    state_source const* source_;
    std::size_t data_offset_ = 0;
    std::uint64_t step_ = 0;
    std::string state_;
    std::map<std::string, std::string> metadata_;
    json digests_;
    std::vector<header_tensor> tensors_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
