// SPDX-License-Identifier: Apache-2.0
// Sets of PUs (hardware threads) and NUMA nodes, and their text forms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

/// A set of indexes from 0 to max_index.
///
/// A regular value type. Sets are ordered lexicographically by their ascending members. Concurrent const access is
/// safe.
class index_set {
public:
    /// Largest member. No machine has this many PUs, so a larger number is a typing error, not a reason to allocate.
    static constexpr unsigned max_index = 65535;

    /// Makes an empty set.
    index_set() = default;
    /// Makes a set of the given members, in any order.
    /// @throws invalid_argument  for a member above max_index.
    index_set(std::initializer_list<unsigned> members);
    /// Returns {first, ..., last}; empty if last < first.
    /// @throws invalid_argument  for a member above max_index.
    [[nodiscard]] static index_set range(unsigned first, unsigned last);

    /// Adds i.
    /// @throws invalid_argument  if i is above max_index.
    void insert(unsigned i);
    /// Removes i if it is a member.
    void erase(unsigned i) noexcept;
    /// Returns whether i is a member.
    [[nodiscard]] bool contains(unsigned i) const noexcept;
    /// Returns whether the set has no members.
    [[nodiscard]] bool empty() const noexcept { return words_.empty(); }
    /// Returns the number of members.
    [[nodiscard]] std::size_t size() const noexcept;
    /// Returns the smallest member. The set must not be empty.
    [[nodiscard]] unsigned front() const noexcept;
    /// Returns the members in ascending order.
    [[nodiscard]] std::vector<unsigned> members() const;

    /// Adds the members of other.
    index_set& operator|=(index_set const& other);
    /// Keeps only members that other has, too.
    index_set& operator&=(index_set const& other) noexcept;
    /// Removes the members of other.
    index_set& operator-=(index_set const& other) noexcept;
    /// Returns the union.
    [[nodiscard]] friend index_set operator|(index_set a, index_set const& b)
    {
        a |= b;
        return a; // moves; `return a |= b` would copy
    }
    /// Returns the intersection.
    [[nodiscard]] friend index_set operator&(index_set a, index_set const& b) noexcept
    {
        a &= b;
        return a;
    }
    /// Returns the difference: members of a that b lacks.
    [[nodiscard]] friend index_set operator-(index_set a, index_set const& b) noexcept
    {
        a -= b;
        return a;
    }
    /// Returns whether the two sets share a member.
    [[nodiscard]] bool intersects(index_set const& other) const noexcept;
    /// Returns whether this set has every member of other.
    [[nodiscard]] bool includes(index_set const& other) const noexcept;

    /// Compares the members.
    friend bool operator==(index_set const&, index_set const&) = default;
    /// Orders sets lexicographically by their ascending members.
    [[nodiscard]] bool operator<(index_set const& other) const;

private:
    static constexpr std::uint64_t bit(unsigned i) noexcept { return std::uint64_t{1} << i % 64; }
    void trim() noexcept; // removes trailing zero words, so that equal sets have equal words

    std::vector<std::uint64_t> words_;
};

/// PUs (hardware threads) by the operating system's index.
using pu_set = index_set;
/// NUMA nodes by the operating system's index.
using node_set = index_set;

/// Formats a set as a list: "0,4-11,21-26,30-46"; "" for the empty set.
///
/// taskset -c, numactl, Slurm and the kernel accept this form.
[[nodiscard]] std::string to_list(index_set const& set);

/// Formats a set as a hexadecimal mask: "0x7fffffff,00000001"; "0x0" for the empty set.
///
/// Groups of 32 bits, the highest first.
[[nodiscard]] std::string to_mask(index_set const& set);

/// Parses a list ("0,4-11,21-26", or "0-30:2" for every second index) or a mask ("0xff").
///
/// A mask consists of groups of 32 bits, the highest first: "0x7fffffff,00000001". It must begin with 0x: "10" is the
/// index ten. Surrounding spaces are allowed. An empty text is the empty set.
/// @throws invalid_argument  for any other text; a line of the message points at the wrong character.
[[nodiscard]] index_set parse_index_set(std::string_view text);

namespace detail {

// Reads a text from left to right and reports the position of an error.
class text_scanner {
public:
    // expected: what the text should be, for error messages.
    text_scanner(std::string_view text, char const* expected);

    [[noreturn]] void fail(std::string const& problem) const;
    [[noreturn]] void fail(std::string const& problem, std::size_t offset) const;

    [[nodiscard]] std::size_t position() const noexcept { return position_; }
    [[nodiscard]] bool is_at_end() const noexcept;
    [[nodiscard]] char peek() const noexcept;
    bool take(char c) noexcept;
    bool take(std::string_view word) noexcept;
    void skip_spaces() noexcept;

    // A decimal number of at most index_set::max_index.
    unsigned index();

    // A non-empty list "0,4-11,16-30:2". Stops before the first character that cannot continue it.
    index_set list();

    // The digits of a mask after its "0x", with eight digits in each group that follows a comma.
    index_set mask();

private:
    static constexpr int hex(char c) noexcept
    {
        return c >= '0' && c <= '9'   ? c - '0'
               : c >= 'a' && c <= 'f' ? c - 'a' + 10
               : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                      : -1;
    }

    std::string_view text_;
    char const* expected_;
    std::size_t position_ = 0;
};

} // namespace detail

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/index_set.ipp>
#endif
