// SPDX-License-Identifier: Apache-2.0
// Buffers with huge pages, NUMA placement and first touch; memory limits.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include <adamant/executor.hpp>
#include <adamant/index_set.hpp>
#include <adamant/detail/core/abi.hpp>

// Memory for optimizer state as plain data: the request and the result.

ADAMANT_BEGIN_NAMESPACE

/// transparent: huge where the kernel has huge pages available (MADV_HUGEPAGE). normal: never huge. hugetlb_*: from a
/// pool that the administrator fills; reserved when mapped.
enum class page_kind { transparent, normal, hugetlb_2m, hugetlb_1g };

[[nodiscard]] constexpr std::string_view name(page_kind kind) noexcept
{
    constexpr std::string_view names[] = {"transparent", "normal", "hugetlb 2 MiB", "hugetlb 1 GiB"};
    return names[static_cast<unsigned>(kind)];
}

/// The memory that a process may still use, and what limits it.
struct memory_limit {
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); ///< left; the maximum where no limit is known
    std::string source = {};                                     ///< of this limit
};

/// preferred: other nodes are used where these are full. bound: they never are, so the OOM killer may act while other
/// nodes have room.
enum class memory_binding { none, preferred, bound };

[[nodiscard]] constexpr std::string_view name(memory_binding binding) noexcept
{
    constexpr std::string_view names[] = {"none", "preferred", "bound"};
    return names[static_cast<unsigned>(binding)];
}

/// How memory is allocated.
struct memory_options {
    page_kind pages = page_kind::transparent; ///< pages that are requested
    bool pages_required = false; ///< otherwise hugetlb falls back to transparent, and transparent to normal
    node_set nodes = {};         ///< empty: no binding; the policy of the process, as numactl sets it, holds
    bool nodes_required = false; ///< otherwise bound falls back to preferred, and preferred to none
    bool check_available = true; ///< call check_memory() first
};

/// What the kernel gave.
struct memory_report {
    std::size_t bytes = 0;                         ///< requested
    std::size_t mapped_bytes = 0;                  ///< in whole pages
    page_kind pages = page_kind::transparent;      ///< of the mapping; measure_placement() says how much of it is huge
    memory_binding binding = memory_binding::none; ///< this and the nodes are read back from the kernel
    node_set nodes = {};                           ///< NUMA nodes that hold the pages
    std::string notes = {};                        ///< requests that could not be met, and why, joined by "; "
};

// Memory for optimizer state: zero-filled, in huge pages and on chosen NUMA nodes where these are available, first
// touched by the threads that will use it, with a report of the result. A request that cannot be met is a note in the
// report, or an error where it was required. Both come before the first touch, where a lack of memory would be a
// signal.

namespace detail {

// With an inaccessible page on either side. These catch writes past the ends, and keep the kernel from joining the
// mapping to a neighbour, whose huge pages would count as ours.
struct unmap {
    std::size_t bytes = 0;
    std::size_t guard_bytes = 0;
    void operator()(std::byte* data) const noexcept;
};
using unique_mapping = std::unique_ptr<std::byte, unmap>;

} // namespace detail

/// Owns zero-filled memory. The constructor touches none of it: each thread that will work on it calls touch() for its
/// part, and the kernel takes pages where the binding says, or else near that thread. Meant for few, large arrays.
/// Movable; a moved-from block is empty. Threads may use different parts concurrently. After fork() the child shares
/// the pages until either process writes; with hugetlb the child may then get SIGBUS, because nothing is reserved for
/// it.
class memory_block {
public:
    memory_block() = default;
    /// Throws invalid_argument for sizes that no machine has, and unavailable where there is not enough memory or a
    /// requirement cannot be met. root: as in available_memory().
    memory_block(std::size_t bytes, memory_options const& options, std::string const& root = {});
    /// The same with the default options. Programs that need no others have less to compile.
    explicit memory_block(std::size_t bytes);

    /// Begins at a multiple of 2 MiB, or of a page where pages are normal ones by request.
    [[nodiscard]] std::byte* data() noexcept { return mapping_.get(); }
    /// Its bytes.
    [[nodiscard]] std::byte const* data() const noexcept { return mapping_.get(); }
    /// Size in bytes.
    [[nodiscard]] std::size_t size() const noexcept;
    /// What the kernel gave.
    [[nodiscard]] memory_report const& report() const noexcept { return report_; }

    /// First touch of the bytes from begin to end, by the calling thread: writes a zero to each page, so call it before
    /// anything else is written there. Bytes outside the range are left alone, even in shared pages.
    void touch(std::size_t begin, std::size_t end) noexcept;

private:
    void set_size(std::size_t bytes);

    // A request cannot be met: throws where it was required, and else adds a note to the report.
    void miss(bool required, std::string const& what);

    // The requested nodes that this process may use.
    node_set usable_nodes(memory_options const& options);

    void map_hugetlb(memory_options const& options, std::string const& root);

    void map_plain(memory_options const& options, std::string const& root);

