// SPDX-License-Identifier: Apache-2.0
// How much memory is to be had, and by which limit: of the machine, of cgroups, of NUMA nodes.
#pragma once

#include <cstddef>
#include <string>

#include <adamant/exec/memory_options.hpp>

ADAMANT_BEGIN_NAMESPACE

// How much memory is to be had without swapping, by the least of what the machine, the cgroups of this process and,
// where there are any, these nodes have. root: the folder where proc and sys are, "" for the one of this machine.
// Thread-safe.
[[nodiscard]] memory_limit available_memory(node_set const& nodes = {}, std::string const& root = {});

// Throws unavailable where available_memory() is less. Every memory_block asks for itself; before the first of several
// ask for their total, for none takes memory before it is touched. What other processes take later nobody can check.
void check_memory(std::size_t bytes, node_set const& nodes = {}, std::string const& root = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/memory_limits.ipp>
#endif
