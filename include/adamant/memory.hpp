// SPDX-License-Identifier: Apache-2.0
// Buffers for optimizer state with huge pages, NUMA binding and first touch; memory limits.
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

/// Kind of pages of a mapping.
enum class page_kind {
    transparent, ///< huge if the kernel has huge pages available (MADV_HUGEPAGE)
    normal,      ///< never huge
    hugetlb_2m,  ///< 2 MiB pages from the pool that the administrator fills; reserved when mapped
    hugetlb_1g   ///< 1 GiB pages, likewise
};

/// Returns the name in reports, such as "hugetlb 2 MiB".
[[nodiscard]] constexpr std::string_view name(page_kind kind) noexcept
{
    constexpr std::string_view names[] = {"transparent", "normal", "hugetlb 2 MiB", "hugetlb 1 GiB"};
    return names[static_cast<unsigned>(kind)];
}

/// How memory is bound to NUMA nodes.
enum class memory_binding {
    none,      ///< not bound
    preferred, ///< on the given nodes, and on others when these are full
    bound      ///< on the given nodes only; the OOM killer may act while other nodes have free memory
};

/// Returns the name in reports, such as "preferred".
[[nodiscard]] constexpr std::string_view name(memory_binding binding) noexcept
{
    constexpr std::string_view names[] = {"none", "preferred", "bound"};
    return names[static_cast<unsigned>(binding)];
}

/// Options of a memory_block. A fallback is a note in its report.
struct memory_options {
    page_kind pages = page_kind::transparent; ///< requested pages
    bool pages_required = false; ///< whether to throw instead of falling back: hugetlb, then transparent, then normal
    node_set nodes = {};         ///< NUMA nodes to bind to; empty: the policy of the process (numactl) applies
    bool nodes_required = false; ///< whether to throw instead of falling back: bound, then preferred, then none
    bool check_available = true; ///< whether to call check_memory() first
};

/// Actual properties of a memory_block.
struct memory_report {
    std::size_t bytes = 0;                         ///< requested bytes
    std::size_t mapped_bytes = 0;                  ///< mapped bytes: whole pages
    page_kind pages = page_kind::transparent;      ///< pages of the mapping; measure_placement() counts the huge ones
    memory_binding binding = memory_binding::none; ///< binding, read back from the kernel
    node_set nodes = {};                           ///< bound nodes, read back from the kernel
    std::string notes = {};                        ///< requests that could not be met and why, joined by "; "
};

namespace detail {

// Deleter of a mapping with an inaccessible guard page on either side. Guard pages catch writes past the ends and keep
// the kernel from merging the mapping with a neighbor, whose huge pages would then be counted as ours.
struct unmap {
    std::size_t bytes = 0;
    std::size_t guard_bytes = 0;
    void operator()(std::byte* data) const noexcept;
};
using unique_mapping = std::unique_ptr<std::byte, unmap>;

} // namespace detail

/// Owns zero-filled memory for optimizer state, in huge pages and on chosen NUMA nodes. Meant for few, large arrays.
///
/// The constructor leaves the memory untouched. Each thread that will work on a part calls touch() for it, and the
/// kernel allocates the pages on the bound nodes or, without a binding, near that thread. A request that cannot be met
/// becomes a note in the report, or an exception if it was required; both precede the first touch, which would raise a
/// signal if memory were short.
///
/// Movable; a moved-from block is empty. Threads may use different parts concurrently. After fork() the child shares
/// the pages until either process writes. With hugetlb the child may then get SIGBUS, because no pages are reserved for
/// it.
class memory_block {
public:
    /// Makes an empty block.
    memory_block() = default;
    /// Maps memory.
    /// @param root  as for available_memory().
    /// @throws invalid_argument  for sizes beyond any machine's memory.
    /// @throws unavailable  if memory is short or a required option cannot be met.
    memory_block(std::size_t bytes, memory_options const& options, std::string const& root = {});
    /// Maps memory with the default options. Compiles faster than the other constructor.
    /// @throws invalid_argument  for sizes beyond any machine's memory.
    /// @throws unavailable  if memory is short.
    explicit memory_block(std::size_t bytes);

    /// Returns the first byte; aligned to 2 MiB, or to a page if normal pages were requested.
    [[nodiscard]] std::byte* data() noexcept { return mapping_.get(); }
    /// @overload
    [[nodiscard]] std::byte const* data() const noexcept { return mapping_.get(); }
    /// Returns the requested number of bytes.
    [[nodiscard]] std::size_t size() const noexcept;
    /// Returns the actual properties of the memory.
    [[nodiscard]] memory_report const& report() const noexcept { return report_; }

    /// First-touches the bytes [begin, end) in the calling thread. Call it before anything is written there.
    ///
    /// Writes a zero to each page. Changes no byte outside the range, even in pages that the range shares.
    void touch(std::size_t begin, std::size_t end) noexcept;

private:
    void set_size(std::size_t bytes);

    // Handles a request that cannot be met: throws if it is required, else adds a note to the report.
    void miss(bool required, std::string const& problem);

    // Returns the requested nodes that this process may use.
    node_set usable_nodes(memory_options const& options);

    void map_hugetlb(memory_options const& options, std::string const& root);

    void map_plain(memory_options const& options, std::string const& root);

