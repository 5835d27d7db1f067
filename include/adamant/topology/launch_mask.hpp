// SPDX-License-Identifier: Apache-2.0
// The affinity mask a program was started with, kept from before any OpenMP runtime could narrow it.
#pragma once

#include <sched.h>

#include <adamant/topology/index_set.hpp>

// In one source file of an executable (a linker refuses it in a shared library), at file scope:
//
//     ADAMANT_KEEP_LAUNCH_MASK
//
// GCC's OpenMP runtime binds the main thread while it is loaded if OMP_PROC_BIND or its like is set, and
// GOMP_CPU_AFFINITY may even take it out of the mask that taskset or Slurm gave. This runs before. Without it
// live_machine() recovers the mask from what the runtime says. That fails, and its note says so, where the variables
// name a part of a mask that is itself a part; and in silence where GOMP_CPU_AFFINITY names as many PUs outside of the
// mask as are in it.
#define ADAMANT_KEEP_LAUNCH_MASK                                                                                       \
    __attribute__((section(".preinit_array"), used)) static void (*const adamant_keep_launch_mask_)() = [] {           \
        sched_getaffinity(0, sizeof ::adamant::launch_mask_storage, ::adamant::launch_mask_storage);                   \
    };

namespace adamant {

// Outside the ABI namespace: one for the program. Zero, and so empty, unless kept.
inline cpu_set_t launch_mask_storage[8]; // 8192 PUs

} // namespace adamant

ADAMANT_BEGIN_NAMESPACE

// The mask that ADAMANT_KEEP_LAUNCH_MASK kept; empty without it.
[[nodiscard]] pu_set launch_mask();

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/topology/launch_mask.ipp>
#endif
