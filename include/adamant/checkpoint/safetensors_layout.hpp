// SPDX-License-Identifier: Apache-2.0
// Opt-in: what a safetensors file of ours looks like, and everything in it that comes before the data.
//
// The tensors, those of 32 bits first, then those of 16, then bytes, so that each is aligned to its elements from the
// data's begin on:
//     PARAM.param, PARAM.exp_avg, PARAM.exp_avg_sq    whole arrays, of the param's shape
//     PARAM.exp_avg[BEGIN:END]                        elements of an array that is there in part only, one-dimensional
// Moments of quantized8 are tensors of bytes, of the shape [groups, 68]: of each group 64 codes, and a float32 scale.
// The metadata, all of them text:
//     adamant.format_version   "1"
//     adamant.step             steps taken, decimal
//     adamant.state            JSON: groups with every hyperparameter, loss scaler or null, params with name, shape
//                              and group
//     adamant.xxh3             JSON: of each tensor the XXH3 of its bytes, 64 bits in 16 hex digits
//     adamant.header_xxh3      the same of all bytes before the data, with 16 zeros in its own place. Later versions of
//                              the format keep this one, so that a flipped bit is no version from the future.
//     anything else            the state's own metadata
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/checkpoint/file_source.hpp>
#include <adamant/checkpoint/state_check.hpp>
#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/checkpoint/state_json.hpp>
#include <adamant/checkpoint/xxh3.hpp>
#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline constexpr std::size_t max_header_bytes = 100'000'000; // the most that other readers accept
// No quote inside a JSON string is without a backslash, so this is a key, whatever the names are.
inline constexpr std::string_view header_digest_key = R"("adamant.header_xxh3":")";
inline constexpr unsigned format_version = 1;

inline constexpr std::pair<std::string_view, dtype> file_types[] = {
    {"F32", dtype::float32}, {"BF16", dtype::bfloat16}, {"F16", dtype::float16}, {"U8", dtype::quantized8}};

// The shape of a tensor in a file: of its elements, or of the bytes of their groups.
inline std::vector<std::size_t> file_shape(std::vector<std::size_t> const& shape, dtype type)
{
    std::size_t const together = elems_together(type);
    if (together == 1)
        return shape;
    std::size_t const n = element_count({"", shape});
    return {(n + together - 1) / together, size_bytes(type)};
}

struct file_tensor {
    std::string name;
    std::vector<std::size_t> shape;
    std::span<state_tensor const> pieces; // adjacent ones, in order

    [[nodiscard]] dtype type() const { return pieces.front().type; }
    [[nodiscard]] std::size_t bytes() const
    {
        std::size_t bytes = 0;
        for (state_tensor const& piece : pieces)
            bytes += array_bytes(piece.type, piece.elements);
        return bytes;
    }
};

// Sorted tensors as those of the file: neighbours joined, those of 32 bits first.
inline std::vector<file_tensor> lay_out(state_dict const& state, std::span<state_tensor const> sorted)
{
    std::vector<file_tensor> result;
    for (std::size_t i = 0, next = 0; i < sorted.size(); i = next) {
        state_tensor const& first = sorted[i];
        std::size_t end = first.begin + first.elements;
        for (next = i + 1; next < sorted.size() && sorted[next].begin == end && sorted[next].param == first.param &&
                           sorted[next].array == first.array;
             ++next)
            end += sorted[next].elements;
        state_param const& param = state.params[first.param];
        file_tensor tensor{param.name + '.' + std::string(name(first.array)), param.shape, sorted.subspan(i, next - i)};
        if (end - first.begin != element_count(param)) {
            tensor.name += '[' + std::to_string(first.begin) + ':' + std::to_string(end) + ']';
            tensor.shape = {end - first.begin};
        }
        result.push_back(std::move(tensor));
    }
    // The pieces are in the order that those of one size are to keep.
    std::sort(result.begin(), result.end(), [](file_tensor const& a, file_tensor const& b) {
        auto const rank = [](dtype type) { return type == dtype::quantized8 ? 1 : size_bytes(type); };
        return std::pair(rank(b.type()), a.pieces.data()) < std::pair(rank(a.type()), b.pieces.data());
    });
    return result;
}

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
    tensor_reader reader;
    for (file_tensor const& tensor : tensors) {
        xxh3 hash;
        for (state_tensor const& piece : tensor.pieces)
            reader.each_piece(piece, [&](std::byte const* data, std::size_t bytes) { hash.add(data, bytes); });
        digests.push_back(digest_text(hash.digest()));
    }
    return digests;
}

// Everything before the data. digests: of each tensor, 16 hex digits.
inline std::string file_head(state_dict const& state, std::vector<file_tensor> const& tensors,
                             std::vector<std::string> const& digests)
{
    json metadata = state.metadata;
    metadata["adamant.format_version"] = std::to_string(format_version);
    metadata["adamant.header_xxh3"] = "0000000000000000";
    metadata["adamant.state"] = state_text(state);
    metadata["adamant.step"] = std::to_string(state.step);
    json digests_by_name = json::object();
    std::string entries;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        file_tensor const& tensor = tensors[i];
        std::size_t const end = begin + tensor.bytes();
        digests_by_name[tensor.name] = digests[i];
        std::string_view type;
        for (auto const& [text, value] : file_types)
            type = value == tensor.type() ? text : type;
        json const entry = {
            {"dtype", type}, {"shape", file_shape(tensor.shape, tensor.type())}, {"data_offsets", {begin, end}}};
        entries += ',' + json(tensor.name).dump() + ':' + entry.dump();
        begin = end;
    }
    metadata["adamant.xxh3"] = digests_by_name.dump();
    std::string header = text_of({"{\"__metadata__\":", metadata.dump(), entries, '}'});
    header.resize((header.size() + 7) / 8 * 8, ' ');
    if (header.size() > max_header_bytes)
        throw_invalid_argument({"the state has ", tensors.size(), " tensors of ", state.params.size(),
                                " params, whose header would have ", header.size(), " bytes; a safetensors file has ",
                                max_header_bytes, " at most. Save the params in several files"});
    std::uint64_t const length = header.size();
    std::string head(sizeof length, '\0');
    std::memcpy(head.data(), &length, sizeof length); // little-endian, as core/abi.hpp sees to
    head += header;
    std::size_t const digits = head.find(header_digest_key) + header_digest_key.size();
    return head.replace(digits, 16, header_digest(head, digits));
}

// What a state's file holds. The state and its arrays must stay as they are.
class file_image {
public:
    enum class of { size, content }; // only the size: no data are read
    explicit file_image(state_dict const& state, of what = of::content)
        : sorted_(checked_tensors(state)), tensors_(lay_out(state, sorted_)),
          head_(file_head(state, tensors_,
                          what == of::content ? digests_of(tensors_)
                                              : std::vector<std::string>(tensors_.size(), std::string(16, '0'))))
    {
    }
    file_image(file_image const&) = delete;
    file_image& operator=(file_image const&) = delete;

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
        tensor_reader reader;
        for (file_tensor const& tensor : tensors_)
            for (state_tensor const& piece : tensor.pieces)
                reader.each_piece(piece, write);
    }

private:
    std::vector<state_tensor> sorted_;
    std::vector<file_tensor> tensors_;
    std::string head_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
