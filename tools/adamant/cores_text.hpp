// SPDX-License-Identifier: Apache-2.0
// Text for a terminal: sizes, lists of PUs, lines broken to a width.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/index_set.hpp>

namespace cli {

inline constexpr std::size_t text_columns = 96;

inline std::string plural(std::size_t n, std::string const& noun)
{
    return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

// In binary units with two or three digits: 126 GiB, 2.9 GiB, 512 MiB.
inline std::string size_text(std::size_t bytes)
{
    constexpr char const* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    while (value >= 1023.5 && unit + 1 < std::size(units)) {
        value /= 1024;
        ++unit;
    }
    char text[32];
    std::snprintf(text, sizeof text, "%.*f", value < 9.95 ? 1 : 0, value);
    std::string_view digits = text;
    if (digits.ends_with(".0"))
        digits.remove_suffix(2);
    return std::string(digits) + " " + units[unit];
}

// Replaces control characters: names come from files and devices, and must not move the cursor.
inline std::string printable(std::string text)
{
    for (char& c : text)
        if (static_cast<unsigned char>(c) < ' ' || c == '\x7f')
            c = '?';
    return text;
}

// A list with strides, as parse_index_set() and taskset read it: every second PU is "0-30:2", which is the usual case
// where siblings have consecutive numbers.
inline std::string strided_list(adamant::index_set const& set)
{
    std::vector<unsigned> const all = set.members();
    std::string text;
    for (std::size_t i = 0; i < all.size();) {
        unsigned const stride = i + 1 < all.size() ? all[i + 1] - all[i] : 1;
        std::size_t last = i;
        while (last + 1 < all.size() && all[last + 1] - all[last] == stride)
            ++last;
        if (stride != 1 && last < i + 3) // a stride would not shorten the text
            last = i;
        text += text.empty() ? "" : ",";
        text += std::to_string(all[i]);
        if (last != i)
            text += '-' + std::to_string(all[last]) + (stride == 1 ? "" : ':' + std::to_string(stride));
        i = last + 1;
    }
    return text;
}

// A list of at most this many columns; the middle of a longer one is replaced by dots.
inline std::string short_list(adamant::index_set const& set, std::size_t columns)
{
    std::string text = strided_list(set);
    if (text.size() <= columns)
        return text;
    std::string const last = text.substr(text.rfind(',') + 1);
    std::size_t const room = columns - std::min(columns, last.size() + 4);
    std::size_t const end = std::max(text.rfind(',', room) + 1, text.find(',') + 1); // at least one number
    return text.substr(0, end) + "..," + last;
}

// The length of the first line of a text that is longer than the room: breaks between clauses rather than words, and a
// list after a comma. A word that is longer than the room, such as a path, has a line to itself; 0 where the text is
// one such word.
inline std::size_t line_length(std::string_view text, std::size_t room)
{
    for (std::string_view const end : {"; ", ", ", " "})
        if (std::size_t const position = text.rfind(end, room - end.size() + 1);
            position != std::string_view::npos && position + end.size() > (end == " " ? 1 : room * 2 / 3))
            return position + end.size();
    if (std::size_t const comma = text.substr(0, room).rfind(','); comma != std::string_view::npos)
        return comma + 1;
    return text.find(' ', 1) + 1;
}

// Lines of text after a prefix, under which the further lines begin.
inline std::string wrapped(std::string const& prefix, std::string_view text)
{
    std::string all = prefix;
    std::size_t const room = text_columns - prefix.size();
    while (text.size() > room) {
        std::size_t const length = line_length(text, room);
        if (length == 0)
            break;
        std::string_view const line = text.substr(0, length);
        all += std::string(line.substr(0, line.find_last_not_of(' ') + 1)) + "\n" + std::string(prefix.size(), ' ');
        text.remove_prefix(length);
    }
    return all + std::string(text) + "\n";
}

// "the 8 threads are bound to PUs 0-7, one to each". pus: the PUs of a team whose threads are all bound; otherwise
// empty.
inline std::string threads_text(std::size_t threads, adamant::index_set const& pus)
{
    std::string const subject = threads == 1 ? "the thread is " : "the " + std::to_string(threads) + " threads are ";
    if (pus.empty())
        return wrapped("", subject + (threads == 1 ? "not bound to a PU" : "not all bound to PUs"));
    return wrapped("", subject + (pus.size() == 1 ? "bound to PU " : "bound to PUs ") + to_list(pus) +
                           (threads == 1           ? ""
                            : pus.size() < threads ? ", which they share"
                                                   : ", one to each"));
}

// The number of cells in each row, for n equal cells and rows with room for `most`: the same in every row if possible.
inline std::size_t per_row(std::size_t n, std::size_t most)
{
    if (n <= most)
        return n;
    for (std::size_t k = most; k > 1 && k >= (most + 1) / 2; --k)
        if (n % k == 0)
            return k;
    std::size_t const rows = (n + most - 1) / most;
    return (n + rows - 1) / rows;
}

} // namespace cli
