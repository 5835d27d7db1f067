// SPDX-License-Identifier: Apache-2.0
// Safetensors files with other headers, whose checksums are right or not.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

#include <adamant/detail/io/safetensors_file.hpp>

#include "catch.hpp"

namespace test {

using nlohmann::json;

inline std::size_t header_bytes(std::string const& file)
{
    std::uint64_t length = 0;
    std::memcpy(&length, file.data(), 8);
    return static_cast<std::size_t>(length);
}
inline json header_of(std::string const& file)
{
    return json::parse(file.substr(8, header_bytes(file)));
}
inline json tensor_entry(char const* type, json const& shape, std::size_t begin, std::size_t end)
{
    return {{"dtype", type}, {"shape", shape}, {"data_offsets", {begin, end}}};
}

// The file with another header, whose checksum is right if it has a place for one.
inline std::string with_header(std::string const& file, std::string const& header)
{
    std::uint64_t const length = header.size();
    std::string head(8, '\0');
    std::memcpy(head.data(), &length, 8);
    head += header;
    std::size_t const key = head.find(adamant::detail::header_digest_key);
    if (key != head.npos && key + adamant::detail::header_digest_key.size() + 16 <= head.size()) {
        std::size_t const digits = key + adamant::detail::header_digest_key.size();
        head.replace(digits, 16, adamant::detail::header_digest(head, digits));
    }
    return head + file.substr(8 + header_bytes(file));
}
inline std::string edited(std::string const& file, std::function<void(json&)> const& edit)
{
    json header = header_of(file);
    edit(header);
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    return with_header(file, text);
}
// The same of one of the texts in the metadata that are JSON.
inline std::string edited_text(std::string const& file, char const* key, std::function<void(json&)> const& edit)
{
    return edited(file, [&](json& header) {
        json inner = json::parse(header["__metadata__"][key].get<std::string>());
        edit(inner);
        header["__metadata__"][key] = inner.dump();
    });
}

// Somewhere in the tree: another value, one less, one more, one moved.
inline void mutate(json& node, random_bits& random, int depth)
{
    if (depth > 0 && node.is_structured() && !node.empty() && random.below(8) != 0) {
        auto at = node.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(random.below(node.size())));
        if (random.below(8) == 0) {
            node.erase(at);
            return;
        }
        mutate(*at, random, depth - 1);
        return;
    }
    switch (random.below(12)) {
    case 0: node = nullptr; break;
    case 1: node = random(); break;
    case 2: node = -1; break;
    case 3: node = std::size_t{1} << random.below(64); break;
    case 4: node = ""; break;
    case 5: node = json::array({random.below(10), random.below(10)}); break;
    case 6: node = 0.5; break;
    case 7: node = json::object(); break;
    case 8:
        if (node.is_string()) {
            std::string text = node.get<std::string>();
            if (!text.empty())
                text[random.below(text.size())] = "0123456789abcdef.[]:\"{},p"[random.below(25)];
            node = text;
        } else if (node.is_number_unsigned()) {
            node = node.get<std::size_t>() + random.below(9) - 4;
        }
        break;
    case 9:
        if (node.is_array())
            node.push_back(node.empty() ? json(1) : node[random.below(node.size())]);
        else if (node.is_object())
            node["x.param"] = node.empty() ? json(1) : *node.begin();
        break;
    case 10:
        if (node.is_array() && node.size() > 1)
            std::swap(node[0], node[random.below(node.size())]);
        else if (node.is_object() && node.size() > 1)
            std::swap(*node.begin(), *std::next(node.begin(), static_cast<std::ptrdiff_t>(random.below(node.size()))));
        break;
    default: node = random.below(2) == 0; break;
    }
}

inline std::string mutated(std::string file, random_bits& random, bool& checksum_is_right)
{
    std::size_t const kind = random.below(6);
    checksum_is_right = kind >= 3;
    if (kind < 3) { // bytes: changed, taken out, put in
        for (std::size_t n = 1 + random.below(4); n-- != 0 && !file.empty();) {
            std::size_t const at =
                random.below(random.below(2) == 0 ? std::min<std::size_t>(file.size(), 16) : file.size());
            if (kind == 0)
                file[at] = static_cast<char>(random());
            else if (kind == 1)
                file.erase(at, 1 + random.below(20));
            else
                file.insert(at, 1 + random.below(20), static_cast<char>(random()));
        }
        return file;
    }
    if (kind == 3) { // bytes of the header, in a header whose checksum is right
        std::string header = file.substr(8, header_bytes(file));
        for (std::size_t n = 1 + random.below(3); n-- != 0;) {
            std::size_t const at = random.below(header.size());
            if (random.below(3) == 0)
                header.insert(at, header, random.below(header.size()), random.below(30));
            else
                header[at] = "0123456789[]{}:,\"\\ -.eE"[random.below(23)];
        }
        return with_header(file, header);
    }
    if (kind == 4) {
        for (std::size_t n = 1 + random.below(3); n-- != 0;)
            file = edited(file, [&](json& h) { mutate(h, random, 6); });
        return file;
    }
    return edited_text(file, random.below(4) == 0 ? "adamant.xxh3" : "adamant.state",
                       [&](json& inner) { mutate(inner, random, 6); });
}

} // namespace test
