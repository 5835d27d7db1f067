// SPDX-License-Identifier: Apache-2.0
// The machine's topology as plain data, and the selection of cores for each rank.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/index_set.hpp>
#include <adamant/detail/topology/core_request.hpp>
#include <adamant/detail/topology/cpu_quota.hpp>
#include <adamant/detail/topology/launch_mask.hpp>
#include <adamant/detail/topology/local_rank.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Kind of memory of a NUMA node.
enum class memory_kind {
    dram,  ///< DRAM, or not reported by the machine
    hbm,   ///< high-bandwidth memory
    gpu,   ///< memory of a GPU
    nvm,   ///< non-volatile memory
    other, ///< any other kind
};

/// Returns the name in reports, such as "GPU memory".
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

/// Value of topology::core::node for a core without local memory: its node has no DIMM, is offline, or is hidden by the
/// cgroup.
inline constexpr unsigned no_node = ~0u;

/// Parts of a machine.
namespace topology {

/// A physical core.
///
/// Cores are numbered by their index in machine::cores, in hwloc's logical order: neighbors share caches.
struct core {
    pu_set pus;              ///< all online hardware threads of the core; a single one without SMT
    unsigned package = 0;    ///< index in machine::packages
    unsigned node = 0;       ///< index of its local memory in machine::nodes, or no_node; see main_node()
    unsigned efficiency = 0; ///< speed class, largest for the fastest cores; 0 for all cores if unknown
};

/// A CPU package (socket).
struct package {
    pu_set pus; ///< PUs of the package
};

/// A NUMA node.
struct numa_node {
    unsigned os_index = 0;                ///< the operating system's index
    std::size_t bytes = 0;                ///< memory size; 0: no memory, or unknown if it is 0 for all nodes
    pu_set pus;                           ///< PUs that it is local to; may be empty
    memory_kind kind = memory_kind::dram; ///< kind of memory
    bool allowed = true;                  ///< whether this process may allocate there (cgroup cpuset)
};

/// A cache.
struct cache {
    unsigned level = 0;    ///< 2 or 3; cores never share a first-level cache
    std::size_t bytes = 0; ///< size
    pu_set pus;            ///< PUs that share it
};

/// A GPU.
struct gpu {
    std::string pci;  ///< lower-case PCI address, "0000:3b:00.0"; empty if it is not on PCI
    std::string name; ///< name that the machine reports; may be empty
    pu_set pus;       ///< PUs close to it; all PUs if unknown
};

} // namespace topology

/// A machine as plain data. Made by live_machine() and the like, or by hand. No PU is in two cores.
struct machine {
    std::string source;                      ///< "this machine", or the file or description that it was read from
    std::vector<topology::package> packages; ///< CPU packages
    std::vector<topology::numa_node> nodes;  ///< NUMA nodes, including memory-only nodes
    std::vector<topology::cache> caches;     ///< caches of levels 2 and 3
    std::vector<topology::core> cores;       ///< physical cores, in hwloc's logical order
    std::vector<topology::gpu> gpus;         ///< GPUs in order of PCI address
    pu_set allowed;       ///< PUs that may be used: by this process (affinity and cgroup), or according to the file
    pu_set offline;       ///< PUs that exist and are offline
    std::string note;     ///< a remark on `allowed`; usually empty
    cpu_quota quota = {}; ///< CPU quota of this process, for a live machine; shared by all ranks in the cgroup

    /// Returns all online PUs.
    [[nodiscard]] pu_set pus() const;
    /// Returns whether the cores differ in speed.
    [[nodiscard]] bool hybrid() const noexcept;
    /// Returns whether the node may hold optimizer state: it has memory other than a GPU's.
    [[nodiscard]] bool holds_state(topology::numa_node const& node) const noexcept;
    /// Returns the core's local memory, or null.
    [[nodiscard]] topology::numa_node const* memory_of(topology::core const& c) const noexcept;
};

/// Reads this machine with hwloc. Thread-safe.
///
/// `allowed` has the PUs that this process may use now: the affinity mask that it was started with, within its cgroup.
/// `quota` has its CPU quota. Takes milliseconds, or hundreds of them on large machines, because it searches for
/// devices.
/// @throws unavailable  if hwloc fails, if hwloc's environment variables replace this machine by another one, or if the
///     library was compiled without hwloc (ADAMANT_NO_HWLOC).
[[nodiscard]] machine live_machine();

