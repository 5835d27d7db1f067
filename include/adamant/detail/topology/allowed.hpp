// SPDX-License-Identifier: Apache-2.0
// Default PUs of threads: those of this process, one of each core first.
#pragma once

#include <sched.h>

#include <algorithm>
#include <string>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/index_set.hpp>
#include <adamant/detail/topology/cpu_quota.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/detail/topology/hwloc.hpp>
#endif

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// PUs for that many threads, or for one per core where threads is 0: of the fastest cores first, one PU of each core
// before a second of any. Fewer than threads where there are no more. Of these in their order, the first `skipped` are
// left to others, who begin again from the front.
inline pu_set pus_for(unsigned threads, std::size_t skipped = 0)
{
#if defined(ADAMANT_NO_HWLOC)
    // Cores cannot be told apart here, nor threads bound: their number is all that matters.
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
    // From hwloc's objects, not by way of a machine: this is compiled into every program, and that would be most of it.
    hwloc_topology_t const here = live_topology();
    std::string ignored;
    pu_set const allowed = process_mask(to_index_set(hwloc_topology_get_allowed_cpuset(here)), ignored);
    struct candidate {
        unsigned pu;
        unsigned turn; // in its core
        unsigned efficiency;
    };
    std::vector<candidate> all;
    unsigned turns = 0;
    hwloc_obj_t last_core = nullptr;
    for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_obj_by_type(here, HWLOC_OBJ_PU, o)) != nullptr;) {
        if (!allowed.contains(o->os_index))
            continue;
        hwloc_obj_t const core = hwloc_get_ancestor_obj_by_type(here, HWLOC_OBJ_CORE, o);
        unsigned const turn = core != nullptr && core == last_core ? all.back().turn + 1 : 0;
        all.push_back({o->os_index, turn, 0});
        turns = std::max(turns, turn + 1);
        last_core = core;
    }
    int fastest = 0;
    unique_bitmap const kind = new_bitmap();
    int const kinds = hwloc_cpukinds_get_nr(here, 0);
    for (int k = 0; k < kinds; ++k) {
        int efficiency = -1;
        if (hwloc_cpukinds_get_info(here, static_cast<unsigned>(k), kind.get(), &efficiency, nullptr, nullptr, 0) !=
                0 ||
            efficiency < 0)
            continue;
        fastest = std::max(fastest, efficiency);
        for (candidate& c : all)
            if (hwloc_bitmap_isset(kind.get(), c.pu) != 0)
                c.efficiency = static_cast<unsigned>(efficiency);
    }
    std::vector<unsigned> order;
    for (unsigned turn = 0; turn < (threads == 0 ? 1 : turns); ++turn)
        for (int efficiency = fastest; efficiency >= 0; --efficiency)
            for (candidate const& c : all)
                if (c.turn == turn && c.efficiency == static_cast<unsigned>(efficiency))
                    order.push_back(c.pu);
    pu_set chosen;
    for (std::size_t i = 0; i < (threads == 0 ? order.size() : std::min<std::size_t>(threads, order.size())); ++i)
        chosen.insert(order[(skipped + i) % order.size()]);
    return chosen;
#endif
}

// One PU per core, or fewer if this rank's part of the CPU quota keeps fewer threads busy: a team spins, and all its
// threads stop when the quota is used up. Ranks share a quota; each gets PUs of its own while there are enough.
inline pu_set pus_within(double quota_cpus)
{
    pu_set const all = pus_for(0);
    if (quota_cpus == 0) // no quota, so nothing says that ranks share these PUs
        return all;
    local_rank self;
    try {
        self = rank_from_environment();
    } catch (invalid_argument const&) { // a program that asked for no ranks need not mend their variables
    }
    std::size_t const threads = threads_within(quota_cpus, self.ranks, all.size());
    return pus_for(static_cast<unsigned>(threads), self.rank * threads);
}

} // namespace detail

ADAMANT_END_NAMESPACE
