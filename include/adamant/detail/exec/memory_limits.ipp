// SPDX-License-Identifier: Apache-2.0
// Definitions of available_memory() and check_memory() in <adamant/memory.hpp>.
#pragma once

#include <string>

#include <adamant/error.hpp>
#include <adamant/index_set.hpp>
#include <adamant/memory.hpp>
#include <adamant/detail/exec/system_memory.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL memory_limit available_memory(node_set const& nodes, std::string const& root)
{
    memory_limit least = detail::cgroup_room(root, "memory");
    if (auto const machine = detail::read_number(detail::text_of({root, "/proc/meminfo"}), "MemAvailable:"))
        detail::keep_least(least, *machine, "MemAvailable in /proc/meminfo");
    std::size_t on_nodes = 0;
    for (unsigned const node : nodes.members()) {
        std::string const meminfo = detail::text_of({detail::node_folder(root, node), "/meminfo"});
        auto const free = detail::read_number(meminfo, "MemFree:");
        if (!free)
            return least;
        on_nodes += *free;
        for (char const* const reclaimable : {"Active(file):", "Inactive(file):", "SReclaimable:"})
            on_nodes += detail::read_number(meminfo, reclaimable).value_or(0);
    }
    if (!nodes.empty())
        detail::keep_least(least, on_nodes, detail::text_of({"meminfo of the NUMA nodes ", to_list(nodes)}));
    return least;
}

[[gnu::noinline]] ADAMANT_DECL void check_memory(std::size_t bytes, node_set const& nodes, std::string const& root)
{
    memory_limit const limit = available_memory(nodes, root);
    if (bytes > limit.bytes)
        detail::throw_unavailable({"cannot allocate ", detail::bytes_text(bytes), ": only ",
                                   detail::bytes_text(limit.bytes), " are left according to ", limit.source,
                                   ". Free some, raise that limit or spread the state over more ranks."});
}

ADAMANT_END_NAMESPACE
