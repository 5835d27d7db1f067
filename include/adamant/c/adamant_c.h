/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer for programs in C, and in every language that can call C. Takes plain pointers, and returns a status.
 */
#ifndef ADAMANT_C_H
#define ADAMANT_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ADAMANT_C_API __attribute__((visibility("default")))
#else
#define ADAMANT_C_API
#endif

/*
 * Rules for all of it.
 *
 * Errors. A function that can fail returns a status; ADAMANT_OK is 0. For any other, adamant_last_error() says in this
 * thread what was asked, what was found and what to do. Unless it says otherwise, a call that fails has changed nothing
 * and written none of its results. No exception leaves the library. A null pointer is an error, but where "may be null"
 * is said; an address that is not null is believed. Where memory ends, a call says so and has changed nothing, with one
 * exception that is not the library's: nlohmann-json, which checkpoints and configurations are read and written with,
 * ends the process where memory ends while it frees its own.
 *
 * Threads. Different optimizers may be used at the same time by different threads, on one executor, too. Of one
 * optimizer, adamant_submit() and adamant_leave_out() may be called by several threads at once, and everything else by
 * one at a time. A thread must not be cancelled (pthread_cancel) while it is in a call, and an optimizer or executor
 * must not be used in a process that was forked from its own, not even freed.
 *
 * Ownership. Arrays of params, gradients, moments and weights stay the caller's, and must outlive the optimizer that
 * was told of them. Everything else that is passed (names, structs and what they point to) is copied and may go after
 * the call. Texts that are returned belong to the library, and live as long as is said.
 *
 * Structs. Each begins with struct_bytes, its size for the caller's compiler, so that later versions may append fields.
 * Its adamant_..._init(&it, sizeof it) sets that and all defaults; a struct of zeros with struct_bytes set is not the
 * same. Fields that the library does not know have to be zero; those that the caller does not know have their defaults.
 *
 * Numbers. Sizes and indices are size_t and count elements where they do not say bytes; indices begin at 0. What is
 * true or false is an int32_t: anything but 0 is true. Nothing that is chosen here changes a bit of a result but what
 * belongs to the formula: hyperparameters, limits, the loss scale and the order of shards.
 */

/* Of this interface: what is compiled against one version works with a library of the same one. */
#define ADAMANT_C_VERSION 1
/* ADAMANT_C_VERSION of the library that is loaded, to be compared with this header's. */
ADAMANT_C_API uint32_t adamant_c_version(void);
/* The project's version, "0.1.0". Lives for ever. */
ADAMANT_C_API const char* adamant_version(void);

typedef int32_t adamant_status;
enum {
    ADAMANT_OK = 0,
    ADAMANT_INVALID_ARGUMENT = 1, /* what can never be right */
    ADAMANT_UNAVAILABLE = 2,      /* well formed, but this machine, file system or build cannot serve it */
    ADAMANT_OUT_OF_MEMORY = 3,
    ADAMANT_CORRUPTED = 4,     /* a checkpoint that is damaged */
    ADAMANT_REDUCE_FAILED = 5, /* adamant_optimizer_options.reduce said so */
    ADAMANT_INTERNAL = 6       /* a defect of the library */
};
/* What this thread's last call that failed has said, in at most 4095 bytes of UTF-8; "" before there was one. Bytes of
 * a path or name that are not UTF-8 are written as \xff. Lives until the next call of this thread that fails, or the
 * thread's end. Never null. */
ADAMANT_C_API const char* adamant_last_error(void);
/* "ok", "invalid argument" and so on; "unknown status" for others. Lives for ever. */
ADAMANT_C_API const char* adamant_status_name(adamant_status status);

/* ---- Which cores ---------------------------------------------------------------------------------------------- */

