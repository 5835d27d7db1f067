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

ADAMANT_BEGIN_NAMESPACE

/// Page sizes. transparent: huge pages if the kernel has them (MADV_HUGEPAGE). normal: never huge. hugetlb_*: from the
/// pool that the administrator fills; reserved when mapped.
enum class page_kind { transparent, normal, hugetlb_2m, hugetlb_1g };

/// Name of the kind, such as "transparent".
[[nodiscard]] constexpr std::string_view name(page_kind kind) noexcept
{
    constexpr std::string_view names[] = {"transparent", "normal", "hugetlb 2 MiB", "hugetlb 1 GiB"};
    return names[static_cast<unsigned>(kind)];
}

/// The memory that a process may still use, and what limits it.
struct memory_limit {
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); ///< available bytes; the maximum if no limit is known
    std::string source = {};                                     ///< where the limit comes from
};

/// NUMA binding. preferred: the kernel uses other nodes when these are full. bound: it never does, so the OOM killer
/// may act while other nodes have memory.
enum class memory_binding { none, preferred, bound };

/// Name of the binding, such as "preferred".
[[nodiscard]] constexpr std::string_view name(memory_binding binding) noexcept
{
    constexpr std::string_view names[] = {"none", "preferred", "bound"};
    return names[static_cast<unsigned>(binding)];
}

/// How memory is allocated.
struct memory_options {
    page_kind pages = page_kind::transparent; ///< pages that are requested
    bool pages_required =
        false; ///< false: hugetlb may fall back to transparent, and transparent may fall back to normal; see report()
    node_set nodes = {}; ///< empty: the policy of the process, for example of numactl
    bool nodes_required =
        false; ///< false: the binding may fall back from bound to preferred, and from preferred to none; see report()
    bool check_available = true; ///< call check_memory() first
};

/// Pages and NUMA binding of a block, as the kernel reports them.
struct memory_report {
    std::size_t bytes = 0;        ///< requested
    std::size_t mapped_bytes = 0; ///< `bytes` in whole pages
    page_kind pages =
        page_kind::transparent; ///< kind of pages; measure_placement() says how many bytes are in huge pages
    memory_binding binding = memory_binding::none; ///< as read back from the kernel
    node_set nodes = {};    ///< nodes of the kernel's policy for the pages; see measure_placement()
    std::string notes = {}; ///< requests that could not be met, with reasons, joined by "; "
};

namespace detail {

// A mapping between two inaccessible pages (hugetlb has none). These catch writes past the ends. They also keep the
// kernel from merging the mapping with a neighbor, whose huge pages measure_placement() would then count.
struct unmap {
    std::size_t bytes = 0;
    std::size_t guard_bytes = 0;
    void operator()(std::byte* data) const noexcept;
};
using unique_mapping = std::unique_ptr<std::byte, unmap>;

} // namespace detail

/// Owns zero-filled memory in huge pages and on chosen NUMA nodes. The constructor does not touch the memory. Each
/// thread calls touch() for its part; the kernel then allocates pages on the bound nodes or, without a binding, near
/// that thread. A request that cannot be met is a note in the report, or an error if it was required. Both come before
/// the first touch, because lack of memory during a touch ends in a signal. Meant for few, large arrays.
///
/// Movable; a moved-from block is empty. Threads may use different parts concurrently. After fork() the child shares
/// the pages until either process writes; with hugetlb the child may then get SIGBUS, because nothing is reserved for
/// it.
class memory_block {
public:
    memory_block() = default;
    /// Allocates. root: as in available_memory().
    /// @throws invalid_argument for invalid sizes; unavailable if there is not enough memory or a requirement cannot
    /// be met
    memory_block(std::size_t bytes, memory_options const& options, std::string const& root = {});
    /// Allocates with the default options, which compiles faster.
    explicit memory_block(std::size_t bytes);

