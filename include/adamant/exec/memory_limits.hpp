// SPDX-License-Identifier: Apache-2.0
// How much memory is to be had, and by which limit: of the machine, of cgroups, of NUMA nodes.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include <adamant/core/error.hpp>
#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

// transparent: as huge as the kernel has them at hand (MADV_HUGEPAGE). normal: never huge. hugetlb_*: from a pool that
// the administrator fills; set aside when mapped.
enum class page_kind { transparent, normal, hugetlb_2m, hugetlb_1g };

[[nodiscard]] constexpr std::string_view name(page_kind kind) noexcept
{
    constexpr std::string_view names[] = {"transparent", "normal", "hugetlb 2 MiB", "hugetlb 1 GiB"};
    return names[static_cast<unsigned>(kind)];
}

struct memory_limit {
    std::size_t bytes = std::numeric_limits<std::size_t>::max(); // left; so large where nothing is known
    std::string source = {};                                     // what says so
};

namespace detail {

using file_path = std::filesystem::path;

inline std::string bytes_text(std::size_t bytes)
{
    bool const mib = bytes < std::size_t{1} << 30;
    return std::to_string(bytes) + " bytes (" + text(static_cast<double>(bytes) / (mib ? 0x1p20 : 0x1p30)) +
           (mib ? " MiB)" : " GiB)");
}
constexpr std::size_t round_up(std::size_t x, std::size_t multiple) noexcept
{
    return (x + multiple - 1) / multiple * multiple;
}
constexpr bool is_hugetlb(page_kind kind) noexcept
{
    return kind == page_kind::hugetlb_2m || kind == page_kind::hugetlb_1g;
}
inline std::size_t page_bytes(page_kind kind) noexcept
{
    return is_hugetlb(kind) ? std::size_t{1} << (kind == page_kind::hugetlb_1g ? 30 : 21)
                            : static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// The number after a word of a file ("MemFree: 12 kB", "inactive_file 12"), or its first word; nothing for "max".
inline std::optional<std::size_t> read_number(file_path const& path, std::string_view after = {})
{
    std::ifstream file(path);
    std::string word;
    bool found = after.empty();
    while (!found && file >> word)
        found = word == after;
    std::size_t value = 0;
    if (!found || !(file >> word) || std::from_chars(word.data(), word.data() + word.size(), value).ec != std::errc{})
        return {};
    return file >> word && word == "kB" ? value * 1024 : value;
}
inline file_path node_folder(file_path const& root, unsigned node)
{
    return root / "sys/devices/system/node" / ("node" + std::to_string(node));
}
// A file of the machine's pool (in sys/kernel/mm) or of a node's (in its folder).
inline file_path hugetlb_file(file_path const& in, page_kind kind, char const* file)
{
    return in / "hugepages" / ("hugepages-" + std::to_string(page_bytes(kind) / 1024) + "kB") / file;
}

inline void keep_least(memory_limit& least, std::size_t bytes, std::string const& source)
{
    if (bytes < least.bytes)
        least = {bytes, source};
}

// What the cgroups of this process, of version 1 or 2, leave it of "memory" or "hugetlb.2MB".
inline memory_limit cgroup_room(file_path const& root, std::string const& resource)
{
    static constexpr char const* names[2][4] = {
        {".limit_in_bytes", ".usage_in_bytes", "total_active_file", "total_inactive_file"},
        {".max", ".current", "active_file", "inactive_file"}};
    memory_limit least;
    std::string const controller = resource.substr(0, resource.find('.'));
    std::ifstream file(root / "proc/self/cgroup");
    for (std::string line; std::getline(file, line);) { // version 1: "4:cpuset,memory:/job"; version 2: "0::/job"
        std::size_t const first = line.find(':');
        std::size_t const second = line.find(':', first + 1);
        if (first == std::string::npos || second == std::string::npos)
            continue;
        std::string const controllers = ',' + line.substr(first + 1, second - first - 1) + ',';
        bool const v2 = controllers == ",,";
        if (!v2 && controllers.find(',' + controller + ',') == std::string::npos)
            continue;
        auto const& [limit_file, used_file, active, inactive] = names[v2];
        file_path const mount = v2 ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / controller;
        // All ancestors' limits hold. In a container the path may be the host's, and only the mount itself be there.
        for (file_path group = line.substr(second + 1);; group = group.parent_path()) {
            std::string const base = (mount / group.relative_path() / resource).string();
            auto const limit = read_number(base + limit_file);
            auto const used = read_number(base + used_file);
            if (limit && used) {
                // The file cache counts as used but gives way: else whoever has read much would seem to have none left.
                std::size_t const cache =
                    read_number(base + ".stat", active).value_or(0) + read_number(base + ".stat", inactive).value_or(0);
                std::size_t const taken = *used - std::min(*used, cache);
                keep_least(least, *limit - std::min(*limit, taken), base + limit_file);
            }
            if (!group.has_relative_path())
                break;
        }
    }
    return least;
}

} // namespace detail

// How much memory is to be had without swapping, by the least of what the machine, the cgroups of this process and,
// where there are any, these nodes have. root: where proc and sys are; tests have their own. Thread-safe.
[[nodiscard]] inline memory_limit available_memory(node_set const& nodes = {}, std::filesystem::path const& root = "/")
{
    memory_limit least = detail::cgroup_room(root, "memory");
    if (auto const machine = detail::read_number(root / "proc/meminfo", "MemAvailable:"))
        detail::keep_least(least, *machine, "MemAvailable in /proc/meminfo");
    std::size_t on_nodes = 0;
    for (unsigned const node : nodes.members()) {
        detail::file_path const meminfo = detail::node_folder(root, node) / "meminfo";
        auto const free = detail::read_number(meminfo, "MemFree:");
        if (!free)
            return least;
        on_nodes += *free;
        for (char const* const gives_way : {"Active(file):", "Inactive(file):", "SReclaimable:"})
            on_nodes += detail::read_number(meminfo, gives_way).value_or(0);
    }
    if (!nodes.empty())
        detail::keep_least(least, on_nodes, "meminfo of the NUMA nodes " + to_list(nodes));
    return least;
}

// Throws unavailable where available_memory() is less. Every memory_block asks for itself; before the first of several
// ask for their total, for none takes memory before it is touched. What other processes take later nobody can check.
inline void check_memory(std::size_t bytes, node_set const& nodes = {}, std::filesystem::path const& root = "/")
{
    memory_limit const limit = available_memory(nodes, root);
    if (bytes > limit.bytes)
        throw unavailable("adamant: " + detail::bytes_text(bytes) + " of memory are asked for, but only " +
                          detail::bytes_text(limit.bytes) + " are left, says " + limit.source +
                          "; free some, raise that limit or spread the state over more ranks");
}

ADAMANT_END_NAMESPACE
