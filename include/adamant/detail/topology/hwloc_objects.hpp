// SPDX-License-Identifier: Apache-2.0
// hwloc's objects with an owner, and its bitmaps as index sets.
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

// hwloc does not look whether it gets the memory that it takes for a mask: it crashes, or goes on for ever.
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

// Members above max_index are left out: an infinite bitmap has no end.
inline index_set to_index_set(hwloc_const_bitmap_t bitmap)
{
    index_set set;
    if (bitmap != nullptr)
        for (int i = hwloc_bitmap_first(bitmap); i >= 0 && i <= static_cast<int>(index_set::max_index);
             i = hwloc_bitmap_next(bitmap, i))
            set.insert(static_cast<unsigned>(i));
    return set;
}

// Set, and not to nothing: hwloc takes what these name for the machine.
inline std::string hwloc_variable(char const* name)
{
    char const* const value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

enum class io_devices { skipped, included };

inline unique_topology new_topology(io_devices io)
{
    hwloc_topology_t made = nullptr;
    if (hwloc_topology_init(&made) != 0)
        throw_unavailable({"hwloc could not be initialised: ", std::strerror(errno)});
    unique_topology topology(made);
    // PUs that this process may not use are part of the picture. Discovery must not move the calling thread about.
    hwloc_topology_set_flags(made, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
    if (io == io_devices::included)
        hwloc_topology_set_io_types_filter(made, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    // GPUs are found on PCI. Asking their drivers would start them, which takes seconds and does not survive a fork.
    // And PCI is read from the kernel's own files, as hwloc does where its plugin is not installed: that one leaks.
    for (char const* const component : {"cuda", "nvml", "opencl", "rsmi", "levelzero", "gl", "pci"})
        hwloc_topology_set_components(made, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
    return topology;
}

} // namespace detail

ADAMANT_END_NAMESPACE
