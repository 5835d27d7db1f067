// SPDX-License-Identifier: Apache-2.0
// Memory for optimizer state: zero-filled, in huge pages and on chosen NUMA nodes where these are to be had, first
// touched by the threads that will use it, with a report of what was got. What is missing is a note, or an error where
// it was required; either comes before the first touch, where a lack of memory would end in a signal.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/core/error.hpp>
#include <adamant/exec/memory_limits.hpp>
#include <adamant/topology/index_set.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/topology/hwloc.hpp>
#endif

ADAMANT_BEGIN_NAMESPACE

// preferred: on other nodes where these are full. bound: never, so the OOM killer may come while other nodes have room.
enum class memory_binding { none, preferred, bound };

[[nodiscard]] constexpr std::string_view name(memory_binding binding) noexcept
{
    constexpr std::string_view names[] = {"none", "preferred", "bound"};
    return names[static_cast<unsigned>(binding)];
}

struct memory_options {
    page_kind pages = page_kind::transparent;
    bool pages_required = false; // else hugetlb falls back to transparent, and transparent to normal
    node_set nodes = {};         // empty: no binding; the policy of the process, as numactl sets it, stays in force
    bool nodes_required = false; // else bound falls back to preferred, and preferred to none
    bool check_available = true; // refuse what check_memory() refuses
};

struct memory_report {
    std::size_t bytes = 0;                         // asked for
    std::size_t mapped_bytes = 0;                  // in whole pages
    page_kind pages = page_kind::transparent;      // what the mapping is; how much of it is huge, measure() tells
    memory_binding binding = memory_binding::none; // and its nodes: the kernel's word, not ours
    node_set nodes = {};
    std::string notes = {}; // what was asked for and not got, and why, joined by "; "
};

