// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/memory.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <system_error>

#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/memory.hpp>
#include <adamant/detail/core/refused_call.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline void measure_pages(std::uintptr_t begin, std::size_t bytes, memory_placement& got)
{
    bool ours = false;
    bool found = false;
    std::ifstream file("/proc/self/smaps");
    for (std::string line; std::getline(file, line);) { // "7f0000000000-7f0000200000 rw-p ...", "Rss:   12 kB", ...
        std::uintptr_t address = 0;
        auto const [after, error] = std::from_chars(line.data(), line.data() + line.size(), address, 16);
        if (error == std::errc{} && *after == '-') {
            ours = address >= begin && address - begin < bytes;
            found = found || ours;
        }
        char key[32];
        std::size_t kib = 0;
        if (!ours || std::sscanf(line.c_str(), "%31[^:]: %zu kB", key, &kib) != 2)
            continue;
        std::string_view const what = key;
        bool const hugetlb = what == "Private_Hugetlb" || what == "Shared_Hugetlb"; // not in Rss
        if (hugetlb || what == "Rss")
            got.resident_bytes += kib * 1024;
        if (hugetlb || what == "AnonHugePages")
            got.huge_bytes += kib * 1024;
    }
    if (!found)
        got.notes = "/proc/self/smaps does not show this memory";
}

inline void measure_nodes(std::uintptr_t begin, std::size_t bytes, memory_placement& got)
{
    std::size_t const step = page_bytes(page_kind::normal) * (1 + (bytes - 1) / memory_placement::sampled_bytes);
    for (std::size_t at = 0; at < bytes;) {
        std::array<std::uintptr_t, 512> pages{};
        std::array<int, 512> nodes{};
        std::size_t count = 0;
        for (; count < pages.size() && at + count * step < bytes; ++count)
            pages[count] = begin + at + count * step;
        if (::syscall(SYS_move_pages, 0, count, pages.data(), nullptr, nodes.data(), 0) != 0) {
            int const error = errno;
            got.notes += (got.notes.empty() ? "" : "; ") + std::string("the nodes are not known, ") +
                         refused_text("move_pages", error, advice_on_numa_call(error, ""));
            return;
        }
        for (std::size_t i = 0; i < count; ++i, at += step)
            if (nodes[i] >= 0) // else not touched yet
                got.node_bytes[static_cast<unsigned>(nodes[i])] += std::min(step, bytes - at);
    }
}

} // namespace detail

ADAMANT_DECL memory_placement measure_placement(memory_block const& block)
{
    memory_placement got;
    if (block.data() == nullptr)
        return got;
    auto const begin = reinterpret_cast<std::uintptr_t>(block.data());
    detail::measure_pages(begin, block.report().mapped_bytes, got);
    detail::measure_nodes(begin, block.report().mapped_bytes, got);
    return got;
}

ADAMANT_END_NAMESPACE
