// SPDX-License-Identifier: Apache-2.0
// Where threads go when nobody says: the PUs of this process, one per core first.
#pragma once

#include <sched.h>

#include <algorithm>
#include <vector>

#include <adamant/core/stable_sort.hpp>
#include <adamant/topology/index_set.hpp>
#if !defined(ADAMANT_NO_HWLOC)
#include <adamant/topology/hwloc.hpp>
#endif

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// PUs for that many threads, or for one per core where threads is 0: of the fastest cores first, one PU of each core
// before a second of any. Fewer than threads where there are no more.
inline pu_set pus_for(unsigned threads)
{
#if defined(ADAMANT_NO_HWLOC)
    // Cores cannot be told apart here, nor threads bound: their number is all that matters.
    cpu_set_t mask[8];
    CPU_ZERO_S(sizeof mask, mask);
    pu_set pus;
    if (sched_getaffinity(0, sizeof mask, mask) == 0)
        for (unsigned i = 0; i < sizeof mask * 8 && (threads == 0 || pus.size() < threads); ++i)
            if (CPU_ISSET_S(i, sizeof mask, mask))
                pus.insert(i);
    return pus.empty() ? pu_set{0} : pus;
#else
    machine const here = live_cores();
    std::vector<topology::core const*> order;
    for (topology::core const& c : here.cores)
        if (c.pus.intersects(here.allowed))
            order.push_back(&c);
    detail::stable_sort(order.begin(), order.end(),
                        [](topology::core const* a, topology::core const* b) { return a->efficiency > b->efficiency; });
    pu_set chosen;
    for (std::size_t turn = 0; turn == 0 || (threads != 0 && chosen.size() < threads); ++turn) {
        std::size_t const before = chosen.size();
        for (topology::core const* const c : order) {
            std::vector<unsigned> const pus = (c->pus & here.allowed).members();
            if (turn < pus.size() && (threads == 0 || chosen.size() < threads))
                chosen.insert(pus[turn]);
        }
        if (chosen.size() == before)
            break;
    }
    return chosen;
#endif
}

} // namespace detail

ADAMANT_END_NAMESPACE