namespace detail {

// With a page on either side that nobody may access: they catch writes past the ends, and keep the kernel from joining
// the mapping to a neighbour, whose huge pages would count as ours.
struct unmap {
    std::size_t bytes = 0;
    std::size_t guard_bytes = 0;
    void operator()(std::byte* data) const noexcept { ::munmap(data - guard_bytes, bytes + 2 * guard_bytes); }
};
using unique_mapping = std::unique_ptr<std::byte, unmap>;

// Throws unavailable where it is refused. bytes and alignment: multiples of a page.
inline unique_mapping map_pages(std::size_t bytes, std::size_t alignment)
{
    auto const refused = [&] {
        return unavailable("adamant: " + bytes_text(bytes) + " could not be mapped (" + std::strerror(errno) +
                           "); see ulimit -v, vm.overcommit_memory and vm.max_map_count");
    };
    std::size_t const page = page_bytes(page_kind::normal);
    void* const at = ::mmap(nullptr, bytes + alignment + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        throw refused();
    auto* const begin = static_cast<std::byte*>(at);
    auto const after_guard = reinterpret_cast<std::uintptr_t>(begin + page);
    std::size_t const before = round_up(after_guard, alignment) - after_guard;
    if (before != 0)
        ::munmap(begin, before);
    unique_mapping mapping(begin + before + page, {bytes, page});
    if (before + page != alignment)
        ::munmap(mapping.get() + bytes + page, alignment - before - page);
    if (::mprotect(mapping.get(), bytes, PROT_READ | PROT_WRITE) != 0)
        throw refused();
    return mapping;
}

// What the kernel does with memory that asks for huge pages: "always", "madvise" or "never"; empty where it has none.
inline std::string transparent_mode(file_path const& root)
{
    auto const chosen = [](file_path const& path) -> std::string { // "always [madvise] never"
        std::ifstream file(path);
        for (std::string word; file >> word;)
            if (word.size() > 2 && word.front() == '[')
                return word.substr(1, word.size() - 2);
        return {};
    };
    file_path const all = root / "sys/kernel/mm/transparent_hugepage";
    std::size_t const kib = read_number(all / "hpage_pmd_size").value_or(std::size_t{1} << 21) / 1024;
    std::string const own = chosen(all / ("hugepages-" + std::to_string(kib) + "kB/enabled")); // since Linux 6.8
    return own.empty() || own == "inherit" ? chosen(all / "enabled") : own;
}

// The policy of the mapping at an address; nothing, with errno, where the kernel may not be asked. (hwloc does not tell
// preferred from bound.)
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
    if ((mode == MPOL_PREFERRED || mode == preferred_many) && !nodes.empty()) // without nodes: near the toucher
        return std::pair(memory_binding::preferred, nodes);
    return std::pair(memory_binding::none, node_set{});
}

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
    explicit memory_block(std::size_t bytes, memory_options const& options = {},
                          std::filesystem::path const& root = "/")
    {
        if (bytes > std::numeric_limits<std::size_t>::max() / 4)
            throw invalid_argument("adamant: " + std::to_string(bytes) +
                                   " bytes do not fit in memory; was a negative size converted?");
        report_.bytes = bytes;
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

    // Begins at a multiple of 2 MiB, or of a page where pages are normal ones by request.
    [[nodiscard]] std::byte* data() noexcept { return mapping_.get(); }
    [[nodiscard]] std::byte const* data() const noexcept { return mapping_.get(); }
    [[nodiscard]] std::size_t size() const noexcept { return mapping_ ? report_.bytes : 0; }
    [[nodiscard]] memory_report const& report() const noexcept { return report_; }

    // First touch of the bytes from begin to end, by the calling thread: writes zeros, one to each page, so call it
    // before anything else writes. Bytes outside are left alone, also where they share a page.
    void touch(std::size_t begin, std::size_t end) noexcept
    {
        std::size_t const page = detail::page_bytes(report_.pages);
        end = std::min(end, size());
        // To read first, so as to keep what is there, would map the huge page of zeros that all share.
        for (std::size_t at = begin; at < end; at = (at / page + 1) * page)
            *const_cast<std::byte volatile*>(data() + at) = std::byte{0};
    }

private:
    // Something that was asked for is not to be had.
    void miss(bool required, std::string const& what)
    {
        if (required)
            throw unavailable("adamant: " + what);
        report_.notes += (report_.notes.empty() ? "" : "; ") + what;
    }

    // Those of the nodes asked for that this process may use.
    node_set usable_nodes(memory_options const& options)
    {
        if (options.nodes.empty())
            return {};
        std::string const asked = "the NUMA nodes " + to_list(options.nodes) + " are asked for, but ";
#if defined(ADAMANT_NO_HWLOC)
        miss(options.nodes_required, asked + "this program was compiled without hwloc, which binds memory");
        return {};
#else
        try {
            hwloc_topology_t const machine = detail::live_topology();
            node_set const there = detail::to_index_set(hwloc_topology_get_topology_nodeset(machine));
            node_set const allowed = there & detail::to_index_set(hwloc_topology_get_allowed_nodeset(machine));
            if (!allowed.includes(options.nodes))
                miss(options.nodes_required,
                     asked + "this machine has " + to_list(there) +
                         (there == allowed ? "" : ", of which the cgroup (cpuset.mems) allows " + to_list(allowed)));
            return options.nodes & allowed;
        } catch (unavailable const& error) { // this machine is not to be seen: HWLOC_SYNTHETIC is set, say
            if (options.nodes_required)
                throw;
            miss(false, asked + "not known (" + error.what() + ")");
            return {};
        }
#endif
    }

    void map_hugetlb(memory_options const& options, detail::file_path const& root)
    {
        using namespace detail;
        bool const giant = options.pages == page_kind::hugetlb_1g;
        std::size_t const bytes = round_up(report_.bytes, page_bytes(options.pages));
        std::size_t const pages = bytes / page_bytes(options.pages);
        std::string const asked =
            std::to_string(pages) + " pages of kind " + std::string(name(options.pages)) + " are asked for, but ";
        // Over a cgroup's limit the mapping would succeed, and its first touch end in SIGBUS.
        memory_limit const room = cgroup_room(root, giant ? "hugetlb.1GB" : "hugetlb.2MB");
        if (bytes > room.bytes)
            return miss(options.pages_required,
                        asked + room.source + " leaves " + bytes_text(room.bytes) + "; raise it");
        // Not MAP_NORESERVE: the pool sets the pages aside now, or this fails now.
        int const flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (giant ? 30 : 21) << 26;
        void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (at != MAP_FAILED) {
            mapping_ = unique_mapping(static_cast<std::byte*>(at), {bytes, 0});
            report_.mapped_bytes = bytes;
            return;
        }
        std::string const why = std::string(" (mmap: ") + std::strerror(errno) + ")";
        auto const pool = [&](char const* file) { return hugetlb_file(root / "sys/kernel/mm", options.pages, file); };
        auto const free = read_number(pool("free_hugepages"));
        if (!free)
            return miss(options.pages_required, asked + "there is no " + pool("free_hugepages").string() + why);
        std::size_t const left = *free - std::min(*free, read_number(pool("resv_hugepages")).value_or(0));
        std::size_t const others = std::max(left, read_number(pool("nr_hugepages")).value_or(0)) - left;
        miss(options.pages_required, asked + std::to_string(left) + " are free" + why + "; as root, write " +
                                         std::to_string(others + pages) + " to " + pool("nr_hugepages").string() +
                                         (giant ? ", best soon after booting, while memory has such gaps" : ""));
    }

    void map_plain(memory_options const& options, detail::file_path const& root)
    {
        bool const huge = options.pages != page_kind::normal;
        std::size_t const page = detail::page_bytes(page_kind::normal);
        report_.mapped_bytes = detail::round_up(report_.bytes, page);
        report_.pages = huge ? page_kind::transparent : page_kind::normal;
        mapping_ = detail::map_pages(report_.mapped_bytes, huge ? std::size_t{1} << 21 : page);
        bool const refused = ::madvise(data(), report_.mapped_bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE) != 0;
        if (!huge)
            return; // a kernel that refuses that has no huge pages
        std::string why;
        if (refused)
            why = std::string("madvise: ") + std::strerror(errno);
        else if (detail::transparent_mode(root) == "never")
            why = "/sys/kernel/mm/transparent_hugepage/enabled is never; as root, write madvise to it";
        else
            return;
        report_.pages = page_kind::normal;
        miss(options.pages_required, "transparent huge pages are asked for, but " + why);
    }

#if defined(ADAMANT_NO_HWLOC)
    void bind(node_set const&, memory_options const&, detail::file_path const&) {} // usable_nodes() leaves none
#else
    void bind(node_set const& nodes, memory_options const& options, detail::file_path const& root)
    {
        using namespace detail;
        std::string const these = "the NUMA nodes " + to_list(nodes);
        bool strict = true;
        if (is_hugetlb(report_.pages)) {
            // It is the machine's pool that has promised the pages. Once those of the nodes are gone, to another rank
            // say, the touch of bound memory ends in SIGBUS, and that of preferred memory on another node.
            strict = options.nodes_required;
            auto const count = [&](file_path const& in, char const* file) {
                return read_number(hugetlb_file(in, report_.pages, file)).value_or(0);
            };
            std::size_t const promised = count(root / "sys/kernel/mm", "resv_hugepages"); // ours among them
            std::size_t free = 0;
            for (unsigned const node : nodes.members())
                free += count(node_folder(root, node), "free_hugepages");
            if (!strict)
                miss(false, these + " are preferred only, as bound hugetlb pages may end in SIGBUS");
            else if (free < promised)
                miss(true, these + " have " + std::to_string(free) + " free huge pages, but " +
                               std::to_string(promised) + " are promised; as root, write more to their nr_hugepages");
        } else if (options.check_available && available_memory(nodes, root).bytes < report_.bytes) {
            strict = false; // nodes that are required were checked before
            miss(false, these + " are preferred only, as less than was asked for is free there");
        }
        for (;; strict = false) {
            std::string problem = strict ? "binding to " : "preferring ";
            problem.append(these).append(" failed: ").append(set_policy(nodes, strict));
            if (report_.binding == (strict ? memory_binding::bound : memory_binding::preferred))
                break;
            miss(options.nodes_required, problem);
            if (!strict)
                return;
        }
        if (report_.nodes != nodes) // not all have memory, or (before Linux 5.15) only one can be preferred
            miss(false, "of " + these + " the kernel took " + to_list(report_.nodes));
    }

    // What the kernel made of it goes to the report; returns why that may be something else.
    std::string set_policy(node_set const& nodes, bool strict)
    {
        // MPOL_BIND, or else MPOL_PREFERRED_MANY, or where the kernel is older MPOL_PREFERRED.
        int const flags = HWLOC_MEMBIND_BYNODESET | (strict ? HWLOC_MEMBIND_STRICT : 0);
        if (hwloc_set_area_membind(detail::live_topology(), data(), report_.mapped_bytes,
                                   detail::to_bitmap(nodes).get(), HWLOC_MEMBIND_BIND, flags) != 0)
            return std::string("mbind: ") + std::strerror(errno) + "; containers may need CAP_SYS_NICE for it";
        auto const got = detail::binding_of(data());
        if (!got)
            return std::string("get_mempolicy, which would confirm it: ") + std::strerror(errno);
        std::tie(report_.binding, report_.nodes) = *got;
        return "the kernel's policy is " + std::string(name(got->first));
    }
#endif

    detail::unique_mapping mapping_;
    memory_report report_;
};

// n elements of T in such memory, all bits of them zero. A contiguous range, so that shards take it.
template <class T>
    requires std::is_trivially_copyable_v<T>
class buffer {
public:
    using value_type = T;

    buffer() = default;
    // Throws what memory_block does.
    explicit buffer(std::size_t n, memory_options const& options = {}) : block_(bytes_of(n), options) {}

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

ADAMANT_END_NAMESPACE
