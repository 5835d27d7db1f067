// SPDX-License-Identifier: Apache-2.0
// Which rank of how many on this host a process is, as its launcher says.
#pragma once

#include <string>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

struct local_rank {
    unsigned rank = 0;  // from 0, on this host
    unsigned ranks = 1; // on this host
    std::string source; // the variables it comes from; empty where none is set
};

// From the first of these pairs that is set: LOCAL_RANK and LOCAL_WORLD_SIZE (torchrun, DeepSpeed),
// OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_LOCAL_SIZE (Open MPI), MPI_LOCALRANKID and MPI_LOCALNRANKS (Intel MPI,
// MPICH), SLURM_LOCALID and SLURM_STEP_TASKS_PER_NODE or SLURM_TASKS_PER_NODE at SLURM_NODEID. Rank 0 of 1 where none
// is set. Throws invalid_argument where a rank is set and the count of ranks is not, where either is not a number, and
// where the rank is not below the count. Reads the environment: do not call it while another thread changes that.
[[nodiscard]] local_rank rank_from_environment();

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/topology/ranks.ipp>
#endif
