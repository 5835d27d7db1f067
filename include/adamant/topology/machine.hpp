// SPDX-License-Identifier: Apache-2.0
// A machine as plain data, from which cores are selected. hwloc.hpp fills it; tests make theirs by hand.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/topology/cpu_quota.hpp>
#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

// The kind of memory of a NUMA node; dram where the machine does not say.
enum class memory_kind { dram, hbm, gpu, nvm, other };

[[nodiscard]] constexpr std::string_view name(memory_kind kind) noexcept
{
    switch (kind) {
    case memory_kind::dram: return "DRAM";
    case memory_kind::hbm: return "HBM";
    case memory_kind::gpu: return "GPU memory";
    case memory_kind::nvm: return "NVM";
    case memory_kind::other: return "other memory";
    }
    return "?";
}

// The node of a core without local memory: its node has no DIMM, is offline, or is hidden by the cgroup.
inline constexpr unsigned no_node = ~0u;

namespace topology {

// A physical core. Cores are numbered by their index in machine::cores, in hwloc's logical order: neighbours share
// caches.
struct core {
    pu_set pus;              // all of its hardware threads that are online; one without SMT
    unsigned package = 0;    // index in machine::packages
    unsigned node = 0;       // index in machine::nodes of its local memory, or no_node; see main_node()
    unsigned efficiency = 0; // largest for the fastest cores; 0 for all where nothing is known
};

struct package {
    pu_set pus;
};

struct numa_node {
    unsigned os_index = 0;
    std::size_t bytes = 0; // 0: none; not known where it is 0 for all nodes
    pu_set pus;            // to which it is local; empty for memory that is local to none
    memory_kind kind = memory_kind::dram;
    bool allowed = true; // whether this process may allocate there (cgroup cpuset)
};

struct cache {
    unsigned level = 0; // 2 or 3; the first level is never shared between cores
    std::size_t bytes = 0;
    pu_set pus;
};

struct gpu {
    std::string pci;  // "0000:3b:00.0", lower case; empty where it is not on PCI
    std::string name; // as the machine reports it; may be empty
    pu_set pus;       // near it; all PUs where the machine does not say
};

} // namespace topology

// A machine's parts. No PU is in two cores.
struct machine {
    std::string source; // "this machine", or the file or description it was read from
    std::vector<topology::package> packages;
    std::vector<topology::numa_node> nodes; // memory-only ones too
    std::vector<topology::cache> caches;
    std::vector<topology::core> cores;
    std::vector<topology::gpu> gpus; // in order of PCI address
    pu_set allowed;   // the PUs that may be used: by this process (affinity and cgroup), or according to the file
    pu_set offline;   // PUs that exist and are switched off
    std::string note; // a remark on `allowed`; usually empty
    // Of this process, where the machine is this one. Shared by all ranks of a container, whichever PUs they have.
    cpu_quota quota = {};

    [[nodiscard]] pu_set pus() const;
    // Whether the cores differ in speed.
    [[nodiscard]] bool hybrid() const noexcept;
    // Whether optimizer state may be put there: the node has memory, and that is not a GPU's.
    [[nodiscard]] bool holds_state(topology::numa_node const& node) const noexcept;
    // A core's local memory; null where it has none.
    [[nodiscard]] topology::numa_node const* memory_of(topology::core const& c) const noexcept;
};

// The index in machine.nodes of the memory that a core with these PUs should use. Of the nodes that are local to all of
// them and hold state it is an allowed one, if any; then DRAM before HBM before the rest, because optimizer state is
// large and faster memory is small; then the closest (local to the fewest PUs); then the one with the lowest index.
// no_node where none is local to them.
[[nodiscard]] unsigned main_node(machine const& machine, pu_set const& pus);

// Reads what parse_index_set() reads, and places in this machine: "numa:1" (the operating system's index, as in
// numactl), "package:0", "core:0-7" (indexes in the machine, from 0), each with a list; joined by '+':
// "numa:0+core:8-9". A place stands for all online PUs there. Throws invalid_argument with a line that points at the
// character.
[[nodiscard]] pu_set parse_pus(std::string_view text, machine const& machine);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/topology/machine.ipp>
#endif
