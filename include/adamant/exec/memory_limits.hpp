// SPDX-License-Identifier: Apache-2.0
// How much memory is available, and by which limit: of the machine, of cgroups, of NUMA nodes.
#pragma once

#include <cstddef>
#include <string>

#include <adamant/exec/memory_options.hpp>

ADAMANT_BEGIN_NAMESPACE

// How much memory is available without swapping: the least of what the machine, the cgroups of this process and these
// nodes (if any are given) have left. root: the folder that has proc and sys; "" for this machine's. Thread-safe.
[[nodiscard]] memory_limit available_memory(node_set const& nodes = {}, std::string const& root = {});

// Throws unavailable where available_memory() is less. Every memory_block checks its own size. Before the first of
// several, check their total, because none takes memory before it is touched. Other processes may still take memory
// later.
void check_memory(std::size_t bytes, node_set const& nodes = {}, std::string const& root = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/memory_limits.ipp>
#endif
