// SPDX-License-Identifier: Apache-2.0
// Definitions of memory_block in <adamant/memory.hpp>.
#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <tuple>

#include <sys/mman.h>

#include <adamant/error.hpp>
#include <adamant/memory.hpp>
#include <adamant/detail/core/refused_call.hpp>
#include <adamant/detail/exec/system_memory.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/detail/topology/hwloc.hpp>
#endif

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void unmap::operator()(std::byte* data) const noexcept
{
    ::munmap(data - guard_bytes, bytes + 2 * guard_bytes);
}

// Maps memory between two inaccessible guard pages. bytes and alignment are multiples of the page size. Throws
// unavailable if the system refuses.
[[gnu::noinline]] inline unique_mapping map_pages(std::size_t bytes, std::size_t alignment)
{
    auto const refuse = [&] {
        int const error = errno; // the calls below may change it
        throw_unavailable({"cannot map ", bytes_text(bytes), ": ", std::strerror(error), "; ",
                           advice_on(error, "see ulimit -v, vm.overcommit_memory and vm.max_map_count")});
    };
    std::size_t const page = page_bytes(page_kind::normal);
    void* const address = ::mmap(nullptr, bytes + alignment + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED)
        refuse();
    auto* const begin = static_cast<std::byte*>(address);
    auto const after_guard = reinterpret_cast<std::uintptr_t>(begin + page);
    std::size_t const before = round_up(after_guard, alignment) - after_guard;
    if (before != 0)
        ::munmap(begin, before);
    unique_mapping mapping(begin + before + page, {bytes, page});
    if (before + page != alignment)
        ::munmap(mapping.get() + bytes + page, alignment - before - page);
    if (::mprotect(mapping.get(), bytes, PROT_READ | PROT_WRITE) != 0)
        refuse();
    return mapping;
}

} // namespace detail

ADAMANT_DECL memory_block::memory_block(std::size_t bytes, memory_options const& options, std::string const& root)
{
    if (options.pages < page_kind::transparent || options.pages > page_kind::hugetlb_1g)
        detail::throw_invalid_argument({"pages is not a valid page_kind"});
    set_size(bytes);
    report_.pages = options.pages;
    if (bytes == 0)
        return;
    node_set const nodes = usable_nodes(options);
    if (detail::is_hugetlb(options.pages))
        map_hugetlb(options, root);
    if (!mapping_) {
        if (options.check_available)
            check_memory(bytes, options.nodes_required ? nodes : node_set{}, root);
        map_plain(options, root);
    }
    if (!nodes.empty())
        bind(nodes, options, root);
}

[[gnu::noinline]] ADAMANT_DECL memory_block::memory_block(std::size_t bytes)
{
    set_size(bytes);
    if (bytes == 0)
        return;
    check_memory(bytes);
    map_plain({}, {});
}

ADAMANT_DECL void memory_block::set_size(std::size_t bytes)
{
    if (bytes > std::numeric_limits<std::size_t>::max() / 4)
        detail::throw_invalid_argument({bytes, " bytes do not fit in memory. Was a negative size converted?"});
    report_.bytes = bytes;
}

ADAMANT_DECL std::size_t memory_block::size() const noexcept
{
    return mapping_ ? report_.bytes : 0;
}

ADAMANT_DECL void memory_block::touch(std::size_t begin, std::size_t end) noexcept
{
    std::size_t const page = detail::page_bytes(report_.pages);
    end = std::min(end, size());
    // Writes zero without reading first: a read would map the shared huge page of zeros.
    for (std::size_t offset = begin; offset < end; offset = (offset / page + 1) * page)
        *const_cast<std::byte volatile*>(data() + offset) = std::byte{0};
}

[[gnu::noinline]] ADAMANT_DECL void memory_block::miss(bool required, std::initializer_list<detail::text_part> reason)
{
    if (required)
        detail::throw_unavailable(reason);
    report_.notes = detail::text_of({report_.notes, report_.notes.empty() ? "" : "; ", detail::text_of(reason)});
}

