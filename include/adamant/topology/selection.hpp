// SPDX-License-Identifier: Apache-2.0
// Who gets which cores: a pure function from a machine and a request to the core sets of every rank on the host.
#pragma once

#include <vector>

#include <adamant/topology/core_request.hpp>
#include <adamant/topology/machine.hpp>

ADAMANT_BEGIN_NAMESPACE

// The cores of every rank on the host, in the order of ranks: the optimizer's, the host framework's, and why. What
// holds: only allowed PUs; no core is given twice, to both sides of a rank or to two ranks (but for ranks that were
// bound to halves of it from outside, and why says so); each side has a core where the rank has two; a rank stays
// inside one NUMA node where the ranks fit so, else the optimizer's side does if all of these fit; ranks are spread
// evenly over nodes, and near their GPUs first: with the cores that they have, no exchange between ranks would bring
// their optimizers nearer to them, on the sum; fast and slow cores are shared alike between ranks. The same arguments
// always give the same answer, so ranks that ask each for itself agree. Throws invalid_argument for a request that
// cannot be meant and unavailable for one that this machine cannot serve, with what there was. Pure; thread-safe.
[[nodiscard]] std::vector<rank_cores> select_cores(machine const& machine, core_request const& request);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/topology/selection.ipp>
#endif
