// SPDX-License-Identifier: Apache-2.0
// Default PUs of a team's threads: PUs that this process may use, one of each core first.
#pragma once

#include <sched.h>

#include <algorithm>
#include <string>
#include <vector>

#include <adamant/index_set.hpp>
#include <adamant/detail/topology/cpu_quota.hpp>
#include <adamant/detail/topology/local_rank.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/detail/topology/hwloc.hpp>
#endif

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Returns PUs for a number of threads, or one PU of each core if threads is 0: PUs of the fastest cores first, and one
// PU of each core before the second of any. Fewer than `threads` if there are no more. The selection begins at index
// `skipped` of this order and wraps around.
[[gnu::noinline]] inline pu_set select_pus(unsigned threads, std::size_t skipped = 0)
{
#if defined(ADAMANT_NO_HWLOC)
    // Without hwloc cores are unknown and threads are not bound: only the number of PUs matters.
    static_cast<void>(skipped);
    cpu_set_t mask[8];
    CPU_ZERO_S(sizeof mask, mask);
    pu_set pus;
    if (sched_getaffinity(0, sizeof mask, mask) == 0)
        for (unsigned i = 0; i < sizeof mask * 8 && (threads == 0 || pus.size() < threads); ++i)
            if (CPU_ISSET_S(i, sizeof mask, mask))
                pus.insert(i);
    return pus.empty() ? pu_set{0} : pus;
#else
    // Reads hwloc's objects instead of a machine: every program compiles this, and a machine would multiply that code.
    hwloc_topology_t const topology = live_topology();
    std::string ignored;
    pu_set const allowed = process_mask(to_index_set(hwloc_topology_get_allowed_cpuset(topology)), ignored);
    struct candidate {
        unsigned pu;
        unsigned smt_index; // in its core
        unsigned efficiency;
    };
    std::vector<candidate> all;
    unsigned smt_width = 0;
    hwloc_obj_t last_core = nullptr;
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_PU, o)) != nullptr;) {
        if (!allowed.contains(o->os_index))
            continue;
        hwloc_obj_t const core = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_CORE, o);
        unsigned const smt_index = core != nullptr && core == last_core ? all.back().smt_index + 1 : 0;
        all.push_back({o->os_index, smt_index, 0});
        smt_width = std::max(smt_width, smt_index + 1);
        last_core = core;
    }
    int fastest = 0;
    unique_bitmap const kind = new_bitmap();
    int const kinds = hwloc_cpukinds_get_nr(topology, 0);
    for (int k = 0; k < kinds; ++k) {
        int efficiency = -1;
        if (hwloc_cpukinds_get_info(topology, static_cast<unsigned>(k), kind.get(), &efficiency, nullptr, nullptr, 0) !=
                0 ||
            efficiency < 0)
            continue;
        fastest = std::max(fastest, efficiency);
        for (candidate& c : all)
            if (hwloc_bitmap_isset(kind.get(), c.pu) != 0)
                c.efficiency = static_cast<unsigned>(efficiency);
    }
    std::vector<unsigned> order;
    for (unsigned smt_index = 0; smt_index < (threads == 0 ? 1 : smt_width); ++smt_index)
        for (int efficiency = fastest; efficiency >= 0; --efficiency)
            for (candidate const& c : all)
                if (c.smt_index == smt_index && c.efficiency == static_cast<unsigned>(efficiency))
                    order.push_back(c.pu);
    pu_set chosen;
    for (std::size_t i = 0; i < (threads == 0 ? order.size() : std::min<std::size_t>(threads, order.size())); ++i)
        chosen.insert(order[(skipped + i) % order.size()]);
    return chosen;
#endif
}

// Returns one PU per core, or fewer if this rank's part of the CPU quota keeps fewer threads busy: a team spins, and
// all its threads stop when the quota is used up. Ranks share a quota. They get distinct PUs while there are enough.
[[gnu::noinline]] inline pu_set select_pus_within_quota(double quota_cpus)
{
    pu_set const all = select_pus(0);
    if (quota_cpus == 0) // no quota: ranks may have different PUs
        return all;
    local_rank self;
    try {
        self = rank_from_environment();
    } catch (invalid_argument const&) { // a program that requests no ranks must not fail for their variables
    }
    std::size_t const threads = threads_within(quota_cpus, self.ranks, all.size());
    return select_pus(static_cast<unsigned>(threads), self.rank * threads);
}

} // namespace detail

ADAMANT_END_NAMESPACE
