// SPDX-License-Identifier: Apache-2.0
// What is asked of selection, and what it answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

// Where two PUs share a core they share its load and store units too, which is all an optimizer step needs.
enum class smt_policy {
    one_per_core, // the first usable PU of each core; its siblings are left idle
    all           // every usable PU of each core
};

// Who gets the fast cores of a machine that has fast and slow ones.
enum class fast_cores { optimizer, host };

// The share of a rank's cores that the optimizer gets where nothing else is said.
inline constexpr double default_cpuadam_cores_perc = 0.8;

// What is asked for. Of the four sizes at most one may be set; they count physical cores, of each rank.
struct core_request {
    std::optional<double> cpuadam_cores_perc = {};     // the optimizer's share, in (0, 1]; to the nearest core
    std::optional<unsigned> cpuadam_cores = {};        // the optimizer's cores, as a number from 1
    std::optional<unsigned> pt_reserved_cores = {};    // the host framework's, from 1; the rest optimizes
    std::optional<double> pt_reserved_cores_perc = {}; // the host framework's share, in (0, 1)
    // If not empty: the PUs to share out between the ranks. Alone, they are all for the optimizer, and the host has
    // what else is allowed; together with a size, they are all there is for both.
    pu_set list = {};
    unsigned ranks = 1;
    // The affinity masks of the ranks as they were started: none or one where they are all alike, else one for each.
    // All alike, the mask is shared out; where they differ, the ranks have been bound from outside and each keeps its
    // own. Only PUs of machine::allowed are used, which on a live machine are those of the calling process: ranks that
    // exchange their masks put the union of these there.
    std::vector<pu_set> masks = {};
    // None, or for each rank its GPU: a PCI address, or its place in machine::gpus, or "".
    std::vector<std::string> gpus = {};
    smt_policy smt = smt_policy::one_per_core;
    fast_cores fast = fast_cores::optimizer;
};

struct rank_cores {
    unsigned rank = 0;
    pu_set adam_pus; // where the optimizer's threads go, one to a PU
    pu_set host_pus; // where the host framework's threads go; empty only for a rank that has a single core
    node_set
        numa_nodes; // where the optimizer's state belongs: the memory of its cores; empty where none of it is allowed
    std::string why;
};

ADAMANT_END_NAMESPACE
