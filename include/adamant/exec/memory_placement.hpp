// SPDX-License-Identifier: Apache-2.0
// What the kernel has given to a block of memory: huge pages, and which NUMA nodes.
#pragma once

#include <cstddef>
#include <cstring>
#include <map>
#include <string>

#include <adamant/exec/memory.hpp>

ADAMANT_BEGIN_NAMESPACE

// What the kernel has given to a block so far: nothing for pages that have not been touched.
struct memory_placement {
    std::size_t resident_bytes = 0;
    std::size_t huge_bytes = 0;                      // of these, in pages of 2 MiB or more
    std::map<unsigned, std::size_t> node_bytes = {}; // by node; above sampled_bytes estimated from evenly spaced pages
    std::string notes = {};                          // what the kernel did not tell

    static constexpr std::size_t sampled_bytes = std::size_t{1} << 28;
};

// Asks the kernel. Reads all of /proc/self/smaps, which may take a second: meant for set-up, not for every step.
[[nodiscard]] memory_placement measure_placement(memory_block const& block);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/memory_placement.ipp>
#endif
