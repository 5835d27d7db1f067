// SPDX-License-Identifier: Apache-2.0
// A JSON text read against a list of known keys: their values, flat, by path; and a warning for every other key.
// Needs nlohmann-json. Nothing is built of what is not known, so that a hostile text costs in proportion to its size.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/io/json_syntax.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

struct json_value {
    enum class kind : std::uint8_t { null, boolean, number, text, array, object };
    kind is = kind::null;
    bool flag = false;
    double number = 0;
    std::optional<std::uint64_t> whole = {}; // where the number is one, 5e8 too
    std::string text = {};                   // of a text, and a number as it was written
    std::vector<json_value> items = {};      // of an array, the first few
    std::size_t size = 0;                    // of an array, all
    std::size_t order = 0;                   // of appearance

    [[nodiscard]] std::string as_shown() const
    {
        switch (is) {
        case kind::null: return "null";
        case kind::boolean: return flag ? "true" : "false";
        case kind::number: return shown(text, 40);
        case kind::text: return '"' + shown(text, 40) + '"';
        case kind::array: return "an array of " + std::to_string(size);
        case kind::object: break;
        }
        return "an object";
    }
};

// The least number of letters put in, left out, changed or swapped with their neighbour between the two.
inline std::size_t typing_errors(std::string_view a, std::string_view b)
{
    std::array<std::vector<std::size_t>, 3> rows; // of the table: two letters ago, one ago, this one
    rows.fill(std::vector<std::size_t>(b.size() + 1));
    for (std::size_t j = 0; j <= b.size(); ++j)
        rows[2][j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        std::rotate(rows.begin(), rows.begin() + 1, rows.end());
        rows[2][0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            rows[2][j] = std::min({rows[1][j] + 1, rows[2][j - 1] + 1, rows[1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                rows[2][j] = std::min(rows[2][j], rows[0][j - 2] + 1);
        }
    }
    return rows[2].back();
}

inline bool contains(std::span<std::string_view const> all, std::string_view one)
{
    return std::find(all.begin(), all.end(), one) != all.end();
}

inline std::string lower(std::string_view text)
{
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z')
            c = static_cast<char>(c - 'A' + 'a');
    return out;
}

// In quotes where it would be lost in a path, or look like one.
inline std::string shown_key(std::string_view key)
{
    std::string const plain = shown(key, 60);
    return key.empty() || key.find('.') != key.npos ? '"' + plain + '"' : plain;
}

class json_document {
public:
    static constexpr std::size_t max_bytes = std::size_t{16} << 20;
    static constexpr std::size_t max_depth = 64;
    static constexpr std::size_t max_warnings = 100;

    // Reads the text; throws invalid_argument where it is not JSON, names a key twice in one object, or is beyond a
    // limit. what and source, which may be empty, are for the errors. known: the paths of all keys that mean
    // something, the objects among them too; those in ignored are kept as well, and warned of.
    json_document(std::string_view text, std::string what, std::string source, std::span<std::string_view const> known,
                  std::span<std::string_view const> ignored);

    [[noreturn]] void fail(std::string const& problem) const
    {
        throw_invalid_argument({source_.empty() ? "" : source_ + ": ", problem});
    }

    // Null where the text has no such key.
    [[nodiscard]] json_value const* find(std::string_view path) const
    {
        auto const found = values_.find(path);
        return found == values_.end() ? nullptr : &found->second;
    }
    void warn(std::size_t order, std::string warning)
    {
        if (warnings_.size() < max_warnings)
            warnings_.emplace_back(order, std::move(warning));
        else
            ++unsaid_;
    }
    // In order of appearance.
    [[nodiscard]] std::vector<std::string> warnings() const
    {
        auto sorted = warnings_;
        detail::sort_stably(sorted, [](auto const& a, auto const& b) { return a.first < b.first; });
        std::vector<std::string> texts;
        for (auto& [order, text] : sorted)
            texts.push_back(std::move(text));
        if (unsaid_ > 0)
            texts.push_back(std::to_string(unsaid_) + " more keys mean nothing here");
        return texts;
    }

private:
    friend class json_events;

    [[noreturn]] void fail_at(std::size_t at, std::string const& problem) const
    {
        fail(text_of({what_, " is not JSON ", point_at(text_, at, problem)}));
    }
    void warn_of_key(std::string const& object, std::string const& key);

    std::string_view text_;
    std::string what_;
    std::string source_;
    std::span<std::string_view const> known_;
    std::span<std::string_view const> ignored_;
    std::map<std::string, json_value, std::less<>> values_;
    std::vector<std::pair<std::size_t, std::string>> warnings_;
    std::size_t unsaid_ = 0;
    std::size_t seen_ = 0;
};

// What the parser calls, in the order of the text. The parser itself does not recurse.
class json_events {
public:
    explicit json_events(json_document& to) : to_(to) {}

    bool null() { return scalar({}); }
    bool boolean(bool value) { return scalar({.is = json_value::kind::boolean, .flag = value}); }
    bool number_integer(std::int64_t value)
    {
        return scalar({.is = json_value::kind::number,
                       .number = static_cast<double>(value),
                       .whole = value < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(value)),
                       .text = std::to_string(value)});
    }
    bool number_unsigned(std::uint64_t value)
    {
        return scalar({.is = json_value::kind::number,
                       .number = static_cast<double>(value),
                       .whole = value,
                       .text = std::to_string(value)});
    }
    bool number_float(double value, std::string const& written)
    {
        json_value made{.is = json_value::kind::number, .number = value, .text = written};
        if (value >= 0 && value < 0x1p64 && std::trunc(value) == value)
            made.whole = static_cast<std::uint64_t>(value);
        return scalar(std::move(made));
    }
    bool string(std::string& value) { return scalar({.is = json_value::kind::text, .text = std::move(value)}); }
    bool binary(std::vector<std::uint8_t>&) { return false; } // JSON has none
    bool start_object(std::size_t) { return open(json_value::kind::object); }
    bool start_array(std::size_t) { return open(json_value::kind::array); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool key(std::string& name)
    {
        level& in = levels_.back();
        in.key = std::move(name);
        if (!in.keys.insert(in.key).second)
            to_.fail(path() + " appears twice; keep one of them");
        return true;
    }
    bool parse_error(std::size_t position, std::string const& last_token, nlohmann::json::exception const& error)
    {
        if (error.id == 406) // a number beyond double
            to_.fail(text_of({path(), " is ", shown(last_token, 40), ", but must be a finite number"}));
        auto const [at, problem] = explain_syntax(to_.text_, position == 0 ? 0 : position - 1);
        to_.fail_at(at, problem);
    }

private:
    struct level {
        bool is_array = false;
        std::size_t index = 0;              // of an array: of the next element
        std::string key = {};               // of an object: the last one
        std::set<std::string> keys = {};    // of an object: all of them
        std::optional<std::string> at = {}; // of an object that is known: its path
        json_value* elements_of = nullptr;  // of an array that is known
    };

    // Of the value that comes, or just came.
    [[nodiscard]] std::string path() const
    {
        std::string out;
        for (level const& in : levels_) {
            std::size_t const index = &in == &levels_.back() ? in.index : in.index - 1;
            out += in.is_array || out.empty() ? "" : ".";
            out += in.is_array ? '[' + std::to_string(index) + ']' : shown_key(in.key);
        }
        return out.empty() ? to_.what_ : shown(out, 300);
    }
    // Keeps a value if it is known. Its place among those kept, or null.
    json_value* keep(json_value value, std::optional<std::string>& known_at)
    {
        if (levels_.empty()) {
            if (value.is != json_value::kind::object)
                to_.fail(
                    text_of({to_.what_, " is ", value.is == json_value::kind::array ? "an array" : value.as_shown(),
                             ", but must be an object"}));
            known_at = "";
            return nullptr;
        }
        level& in = levels_.back();
        if (in.is_array) {
            ++in.index;
            if (in.elements_of == nullptr)
                return nullptr;
            ++in.elements_of->size;
            if (in.elements_of->items.size() < 4)
                in.elements_of->items.push_back(std::move(value));
            return nullptr;
        }
        if (!in.at)
            return nullptr;
        value.order = ++to_.seen_;
        std::string at = (in.at->empty() ? "" : *in.at + ".") + in.key;
        bool const is_path = in.key.find('.') != in.key.npos; // "a.b" is not the b of an a
        bool const ignored = !is_path && contains(to_.ignored_, at);
        bool const known = !is_path && contains(to_.known_, at);
        if (!known)
            to_.warn_of_key(*in.at, in.key);
        if (!known && !ignored)
            return nullptr;
        json_value& kept = to_.values_[at] = std::move(value);
        if (known)
            known_at = std::move(at);
        return &kept;
    }
    bool scalar(json_value value)
    {
        std::optional<std::string> known_at;
        keep(std::move(value), known_at);
        return true;
    }
    bool open(json_value::kind kind)
    {
        if (levels_.size() == json_document::max_depth)
            to_.fail(text_of({to_.what_, " is nested more than ", json_document::max_depth, " levels deep, at ",
                              shown(path(), 100)}));
        level inside{.is_array = kind == json_value::kind::array};
        json_value* const kept = keep({.is = kind}, inside.at);
        inside.elements_of = inside.is_array ? kept : nullptr;
        levels_.push_back(std::move(inside));
        return true;
    }
    bool close()
    {
        levels_.pop_back();
        return true;
    }

    json_document& to_;
    std::vector<level> levels_;
};

inline json_document::json_document(std::string_view text, std::string what, std::string source,
                                    std::span<std::string_view const> known, std::span<std::string_view const> ignored)
    : text_(text), what_(std::move(what)), source_(std::move(source)), known_(known), ignored_(ignored)
{
    if (text_.starts_with("\xef\xbb\xbf")) // a byte order mark, which editors leave
        text_.remove_prefix(3);
    if (text_.size() > max_bytes)
        fail(text_of({what_, " has more than ", max_bytes, " bytes, the most that is read"}));
    // To the parser this one is the end of the text.
    if (std::size_t const at = text_.find('\0'); at != text_.npos)
        fail_at(at, "a byte that is 0");
    json_events events(*this);
    nlohmann::json::sax_parse(text_.begin(), text_.end(), &events);
    text_ = {}; // it may be gone before the document
}

inline void json_document::warn_of_key(std::string const& object, std::string const& key)
{
    if (warnings_.size() == max_warnings) {
        ++unsaid_; // without a search for what was meant, which takes its time
        return;
    }
    std::string const path = object.empty() ? "" : object + ".";
    std::string warning = text_of({path, shown_key(key), " means nothing here"});
    std::string_view best;
    std::size_t least = 3;
    if (key.size() <= 40)
        for (std::string_view const candidate : known_) {
            std::size_t const cut = candidate.rfind('.') + 1; // npos + 1 is 0
            if (candidate.substr(0, cut) != path)
                continue;
            std::string_view const name = candidate.substr(cut);
            // Of three letters one may be wrong: else every short key would be taken for another.
            std::size_t const errors = typing_errors(lower(key), lower(name));
            if (errors < least && errors * 3 <= name.size()) {
                least = errors;
                best = name;
            }
        }
    if (!best.empty())
        warning += text_of({": did you mean ", best, "?"});
    warn(seen_, std::move(warning));
}

} // namespace detail

ADAMANT_END_NAMESPACE
