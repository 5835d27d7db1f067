// SPDX-License-Identifier: Apache-2.0
// Reads words and numbers from files of /proc and /sys.
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

// The contents of a file in /proc or /sys; empty if it cannot be read. Reads 4 KiB per call, so that the kernel cannot
// change a short file halfway.
[[gnu::noinline]] inline std::string read_file(std::string const& path)
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

// Removes the next word from the front of the text and returns it; empty at the end of the text.
[[gnu::noinline]] inline std::string_view next_word(std::string_view& text) noexcept
{
    constexpr std::string_view spaces = " \t\n";
    text.remove_prefix(std::min(text.find_first_not_of(spaces), text.size()));
    std::string_view const word = text.substr(0, text.find_first_of(spaces));
    text.remove_prefix(word.size());
    return word;
}

// Removes everything up to and including the next separator from the text, and returns it without the separator.
[[gnu::noinline]] inline std::string_view next_part(std::string_view& text, char separator) noexcept
{
    std::string_view const part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
}

// The number that follows `key` in the text ("MemFree: 12 kB", "inactive_file 12"), in bytes if its unit is kB. With an
// empty key, the number at the start of the text. Empty if there is no number, as with "max".
[[gnu::noinline]] inline std::optional<std::size_t> number_after(std::string_view text, std::string_view key)
{
    for (std::string_view word; word != key && !text.empty();)
        word = next_word(text);
    std::string_view const number = next_word(text);
    std::size_t value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc{})
        return {};
    return next_word(text) == "kB" ? value * 1024 : value;
}

// number_after() of the contents of a file.
inline std::optional<std::size_t> read_number(std::string const& path, std::string_view key = {})
{
    return number_after(read_file(path), key);
}

} // namespace detail

ADAMANT_END_NAMESPACE
