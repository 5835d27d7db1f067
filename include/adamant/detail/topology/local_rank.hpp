// SPDX-License-Identifier: Apache-2.0
// The rank of this process among those on its host, for cores.hpp and for executors, which need no machine.
#pragma once

#include <string>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Rank of a process among those on its host.
struct local_rank {
    unsigned rank = 0;  ///< rank on this host, from 0
    unsigned ranks = 1; ///< number of ranks on this host
    std::string source; ///< the environment variables that were read; empty if none is set
};

/// Reads the rank of this process from its launcher's environment variables. Returns rank 0 of 1 if none is set.
///
/// Uses the first of these pairs that is set: LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun, DeepSpeed);
/// OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_LOCAL_SIZE (Open MPI); MPI_LOCALRANKID and MPI_LOCALNRANKS (Intel
/// MPI, MPICH); SLURM_LOCALID and SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE at SLURM_NODEID. Not safe while
/// another thread changes the environment.
/// @throws invalid_argument  if a rank is set without the number of ranks, if either is not a number, or if the rank is
///     not below the number of ranks.
[[nodiscard]] local_rank rank_from_environment();

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/local_rank.ipp>
#endif