typedef struct adamant_core_options {
    size_t struct_bytes;
    /* How big the optimizer's part of each rank's cores is; at most one of these four, 0 where it is not said. With
     * none the share is 0.8. */
    double cpuadam_cores_perc;     /* the optimizer's share, above 0, at most 1 */
    double pt_reserved_cores_perc; /* the share that the host framework keeps, above 0, below 1 */
    uint32_t cpuadam_cores;        /* the optimizer's cores */
    uint32_t pt_reserved_cores;    /* the host framework's */
    /* Ranks on this host, and which of them this one is, from 0. ranks 0: as the launcher's environment says. */
    uint32_t ranks;
    uint32_t rank;
    const char* pus;            /* only these, as a list "0-3,8" or a mask "0xf"; may be null: all that are allowed */
    const char* machine;        /* may be null: this one. Else an XML file of hwloc or its synthetic description */
    int32_t every_pu_of_cores;  /* hardware threads that share a core, too; else the first of each core */
    int32_t fast_cores_to_host; /* where a machine has fast and slow ones; else they are the optimizer's */
} adamant_core_options;
ADAMANT_C_API adamant_status adamant_core_options_init(adamant_core_options* options, size_t struct_bytes);

/* Chooses the cores of one rank, and writes the hardware threads (PUs) of the optimizer to adam_pus and those left to
 * the host framework to host_pus, each as a list that adamant_executor_options.pus takes. host_pus may be null with
 * host_bytes 0. Pure but for the machine and the environment, which must not change meanwhile; thread-safe.
 * invalid argument: sizes that cannot be, and a text that does not fit, with the bytes that it needs. unavailable: more
 * than there is. */
ADAMANT_C_API adamant_status adamant_select_cores(const adamant_core_options* options, char* adam_pus,
                                                  size_t adam_bytes, char* host_pus, size_t host_bytes);

/* ---- Executors: the instruction set and the threads ------------------------------------------------------------ */

/* Counts its users: what adamant_optimizer_create() is given stays until the last of these optimizers is freed. */
typedef struct adamant_executor adamant_executor;

typedef int32_t adamant_binding;
enum {
    ADAMANT_BIND_DEFAULT = 0,  /* required, or none in a library that was built without hwloc */
    ADAMANT_BIND_REQUIRED = 1, /* a thread that cannot be bound is an error */
    ADAMANT_BIND_IF_POSSIBLE = 2,
    ADAMANT_BIND_NONE = 3
};

#define ADAMANT_AUTOMATIC_BYTES SIZE_MAX

typedef struct adamant_executor_options {
    size_t struct_bytes;
    const char* isa;  /* "scalar", "generic", "avx2", "avx512", "avx512_bf16"; may be null or "automatic":
                       * ADAMANT_ISA of the environment, else the best */
    const char* pus;  /* where its threads go, "0-3,8" or "0xf"; may be null or "": one PU of each allowed core */
    uint32_t threads; /* 0: one to a PU. 1: one thread that is bound to nothing, unless pus is given */
    adamant_binding bind;
    size_t min_slice_elems; /* of adamant_load_safetensors() and adamant_accumulate(): fewer threads below it */
    size_t max_chunk_elems; /* no thread takes more at once; 0: the default, 65536. It changes no bit, as the next */
    size_t prefetch_bytes;  /* how far ahead a step asks for memory; ADAMANT_AUTOMATIC_BYTES: the default, 2048 */
} adamant_executor_options;
ADAMANT_C_API adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes);

/* Makes an executor, with its threads, for *made; options may be null: the defaults. invalid argument: an instruction
 * set or list that is none. unavailable: one that this CPU lacks, or threads that cannot be had or bound. */
ADAMANT_C_API adamant_status adamant_executor_create(const adamant_executor_options* options, adamant_executor** made);
/* May be null. Thread-safe beside everything but another use of this handle. */
ADAMANT_C_API void adamant_executor_free(adamant_executor* executor);
/* The instruction set in use, how many threads there are, and the PUs that they are bound to ("" where they are not).
 * Each result may be null. The texts live as long as the executor. */
ADAMANT_C_API adamant_status adamant_executor_describe(const adamant_executor* executor, const char** isa,
                                                       uint32_t* threads, const char** pus);

/* ---- Optimizers ------------------------------------------------------------------------------------------------- */

typedef struct adamant_optimizer adamant_optimizer;

/* The rule: the scale grows after growth_interval steps without an overflow, and backs off at one. */
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
    ADAMANT_SPECULATE_AUTOMATIC = 0, /* unless most of the last eight steps had to be taken back for it */
    ADAMANT_SPECULATE_ALWAYS = 1,
    ADAMANT_SPECULATE_NEVER = 2
};

