// SPDX-License-Identifier: Apache-2.0
// Converts an hwloc topology to a machine.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include <hwloc.h>

#include <adamant/cores.hpp>
#include <adamant/error.hpp>
#include <adamant/detail/topology/hwloc_objects.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline memory_kind kind_of_node(char const* subtype)
{
    std::string_view const text = subtype == nullptr ? "" : subtype;
    if (text.empty() || text == "DRAM")
        return memory_kind::dram;
    if (text == "HBM" || text == "MCDRAM")
        return memory_kind::hbm;
    if (text == "GPUMemory")
        return memory_kind::gpu;
    if (text == "NVM")
        return memory_kind::nvm;
    return memory_kind::other;
}

inline void read_cores(hwloc_topology_t t, machine& result)
{
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_PACKAGE, o)) != nullptr;)
        result.packages.push_back({to_index_set(o->cpuset)});
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_PU, o)) != nullptr;) {
        hwloc_obj_t const core = hwloc_get_ancestor_obj_by_type(t, HWLOC_OBJ_CORE, o);
        if (core != nullptr && core->first_child != nullptr && !result.cores.empty() &&
            result.cores.back().pus.intersects(to_index_set(core->cpuset))) {
            result.cores.back().pus.insert(o->os_index);
            continue;
        }
        result.cores.push_back({{o->os_index}});
    }
    if (result.packages.empty()) // unknown on some virtual machines and boards
        result.packages.push_back({result.pus()});
    for (topology::core& c : result.cores)
        for (unsigned p = 0; p < result.packages.size(); ++p)
            if (result.packages[p].pus.intersects(c.pus))
                c.package = p;
    unique_bitmap const kind = new_bitmap();
    int const kinds = hwloc_cpukinds_get_nr(t, 0);
    for (int k = 0; k < kinds; ++k) {
        int efficiency = -1;
        if (hwloc_cpukinds_get_info(t, static_cast<unsigned>(k), kind.get(), &efficiency, nullptr, nullptr, 0) != 0 ||
            efficiency < 0)
            continue;
        for (topology::core& c : result.cores)
            if (hwloc_bitmap_isset(kind.get(), c.pus.front()))
                c.efficiency = static_cast<unsigned>(efficiency);
    }
    for (hwloc_obj_type_t const type : {HWLOC_OBJ_L2CACHE, HWLOC_OBJ_L3CACHE})
        for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(t, type, o)) != nullptr;)
            result.caches.push_back(
                {type == HWLOC_OBJ_L2CACHE ? 2u : 3u, o->attr->cache.size, to_index_set(o->cpuset)});
}

inline void read_nodes(hwloc_topology_t t, machine& result)
{
    index_set const allowed = to_index_set(hwloc_topology_get_allowed_nodeset(t));
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, o)) != nullptr;)
        result.nodes.push_back({o->os_index, o->attr->numanode.local_memory, to_index_set(o->cpuset),
                                kind_of_node(o->subtype), allowed.contains(o->os_index)});
    for (topology::core& c : result.cores)
        c.node = main_node(result, c.pus);
}

inline void read_gpus(hwloc_topology_t t, machine& result)
{
    // A server's management controller is a display adapter too, so display adapters count only if there are no
    // accelerators.
    std::vector<std::pair<bool, topology::gpu>> gpus;
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_pcidev(t, o)) != nullptr;) {
        auto const& pci = o->attr->pcidev;
        if (pci.class_id >> 8 != 0x03 && pci.class_id >> 8 != 0x12)
            continue;
        bool accelerator = pci.class_id != 0x0300;
        for (hwloc_obj_t child = o->io_first_child; child != nullptr; child = child->next_sibling)
            if (child->type == HWLOC_OBJ_OS_DEVICE && child->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC)
                accelerator = true;
        char text[32];
        std::snprintf(text, sizeof text, "%04x:%02x:%02x.%01x", static_cast<unsigned>(pci.domain),
                      static_cast<unsigned>(pci.bus), static_cast<unsigned>(pci.dev), static_cast<unsigned>(pci.func));
        std::string const address = text;
        std::snprintf(text, sizeof text, "%04x:%04x", static_cast<unsigned>(pci.vendor_id),
                      static_cast<unsigned>(pci.device_id));
        std::string label;
        for (char const* const key : {"PCIVendor", "PCIDevice"})
            if (char const* const value = hwloc_obj_get_info_by_name(o, key)) {
                label += value;
                label += ' ';
            }
        label += text;
        hwloc_obj_t const parent = hwloc_get_non_io_ancestor_obj(t, o);
        gpus.push_back({accelerator, {address, label, to_index_set(parent->cpuset)}});
    }
    bool any_accelerator = false;
    for (auto const& [accelerator, device] : gpus)
        any_accelerator = any_accelerator || accelerator;
    for (auto& [accelerator, device] : gpus)
        if (accelerator || !any_accelerator)
            result.gpus.push_back(std::move(device));
    std::sort(result.gpus.begin(), result.gpus.end(),
              [](topology::gpu const& a, topology::gpu const& b) { return a.pci < b.pci; });
}

// Checks indexes that hwloc accepts from files although no machine has them. Throws invalid_argument.
inline void check_indexes(hwloc_topology_t t, std::string const& source)
{
    for (auto const& [type, kind] : {std::pair(HWLOC_OBJ_PU, "PU"), std::pair(HWLOC_OBJ_NUMANODE, "NUMA node")}) {
        index_set seen;
        for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(t, type, o)) != nullptr;) {
            unsigned const i = o->os_index;
            std::string const subject = text_of({source, " has a ", kind, " with the number ", i});
            if (i > index_set::max_index)
                throw_invalid_argument({subject, ", but the largest that is understood is ", index_set::max_index});
            if (seen.contains(i))
                throw_invalid_argument({subject, " and another one with the same; numbers must differ"});
            if (type == HWLOC_OBJ_PU && to_index_set(o->cpuset) != index_set{i})
                throw_invalid_argument(
                    {subject, " but the cpuset \"", to_list(to_index_set(o->cpuset)), "\"; the two must agree"});
            seen.insert(i);
        }
    }
}

// Throws what check_indexes() throws, and unavailable for a topology without PUs.
inline machine to_machine(hwloc_topology_t t, std::string source)
{
    check_indexes(t, source);
    machine result;
    result.source = std::move(source);
    read_cores(t, result);
    read_nodes(t, result);
    read_gpus(t, result);
    result.allowed = to_index_set(hwloc_topology_get_allowed_cpuset(t)) & result.pus();
    result.offline = to_index_set(hwloc_topology_get_complete_cpuset(t)) - result.pus();
    if (result.cores.empty())
        throw_unavailable({result.source, " has no PU"});
    return result;
}

} // namespace detail

ADAMANT_END_NAMESPACE
