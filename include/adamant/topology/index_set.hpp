// SPDX-License-Identifier: Apache-2.0
// Sets of hardware threads (PUs) or of NUMA nodes, by operating-system index: the value type, and its text.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

// A set of indexes from 0 to max_index. A regular value: copies are independent, equal sets compare equal, and sets are
// ordered as their lists of members are. Reading one from several threads is fine.
class index_set {
public:
    // No machine has so many PUs; a larger number is a slip of the keyboard, not a reason to allocate gigabytes.
    static constexpr unsigned max_index = 65535;

    index_set() = default;
    index_set(std::initializer_list<unsigned> members)
    {
        for (unsigned const i : members)
            insert(i);
    }
    // {first, ..., last}; empty where last < first.
    [[nodiscard]] static index_set range(unsigned first, unsigned last)
    {
        index_set set;
        for (unsigned i = first; i <= last; ++i)
            set.insert(i);
        return set;
    }

    // Throws invalid_argument above max_index.
    void insert(unsigned i)
    {
        if (i > max_index)
            throw invalid_argument("adamant: index " + std::to_string(i) + " is above the largest, " +
                                   std::to_string(max_index));
        if (i / 64 >= words_.size())
            words_.resize(i / 64 + 1);
        words_[i / 64] |= bit(i);
    }
    void erase(unsigned i) noexcept
    {
        if (i / 64 < words_.size()) {
            words_[i / 64] &= ~bit(i);
            trim();
        }
    }
    [[nodiscard]] bool contains(unsigned i) const noexcept
    {
        return i / 64 < words_.size() && (words_[i / 64] & bit(i));
    }
    [[nodiscard]] bool empty() const noexcept { return words_.empty(); }
    [[nodiscard]] std::size_t size() const noexcept
    {
        std::size_t n = 0;
        for (std::uint64_t const word : words_)
            n += static_cast<std::size_t>(std::popcount(word));
        return n;
    }
    // The smallest member; the set must not be empty.
    [[nodiscard]] unsigned front() const noexcept
    {
        std::size_t w = 0;
        while (words_[w] == 0)
            ++w;
        return static_cast<unsigned>(w * 64) + static_cast<unsigned>(std::countr_zero(words_[w]));
    }
    // In ascending order.
    [[nodiscard]] std::vector<unsigned> members() const
    {
        std::vector<unsigned> all;
        for (std::size_t w = 0; w < words_.size(); ++w)
            for (std::uint64_t left = words_[w]; left != 0; left &= left - 1)
                all.push_back(static_cast<unsigned>(w * 64) + static_cast<unsigned>(std::countr_zero(left)));
        return all;
    }

    index_set& operator|=(index_set const& other)
    {
        words_.resize(std::max(words_.size(), other.words_.size()));
        for (std::size_t w = 0; w < other.words_.size(); ++w)
            words_[w] |= other.words_[w];
        return *this;
    }
    index_set& operator&=(index_set const& other) noexcept
    {
        for (std::size_t w = 0; w < words_.size(); ++w)
            words_[w] &= w < other.words_.size() ? other.words_[w] : 0;
        trim();
        return *this;
    }
    // Without the members of other.
    index_set& operator-=(index_set const& other) noexcept
    {
        for (std::size_t w = 0; w < std::min(words_.size(), other.words_.size()); ++w)
            words_[w] &= ~other.words_[w];
        trim();
        return *this;
    }
    [[nodiscard]] friend index_set operator|(index_set a, index_set const& b)
    {
        a |= b;
        return a; // moved, where `return a |= b` would copy
    }
    [[nodiscard]] friend index_set operator&(index_set a, index_set const& b) noexcept
    {
        a &= b;
        return a;
    }
    [[nodiscard]] friend index_set operator-(index_set a, index_set const& b) noexcept
    {
        a -= b;
        return a;
    }
    [[nodiscard]] bool intersects(index_set const& other) const noexcept
    {
        for (std::size_t w = 0; w < std::min(words_.size(), other.words_.size()); ++w)
            if ((words_[w] & other.words_[w]) != 0)
                return true;
        return false;
    }
    // Whether every member of other is one of this set.
    [[nodiscard]] bool includes(index_set const& other) const noexcept
    {
        for (std::size_t w = 0; w < other.words_.size(); ++w)
            if ((other.words_[w] & ~(w < words_.size() ? words_[w] : 0)) != 0)
                return false;
        return true;
    }

    friend bool operator==(index_set const&, index_set const&) = default;
    [[nodiscard]] friend bool operator<(index_set const& a, index_set const& b) { return a.members() < b.members(); }

private:
    static constexpr std::uint64_t bit(unsigned i) noexcept { return std::uint64_t{1} << i % 64; }
    void trim() noexcept // no zero words at the end, so that equal sets have equal words
    {
        while (!words_.empty() && words_.back() == 0)
            words_.pop_back();
    }

    std::vector<std::uint64_t> words_;
};

using pu_set = index_set;   // PUs, by the operating system's index
using node_set = index_set; // NUMA nodes, by the operating system's index

// As a list: "0,4-11,21-26,30-46"; nothing for the empty set. This is what taskset -c, numactl, Slurm and the kernel
// read.
[[nodiscard]] inline std::string to_list(index_set const& set)
{
    std::string text; // appended to piece by piece: GCC 12 warns of overlaps in "literal" + std::string
    std::vector<unsigned> const all = set.members();
    for (std::size_t i = 0; i < all.size();) {
        std::size_t last = i;
        while (last + 1 < all.size() && all[last + 1] == all[last] + 1)
            ++last;
        if (i != 0)
            text += ',';
        text += std::to_string(all[i]);
        if (last != i) {
            text += '-';
            text += std::to_string(all[last]);
        }
        i = last + 1;
    }
    return text;
}