/* Where gradients are spread over processes: is given this one's sum of squares and count of elements that are infinite
 * or NaN, and puts those of all in their place (a sum by MPI or NCCL, added in the same order everywhere). Returns 0;
 * anything else fails the step with ADAMANT_REDUCE_FAILED, and a sum that is negative or not finite, or a count below
 * this process's own, with ADAMANT_INVALID_ARGUMENT. Called once in every step: by adamant_finish() or
 * adamant_step() in their thread, and for adamant_step_async() in a thread of the executor. Must not call this
 * optimizer, nor wait for anyone who does. */
typedef int32_t (*adamant_reduce)(void* user, double* sum, uint64_t* nonfinite);

typedef struct adamant_optimizer_options {
    size_t struct_bytes;
    double max_norm;     /* gradients, once unscaled, are scaled down to this norm of all together; 0: are not */
    double max_abs_grad; /* every element is limited to this, once unscaled; 0: is not. Not together with max_norm */
    adamant_nonfinite on_nonfinite;           /* ADAMANT_NONFINITE_SKIP */
    adamant_speculation speculate;            /* ADAMANT_SPECULATE_AUTOMATIC */
    const adamant_loss_scaling* loss_scaling; /* dynamic; may be null: every step says its scale, or it is 1 */
    size_t journal_budget_bytes;              /* ADAMANT_AUTOMATIC_BYTES; a bound: see below */
    int32_t keep_last_step;                   /* 0; so that adamant_rollback() can take it back */
    adamant_reduce reduce;                    /* may be null */
    void* reduce_user;                        /* given to it */
} adamant_optimizer_options;
/* journal_budget_bytes bounds the records that it takes to go back; no more is allocated than those of one step can take.
 * They take, in bytes an element, with params and moments of float32: 2 in a first step, 2.1 to 2.3 in ordinary training
 * and 14 at most; with other types what params and moments take themselves (6, 8 or 10); and an eighth more, as memory is
 * handed out in pages. ADAMANT_AUTOMATIC_BYTES: 3 with float32, what they take themselves with others, and with
 * keep_last_step the most that they can take. A shard that finds no room waits for the norm. */
ADAMANT_C_API adamant_status adamant_optimizer_options_init(adamant_optimizer_options* options, size_t struct_bytes);

/* Makes an optimizer, Adam or AdamW, without groups and shards, for *made; options may be null: the defaults. The
 * executor may be freed. invalid argument: options that cannot be. */
ADAMANT_C_API adamant_status adamant_optimizer_create(const adamant_executor* executor,
                                                      const adamant_optimizer_options* options,
                                                      adamant_optimizer** made);
/* May be null. A step that is under way is waited for. One that was begun and not finished is taken back where
 * adamant_abandon() could do that; where it could not, the shards that were submitted stay stepped, and the others are as
 * before. */
ADAMANT_C_API void adamant_optimizer_free(adamant_optimizer* optimizer);

/* ---- Set-up: parameter groups and shards ------------------------------------------------------------------------- */

typedef int32_t adamant_decay; /* how weight_decay acts */
enum {
    ADAMANT_DECAY_UNSET = 0,     /* only while weight_decay is 0 */
    ADAMANT_DECAY_DECOUPLED = 1, /* AdamW */
    ADAMANT_DECAY_L2 = 2         /* Adam */
};

typedef struct adamant_hyperparameters {
    size_t struct_bytes;
    double lr;               /* 1e-3 */
    double beta1;            /* 0.9; in [0, 1) */
    double beta2;            /* 0.999; in [0, 1) */
    double eps;              /* 1e-8 */
    double weight_decay;     /* 0 */
    adamant_decay decay;     /* ADAMANT_DECAY_UNSET */
    int32_t bias_correction; /* 1 */
} adamant_hyperparameters;
ADAMANT_C_API adamant_status adamant_hyperparameters_init(adamant_hyperparameters* hyper, size_t struct_bytes);

/* A new parameter group of a name, not empty and in UTF-8, that no other has; its number to *group, which may be null.
 * maximize: steps go up. invalid argument: hyperparameters that cannot be, a name that is taken or not UTF-8, and during
 * a step. */
