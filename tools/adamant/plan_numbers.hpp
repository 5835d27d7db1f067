// SPDX-License-Identifier: Apache-2.0
// Numbers of a plan: read from the command line, and printed.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <adamant/dtype.hpp>

#include "arguments.hpp"

namespace cli {

// Whether an ending equals the known one, ignoring case.
inline bool is_ending(std::string_view written, std::string_view known)
{
    auto const lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return written.size() == known.size() && std::equal(written.begin(), written.end(), known.begin(),
                                                        [&](char a, char b) { return lower(a) == lower(b); });
}

// Reads a number from `least` to `most` with one of the endings, ignoring case, or none: "12e9" or "80GB". must_be:
// what the error says the value must be.
struct number_ending {
    std::string_view text;
    double factor;
};
template <std::size_t N>
double number_with_ending(std::string_view option, std::string const& text, number_ending const (&endings)[N],
                          double least, double most, std::string_view must_be)
{
    auto const refuse = [&] {
        throw usage_error(std::string(option) + " is '" + text + "', but must be " + std::string(must_be));
    };
    double value = 0;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc())
        refuse();
    std::string_view ending(end, static_cast<std::size_t>(text.data() + text.size() - end));
    while (ending.starts_with(' '))
        ending.remove_prefix(1);
    if (!ending.empty()) {
        bool is_known = false;
        for (number_ending const& known : endings)
            if (is_ending(ending, known.text)) {
                value *= known.factor;
                is_known = true;
            }
        if (!is_known)
            refuse();
    }
    if (!(value >= least && value <= most)) // a NaN is neither
        refuse();
    return value;
}

inline constexpr number_ending byte_endings[] = {{"M", 1e6},     {"G", 1e9},      {"T", 1e12},     {"MB", 1e6},
                                                 {"GB", 1e9},    {"TB", 1e12},    {"Mi", 0x1p20},  {"Gi", 0x1p30},
                                                 {"Ti", 0x1p40}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
inline constexpr std::string_view must_be_bytes =
    "a size with its unit, such as 80GB, 500GiB or 2TB, or 1000000 bytes or more";
// Reads a number of bytes. Refuses small numbers without a unit, where the unit is probably missing.
inline std::size_t byte_count(std::string_view option, std::string const& text)
{
    return static_cast<std::size_t>(number_with_ending(option, text, byte_endings, 1e6, 1e16, must_be_bytes));
}
// The same, or 0 with any unit or none.
inline std::size_t byte_count_or_0(std::string_view option, std::string const& text)
{
    double value = 1;
    static_cast<void>(std::from_chars(text.data(), text.data() + text.size(), value));
    if (value != 0)
        return byte_count(option, text);
    return static_cast<std::size_t>(number_with_ending(option, text, byte_endings, 0, 0, must_be_bytes));
}

// Reads a number of parameters or elements.
inline std::size_t element_count(std::string_view option, std::string const& text)
{
    static constexpr number_ending endings[] = {{"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}};
    return static_cast<std::size_t>(std::llround(
        number_with_ending(option, text, endings, 1, 1e15, "a number from 1 to 1e15, such as 7e9, 7B or 7000000000")));
}

inline double plain_number(std::string_view option, std::string const& text, double least, double most,
                           std::string_view must_be)
{
    static constexpr number_ending none[] = {{"", 1}};
    return number_with_ending(option, text, none, least, most, must_be);
}

// A share such as 0.9 or 90%, from `least` to 1.
inline double share(std::string_view option, std::string const& text, double least, std::string_view must_be)
{
    static constexpr number_ending endings[] = {{"%", 0.01}};
    return number_with_ending(option, text, endings, least, 1, must_be);
}
inline double share(std::string_view option, std::string const& text)
{
    return share(option, text, 0, "a share from 0 to 1, such as 0.9 or 90%");
}

// a * b. Throws usage_error for more bytes than any memory has.
inline std::size_t product(std::size_t a, std::size_t b)
{
    std::size_t result = 0;
    if (__builtin_mul_overflow(a, b, &result) || result > std::size_t{1} << 58)
        throw usage_error("the plan has an array of more than 2^58 bytes; look for a number that is too large among "
                          "--params, --batch, --seq, --vocab and --hidden");
    return result;
}

// array_bytes() with the check of product().
inline std::size_t array_product(adamant::dtype type, std::size_t elems)
{
    std::size_t const group_elems = elems_together(type);
    return product(elems / group_elems + (elems % group_elems != 0), size_bytes(type));
}

inline std::string fixed(double value, int digits)
{
    char text[400];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}
// For bytes of an element: 28, 30.1, 14.25, 9.125.
inline std::string shortest(double value)
{
    char text[40];
    std::snprintf(text, sizeof text, "%.10g", value);
    return text;
}
inline std::string gb(std::size_t bytes)
{
    return fixed(static_cast<double>(bytes) / 1e9, 1);
}
// 70,553,706,496
inline std::string grouped(std::size_t n)
{
    std::string text = std::to_string(n);
    for (std::size_t end = text.size(); end > 3; end -= 3)
        text.insert(end - 3, 1, ',');
    return text;
}
// A time with three digits and a suitable unit: 4.62 s, 31.5 ms.
inline std::string seconds(double s)
{
    constexpr std::pair<double, char const*> units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
    double value = s * 1e9;
    char const* unit = "ns";
    for (auto const& [size, name] : units)
        if (s >= 0.9995 * size) {
            value = s / size;
            unit = name;
            break;
        }
    return fixed(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2) + " " + unit;
}
// A ratio rounded up or down.
inline std::string ratio_text(double ratio, bool up, int digits = 3)
{
    double const unit = std::pow(10.0, digits);
    double const rounded = (up ? std::ceil(ratio * unit - 1e-9) : std::floor(ratio * unit + 1e-9)) / unit;
    std::string text = fixed(std::abs(rounded), digits); // no -0
    while (text.back() == '0')
        text.pop_back();
    if (text.back() == '.')
        text.pop_back();
    return text;
}
inline std::string nearest_ratio(double ratio)
{
    return ratio_text(std::round(ratio * 1000) / 1000, false);
}

} // namespace cli
