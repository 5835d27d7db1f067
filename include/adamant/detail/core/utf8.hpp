// SPDX-License-Identifier: Apache-2.0
// UTF-8 validation of names, which checkpoints store in JSON, and escaping of invalid bytes in messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Bytes of the first character of the text; 0 if the text is empty or begins with an invalid sequence. RFC 3629: at
// most 4 bytes, no overlong forms, no surrogates, nothing beyond U+10FFFF.
constexpr std::size_t utf8_length(std::string_view text) noexcept
{
    auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : '\0'); };
    unsigned char const first = byte(0);
    if (first < 0x80)
        return text.empty() ? 0 : 1;
    std::size_t const length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    // The range of the second byte depends on the first byte.
    unsigned const least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned const most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0xc2 || first > 0xf4 || byte(1) < least || byte(1) > most)
        return 0;
    for (std::size_t i = 2; i < length; ++i)
        if (byte(i) < 0x80 || byte(i) > 0xbf)
            return 0;
    return length;
}

// Calls add(piece) for each character of the text, in order. Passes an invalid byte as an escape such as \xff. add()
// returns whether to continue, so that a caller can stop between characters when its buffer is full. Allocates nothing.
template <class Add>
constexpr void each_utf8(std::string_view text, Add const& add)
{
    constexpr char const* digits = "0123456789abcdef";
    while (!text.empty()) {
        std::size_t const length = utf8_length(text);
        unsigned const byte = static_cast<unsigned char>(text.front());
        char const escape[] = {'\\', 'x', digits[byte >> 4], digits[byte & 15]};
        if (!add(length != 0 ? text.substr(0, length) : std::string_view(escape, sizeof escape)))
            return;
        text.remove_prefix(length != 0 ? length : 1);
    }
}

// Throws invalid_argument for a text that is not UTF-8. subject: for the message, for example "the name of a shard".
inline void check_utf8(std::string const& subject, std::string_view text)
{
    std::size_t valid_bytes = 0;
    for (std::size_t length = 0; valid_bytes < text.size(); valid_bytes += length)
        if (length = utf8_length(text.substr(valid_bytes)); length == 0)
            break;
    if (valid_bytes == text.size())
        return;
    std::string printable;
    each_utf8(text, [&](std::string_view piece) {
        bool const has_room = printable.size() < 200;
        printable += has_room ? piece : "...";
        return has_room;
    });
    throw_invalid_argument({subject, ", '", printable, "', is not UTF-8: see its byte ", valid_bytes,
                            ". Checkpoints store only UTF-8. Convert it."});
}

} // namespace detail
ADAMANT_END_NAMESPACE