ADAMANT_C_API adamant_status adamant_add_group(adamant_optimizer* optimizer, const char* name,
                                               const adamant_hyperparameters* hyper, int32_t maximize, size_t* group);
ADAMANT_C_API adamant_status adamant_group_count(const adamant_optimizer* optimizer, size_t* count);
/* From the next step on. invalid argument as above. */
ADAMANT_C_API adamant_status adamant_set_hyperparameters(adamant_optimizer* optimizer, size_t group,
                                                         const adamant_hyperparameters* hyper);
/* What a group has now; hyper->struct_bytes has to be set. */
ADAMANT_C_API adamant_status adamant_get_hyperparameters(const adamant_optimizer* optimizer, size_t group,
                                                         adamant_hyperparameters* hyper);

typedef int32_t adamant_dtype;
enum {
    ADAMANT_NONE = 0, /* an array that is not there */
    ADAMANT_FLOAT32 = 1,
    ADAMANT_BFLOAT16 = 2,
    ADAMANT_FLOAT16 = 3
};

/* One stretch of a parameter. Every array has `elements` elements of its type, at any address; none may overlap another
 * that a step writes. A pointer may be null where there are no elements, and must be where its type is ADAMANT_NONE.
 * param:       read and written, any type but none.
 * grad:        read from adamant_submit() or adamant_step() to the end of the step; any type but none.
 * exp_avg, exp_avg_sq: the moments, read and written, zero before the first step; float32 or bfloat16.
 * weight_out:  the new weights rounded, written; bfloat16 or float16 with a float32 param, else none. It is taken to hold
 *              the params, rounded, before the first step: a step that is taken back writes that.
 * accumulator: what adamant_accumulate() adds up in; float32, bfloat16 or none. */
typedef struct adamant_shard {
    size_t struct_bytes;
    size_t elements;
    void* param;
    const void* grad;
    void* exp_avg;
    void* exp_avg_sq;
    void* weight_out;
    void* accumulator;
    adamant_dtype param_dtype;       /* ADAMANT_FLOAT32 */
    adamant_dtype grad_dtype;        /* ADAMANT_FLOAT32 */
    adamant_dtype exp_avg_dtype;     /* ADAMANT_FLOAT32 */
    adamant_dtype exp_avg_sq_dtype;  /* ADAMANT_FLOAT32 */
    adamant_dtype weight_out_dtype;  /* ADAMANT_NONE */
    adamant_dtype accumulator_dtype; /* ADAMANT_NONE */
    /* Where it lies in its parameter. `dims` sizes, 64 at most: of the whole parameter; with dims 0 (and shape null)
     * the shard is all of it. begin: the shard's first element in it, in row-major order. */
    const size_t* shape;
    size_t dims;
    size_t begin;
} adamant_shard;
ADAMANT_C_API adamant_status adamant_shard_init(adamant_shard* shard, size_t struct_bytes);

/* ---- A step without an optimizer --------------------------------------------------------------------------------- */

/* For an engine that keeps its own count: Adam or AdamW once, in place, on every element of the shard, with nothing
 * remembered between calls. The executor's threads do it. The gradient is multiplied by clip_coefficient / loss_scale
 * first; both are 1 where there is no clipping and no scaling. The shard's accumulator has to be ADAMANT_NONE; its place is
 * not looked at. step_number counts from 1. How many gradients were infinite or NaN, which went into the step as they are,
 * to *nonfinite, which may be null. Has the bits of adamant_step() with the same values. Thread-safe, for shards that do
 * not overlap. invalid argument, before anything is written: types, pointers, hyperparameters or factors that cannot be,
 * and step number 0. */
ADAMANT_C_API adamant_status adamant_step_shard(const adamant_executor* executor, const adamant_shard* shard,
                                                const adamant_hyperparameters* hyper, uint64_t step_number,
                                                double loss_scale, double clip_coefficient, uint64_t* nonfinite);
/* The sum of squares of a gradient's finite elements, and how many others it has, in one pass: what the norm is made of.
 * Added over blocks of 4096 elements in order, so the same bits for every instruction set and number of threads. Both
 * results may be null. Thread-safe. invalid argument: a null pointer with elements, or no type. */
