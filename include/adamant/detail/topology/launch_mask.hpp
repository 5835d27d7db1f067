// SPDX-License-Identifier: Apache-2.0
// The affinity mask that a program was started with, kept before any OpenMP runtime can narrow it.
#pragma once

#include <sched.h>

#include <adamant/index_set.hpp>

// Write this in one source file of an executable (a linker refuses it in a shared library), at file scope:
//
//     ADAMANT_KEEP_LAUNCH_MASK
//
// If OMP_PROC_BIND or a similar variable is set, GCC's OpenMP runtime binds the main thread while it is loaded, and
// GOMP_CPU_AFFINITY may even move it out of the mask that taskset or Slurm gave. This runs before that. Without it
// live_machine() recovers the mask from what the runtime reports. That fails in two cases: where the variables name a
// part of a mask that is itself a part of the machine, which machine::note reports; and, unnoticed, where
// GOMP_CPU_AFFINITY names as many PUs outside the mask as the mask has.
#define ADAMANT_KEEP_LAUNCH_MASK                                                                                       \
    __attribute__((section(".preinit_array"), used)) static void (*const adamant_keep_launch_mask_)() = [] {           \
        sched_getaffinity(0, sizeof ::adamant::launch_mask_storage, ::adamant::launch_mask_storage);                   \
    };

namespace adamant {

// Outside the ABI namespace: one for the whole program. Zero, so empty, unless kept.
inline cpu_set_t launch_mask_storage[8]; // 8192 PUs

} // namespace adamant

ADAMANT_BEGIN_NAMESPACE

// The mask that ADAMANT_KEEP_LAUNCH_MASK kept; empty without it.
[[nodiscard]] pu_set launch_mask();

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/topology/launch_mask.ipp>
#endif
