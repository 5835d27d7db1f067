/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers, their parameter groups and their shards. adamant_c.h has the rules. */
#ifndef ADAMANT_C_OPTIMIZER_H
#define ADAMANT_C_OPTIMIZER_H

#include <adamant/c/executor.h>
#include <adamant/c/shard.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Options ---------------------------------------------------------------------------------------------------- */

/* Dynamic loss scaling. The scale grows after growth_interval steps without an overflow, and backs off at one. */
typedef struct adamant_loss_scaling {
    size_t struct_bytes;
    double initial_scale;     /* 65536 */
    double growth_factor;     /* 2; at least 1 */
    double backoff_factor;    /* 0.5; in (0, 1] */
    double min_scale;         /* 1 */
    double max_scale;         /* 2^32 */
    uint32_t growth_interval; /* 2000; at least 1 */
    uint32_t hysteresis;      /* 1; which overflow since the scale last grew is the first to back off; at least 1 */
} adamant_loss_scaling;
ADAMANT_C_API adamant_status adamant_loss_scaling_init(adamant_loss_scaling* scaling, size_t struct_bytes);

typedef int32_t adamant_nonfinite; /* what becomes of a step whose gradients hold infinities or NaNs */
enum {
    ADAMANT_NONFINITE_SKIP = 0, /* nothing changes, as is usual with dynamic loss scaling */
    ADAMANT_NONFINITE_ZERO = 1, /* those elements count as zeros */
    ADAMANT_NONFINITE_APPLY = 2 /* they go into the step as they are */
};

typedef int32_t adamant_speculation; /* whether shards are stepped before the norm is known; changes no bit */
enum {
    ADAMANT_SPECULATE_AUTOMATIC = 0, /* until finish, unless most of the last eight steps had to be taken back for it */
    ADAMANT_SPECULATE_ALWAYS = 1,    /* all of them */
    ADAMANT_SPECULATE_NEVER = 2
};

/* For gradients that are spread over processes. It is given the ADAMANT_SQUARES_WORDS words of this process's sum of
 * squares (see adamant_add_squares()), and replaces each by its sum over all processes, as 64-bit integers: what
 * MPI_Allreduce(MPI_IN_PLACE, words, count, MPI_INT64_T, MPI_SUM, comm) does. Integers have no order of addition, so
 * the norm is that of one process with all gradients, if these are cut at multiples of 4096 elements. It returns 0. Any
 * other value fails the step with ADAMANT_REDUCE_FAILED. Words that no sum has, or that are less than this process's
 * own, fail it with ADAMANT_INVALID_ARGUMENT. It is called once in every step: by adamant_finish() or adamant_step() in
 * their thread, and for adamant_step_async() in a thread of the executor. It must not call this optimizer, nor wait for
 * anyone who does. */
typedef int32_t (*adamant_reduce)(void* user, int64_t* words, size_t count);

/* For an engine that copies weights to where they are used while other shards are still stepped. Called whenever
 * elements [begin, end) of a shard have new weights: mostly once a step, for all of a shard that the CPU has; again
 * where a step that was taken too early is taken back or done again, or a shard is stepped in parts. The last call
 * before adamant_finish(), adamant_step(), adamant_wait(), adamant_abandon() or adamant_rollback() returns has the
 * weights that stay. Both param and weight_out are written then, and only the next step changes them. In the executor's
 * threads or the caller's, for different shards at once. It must not call this optimizer, nor wait for anyone who does,
 * nor throw, which ends the program. */
typedef void (*adamant_weights_ready)(void* user, size_t shard, size_t begin, size_t end);

typedef struct adamant_optimizer_options {
    size_t struct_bytes;
    double max_norm;     /* unscaled gradients are scaled down to this norm of all of them together; 0: they are not */
    double max_abs_grad; /* every unscaled element is limited to this; 0: it is not. Not together with max_norm */
    adamant_nonfinite on_nonfinite;           /* ADAMANT_NONFINITE_SKIP */
    adamant_speculation speculate;            /* ADAMANT_SPECULATE_AUTOMATIC */
    const adamant_loss_scaling* loss_scaling; /* may be null: not dynamic; every step says its scale, or it is 1 */
    size_t journal_budget_bytes;              /* ADAMANT_AUTOMATIC_BYTES; a bound: see below */
    int32_t keep_last_step;                   /* 0; set for adamant_rollback() */
    adamant_reduce reduce;                    /* may be null */
    void* reduce_user;                        /* passed to reduce */
    /* How many seconds a device may take for what a step gives it before it counts as one that has stopped answering.
     */
    double device_timeout_s; /* 300 */
    /* Whether a device has room for records of all of its part: as much again as its params and moments. Without, the
     * device never begins before the norm is known, and if it fails in the update itself, there is no way back: the
     * error says so, and a state must be loaded. */
    int32_t device_records;              /* 1 */
    adamant_weights_ready weights_ready; /* may be null */
    void* weights_ready_user;            /* passed to weights_ready */
} adamant_optimizer_options;
/* journal_budget_bytes bounds the records with which a step can be taken back; never more is allocated than one step's
 * records can take. They take, in bytes per element, with float32 params and moments: 2 in the first step, 2.1 to 2.3
 * in ordinary training and 14 at most (12 with the instruction sets scalar and, on x86, generic); with other types as
 * much as params and moments themselves (6, 8 or 10); and an eighth more, as memory is handed out in pages.
 * ADAMANT_AUTOMATIC_BYTES stands for 3 bytes per element with float32, for the size of params and moments with other
 * types, and with keep_last_step for the most that the records can take. A shard that finds no room for its records
 * waits for the norm. */