ADAMANT_C_API adamant_status adamant_sum_of_squares(const adamant_executor* executor, const void* grad,
                                                    adamant_dtype dtype, size_t elements, double* sum,
                                                    uint64_t* nonfinite);

/* ---- Shards of an optimizer -------------------------------------------------------------------------------------- */

/* A new shard of a group; its number to *number, which may be null. name: its parameter's, by which checkpoints go; in
 * UTF-8. The order of shards is the order in which the norm is added up. invalid argument: types, pointers or a place
 * that cannot be, a name that is empty or not UTF-8, elements of a parameter that another shard has, arrays of it that
 * overlap, and during a step. */
ADAMANT_C_API adamant_status adamant_add_shard(adamant_optimizer* optimizer, size_t group, const char* name,
                                               const adamant_shard* shard, size_t* number);
ADAMANT_C_API adamant_status adamant_shard_count(const adamant_optimizer* optimizer, size_t* count);
/* What adamant_prepare() will allocate: with what adamant_begin_step() needs beyond adamant_step(), or without. */
ADAMANT_C_API adamant_status adamant_memory_bytes(const adamant_optimizer* optimizer, int32_t with_journal,
                                                  size_t* bytes);
/* Allocates what steps need; else the first step does. invalid argument: arrays of different shards that overlap where
 * one of them is written. unavailable: more memory than there is. */
ADAMANT_C_API adamant_status adamant_prepare(adamant_optimizer* optimizer, int32_t with_journal);

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* What is not said of a step is as the optimizer's options have it. */
typedef struct adamant_step_values {
    size_t struct_bytes;
    int32_t has_loss_scale;   /* whether loss_scale counts; else it is the dynamic one, or 1 */
    int32_t has_max_norm;     /* whether max_norm counts; then max_abs_grad of the options does not */
    int32_t has_max_abs_grad; /* whether max_abs_grad counts; then max_norm of the options does not */
    double loss_scale;        /* what the loss was multiplied with; finite, above 0 */
    double max_norm;
    double max_abs_grad;
    const double* lr; /* one learning rate for each group; null with lr_count 0: the groups' own */
    size_t lr_count;
} adamant_step_values;
ADAMANT_C_API adamant_status adamant_step_values_init(adamant_step_values* values, size_t struct_bytes);

typedef int32_t adamant_outcome;
enum { ADAMANT_APPLIED = 0, ADAMANT_SKIPPED = 1 };

typedef struct adamant_report {
    size_t struct_bytes;
    uint64_t step; /* the number of this step, from 1, whether it was applied or skipped */
    adamant_outcome outcome;
    int32_t speculated;           /* it began before its norm was known */
    int32_t rolled_back;          /* and that was taken back, because clipping or a skip was called for */
    int32_t has_first_nonfinite;  /* whether the two fields below count: nonfinite_grads is not 0 in this process */
    size_t first_nonfinite_shard; /* by the order of shards */
    size_t first_nonfinite_index; /* in it */
    uint64_t nonfinite_grads;     /* over all processes */
    double loss_scale;
    double global_norm; /* of the finite gradients, unscaled, over all processes */
    double clip_coefficient;
    size_t elements;          /* stepped */
    size_t shards_waited;     /* for the norm, as the journal's budget was full */
    size_t journal_bytes;     /* written */
    double seconds;           /* from beginning to end; what gradients took to arrive is in it */
    double gradients_seconds; /* until the norm was known: its computing, and what was stepped at once */
    double update_seconds;    /* from then on */
    size_t gradients_bytes;   /* of memory traffic, counted, not measured */
    size_t update_bytes;
    uint32_t threads;
    const char* isa; /* lives for ever */
    const char* pus; /* that the threads are bound to; lives as long as the optimizer */
} adamant_report;
/* Sets struct_bytes, and the rest to zeros. */
ADAMANT_C_API adamant_status adamant_report_init(adamant_report* report, size_t struct_bytes);

/* Steps taken so far. */
ADAMANT_C_API adamant_status adamant_steps(const adamant_optimizer* optimizer, uint64_t* steps);
/* What the next loss is to be multiplied with: the dynamic scale, or 1. */
ADAMANT_C_API adamant_status adamant_loss_scale(const adamant_optimizer* optimizer, double* scale);

