// SPDX-License-Identifier: Apache-2.0
// Reads files of /proc and /sys: their words and numbers.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// The text of a file in /proc or /sys; empty if it cannot be read. Read in one call, as the file may change meanwhile.
inline std::string read_file(std::string const& path)
{
    std::string text;
    struct open_file {
        int descriptor;
        ~open_file()
        {
            if (descriptor >= 0)
                ::close(descriptor);
        }
    };
    open_file const file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
    char part[4096];
    for (ssize_t n = 0; file.descriptor >= 0 && (n = ::read(file.descriptor, part, sizeof part)) > 0;)
        text.append(part, static_cast<std::size_t>(n));
    return text;
}

// Takes the next word from the front of a text; empty at its end.
inline std::string_view next_word(std::string_view& text) noexcept
{
    constexpr std::string_view spaces = " \t\n";
    text.remove_prefix(std::min(text.find_first_not_of(spaces), text.size()));
    std::string_view const word = text.substr(0, text.find_first_of(spaces));
    text.remove_prefix(word.size());
    return word;
}

// Takes what comes before the next separator from the front of a text, and the separator.
inline std::string_view next_part(std::string_view& text, char separator) noexcept
{
    std::string_view const part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
}

// The number after a word of a text ("MemFree: 12 kB", "inactive_file 12"), or its first word; nothing for "max".
inline std::optional<std::size_t> number_after(std::string_view text, std::string_view after)
{
    for (std::string_view word; word != after && !text.empty();)
        word = next_word(text);
    std::string_view const number = next_word(text);
    std::size_t value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc{})
        return {};
    return next_word(text) == "kB" ? value * 1024 : value;
}

// The same of a file.
inline std::optional<std::size_t> read_number(std::string const& path, std::string_view after = {})
{
    return number_after(read_file(path), after);
}

} // namespace detail

ADAMANT_END_NAMESPACE
