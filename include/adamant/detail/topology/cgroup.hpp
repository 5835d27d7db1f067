// SPDX-License-Identifier: Apache-2.0
// Finds the mounted folders of this process's cgroups and their ancestors, of version 1 and 2.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/detail/core/system_file.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// A cgroup's folder. The two versions have files of different names.
struct cgroup_folder {
    std::string path;
    bool v2;
};

// Decodes a path of /proc/self/mountinfo, in which a space is "\040".
[[gnu::noinline]] inline std::string mounted_path(std::string_view escaped)
{
    std::string path;
    for (std::size_t i = 0; i < escaped.size(); ++i) {
        auto const digit = [&](std::size_t k) { return static_cast<unsigned>(escaped[i + k] - '0'); };
        if (escaped[i] == '\\' && i + 3 < escaped.size() && digit(1) < 4 && digit(2) < 8 && digit(3) < 8) {
            path += static_cast<char>(digit(1) * 64 + digit(2) * 8 + digit(3));
            i += 3;
        } else {
            path += escaped[i];
        }
    }
    return path;
}

[[gnu::noinline]] inline bool has_part(std::string_view list, char separator, std::string_view part)
{
    while (!list.empty())
        if (next_part(list, separator) == part)
            return true;
    return false;
}

// Returns the path of a cgroup in a mount of the cgroup `mount_root`: "" for the mount itself, or "/job". For a cgroup
// outside the mount, which cgroup namespaces show as "/../..", it is the mount itself, the nearest visible folder.
[[gnu::noinline]] inline std::string_view path_in_mount(std::string_view cgroup, std::string_view mount_root,
                                                        bool& is_inside)
{
    if (mount_root == "/")
        mount_root = {};
    std::string_view rest = cgroup;
    is_inside = cgroup.starts_with('/') && cgroup.starts_with(mount_root);
    if (is_inside)
        rest.remove_prefix(mount_root.size());
    is_inside = is_inside && (rest.empty() || rest.front() == '/') && !has_part(rest, '/', "..");
    if (!is_inside)
        return {};
    while (!rest.empty() && rest.back() == '/')
        rest.remove_suffix(1);
    return rest;
}

// The folder of a cgroup. The first mount_bytes of the path are the mount point of its hierarchy. If a hierarchy is
// mounted twice, the mount that shows more of the cgroup's ancestors is used.
struct mounted_cgroup {
    std::string path;
    std::size_t mount_bytes = 0; // 0: not mounted
};
[[gnu::noinline]] inline mounted_cgroup find_in_mounts(std::string const& root, std::string_view mounts,
                                                       std::string_view controller, bool v2, std::string_view cgroup)
{
    mounted_cgroup best;
    bool best_is_inside = false;
    std::size_t best_root_bytes = 0;
    while (!mounts.empty()) {
        // "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:5 - cgroup cgroup rw,cpu"
        std::string_view line = next_part(mounts, '\n');
        for (int skipped = 0; skipped < 3; ++skipped)
            next_word(line);
        std::string const mount_root = mounted_path(next_word(line));
        std::string const mount_point = mounted_path(next_word(line));
        for (std::string_view word = next_word(line); word != "-" && !word.empty();)
            word = next_word(line);
        std::string_view const type = next_word(line);
        next_word(line);
        if (type != (v2 ? "cgroup2" : "cgroup") || (!v2 && !has_part(next_word(line), ',', controller)))
            continue;
        bool is_inside = false;
        std::string_view const path = path_in_mount(cgroup, mount_root, is_inside);
        if (best.mount_bytes != 0 &&
            (best_is_inside != is_inside ? best_is_inside : best_root_bytes < mount_root.size()))
            continue;
        best.path = root + mount_point;
        best.mount_bytes = best.path.size();
        best.path += path;
        best_is_inside = is_inside;
        best_root_bytes = mount_root.size();
    }
    return best;
}

// Returns the cgroups that limit this process's use of a controller ("memory", "cpu", "hugetlb"): its own cgroup first,
// then all visible ancestors. root: the folder that has proc and sys; "" for this machine's. If /proc/self/mountinfo
// cannot be read, the usual mount points are used.
[[gnu::noinline]] inline std::vector<cgroup_folder> cgroup_folders(std::string const& root, std::string_view controller)
{
    std::vector<cgroup_folder> all;
    std::string const groups = read_file(text_of({root, "/proc/self/cgroup"}));
    std::string const mounts = read_file(text_of({root, "/proc/self/mountinfo"}));
    for (std::string_view lines = groups; !lines.empty();) {
        std::string_view cgroup = next_part(lines, '\n'); // "4:cpuset,memory:/job" in version 1, "0::/job" in version 2
        if (std::count(cgroup.begin(), cgroup.end(), ':') < 2)
            continue;
        next_part(cgroup, ':');
        std::string_view const controllers = next_part(cgroup, ':');
        bool const v2 = controllers.empty();
        if (!v2 && !has_part(controllers, ',', controller))
            continue;
        mounted_cgroup mounted;
        if (mounts.empty()) {
            mounted.path = text_of({root, "/sys/fs/cgroup", v2 ? "" : "/", v2 ? "" : controller});
            mounted.mount_bytes = mounted.path.size();
            bool is_inside = false;
            mounted.path += path_in_mount(cgroup, "/", is_inside);
        } else {
            mounted = find_in_mounts(root, mounts, controller, v2, cgroup);
        }
        for (std::size_t end = mounted.path.size(); mounted.mount_bytes != 0 && end >= mounted.mount_bytes;
             end = mounted.path.rfind('/')) {
            mounted.path.resize(end);
            all.push_back({mounted.path, v2});
            if (end == mounted.mount_bytes)
                break;
        }
    }
    return all;
}

} // namespace detail

ADAMANT_END_NAMESPACE
