// SPDX-License-Identifier: Apache-2.0
// Linux interfaces for memory: cgroup limits, huge page pools, transparent huge pages and NUMA policies.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <linux/mempolicy.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/error.hpp>
#include <adamant/memory.hpp>
#include <adamant/detail/core/system_file.hpp>
#include <adamant/detail/topology/cgroup.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

constexpr std::size_t round_up(std::size_t x, std::size_t multiple) noexcept
{
    return (x + multiple - 1) / multiple * multiple;
}
constexpr bool is_hugetlb(page_kind kind) noexcept
{
    return kind == page_kind::hugetlb_2m || kind == page_kind::hugetlb_1g;
}

// For example "1 byte", or "1310720 bytes (1.3 MiB)".
[[gnu::noinline]] inline std::string bytes_text(std::size_t bytes)
{
    std::string const number = counted(bytes, "byte");
    if (bytes >> 20 == 0)
        return number;
    bool const mib = bytes >> 30 == 0;
    std::size_t const unit = std::size_t{1} << (mib ? 20 : 30);
    std::size_t const tenths = bytes / unit * 10 + (bytes % unit * 10 + unit / 2) / unit;
    std::string const fraction = tenths % 10 == 0 ? std::string() : text_of({".", tenths % 10});
    return text_of({number, " (", tenths / 10, fraction, mib ? " MiB)" : " GiB)"});
}

inline std::size_t page_bytes(page_kind kind) noexcept
{
    return is_hugetlb(kind) ? std::size_t{1} << (kind == page_kind::hugetlb_1g ? 30 : 21)
                            : static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

inline std::string node_folder(std::string const& root, unsigned node)
{
    return text_of({root, "/sys/devices/system/node/node", node});
}

// Path of a file of the machine's pool (folder: sys/kernel/mm) or of a node's pool (folder: the node's).
inline std::string hugetlb_file(std::string const& folder, page_kind kind, char const* file)
{
    return text_of({folder, "/hugepages/hugepages-", page_bytes(kind) / 1024, "kB/", file});
}

inline void keep_least(memory_limit& least, std::size_t bytes, std::string const& source)
{
    if (bytes < least.bytes)
        least = {bytes, source};
}

// Lowers `least` to what one cgroup leaves of the resource: "memory" or "hugetlb.2MB".
[[gnu::noinline]] inline void keep_least_of_cgroup(memory_limit& least, cgroup_folder const& cgroup,
                                                   std::string_view resource)
{
    std::string const file = text_of({cgroup.path, "/", resource});
    auto const named = [&](char const* end) { return text_of({file, end}); };
    std::string const stat = read_file(named(".stat"));
    // The file cache counts as used but is reclaimable. Without this correction, a process that has read many files
    // would seem to have no memory left.
    std::size_t cache = 0;
    for (char const* const reclaimable : {"active_file", "inactive_file"})
        cache += number_after(stat, cgroup.v2 ? reclaimable : text_of({"total_", reclaimable})).value_or(0);
    auto const keep = [&](std::optional<std::size_t> limit, std::string const& usage, std::string const& source) {
        auto const used = limit ? read_number(usage) : std::nullopt;
        if (used)
            keep_least(least, *limit - std::min(*limit, *used - std::min(*used, cache)), source);
    };
    if (cgroup.v2) { // memory.swap.max limits only swap, which we do not rely on
        keep(read_number(named(".max")), named(".current"), named(".max"));
        return;
    }
    std::string const used = named(".usage_in_bytes");
    keep(read_number(named(".limit_in_bytes")), used, named(".limit_in_bytes"));
    if (resource != "memory")
        return;
    // The least limit of all ancestors, including those above a container's mount.
    keep(number_after(stat, "hierarchical_memory_limit"), used, named(".stat (hierarchical_memory_limit)"));
    // Limit of memory and swap together: the process reaches it first if much is swapped out already.
    std::string const both = named(".memsw.usage_in_bytes");
    keep(read_number(named(".memsw.limit_in_bytes")), both, named(".memsw.limit_in_bytes"));
    keep(number_after(stat, "hierarchical_memsw_limit"), both, named(".stat (hierarchical_memsw_limit)"));
}

// What the cgroups (version 1 or 2) leave this process of the resource: "memory" or "hugetlb.2MB".
inline memory_limit cgroup_room(std::string const& root, std::string_view resource)
{
    memory_limit least;
    for (cgroup_folder const& cgroup : cgroup_folders(root, resource.substr(0, resource.find('.'))))
        keep_least_of_cgroup(least, cgroup, resource);
    return least;
}

inline std::string transparent_folder(std::string const& root)
{
    return text_of({root, "/sys/kernel/mm/transparent_hugepage"});
}
// Size of a transparent huge page.
inline std::size_t transparent_bytes(std::string const& root)
{
    return read_number(text_of({transparent_folder(root), "/hpage_pmd_size"})).value_or(std::size_t{1} << 21);
}

// The kernel's mode for transparent huge pages: "always", "madvise" or "never"; empty if the kernel has none.
inline std::string transparent_mode(std::string const& root)
{
    auto const selected = [](std::string const& path) { // the bracketed word of "always [madvise] never"
        std::string const file = read_file(path);
        std::string_view text = file;
        for (std::string_view word = next_word(text); !word.empty(); word = next_word(text))
            if (word.size() > 2 && word.front() == '[')
                return std::string(word.substr(1, word.size() - 2));
        return std::string();
    };
    std::string const all = transparent_folder(root);
    std::size_t const kib = transparent_bytes(root) / 1024;
    std::string const size_mode = selected(text_of({all, "/hugepages-", kib, "kB/enabled"})); // since Linux 6.8
    return size_mode.empty() || size_mode == "inherit" ? selected(text_of({all, "/enabled"})) : size_mode;
}

// Whether PR_SET_THP_DISABLE, which children inherit, denies this process huge pages even on request. (Since Linux 6.18
// the setting may except memory that requests huge pages, as ours does.)
inline bool transparent_pages_are_off(std::string const& root)
{
    if (int const disabled = ::prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0); disabled >= 0)
        return disabled == 1;
    return read_number(text_of({root, "/proc/self/status"}), "THP_enabled:") == std::size_t{0};
}

// The NUMA policy of the mapping at an address. If the system call fails, returns nothing and leaves errno set. (hwloc
// cannot distinguish preferred from bound.)
inline std::optional<std::pair<memory_binding, node_set>> binding_of(void const* address)
{
    int mode = 0;
    std::array<unsigned long, 64> mask{}; // 4096 nodes; kernels have 1024 at most
    if (::syscall(SYS_get_mempolicy, &mode, mask.data(), mask.size() * 64, address, MPOL_F_ADDR) != 0)
        return {};
    node_set nodes;
    for (unsigned i = 0; i < mask.size() * 64; ++i)
        if ((mask[i / 64] >> i % 64 & 1) != 0)
            nodes.insert(i);
    mode &= ~MPOL_MODE_FLAGS;
    constexpr int preferred_many = 5; // MPOL_PREFERRED_MANY, in headers since Linux 5.15
    if (mode == MPOL_BIND)
        return std::pair(memory_binding::bound, nodes);
    if ((mode == MPOL_PREFERRED || mode == preferred_many) && !nodes.empty()) // without nodes: first touch
        return std::pair(memory_binding::preferred, nodes);
    return std::pair(memory_binding::none, node_set{});
}

} // namespace detail

ADAMANT_END_NAMESPACE
