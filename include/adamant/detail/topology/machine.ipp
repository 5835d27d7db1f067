// SPDX-License-Identifier: Apache-2.0
// Definitions of machine and parse_pus() of adamant/cores.hpp.
#pragma once

#include <adamant/cores.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL pu_set machine::pus() const
{
    pu_set all;
    for (topology::core const& c : cores)
        all |= c.pus;
    return all;
}

ADAMANT_DECL bool machine::hybrid() const noexcept
{
    for (topology::core const& c : cores)
        if (c.efficiency != cores.front().efficiency)
            return true;
    return false;
}

ADAMANT_DECL bool machine::holds_state(topology::numa_node const& node) const noexcept
{
    if (node.kind == memory_kind::gpu)
        return false;
    bool sizes_known = false;
    for (topology::numa_node const& n : nodes)
        sizes_known = sizes_known || n.bytes != 0;
    return node.bytes != 0 || !sizes_known;
}

ADAMANT_DECL topology::numa_node const* machine::memory_of(topology::core const& c) const noexcept
{
    return c.node < nodes.size() ? &nodes[c.node] : nullptr;
}

ADAMANT_DECL unsigned main_node(machine const& machine, pu_set const& pus)
{
    auto const is_preferred = [](topology::numa_node const& a, topology::numa_node const& b) {
        if (a.allowed != b.allowed)
            return a.allowed;
        if (a.kind != b.kind)
            return a.kind < b.kind;
        return a.pus.size() != b.pus.size() ? a.pus.size() < b.pus.size() : a.os_index < b.os_index;
    };
    unsigned best = no_node;
    for (unsigned n = 0; n < machine.nodes.size(); ++n)
        if (machine.holds_state(machine.nodes[n]) && machine.nodes[n].pus.includes(pus) &&
            (best == no_node || is_preferred(machine.nodes[n], machine.nodes[best])))
            best = n;
    return best;
}

ADAMANT_DECL pu_set parse_pus(std::string_view text, machine const& machine)
{
    if (text.find(':') == std::string_view::npos || text.find_first_of("npc") == std::string_view::npos)
        if (text.find('+') == std::string_view::npos)
            return parse_index_set(text);
    detail::text_scanner scanner(text, "a place (numa:1, package:0, core:0-7), a list or a mask");
    pu_set all;
    do {
        scanner.skip_spaces();
        std::size_t const begin = scanner.position();
        auto const add = [&](char const* kind, std::size_t count, auto&& pus_of) {
            for (unsigned const i : scanner.list().members()) {
                pu_set const pus = pus_of(i);
                if (pus.empty())
                    scanner.fail(
                        detail::text_of({"there is no ", kind, " ", i, " with PUs; ", machine.source, " has ", count}),
                        begin);
                all |= pus;
            }
        };
        if (scanner.take("numa:"))
            add("NUMA node", machine.nodes.size(), [&](unsigned i) {
                for (topology::numa_node const& node : machine.nodes)
                    if (node.os_index == i)
                        return node.pus;
                return pu_set{};
            });
        else if (scanner.take("package:"))
            add("package", machine.packages.size(),
                [&](unsigned i) { return i < machine.packages.size() ? machine.packages[i].pus : pu_set{}; });
        else if (scanner.take("core:"))
            add("core", machine.cores.size(),
                [&](unsigned i) { return i < machine.cores.size() ? machine.cores[i].pus : pu_set{}; });
        else if (scanner.take("0x") || scanner.take("0X"))
            all |= scanner.mask();
        else if (scanner.peek() >= '0' && scanner.peek() <= '9')
            all |= scanner.list();
        else
            scanner.fail("numa:, package:, core:, a list or a mask is expected");
        scanner.skip_spaces();
    } while (scanner.take('+'));
    if (!scanner.is_at_end())
        scanner.fail("unexpected text");
    return all;
}

ADAMANT_END_NAMESPACE
