// SPDX-License-Identifier: Apache-2.0
// Definition of measure_placement() in <adamant/memory.hpp>.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/memory.hpp>
#include <adamant/detail/core/refused_call.hpp>
#include <adamant/detail/core/system_file.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Reads the resident and huge bytes of [begin, begin + bytes) from /proc/self/smaps.
inline void measure_pages(std::uintptr_t begin, std::size_t bytes, memory_placement& placement)
{
    bool in_range = false;
    bool any_in_range = false;
    std::string const smaps = read_file("/proc/self/smaps");
    for (std::string_view rest = smaps; !rest.empty();) { // "7f0000000000-7f0000200000 rw-p ...", "Rss:   12 kB", ...
        std::string_view line = next_part(rest, '\n');
        std::uintptr_t address = 0;
        auto const [after, error] = std::from_chars(line.data(), line.data() + line.size(), address, 16);
        if (error == std::errc{} && after != line.data() + line.size() && *after == '-') {
            in_range = address >= begin && address - begin < bytes;
            any_in_range = any_in_range || in_range;
        }
        if (!in_range)
            continue;
        std::string_view const field = next_part(line, ':');
        std::size_t const field_bytes = number_after(line, {}).value_or(0);
        bool const hugetlb = field == "Private_Hugetlb" || field == "Shared_Hugetlb"; // not counted in Rss
        if (hugetlb || field == "Rss")
            placement.resident_bytes += field_bytes;
        if (hugetlb || field == "AnonHugePages")
            placement.huge_bytes += field_bytes;
    }
    if (!any_in_range)
        placement.notes = "/proc/self/smaps does not show this memory";
}

// Asks the kernel for the NUMA node of evenly spaced pages, in batches of 512.
inline void measure_nodes(std::uintptr_t begin, std::size_t bytes, memory_placement& placement)
{
    std::size_t const step = page_bytes(page_kind::normal) * (1 + (bytes - 1) / memory_placement::sampled_bytes);
    for (std::size_t offset = 0; offset < bytes;) {
        std::array<std::uintptr_t, 512> pages{};
        std::array<int, 512> nodes{};
        std::size_t count = 0;
        for (; count < pages.size() && offset + count * step < bytes; ++count)
            pages[count] = begin + offset + count * step;
        if (::syscall(SYS_move_pages, 0, count, pages.data(), nullptr, nodes.data(), 0) != 0) {
            int const error = errno;
            placement.notes =
                text_of({placement.notes, placement.notes.empty() ? "" : "; ",
                         "the nodes are unknown: ", refused_text("move_pages", error, advice_on_numa_call(error, ""))});
            return;
        }
        for (std::size_t i = 0; i < count; ++i, offset += step)
            if (nodes[i] >= 0) // negative: not touched yet
                placement.node_bytes[static_cast<unsigned>(nodes[i])] += std::min(step, bytes - offset);
    }
}

} // namespace detail

ADAMANT_DECL memory_placement measure_placement(memory_block const& block)
{
    memory_placement placement;
    if (block.data() == nullptr)
        return placement;
    auto const begin = reinterpret_cast<std::uintptr_t>(block.data());
    detail::measure_pages(begin, block.report().mapped_bytes, placement);
    detail::measure_nodes(begin, block.report().mapped_bytes, placement);
    return placement;
}

ADAMANT_END_NAMESPACE
