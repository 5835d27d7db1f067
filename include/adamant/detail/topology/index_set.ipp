// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/index_set.hpp.
#pragma once

#include <algorithm>
#include <bit>

#include <adamant/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL index_set::index_set(std::initializer_list<unsigned> members)
{
    for (unsigned const i : members)
        insert(i);
}

ADAMANT_DECL index_set index_set::range(unsigned first, unsigned last)
{
    index_set set;
    for (unsigned i = first; i <= last; ++i)
        set.insert(i);
    return set;
}

ADAMANT_DECL void index_set::insert(unsigned i)
{
    if (i > max_index)
        detail::throw_invalid_argument({"index ", i, " is above the largest, ", max_index});
    if (i / 64 >= words_.size())
        words_.resize(i / 64 + 1);
    words_[i / 64] |= bit(i);
}

ADAMANT_DECL void index_set::erase(unsigned i) noexcept
{
    if (i / 64 < words_.size()) {
        words_[i / 64] &= ~bit(i);
        trim();
    }
}

ADAMANT_DECL bool index_set::contains(unsigned i) const noexcept
{
    return i / 64 < words_.size() && (words_[i / 64] & bit(i));
}

ADAMANT_DECL std::size_t index_set::size() const noexcept
{
    std::size_t n = 0;
    for (std::uint64_t const word : words_)
        n += static_cast<std::size_t>(std::popcount(word));
    return n;
}

ADAMANT_DECL bool index_set::operator<(index_set const& other) const
{
    std::vector<unsigned> const a = members();
    std::vector<unsigned> const b = other.members();
    return std::lexicographical_compare(a.data(), a.data() + a.size(), b.data(), b.data() + b.size());
}

ADAMANT_DECL unsigned index_set::front() const noexcept
{
    std::size_t w = 0;
    while (words_[w] == 0)
        ++w;
    return static_cast<unsigned>(w * 64) + static_cast<unsigned>(std::countr_zero(words_[w]));
}

ADAMANT_DECL std::vector<unsigned> index_set::members() const
{
    std::vector<unsigned> all;
    for (std::size_t w = 0; w < words_.size(); ++w)
        for (std::uint64_t bits = words_[w]; bits != 0; bits &= bits - 1)
            all.push_back(static_cast<unsigned>(w * 64) + static_cast<unsigned>(std::countr_zero(bits)));
    return all;
}

ADAMANT_DECL index_set& index_set::operator|=(index_set const& other)
{
    words_.resize(std::max(words_.size(), other.words_.size()));
    for (std::size_t w = 0; w < other.words_.size(); ++w)
        words_[w] |= other.words_[w];
    return *this;
}

ADAMANT_DECL index_set& index_set::operator&=(index_set const& other) noexcept
{
    for (std::size_t w = 0; w < words_.size(); ++w)
        words_[w] &= w < other.words_.size() ? other.words_[w] : 0;
    trim();
    return *this;
}

ADAMANT_DECL index_set& index_set::operator-=(index_set const& other) noexcept
{
    for (std::size_t w = 0; w < std::min(words_.size(), other.words_.size()); ++w)
        words_[w] &= ~other.words_[w];
    trim();
    return *this;
}

ADAMANT_DECL bool index_set::intersects(index_set const& other) const noexcept
{
    for (std::size_t w = 0; w < std::min(words_.size(), other.words_.size()); ++w)
        if ((words_[w] & other.words_[w]) != 0)
            return true;
    return false;
}

ADAMANT_DECL bool index_set::includes(index_set const& other) const noexcept
{
    for (std::size_t w = 0; w < other.words_.size(); ++w)
        if ((other.words_[w] & ~(w < words_.size() ? words_[w] : 0)) != 0)
            return false;
    return true;
}

ADAMANT_DECL void index_set::trim() noexcept
{
    while (!words_.empty() && words_.back() == 0)
        words_.pop_back();
}

ADAMANT_DECL std::string to_list(index_set const& set)
{
    std::string text;
    std::vector<unsigned> const all = set.members();
    for (std::size_t i = 0; i < all.size();) {
        std::size_t last = i;
        while (last + 1 < all.size() && all[last + 1] == all[last] + 1)
            ++last;
        text.append(i == 0 ? "" : ",")
            .append(last == i ? detail::text_of({all[i]}) : detail::text_of({all[i], '-', all[last]}));
        i = last + 1;
    }
    return text;
}

ADAMANT_DECL std::string to_mask(index_set const& set)
{
    constexpr char digits[] = "0123456789abcdef";
    std::string reversed;
    std::size_t const count = set.empty() ? 1 : set.members().back() / 4 + 1;
    for (unsigned digit = 0; digit < count; ++digit) {
        if (digit != 0 && digit % 8 == 0)
            reversed += ',';
        unsigned value = 0;
        for (unsigned b = 0; b < 4; ++b)
            value |= unsigned{set.contains(digit * 4 + b)} << b;
        reversed += digits[value];
    }
    reversed += "x0";
    std::reverse(reversed.begin(), reversed.end());
    return reversed;
}

