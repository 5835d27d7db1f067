// SPDX-License-Identifier: Apache-2.0
// Sets of PUs and NUMA nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

/// A set of indexes from 0 to max_index. A regular value: copies are independent, equal sets compare equal, and sets
/// are ordered as their lists of members are. Reading one from several threads is fine.
class index_set {
public:
    /// No machine has more PUs. A larger number is a typing error, and no reason to allocate gigabytes.
    static constexpr unsigned max_index = 65535;

    index_set() = default;
    /// A set of the given members. Throws invalid_argument above max_index.
    index_set(std::initializer_list<unsigned> members);
    /// {first, ..., last}; empty where last < first.
    [[nodiscard]] static index_set range(unsigned first, unsigned last);

    /// Throws invalid_argument above max_index.
    void insert(unsigned i);
    /// Removes a member, if it is there.
    void erase(unsigned i) noexcept;
    /// Whether i is a member.
    [[nodiscard]] bool contains(unsigned i) const noexcept;
    /// Whether there are no members.
    [[nodiscard]] bool empty() const noexcept { return words_.empty(); }
    /// Number of members.
    [[nodiscard]] std::size_t size() const noexcept;
    /// The smallest member; the set must not be empty.
    [[nodiscard]] unsigned front() const noexcept;
    /// In ascending order.
    [[nodiscard]] std::vector<unsigned> members() const;

    /// Union.
    index_set& operator|=(index_set const& other);
    /// Intersection.
    index_set& operator&=(index_set const& other) noexcept;
    /// Without the members of other.
    index_set& operator-=(index_set const& other) noexcept;
    /// Union.
    [[nodiscard]] friend index_set operator|(index_set a, index_set const& b)
    {
        a |= b;
        return a; // moved, where `return a |= b` would copy
    }
    /// Intersection.
    [[nodiscard]] friend index_set operator&(index_set a, index_set const& b) noexcept
    {
        a &= b;
        return a;
    }
    /// Members of a that are not in b.
    [[nodiscard]] friend index_set operator-(index_set a, index_set const& b) noexcept
    {
        a -= b;
        return a;
    }
    /// Whether the sets share a member.
    [[nodiscard]] bool intersects(index_set const& other) const noexcept;
    /// Whether every member of other is one of this set.
    [[nodiscard]] bool includes(index_set const& other) const noexcept;

    /// Compares all members.
    friend bool operator==(index_set const&, index_set const&) = default;
    /// An order for containers.
    [[nodiscard]] bool operator<(index_set const& other) const;

private:
    static constexpr std::uint64_t bit(unsigned i) noexcept { return std::uint64_t{1} << i % 64; }
    void trim() noexcept; // no zero words at the end, so that equal sets have equal words

    std::vector<std::uint64_t> words_;
};

using pu_set = index_set;   // PUs, by the operating system's index
using node_set = index_set; // NUMA nodes, by the operating system's index

/// As a list: "0,4-11,21-26,30-46"; an empty text for the empty set. taskset -c, numactl, Slurm and the kernel read it.
[[nodiscard]] std::string to_list(index_set const& set);

/// As a hexadecimal mask in groups of 32 bits, the highest first: "0x7fffffff,00000001"; "0x0" for the empty set.
[[nodiscard]] std::string to_mask(index_set const& set);

namespace detail {

// Reads a text from left to right, and reports where it is wrong.
class text_scanner {
public:
    // what: what the text should be, for the error.
    text_scanner(std::string_view text, char const* what);

    [[noreturn]] void fail(std::string const& problem) const;
    [[noreturn]] void fail(std::string const& problem, std::size_t where) const;

    [[nodiscard]] std::size_t position() const noexcept { return at_; }
    [[nodiscard]] bool done() const noexcept;
    [[nodiscard]] char peek() const noexcept;
    bool take(char c) noexcept;
    bool take(std::string_view word) noexcept;
    void skip_spaces() noexcept;

    // A decimal number of at most index_set::max_index.
    unsigned index();

    // A list "0,4-11,16-30:2", which must not be empty. Ends before the first character that cannot continue it.
    index_set list();

    // The digits of a mask after its "0x", in groups of eight after each comma.
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
    char const* what_;
    std::size_t at_ = 0;
};

} // namespace detail

/// Reads a list ("0,4-11,21-26", "0-30:2" for every second) or a mask ("0xff", "0x7fffffff,00000001": groups of 32
/// bits, the highest first). Spaces around it are allowed, and an empty text is the empty set. A mask must begin with
/// 0x: "10" is the index ten. Throws invalid_argument with a line that points at the wrong character.
[[nodiscard]] index_set parse_index_set(std::string_view text);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/index_set.ipp>
#endif
