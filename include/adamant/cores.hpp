// SPDX-License-Identifier: Apache-2.0
// The machine, and which cores each rank gets.
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

ADAMANT_BEGIN_NAMESPACE

// A machine as plain data, from which cores are selected. hwloc.hpp fills it; tests make theirs by hand.

/// The kind of memory of a NUMA node; dram where the machine does not say.
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

/// The node of a core without local memory: its node has no DIMM, is offline, or is hidden by the cgroup.
inline constexpr unsigned no_node = ~0u;

namespace topology {

/// A physical core. Cores are numbered by their index in machine::cores, in hwloc's logical order: neighbours share
/// caches.
struct core {
    pu_set pus;              ///< all of its hardware threads that are online; one without SMT
    unsigned package = 0;    ///< index in machine::packages
    unsigned node = 0;       ///< index in machine::nodes of its local memory, or no_node; see main_node()
    unsigned efficiency = 0; ///< largest for the fastest cores; 0 for all where nothing is known
};

/// A processor package.
struct package {
    pu_set pus; ///< its PUs
};

/// A NUMA node.
struct numa_node {
    unsigned os_index = 0;                ///< number of the operating system
    std::size_t bytes = 0;                ///< 0: none; not known where it is 0 for all nodes
    pu_set pus;                           ///< to which it is local; empty for memory that is local to none
    memory_kind kind = memory_kind::dram; ///< kind of memory
    bool allowed = true;                  ///< whether this process may allocate there (cgroup cpuset)
};

/// A last-level cache.
struct cache {
    unsigned level = 0;    ///< 2 or 3; the first level is never shared between cores
    std::size_t bytes = 0; ///< size
    pu_set pus;            ///< PUs that share it
};

/// A GPU and the PUs near it.
struct gpu {
    std::string pci;  ///< "0000:3b:00.0", lower case; empty where it is not on PCI
    std::string name; ///< as the machine reports it; may be empty
    pu_set pus;       ///< near it; all PUs where the machine does not say
};

} // namespace topology

/// A machine's parts. No PU is in two cores.
struct machine {
    std::string source;                      ///< "this machine", or the file or description it was read from
    std::vector<topology::package> packages; ///< packages in order
    std::vector<topology::numa_node> nodes;  ///< memory-only ones too
    std::vector<topology::cache> caches;     ///< last-level caches
    std::vector<topology::core> cores;       ///< physical cores
    std::vector<topology::gpu> gpus;         ///< in order of PCI address
    pu_set allowed;   ///< the PUs that may be used: by this process (affinity and cgroup), or according to the file
    pu_set offline;   ///< PUs that exist and are switched off
    std::string note; ///< a remark on `allowed`; usually empty
    /// Of this process, where the machine is this one. Shared by all ranks of a container, whichever PUs they have.
    cpu_quota quota = {};

    /// All PUs of the machine.
    [[nodiscard]] pu_set pus() const;
    /// Whether the cores differ in speed.
    [[nodiscard]] bool hybrid() const noexcept;
    /// Whether optimizer state may be put there: the node has memory, and that is not a GPU's.
    [[nodiscard]] bool holds_state(topology::numa_node const& node) const noexcept;
    /// A core's local memory; null where it has none.
    [[nodiscard]] topology::numa_node const* memory_of(topology::core const& c) const noexcept;
};

/// The index in machine.nodes of the memory that a core with these PUs should use. Of the nodes that are local to all
/// of them and hold state it is an allowed one, if any; then DRAM before HBM before the rest, because optimizer state
/// is large and faster memory is small; then the closest (local to the fewest PUs); then the one with the lowest index.
/// no_node where none is local to them.
[[nodiscard]] unsigned main_node(machine const& machine, pu_set const& pus);

/// Reads what parse_index_set() reads, and places in this machine: "numa:1" (the operating system's index, as in
/// numactl), "package:0", "core:0-7" (indexes in the machine, from 0), each with a list; joined by '+':
/// "numa:0+core:8-9". A place stands for all online PUs there. Throws invalid_argument with a line that points at the
/// character.
[[nodiscard]] pu_set parse_pus(std::string_view text, machine const& machine);

