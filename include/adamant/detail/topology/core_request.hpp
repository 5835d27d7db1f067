// SPDX-License-Identifier: Apache-2.0
// Request and result of select_cores().
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <adamant/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Which PUs of a core to use. An optimizer step is bound by the load and store units, which the PUs of a core share.
enum class smt_policy {
    one_per_core, ///< the first usable PU of each core; its siblings stay idle
    all           ///< every usable PU of each core
};

/// Which threads get the fast cores of a hybrid machine.
enum class fast_cores {
    optimizer, ///< the optimizer's threads
    host       ///< the host framework's threads
};

/// The optimizer's default share of a rank's cores.
inline constexpr double default_cpuadam_cores_perc = 0.8;

/// At most one of the four sizes may be set. They count physical cores of each rank.
struct core_request {
    std::optional<double> cpuadam_cores_perc = {};     ///< the optimizer's share, in (0, 1]; to the nearest core
    std::optional<unsigned> cpuadam_cores = {};        ///< the optimizer's cores, as a number from 1
    std::optional<unsigned> pt_reserved_cores = {};    ///< the host framework's, from 1; the optimizer has the rest
    std::optional<double> pt_reserved_cores_perc = {}; ///< the host framework's share, in (0, 1)
    /// If not empty: the PUs to divide between the ranks. Without a size, all of them are for the optimizer, and the
    /// host has the other allowed PUs. With a size, the optimizer and the host divide only these PUs.
    pu_set list = {};
    unsigned ranks = 1; ///< number of ranks on this machine
    /// The affinity masks that the ranks were started with: none, or one for all, or one for each. Equal masks are
    /// divided between the ranks. If they differ, a launcher has bound the ranks, and each keeps its own. Only PUs of
    /// machine::allowed are used, which on a live machine are those of the calling process: ranks that exchange their
    /// masks set it to the union of these.
    std::vector<pu_set> masks = {};
    /// Empty, or the GPU of each rank: a PCI address, its index in machine::gpus, or "" for none.
    std::vector<std::string> gpus = {};
    smt_policy smt = smt_policy::one_per_core; ///< which PUs of a core threads get
    fast_cores fast = fast_cores::optimizer;   ///< which threads get the fast cores
};

/// The cores of a rank, selected by select_cores().
struct rank_cores {
    unsigned rank = 0; ///< the rank, from 0
    pu_set adam_pus;   ///< for the optimizer's threads, one for each PU
    pu_set host_pus;   ///< for the host framework's threads; empty only for a rank that has a single core
    /// Nodes for the optimizer's state: those of its cores, or, if its cores have no local memory, those in their
    /// packages. Without GPU memory and nodes without memory. Empty if no allowed node remains.
    node_set numa_nodes;
    std::string why; ///< explanation of the choice, a sentence
};

ADAMANT_END_NAMESPACE
