// SPDX-License-Identifier: Apache-2.0
// What is said about a text that is no JSON. Needs nlohmann-json.
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

// For a message: one printable character for each character, and not too many of them.
inline std::string shown(std::string_view text, std::size_t most = 80)
{
    std::string out;
    for (char const c : text) {
        if ((static_cast<unsigned char>(c) & 0xc0u) == 0x80u)
            continue; // a character of UTF-8 goes on
        if (out.size() == most)
            return out + "...";
        out += c >= ' ' && c <= '~' ? c : '?';
    }
    return out;
}

// What is wrong at a place of a text that is no JSON, and where it begins. The words are ours, for the parser's change
// with its version. All before the place is well formed, but for the word or text that it is in.
inline std::pair<std::size_t, std::string> explain_syntax(std::string_view text, std::size_t at)
{
    auto const is_json = [](std::string_view token) { return nlohmann::json::accept(token.begin(), token.end()); };
    auto const no_such_escape = "JSON has no such escape";
    at = std::min(at, text.size());
    std::size_t quote = text.npos; // of the text that the place is in
    for (std::size_t i = 0; i < at; ++i) {
        if (text[i] == '"')
            quote = quote == text.npos ? i : text.npos;
        else if (text[i] == '\\' && quote != text.npos)
            ++i;
    }
    char const c = at < text.size() ? text[at] : '\0';
    if (quote != text.npos) {
        if (at == text.size())
            return {quote, "this text has no closing quote"};
        if (c == '"' && is_json(text.substr(quote, at - quote + 1)))
            return {quote, "unexpected text in quotes"};
        if (static_cast<unsigned char>(c) < ' ')
            return {at, "a line ends or a control character stands inside a text: close it, or write an escape"};
        if (static_cast<unsigned char>(c) >= 0x80 || static_cast<unsigned char>(text[at - 1]) >= 0x80)
            return {at, "bytes that are not UTF-8"};
        return {at, no_such_escape};
    }
    // A word turns out to be none at its last letter, or at the one after it.
    auto const is_word = [](char l) {
        return (l >= '0' && l <= '9') || (l >= 'a' && l <= 'z') || (l >= 'A' && l <= 'Z') || l == '+' || l == '-' ||
               l == '.' || l == '_';
    };
    std::size_t begin = at;
    while (begin > 0 && is_word(text[begin - 1]))
        --begin;
    std::size_t end = at;
    while (end < text.size() && is_word(text[end]))
        ++end;
    std::string_view const word = text.substr(begin, end - begin);
    if (!word.empty() && !is_json(word))
        return {begin,
                text_of({'"', shown(word, 40),
                         "\" is not a value of JSON, which has numbers like -1.5e3, texts in double quotes, true, "
                         "false and null"})};
    if (end > at)
        return {begin, "unexpected value"};
    if (at == text.size())
        return {at, text.find_first_not_of(" \t\r\n") == text.npos ? "it is empty"
                                                                   : "it ends before all brackets are closed"};
    if (c == '/' || c == '#')
        return {at, "JSON has no comments; take it out"};
    if (c == '\'')
        return {at, "texts must be in double quotes"};
    std::size_t const last = at == 0 ? text.npos : text.find_last_not_of(" \t\r\n", at - 1);
    if ((c == '}' || c == ']') && last != text.npos && text[last] == ',')
        return {last, "JSON has no comma after the last of a list; take it out"};
    return {at, "this character does not belong here"};
}

// "in line 2, column 7: " and the problem, then the line and a caret under the place. The column counts characters.
inline std::string point_at(std::string_view text, std::size_t at, std::string const& problem)
{
    auto const lines = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    std::size_t const begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1; // npos + 1 is 0
    std::size_t const end = std::min(text.find('\n', at), text.size());
    std::size_t const column = shown(text.substr(begin, at - begin), text.npos).size();
    std::size_t const cut = column > 70 ? column - 60 : 0; // of a long line what is near
    std::string const line = shown(shown(text.substr(begin, end - begin), text.npos).substr(cut), 100);
    return text_of({"in line ", lines + 1, ", column ", column + 1, ": ", problem, "\n  ", line, "\n  ",
                    std::string(column - cut, ' '), "^"});
}

} // namespace detail

ADAMANT_END_NAMESPACE
