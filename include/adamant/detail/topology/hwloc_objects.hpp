// SPDX-License-Identifier: Apache-2.0
// Owners of hwloc's objects, and conversion of its bitmaps to and from index sets.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <hwloc.h>

#include <adamant/error.hpp>
#include <adamant/index_set.hpp>
#include <adamant/detail/core/probe_allocation.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

struct free_topology {
    void operator()(hwloc_topology* t) const noexcept { hwloc_topology_destroy(t); }
};
using unique_topology = std::unique_ptr<hwloc_topology, free_topology>;

struct free_bitmap {
    void operator()(hwloc_bitmap_s* b) const noexcept { hwloc_bitmap_free(b); }
};
using unique_bitmap = std::unique_ptr<hwloc_bitmap_s, free_bitmap>;

// hwloc does not check its allocations for a mask: without this memory it crashes or loops forever.
inline constexpr std::size_t hwloc_mask_bytes = 65536;

inline unique_bitmap new_bitmap()
{
    unique_bitmap bitmap(hwloc_bitmap_alloc());
    if (!bitmap)
        throw std::bad_alloc();
    return bitmap;
}

inline unique_bitmap to_bitmap(index_set const& set)
{
    unique_bitmap bitmap = new_bitmap();
    for (unsigned const i : set.members())
        if (hwloc_bitmap_set(bitmap.get(), i) != 0)
            throw std::bad_alloc();
    return bitmap;
}

// Skips members above max_index, because a bitmap may be infinite.
[[gnu::noinline]] inline index_set to_index_set(hwloc_const_bitmap_t bitmap)
{
    index_set set;
    if (bitmap != nullptr)
        for (int i = hwloc_bitmap_first(bitmap); i >= 0 && i <= static_cast<int>(index_set::max_index);
             i = hwloc_bitmap_next(bitmap, i))
            set.insert(static_cast<unsigned>(i));
    return set;
}

// Returns the value of one of hwloc's environment variables, or an empty text if it is not set.
[[gnu::noinline]] inline std::string hwloc_variable(char const* name)
{
    char const* const value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

enum class io_devices { skipped, included };

[[gnu::noinline]] inline unique_topology new_topology(io_devices io)
{
    hwloc_topology_t raw = nullptr;
    if (hwloc_topology_init(&raw) != 0)
        throw_unavailable({"hwloc could not be initialised: ", std::strerror(errno)});
    unique_topology topology(raw);
    // Include PUs that this process may not use. Discovery must not bind the calling thread.
    hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
    if (io == io_devices::included)
        hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    // GPUs are found on PCI: their drivers would initialize, which takes seconds and does not survive a fork. PCI is
    // read from the kernel's files, as hwloc does without its pci plugin, because that plugin leaks memory.
    for (char const* const component : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl", "pci"})
        hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    return topology;
}

} // namespace detail

ADAMANT_END_NAMESPACE
