// SPDX-License-Identifier: Apache-2.0
// json_document: the values of known keys of a JSON text, flat, by path, and a warning for every other key. Needs
// nlohmann-json. Unknown values are not stored, so the cost of a hostile text is proportional to its size.
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
    kind type = kind::null;
    bool flag = false;
    double number = 0;
    std::optional<std::uint64_t> whole = {}; // the number if it is a nonnegative integer, such as 5e8
    std::string text = {};                   // value of a text; spelling of a number
    std::vector<json_value> items = {};      // the first elements of an array
    std::size_t size = 0;                    // number of elements of an array
    std::size_t order = 0;                   // position in the text

    [[nodiscard]] std::string to_message_text() const
    {
        switch (type) {
        case kind::null: return "null";
        case kind::boolean: return flag ? "true" : "false";
        case kind::number: return to_printable(text, 40);
        case kind::text: return '"' + to_printable(text, 40) + '"';
        case kind::array: return "an array of " + std::to_string(size);
        case kind::object: break;
        }
        return "an object";
    }
};

// Returns the edit distance: the least number of letters inserted, deleted, replaced or swapped with a neighbor.
inline std::size_t typing_errors(std::string_view a, std::string_view b)
{
    std::array<std::vector<std::size_t>, 3> rows; // of the table: two letters before, one before, current
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

inline bool contains(std::span<std::string_view const> keys, std::string_view key)
{
    return std::find(keys.begin(), keys.end(), key) != keys.end();
}

inline std::string to_lower(std::string_view text)
{
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z')
            c = static_cast<char>(c - 'A' + 'a');
    return out;
}

// Returns a key for a message, in quotes if it is empty or contains a dot and would be ambiguous in a path.
inline std::string to_printable_key(std::string_view key)
{
    std::string const plain = to_printable(key, 60);
    return key.empty() || key.find('.') != key.npos ? '"' + plain + '"' : plain;
}

class json_document {
public:
    static constexpr std::size_t max_bytes = std::size_t{16} << 20;
    static constexpr std::size_t max_depth = 64;
    static constexpr std::size_t max_warnings = 100;

    // Parses the text. subject, and source, which may be empty: for error messages. known: the paths of all known keys,
    // including objects. ignored: paths that are kept and warned about. Throws invalid_argument if the text is not
    // JSON, repeats a key in one object, or exceeds a limit.
    json_document(std::string_view text, std::string subject, std::string source,
                  std::span<std::string_view const> known, std::span<std::string_view const> ignored);

    [[noreturn]] void fail(std::string const& problem) const
    {
        throw_invalid_argument({source_.empty() ? "" : source_ + ": ", problem});
    }

    // Returns null if the text has no such key.
    [[nodiscard]] json_value const* find(std::string_view path) const
    {
        auto const match = values_.find(path);
        return match == values_.end() ? nullptr : &match->second;
    }
    void warn(std::size_t order, std::string warning)
    {
        if (warnings_.size() < max_warnings)
            warnings_.emplace_back(order, std::move(warning));
        else
            ++dropped_warnings_;
    }
    // Returns the warnings in the order of the text.
    [[nodiscard]] std::vector<std::string> warnings() const
    {
        auto sorted = warnings_;
        detail::sort_stably(sorted, [](auto const& a, auto const& b) { return a.first < b.first; });
        std::vector<std::string> texts;
        for (auto& [order, text] : sorted)
            texts.push_back(std::move(text));
        if (dropped_warnings_ > 0)
            texts.push_back(std::to_string(dropped_warnings_) + " more keys are ignored");
        return texts;
    }

private:
    friend class json_events;

    [[noreturn]] void fail_at(std::size_t position, std::string const& problem) const
    {
        fail(text_of({subject_, " is not JSON ", point_at(text_, position, problem)}));
    }
    void warn_of_key(std::string const& object, std::string const& key);

    std::string_view text_;
    std::string subject_;
    std::string source_;
    std::span<std::string_view const> known_;
    std::span<std::string_view const> ignored_;
    std::map<std::string, json_value, std::less<>> values_;
    std::vector<std::pair<std::size_t, std::string>> warnings_;
    std::size_t dropped_warnings_ = 0;
    std::size_t value_count_ = 0;
};

// Callbacks of the parser, called in the order of the text. The parser itself does not recurse.
class json_events {
public:
    explicit json_events(json_document& document) : document_(document) {}

    bool null() { return scalar({}); }
    bool boolean(bool value) { return scalar({.type = json_value::kind::boolean, .flag = value}); }
    bool number_integer(std::int64_t value)
    {
        return scalar({.type = json_value::kind::number,
                       .number = static_cast<double>(value),
                       .whole = value < 0 ? std::nullopt : std::optional(static_cast<std::uint64_t>(value)),
                       .text = std::to_string(value)});
    }
    bool number_unsigned(std::uint64_t value)
    {
        return scalar({.type = json_value::kind::number,
                       .number = static_cast<double>(value),
                       .whole = value,
                       .text = std::to_string(value)});
    }
    bool number_float(double value, std::string const& written)
    {
        json_value parsed{.type = json_value::kind::number, .number = value, .text = written};
        if (value >= 0 && value < 0x1p64 && std::trunc(value) == value)
            parsed.whole = static_cast<std::uint64_t>(value);
        return scalar(std::move(parsed));
    }
    bool string(std::string& value) { return scalar({.type = json_value::kind::text, .text = std::move(value)}); }
    bool binary(std::vector<std::uint8_t>&) { return false; } // JSON has none
    bool start_object(std::size_t) { return open(json_value::kind::object); }
    bool start_array(std::size_t) { return open(json_value::kind::array); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }
    bool key(std::string& name)
    {
        level& top = levels_.back();
        top.key = std::move(name);
        if (!top.keys.insert(top.key).second)
            document_.fail(path() + " appears twice; keep one of them");
        return true;
    }
    bool parse_error(std::size_t position, std::string const& last_token, nlohmann::json::exception const& error)
    {
        if (error.id == 406) // a number beyond double
            document_.fail(text_of({path(), " is ", to_printable(last_token, 40), ", but must be a finite number"}));
        auto const [begin, problem] = explain_syntax(document_.text_, position == 0 ? 0 : position - 1);
        document_.fail_at(begin, problem);
    }

private:
    struct level {
        bool is_array = false;
        std::size_t index = 0;                // array: index of the next element
        std::string key = {};                 // object: the most recent key
        std::set<std::string> keys = {};      // object: all keys
        std::optional<std::string> path = {}; // of a known object
        json_value* known_array = nullptr;    // value of a known array
    };

    // Returns the path of the current value.
    [[nodiscard]] std::string path() const
    {
        std::string out;
        for (level const& parent : levels_) {
            std::size_t const index = &parent == &levels_.back() ? parent.index : parent.index - 1;
            out += parent.is_array || out.empty() ? "" : ".";
            out += parent.is_array ? '[' + std::to_string(index) + ']' : to_printable_key(parent.key);
        }
        return out.empty() ? document_.subject_ : to_printable(out, 300);
    }
    // Stores a value if its key is known or in ignored, and returns the stored value or null. Sets known_path if known.
    json_value* keep(json_value value, std::optional<std::string>& known_path)
    {
        if (levels_.empty()) {
            if (value.type != json_value::kind::object)
                document_.fail(text_of({document_.subject_, " is ",
                                        value.type == json_value::kind::array ? "an array" : value.to_message_text(),
                                        ", but must be an object"}));
            known_path = "";
            return nullptr;
        }
        level& parent = levels_.back();
        if (parent.is_array) {
            ++parent.index;
            if (parent.known_array == nullptr)
                return nullptr;
            ++parent.known_array->size;
            if (parent.known_array->items.size() < 4)
                parent.known_array->items.push_back(std::move(value));
            return nullptr;
        }
        if (!parent.path)
            return nullptr;
        value.order = ++document_.value_count_;
        std::string path_of_value = (parent.path->empty() ? "" : *parent.path + ".") + parent.key;
        bool const is_path = parent.key.find('.') != parent.key.npos; // the key "a.b" is not b in the object a
        bool const ignored = !is_path && contains(document_.ignored_, path_of_value);
        bool const known = !is_path && contains(document_.known_, path_of_value);
        if (!known)
            document_.warn_of_key(*parent.path, parent.key);
        if (!known && !ignored)
            return nullptr;
        json_value& kept = document_.values_[path_of_value] = std::move(value);
        if (known)
            known_path = std::move(path_of_value);
        return &kept;
    }
    bool scalar(json_value value)
    {
        std::optional<std::string> known_path;
        keep(std::move(value), known_path);
        return true;
    }
    bool open(json_value::kind kind)
    {
        if (levels_.size() == json_document::max_depth)
            document_.fail(text_of({document_.subject_, " is nested more than ", json_document::max_depth,
                                    " levels deep, at ", to_printable(path(), 100)}));
        level inside{.is_array = kind == json_value::kind::array};
        json_value* const kept = keep({.type = kind}, inside.path);
        inside.known_array = inside.is_array ? kept : nullptr;
        levels_.push_back(std::move(inside));
        return true;
    }
    bool close()
    {
        levels_.pop_back();
        return true;
    }

    json_document& document_;
    std::vector<level> levels_;
};

inline json_document::json_document(std::string_view text, std::string subject, std::string source,
                                    std::span<std::string_view const> known, std::span<std::string_view const> ignored)
    : text_(text), subject_(std::move(subject)), source_(std::move(source)), known_(known), ignored_(ignored)
{
    if (text_.starts_with("\xef\xbb\xbf")) // byte order mark of some editors
        text_.remove_prefix(3);
    if (text_.size() > max_bytes)
        fail(text_of({subject_, " has more than ", max_bytes, " bytes, the most that is read"}));
    // The parser takes a zero byte for the end of the text.
    if (std::size_t const position = text_.find('\0'); position != text_.npos)
        fail_at(position, "a byte that is 0");
    json_events events(*this);
    nlohmann::json::sax_parse(text_.begin(), text_.end(), &events);
    text_ = {}; // the text may be freed before the document
}

inline void json_document::warn_of_key(std::string const& object, std::string const& key)
{
    if (warnings_.size() == max_warnings) {
        ++dropped_warnings_; // without a slow search for a similar key
        return;
    }
    std::string const path = object.empty() ? "" : object + ".";
    std::string warning = text_of({path, to_printable_key(key), " is ignored"});
    std::string_view best;
    std::size_t least = 3;
    if (key.size() <= 40)
        for (std::string_view const candidate : known_) {
            std::size_t const cut = candidate.rfind('.') + 1; // npos + 1 is 0
            if (candidate.substr(0, cut) != path)
                continue;
            std::string_view const name = candidate.substr(cut);
            // One error for every three letters: with more, every short key would resemble another one.
            std::size_t const errors = typing_errors(to_lower(key), to_lower(name));
            if (errors < least && errors * 3 <= name.size()) {
                least = errors;
                best = name;
            }
        }
    if (!best.empty())
        warning += text_of({": did you mean ", best, "?"});
    warn(value_count_, std::move(warning));
}

} // namespace detail

ADAMANT_END_NAMESPACE
