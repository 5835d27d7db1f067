// SPDX-License-Identifier: Apache-2.0
// CPU quota of a process: the limits that containers and batch systems set in its cgroups.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

/// CPU quota of a cgroup, which all of its processes share, on all CPUs. When it is used up, all threads stop until the
/// next period, so further threads slow a spinning team down.
struct cpu_quota {
    double cpus = 0;         ///< CPU time per time, for example 2.5 for two and a half CPUs; 0: no quota
    std::string source = {}; ///< the file that sets it
};

/// Returns the least quota of this process's cgroups and their ancestors: cpu.max of version 2, cpu.cfs_quota_us
/// divided by cpu.cfs_period_us of version 1. root: the folder that has proc and sys; "" for this machine's.
/// Thread-safe.
[[nodiscard]] cpu_quota read_cpu_quota(std::string const& root = {});

/// Returns how many of `threads` threads each rank can keep busy when `ranks` ranks share a quota; at least one.
[[nodiscard]] inline std::size_t threads_within(double quota_cpus, unsigned ranks, std::size_t threads) noexcept
{
    if (!(quota_cpus > 0))
        return threads;
    double const each = quota_cpus / std::max(1u, ranks);
    return each >= static_cast<double>(threads) ? threads : std::max<std::size_t>(static_cast<std::size_t>(each), 1);
}

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/cpu_quota.ipp>
#endif