    void bind(node_set const& nodes, memory_options const& options, std::string const& root);

    // Reports the policy that the kernel shows afterwards. Returns why it differs from the request; empty where not.
    std::string set_policy(node_set const& nodes, bool strict);

    detail::unique_mapping mapping_;
    memory_report report_;
};

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// n elements of T in a memory_block, all bits zero. A contiguous range, so that a shard can be made from it.
template <class T>
    requires std::is_trivially_copyable_v<T>
class buffer {
public:
    using value_type = T; ///< type of the elements

    buffer() = default;
    /// Throws what memory_block does.
    explicit buffer(std::size_t n) : block_(bytes_of(n)) {}
    /// N elements with the given options.
    buffer(std::size_t n, memory_options const& options) : block_(bytes_of(n), options) {}

    /// The first element.
    [[nodiscard]] T* data() noexcept { return reinterpret_cast<T*>(block_.data()); }
    /// The first element.
    [[nodiscard]] T const* data() const noexcept { return reinterpret_cast<T const*>(block_.data()); }
    /// Number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return block_.size() / sizeof(T); }
    /// The first element.
    [[nodiscard]] T* begin() noexcept { return data(); }
    /// The first element.
    [[nodiscard]] T const* begin() const noexcept { return data(); }
    /// One past the last element.
    [[nodiscard]] T* end() noexcept { return data() + size(); }
    /// One past the last element.
    [[nodiscard]] T const* end() const noexcept { return data() + size(); }
    /// Element i, unchecked.
    [[nodiscard]] T& operator[](std::size_t i) noexcept { return data()[i]; }
    /// Element i, unchecked.
    [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data()[i]; }

    /// As memory_block::touch(), of the elements from begin to end.
    void touch(std::size_t begin, std::size_t end) noexcept { block_.touch(begin * sizeof(T), end * sizeof(T)); }
    [[nodiscard]] memory_block const& block() const noexcept
    {
        return block_;
    } ///< for report() and measure_placement()

private:
    static std::size_t bytes_of(std::size_t n)
    {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T))
            detail::throw_invalid_argument(
                {n, " elements of ", sizeof(T), " bytes do not fit in memory; was a negative size converted?"});
        return n * sizeof(T);
    }

    memory_block block_;
};

ADAMANT_END_INLINE_NAMESPACE

// How much memory is available, and by which limit: of the machine, of cgroups, of NUMA nodes.

ADAMANT_BEGIN_NAMESPACE

/// How much memory is available without swapping: the least of what the machine, the cgroups of this process and these
/// nodes (if any are given) have left. root: the folder that has proc and sys; "" for this machine's. Thread-safe.
[[nodiscard]] memory_limit available_memory(node_set const& nodes = {}, std::string const& root = {});

/// Throws unavailable where available_memory() is less. Every memory_block checks its own size. Before the first of
/// several, check their total, because none takes memory before it is touched. Other processes may still take memory
/// later.
void check_memory(std::size_t bytes, node_set const& nodes = {}, std::string const& root = {});

// What the kernel has given to a block of memory: huge pages, and which NUMA nodes.

/// What the kernel has given to a block so far: nothing for pages that have not been touched.
struct memory_placement {
    std::size_t resident_bytes = 0; ///< bytes with a page
    std::size_t huge_bytes = 0;     ///< of these, in pages of 2 MiB or more
    std::map<unsigned, std::size_t> node_bytes =
        {};                 ///< by node; above sampled_bytes estimated from evenly spaced pages
    std::string notes = {}; ///< what the kernel did not tell

    static constexpr std::size_t sampled_bytes = std::size_t{1} << 28; ///< bytes that were looked at
};

/// Asks the kernel. Reads all of /proc/self/smaps, which may take a second: meant for set-up, not for every step.
[[nodiscard]] memory_placement measure_placement(memory_block const& block);

ADAMANT_END_NAMESPACE

// Memory that is first touched by the threads that will work on it, so that the kernel puts it near them.

ADAMANT_BEGIN_INLINE_NAMESPACE

/// A buffer of n zeros. Each element is first touched by the thread that begins with it in a step over n elements.
/// Throws what buffer throws, before anything is touched, and what executor::for_each_owned_slice() throws. Meant for
/// set-up.
template <class T>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] buffer<T> make_buffer(executor const& cpu, std::size_t n)
{
    buffer<T> made(n);
    cpu.for_each_owned_slice(n, [&](slice part) { made.touch(part.begin, part.end); });
    return made;
}
template <class T>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] buffer<T> make_buffer(executor const& cpu, std::size_t n, memory_options const& options)
{
    buffer<T> made(n, options);
    cpu.for_each_owned_slice(n, [&](slice part) { made.touch(part.begin, part.end); });
    return made;
}

ADAMANT_END_INLINE_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/exec/memory.ipp>
#include <adamant/detail/exec/memory_limits.ipp>
#include <adamant/detail/exec/memory_placement.ipp>
#endif
