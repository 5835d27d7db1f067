// SPDX-License-Identifier: Apache-2.0
// Who gets which cores: a pure function from a machine and a request to the core sets of every rank on the host.
#pragma once

#include <vector>

#include <adamant/topology/core_request.hpp>
#include <adamant/topology/machine.hpp>

ADAMANT_BEGIN_NAMESPACE

// The cores of every rank on the host, in the order of ranks: the optimizer's, the host framework's, and why. It holds:
//   - Only allowed PUs are used.
//   - No core is given twice, to both sides of a rank or to two ranks. The exception are ranks that were bound to
//     halves of a core from outside, and `why` says so.
//   - Each side has a core where the rank has two.
//   - A rank stays inside one NUMA node if all ranks can; else the optimizer's side does, if all of these can.
//   - Memory is shared evenly, because a step is bound by it: NUMA nodes have equally many ranks, give or take one, as
//     far as they have cores for them. With fewer ranks than nodes, all cores are given.
//   - Of all ways to do that, ranks get the one in which the optimizers are nearest to their GPUs: with the least sum
//     over ranks of the mean distance of the optimizer's cores, which is 0 near the GPU, 1 in its package, 2 elsewhere.
//     A rank without a GPU has no preferred node. With fewer ranks than nodes, it is one that no exchange of cores
//     between two ranks improves.
//   - Where that is the same, the order of the machine is that of ranks.
//   - Ranks have equal shares of fast and slow cores.
//   - The optimizer has at most as many threads as its rank's part of the CPU quota keeps busy. An explicit number or
//     list of cores may exceed that, and `why` says so.
// The same arguments always give the same answer, so ranks that call this separately agree. Throws invalid_argument for
// a request that contradicts itself, and unavailable, with what there was, for one that this machine cannot serve.
// Pure; thread-safe.
[[nodiscard]] std::vector<rank_cores> select_cores(machine const& machine, core_request const& request);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/topology/selection.ipp>
#endif
