// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/error.hpp>.
#pragma once

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void text_part::append_to(std::string& text) const
{
    char digits[40];
    switch (kind_) {
    case kind::string: text.append(string_, bits_); return;
    case kind::letter: text.push_back(static_cast<char>(bits_)); return;
    case kind::unsigned_number: std::snprintf(digits, sizeof digits, "%" PRIu64, bits_); break;
    case kind::signed_number: std::snprintf(digits, sizeof digits, "%" PRId64, static_cast<std::int64_t>(bits_)); break;
    case kind::real_number: {
        auto const number = std::bit_cast<double>(bits_);
        std::snprintf(digits, sizeof digits, "%.9g", number);
        if (std::strtod(digits, nullptr) != number) // "beta2 is 1, but must be below 1"
            std::snprintf(digits, sizeof digits, "%.17g", number);
        break;
    }
    }
    text.append(digits);
}

ADAMANT_DECL std::string text_of(std::initializer_list<text_part> parts)
{
    std::string text;
    for (text_part const& part : parts)
        part.append_to(text);
    return text;
}

[[gnu::noinline]] ADAMANT_DECL std::string counted(std::uint64_t number, std::string_view noun)
{
    return text_of({number, " ", noun, number == 1 ? "" : "s"});
}

// Returns the message of an error.
inline std::string message_of(std::initializer_list<text_part> parts)
{
    return text_of({"adamant: ", text_of(parts)});
}
ADAMANT_DECL void throw_invalid_argument(std::initializer_list<text_part> parts)
{
    throw invalid_argument(message_of(parts));
}
ADAMANT_DECL void throw_unavailable(std::initializer_list<text_part> parts)
{
    throw unavailable(message_of(parts));
}
ADAMANT_DECL void throw_device_error(std::initializer_list<text_part> parts)
{
    throw device_error(message_of(parts));
}
[[noreturn]] ADAMANT_DECL void rethrow_as_device_error(std::string const& consequence)
{
    try {
        throw;
    } catch (std::exception const& failure) {
        throw device_error(failure.what() + consequence);
    }
}
ADAMANT_DECL void throw_corrupted(std::initializer_list<text_part> parts)
{
    throw corrupted(message_of(parts));
}

} // namespace detail

ADAMANT_END_NAMESPACE
