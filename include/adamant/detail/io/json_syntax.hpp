// SPDX-License-Identifier: Apache-2.0
// Messages about malformed JSON: the problem, its line and its column. Needs nlohmann-json.
#pragma once

#if !__has_include(<nlohmann/json.hpp>)
#error                                                                                                                 \
    "adamant reads JSON with nlohmann-json 3.11 or newer, and finds no nlohmann/json.hpp (Debian and Ubuntu: nlohmann-json3-dev). Install it, or do without this opt-in header."
#endif

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include <adamant/error.hpp>
#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Returns the text for a message: one printable character for each of its characters, at most max_chars of them.
inline std::string to_printable(std::string_view text, std::size_t max_chars = 80)
{
    std::string out;
    for (char const c : text) {
        if ((static_cast<unsigned char>(c) & 0xc0u) == 0x80u)
            continue; // continuation byte of UTF-8
        if (out.size() == max_chars)
            return out + "...";
        out += c >= ' ' && c <= '~' ? c : '?';
    }
    return out;
}

// Returns where the problem at a position of malformed JSON begins, and a message. The parser's own messages change
// with its version. The text before the position is well formed, except the word or string that contains it.
inline std::pair<std::size_t, std::string> explain_syntax(std::string_view text, std::size_t position)
{
    auto const is_json = [](std::string_view token) { return nlohmann::json::accept(token.begin(), token.end()); };
    auto const no_such_escape = "JSON has no such escape";
    position = std::min(position, text.size());
    std::size_t quote = text.npos; // opening quote of the string that contains the position
    for (std::size_t i = 0; i < position; ++i) {
        if (text[i] == '"')
            quote = quote == text.npos ? i : text.npos;
        else if (text[i] == '\\' && quote != text.npos)
            ++i;
    }
    char const c = position < text.size() ? text[position] : '\0';
    if (quote != text.npos) {
        if (position == text.size())
            return {quote, "this text has no closing quote"};
        if (c == '"' && is_json(text.substr(quote, position - quote + 1)))
            return {quote, "unexpected text in quotes"};
        if (static_cast<unsigned char>(c) < ' ')
            return {position, "a line ends or a control character stands inside a text: close it, or write an escape"};
        if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(text[position - 1]) >= 0x80)
            return {position, "bytes that are not UTF-8"};
        return {position, no_such_escape};
    }
    // The parser reports a wrong word at its last letter or after it.
    auto const is_word = [](char l) {
        return (l >= '0' && l <= '9') || (l >= 'a' && l <= 'z') || (l >= 'A' && l <= 'Z') || l == '+' || l == '-' ||
               l == '.' || l == '_';
    };
    std::size_t begin = position;
    while (begin > 0 && is_word(text[begin - 1]))
        --begin;
    std::size_t end = position;
    while (end < text.size() && is_word(text[end]))
        ++end;
    std::string_view const word = text.substr(begin, end - begin);
    if (!word.empty() && !is_json(word))
        return {begin,
                text_of({'"', to_printable(word, 40),
                         "\" is not a value of JSON, which has numbers like -1.5e3, texts in double quotes, true, "
                         "false and null"})};
    if (end > position)
        return {begin, "unexpected value"};
    if (position == text.size())
        return {position, text.find_first_not_of(" \t\r\n") == text.npos ? "it is empty"
                                                                         : "it ends before all brackets are closed"};
    if (c == '/' || c == '#')
        return {position, "JSON has no comments; take it out"};
    if (c == '\'')
        return {position, "texts must be in double quotes"};
    std::size_t const last = position == 0 ? text.npos : text.find_last_not_of(" \t\r\n", position - 1);
    if ((c == '}' || c == ']') && last != text.npos && text[last] == ',')
        return {last, "JSON has no comma after the last of a list; take it out"};
    return {position, "this character does not belong here"};
}

// Returns "in line 2, column 7: " and the problem, then the line and a caret. The column counts characters.
inline std::string point_at(std::string_view text, std::size_t position, std::string const& problem)
{
    auto const lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(position), '\n');
    std::size_t const begin = position == 0 ? 0 : text.rfind('\n', position - 1) + 1; // npos + 1 is 0
    std::size_t const end = std::min(text.find('\n', position), text.size());
    std::size_t const column = to_printable(text.substr(begin, position - begin), text.npos).size();
    std::size_t const cut = column > 70 ? column - 60 : 0; // skipped beginning of a long line
    std::string const line = to_printable(to_printable(text.substr(begin, end - begin), text.npos).substr(cut), 100);
    return text_of({"in line ", lines + 1, ", column ", column + 1, ": ", problem, "\n  ", line, "\n  ",
                    std::string(column - cut, ' '), "^"});
}

} // namespace detail

ADAMANT_END_NAMESPACE