    void bind(node_set const& nodes, memory_options const& options, std::string const& root);

    // Sets the policy and reports what the kernel shows afterwards. Returns why that differs from the request; else "".
    std::string set_policy(node_set const& nodes, bool strict);

    detail::unique_mapping mapping_;
    memory_report report_;
};

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// An array of n elements of T in a memory_block, all bits zero. A contiguous range that shards accept.
template <class T>
    requires std::is_trivially_copyable_v<T>
class buffer {
public:
    using value_type = T; ///< element type

    /// Makes an empty buffer.
    buffer() = default;
    /// Maps n elements with the default options.
    /// @throws invalid_argument, unavailable  as memory_block does.
    explicit buffer(std::size_t n) : block_(bytes_of(n)) {}
    /// Maps n elements.
    /// @throws invalid_argument, unavailable  as memory_block does.
    buffer(std::size_t n, memory_options const& options) : block_(bytes_of(n), options) {}

    /// Returns the first element.
    [[nodiscard]] T* data() noexcept { return reinterpret_cast<T*>(block_.data()); }
    /// @overload
    [[nodiscard]] T const* data() const noexcept { return reinterpret_cast<T const*>(block_.data()); }
    /// Returns the number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return block_.size() / sizeof(T); }
    /// Returns an iterator to the first element.
    [[nodiscard]] T* begin() noexcept { return data(); }
    /// @overload
    [[nodiscard]] T const* begin() const noexcept { return data(); }
    /// Returns an iterator past the last element.
    [[nodiscard]] T* end() noexcept { return data() + size(); }
    /// @overload
    [[nodiscard]] T const* end() const noexcept { return data() + size(); }
    /// Returns element i; unchecked.
    [[nodiscard]] T& operator[](std::size_t i) noexcept { return data()[i]; }
    /// @overload
    [[nodiscard]] T const& operator[](std::size_t i) const noexcept { return data()[i]; }

    /// First-touches the elements [begin, end) in the calling thread. See memory_block::touch().
    void touch(std::size_t begin, std::size_t end) noexcept { block_.touch(begin * sizeof(T), end * sizeof(T)); }
    /// Returns the memory, for memory_block::report() and measure_placement().
    [[nodiscard]] memory_block const& block() const noexcept { return block_; }

private:
    static std::size_t bytes_of(std::size_t n)
    {
        if (n > std::numeric_limits<std::size_t>::max() / sizeof(T))
            detail::throw_invalid_argument(
                {"cannot allocate ", n, " elements of ", sizeof(T),
                 " bytes: they do not fit in memory. Check whether a negative size was converted"});
        return n * sizeof(T);
    }

    memory_block block_;
};

/// Makes a buffer of n zeros. Each element is first touched by the thread that starts with it in a step.
///
/// Meant for setup.
/// @throws invalid_argument, unavailable  as buffer's constructor does, before anything is touched; and as
///     executor::for_each_owned_slice() does.
template <class T>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] buffer<T> make_buffer(executor const& cpu, std::size_t n)
{
    buffer<T> result(n);
    cpu.for_each_owned_slice(n, [&](slice part) { result.touch(part.begin, part.end); });
    return result;
}
/// @overload
template <class T>
    requires std::is_trivially_copyable_v<T>
[[nodiscard]] buffer<T> make_buffer(executor const& cpu, std::size_t n, memory_options const& options)
{
    buffer<T> result(n, options);
    cpu.for_each_owned_slice(n, [&](slice part) { result.touch(part.begin, part.end); });
    return result;
}

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE

/// Available memory and the limit that determines it.
struct memory_limit {
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); ///< available bytes; the maximum if no limit is known
    std::string source = {};                                     ///< name of the limit
};

/// Returns the memory available without swapping: the minimum over the machine, the process's cgroups and the nodes.
///
/// Thread-safe.
/// @param nodes  NUMA nodes whose free memory is a limit; empty: none.
/// @param root   folder that contains proc and sys; "": this machine's root.
[[nodiscard]] memory_limit available_memory(node_set const& nodes = {}, std::string const& root = {});

/// Checks that available_memory() is at least `bytes`.
///
/// Every memory_block checks its own size. Check the total before allocating several blocks, because a block takes no
/// memory until it is touched. Other processes may still take memory later.
/// @throws unavailable  if less is available.
void check_memory(std::size_t bytes, node_set const& nodes = {}, std::string const& root = {});

/// Physical pages that the kernel has allocated to a block so far. Untouched pages have none.
struct memory_placement {
    std::size_t resident_bytes = 0;                  ///< bytes in physical memory
    std::size_t huge_bytes = 0;                      ///< bytes of these in pages of 2 MiB or more
    std::map<unsigned, std::size_t> node_bytes = {}; ///< bytes by NUMA node
    std::string notes = {};                          ///< what the kernel did not report

    /// For larger blocks node_bytes is an estimate from evenly spaced pages.
    static constexpr std::size_t sampled_bytes = std::size_t{1} << 28;
};

/// Measures the placement of a block. Meant for setup: reads all of /proc/self/smaps, which may take a second.
[[nodiscard]] memory_placement measure_placement(memory_block const& block);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/exec/memory.ipp>
#include <adamant/detail/exec/memory_limits.ipp>
#include <adamant/detail/exec/memory_placement.ipp>
#endif
