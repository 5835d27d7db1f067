// SPDX-License-Identifier: Apache-2.0
// Linux's files and calls about memory: limits, pools of huge pages, policies.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/core/error.hpp>
#include <adamant/exec/memory_options.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

using file_path = std::filesystem::path;

constexpr std::size_t round_up(std::size_t x, std::size_t multiple) noexcept
{
    return (x + multiple - 1) / multiple * multiple;
}
constexpr bool is_hugetlb(page_kind kind) noexcept
{
    return kind == page_kind::hugetlb_2m || kind == page_kind::hugetlb_1g;
}

inline std::string bytes_text(std::size_t bytes)
{
    bool const mib = bytes < std::size_t{1} << 30;
    return std::to_string(bytes) + " bytes (" + text(static_cast<double>(bytes) / (mib ? 0x1p20 : 0x1p30)) +
           (mib ? " MiB)" : " GiB)");
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

ADAMANT_END_NAMESPACE