ADAMANT_C_API adamant_status adamant_optimizer_options_init(adamant_optimizer_options* options, size_t struct_bytes);

typedef struct adamant_optimizer adamant_optimizer;

/* Makes an optimizer without groups and shards for *made. options may be null: the defaults. The executor may be freed
 * afterwards. invalid argument: options that cannot be. */
ADAMANT_C_API adamant_status adamant_optimizer_create(const adamant_executor* executor,
                                                      const adamant_optimizer_options* options,
                                                      adamant_optimizer** made);
/* May be null. Waits for a step that is under way. A step that was begun and not finished is taken back if
 * adamant_abandon() could do that; if not, the shards that were submitted stay stepped, and the others are as before.
 */
ADAMANT_C_API void adamant_optimizer_free(adamant_optimizer* optimizer);

/* ---- Parameter groups: before the first step, and between steps ---------------------------------------------------
 */

/* Adds a parameter group. Its name must be UTF-8, not empty and new; its number is written to *group, which may be
 * null. maximize: steps go up the gradient. The last step can then no longer be rolled back. invalid argument:
 * hyperparameters that cannot be, a name that is taken or not UTF-8, and during a step. */
ADAMANT_C_API adamant_status adamant_add_group(adamant_optimizer* optimizer, const char* name,
                                               const adamant_hyperparameters* hyper, int32_t maximize, size_t* group);
/* Removes a group; the groups behind it move up by one number. The last step can then no longer be rolled back.
 * invalid argument: no such group, a shard that belongs to it, shards on a device, and during a step. */
ADAMANT_C_API adamant_status adamant_remove_group(adamant_optimizer* optimizer, size_t group);
ADAMANT_C_API adamant_status adamant_group_count(const adamant_optimizer* optimizer, size_t* count);
/* The number of the group of that name. *found says whether there is one; if not, *group is not written. */
ADAMANT_C_API adamant_status adamant_find_group(const adamant_optimizer* optimizer, const char* name, size_t* group,
                                                int32_t* found);
/* The name of a group. The text lives until groups are added or removed. invalid argument: no such group. */
ADAMANT_C_API adamant_status adamant_group_name(const adamant_optimizer* optimizer, size_t group, const char** name);
/* Holds from the next step on. invalid argument: hyperparameters that cannot be, no such group, and during a step. */
ADAMANT_C_API adamant_status adamant_set_hyperparameters(adamant_optimizer* optimizer, size_t group,
                                                         const adamant_hyperparameters* hyper);
/* The hyperparameters that a group has now. hyper->struct_bytes must be set. */
ADAMANT_C_API adamant_status adamant_get_hyperparameters(const adamant_optimizer* optimizer, size_t group,
                                                         adamant_hyperparameters* hyper);

/* ---- Shards: before the first step, and between steps -------------------------------------------------------------
 */

/* Adds a shard to a group; its number is written to *number, which may be null. name: the parameter's, in UTF-8, by
 * which checkpoints go. The norm is added up in the order of shards. The last step can then no longer be rolled back.
 * invalid argument: types, pointers or a place that cannot be, a name that is empty or not UTF-8, elements of a
 * parameter that another shard has, arrays of the shard that overlap, and during a step. */
ADAMANT_C_API adamant_status adamant_add_shard(adamant_optimizer* optimizer, size_t group, const char* name,
                                               const adamant_shard* shard, size_t* number);
/* Removes a shard and leaves its arrays alone: they hold its state, and may be freed now. The shards behind it move up
 * by one number; what accumulators hold still counts. The last step can then no longer be rolled back. invalid
 * argument: no such shard, shards on a device (take them back with adamant_place() first), and during a step. */
ADAMANT_C_API adamant_status adamant_remove_shard(adamant_optimizer* optimizer, size_t shard);
ADAMANT_C_API adamant_status adamant_shard_count(const adamant_optimizer* optimizer, size_t* count);
/* The number of the shard of parameter `name` that begins at element `begin` of it. *found says whether there is one;
 * if not, *shard is not written. */
ADAMANT_C_API adamant_status adamant_find_shard(const adamant_optimizer* optimizer, const char* name, size_t begin,
                                                size_t* shard, int32_t* found);
/* The name of a shard's parameter. The text lives until shards are added or removed. invalid argument: no such shard.
 */
ADAMANT_C_API adamant_status adamant_shard_name(const adamant_optimizer* optimizer, size_t shard, const char** name);
/* From now on the shard's gradient is at `grad`, with as many elements of the same type as before: for buffers that
 * take turns. Between steps, and in an open step before the shard is submitted; from any thread. Allocates nothing once
 * memory is prepared. adamant_rollback() reads the gradient where it is set then, so set the one that the step was
 * taken with. invalid argument: no such shard, a null pointer with elements, memory that a step writes, a shard that
 * was submitted, and one with an array of gradients on a device. */
ADAMANT_C_API adamant_status adamant_set_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* How many bytes adamant_prepare() will allocate: with what adamant_begin_step() needs beyond adamant_step(), or
 * without. */
ADAMANT_C_API adamant_status adamant_memory_bytes(const adamant_optimizer* optimizer, int32_t with_journal,
                                                  size_t* bytes);
/* Allocates what steps need; otherwise the first step does. invalid argument: arrays of different shards that overlap
 * where one of them is written, and during a step. unavailable: more memory than there is. */
ADAMANT_C_API adamant_status adamant_prepare(adamant_optimizer* optimizer, int32_t with_journal);

#ifdef __cplusplus
}
#endif

#endif
