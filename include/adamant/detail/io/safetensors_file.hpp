// SPDX-License-Identifier: Apache-2.0
// Opt-in: the safetensors files of all kinds of state, and how they are written. A file has names, shapes and bytes of
// tensors, and these metadata, all of them text:
//     adamant.format_version   version of the kind of state, see file_kinds
//     adamant.step             number of steps, decimal
//     adamant.state            JSON: the state without its tensors
//     adamant.xxh3             JSON: the XXH3 of each tensor's bytes, 64 bits in 16 hex digits
//     adamant.header_xxh3      the XXH3 of all bytes before the data, with 16 zeros in place of these digits. Later
//                              versions of the format keep this entry, so that a flipped bit in the version is found.
//     other keys               the user's metadata
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
// Quotes inside a JSON string have a backslash, so a match of this text is always the key.
inline constexpr std::string_view header_digest_key = R"("adamant.header_xxh3":")";

// Each kind has a version of its own, so that a library that does not know the kind reports its version, not
// corruption.
struct file_kind {
    unsigned version;
    std::string_view owner; // of the state, for error messages
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

// Returns the type of an array in a file: 8-bit moments are the bytes of their groups, residuals are integers.
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

// A state without its tensors.
struct file_texts {
    file_kind kind;
    std::uint64_t step;
    std::string state; // JSON
    std::map<std::string, std::string> const& metadata;
};

// Returns the digest of a file's header and its length, with zeros for the digits of this digest.
inline std::string header_digest(std::string_view bytes, std::size_t digits_begin)
{
    xxh3 hash;
    hash.add(bytes.substr(0, digits_begin));
    hash.add(std::string_view("0000000000000000"));
    hash.add(bytes.substr(digits_begin + 16));
    return digest_text(hash.digest());
}

// Returns the XXH3 of each tensor's bytes.
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

// Returns the bytes before the data. digests: 16 hex digits for each tensor.
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
    std::memcpy(head.data(), &length, sizeof length); // little-endian: detail/core/abi.hpp requires it
    head += header;
    std::size_t const digits = head.find(header_digest_key) + header_digest_key.size();
    return head.replace(digits, 16, header_digest(head, digits));
}

// The content of a state's file. A view: the state's arrays must not change.
class file_image {
public:
    enum class extent { size, content }; // size: only bytes() is valid, and no data are read

    // The tensors' names must differ. Tensors are sorted by element size, the largest first, so that all are aligned to
    // their elements; the sort is stable.
    file_image(file_texts const& texts, std::vector<file_tensor> tensors, extent needed) : tensors_(std::move(tensors))
    {
        sort_stably(tensors_, [](file_tensor const& a, file_tensor const& b) { return a.type.bytes > b.type.bytes; });
        head_ = file_head(texts, tensors_,
                          needed == extent::content ? digests_of(tensors_)
                                                    : std::vector<std::string>(tensors_.size(), std::string(16, '0')));
    }

    [[nodiscard]] std::size_t bytes() const
    {
        std::size_t bytes = head_.size();
        for (file_tensor const& tensor : tensors_)
            bytes += tensor.bytes();
        return bytes;
    }
    // Calls write(data, bytes) for all pieces in order. Throws what write() and reading a state of a file throw.
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

// Returns the number of bytes written. Throws invalid_argument if `dst` is too small.
inline std::size_t write_image(file_image const& image, std::span<std::byte> dst)
{
    std::size_t const needed = image.bytes();
    if (dst.size() < needed)
        throw_invalid_argument({"cannot write a state of ", needed, " bytes to memory of ", dst.size(), " bytes"});
    image.each_piece([&](std::byte const* data, std::size_t bytes) {
        if (bytes != 0)
            std::memcpy(dst.data(), data, bytes);
        dst = dst.subspan(bytes);
    });
    return needed;
}

} // namespace detail
ADAMANT_END_NAMESPACE