    /// The memory. It begins at a multiple of a page if normal pages were requested, otherwise of 2 MiB. If transparent
    /// huge pages are larger than that, a block that can hold one begins at a multiple of their size, if the address
    /// space has room.
    [[nodiscard]] std::byte* data() noexcept { return mapping_.get(); }
    /// The memory.
    [[nodiscard]] std::byte const* data() const noexcept { return mapping_.get(); }
    /// Size in bytes.
    [[nodiscard]] std::size_t size() const noexcept;
    /// Pages and NUMA binding, as the kernel reports them.
    [[nodiscard]] memory_report const& report() const noexcept { return report_; }

    /// First touch of the bytes from begin to end by the calling thread: writes a zero to each page. Call it before
    /// anything else is written there. Bytes outside the range do not change, even in
    /// pages that the range covers only in part.
    void touch(std::size_t begin, std::size_t end) noexcept;

private:
    void set_size(std::size_t bytes);

    // Handles a request that cannot be met: throws if it was required, otherwise adds a note to the report.
    void miss(bool required, std::initializer_list<detail::text_part> reason);

    // The requested nodes that this process may use.
    node_set usable_nodes(memory_options const& options);

    void map_hugetlb(memory_options const& options, std::string const& root);

    void map_plain(memory_options const& options, std::string const& root);

    void bind(node_set const& nodes, memory_options const& options, std::string const& root);

    // Reports the policy that the kernel shows afterwards. Returns why it differs from the request, or an empty string
    // if it does not.
    std::string set_policy(node_set const& nodes, bool strict);

    detail::unique_mapping mapping_;
    memory_report report_;
};

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// n zero elements of T in a memory_block: a contiguous range, from which a shard can be made.
template <class T>
    requires std::is_trivially_copyable_v<T>
class buffer {
public:
    using value_type = T; ///< type of the elements

    buffer() = default;
    /// n elements. Throws as memory_block does.
    explicit buffer(std::size_t n) : block_(bytes_of(n)) {}
    /// n elements with the given options.
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

    /// Calls memory_block::touch() for the elements from begin to end.
    void touch(std::size_t begin, std::size_t end) noexcept { block_.touch(begin * sizeof(T), end * sizeof(T)); }
    /// The block, for report() and measure_placement().
    [[nodiscard]] memory_block const& block() const noexcept { return block_; }

private:
    static std::size_t bytes_of(std::size_t n)
    {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T))
            detail::throw_invalid_argument({detail::counted(n, "element"), " of ", sizeof(T),
                                            " bytes do not fit in memory. Was a negative size converted?"});
        return n * sizeof(T);
    }

    memory_block block_;
};

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE

/// Memory that is available without swapping: the least of what the machine, the cgroups of this process and these
/// nodes (if given) have left. root: the folder that contains proc and sys; "" for this machine. Thread-safe.
[[nodiscard]] memory_limit available_memory(node_set const& nodes = {}, std::string const& root = {});

/// Checks that `bytes` of memory are available (see available_memory()). A memory_block checks its own size, unless
/// check_available is false or its pages are hugetlb, which the kernel reserves. Before you create several blocks,
/// check their total: a block takes no memory before it is touched, so each block alone would pass its own check. Other
/// processes may take memory later.
/// @throws unavailable if less is available
void check_memory(std::size_t bytes, node_set const& nodes = {}, std::string const& root = {});

/// Page sizes and NUMA nodes of the touched pages of a block.
struct memory_placement {
    std::size_t resident_bytes = 0; ///< bytes with a page
    std::size_t huge_bytes = 0;     ///< bytes in pages of 2 MiB or more
    /// Bytes on each node. In a block larger than sampled_bytes they are estimated from evenly spaced pages.
    std::map<unsigned, std::size_t> node_bytes = {};
    std::string notes = {}; ///< what the kernel did not report

    static constexpr std::size_t sampled_bytes = std::size_t{1} << 28; ///< blocks larger than this are sampled
};

/// Measures the placement of a block. Reads all of /proc/self/smaps, which may take a second: call it at setup.
[[nodiscard]] memory_placement measure_placement(memory_block const& block);

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// A buffer of n zeros. In a step over n elements each thread starts with its own part. The same thread touches that
/// part first, so that the kernel allocates it near the thread. Call it at setup. Throws as the constructor of buffer
/// does, before anything is touched, and as executor::for_each_owned_slice() does.
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
