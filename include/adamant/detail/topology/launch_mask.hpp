// SPDX-License-Identifier: Apache-2.0
// ADAMANT_KEEP_LAUNCH_MASK: saves the affinity mask of a program's start before an OpenMP runtime narrows it.
#pragma once

#include <sched.h>

#include <adamant/index_set.hpp>

// Write this at file scope in one source file of an executable (linkers refuse it in a shared library):
//
//     ADAMANT_KEEP_LAUNCH_MASK
//
// If OMP_PROC_BIND or a similar variable is set, GCC's OpenMP runtime binds the main thread while it is loaded, and
// GOMP_CPU_AFFINITY may even move it out of the mask that taskset or Slurm set. The macro's code runs before that.
// Without it live_machine() recovers the mask from the runtime's report. That fails in two cases: if the variables name
// a part of a mask that is itself a part of the machine, which machine::note reports; and, undetected, if
// GOMP_CPU_AFFINITY names as many PUs outside the mask as the mask has.
#define ADAMANT_KEEP_LAUNCH_MASK                                                                                       \
    __attribute__((section(".preinit_array"), used)) static void (*const adamant_keep_launch_mask_)() = [] {           \
        sched_getaffinity(0, sizeof ::adamant::launch_mask_storage, ::adamant::launch_mask_storage);                   \
    };

namespace adamant {

// Outside the ABI namespace: one for the whole program. Empty without ADAMANT_KEEP_LAUNCH_MASK.
inline cpu_set_t launch_mask_storage[8]; // 8192 PUs

} // namespace adamant

ADAMANT_BEGIN_NAMESPACE

// Returns the mask that ADAMANT_KEEP_LAUNCH_MASK saved, or an empty set without it.
[[nodiscard]] pu_set launch_mask();

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/launch_mask.ipp>
#endif
