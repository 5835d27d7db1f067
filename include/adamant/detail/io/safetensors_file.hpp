// SPDX-License-Identifier: Apache-2.0
// Opt-in: a safetensors file of ours of whatever state, and how it is written: names, shapes and bytes of tensors, and
// metadata, all of them text:
//     adamant.format_version   which kind of state it is, see below
//     adamant.step             steps taken, decimal
//     adamant.state            JSON: what of the state is no tensor
//     adamant.xxh3             JSON: of each tensor the XXH3 of its bytes, 64 bits in 16 hex digits
//     adamant.header_xxh3      the same of all bytes before the data, with 16 zeros in its own place. Later versions of
//                              the format keep this one, so that a flipped bit is no version from the future.
//     anything else            the state's own metadata
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/dtype.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/io/durable_file.hpp>
#include <adamant/detail/io/file_source.hpp>
#include <adamant/detail/io/state_json.hpp>
#include <adamant/detail/io/xxh3.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline constexpr std::size_t max_header_bytes = 100'000'000; // the most that other readers accept
// No quote inside a JSON string is without a backslash, so this is a key, whatever the names are.
inline constexpr std::string_view header_digest_key = R"("adamant.header_xxh3":")";

// A version for each kind: a library from before there was one names the version rather than a damage.
struct file_kind {
    unsigned version;
    std::string_view whose; // state
};
inline constexpr file_kind file_kinds[] = {{1, "an optimizer that defers no gradients"},
                                           {2, "an optimizer that defers gradients, ZenFlow's"}};
inline constexpr file_kind plain_file = file_kinds[0];
inline constexpr file_kind zenflow_file = file_kinds[1];

// The element types in files.
struct file_type {
    std::string_view name;
    std::size_t bytes;
};
inline constexpr file_type file_types[] = {{"U64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2},
                                           {"U16", 2}, {"U8", 1},  {"BOOL", 1}};

// The type that an array has in a file: 8-bit moments are the bytes of their groups, residuals are integers.
constexpr file_type file_type_of(dtype type) noexcept
{
    return visit_storage(type, [](auto format) { return file_type{format.file_type, format.file_bytes}; });
}

struct file_tensor {
    std::string name;
    file_type type;
    std::vector<std::size_t> shape;
    std::vector<stored_bytes> pieces; // in order

    [[nodiscard]] std::size_t bytes() const noexcept
    {
        std::size_t bytes = 0;
        for (stored_bytes const& piece : pieces)
            bytes += piece.bytes;
        return bytes;
    }
};

// What of a state is no tensor.
struct file_texts {
    file_kind kind;
    std::uint64_t step;
    std::string state; // JSON
    std::map<std::string, std::string> const& metadata;
};

// Of the first bytes of a file, header and its length, with zeros for the digits of this digest.
inline std::string header_digest(std::string_view bytes, std::size_t digits_at)
{
    xxh3 hash;
    hash.add(bytes.substr(0, digits_at));
    hash.add(std::string_view("0000000000000000"));
    hash.add(bytes.substr(digits_at + 16));
    return digest_text(hash.digest());
}

// The XXH3 of each tensor's bytes.
inline std::vector<std::string> digests_of(std::vector<file_tensor> const& tensors)
{
    std::vector<std::string> digests;
    stored_reader reader;
    for (file_tensor const& tensor : tensors) {
        xxh3 hash;
        for (stored_bytes const& piece : tensor.pieces)
            reader.each_piece(piece, [&](std::byte const* data, std::size_t bytes) { hash.add(data, bytes); });
        digests.push_back(digest_text(hash.digest()));
    }
    return digests;
}

// Everything before the data. digests: of each tensor, 16 hex digits.
inline std::string file_head(file_texts const& texts, std::vector<file_tensor> const& tensors,
                             std::vector<std::string> const& digests)
{
    json metadata = texts.metadata;
    metadata["adamant.format_version"] = std::to_string(texts.kind.version);
    metadata["adamant.header_xxh3"] = "0000000000000000";
    metadata["adamant.state"] = texts.state;
    metadata["adamant.step"] = std::to_string(texts.step);
    json digests_by_name = json::object();
    std::string entries;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        file_tensor const& tensor = tensors[i];
        std::size_t const end = begin + tensor.bytes();
        digests_by_name[tensor.name] = digests[i];
        json const entry = {{"dtype", tensor.type.name}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
        entries += ',' + json(tensor.name).dump() + ':' + entry.dump();
        begin = end;
    }
    metadata["adamant.xxh3"] = digests_by_name.dump();
    std::string header = text_of({"{\"__metadata__\":", metadata.dump(), entries, '}'});
    header.resize((header.size() + 7) / 8 * 8, ' ');
    if (header.size() > max_header_bytes)
        throw_invalid_argument({"the state has ", counted(tensors.size(), "tensor"), ", whose header would have ",
                                header.size(), " bytes; a safetensors file has ", max_header_bytes,
                                " at most. Save the params in several files"});
    std::uint64_t const length = header.size();
    std::string head(sizeof length, '\0');
    std::memcpy(head.data(), &length, sizeof length); // little-endian, as detail/core/abi.hpp sees to
    head += header;
    std::size_t const digits = head.find(header_digest_key) + header_digest_key.size();
    return head.replace(digits, 16, header_digest(head, digits));
}

// What a state's file holds. The state's arrays must stay as they are.
class file_image {
public:
    enum class of { size, content }; // only the size: no data are read

    // The tensors' names must differ. Those with the largest elements come first, so that each is aligned to its
    // elements from the data's begin on; else they keep their order.
    file_image(file_texts const& texts, std::vector<file_tensor> tensors, of what) : tensors_(std::move(tensors))
    {
        sort_stably(tensors_, [](file_tensor const& a, file_tensor const& b) { return a.type.bytes > b.type.bytes; });
        head_ = file_head(texts, tensors_,
                          what == of::content ? digests_of(tensors_)
                                              : std::vector<std::string>(tensors_.size(), std::string(16, '0')));
    }

    [[nodiscard]] std::size_t bytes() const
    {
        std::size_t bytes = head_.size();
        for (file_tensor const& tensor : tensors_)
            bytes += tensor.bytes();
        return bytes;
    }
    // write(data, bytes) for all of it, in order. Throws what it throws, and what reading a state of a file throws.
    template <class Write>
    void each_piece(Write const& write) const
    {
        write(reinterpret_cast<std::byte const*>(head_.data()), head_.size());
        stored_reader reader;
        for (file_tensor const& tensor : tensors_)
            for (stored_bytes const& piece : tensor.pieces)
                reader.each_piece(piece, write);
    }

private:
    std::vector<file_tensor> tensors_;
    std::string head_;
};

inline save_report save_image(file_image const& image, std::filesystem::path const& path)
{
    durable_file file(path);
    image.each_piece([&](std::byte const* data, std::size_t bytes) { file.write(data, bytes); });
    return file.commit();
}

// Returns how many bytes were written. Throws invalid_argument where there is too little memory.
inline std::size_t write_image(file_image const& image, std::span<std::byte> to)
{
    std::size_t const needed = image.bytes();
    if (to.size() < needed)
        throw_invalid_argument({"a state of ", needed, " bytes is to be written to memory of ", to.size(), " bytes"});
    image.each_piece([&](std::byte const* data, std::size_t bytes) {
        if (bytes != 0)
            std::memcpy(to.data(), data, bytes);
        to = to.subspan(bytes);
    });
    return needed;
}

} // namespace detail
ADAMANT_END_NAMESPACE
