// SPDX-License-Identifier: Apache-2.0
// Linux's files and calls about memory: limits, pools of huge pages, policies.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/core/error.hpp>
#include <adamant/exec/memory_options.hpp>

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

inline std::string bytes_text(std::size_t bytes)
{
    bool const mib = bytes < std::size_t{1} << 30;
    return text_of({bytes, " bytes (", static_cast<double>(bytes) / (mib ? 0x1p20 : 0x1p30), mib ? " MiB)" : " GiB)"});
}

inline std::size_t page_bytes(page_kind kind) noexcept
{
    return is_hugetlb(kind) ? std::size_t{1} << (kind == page_kind::hugetlb_1g ? 30 : 21)
                            : static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

// A file of /proc or /sys, which are short; empty where it cannot be read. Read at once, as they may change meanwhile.
inline std::string read_file(std::string const& path)
{
    std::string text;
    int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return text;
    char part[4096];
    for (ssize_t n = ::read(file, part, sizeof part); n > 0; n = ::read(file, part, sizeof part))
        text.append(part, static_cast<std::size_t>(n));
    ::close(file);
    return text;
}

// Takes the next word from the front of a text; empty at its end.
inline std::string_view next_word(std::string_view& text) noexcept
{
    constexpr std::string_view spaces = " \t\n";
    text.remove_prefix(std::min(text.find_first_not_of(spaces), text.size()));
    std::string_view const word = text.substr(0, text.find_first_of(spaces));
    text.remove_prefix(word.size());
    return word;
}

// The number after a word of a file ("MemFree: 12 kB", "inactive_file 12"), or its first word; nothing for "max".
inline std::optional<std::size_t> read_number(std::string const& path, std::string_view after = {})
{
    std::string const file = read_file(path);
    std::string_view text = file;
    for (std::string_view word; word != after && !text.empty();)
        word = next_word(text);
    std::string_view const number = next_word(text);
    std::size_t value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc{})
        return {};
    return next_word(text) == "kB" ? value * 1024 : value;
}

inline std::string node_folder(std::string const& root, unsigned node)
{
    return text_of({root, "/sys/devices/system/node/node", node});
}

// A file of the machine's pool (in sys/kernel/mm) or of a node's (in its folder).
inline std::string hugetlb_file(std::string const& in, page_kind kind, char const* file)
{
    return text_of({in, "/hugepages/hugepages-", page_bytes(kind) / 1024, "kB/", file});
}

inline void keep_least(memory_limit& least, std::size_t bytes, std::string const& source)
{
    if (bytes < least.bytes)
        least = {bytes, source};
}

// The files of a cgroup's folder, of version 1 and 2.
struct cgroup_files {
    std::string_view limit, used, active, inactive; // the last two are words of the file .stat
};
inline constexpr cgroup_files cgroup_v1 = {".limit_in_bytes", ".usage_in_bytes", "total_active_file",
                                           "total_inactive_file"};
inline constexpr cgroup_files cgroup_v2 = {".max", ".current", "active_file", "inactive_file"};

// What one cgroup leaves of a resource.
inline void keep_least_of_cgroup(memory_limit& least, std::string file, cgroup_files const& files)
{
    std::size_t const base = file.size();
    auto const number = [&](std::string_view suffix, std::string_view after) {
        file.resize(base);
        file += suffix;
        return read_number(file, after);
    };
    auto const used = number(files.used, {});
    // The file cache counts as used but gives way. Otherwise nothing would seem to be left after much reading.
    std::size_t cache = 0;
    for (std::string_view const gives_way : {files.active, files.inactive})
        cache += number(".stat", gives_way).value_or(0);
    auto const limit = number(files.limit, {});
    if (!limit || !used)
        return;
    std::size_t const taken = *used - std::min(*used, cache);
    keep_least(least, *limit - std::min(*limit, taken), file);
}

// Takes what comes before the next separator from the front of a text, and the separator.
inline std::string_view next_part(std::string_view& text, char separator) noexcept
{
    std::string_view const part = text.substr(0, text.find(separator));
    text.remove_prefix(std::min(part.size() + 1, text.size()));
    return part;
}

// What the cgroups of this process, of version 1 or 2, leave it of "memory" or "hugetlb.2MB".
inline memory_limit cgroup_room(std::string const& root, std::string_view resource)
{
    memory_limit least;
    std::string_view rest = resource;
    std::string_view const controller = next_part(rest, '.');
    std::string const file = read_file(root + "/proc/self/cgroup");
    for (std::string_view lines = file;
         !lines.empty();) { // "4:cpuset,memory:/job" in version 1, "0::/job" in version 2
        std::string_view group = next_part(lines, '\n');
        if (std::count(group.begin(), group.end(), ':') < 2)
            continue;
        next_part(group, ':');
        std::string_view controllers = next_part(group, ':');
        bool const v2 = controllers.empty();
        bool ours = v2;
        while (!controllers.empty())
            ours = next_part(controllers, ',') == controller || ours;
        if (!ours)
            continue;
        std::string folder = root + "/sys/fs/cgroup";
        if (!v2)
            folder.append("/").append(controller);
        // All ancestors' limits hold. In a container the path may be the host's, and only the mount itself be there.
        std::size_t const mount = folder.size();
        folder += group;
        while (folder.size() > mount && folder.back() == '/')
            folder.pop_back();
        for (std::size_t end = folder.size(); end >= mount && end != std::string::npos; end = folder.rfind('/')) {
            folder.resize(end);
            keep_least_of_cgroup(least, std::string(folder).append("/").append(resource), v2 ? cgroup_v2 : cgroup_v1);
        }
    }
    return least;
}

// What the kernel does with memory that asks for huge pages: "always", "madvise" or "never"; empty where it has none.
inline std::string transparent_mode(std::string const& root)
{
    auto const chosen = [](std::string const& path) { // "always [madvise] never"
        std::string const file = read_file(path);
        std::string_view text = file;
        for (std::string_view word = next_word(text); !word.empty(); word = next_word(text))
            if (word.size() > 2 && word.front() == '[')
                return std::string(word.substr(1, word.size() - 2));
        return std::string();
    };
    std::string const all = root + "/sys/kernel/mm/transparent_hugepage";
    std::size_t const kib = read_number(all + "/hpage_pmd_size").value_or(std::size_t{1} << 21) / 1024;
    std::string const own = chosen(text_of({all, "/hugepages-", kib, "kB/enabled"})); // since Linux 6.8
    return own.empty() || own == "inherit" ? chosen(all + "/enabled") : own;
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
