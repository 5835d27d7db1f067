/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: threads that are bound to hardware threads. Executors: the instruction set and the threads that do the work.
 * adamant_c.h has the rules. */
#ifndef ADAMANT_C_EXECUTOR_H
#define ADAMANT_C_EXECUTOR_H

#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t adamant_binding;
enum {
    ADAMANT_BIND_DEFAULT = 0,     /* required; none in a library that was built without hwloc */
    ADAMANT_BIND_REQUIRED = 1,    /* a thread that cannot be bound is an error */
    ADAMANT_BIND_IF_POSSIBLE = 2, /* such a thread stays where the system puts it */
    ADAMANT_BIND_NONE = 3
};

/* ---- Teams: threads for several executors -------------------------------------------------------------------------
 */

typedef struct adamant_team adamant_team;

typedef struct adamant_team_options {
    size_t struct_bytes;
    const char* pus;  /* one thread on each, "0-3,8" or "0xf"; may be null or "" with ADAMANT_BIND_NONE and threads */
    uint64_t spin_ns; /* 50000; how long a thread without work looks for some before it sleeps */
    uint32_t threads; /* 0: one on each PU. More share the PUs, fewer are on the first ones */
    adamant_binding bind;
} adamant_team_options;
ADAMANT_C_API adamant_status adamant_team_options_init(adamant_team_options* options, size_t struct_bytes);

/* Starts the threads of a team for *made. They live until the team and all executors on it are freed. Each is bound,
 * and its binding is read back; the caller's threads and OpenMP settings are left alone. Executors on one team take
 * turns. invalid argument: a list of PUs that is none, or no PUs where some are needed. unavailable: threads that
 * cannot be started or bound. */
ADAMANT_C_API adamant_status adamant_team_create(const adamant_team_options* options, adamant_team** made);
/* May be null. */
ADAMANT_C_API void adamant_team_free(adamant_team* team);
/* The number of threads, and the PUs that they are bound to ("" where they are not). Each result may be null. The text
 * lives as long as the handle. From any thread. */
ADAMANT_C_API adamant_status adamant_team_describe(const adamant_team* team, uint32_t* threads, const char** pus);
/* Thread number `index` of the team: its number in the system (as ps -L shows it), the PU that it was to be bound to
 * and those that it is bound to, as lists ("" for none), and why it is not bound, or "". Each result may be null. The
 * texts live as long as the handle. From any thread. invalid argument: the team has no such thread. */
ADAMANT_C_API adamant_status adamant_team_thread(const adamant_team* team, uint32_t index, int64_t* system_id,
                                                 const char** asked, const char** bound_to, const char** problem);

/* ---- Executors --------------------------------------------------------------------------------------------------- */

typedef struct adamant_executor adamant_executor;

typedef struct adamant_executor_options {
    size_t struct_bytes;
    const char* isa;  /* "scalar", "generic", "avx2", "avx512" or "avx512_bf16"; may be null or "automatic": what the
                       * environment variable ADAMANT_ISA says, else the best that this CPU has */
    const char* pus;  /* where the threads go, "0-3,8" or "0xf"; may be null or "": one PU of each allowed core */
    uint32_t threads; /* 0: one on each PU. 1: the caller, unless pus is given. An optimizer
                       * of one thread gets one that is not bound for steps that go on without the caller */
    adamant_binding bind;
    size_t
        min_slice_elems; /* adamant_accumulate() and adamant_load_...() use fewer threads where each would have less */
    size_t max_chunk_elems; /* no thread takes more at once; 0: the default, 65536. Changes no bit, nor does the next */
    size_t prefetch_bytes;  /* how far ahead a step asks for memory; ADAMANT_AUTOMATIC_BYTES: 256 on AMD, else 2048 */
    const adamant_team* team; /* may be null: threads of its own. Else threads, pus and bind are left at their defaults,
                               * or say what the team has */
} adamant_executor_options;
ADAMANT_C_API adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes);

/* Makes an executor, with its threads, for *made. options may be null: the defaults. invalid argument: no such
 * instruction set, a list of PUs that is none, or options that the team contradicts. unavailable: an instruction set
 * that this CPU lacks, or threads that cannot be started or bound. */
ADAMANT_C_API adamant_status adamant_executor_create(const adamant_executor_options* options, adamant_executor** made);
/* May be null. The threads end with the last user of the executor. */
ADAMANT_C_API void adamant_executor_free(adamant_executor* executor);
/* The instruction set in use, the number of threads, and the PUs that they are bound to ("" where they are not). Each
 * result may be null. The texts live as long as the handle. From any thread. */
ADAMANT_C_API adamant_status adamant_executor_describe(const adamant_executor* executor, const char** isa,
                                                       uint32_t* threads, const char** pus);

#ifdef __cplusplus
}
#endif

#endif