[[gnu::noinline]] ADAMANT_DECL node_set memory_block::usable_nodes(memory_options const& options)
{
    if (options.nodes.empty())
        return {};
    std::string const asked = detail::text_of({"the NUMA nodes ", to_list(options.nodes), " were requested, but "});
#if defined(ADAMANT_NO_HWLOC)
    miss(options.nodes_required, {asked, "this program was compiled without hwloc, which binds memory"});
    return {};
#else
    try {
        hwloc_topology_t const machine = detail::live_topology();
        node_set const present = detail::to_index_set(hwloc_topology_get_topology_nodeset(machine));
        node_set const allowed = present & detail::to_index_set(hwloc_topology_get_allowed_nodeset(machine));
        if (!allowed.includes(options.nodes))
            miss(options.nodes_required, {asked, "this machine has nodes ", to_list(present),
                                          present == allowed ? "" : "; the cgroup (cpuset.mems) allows ",
                                          present == allowed ? "" : to_list(allowed)});
        return options.nodes & allowed;
    } catch (unavailable const& error) { // hwloc does not show this machine, for example if HWLOC_SYNTHETIC is set
        if (options.nodes_required)
            throw;
        miss(false, {asked, "the nodes of this machine are unknown (", error.what(), ")"});
        return {};
    }
#endif
}

[[gnu::noinline]] ADAMANT_DECL void memory_block::map_hugetlb(memory_options const& options, std::string const& root)
{
    using namespace detail;
    bool const giant = options.pages == page_kind::hugetlb_1g;
    std::size_t const bytes = round_up(report_.bytes, page_bytes(options.pages));
    std::size_t const pages = bytes / page_bytes(options.pages);
    std::string const asked = text_of({counted(pages, "page"), " of kind ", name(options.pages),
                                       pages == 1 ? " was requested, but " : " were requested, but "});
    // Check the cgroup's limit here: a mapping above it would succeed, and its first touch would raise SIGBUS.
    memory_limit const room = cgroup_room(root, giant ? "hugetlb.1GB" : "hugetlb.2MB");
    if (bytes > room.bytes)
        return miss(options.pages_required, {asked, room.source, " leaves ", bytes_text(room.bytes), "; raise it"});
    // Without MAP_NORESERVE the pool reserves the pages now, so a shortage fails here.
    int const flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (giant ? 30 : 21) << 26;
    void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (address != MAP_FAILED) {
        mapping_ = unique_mapping(static_cast<std::byte*>(address), {bytes, 0});
        report_.mapped_bytes = bytes;
        return;
    }
    int const error = errno;
    if (std::string const advice = advice_on(error, ""); !advice.empty()) // the pool is not the reason
        return miss(options.pages_required, {asked, refused_text("mmap", error, advice)});
    std::string const why = detail::text_of({" (mmap: ", std::strerror(error), ")"});
    std::string const folder = text_of({root, "/sys/kernel/mm"});
    auto const pool = [&](char const* file) { return hugetlb_file(folder, options.pages, file); };
    auto const free = read_number(pool("free_hugepages"));
    if (!free)
        return miss(options.pages_required, {asked, "the system has no ", pool("free_hugepages"), why});
    std::size_t const left = *free - std::min(*free, read_number(pool("resv_hugepages")).value_or(0));
    if (error == ENOMEM && left >= pages) // the pool is not the reason
        return miss(options.pages_required,
                    {asked, left, " are free", why,
                     "; see ulimit -v and vm.max_map_count, and whether the nodes of cpuset.mems have that many"});
    std::size_t const others = std::max(left, read_number(pool("nr_hugepages")).value_or(0)) - left;
    miss(options.pages_required,
         {asked, left, " are free", why, "; as root, write ", others + pages, " to ", pool("nr_hugepages"),
          giant ? ", soon after booting, before memory is fragmented" : ""});
}

