/* SPDX-License-Identifier: Apache-2.0 */
/* Which cores an optimizer gets and which are left to the host framework. adamant_c.h has the rules. */
#ifndef ADAMANT_C_CORES_H
#define ADAMANT_C_CORES_H

#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adamant_core_options {
    size_t struct_bytes;
    /* The size of the optimizer's part of each rank's cores. At most one of these four is set; 0 means that it is not.
     * With none of them the optimizer's share is 0.8. */
    double cpuadam_cores_perc;     /* the optimizer's share, above 0 and at most 1 */
    double pt_reserved_cores_perc; /* the host framework's share, above 0 and below 1 */
    uint32_t cpuadam_cores;        /* the number of the optimizer's cores */
    uint32_t pt_reserved_cores;    /* the number of the host framework's cores */
    /* How many ranks there are on this host, and which of them this one is, from 0. With ranks 0 both are taken from
     * the launcher's environment. */
    uint32_t ranks;
    uint32_t rank;
    const char* pus;            /* only these, as a list "0-3,8" or a mask "0xf"; may be null: all that are allowed */
    const char* machine;        /* may be null: this one. Else an XML file of hwloc's or its synthetic description */
    int32_t every_pu_of_cores;  /* all hardware threads of each core; else the first one of each */
    int32_t fast_cores_to_host; /* on machines with fast and slow cores; else the optimizer gets the fast ones */
    /* The PUs that the ranks may use together, as a list; may be null: those of this process, or all of the file. */
    const char* allowed;
    /* The affinity mask that each rank was started with, as a list of its PUs: none or one where all have the same,
     * else one for each rank, which then keeps its own. May be null with mask_count 0. Ranks get each other's by
     * exchanging adamant_allowed_pus(), and set the union of all as `allowed`. */
    const char* const* masks;
    size_t mask_count;
    /* The GPU of each rank: its PCI address, its number on this machine, or "" for none. May be null with gpu_count 0.
     */
    const char* const* gpus;
    size_t gpu_count;
    /* CPUs' worth of time that the ranks may use together; 0: as adamant_cpu_quota() says, or no quota with `machine`.
     */
    double cpu_quota;
} adamant_core_options;
ADAMANT_C_API adamant_status adamant_core_options_init(adamant_core_options* options, size_t struct_bytes);

/* Chooses the cores of one rank. Writes the hardware threads (PUs) of the optimizer to adam_pus, and those left to the
 * host framework to host_pus, each as a list that adamant_executor_options.pus takes. host_pus may be null with
 * host_bytes 0. Depends only on its arguments, the machine, the CPU quota and the environment, which must not change
 * meanwhile; thread-safe. invalid argument: sizes that cannot be, and a text that does not fit, with the bytes that it
 * needs. unavailable: a request for more than the machine has. */
ADAMANT_C_API adamant_status adamant_select_cores(const adamant_core_options* options, char* adam_pus,
                                                  size_t adam_bytes, char* host_pus, size_t host_bytes);
/* Writes the PUs that this process may use, by its affinity and cgroup, as a list to pus. Errors as above. */
ADAMANT_C_API adamant_status adamant_allowed_pus(char* pus, size_t pus_bytes);
/* The CPU time that the quotas of this process's cgroups leave it and all that share these, in CPUs: 2.5, say. 0: no
 * quota. source: the file that sets it, "" without one; may be null with source_bytes 0. Executors of default size and
 * adamant_select_cores() use no more threads than each rank's part of it keeps busy. Errors as above. */
ADAMANT_C_API adamant_status adamant_cpu_quota(double* cpus, char* source, size_t source_bytes);
/* The NUMA nodes that the optimizer's state of that rank belongs on, as a list that adamant_buffer_options.nodes takes
 * (empty where none may be used), and in words why the rank has these cores. why may be null with why_bytes 0. All else
 * as for adamant_select_cores(). */
ADAMANT_C_API adamant_status adamant_select_nodes(const adamant_core_options* options, char* nodes, size_t nodes_bytes,
                                                  char* why, size_t why_bytes);

#ifdef __cplusplus
}
#endif

#endif