// As a hexadecimal mask in groups of 32 bits, the highest first: "0x7fffffff,00000001"; "0x0" for the empty set.
[[nodiscard]] inline std::string to_mask(index_set const& set)
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
    return {reversed.rbegin(), reversed.rend()};
}

namespace detail {

// Reads one text from left to right, and says where it stopped making sense.
class text_scanner {
public:
    // what: what the text is meant to be, for the error.
    text_scanner(std::string_view text, char const* what) : text_(text), what_(what) {}

    [[noreturn]] void fail(std::string const& problem) const { fail(problem, at_); }
    [[noreturn]] void fail(std::string const& problem, std::size_t where) const
    {
        std::string shown;
        for (char const c : text_) // one column for each character, whatever it is
            shown += c >= ' ' && c <= '~' ? c : '?';
        throw invalid_argument("adamant: \"" + shown + "\" is not " + what_ + ": " + problem + ", at character " +
                               std::to_string(where + 1) + "\n  " + shown + "\n  " + std::string(where, ' ') + "^");
    }

    [[nodiscard]] std::size_t position() const noexcept { return at_; }
    [[nodiscard]] bool done() const noexcept { return at_ == text_.size(); }
    [[nodiscard]] char peek() const noexcept { return done() ? '\0' : text_[at_]; }
    bool take(char c) noexcept
    {
        if (done() || text_[at_] != c)
            return false;
        ++at_;
        return true;
    }
    bool take(std::string_view word) noexcept
    {
        if (text_.substr(at_, word.size()) != word)
            return false;
        at_ += word.size();
        return true;
    }
    void skip_spaces() noexcept
    {
        while (peek() == ' ' || peek() == '\t' || peek() == '\n')
            ++at_;
    }

    // A decimal number of at most index_set::max_index.
    unsigned index()
    {
        std::size_t const begin = at_;
        unsigned value = 0;
        while (peek() >= '0' && peek() <= '9') {
            value = value * 10 + static_cast<unsigned>(peek() - '0');
            if (value > index_set::max_index)
                fail("a number above " + std::to_string(index_set::max_index), begin);
            ++at_;
        }
        if (at_ == begin)
            fail(done() ? "a number is missing" : "a number is expected");
        return value;
    }

    // A list "0,4-11,16-30:2", which must not be empty; ends before the first character that cannot go on with it.
    index_set list()
    {
        index_set set;
        do {
            std::size_t const begin = at_;
            unsigned const first = index();
            unsigned last = first;
            unsigned stride = 1;
            if (take('-')) {
                last = index();
                if (last < first)
                    fail("the range " + std::to_string(first) + "-" + std::to_string(last) + " runs backwards", begin);
                if (take(':')) {
                    std::size_t const stride_at = at_;
                    stride = index();
                    if (stride == 0)
                        fail("a stride of 0", stride_at);
                }
            }
            for (unsigned i = first; i <= last; i += stride)
                set.insert(i);
        } while (take(','));
        return set;
    }

    // The digits of a mask after its "0x", in groups of eight after each comma.
    index_set mask()
    {
        std::vector<unsigned> digits;
        std::size_t const first = at_;
        bool grouped = false;
        for (;;) {
            std::size_t const begin = at_;
            for (int value = hex(peek()); value >= 0; value = hex(peek())) {
                digits.push_back(static_cast<unsigned>(value));
                ++at_;
            }
            if (at_ == begin)
                fail(done() ? "a hexadecimal digit is missing" : "a hexadecimal digit is expected");
            if (grouped && at_ - begin != 8)
                fail("a group of " + std::to_string(at_ - begin) + " digits after a comma, where masks have eight",
                     begin);
            if (!grouped && at_ - begin > 8 && peek() == ',')
                fail("a group of " + std::to_string(at_ - begin) + " digits before a comma, where masks have eight",
                     begin);
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
                        fail("a mask with bits above " + std::to_string(index_set::max_index), first);
                    set.insert(static_cast<unsigned>(i));
                }
        return set;
    }

private:
    static constexpr int hex(char c) noexcept
    {
        return c >= '0' && c <= '9'   ? c - '0'
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                      : -1;
    }

    std::string_view text_;
    char const* what_;
    std::size_t at_ = 0;
};

} // namespace detail

// Reads a list ("0,4-11,21-26", "0-30:2" for every second) or a mask ("0xff", "0x7fffffff,00000001": groups of 32 bits,
// the highest first); spaces around it and an empty text (the empty set) are fine. A mask has to begin with 0x: "10" is
// the index ten. Throws invalid_argument with a line that points at the character that does not belong.
[[nodiscard]] inline index_set parse_index_set(std::string_view text)
{
    detail::text_scanner scanner(text, "a list (0,4-11) or a mask (0x7ff1)");
    scanner.skip_spaces();
    if (scanner.done())
        return {};
    bool const is_mask = scanner.take("0x") || scanner.take("0X");
    index_set set = is_mask ? scanner.mask() : scanner.list();
    scanner.skip_spaces();
    if (!scanner.done()) {
        char const c = scanner.peek();
        bool const hex_digit = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
        scanner.fail(!is_mask && hex_digit ? "a hexadecimal mask has to begin with 0x"
                                           : "nothing of the kind goes on like this");
    }
    return set;
}

ADAMANT_END_NAMESPACE
