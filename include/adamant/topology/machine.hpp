// SPDX-License-Identifier: Apache-2.0
// A machine as plain data: what selection and the drawing see of it. hwloc.hpp fills it; tests make theirs by hand.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

// What kind of memory a NUMA node is, as far as the machine says. dram also where it says nothing.
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

// Where a core has no memory of its own: its node has no DIMM, is offline or is outside the cgroup's view.
inline constexpr unsigned no_node = ~0u;

namespace topology {

// A physical core. Cores are numbered by their place in machine::cores, which is hwloc's logical order: neighbours
// share caches.
struct core {
    pu_set pus;              // all of its hardware threads that are online, one where there is no SMT
    unsigned package = 0;    // place in machine::packages
    unsigned node = 0;       // place in machine::nodes of the memory that is its own, or no_node; see main_node()
    unsigned efficiency = 0; // the fastest cores have the largest; 0 for all where nothing is known
};

struct package {
    pu_set pus;
};

struct numa_node {
    unsigned os_index = 0;
    std::size_t bytes = 0; // 0: not known
    pu_set pus;            // the PUs it is local to; empty for memory that is local to none
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
    std::string name; // as the machine calls it; may be empty
    pu_set pus;       // the PUs near it; all of them where the machine does not say
};

} // namespace topology

// What is in a machine. Any PU of a core is in no other core.
struct machine {
    std::string source; // "this machine", or the file or description it was read from
    std::vector<topology::package> packages;
    std::vector<topology::numa_node> nodes; // memory-only ones too
    std::vector<topology::cache> caches;
    std::vector<topology::core> cores;
    std::vector<topology::gpu> gpus; // in order of PCI address
    pu_set allowed;   // the PUs that may be used: of the process where live (affinity and cgroup), else of the file
    pu_set offline;   // PUs that exist and are switched off
    std::string note; // what is worth knowing about `allowed`; mostly empty

    [[nodiscard]] pu_set pus() const;
    // Whether the cores differ in speed.
    [[nodiscard]] bool hybrid() const noexcept;
    // The memory that is a core's own; null where none is.
    [[nodiscard]] topology::numa_node const* memory_of(topology::core const& c) const noexcept;
};

// The place in machine.nodes of the memory that a core with these PUs should use: of the nodes local to all of them one
// that is allowed, if any; of those the closest (local to the fewest PUs); of several equally close ones DRAM before
// HBM before the rest, for optimizer state is large; then the lowest index. no_node where none is local to them.
[[nodiscard]] unsigned main_node(machine const& machine, pu_set const& pus);

// Reads what parse_index_set() reads, and locations in this machine: "numa:1" (the operating system's index, as numactl
// counts), "package:0", "core:0-7" (place in the machine, counted from 0), each with a list; joined by '+':
// "numa:0+core:8-9". A location stands for all online PUs there. Throws invalid_argument with a line that points at the
// character.
[[nodiscard]] pu_set parse_pus(std::string_view text, machine const& machine);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/topology/machine.ipp>
#endif