[[gnu::noinline]] ADAMANT_DECL void memory_block::map_plain(memory_options const& options, std::string const& root)
{
    bool const huge = options.pages != page_kind::normal;
    std::size_t const page = detail::page_bytes(page_kind::normal);
    report_.mapped_bytes = detail::round_up(report_.bytes, page);
    report_.pages = huge ? page_kind::transparent : page_kind::normal;
    // A huge page is aligned to its size, which is 512 MiB on AArch64 with pages of 64 KiB.
    constexpr std::size_t usual_huge_page = std::size_t{1} << 21;
    std::size_t const huge_page = huge ? detail::transparent_bytes(root) : 0;
    if (huge_page > usual_huge_page && std::has_single_bit(huge_page) && report_.bytes >= huge_page) {
        try {
            mapping_ = detail::map_pages(report_.mapped_bytes, huge_page);
        } catch (unavailable const&) { // the address space may have room for a smaller alignment
        }
    }
    if (mapping_ == nullptr)
        mapping_ = detail::map_pages(report_.mapped_bytes, huge ? usual_huge_page : page);
    int const refused =
        ::madvise(data(), report_.mapped_bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0 ? errno : 0;
    if (!huge)
        return; // a kernel that refuses MADV_NOHUGEPAGE has no huge pages
    std::string why;
    if (refused != 0)
        why = detail::refused_text(
            "madvise", refused,
            detail::advice_on(refused, refused == ENOMEM ? "see vm.max_map_count"
                                                         : "was this kernel built with CONFIG_TRANSPARENT_HUGEPAGE?"));
    else if (detail::transparent_mode(root) == "never")
        why = "/sys/kernel/mm/transparent_hugepage/enabled is never; as root, write madvise to it";
    else if (detail::transparent_pages_are_off(root))
        why = "they are switched off for this process; start it without PR_SET_THP_DISABLE, which it or a parent has "
              "set (in a systemd unit: MemoryTHP=disable)";
    else if (report_.bytes < huge_page)
        why = detail::text_of({"one of them has ", detail::bytes_text(huge_page), ", and the block only ",
                               detail::bytes_text(report_.bytes), "; request more in one block"});
    else if (std::has_single_bit(huge_page) &&
             (0 - reinterpret_cast<std::uintptr_t>(data())) % huge_page > report_.mapped_bytes - huge_page)
        why = detail::text_of(
            {"the address space has no room to align them to ", detail::bytes_text(huge_page), "; see ulimit -v"});
    else
        return;
    report_.pages = page_kind::normal;
    miss(options.pages_required, {"transparent huge pages were requested, but ", why});
}

#if defined(ADAMANT_NO_HWLOC)

ADAMANT_DECL void memory_block::bind(node_set const&, memory_options const&, std::string const&) {
} // usable_nodes() leaves none

#else

ADAMANT_DECL void memory_block::bind(node_set const& nodes, memory_options const& options, std::string const& root)
{
    using namespace detail;
    std::string const these = text_of({"the NUMA nodes ", to_list(nodes)});
    bool strict = true;
    if (is_hugetlb(report_.pages)) {
        // The reservation is with the machine's pool, not with the nodes. Once the nodes' pages are used up, by another
        // rank for example, a touch of bound memory raises SIGBUS; a touch of preferred memory uses another node.
        strict = options.nodes_required;
        auto const count = [&](std::string const& folder, char const* file) {
            return read_number(hugetlb_file(folder, report_.pages, file)).value_or(0);
        };
        std::size_t const reserved =
            count(text_of({root, "/sys/kernel/mm"}), "resv_hugepages"); // includes this block's
        std::size_t free = 0;
        for (unsigned const node : nodes.members())
            free += count(node_folder(root, node), "free_hugepages");
        if (!strict)
            miss(false, {these, " are only preferred, because bound hugetlb pages may end in SIGBUS"});
        else if (free < reserved)
            miss(true, {these, " have ", free, " free huge pages, but ", reserved,
                        " are reserved; as root, write more to their nr_hugepages"});
    } else if (options.check_available && available_memory(nodes, root).bytes < report_.bytes) {
        strict = false; // with nodes_required, the constructor has checked this before
        miss(false, {these, " are only preferred, because less than requested is free there"});
    }
    for (;; strict = false) {
        std::string const outcome = set_policy(nodes, strict);
        if (report_.binding == (strict ? memory_binding::bound : memory_binding::preferred))
            break;
        miss(options.nodes_required, {strict ? "binding to " : "preferring ", these, " failed: ", outcome});
        if (!strict)
            return;
    }
    if (report_.nodes != nodes) // some have no memory, or (before Linux 5.15) only one can be preferred
        miss(false, {"of ", these, " the kernel uses only ", to_list(report_.nodes)});
}

[[gnu::noinline]] ADAMANT_DECL std::string memory_block::set_policy(node_set const& nodes, bool strict)
{
    // Strict: MPOL_BIND. Otherwise MPOL_PREFERRED_MANY, or MPOL_PREFERRED on older kernels.
    int const flags = HWLOC_MEMBIND_BYNODESET | (strict ? HWLOC_MEMBIND_STRICT : 0);
    if (hwloc_set_area_membind(detail::live_topology(), data(), report_.mapped_bytes, detail::to_bitmap(nodes).get(),
                               HWLOC_MEMBIND_BIND, flags) != 0) {
        int const error = errno;
        return detail::refused_text(
            "mbind", error, detail::advice_on_numa_call(error, "are these nodes online and allowed to this process?"));
    }
    auto const policy = detail::binding_of(data());
    if (!policy) {
        int const error = errno;
        return detail::refused_text("get_mempolicy, which would confirm it", error,
                                    detail::advice_on_numa_call(error, ""));
    }
    report_.binding = policy->first;
    report_.nodes = policy->second;
    return detail::text_of({"the kernel's policy is ", name(policy->first)});
}

#endif

ADAMANT_END_NAMESPACE
