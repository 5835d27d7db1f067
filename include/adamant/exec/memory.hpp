// SPDX-License-Identifier: Apache-2.0
// Memory for optimizer state: zero-filled, in huge pages and on chosen NUMA nodes where these are to be had, first
// touched by the threads that will use it, with a report of what was got. What is missing is a note, or an error where
// it was required; either comes before the first touch, where a lack of memory would end in a signal.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>

#include <adamant/exec/memory_options.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// With a page on either side that nobody may access: they catch writes past the ends, and keep the kernel from joining
// the mapping to a neighbour, whose huge pages would count as ours.
struct unmap {
    std::size_t bytes = 0;
    std::size_t guard_bytes = 0;
    void operator()(std::byte* data) const noexcept;
};
using unique_mapping = std::unique_ptr<std::byte, unmap>;

} // namespace detail

// Zero-filled memory of its own. The constructor touches none of it: each thread of the team that will work on it calls
// touch() for its part, and the kernel takes pages where the binding says, or else near that thread. For few and large
// arrays. Movable; a moved-from block is empty. Threads may use different parts at once. After fork() the child shares
// the pages until one of both writes; with hugetlb that may end in SIGBUS there, as nothing is set aside for children.
class memory_block {
public:
    memory_block() = default;
    // Throws invalid_argument for sizes that no machine has, and unavailable where there is not enough memory, or where
    // something required is not to be had. root: as in available_memory().
    memory_block(std::size_t bytes, memory_options const& options, std::string const& root = {});
    // The same with the default options. Programs that need no others have less to compile.
    explicit memory_block(std::size_t bytes);

    // Begins at a multiple of 2 MiB, or of a page where pages are normal ones by request.
    [[nodiscard]] std::byte* data() noexcept { return mapping_.get(); }
    [[nodiscard]] std::byte const* data() const noexcept { return mapping_.get(); }
    [[nodiscard]] std::size_t size() const noexcept;
    [[nodiscard]] memory_report const& report() const noexcept { return report_; }

    // First touch of the bytes from begin to end, by the calling thread: writes zeros, one to each page, so call it
    // before anything else writes. Bytes outside are left alone, also where they share a page.
    void touch(std::size_t begin, std::size_t end) noexcept;

private:
    void set_size(std::size_t bytes);

    // Something that was asked for is not to be had.
    void miss(bool required, std::string const& what);

    // Those of the nodes asked for that this process may use.
    node_set usable_nodes(memory_options const& options);

    void map_hugetlb(memory_options const& options, std::string const& root);

    void map_plain(memory_options const& options, std::string const& root);

    void bind(node_set const& nodes, memory_options const& options, std::string const& root);

    // What the kernel made of it goes to the report; returns why that may be something else.
    std::string set_policy(node_set const& nodes, bool strict);

    detail::unique_mapping mapping_;
    memory_report report_;
};

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

// n elements of T in such memory, all bits of them zero. A contiguous range, so that shards take it.
template <class T>
    requires std::is_trivially_copyable_v<T>
class buffer {
public:
    using value_type = T;

    buffer() = default;
    // Throws what memory_block does.
    explicit buffer(std::size_t n) : block_(bytes_of(n)) {}
    buffer(std::size_t n, memory_options const& options) : block_(bytes_of(n), options) {}

    [[nodiscard]] T* data() noexcept { return reinterpret_cast<T*>(block_.data()); }
    [[nodiscard]] T const* data() const noexcept { return reinterpret_cast<T const*>(block_.data()); }
    [[nodiscard]] std::size_t size() const noexcept { return block_.size() / sizeof(T); }
    [[nodiscard]] T* begin() noexcept { return data(); }
    [[nodiscard]] T const* begin() const noexcept { return data(); }
    [[nodiscard]] T* end() noexcept { return data() + size(); }
    [[nodiscard]] T const* end() const noexcept { return data() + size(); }
    [[nodiscard]] T& operator[](std::size_t i) noexcept { return data()[i]; }
    [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data()[i]; }

    // As memory_block::touch(), of the elements from begin to end.
    void touch(std::size_t begin, std::size_t end) noexcept { block_.touch(begin * sizeof(T), end * sizeof(T)); }
    [[nodiscard]] memory_block const& block() const noexcept { return block_; } // for report(), and for measure()

private:
    static std::size_t bytes_of(std::size_t n)
    {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T))
            throw invalid_argument("adamant: " + std::to_string(n) + " elements of " + std::to_string(sizeof(T)) +
                                   " bytes do not fit in memory; was a negative size converted?");
        return n * sizeof(T);
    }

    memory_block block_;
};

ADAMANT_END_INLINE_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/memory.ipp>
#endif
