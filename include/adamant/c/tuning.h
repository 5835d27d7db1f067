/* SPDX-License-Identifier: Apache-2.0 */
/* How many cores an optimizer needs on this machine, found by steps that are timed, and kept in a file.
 * adamant_c.h has the rules. */
#ifndef ADAMANT_C_TUNING_H
#define ADAMANT_C_TUNING_H

#include <adamant/c/cores.h>
#include <adamant/c/executor.h>
#include <adamant/c/shard.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What tuning has found, for a machine and a kind of work. */
typedef struct adamant_tuned adamant_tuned;

/* Reads a file that `adamant tune --save` or adamant_tuned_save() wrote, for *made, and checks that it was found on
 * this machine for the same work: cores says which ranks, PUs, masks and GPUs are meant (its sizes do not matter),
 * types is a shard of which only the types are looked at, and isa the instruction set, which may be null as in
 * adamant_executor_options. unavailable: no such file, a result of another machine or other work, with each difference,
 * and one whose deadline came too soon. corrupted: the file holds no tuning result of this version. */
ADAMANT_C_API adamant_status adamant_tuned_load(const char* path, const adamant_core_options* cores,
                                                const adamant_shard* types, const char* isa, adamant_tuned** made);
/* May be null. */
ADAMANT_C_API void adamant_tuned_free(adamant_tuned* tuned);
/* Sets what was found: cpuadam_cores of cores, whose other three sizes become 0, and max_chunk_elems and prefetch_bytes
 * of executor. All else stays. Each struct must be initialised, and may be null. invalid argument: an executor's struct
 * of a version that has no such fields. */
ADAMANT_C_API adamant_status adamant_tuned_apply(const adamant_tuned* tuned, adamant_core_options* cores,
                                                 adamant_executor_options* executor);
/* Writes it to a file, which is replaced as a whole or not at all. unavailable: it cannot be written, with the system's
 * reason. */
ADAMANT_C_API adamant_status adamant_tuned_save(const adamant_tuned* tuned, const char* path);

typedef struct adamant_tuned_summary {
    size_t struct_bytes;
    double cpuadam_cores_perc; /* the optimizer's share of a rank's cores */
    double step_s;             /* of all ranks together, with what was found */
    size_t elements;           /* of each rank, in the steps that were timed */
    size_t max_chunk_elems;
    size_t prefetch_bytes;
    uint32_t cores;   /* the number of the optimizer's cores, of each rank */
    uint32_t of;      /* the number of cores that a rank has */
    int32_t finished; /* 0: the deadline came before it was known whether more cores are worth having */
    int32_t all;      /* every core is worth having */
} adamant_tuned_summary;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_tuned_summary_init(adamant_tuned_summary* summary, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_tuned_describe(const adamant_tuned* tuned, adamant_tuned_summary* summary);

/* Called after each timed step, with the number of cores that it was on and its time. Returns 0; any other value ends
 * the tuning with ADAMANT_UNAVAILABLE. */
typedef int32_t (*adamant_on_trial_step)(void* user, uint32_t cores, double seconds);

typedef struct adamant_tuning_options {
    size_t struct_bytes;
    const char* isa;   /* as in adamant_executor_options; may be null */
    double deadline_s; /* 60; for all of it: then what is known is the result, and says that it is not finished */
    size_t elements;   /* of each rank's arrays; 0: far more than the machine's caches hold */
    /* More cores are worth having if they bring at least this share of what they would bring if the time were inversely
     * proportional to their number. 0.25; in (0, 1]. */
    double worth;
    /* Two numbers of cores are compared in rounds, from `rounds` on until it is this sure which is faster, or there
     * have been most_rounds. */
    double confidence;             /* 0.99 */
    size_t rounds;                 /* 9 */
    size_t most_rounds;            /* 41 */
    double settings_worth;         /* 0.03; by which share another setting must be faster to be taken */
    adamant_on_trial_step on_step; /* may be null */
    void* on_step_user;            /* passed to on_step */
    int32_t settings;              /* 1; whether other chunks and prefetching are tried on the cores that were found */
} adamant_tuning_options;
ADAMANT_C_API adamant_status adamant_tuning_options_init(adamant_tuning_options* options, size_t struct_bytes);
/* Finds, for *made, how many cores each rank's optimizer needs, all ranks stepping at once in this process; cores and
 * types as above. Takes up to a quarter of the available memory, and the machine's cores and memory bandwidth: nothing
 * else should run. options may be null: the defaults. invalid argument: options that cannot be. unavailable: as for
 * adamant_select_cores(), adamant_team_create() and adamant_buffer_create(), and what on_step ended. */
ADAMANT_C_API adamant_status adamant_tune_cores(const adamant_core_options* cores, const adamant_shard* types,
                                                const adamant_tuning_options* options, adamant_tuned** made);

#ifdef __cplusplus
}
#endif

#endif
