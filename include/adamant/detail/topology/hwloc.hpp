// SPDX-License-Identifier: Apache-2.0
// This machine, by hwloc: what of it this process may use, and threads bound to it.
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
inline void check_before_load()
{
    std::string const xml = hwloc_variable("HWLOC_XMLFILE");
    std::string const root = hwloc_variable("HWLOC_FSROOT");
    bool const others = !xml.empty() || !root.empty() || !hwloc_variable("HWLOC_SYNTHETIC").empty();
    if (others && std::atoi(hwloc_variable("HWLOC_THISSYSTEM").c_str()) == 0)
        refuse_another_machine();
    if (std::string const problem = problem_of_xml(read_file(xml)); !problem.empty())
        throw_unavailable({"cannot read this machine's topology from \"", xml, "\" (HWLOC_XMLFILE): ", problem,
                           ". Write the file again with lstopo FILE.xml"});
    // hwloc 2 aborts where there is a folder of nodes that names none.
    std::string const nodes = root + "/sys/devices/system/node";
    DIR* const folder = ::opendir(nodes.c_str());
    if (folder == nullptr)
        return;
    bool any = false;
    while (dirent const* const entry = ::readdir(folder)) {
        std::string_view const name = entry->d_name;
        any = any || name == "online" ||
              (name.size() > 4 && name.starts_with("node") && name[4] >= '0' && name[4] <= '9');
    }
    ::closedir(folder);
    if (!any)
        throw_unavailable({"cannot read this machine's topology: ", nodes,
                           " names no NUMA node. Mount all of sysfs at /sys, or nothing"});
}

inline unique_topology load_live(io_devices io)
{
    check_before_load();
    if (!probe_allocation(
            std::size_t{8} << 20)) // for all of it: hwloc crashes where it gets none, see hwloc_mask_bytes
        throw std::bad_alloc();
    unique_topology topology = new_topology(io);
    if (hwloc_topology_load(topology.get()) != 0)
        throw_unavailable({"hwloc could not read this machine's topology: ", std::strerror(errno)});
    if (hwloc_topology_is_thissystem(topology.get()) == 0)
        refuse_another_machine();
    return topology;
}

// This machine without its devices, read once. For binding, and for what does not change while a process runs. Kept to
// the end: with the last topology hwloc unloads its plugins, and what their libraries hold (libpciaccess) would be
// lost.
inline hwloc_topology_t live_topology()
{
    static hwloc_topology_t const topology = load_live(io_devices::skipped).release();
    return topology;
}

// The kernel's mask of a thread (0: the calling one); empty, with errno, where it does not say. Not asked by hwloc,
// which asks again for ever where the call is refused.
inline index_set affinity_of(pid_t thread)
{
    cpu_set_t masks[64]; // up to index_set::max_index; the kernel refuses what is too small for it
    CPU_ZERO_S(sizeof masks, masks);
    index_set pus;
    if (sched_getaffinity(thread, sizeof masks, masks) != 0)
        return pus;
    for (unsigned m = 0; m < 64; ++m)
        for (unsigned i = 0, left = static_cast<unsigned>(CPU_COUNT(&masks[m])); left > 0; ++i)
            if (CPU_ISSET(i, &masks[m])) {
                pus.insert(m * CPU_SETSIZE + i);
                --left;
            }
    return pus;
}

// Throws what work() throws, and unavailable where there is no thread to be had.
template <class Work>
void in_thread_of_its_own(Work const& work)
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
        throw_unavailable({"a thread is needed for a moment, but the system makes none: ", e.what(), "; ",
                           advice_on(e.code().value(), "look at ulimit -u and ulimit -v")});
    }
    if (failure)
        std::rethrow_exception(failure);
}

// The PUs that this process was started with. OpenMP runtimes that are told to bind threads (OMP_PROC_BIND, OMP_PLACES,
// GOMP_CPU_AFFINITY, KMP_AFFINITY) narrow the mask of the main thread, GCC's before main() begins; that is their
// business and must not become ours, so the mask from before is recovered. note says where that fails.
inline pu_set process_mask(pu_set const& in_cgroup, [[maybe_unused]] std::string& note)
{
    if (!launch_mask().empty())
        return launch_mask() & in_cgroup;
    pu_set own = affinity_of(getpid());
    if (own.empty())
        throw_unavailable({"cannot read which PUs this process may use: sched_getaffinity: ", std::strerror(errno),
                           ". Allow the call in the container's seccomp profile, or name PUs and bind no threads"});
    own &= in_cgroup;
#if defined(_OPENMP)
    if (own == in_cgroup)
        return own;
    // In a thread of its own: LLVM's runtime binds the first thread that calls it.
    pu_set places;
    std::size_t procs = 0;
    in_thread_of_its_own([&] {
        for (int p = 0; p < omp_get_num_places(); ++p) {
            std::vector<int> ids(static_cast<std::size_t>(omp_get_place_num_procs(p)));
            omp_get_place_proc_ids(p, ids.data());
            for (int const id : ids)
                places.insert(static_cast<unsigned>(id));
        }
        procs = static_cast<std::size_t>(omp_get_num_procs()); // both runtimes count the mask from before
    });
    if (procs <= own.size())
        return own;
    own |= places & in_cgroup;
    if (procs > own.size()) {
        if (procs == in_cgroup.size()) // a mask of that many PUs inside the cgroup is the cgroup's
            return in_cgroup;
        note = text_of({"OpenMP's environment bound this process at its start: of the ", procs,
                        " PUs that it was given only ", to_list(own), " are known"});
    }
#endif
    return own;
}

inline bool bind_this_thread(hwloc_const_bitmap_t pus) noexcept
{
    if (!probe_allocation(hwloc_mask_bytes)) {
        errno = ENOMEM;
        return false;
    }
    return hwloc_set_cpubind(live_topology(), pus, HWLOC_CPUBIND_THREAD | HWLOC_CPUBIND_STRICT) == 0;
}
// Where the calling thread is bound, says the kernel; empty where it does not say.
inline unique_bitmap bitmap_of_this_thread()
{
    return to_bitmap(affinity_of(0));
}
// Binds the calling thread, and returns what the kernel then says its mask is; empty, with errno, where it was refused.
inline pu_set bind_this_thread(pu_set const& pus)
{
    if (!bind_this_thread(to_bitmap(pus).get()))
        return {};
    return affinity_of(0);
}

} // namespace detail

ADAMANT_END_NAMESPACE
