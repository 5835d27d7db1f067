/* SPDX-License-Identifier: Apache-2.0 */
/* Executors: the instruction set and the threads that do the work. adamant_c.h has the rules. */
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

typedef struct adamant_executor adamant_executor;

typedef struct adamant_executor_options {
    size_t struct_bytes;
    const char* isa;  /* "scalar", "generic", "avx2", "avx512" or "avx512_bf16"; may be null or "automatic": what the
                       * environment variable ADAMANT_ISA says, else the best that this CPU has */
    const char* pus;  /* where the threads go, "0-3,8" or "0xf"; may be null or "": one PU of each allowed core */
    uint32_t threads; /* 0: one on each PU. 1: one thread that is not bound, unless pus is given */
    adamant_binding bind;
    size_t
        min_slice_elems; /* adamant_accumulate() and adamant_load_...() use fewer threads where each would have less */
    size_t max_chunk_elems; /* no thread takes more at once; 0: the default, 65536. Changes no bit, nor does the next */
    size_t prefetch_bytes;  /* how far ahead a step asks for memory; ADAMANT_AUTOMATIC_BYTES: the default, 2048 */
} adamant_executor_options;
ADAMANT_C_API adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes);

/* Makes an executor, with its threads, for *made. options may be null: the defaults. invalid argument: no such
 * instruction set, or a list of PUs that is none. unavailable: an instruction set that this CPU lacks, or threads that
 * cannot be started or bound. */
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
