// SPDX-License-Identifier: Apache-2.0
// hwloc on this machine: loads the topology, reads which PUs this process may use, and binds threads.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <dirent.h>
#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <adamant/error.hpp>
#include <adamant/detail/core/refused_call.hpp>
#include <adamant/detail/core/system_file.hpp>
#include <adamant/detail/topology/hwloc_objects.hpp>
#include <adamant/detail/topology/hwloc_xml.hpp>
#include <adamant/detail/topology/launch_mask.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

[[noreturn]] inline void refuse_another_machine()
{
    throw_unavailable({"hwloc was told to show another machine than this one; unset HWLOC_XMLFILE, "
                       "HWLOC_SYNTHETIC and HWLOC_FSROOT, or set HWLOC_THISSYSTEM=1 if they describe this machine"});
}

// Throws unavailable where hwloc would abort or crash.
[[gnu::noinline]] inline void check_before_load()
{
    std::string const xml = hwloc_variable("HWLOC_XMLFILE");
    std::string const root = hwloc_variable("HWLOC_FSROOT");
    bool const is_overridden = !xml.empty() || !root.empty() || !hwloc_variable("HWLOC_SYNTHETIC").empty();
    if (is_overridden && std::atoi(hwloc_variable("HWLOC_THISSYSTEM").c_str()) == 0)
        refuse_another_machine();
    if (std::string const problem = problem_of_xml(read_file(xml)); !problem.empty())
        throw_unavailable({"cannot read this machine's topology from \"", xml, "\" (HWLOC_XMLFILE): ", problem,
                           ". Write the file again with lstopo FILE.xml"});
    // hwloc 2 aborts if the folder of nodes exists but names no node.
    std::string const nodes = root + "/sys/devices/system/node";
    DIR* const folder = ::opendir(nodes.c_str());
    if (folder == nullptr)
        return;
    bool has_node = false;
    while (dirent const* const entry = ::readdir(folder)) {
        std::string_view const name = entry->d_name;
        has_node = has_node || name == "online" ||
                   (name.size() > 4 && name.starts_with("node") && name[4] >= '0' && name[4] <= '9');
    }
    ::closedir(folder);
    if (!has_node)
        throw_unavailable({"cannot read this machine's topology: ", nodes,
                           " names no NUMA node. Mount all of sysfs at /sys, or nothing"});
}

[[gnu::noinline]] inline unique_topology load_live(io_devices io)
{
    check_before_load();
    // Enough for the complete topology: hwloc crashes when it runs out of memory, see hwloc_mask_bytes.
    if (!probe_allocation(std::size_t{8} << 20))
        throw std::bad_alloc();
    unique_topology topology = new_topology(io);
    if (hwloc_topology_load(topology.get()) != 0)
        throw_unavailable({"hwloc could not read this machine's topology: ", std::strerror(errno)});
    if (hwloc_topology_is_thissystem(topology.get()) == 0)
        refuse_another_machine();
    return topology;
}

// Returns this machine's topology without devices, read once. For binding, and for properties that do not change while
// a process runs. Never freed: with the last topology hwloc unloads its plugins, and memory that their libraries
// (libpciaccess) hold would leak.
[[gnu::noinline]] inline hwloc_topology_t live_topology()
{
    static hwloc_topology_t const topology = load_live(io_devices::skipped).release();
    return topology;
}

// Returns the kernel's mask of a thread (0: the calling thread), or an empty set, with errno, on failure. Not through
// hwloc, which repeats a refused call forever.
[[gnu::noinline]] inline index_set affinity_of(pid_t thread)
{
    cpu_set_t masks[64]; // up to index_set::max_index; the kernel refuses masks that are too small
    CPU_ZERO_S(sizeof masks, masks);
    index_set pus;
    if (sched_getaffinity(thread, sizeof masks, masks) != 0)
        return pus;
    for (unsigned m = 0; m < 64; ++m)
        for (unsigned i = 0, remaining = static_cast<unsigned>(CPU_COUNT(&masks[m])); remaining > 0; ++i)
            if (CPU_ISSET(i, &masks[m])) {
                pus.insert(m * CPU_SETSIZE + i);
                --remaining;
            }
    return pus;
}

// Throws what work() throws, and unavailable if no thread can be started.
template <class Work>
void run_in_new_thread(Work const& work)
{
    std::exception_ptr failure;
    try {
        std::thread([&] {
            try {
                work();
            } catch (...) {
                failure = std::current_exception();
            }
        }).join();
    } catch (std::system_error const& e) {
        throw_unavailable({"cannot start a thread to read OpenMP's places: ", e.what(), "; ",
                           advice_on(e.code().value(), "look at ulimit -u and ulimit -v")});
    }
    if (failure)
        std::rethrow_exception(failure);
}

// Returns the PUs that this process was started with. OpenMP runtimes that bind threads (OMP_PROC_BIND, OMP_PLACES,
// GOMP_CPU_AFFINITY, KMP_AFFINITY) narrow the mask of the main thread, GCC's even before main(). The library must not
// inherit that, so this recovers the original mask. Sets note if that fails.
[[gnu::noinline]] inline pu_set process_mask(pu_set const& cgroup_pus, [[maybe_unused]] std::string& note)
{
    if (!launch_mask().empty())
        return launch_mask() & cgroup_pus;
    pu_set mask = affinity_of(getpid());
    if (mask.empty())
        throw_unavailable({"cannot read which PUs this process may use: sched_getaffinity: ", std::strerror(errno),
                           ". Allow the call in the container's seccomp profile, or name PUs and bind no threads"});
    mask &= cgroup_pus;
#if defined(_OPENMP)
    if (mask == cgroup_pus)
        return mask;
    // In a new thread, because LLVM's runtime binds the first thread that calls it.
    pu_set places;
    std::size_t procs = 0;
    run_in_new_thread([&] {
        for (int p = 0; p < omp_get_num_places(); ++p) {
            std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(p)));
            omp_get_place_proc_ids(p, ids.data());
            for (int const id : ids)
                places.insert(static_cast<unsigned>(id));
        }
        procs = static_cast<std::size_t>(omp_get_num_procs()); // both runtimes count the original mask
    });
    if (procs <= mask.size())
        return mask;
    mask |= places & cgroup_pus;
    if (procs > mask.size()) {
        if (procs == cgroup_pus.size()) // the mask has as many PUs as the cgroup, so it is the cgroup's
            return cgroup_pus;
        note = text_of({"OpenMP's environment bound this process at its start: of the ", procs,
                        " PUs that it was given only ", to_list(mask), " are known"});
    }
#endif
    return mask;
}

inline bool bind_this_thread(hwloc_const_bitmap_t pus) noexcept
{
    if (!probe_allocation(hwloc_mask_bytes)) {
        errno = ENOMEM;
        return false;
    }
    return hwloc_set_cpubind(live_topology(), pus, HWLOC_CPUBIND_THREAD | HWLOC_CPUBIND_STRICT) == 0;
}
// Returns the kernel's mask of the calling thread, or an empty bitmap on failure.
inline unique_bitmap bitmap_of_this_thread()
{
    return to_bitmap(affinity_of(0));
}
// Binds the calling thread and returns its mask from the kernel, or an empty set, with errno, on failure.
inline pu_set bind_this_thread(pu_set const& pus)
{
    if (!bind_this_thread(to_bitmap(pus).get()))
        return {};
    return affinity_of(0);
}

} // namespace detail

ADAMANT_END_NAMESPACE
