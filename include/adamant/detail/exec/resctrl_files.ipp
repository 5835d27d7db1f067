// SPDX-License-Identifier: Apache-2.0
// Definitions of resctrl_files and of the parsing functions in <adamant/resctrl.hpp>.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <adamant/resctrl.hpp>
#include <adamant/detail/core/uninterrupted.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL int resctrl_files::read(std::string const& path, std::string& text)
{
    text.clear();
    int const file = detail::uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
    char buffer[4096];
    ssize_t got = -1;
    while (file >= 0 && (got = detail::uninterrupted([&] { return ::read(file, buffer, sizeof buffer); })) > 0)
        text.append(buffer, static_cast<std::size_t>(got));
    return close_with(file, got < 0 ? errno : 0);
}

ADAMANT_DECL int resctrl_files::write(std::string const& path, std::string const& text)
{
    int const file = detail::uninterrupted([&] { return ::open(path.c_str(), O_WRONLY | O_CLOEXEC); });
    ssize_t const put = file < 0 ? -1 : detail::uninterrupted([&] { return ::write(file, text.data(), text.size()); });
    return close_with(file, put < 0 ? errno : static_cast<std::size_t>(put) == text.size() ? 0 : EIO);
}

ADAMANT_DECL int resctrl_files::make_dir(std::string const& path)
{
    return ::mkdir(path.c_str(), 0755) == 0 ? 0 : errno;
}

ADAMANT_DECL int resctrl_files::remove_dir(std::string const& path)
{
    return ::rmdir(path.c_str()) == 0 ? 0 : errno;
}

ADAMANT_DECL int resctrl_files::list_dirs(std::string const& path, std::vector<std::string>& names)
{
    names.clear();
    DIR* const dir = ::opendir(path.c_str());
    if (dir == nullptr)
        return errno;
    while (dirent const* const entry = ::readdir(dir))
        if ((entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN) && entry->d_name[0] != '.')
            names.emplace_back(entry->d_name);
    ::closedir(dir);
    return 0;
}

ADAMANT_DECL std::shared_ptr<void> resctrl_files::lock(std::string const& root, int& error)
{
    int const file = detail::uninterrupted([&] { return ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    error = file < 0 ? errno : EWOULDBLOCK;
    for (int tries = 0; error == EWOULDBLOCK && tries < 1000; ++tries)
        if (error = detail::uninterrupted([&] { return ::flock(file, LOCK_EX | LOCK_NB); }) == 0 ? 0 : errno;
            error == EWOULDBLOCK)
            ::usleep(5000);
    return {nullptr, [file](void*) {
                ::flock(file, LOCK_UN); // closing alone would leave the lock with a child forked meanwhile
                close_with(file, 0);
            }};
}

ADAMANT_DECL int resctrl_files::close_with(int file, int error) noexcept
{
    if (file >= 0)
        ::close(file);
    return error;
}

namespace detail {

ADAMANT_DECL bool schema::is_bandwidth() const
{
    return resource == "MB";
}

ADAMANT_DECL schemata parse_schemata(std::string const& text)
{
    schemata result;
    for (char const* line = text.c_str(); line != nullptr; line = std::strchr(line, '\n')) {
        line += std::strspn(line, " \n");
        char name[8] = "";
        int length = 0; // stays 0 for a resource that we do not use, an L2 for example
        std::sscanf(line, "%7[L3CODEATMB]:%n", name, &length);
        char* end = nullptr;
        for (char const* domain = line + length; length != 0; domain = end + 1) {
            schema entry{name, std::strtoul(domain, &end, 10), 0};
            if (end == domain || *end != '=')
                break;
            entry.value = std::strtoull(end + 1, &end, entry.is_bandwidth() ? 10 : 16);
            result.push_back(entry);
            if (*end != ';')
                break;
        }
    }
    return result;
}

ADAMANT_DECL std::string to_text(schemata const& all)
{
    std::string text;
    for (schema const& entry : all) {
        char line[64];
        std::snprintf(line, sizeof line, entry.is_bandwidth() ? "%s:%lu=%llu\n" : "%s:%lu=%llx\n",
                      entry.resource.c_str(), entry.id, static_cast<unsigned long long>(entry.value));
        text += line;
    }
    return text;
}

ADAMANT_DECL std::uint64_t value_in(schemata const& all, schema const& key, std::uint64_t fallback)
{
    for (schema const& entry : all)
        if (entry.resource == key.resource && entry.id == key.id)
            return entry.value;
    return fallback;
}

ADAMANT_DECL unsigned long long process_start(resctrl_files& files, long pid, unsigned long long fallback)
{
    std::string const id = std::to_string(pid);
    std::string stat; // of the first thread, which has the same start time; qemu-user invents the process's own file
    if (files.read(text_of({"/proc/", id, "/task/", id, "/stat"}), stat) != 0) // /proc may hide other users' processes
        return ::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH ? 0 : fallback;
    char state = 0;
    long threads = 0;
    unsigned long long start = 0;
    if (std::sscanf(stat.c_str() + std::min(stat.rfind(')'),
                                            stat.size()), // skips the program's name, which may hold any characters
                    ") %c%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%*s%ld%*s%llu", &state, &threads, &start) != 3)
        return fallback;
    return (state == 'Z' || state == 'X') && threads <= 1 ? 0 : start;
}

ADAMANT_DECL std::string group_name(long pid, unsigned long long start, unsigned n)
{
    return text_of({"adamant.", pid, '.', start, '.', n});
}

ADAMANT_DECL owner owner_of(resctrl_files& files, std::string const& group)
{
    long pid = 0;
    unsigned long long start = 0;
    unsigned n = 0;
    if (std::sscanf(group.c_str(), "adamant.%ld.%llu.%u", &pid, &start, &n) != 3 || pid <= 0 ||
        group != group_name(pid, start, n))
        return owner::foreign;
    return process_start(files, pid, start) == start ? owner::alive : owner::gone;
}

} // namespace detail

ADAMANT_END_NAMESPACE