/* A whole step, with all gradients there: one pass over memory, two where the norm or the finiteness has to be known
 * first. values may be null: as the options have it. report may be null; else its struct_bytes has to be set.
 * invalid argument: values that cannot be, and while a step is under way. */
ADAMANT_C_API adamant_status adamant_step(adamant_optimizer* optimizer, const adamant_step_values* values,
                                          adamant_report* report);

/* Opens a step whose gradients arrive one by one; the same bits as adamant_step(). values as there. */
ADAMANT_C_API adamant_status adamant_begin_step(adamant_optimizer* optimizer, const adamant_step_values* values);
/* This shard's gradient is there: the executor's threads begin with it, and this returns at once. It must not change
 * until adamant_finish() has returned. From any thread. invalid argument: a shard that there is not or that has been
 * submitted or left out, and where no step is open. */
ADAMANT_C_API adamant_status adamant_submit(adamant_optimizer* optimizer, size_t shard);
/* This shard has no gradient in this step, and stays as it is; what was accumulated for it is forgotten. From any
 * thread; errors as above. */
ADAMANT_C_API adamant_status adamant_leave_out(adamant_optimizer* optimizer, size_t shard);
/* Waits for what was submitted, and completes the step: applied, or skipped. report as for adamant_step().
 * invalid argument: a shard was neither submitted nor left out. reduce failed: as reduce said. The step stays open
 * after either: call this again, or adamant_abandon(). */
ADAMANT_C_API adamant_status adamant_finish(adamant_optimizer* optimizer, adamant_report* report);
/* Gives up the step that is open: params and moments are as before it, to the bit, and weight_out is made of param.
 * Accumulated gradients stay. unavailable, and the step stays open: shards were submitted to a step that needs no norm
 * (it neither skips nor clips by it, and there is no reduce), without keep_last_step. */
ADAMANT_C_API adamant_status adamant_abandon(adamant_optimizer* optimizer);
/* Takes back the last step, which must have been applied, with keep_last_step, and nothing begun, accumulated, added or
 * loaded since; its gradients must still be there, as they were, which a checksum tells. Params, moments, the step count
 * and the loss scale are as before it, to the bit, and weight_out is made of param. invalid argument: there is no such
 * step, or gradients have changed; nothing is touched. unavailable: the journal's budget was too small. */
ADAMANT_C_API adamant_status adamant_rollback(adamant_optimizer* optimizer);

/* Adds the shard's gradient to its accumulator: for the micro-steps before the last, whose gradient adamant_submit() or
 * adamant_step() adds by the way. Returns when it is done, so that the gradient's memory may be used again. The first one
 * after a step overwrites what the accumulator holds. The sum is not divided: have the loss scale count the micro-steps.
 * invalid argument: a shard without accumulator, one that was submitted, and during adamant_step_async(). */
ADAMANT_C_API adamant_status adamant_accumulate(adamant_optimizer* optimizer, size_t shard);
/* Forgets what was accumulated. */
ADAMANT_C_API adamant_status adamant_clear_accumulators(adamant_optimizer* optimizer);

/* adamant_step() that returns at once. The optimizer takes none but adamant_poll() and adamant_wait() until the latter
 * has said that the step is over. */
ADAMANT_C_API adamant_status adamant_step_async(adamant_optimizer* optimizer, const adamant_step_values* values);
/* Whether it is over, and which share of the passes that are known to be needed is done, from 0 to 1; either result may
 * be null. Never blocks for long. invalid argument: there is no such step. */
ADAMANT_C_API adamant_status adamant_poll(const adamant_optimizer* optimizer, int32_t* over, double* progress);
#define ADAMANT_FOR_EVER UINT64_MAX
/* Waits for so many nanoseconds at most, or ADAMANT_FOR_EVER. Over: *over is 1, the report (which may be null) is
 * written, and the optimizer is free again. Not over: *over is 0, and the step goes on. over may be null with
 * ADAMANT_FOR_EVER. invalid argument: there is no such step. reduce failed: as reduce said; the step is over and has
 * changed nothing, and *over is 1. */