// Who gets which cores: a pure function from a machine and a request to the core sets of every rank on the host.

/// The cores of every rank on the host, in the order of ranks: the optimizer's, the host framework's, and why. It
/// holds:
///   - Only allowed PUs are used.
///   - No core is given twice, to both sides of a rank or to two ranks. The exception are ranks that were bound to
///     halves of a core from outside, and `why` says so.
///   - Each side has a core where the rank has two.
///   - A rank stays inside one NUMA node if all ranks can; else the optimizer's side does, if all of these can.
///   - Memory is shared evenly, because a step is bound by it: NUMA nodes have equally many ranks, give or take one, as
///     far as they have cores for them. With fewer ranks than nodes, all cores are given.
///   - Of all ways to do that, ranks get the one in which the optimizers are nearest to their GPUs: with the least sum
///     over ranks of the mean distance of the optimizer's cores, which is 0 near the GPU, 1 in its package, 2
///     elsewhere. A rank without a GPU has no preferred node. With fewer ranks than nodes, it is one that no exchange
///     of cores between two ranks improves.
///   - Where that is the same, the order of the machine is that of ranks.
///   - Ranks have equal shares of fast and slow cores.
///   - The optimizer has at most as many threads as its rank's part of the CPU quota keeps busy. An explicit number or
///     list of cores may exceed that, and `why` says so.
/// The same arguments always give the same answer, so ranks that call this separately agree. Throws invalid_argument
/// for a request that contradicts itself, and unavailable, with what there was, for one that this machine cannot serve.
/// Pure; thread-safe.
[[nodiscard]] std::vector<rank_cores> select_cores(machine const& machine, core_request const& request);

// Which rank of how many on this host a process is, as its launcher says.

/// The local rank and the number of ranks on this host.
struct local_rank {
    unsigned rank = 0;  ///< from 0, on this host
    unsigned ranks = 1; ///< on this host
    std::string source; ///< the variables it comes from; empty where none is set
};

/// From the first of these pairs that is set: LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun, DeepSpeed),
/// OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_LOCAL_SIZE (Open MPI), MPI_LOCALRANKID and MPI_LOCALNRANKS (Intel
/// MPI, MPICH), SLURM_LOCALID and SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE at SLURM_NODEID. Rank 0 of 1 where
/// none is set. Throws invalid_argument where a rank is set and the count of ranks is not, where either is not a
/// number, and where the rank is not below the count. Reads the environment: do not call it while another thread
/// changes that.
[[nodiscard]] local_rank rank_from_environment();

// Machines as plain data, read by hwloc: this one, and those that files or texts describe.

// All of these throw unavailable where the library was compiled without hwloc (ADAMANT_NO_HWLOC).

/// This machine, with the PUs that this process may use now, the affinity mask that it was started with inside its
/// cgroup, and with its CPU quota. Takes milliseconds, or hundreds of them on large machines, because it looks for
/// devices. Throws unavailable where hwloc fails, or where its environment variables replace this machine by another
/// one. Thread-safe.
[[nodiscard]] machine live_machine();

/// The machine that a file of hwloc's XML describes (lstopo FILE.xml writes one), of version 2 or of a later version
/// that the installed hwloc reads. Throws unavailable where the file cannot be opened or its version is too new, and
/// invalid_argument where it holds no topology, or one in which PUs or nodes share a number or objects lack a set.
/// Thread-safe.
[[nodiscard]] machine machine_from_xml(std::string const& path);

/// The machine of a synthetic description, as hwloc reads it: "pack:2 [numa] core:96 pu:2". Throws invalid_argument.
[[nodiscard]] machine machine_from_synthetic(std::string const& description);

/// Either of the two: a text that ends in ".xml" or names a file is a file.
[[nodiscard]] machine read_machine(std::string const& file_or_description);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/machine.ipp>
#include <adamant/detail/topology/ranks.ipp>
#include <adamant/detail/topology/read_machine.ipp>
#include <adamant/detail/topology/selection.ipp>
#endif