namespace detail {

ADAMANT_DECL text_scanner::text_scanner(std::string_view text, char const* expected) : text_(text), expected_(expected)
{
}

[[gnu::noinline]] ADAMANT_DECL void text_scanner::fail(std::string const& problem) const
{
    fail(problem, position_);
}

ADAMANT_DECL void text_scanner::fail(std::string const& problem, std::size_t offset) const
{
    std::string printable;
    for (char const c : text_) // one column for each character
        printable += c >= ' ' && c <= '~' ? c : '?';
    throw_invalid_argument({"\"", printable, "\" is not ", expected_, ": ", problem, ", at character ", offset + 1,
                            "\n  ", printable, "\n  ", std::string(offset, ' '), "^"});
}

ADAMANT_DECL bool text_scanner::is_at_end() const noexcept
{
    return position_ == text_.size();
}

ADAMANT_DECL char text_scanner::peek() const noexcept
{
    return is_at_end() ? '\0' : text_[position_];
}

ADAMANT_DECL bool text_scanner::take(char c) noexcept
{
    if (is_at_end() || text_[position_] != c)
        return false;
    ++position_;
    return true;
}

ADAMANT_DECL bool text_scanner::take(std::string_view word) noexcept
{
    if (text_.substr(position_, word.size()) != word)
        return false;
    position_ += word.size();
    return true;
}

ADAMANT_DECL void text_scanner::skip_spaces() noexcept
{
    while (peek() == ' ' || peek() == '\t' || peek() == '\n')
        ++position_;
}

[[gnu::noinline]] ADAMANT_DECL unsigned text_scanner::index()
{
    std::size_t const begin = position_;
    unsigned value = 0;
    while (peek() >= '0' && peek() <= '9') {
        value = value * 10 + static_cast<unsigned>(peek() - '0');
        if (value > index_set::max_index)
            fail(text_of({"a number above ", index_set::max_index}), begin);
        ++position_;
    }
    if (position_ == begin)
        fail(is_at_end() ? "a number is missing" : "a number is expected");
    return value;
}

[[gnu::noinline]] ADAMANT_DECL index_set text_scanner::list()
{
    index_set set;
    do {
        std::size_t const begin = position_;
        unsigned const first = index();
        unsigned last = first;
        unsigned stride = 1;
        if (take('-')) {
            last = index();
            if (last < first)
                fail(text_of({"the range ", first, "-", last, " runs backwards"}), begin);
            if (take(':')) {
                std::size_t const stride_begin = position_;
                stride = index();
                if (stride == 0)
                    fail("a stride of 0", stride_begin);
            }
        }
        for (unsigned i = first; i <= last; i += stride)
            set.insert(i);
    } while (take(','));
    return set;
}

[[gnu::noinline]] ADAMANT_DECL index_set text_scanner::mask()
{
    std::vector<unsigned> digits;
    std::size_t const first = position_;
    bool grouped = false;
    for (;;) {
        std::size_t const begin = position_;
        for (int value = hex(peek()); value >= 0; value = hex(peek())) {
            digits.push_back(static_cast<unsigned>(value));
            ++position_;
        }
        if (position_ == begin)
            fail(is_at_end() ? "a hexadecimal digit is missing" : "a hexadecimal digit is expected");
        if (grouped && position_ - begin != 8)
            fail(text_of({"a group of ", position_ - begin, " digits after a comma, where masks have eight"}), begin);
        if (!grouped && position_ - begin > 8 && peek() == ',')
            fail(text_of({"a group of ", position_ - begin, " digits before a comma, where masks have eight"}), begin);
        if (!take(','))
            break;
        grouped = true;
    }
    index_set set;
    for (std::size_t d = 0; d < digits.size(); ++d)
        for (unsigned b = 0; b < 4; ++b)
            if (digits[d] >> b & 1) {
                std::size_t const i = (digits.size() - 1 - d) * 4 + b;
                if (i > index_set::max_index)
                    fail(text_of({"a mask with bits above ", index_set::max_index}), first);
                set.insert(static_cast<unsigned>(i));
            }
    return set;
}

} // namespace detail

ADAMANT_DECL index_set parse_index_set(std::string_view text)
{
    detail::text_scanner scanner(text, "a list (0,4-11) or a mask (0x7ff1)");
    scanner.skip_spaces();
    if (scanner.is_at_end())
        return {};
    bool const is_mask = scanner.take("0x") || scanner.take("0X");
    index_set set = is_mask ? scanner.mask() : scanner.list();
    scanner.skip_spaces();
    if (!scanner.is_at_end()) {
        char const c = scanner.peek();
        bool const hex_digit = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        scanner.fail(!is_mask && hex_digit ? "a hexadecimal mask has to begin with 0x" : "unexpected text");
    }
    return set;
}

ADAMANT_END_NAMESPACE