/// Reads a machine from hwloc's XML, as `lstopo FILE.xml` writes it. Thread-safe.
///
/// Accepts version 2 of the format, and later versions that the installed hwloc reads.
/// @throws unavailable  if the file cannot be opened or has no PU, if its version is too new, or without hwloc
/// (ADAMANT_NO_HWLOC).
/// @throws invalid_argument  if the file contains no topology, if two of its PUs or two of its nodes have the same
/// index, if an index is too large, or if an object has a cpuset without a complete_cpuset or a nodeset without a
/// complete_nodeset.
[[nodiscard]] machine machine_from_xml(std::string const& path);

/// Makes a machine from hwloc's synthetic description, such as "pack:2 [numa] core:96 pu:2".
/// @throws invalid_argument  for an invalid description.
/// @throws unavailable  without hwloc (ADAMANT_NO_HWLOC).
[[nodiscard]] machine machine_from_synthetic(std::string const& description);

/// Reads a machine from an XML file if the text ends in ".xml" or names a file, else from a synthetic description.
/// @throws unavailable, invalid_argument  as machine_from_xml() and machine_from_synthetic() do.
[[nodiscard]] machine read_machine(std::string const& file_or_description);

/// Selects the cores of the optimizer and of the host framework for each rank on this machine, and says why.
///
/// The result is in the order of ranks. A pure function, so ranks that call it separately agree; thread-safe. It
/// guarantees, in order of priority:
///   - Only allowed PUs are used.
///   - No core is assigned twice, within a rank or to two ranks, unless a launcher bound ranks to different PUs of one
///     core; `why` then says so.
///   - The optimizer and the host framework each have a core if the rank has two.
///   - Each rank stays inside one NUMA node if that is possible for all ranks. Otherwise each optimizer stays inside
///     one node, if that is possible for all optimizers.
///   - Ranks share memory bandwidth evenly, because it bounds a step: the numbers of ranks on NUMA nodes differ by at
///     most one if the nodes have enough cores. With fewer ranks than nodes, all cores are assigned.
///   - Among the remaining assignments it selects the one whose optimizers are nearest to their GPUs. It minimizes the
///     sum over ranks of the mean distance of the optimizer's cores to the GPU. A distance is 0 for PUs close to the
///     GPU, 1 in its package, 2 elsewhere. A rank without a GPU has no preference. With fewer ranks than nodes,
///     it first minimizes the total number of nodes that the optimizers use, and then the distances. The result is
///     optimal for the given core counts of the ranks. If an optimal result would take a search of more than some
///     milliseconds (on some machines of 8 or more nodes), or if a node's cores differ in distance to a GPU, the result
///     is a local optimum: no exchange of cores between two ranks improves it.
///   - Ranks have equal shares of fast and slow cores.
///   - The optimizer gets at most as many PUs as its rank's share of the CPU quota can keep busy. An explicit number or
///     list of cores may exceed that; `why` then says so.
/// Among equally good assignments it selects the one in which ascending ranks get ascending indexes in machine::cores.
/// @throws invalid_argument  for a request that contradicts itself.
/// @throws unavailable  for a request that this machine cannot serve; the message says what is available.
[[nodiscard]] std::vector<rank_cores> select_cores(machine const& machine, core_request const& request);

/// Parses PUs in the form of parse_index_set(), or as locations in a machine: "numa:0+core:8-9".
///
/// Locations are "numa:LIST" (the operating system's indexes, as in numactl), "package:LIST" and "core:LIST" (indexes
/// in the machine, from 0), joined by '+'. A location stands for all of its online PUs.
/// @throws invalid_argument  for any other text; a line of the message marks the first invalid character.
[[nodiscard]] pu_set parse_pus(std::string_view text, machine const& machine);

/// Returns the index in machine.nodes of the memory that a core with these PUs should use, or no_node.
///
/// Candidates are the nodes that are local to all of the PUs and may hold state. The order of preference is: allowed
/// nodes; DRAM before HBM before the rest, because optimizer state is large and faster memory is small; the closest
/// node (local to the fewest PUs); the lowest os_index.
[[nodiscard]] unsigned main_node(machine const& machine, pu_set const& pus);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/machine.ipp>
#include <adamant/detail/topology/read_machine.ipp>
#include <adamant/detail/topology/selection.ipp>
#endif