ADAMANT_C_API adamant_status adamant_wait(adamant_optimizer* optimizer, uint64_t timeout_ns, int32_t* over,
                                          adamant_report* report);

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

/* Writes step count, loss scale, groups and all params and moments to a safetensors file; whoever opens the path finds
 * the old file or the new one, both whole, whatever happens. What was accumulated since the last step is not in it.
 * invalid argument: during a step. unavailable: the file cannot be written, with the system's reason. */
ADAMANT_C_API adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path);
/* Takes over what was saved, in one file or in several of the ranks of one run, however it was cut: ranks may have parts
 * of a parameter, or whole ones that others lack. Groups go by their
 * names and shards by those of their parameters; weight_out is made of param. Everything is checked first.
 * invalid argument: something is missing or of another shape or type, and during a step. unavailable: a file cannot be
 * read. corrupted: it is damaged. Where another program cuts a file short or writes into it during the call, that is
 * corrupted, too; params and moments may then be overwritten in part, and no step can be taken before a load succeeds. */
ADAMANT_C_API adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths,
                                                      size_t count);

/* ---- DeepSpeed's configuration ----------------------------------------------------------------------------------- */

typedef struct adamant_deepspeed adamant_deepspeed;

/* Reads the text of a ds_config.json, of `bytes` bytes, for *made. invalid argument: no JSON, or a value that cannot
 * be, with its place. Thread-safe. */
ADAMANT_C_API adamant_status adamant_deepspeed_parse(const char* text, size_t bytes, adamant_deepspeed** made);
/* May be null. */
ADAMANT_C_API void adamant_deepspeed_free(adamant_deepspeed* config);
/* Sets what a configuration decides, with DeepSpeed's defaults for keys that are not there; the rest of each struct
 * stays as it is. Each has to be initialised, and may be null. hyper and *maximize: all of it, of the one group; without
 * an optimizer in the configuration the decay is ADAMANT_DECAY_UNSET. options: max_norm and loss_scaling, which points
 * into config and lives as long as that. values: the loss scale, where it is fixed, else none. cores: the share, where
 * there is one. The rest of it: adamant_deepspeed_get_offload() and adamant_deepspeed_model(). */
ADAMANT_C_API adamant_status adamant_deepspeed_apply(const adamant_deepspeed* config, adamant_hyperparameters* hyper,
                                                     int32_t* maximize, adamant_optimizer_options* options,
                                                     adamant_step_values* values, adamant_core_options* cores);
/* What it says about offloading, for the engine to act on: the library acts on none of it. */
typedef struct adamant_deepspeed_offload {
    size_t struct_bytes;
    uint64_t sub_group_size_elems; /* stage 3 steps so many params at a time; 0: each tensor alone */
    double ratio;                  /* the share of the params that the CPU steps, from 0 to 1 */
    double cpuadam_cores_perc;     /* of a rank's cores; 0 where it is not said, here and below */
    double pt_reserved_cores_perc;
    uint32_t zero_stage;   /* 0 to 3 */
    int32_t offload;       /* whether the CPU steps at all: device is "cpu" */
    int32_t pin_memory;    /* the CPU's arrays in page-locked memory */
    int32_t super_offload; /* step while gradients still arrive */
} adamant_deepspeed_offload;
/* Sets struct_bytes, and the rest to zeros. */
ADAMANT_C_API adamant_status adamant_deepspeed_offload_init(adamant_deepspeed_offload* offload, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_deepspeed_get_offload(const adamant_deepspeed* config,
                                                           adamant_deepspeed_offload* offload);
/* The type of gradients and weights, and how many micro-steps are accumulated (0: left to the batch sizes). Each result
 * may be null. */
ADAMANT_C_API adamant_status adamant_deepspeed_model(const adamant_deepspeed* config, adamant_dtype* type,
                                                     uint32_t* accumulation_steps);
/* Warning number `index` about a key that means nothing here, to *text; null after the last. Lives as long as config.
 */
ADAMANT_C_API adamant_status adamant_deepspeed_warning(const adamant_deepspeed* config, size_t index,
                                                       const char** text);

#ifdef __cplusplus
}
#endif

#endif
