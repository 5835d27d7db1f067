/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of adamant, for C and every language that can call C. */
#ifndef ADAMANT_H
#define ADAMANT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Errors. A function that can fail returns a status; ADAMANT_OK is 0. After any other status adamant_last_error()
 * returns, in the thread that made the call, the reason and the remedy. Unless its comment says otherwise, a call that
 * fails has changed nothing and has written none of its results. No exception leaves the library. A null pointer is an
 * error, except where the comment says "may be null"; other pointers are not checked.
 * A call that runs out of memory returns ADAMANT_OUT_OF_MEMORY and has changed nothing. Three other libraries end the
 * process instead: nlohmann-json, which reads and writes checkpoints, tuning results and configurations, if memory runs
 * out while it frees its own; hwloc, if memory runs out while it reads the machine (in the first call that needs cores
 * or threads, after a check for 8 MiB, and for each description of another machine) or binds a team's threads; and the
 * OpenMP runtime, while it starts threads. Binding and starting need 1 MiB, and 32 KiB for each thread.
 * After a device has failed, functions that use the state (steps, accumulation, placement, saves, loads) first complete
 * what is left of the failed step, and return ADAMANT_DEVICE_FAILED if that fails. While params and moments are
 * inconsistent, all but loads and adamant_clear_accumulators() fail: with ADAMANT_DEVICE_FAILED, or without a device
 * with ADAMANT_INVALID_ARGUMENT.
 *
 * Threads. Different threads may use different optimizers concurrently, even on one executor. Functions of one
 * optimizer whose comment says "from any thread" may be called by several threads concurrently, all others by one
 * thread at a time. A thread must not be cancelled (pthread_cancel) during a call. In a forked child process, calls
 * that need the threads of an optimizer, executor, team or device of the parent return ADAMANT_UNAVAILABLE. Handles may
 * be freed there: that does not wait, and leaks memory that threads were using.
 *
 * Ownership. Arrays of params, gradients, moments and weights are the caller's, and must outlive the optimizer that
 * uses them. All other arguments (names, structs and the data that they point to) are copied, and may be freed after
 * the call. Returned texts belong to the library; each comment says how long they live. Free the object of an
 * adamant_..._create() with its adamant_..._free(), which accepts a null pointer, too. Handles count references: an
 * object may be freed before other objects that were created with it.
 *
 * Structs. Each except adamant_piece begins with struct_bytes, its size in the caller's version, so that later versions
 * of the library may append fields. adamant_..._init(&options, sizeof options) sets struct_bytes and all defaults,
 * which are not all zero. Fields that this version of the library does not know must be zero. Fields that the caller's
 * version does not know have their defaults.
 *
 * Numbers. Sizes and indices are of type size_t; they count elements unless the name says bytes, and indices begin at
 * 0. True and false are int32_t: 0 is false, any other value is true. The bits of a result depend on hyperparameters,
 * limits, the loss scale, on_nonfinite and the options of ZenFlow, and on no other option.
 */

#ifdef __cplusplus
extern "C" {
#endif

/* Versions, statuses and the text of the last error. */

#if defined(__GNUC__)
#define ADAMANT_C_API __attribute__((visibility("default")))
#else
#define ADAMANT_C_API
#endif

/** The version of this interface. A program that was compiled against one version works with every library of the same
 * version. Within a version, functions and statuses are only added, and fields of structs are only appended. */
#define ADAMANT_C_VERSION 1
/** Returns ADAMANT_C_VERSION of the loaded library, for comparison with the header's. */
ADAMANT_C_API uint32_t adamant_c_version(void);
/** Returns the version of the project, "0.2.0". Lives forever. */
ADAMANT_C_API const char* adamant_version(void);

typedef int32_t adamant_status;
enum {
    ADAMANT_OK = 0,
    ADAMANT_INVALID_ARGUMENT = 1, /**< the arguments are invalid on every machine */
    ADAMANT_UNAVAILABLE = 2,      /**< the arguments are valid, but this machine, file system or build cannot do it */
    ADAMANT_OUT_OF_MEMORY = 3,
    ADAMANT_CORRUPTED = 4,     /**< a file, or a state in memory, is damaged */
    ADAMANT_REDUCE_FAILED = 5, /**< adamant_optimizer_options.reduce failed */
    ADAMANT_INTERNAL = 6,      /**< a defect of the library */
    ADAMANT_DEVICE_FAILED = 7  /**< a device has failed, or has stopped answering */
};
/** Returns the error of this thread's last failed call, or the report of an incomplete save, in at most 4095 bytes of
 * UTF-8; "" before the first one, and after a complete save. Bytes of a path or name that are not UTF-8 are written in
 * hexadecimal (`\\xff`). Valid until the next failed call or save of this thread, or its end. Never null. */
ADAMANT_C_API const char* adamant_last_error(void);
/** Returns "ok", "invalid argument" and so on; "unknown status" for other numbers. Lives forever. */
ADAMANT_C_API const char* adamant_status_name(adamant_status status);

/** Lets the library choose a size, where a comment allows it. */
#define ADAMANT_AUTOMATIC_BYTES SIZE_MAX

/* Teams: threads that are bound to hardware threads. Executors: the instruction set and the threads of steps. */

typedef int32_t adamant_binding;
enum {
    ADAMANT_BIND_DEFAULT = 0,     /**< required; none in a library that was built without hwloc */
    ADAMANT_BIND_REQUIRED = 1,    /**< a thread that cannot be bound is an error */
    ADAMANT_BIND_IF_POSSIBLE = 2, /**< a thread that cannot be bound runs unbound */
    ADAMANT_BIND_NONE = 3
};

/* ---- Teams: threads for several executors ----------------------------------------------------------------------- */

typedef struct adamant_team adamant_team;

/** Options of adamant_team_create(). */
typedef struct adamant_team_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* pus;  /**< one thread on each, "0-3,8" or "0xf"; null or "" only with ADAMANT_BIND_NONE, threads > 0 */
    uint64_t spin_ns; /**< 50000; how long a thread without work spins before it sleeps */
    uint32_t threads; /**< 0: one on each PU. More threads share the PUs, fewer use the first ones */
    adamant_binding bind; /**< an adamant_binding */
} adamant_team_options;
ADAMANT_C_API adamant_status adamant_team_options_init(adamant_team_options* options, size_t struct_bytes);

/** Creates a team in *made and starts its threads, which live until the team and all executors on it are freed. Each
 * thread is bound, and its binding is verified. The caller's threads and OpenMP settings do not change. Executors on
 * one team run one after the other. invalid argument: an invalid list of PUs, or a missing one. unavailable: threads
 * that cannot be started or bound. */
ADAMANT_C_API adamant_status adamant_team_create(const adamant_team_options* options, adamant_team** made);
/** May be null. */
ADAMANT_C_API void adamant_team_free(adamant_team* team);
/** Returns the number of threads, and the PUs that they are bound to ("" if unbound). Each result may be null. The text
 * lives as long as the handle. From any thread. */
ADAMANT_C_API adamant_status adamant_team_describe(const adamant_team* team, uint32_t* threads, const char** pus);
/** Describes thread number `index` of the team: its number in the system (as ps -L shows it), the requested PU and the
 * PUs that it is bound to, as lists ("" for none), and the reason why it is not bound, or "". Each result may be null.
 * The texts live as long as the handle. From any thread. invalid argument: the team has no such thread. */
ADAMANT_C_API adamant_status adamant_team_thread(const adamant_team* team, uint32_t index, int64_t* system_id,
                                                 const char** asked, const char** bound_to, const char** problem);

/* ---- Executors --------------------------------------------------------------------------------------------------- */

typedef struct adamant_executor adamant_executor;

/** Options of adamant_executor_create(). */
typedef struct adamant_executor_options {
    size_t struct_bytes;  /**< size of this struct; set by the init function */
    const char* isa;      /**< "scalar", "neon", "avx2", "avx512" or "avx512_bf16"; may be null or "automatic": the
                           * environment variable ADAMANT_ISA if it is set, else the best of this CPU */
    const char* pus;      /**< PUs of the threads, "0-3,8" or "0xf"; may be null or "": one PU of each allowed core */
    uint32_t threads;     /**< 0: one on each PU. 1: the caller, unless pus is given or bind is ADAMANT_BIND_REQUIRED or
                           * ADAMANT_BIND_IF_POSSIBLE; asynchronous steps then run in an additional unbound thread */
    adamant_binding bind; /**< an adamant_binding */
    size_t min_slice_elems;   /**< minimum of elements per thread; for fewer elements a call uses fewer threads. 0: for
                               * two threads chosen by the measured cost of a hand-over, from 4096 to 16384; for more
                               * threads 4096 */
    size_t max_chunk_elems;   /**< maximum of elements in one work item; 0: the default, 65536. Changes no bit, like
                                 prefetch_bytes */
    size_t prefetch_bytes;    /**< prefetch distance of a step; ADAMANT_AUTOMATIC_BYTES: 256 on AMD, else 2048 */
    const adamant_team* team; /**< may be null: the executor starts its own threads. With a team, threads, pus and bind
                               * must have their defaults or agree with the team */
} adamant_executor_options;
ADAMANT_C_API adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes);

/** Creates an executor, with its threads, in *made. options may be null: the defaults. invalid argument: no such
 * instruction set, an invalid list of PUs, or options that contradict the team. unavailable: an instruction set that
 * this CPU lacks, or threads that cannot be started or bound. */
ADAMANT_C_API adamant_status adamant_executor_create(const adamant_executor_options* options, adamant_executor** made);
/** May be null. The threads end with the last user of the executor. */
ADAMANT_C_API void adamant_executor_free(adamant_executor* executor);
/** Returns the instruction set in use, the number of threads, and the PUs that they are bound to ("" if unbound). Each
 * result may be null. The texts live as long as the handle. From any thread. */
ADAMANT_C_API adamant_status adamant_executor_describe(const adamant_executor* executor, const char** isa,
                                                       uint32_t* threads, const char** pus);

/* Shards, hyperparameters, and a step without an optimizer. */

typedef int32_t adamant_dtype;
enum {
    ADAMANT_NONE = 0, /**< no array */
    ADAMANT_FLOAT32 = 1,
    ADAMANT_BFLOAT16 = 2,
    ADAMANT_FLOAT16 = 3,
    ADAMANT_SPLIT_FLOAT32 = 4, /**< the 16-bit residuals of split float32 masters; see adamant_split_masters() */
    ADAMANT_QUANTIZED8 = 5     /**< 8-bit moments in groups of 64: 64 codes and a float32 scale, 68 bytes */
};

/** Consecutive elements of one parameter. Every array has `elements` elements of its type, with any alignment. No array
 * that a step writes may overlap another. A pointer may be null if there are no elements, and must be null if its type
 * is ADAMANT_NONE.
 * - param: read and written; any type except none and quantized8. With ADAMANT_SPLIT_FLOAT32 it has the residuals of
 *   split masters. weight_out, of bfloat16, has their weights, and is then also read.
 * - grad: read from adamant_submit() or adamant_step() to the end of the step; float32, bfloat16 or float16.
 * - exp_avg, exp_avg_sq: the moments, read and written, zero before the first step; float32 or bfloat16, or both
 *   ADAMANT_QUANTIZED8: arrays of (elements + 63) / 64 groups, all bytes zero before the first step.
 * - weight_out: the rounded new weights, written; bfloat16 or float16 with a float32 param, else none. Before the first
 *   step it must hold the rounded params, which stay there if that step is rolled back. adamant_step_shard() and
 *   adamant_step_list() also take float32 with a float32 param: a copy of the new param.
 * - accumulator: sums of adamant_accumulate(); float32, bfloat16 or none. */
typedef struct adamant_shard {
    size_t struct_bytes;             /**< size of this struct; set by the init function */
    size_t elements;                 /**< number of elements in each array */
    void* param;                     /**< see above; its type is param_dtype */
    const void* grad;                /**< see above; its type is grad_dtype */
    void* exp_avg;                   /**< first moments, of type exp_avg_dtype */
    void* exp_avg_sq;                /**< second moments, of type exp_avg_sq_dtype */
    void* weight_out;                /**< new 16-bit weights, of type weight_out_dtype; null for none */
    void* accumulator;               /**< sums of gradients, of type accumulator_dtype; null for none */
    adamant_dtype param_dtype;       /**< ADAMANT_FLOAT32 */
    adamant_dtype grad_dtype;        /**< ADAMANT_FLOAT32 */
    adamant_dtype exp_avg_dtype;     /**< ADAMANT_FLOAT32 */
    adamant_dtype exp_avg_sq_dtype;  /**< ADAMANT_FLOAT32 */
    adamant_dtype weight_out_dtype;  /**< ADAMANT_NONE */
    adamant_dtype accumulator_dtype; /**< ADAMANT_NONE */
    /** Position of the shard in its parameter. shape: `dims` sizes, at most 64, of the whole parameter; with dims 0 and
     * shape null the shard is all of it. begin: the shard's first element in it, in row-major order. */
    const size_t* shape;
    size_t dims;  /**< number of dimensions in `shape` */
    size_t begin; /**< index of the shard's first element in the parameter */
    /** For adamant_step_shard() and adamant_step_list(): a unique number of the parameter; otherwise ignored. */
    uint64_t rounding_stream;
    /** Bits of changed weights, (elements + 63) / 64 words; null: not tracked. Bit i % 64 of word i / 64 belongs to
     * element i. A step sets the bits of elements whose published weight (weight_out, or param without one) it changes,
     * and leaves the others as they are. A step that is skipped, abandoned or rolled back leaves all as they were.
     * adamant_load_safetensors() and adamant_load_memory() set all. With adamant_zenflow_add_param() they are in the
     * order of its weights. */
    uint64_t* changed;
} adamant_shard;
ADAMANT_C_API adamant_status adamant_shard_init(adamant_shard* shard, size_t struct_bytes);

typedef int32_t adamant_decay; /* how weight_decay acts */
enum {
    ADAMANT_DECAY_UNSET = 0,     /**< allowed only while weight_decay is 0 */
    ADAMANT_DECAY_DECOUPLED = 1, /**< AdamW */
    ADAMANT_DECAY_L2 = 2         /**< Adam */
};

typedef int32_t adamant_rounding; /* of arrays of bfloat16 that the next step reads again */
enum {
    ADAMANT_ROUND_NEAREST = 0,
    /** Stochastic rounding: the expected value is the exact one. Random numbers are a pure function of seed, step,
     * parameter and element. */
    ADAMANT_ROUND_STOCHASTIC = 1
};

/** Adam's hyperparameters; see <adamant/hyperparameters.hpp>. */
typedef struct adamant_hyperparameters {
    size_t struct_bytes;     /**< size of this struct; set by the init function */
    double lr;               /**< 1e-3 */
    double beta1;            /**< 0.9; in [0, 1) */
    double beta2;            /**< 0.999; in [0, 1) */
    double eps;              /**< 1e-8 */
    double weight_decay;     /**< 0 */
    adamant_decay decay;     /**< ADAMANT_DECAY_UNSET */
    int32_t bias_correction; /**< 1 */
    /** Rounding of bfloat16 second moments and of quantized8 codes of both moments; ADAMANT_ROUND_STOCHASTIC, because
     * rounding to nearest keeps them from decreasing if 1 - beta2 is less than 0.002. */
    adamant_rounding exp_avg_sq_rounding;
    adamant_rounding param_rounding; /**< rounding of bfloat16 params; ADAMANT_ROUND_NEAREST */
    uint64_t rounding_seed;          /**< 0 */
} adamant_hyperparameters;
ADAMANT_C_API adamant_status adamant_hyperparameters_init(adamant_hyperparameters* hyper, size_t struct_bytes);

/** Takes one step of Adam or AdamW without an optimizer, in place, on every element of the shard, in the executor's
 * threads: for an engine that counts steps itself. Keeps no state between calls. The gradient is first multiplied by
 * clip_coefficient / loss_scale; pass 1 for unused factors. step_number counts from 1. Writes the number of infinite or
 * NaN gradients, which the step applies, to *nonfinite, which may be null. The shard's accumulator must be
 * ADAMANT_NONE. Stochastic rounding depends on its begin and rounding_stream; its shape is ignored. Without stochastic
 * rounding the bits equal adamant_step()'s for the same values; with it they differ, because adamant_step() derives
 * random numbers from the parameter's name in place of rounding_stream. From any
 * thread, for shards that do not overlap. invalid argument, before anything is written: invalid types, pointers,
 * hyperparameters or factors, and step number 0. */
ADAMANT_C_API adamant_status adamant_step_shard(const adamant_executor* executor, const adamant_shard* shard,
                                                const adamant_hyperparameters* hyper, uint64_t step_number,
                                                double loss_scale, double clip_coefficient, uint64_t* nonfinite);
/** Weights and the bits of their changes. */
typedef struct adamant_tracked_weights {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    uint64_t* changed;   /**< as in adamant_shard; (elements + 63) / 64 words */
    size_t elements;     /**< number of weights */
    const void* weights; /**< the weights, of type dtype; may be null if no values are collected */
    adamant_dtype dtype; /**< ADAMANT_BFLOAT16; or float16 or float32 */
} adamant_tracked_weights;
ADAMANT_C_API adamant_status adamant_tracked_weights_init(adamant_tracked_weights* weights, size_t struct_bytes);

/** Writes the number of changed weights to *count. Do not call this function and the next ones during a step that sets
 * the bits. All but adamant_mark_changed() clear bits beyond the last element. From any thread, for different bits. */
ADAMANT_C_API adamant_status adamant_count_changed(const adamant_executor* executor,
                                                   const adamant_tracked_weights* weights, size_t* count);
/** Writes the ascending indices of changed weights, plus first_index, into `indices` or `wide_indices`; one of both is
 * null. Unless `values` is null, writes the weights in the same order and of the same type. Every array has room for
 * `capacity` elements. Writes the number to *count. If it is above capacity, the arrays hold only some of them and no
 * bit is cleared: call again with larger arrays. clear: clears all bits. invalid argument: an index does not fit into
 * 32 bits, both index arrays or none, `values` without weights, and an invalid dtype. */
ADAMANT_C_API adamant_status adamant_changed_weights(const adamant_executor* executor,
                                                     const adamant_tracked_weights* weights, uint64_t first_index,
                                                     size_t capacity, uint32_t* indices, uint64_t* wide_indices,
                                                     void* values, int32_t clear, size_t* count);
/** Writes a byte for each weight: 1 if it has changed, otherwise 0. */
ADAMANT_C_API adamant_status adamant_changed_mask(const adamant_executor* executor,
                                                  const adamant_tracked_weights* weights, uint8_t* mask, int32_t clear);
/** Marks weights [begin, end) as changed. Call it after writing weights, or params from which weights are made. invalid
 * argument: a range beyond the last weight. */
ADAMANT_C_API adamant_status adamant_mark_changed(const adamant_tracked_weights* weights, size_t begin, size_t end);

/** A tensor of adamant_step_list(). */
typedef struct adamant_step_item {
    size_t struct_bytes;                  /**< size of this struct; set by the init function */
    const adamant_shard* shard;           /**< the arrays; its accumulator must be ADAMANT_NONE */
    const adamant_hyperparameters* hyper; /**< items may share one */
    uint64_t step_number;                 /**< 1; number of this step of the tensor, from 1 */
    double grad_scale; /**< 1; factor of the gradient, 0 or above; it must be a float32 that is not subnormal */
} adamant_step_item;
ADAMANT_C_API adamant_status adamant_step_item_init(adamant_step_item* item, size_t struct_bytes);

/** Takes one step of each tensor of a list, with the bits of one adamant_step_shard() for each (loss_scale 1,
 * clip_coefficient grad_scale), in one hand-over to the executor's threads: they share the elements of the whole list.
 * items: an array of `count` structs; may be null with a count of 0. Keeps no state between calls. Writes the number of
 * infinite or NaN gradients, which the step applies, to *nonfinite, which may be null. Arrays that a step writes may
 * not overlap another array of the list; gradients may share memory. From any thread, for lists that do not overlap.
 * Errors name the item by its index. invalid argument, before anything is written: errors of adamant_step_shard(), an
 * invalid grad_scale, and arrays that overlap. */
ADAMANT_C_API adamant_status adamant_step_list(const adamant_executor* executor, const adamant_step_item* items,
                                               size_t count, uint64_t* nonfinite);

/** A gradient of adamant_accumulate_list(), and the sum that it is added to: arrays of `elements` elements, with any
 * alignment. */
typedef struct adamant_sum_item {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    size_t elements;          /**< number of elements in each array */
    void* sum;                /**< read and written; may be null without elements */
    const void* grad;         /**< read; may be null without elements */
    adamant_dtype sum_dtype;  /**< ADAMANT_FLOAT32; or ADAMANT_BFLOAT16 */
    adamant_dtype grad_dtype; /**< ADAMANT_BFLOAT16; or ADAMANT_FLOAT32, ADAMANT_FLOAT16 */
    int32_t replace;          /**< 0: adds the gradient. Else sets the sum to the gradient, without reading the sum */
} adamant_sum_item;
ADAMANT_C_API adamant_status adamant_sum_item_init(adamant_sum_item* item, size_t struct_bytes);

/** Adds gradients to sums, or copies them there, for a list of tensors in one hand-over to the executor's threads, with
 * the bits of adamant_accumulate(): subnormal numbers count as 0, and NaNs become canonical. items: an array of `count`
 * structs; may be null with a count of 0. A sum may not overlap another array of the list; gradients may share memory.
 * From any thread, for lists that do not overlap. Errors name the item by its index. invalid argument, before anything
 * is written: an invalid type, a null pointer with elements, and arrays that overlap. */
ADAMANT_C_API adamant_status adamant_accumulate_list(const adamant_executor* executor, const adamant_sum_item* items,
                                                     size_t count);
/** Splits float32 masters: weight is the master rounded to bfloat16, to nearest, ties away from zero, and low is the
 * 16-bit residual. adamant_join_masters() restores the master's bits (a NaN becomes 0x7fc00000). `low` may begin at the
 * same address as `master`, in both functions; other arrays must not overlap. From any thread. invalid argument: a null
 * pointer with elements. */
ADAMANT_C_API adamant_status adamant_split_masters(const float* master, size_t elements, void* weight, void* low);
ADAMANT_C_API adamant_status adamant_join_masters(const void* weight, const void* low, size_t elements, float* master);
/** Returns the sum of squares of a gradient's finite elements, and the number of its other elements, in one pass. The
 * sums of blocks of 4096 elements are added exactly and rounded once, so the bits do not depend on instruction set and
 * number of threads. Both results may be null. From any thread. invalid argument: a null pointer with elements, or an
 * invalid type. */
ADAMANT_C_API adamant_status adamant_sum_of_squares(const adamant_executor* executor, const void* grad,
                                                    adamant_dtype dtype, size_t elements, double* sum,
                                                    uint64_t* nonfinite);
/** Adds a gradient's sum of squares and number of nonfinite elements to a total, for the norm of several gradients. The
 * total does not depend on the order of gradients or on shard boundaries at multiples of 4096 elements. It has
 * ADAMANT_SQUARES_WORDS words, initially zero: 20 words of an integer in units of 2^-320, 32 bits each, the lowest
 * first, and the number of nonfinite elements. Totals may be added word by word. Errors as above, with nothing added;
 * and invalid argument for invalid words. */
#define ADAMANT_SQUARES_WORDS 21
ADAMANT_C_API adamant_status adamant_add_squares(const adamant_executor* executor, const void* grad,
                                                 adamant_dtype dtype, size_t elements,
                                                 int64_t words[ADAMANT_SQUARES_WORDS]);
/** Returns a total's sum, rounded once, and its number of nonfinite elements; the norm is the root of the sum. Both
 * results may be null. invalid argument: invalid words. */
ADAMANT_C_API adamant_status adamant_round_squares(const int64_t words[ADAMANT_SQUARES_WORDS], double* sum,
                                                   uint64_t* nonfinite);

/* Memory for optimizer state: in huge pages, on chosen NUMA nodes, first touched by the threads that will use it. */

typedef int32_t adamant_pages;
enum {
    ADAMANT_PAGES_TRANSPARENT = 0, /**< transparent huge pages if the kernel has free ones (MADV_HUGEPAGE) */
    ADAMANT_PAGES_NORMAL = 1,      /**< never huge */
    ADAMANT_PAGES_HUGETLB_2M = 2,  /**< from the administrator's hugetlb pool; reserved immediately */
    ADAMANT_PAGES_HUGETLB_1G = 3
};

typedef int32_t adamant_memory_binding;
enum {
    ADAMANT_MEMORY_UNBOUND = 0,   /**< by the process's memory policy */
    ADAMANT_MEMORY_PREFERRED = 1, /**< on other nodes if the chosen ones are full */
    ADAMANT_MEMORY_BOUND = 2      /**< on the chosen nodes only */
};

/** Options of adamant_buffer_create(). */
typedef struct adamant_buffer_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* nodes;   /**< NUMA nodes, "0-1"; may be null or "": the process's policy. See adamant_select_nodes() */
    adamant_pages pages; /**< ADAMANT_PAGES_TRANSPARENT */
    int32_t pages_required;  /**< 0: hugetlb pages fall back to transparent pages, and these to normal ones */
    int32_t nodes_required;  /**< 0: bound memory falls back to preferred nodes, and these to no binding */
    int32_t check_available; /**< 1: fail if the buffer does not fit in the free memory */
} adamant_buffer_options;
ADAMANT_C_API adamant_status adamant_buffer_options_init(adamant_buffer_options* options, size_t struct_bytes);

typedef struct adamant_buffer adamant_buffer;

/** Creates a buffer of `elements` zero elements of elem_bytes bytes each in *made. The executor's threads first touch
 * the parts that they own in a step over that many elements, so that the kernel places them near these threads. The
 * executor may be null: then nothing is touched. options may be null: the defaults. Aligned to pages; intended for few
 * large arrays. invalid argument: sizes that no machine has. unavailable: not enough memory, or a requirement that the
 * system cannot meet; no page has been touched. */
ADAMANT_C_API adamant_status adamant_buffer_create(const adamant_executor* executor, size_t elements, size_t elem_bytes,
                                                   const adamant_buffer_options* options, adamant_buffer** made);
/** Frees a buffer and its memory. May be null. Free optimizers whose shards are in it first. */
ADAMANT_C_API void adamant_buffer_free(adamant_buffer* buffer);
/** Returns the buffer's address (null without elements) and its size in bytes. Each result may be null. */
ADAMANT_C_API adamant_status adamant_buffer_data(const adamant_buffer* buffer, void** data, size_t* bytes);

/** Pages and binding of a buffer. */
typedef struct adamant_buffer_report {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    size_t bytes;        /**< requested bytes */
    size_t mapped_bytes; /**< bytes of all mapped pages */
    const char* nodes;   /**< nodes of the binding, as a list; "" for none. Lives as long as the buffer, like notes */
    const char* notes;   /**< requests that were not met, and why; "" if all were met */
    adamant_pages pages; /**< type of the pages; adamant_buffer_measure() returns how many are huge */
    adamant_memory_binding binding; /**< an adamant_memory_binding */
} adamant_buffer_report;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_buffer_report_init(adamant_buffer_report* report, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_buffer_describe(const adamant_buffer* buffer, adamant_buffer_report* report);
/** Measures the buffer's resident bytes, how many of them are in huge pages, and how many on each of the NUMA nodes
 * from 0 to node_count - 1 (from a sample for large buffers). Each result may be null, node_bytes with node_count 0.
 * May take a second. */
ADAMANT_C_API adamant_status adamant_buffer_measure(const adamant_buffer* buffer, size_t* resident_bytes,
                                                    size_t* huge_bytes, size_t* node_bytes, size_t node_count);

/* Selection of cores for the optimizer and for the host framework. */

/** Options of adamant_select_cores(). */
typedef struct adamant_core_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    /** Size of the optimizer's part of each rank's cores. Set at most one of these four; 0: not set. The default is a
     * cpuadam_cores_perc of 0.8. */
    double cpuadam_cores_perc;     /**< the optimizer's share, above 0 and at most 1 */
    double pt_reserved_cores_perc; /**< the host framework's share, above 0 and below 1 */
    uint32_t cpuadam_cores;        /**< number of the optimizer's cores */
    uint32_t pt_reserved_cores;    /**< number of the host framework's cores */
    /** Number of ranks on this host. 0: ranks and rank come from the launcher's environment. */
    uint32_t ranks;
    uint32_t rank;              /**< number of the requested rank, from 0 */
    const char* pus;            /**< PUs to divide, as a list "0-3,8" or a mask "0xf"; may be null: all allowed PUs */
    const char* machine;        /**< may be null: this machine. Else a file of hwloc's XML or a synthetic description */
    int32_t every_pu_of_cores;  /**< use all hardware threads of each core; else the first one of each */
    int32_t fast_cores_to_host; /**< give the host the fast cores of a hybrid machine; else the optimizer gets them */
    /** PUs that all ranks together may use, as a list; may be null: those of this process, or all of the file. */
    const char* allowed;
    /** The affinity mask that each rank was started with, as a list of its PUs: none, or one if all ranks have the
     * same, or one for each rank, which then keeps its own. May be null with mask_count 0. Ranks can exchange the
     * results of adamant_allowed_pus() for this, and set the union of all as `allowed`. */
    const char* const* masks;
    size_t mask_count; /**< number of masks */
    /** The GPU of each rank: its PCI address, its number on this machine, or "" for none. May be null with gpu_count 0.
     */
    const char* const* gpus;
    size_t gpu_count; /**< number of GPUs */
    /** CPU quota of all ranks together, in CPUs; 0: the result of adamant_cpu_quota(), or no quota with `machine`. */
    double cpu_quota;
} adamant_core_options;
ADAMANT_C_API adamant_status adamant_core_options_init(adamant_core_options* options, size_t struct_bytes);

/** Selects the cores of one rank. Writes the optimizer's hardware threads (PUs) to adam_pus and the host framework's to
 * host_pus, each as a list for adamant_executor_options.pus. host_pus may be null with host_bytes 0. Depends only on
 * its arguments, the machine, the CPU quota and the environment, which must not change during the call; thread-safe.
 * invalid argument: invalid sizes, and a text that does not fit, with the bytes that it needs. unavailable: a request
 * for more than the machine has. */
ADAMANT_C_API adamant_status adamant_select_cores(const adamant_core_options* options, char* adam_pus,
                                                  size_t adam_bytes, char* host_pus, size_t host_bytes);
/** Writes the PUs that this process's affinity and cgroup allow, as a list, to pus. Errors as above. */
ADAMANT_C_API adamant_status adamant_allowed_pus(char* pus, size_t pus_bytes);
/** Returns the least CPU quota of this process's cgroups, in CPUs, for example 2.5. 0: no quota. source: the file that
 * sets it, "" without one; may be null with source_bytes 0. All processes of the cgroup share the quota. Executors of
 * default size and adamant_select_cores() limit each rank to its share of the quota. Errors as above. */
ADAMANT_C_API adamant_status adamant_cpu_quota(double* cpus, char* source, size_t source_bytes);
/** Returns the NUMA nodes for the rank's optimizer state, as a list for adamant_buffer_options.nodes (empty if none may
 * be used), and a text that explains the selection of cores. why may be null with why_bytes 0. Otherwise like
 * adamant_select_cores(). */
ADAMANT_C_API adamant_status adamant_select_nodes(const adamant_core_options* options, char* nodes, size_t nodes_bytes,
                                                  char* why, size_t why_bytes);

/* Placement of shards on CPU and device. */

/* ---- From a ratio to a placement ------------------------------------------------------------------------------- */

typedef int32_t adamant_split_unit; /* how shards may be divided */
enum {
    ADAMANT_SPLIT_ELEMENT = 0, /**< divides one shard at a multiple of 4096 elements: the ratio is met within 2048 */
    ADAMANT_SPLIT_SHARD = 1,   /**< whole shards only: the set nearest to the ratio */
    ADAMANT_SPLIT_DEEPSPEED =
        2 /**< whole shards by DeepSpeed's rule: the first int((1 - ratio) * n) go to the device */
};

typedef int32_t adamant_split_order; /* which shards go to the device first */
enum {
    ADAMANT_SPLIT_FRONT =
        0, /**< the first shards: backward makes their gradients last, forward needs their weights first */
    ADAMANT_SPLIT_BACK = 1 /**< the last shards */
};

/** Options of adamant_split(). */
typedef struct adamant_split_options {
    size_t struct_bytes;        /**< size of this struct; set by the init function */
    double ratio;               /**< 1; the share of the elements that the CPU steps */
    adamant_split_unit unit;    /**< ADAMANT_SPLIT_ELEMENT */
    adamant_split_order order;  /**< ADAMANT_SPLIT_FRONT */
    const size_t* device_order; /**< numbers of all shards in the order in which they go to the device; null with a
                                 * count of 0: `order` decides. Not with ADAMANT_SPLIT_DEEPSPEED */
    size_t device_order_count;  /**< number of shards in device_order */
    size_t most_on_cpu;         /**< elements that fit in host memory; ADAMANT_NO_LIMIT */
    size_t most_on_device;      /**< elements that fit on the device; ADAMANT_NO_LIMIT */
} adamant_split_options;
#define ADAMANT_NO_LIMIT SIZE_MAX
ADAMANT_C_API adamant_status adamant_split_options_init(adamant_split_options* options, size_t struct_bytes);

typedef struct adamant_placement adamant_placement;

/** Computes the placement of `count` shards of these sizes in elements, in the order of adamant_shard_sizes(), in
 * *made. Depends only on its arguments. If a limit does not allow the ratio, the placement keeps the limit, and
 * adamant_placement_describe() reports it. From any thread. invalid argument: invalid options, or more than 2^53
 * elements. unavailable: both memories together are too small, no placement of this kind fits them, or a limit does not
 * allow the result of ADAMANT_SPLIT_DEEPSPEED. */
ADAMANT_C_API adamant_status adamant_split(const size_t* sizes, size_t count, const adamant_split_options* options,
                                           adamant_placement** made);

/** Elements [begin, begin + elements) of a shard. begin is a multiple of 4096. This struct never grows, so it has no
 * struct_bytes. */
typedef struct adamant_piece {
    size_t shard;     /**< index of the shard */
    size_t begin;     /**< first element of the piece in the shard */
    size_t elements;  /**< number of elements */
    size_t on_device; /**< 0: stepped by the CPU, 1: by the device */
} adamant_piece;
/** Creates a placement from the caller's pieces in *made. They must cover each element of every shard once, in the
 * order of shards and elements; shards without elements have no piece. The functions that use the placement check that.
 * invalid argument: on_device is neither 0 nor 1. */
ADAMANT_C_API adamant_status adamant_placement_create(const adamant_piece* pieces, size_t count,
                                                      adamant_placement** made);
/** May be null. */
ADAMANT_C_API void adamant_placement_free(adamant_placement* placement);

/** Summary of a placement. */
typedef struct adamant_placement_summary {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    size_t pieces;       /**< number of pieces */
    size_t cpu_elems;    /**< elements that the CPU updates */
    size_t device_elems; /**< elements that the device updates */
    double ratio;        /**< the CPU's share of the elements; 1 without elements */
    double ratio_asked;  /**< requested ratio of adamant_split(); else ratio */
    int32_t limited;     /**< a memory limit did not allow the ratio, and this is the nearest that it allows */
    int32_t nearest;     /**< no other placement of this kind within the limits is nearer to the ratio */
} adamant_placement_summary;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_placement_summary_init(adamant_placement_summary* summary, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_placement_describe(const adamant_placement* placement,
                                                        adamant_placement_summary* summary);
/** Returns piece number `index`. invalid argument: there is no such piece. */
ADAMANT_C_API adamant_status adamant_placement_piece(const adamant_placement* placement, size_t index,
                                                     adamant_piece* piece);

/* ---- The best ratio ---------------------------------------------------------------------------------------------- */

/** Rates and times of one rank's training step. */
typedef struct adamant_step_rates {
    size_t struct_bytes;       /**< size of this struct; set by the init function */
    double elems;              /**< elements of the optimizer on CPU and device */
    double cpu_elems_per_s;    /**< INFINITY, like the next three rates: does not limit the step */
    double device_elems_per_s; /**< elements that the device updates a second */
    double down_bytes_per_s;   /**< from the device to the host */
    double up_bytes_per_s;     /**< from the host to the device */
    double grad_bytes;         /**< 2; bytes of a gradient on the link */
    double weight_bytes;       /**< 2; bytes of a weight on the link */
    double backward_s;         /**< 0; duration of backward */
    double forward_s;          /**< 0; duration of forward */
    double fixed_s;            /**< 0; additional time of each step at any ratio */
    int32_t arrays_on_device;  /**< 1: gradients are made and weights are needed on the device; 0: in host memory */
    int32_t overlaps_backward; /**< 1: shards are submitted during backward; 0: the optimizer starts after backward */
    int32_t overlaps_forward;  /**< 0: forward begins after the optimizer; 1: as soon as its first weights are ready */
} adamant_step_rates;
ADAMANT_C_API adamant_status adamant_step_rates_init(adamant_step_rates* rates, size_t struct_bytes);
/** Forecasts the seconds of a step with this ratio, and how many of them the optimizer adds to backward and forward.
 * Each result may be null. Depends only on its arguments; from any thread. invalid argument: invalid rates, times or
 * ratio. */
ADAMANT_C_API adamant_status adamant_forecast(const adamant_step_rates* rates, double ratio, double* step_s,
                                              double* update_s);
/** Finds the ratio from `least` to `most` with the shortest step; of several the largest, which leaves the most device
 * memory free. Returns the seconds of that step in *step_s, which may be null. Otherwise like adamant_forecast(). */
ADAMANT_C_API adamant_status adamant_best_ratio(const adamant_step_rates* rates, double least, double most,
                                                double* ratio, double* step_s);

/* Optimizers, their parameter groups and their shards. */

/* ---- Options ---------------------------------------------------------------------------------------------------- */

/** Dynamic loss scaling. The scale grows after growth_interval steps without an overflow; overflows shrink it. Scales
 * are from 2^-125 to 2^125. */
typedef struct adamant_loss_scaling {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    double initial_scale;     /**< 65536 */
    double growth_factor;     /**< 2; at least 1 */
    double backoff_factor;    /**< 0.5; in (0, 1] */
    double min_scale;         /**< 1 */
    double max_scale;         /**< 2^32 */
    uint32_t growth_interval; /**< 2000; at least 1 */
    uint32_t hysteresis;      /**< 1; overflows since the scale last grew that it takes to shrink it; at least 1 */
} adamant_loss_scaling;
ADAMANT_C_API adamant_status adamant_loss_scaling_init(adamant_loss_scaling* scaling, size_t struct_bytes);

typedef int32_t adamant_nonfinite; /* how a step handles gradients with infinities or NaNs */
enum {
    ADAMANT_NONFINITE_SKIP = 0, /**< skips the step, as is usual with dynamic loss scaling */
    ADAMANT_NONFINITE_ZERO = 1, /**< replaces these elements by zeros */
    ADAMANT_NONFINITE_APPLY = 2 /**< applies them */
};

typedef int32_t adamant_speculation; /* whether shards are stepped before the norm is known; changes no bit */
enum {
    ADAMANT_SPECULATE_AUTOMATIC = 0, /**< until finish, unless more than half of the last eight steps were clipped or
                                        skipped, or the model is so small that submit updates it itself */
    ADAMANT_SPECULATE_ALWAYS = 1,    /**< every step */
    ADAMANT_SPECULATE_NEVER = 2
};

/** Reduces the norm of gradients that are partitioned between processes. Receives the ADAMANT_SQUARES_WORDS words of
 * this process's sum of squares (see adamant_add_squares()), and replaces each by its sum over all processes, as 64-bit
 * integers, like MPI_Allreduce(MPI_IN_PLACE, words, count, MPI_INT64_T, MPI_SUM, comm). Integer addition is
 * associative, so the norm is that of one process with all gradients, if shard boundaries are multiples of 4096
 * elements. Returns 0. Any other value fails the step with ADAMANT_REDUCE_FAILED. Invalid words, or words below this
 * process's own, fail it with ADAMANT_INVALID_ARGUMENT. Called once in every step (up to three times in a step of
 * ZenFlow, in all processes alike): by adamant_finish() or adamant_step() in their thread, and for adamant_step_async()
 * in a thread of the executor. It must not call this optimizer, nor wait for a thread that does. */
typedef int32_t (*adamant_reduce)(void* user, int64_t* words, size_t count);

/** For an engine that publishes weights while other shards are still stepped. Called when elements [begin, end) of a
 * shard have new weights: usually once per step, for the CPU's whole part of a shard; again if a speculative step is
 * rolled back or repeated, or if a shard is stepped in parts. It is not called for a device's part, whose weights are
 * complete when the step's last call returns. The last call before adamant_finish(), adamant_step(), adamant_wait(),
 * adamant_abandon() or adamant_rollback() returns has the final weights. Both param and weight_out are written, and do
 * not change before the next step. Called in the executor's threads or the caller's, for different shards concurrently.
 * It must not call this optimizer, nor wait for a thread that does, nor throw, which ends the program. */
typedef void (*adamant_weights_ready)(void* user, size_t shard, size_t begin, size_t end);

/** Options of an optimizer; see <adamant/optimizer_options.hpp>. */
typedef struct adamant_optimizer_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    double max_norm;     /**< clips all unscaled gradients to this global norm; 0: no clipping */
    double max_abs_grad; /**< clips every unscaled element to this value; 0: no clipping. Not together with max_norm */
    adamant_nonfinite on_nonfinite; /**< ADAMANT_NONFINITE_SKIP */
    adamant_speculation speculate;  /**< ADAMANT_SPECULATE_AUTOMATIC */
    const adamant_loss_scaling*
        loss_scaling;            /**< may be null: not dynamic; the scale is that of the step values, or 1 */
    size_t journal_budget_bytes; /**< ADAMANT_AUTOMATIC_BYTES; see below */
    int32_t keep_last_step;      /**< 0; set for adamant_rollback() */
    adamant_reduce reduce;       /**< may be null */
    void* reduce_user;           /**< passed to reduce */
    /** Time limit of a device for the work of a step, in seconds. A device that exceeds it has failed. */
    double device_timeout_s; /**< 300 */
    /** Whether a device has memory to record its whole part: as much as its params and moments take. Without
     * records the device never speculates, and if it fails during the update, the step cannot be rolled back: the error
     * says so, and a state must be loaded. */
    int32_t device_records;              /**< 1 */
    adamant_weights_ready weights_ready; /**< may be null */
    void* weights_ready_user;            /**< passed to weights_ready */
} adamant_optimizer_options;
/** journal_budget_bytes limits the records for the rollback of a step; the library never allocates more than one step's
 * records can take. The journal takes an eighth more than its records, which take, in bytes per element:
 *
 * - float32 or split params, float32 moments: 2.1 to 2.3 in training, at most 14; with the instruction set scalar 12
 * - 16-bit params, float32 moments: 10; rounded to nearest, in models of 4 million elements and more: 4 to 4.2 in
 *   training, at most 12
 * - other types: the bytes of params and moments (6, 8 or 10), each array a multiple of 64 bytes
 *
 * ADAMANT_AUTOMATIC_BYTES is 3 bytes per element
 * with the types of the first case, the size of params and moments with others, and the maximum with keep_last_step. A
 * shard whose records do not fit waits for the norm. */
ADAMANT_C_API adamant_status adamant_optimizer_options_init(adamant_optimizer_options* options, size_t struct_bytes);

typedef struct adamant_optimizer adamant_optimizer;

/** Creates an optimizer without groups and shards in *made. options may be null: the defaults. The executor may be
 * freed afterwards. invalid argument: invalid options. */
ADAMANT_C_API adamant_status adamant_optimizer_create(const adamant_executor* executor,
                                                      const adamant_optimizer_options* options,
                                                      adamant_optimizer** made);
/** Frees an optimizer. May be null. Waits for an asynchronous step. Rolls back an open step if adamant_abandon() could;
 * if not, submitted shards stay stepped, and the others do not change. */
ADAMANT_C_API void adamant_optimizer_free(adamant_optimizer* optimizer);

/* ---- Parameter groups: before the first step, and between steps ------------------------------------------------- */

/** Adds a parameter group. Its name must be UTF-8, not empty and unique. Writes its number to *group, which may be
 * null. maximize: steps ascend the gradient. The last step can no longer be rolled back. invalid argument: invalid
 * hyperparameters, a name that exists or is not UTF-8, and during a step. */
ADAMANT_C_API adamant_status adamant_add_group(adamant_optimizer* optimizer, const char* name,
                                               const adamant_hyperparameters* hyper, int32_t maximize, size_t* group);
/** Removes a group; the numbers of later groups decrease by one. The last step can no longer be rolled back. invalid
 * argument: no such group, a group with shards, shards on a device, and during a step. */
ADAMANT_C_API adamant_status adamant_remove_group(adamant_optimizer* optimizer, size_t group);
ADAMANT_C_API adamant_status adamant_group_count(const adamant_optimizer* optimizer, size_t* count);
/** Finds the number of a group by name. Sets *found to whether it exists; if not, *group is not written. */
ADAMANT_C_API adamant_status adamant_find_group(const adamant_optimizer* optimizer, const char* name, size_t* group,
                                                int32_t* found);
/** Returns the name of a group. The text lives until groups are added or removed, or a state is loaded. invalid
 * argument: no such group. */
ADAMANT_C_API adamant_status adamant_group_name(const adamant_optimizer* optimizer, size_t group, const char** name);
/** Sets a group's hyperparameters from the next step on. invalid argument: invalid hyperparameters, no such group, and
 * during a step. */
ADAMANT_C_API adamant_status adamant_set_hyperparameters(adamant_optimizer* optimizer, size_t group,
                                                         const adamant_hyperparameters* hyper);
/** Returns a group's current hyperparameters. hyper->struct_bytes must be set. invalid argument: no such group. */
ADAMANT_C_API adamant_status adamant_get_hyperparameters(const adamant_optimizer* optimizer, size_t group,
                                                         adamant_hyperparameters* hyper);

/* ---- Shards: before the first step, and between steps ----------------------------------------------------------- */

/** Adds a shard to a group. Writes its number to *number, which may be null. name: the parameter's name in UTF-8, which
 * identifies it in checkpoints. The norm does not depend on the order of shards. The last step can no longer be rolled
 * back. invalid argument: no such group, invalid types, pointers or position, a name that is empty or not UTF-8,
 * boundaries inside a group of 8-bit moments, overlapping arrays of the shard, and during a step; and if the parameter
 * has other shards: no position, another group, shape or types, and elements that one of them has. */
ADAMANT_C_API adamant_status adamant_add_shard(adamant_optimizer* optimizer, size_t group, const char* name,
                                               const adamant_shard* shard, size_t* number);
/** Removes a shard. Its arrays keep its state, and may be freed. The numbers of later shards decrease by one;
 * accumulated gradients stay valid. The last step can no longer be rolled back. invalid argument: no such shard, shards
 * on a device (return them to the CPU with adamant_place() first), and during a step. */
ADAMANT_C_API adamant_status adamant_remove_shard(adamant_optimizer* optimizer, size_t shard);
ADAMANT_C_API adamant_status adamant_shard_count(const adamant_optimizer* optimizer, size_t* count);
/** Finds the number of the shard that begins at element `begin` of parameter `name`. Sets *found to whether it exists;
 * if not, *shard is not written. */
ADAMANT_C_API adamant_status adamant_find_shard(const adamant_optimizer* optimizer, const char* name, size_t begin,
                                                size_t* shard, int32_t* found);
/** Returns the name of a shard's parameter. The text lives until shards are added or removed. invalid argument: no such
 * shard. */
ADAMANT_C_API adamant_status adamant_shard_name(const adamant_optimizer* optimizer, size_t shard, const char** name);
/** Sets the address of the shard's gradient, which has the same number of elements and type as before: for alternating
 * buffers. Between steps, and in an open step before the shard is submitted; from any thread. Allocates nothing after
 * adamant_prepare(). adamant_rollback() reads the gradient at its current address, so set the step's gradient before
 * it. invalid argument: no such shard, a null pointer with elements, memory that a step writes, a submitted or skipped
 * shard, a shard with a gradient on a device, an address that is not a multiple of 16 if a device that shares host
 * memory has a part of the shard, and during adamant_step_async(). */
ADAMANT_C_API adamant_status adamant_set_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/** Returns the bytes that adamant_prepare() will allocate. with_journal: include memory that adamant_begin_step() needs
 * beyond adamant_step(). */
ADAMANT_C_API adamant_status adamant_memory_bytes(const adamant_optimizer* optimizer, int32_t with_journal,
                                                  size_t* bytes);
/** Allocates the memory of steps. Without this call, the first step allocates it. invalid argument: overlapping arrays
 * of different shards if one is written (gradients are, with adamant_set_device_arrays()), and during a step.
 * unavailable: too little memory. */
ADAMANT_C_API adamant_status adamant_prepare(adamant_optimizer* optimizer, int32_t with_journal);

/* Devices that step a part of an optimizer's shards concurrently with the CPU, to the same bits. */

/* ---- Devices ---------------------------------------------------------------------------------------------------- */

/** A device handle serves one optimizer of either kind at a time. Create a separate handle, perhaps of the same GPU,
 * for each optimizer. The functions below may be called from any thread, but copies not during a step of the optimizer.
 */
typedef struct adamant_device adamant_device;

/** Opens an NVIDIA GPU of compute capability 7.0 or newer in *made; in a library built with ADAMANT_HIP=ON, an AMD GPU
 * of gfx900 or newer. ordinal: CUDA's number of the device among those of CUDA_VISIBLE_DEVICES, from 0 (HIP's, of
 * HIP_VISIBLE_DEVICES). unavailable: there is no such device, it is older, or the library was built without nvcc and
 * hipcc, or for other devices. device failed: an error of CUDA. */
ADAMANT_C_API adamant_status adamant_cuda_device_create(int32_t ordinal, adamant_device** made);
/** Makes work that is submitted from now on wait for the caller's event, a cudaEvent_t (HIP: hipEvent_t) on any stream
 * of this GPU: for gradients that the GPU still computes. Record the event first: nothing waits for an event that was
 * never recorded. After the call it may be recorded again or destroyed. Call this before the function that submits,
 * accumulates or steps with the gradients. invalid argument: a null event, not a CUDA device. unavailable: the library
 * was built without nvcc and hipcc. */
ADAMANT_C_API adamant_status adamant_cuda_device_wait_event(adamant_device* device, void* event);

/** Options of a device that is emulated in host memory: for tests, and for machines without a GPU. */
typedef struct adamant_emulation_options {
    size_t struct_bytes;     /**< size of this struct; set by the init function */
    const char* name;        /**< may be null: "emulated device" */
    size_t memory_bytes;     /**< 1 TiB; host memory is allocated only as it is used */
    double work_bytes_per_s; /**< INFINITY, like the next two rates: as fast as this machine */
    double up_bytes_per_s;   /**< rate of copies from the host */
    double down_bytes_per_s; /**< rate of copies to the host */
    double latency_s;        /**< 0; latency of each operation */
    /** 0; 1: passes use the shards' arrays, as on an APU, and nothing is copied */
    int32_t shares_host_memory;
} adamant_emulation_options;
ADAMANT_C_API adamant_status adamant_emulation_options_init(adamant_emulation_options* options, size_t struct_bytes);
/** Creates an emulated device in *made. options may be null: the defaults. invalid argument: rates that are not above
 * 0, a latency below 0. unavailable: threads cannot be started. */
ADAMANT_C_API adamant_status adamant_emulated_device_create(const adamant_emulation_options* options,
                                                            adamant_device** made);
typedef int32_t adamant_device_operation;
enum { ADAMANT_DEVICE_COPY_UP = 0, ADAMANT_DEVICE_COPY_DOWN = 1, ADAMANT_DEVICE_WORK = 2, ADAMANT_DEVICE_ALLOCATE = 3 };
/** Injects a fault: operation number `after` of this kind, counted from 0 from now on, fails. invalid argument: not an
 * emulated device. */
ADAMANT_C_API adamant_status adamant_emulated_device_fail(adamant_device* device, adamant_device_operation operation,
                                                          size_t after);
/** Injects a fault: the operation hangs until adamant_emulated_device_resume(). */
ADAMANT_C_API adamant_status adamant_emulated_device_hang(adamant_device* device, adamant_device_operation operation,
                                                          size_t after);
/** Clears all faults, and resumes hung operations. */
ADAMANT_C_API adamant_status adamant_emulated_device_resume(adamant_device* device);

/** Frees a device handle. May be null. An optimizer with shards on the device keeps the device. */
ADAMANT_C_API void adamant_device_free(adamant_device* device);
/** Returns the device's name for messages, and its memory. Each result may be null. The text lives as long as the
 * handle. device failed: the memory cannot be read. */
ADAMANT_C_API adamant_status adamant_device_describe(const adamant_device* device, const char** name,
                                                     size_t* total_bytes, size_t* free_bytes);

/** Allocates device memory, for adamant_set_device_arrays() and adamant_zenflow_set_device_arrays(); a program that
 * uses CUDA may also pass addresses of cudaMalloc(). The host must not dereference addresses. They are aligned to 256
 * bytes; contents are undefined. 0 for 0 bytes. Release the memory before the handle. unavailable: too little device
 * memory is free. device failed: any other failure. */
ADAMANT_C_API adamant_status adamant_device_allocate(adamant_device* device, size_t bytes, uint64_t* address);
/** Frees an address of adamant_device_allocate(), or 0. No optimizer may use it any more. */
ADAMANT_C_API adamant_status adamant_device_release(adamant_device* device, uint64_t address);
/** Copies to and from device memory, and returns when the copy is complete. device failed: the copy failed, or took
 * longer than 300 s; the device is then reset, which drops all work on it. */
ADAMANT_C_API adamant_status adamant_device_copy_up(adamant_device* device, uint64_t destination, const void* source,
                                                    size_t bytes);
ADAMANT_C_API adamant_status adamant_device_copy_down(adamant_device* device, void* destination, uint64_t source,
                                                      size_t bytes);

/* ---- Shards on a device: between steps -------------------------------------------------------------------------- */

/** Writes the sizes of all shards in elements, in order. count: the result of adamant_shard_count(). */
ADAMANT_C_API adamant_status adamant_shard_sizes(const adamant_optimizer* optimizer, size_t* sizes, size_t count);
/** Returns the bytes of device memory that adamant_place() would take with this placement. invalid argument: a
 * placement of other shards. */
ADAMANT_C_API adamant_status adamant_device_bytes(const adamant_optimizer* optimizer, const adamant_device* device,
                                                  const adamant_placement* placement, size_t* bytes);
/** Moves a part of the shards to a device, changes the part, or returns all shards to the CPU if device and placement
 * are null. From the next step on, device and CPU step their pieces concurrently, to the same bits for any placement.
 * The state of the device's pieces is only in device memory; the shards' host arrays of it are out of date until
 * adamant_update_host_arrays(), a save, or the return to the CPU. Shards that are added later belong to the CPU.
 *
 * The device needs memory for the new pieces in addition to the old ones. The last step can no longer be rolled back.
 *
 * A step that ends with ADAMANT_DEVICE_FAILED has been rolled back on CPU and device: state and accumulated gradients
 * are as before it. There is one exception: if only the upload of weights failed after the device completed its part,
 * the step is complete. adamant_steps() counts it, the error says so, and the next call uploads the missing weights
 * first. Compare adamant_steps() before you repeat a step. CPU and device record their steps for the rollback; see
 * device_records of adamant_optimizer_options. A device that did not answer in time rolls back later, before any other
 * work; until then the step's gradients on it must not change.
 *
 * invalid argument: a placement of other shards, a device that has another optimizer's shards, another device while
 * device arrays are set, keep_last_step without device_records, overlapping arrays, and during a step. unavailable,
 * device failed: the device has too little memory, or has failed; nothing has moved. Errors of adamant_prepare(), such
 * as lack of memory, come after all has moved. */
ADAMANT_C_API adamant_status adamant_place(adamant_optimizer* optimizer, const adamant_device* device,
                                           const adamant_placement* placement);
/** Sets the caller's arrays of a shard's gradient and weights in device memory, with the shard's size and types,
 * aligned to 16 bytes. Call it before adamant_place() for a shard whose gradient is made on the device and whose
 * weights are needed there. The arrays are used until adamant_place() returns all shards to the CPU. The shard's host
 * arrays grad and weight_out then stage the CPU's part. weight_out is 0 for a shard without one; both 0: gradient and
 * weights are in host memory. invalid argument: shards are on a device already, an address that is missing, not
 * aligned, or for a weight_out that the shard lacks, no such shard, and during a step. */
ADAMANT_C_API adamant_status adamant_set_device_arrays(adamant_optimizer* optimizer, size_t shard, uint64_t grad,
                                                       uint64_t weight_out);
/** Copies the device's part of params and moments to the shards' host arrays. Does nothing without a device. invalid
 * argument: during a step. device failed: the copy failed. */
ADAMANT_C_API adamant_status adamant_update_host_arrays(adamant_optimizer* optimizer);

/* Steps of an optimizer, and their reports. */

/** Values of one step. They override the optimizer's. */
typedef struct adamant_step_values {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    int32_t has_loss_scale;   /**< whether loss_scale is used; else the scale is the dynamic one, or 1 */
    int32_t has_max_norm;     /**< whether max_norm is used; max_abs_grad of the options is then ignored */
    int32_t has_max_abs_grad; /**< whether max_abs_grad is used; max_norm of the options is then ignored */
    /** Factor that the loss was multiplied by. Its inverse must be above 2^-126 and at most 3.4e38. */
    double loss_scale;
    double max_norm;     /**< limit of the global norm after unscaling; 0: no limit */
    double max_abs_grad; /**< limit of each element after unscaling; 0: no limit */
    const double* lr;    /**< one learning rate for each group; null with lr_count 0: the groups' own */
    size_t lr_count;     /**< number of learning rates in `lr` */
    /** Number of this step for each shard, from 1, for engines that count the steps of each param themselves; null with
     * shard_step_count 0: the optimizer's. Copied by the call. Not with a device that has shards, and not for
     * ZenFlow. */
    const uint64_t* shard_steps;
    size_t shard_step_count; /**< number of step numbers in `shard_steps` */
} adamant_step_values;
ADAMANT_C_API adamant_status adamant_step_values_init(adamant_step_values* values, size_t struct_bytes);

typedef int32_t adamant_outcome;
enum { ADAMANT_APPLIED = 0, ADAMANT_SKIPPED = 1 };

/** Report of a step. */
typedef struct adamant_report {
    size_t struct_bytes;          /**< size of this struct; set by the init function */
    uint64_t step;                /**< the number of this step, from 1, whether it was applied or skipped */
    adamant_outcome outcome;      /**< an adamant_outcome */
    int32_t speculated;           /**< shards were stepped before the norm was known */
    int32_t rolled_back;          /**< the speculative step was rolled back, because the norm required a clip or skip */
    int32_t has_first_nonfinite;  /**< whether the next two fields are set: this process has nonfinite gradients */
    size_t first_nonfinite_shard; /**< the first shard with a nonfinite gradient, in the order of shards */
    size_t first_nonfinite_index; /**< the first nonfinite element of that shard */
    uint64_t nonfinite_grads;     /**< number of nonfinite gradients of all processes */
    double loss_scale;            /**< the loss scale of this step */
    double global_norm;           /**< norm of the finite unscaled gradients of all processes; a NaN if measured is 0 */
    double clip_coefficient;      /**< factor that clipped gradients to max_norm */
    size_t elements;              /**< number of stepped elements */
    size_t shards_waited;         /**< shards that waited for the norm: finish came first, or the journal was full */
    size_t journal_bytes;         /**< bytes written to the journal */
    double seconds;               /**< duration of the step, including waits for gradients */
    double gradients_seconds;     /**< duration until the norm was known, including speculative steps */
    double update_seconds;        /**< duration after that */
    size_t gradients_bytes;       /**< memory traffic until the norm was known, counted and not measured */
    size_t update_bytes;          /**< memory traffic after the norm was known */
    uint32_t threads;             /**< number of threads */
    const char* isa;              /**< instruction set; lives forever */
    const char* pus;              /**< PUs that the threads are bound to; lives as long as the optimizer */
    /** With a device. Without one, ratio is 1 and the device's fields are 0. */
    double ratio;               /**< the CPU's share of `elements` */
    double cpu_busy_seconds;    /**< mean busy time of the CPU's threads */
    double device_work_seconds; /**< busy time of the device with passes */
    double device_up_seconds;   /**< busy time with copies from the host */
    double device_down_seconds; /**< busy time with copies to the host */
    size_t device_elements;     /**< elements that the device stepped */
    size_t device_work_bytes;   /**< bytes read and written by passes */
    size_t device_up_bytes;     /**< bytes copied to the device */
    size_t device_down_bytes;   /**< bytes copied from the device */
    /** Whether gradients were measured before the step. 0 if nothing needs that (clipping by norm, dynamic loss
     * scaling, reduce, or skipping or zeroing of nonfinite gradients); gradients are then read only once, and
     * nonfinite_grads is 0. */
    int32_t measured;
    double cpu_quota; /**< result of adamant_cpu_quota() when the executor was created; a quota below the number of
                         threads makes steps slow */
} adamant_report;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_report_init(adamant_report* report, size_t struct_bytes);

/** Returns the number of applied steps. */
ADAMANT_C_API adamant_status adamant_steps(const adamant_optimizer* optimizer, uint64_t* steps);
/** Returns the loss scale for the next backward pass: the dynamic scale, or 1. */
ADAMANT_C_API adamant_status adamant_loss_scale(const adamant_optimizer* optimizer, double* scale);

/** Takes a step when all gradients are ready: one pass over memory, or two if the norm or finiteness must be known
 * first. values may be null: the optimizer's values. report may be null; else its struct_bytes must be set. invalid
 * argument: invalid values, invalid words of reduce, and during another step. reduce failed: reduce returned an error.
 * device failed: see adamant_place(). Errors of adamant_prepare() if memory is not allocated yet. After all but device
 * failed, nothing has changed. */
ADAMANT_C_API adamant_status adamant_step(adamant_optimizer* optimizer, const adamant_step_values* values,
                                          adamant_report* report);

/** Takes a step with gradients at new addresses: grads[i] is shard i's gradient, see adamant_set_gradient(); a null
 * pointer skips the shard, see adamant_skip(). grads has `count` elements, the number of shards, and may be null with a
 * count of 0. Errors as for these functions and adamant_step(); gradients may then be set already. */
ADAMANT_C_API adamant_status adamant_step_gradients(adamant_optimizer* optimizer, const void* const* grads,
                                                    size_t count, const adamant_step_values* values,
                                                    adamant_report* report);

/** Opens a step whose gradients arrive one by one; it has the bits of adamant_step(). values as for that. invalid
 * argument: invalid values, and during a step. Errors of adamant_prepare() if memory is not allocated yet. */
ADAMANT_C_API adamant_status adamant_begin_step(adamant_optimizer* optimizer, const adamant_step_values* values);
/** Submits a shard whose gradient is ready. The executor's threads start with it, and the call returns immediately. The
 * gradient must not change until adamant_finish() has returned. From any thread. invalid argument: no such shard, a
 * shard that was already submitted or skipped, and if no step is open. With a device, any other error fails the step:
 * adamant_finish() then rolls it back and returns ADAMANT_DEVICE_FAILED. */
ADAMANT_C_API adamant_status adamant_submit(adamant_optimizer* optimizer, size_t shard);
/** adamant_set_gradient() and adamant_submit() in one call, which fails as either does. From any thread. */
ADAMANT_C_API adamant_status adamant_submit_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad);
/** Skips a shard that has no gradient in this step: it does not change, and its accumulated gradient is dropped. From
 * any thread; errors as above. */
ADAMANT_C_API adamant_status adamant_skip(adamant_optimizer* optimizer, size_t shard);
/** Waits for submitted shards and completes the step: applied or skipped. report as for adamant_step(). invalid
 * argument: no step is open, a shard was neither submitted nor skipped, or invalid words of reduce. reduce failed:
 * reduce returned an error. After these errors an open step stays open: call this again, or adamant_abandon(). With a
 * device, any other error ends the step; see adamant_place(). */
ADAMANT_C_API adamant_status adamant_finish(adamant_optimizer* optimizer, adamant_report* report);
/** Abandons the open step: restores params and moments exactly, and rounds param to weight_out. Accumulated gradients
 * stay. A device that does not answer rolls back later, before any other work. invalid argument: no step is open.
 * unavailable, and the step stays open: shards were submitted to a step that needs no norm (no skip, no clipping by
 * norm, no reduce) and has no records, because keep_last_step is not set or the journal's budget was too small. Never
 * with a device. */
ADAMANT_C_API adamant_status adamant_abandon(adamant_optimizer* optimizer);
/** Rolls back the last step, which must have been applied with keep_last_step. Since then no step may have begun, no
 * gradient may have been accumulated, no group or shard added or removed, no shard placed, no step count or loss scaler
 * set, and no state loaded. The step's gradients must be unchanged at their current addresses; a checksum verifies
 * that. Restores params, moments, the step count and the loss scale exactly, and rounds param to weight_out.
 *
 * Accumulated gradients are valid again. A step reads accumulators without changing them and marks them as empty, so
 * after the rollback they have the same micro-steps as before the step. To repeat the step, submit the last gradients
 * again; to restart the micro-steps, call adamant_clear_accumulators(). Accumulators must not have changed, either.
 *
 * invalid argument: there is no such step, or gradients have changed, and during a step. unavailable: the journal's
 * budget was too small. device failed: the device failed; if adamant_steps() has decreased, the next call completes the
 * rollback, otherwise nothing has changed. */
ADAMANT_C_API adamant_status adamant_rollback(adamant_optimizer* optimizer);

/** Adds the shard's gradient to its accumulator. Call it for all micro-steps except the last one, whose gradient
 * adamant_submit() or adamant_step() adds. Returns when the sum is complete, so the gradient's memory may be reused.
 * The first call after a step overwrites the accumulator. The sum is not divided: multiply the loss scale by the number
 * of micro-steps. The last step can no longer be rolled back. invalid argument: no such shard, a shard without
 * accumulator, a submitted or skipped shard, and during adamant_step_async(). device failed: the device failed; the
 * shard's accumulated gradients are lost if the error says so, and an open step fails. Errors of adamant_prepare() if
 * memory is not allocated yet. */
ADAMANT_C_API adamant_status adamant_accumulate(adamant_optimizer* optimizer, size_t shard);
/** Drops accumulated gradients. The last step can no longer be rolled back. invalid argument: during a step. */
ADAMANT_C_API adamant_status adamant_clear_accumulators(adamant_optimizer* optimizer);

/** Starts adamant_step() and returns immediately. Until adamant_wait() reports the end of the step, only adamant_poll()
 * and adamant_wait() may be called for the optimizer. Errors of adamant_begin_step(); adamant_wait() returns those of
 * the step. */
ADAMANT_C_API adamant_status adamant_step_async(adamant_optimizer* optimizer, const adamant_step_values* values);
/** Returns whether the step is over, and its progress from 0 to 1, relative to the passes that are known to be needed.
 * Either result may be null. Never blocks for long. invalid argument: there is no such step. */
ADAMANT_C_API adamant_status adamant_poll(const adamant_optimizer* optimizer, int32_t* over, double* progress);
#define ADAMANT_FOR_EVER UINT64_MAX
/** Waits for at most the given number of nanoseconds, or ADAMANT_FOR_EVER. If the step is over, sets *over to 1, writes
 * the report (which may be null), and the optimizer accepts all calls again. If not, sets *over to 0, and the step
 * continues. over may be null with ADAMANT_FOR_EVER. invalid argument: there is no such step. Errors of the step, after
 * which *over is 1: invalid argument (invalid words of reduce) and reduce failed, with nothing changed; device failed,
 * see adamant_place(). */
ADAMANT_C_API adamant_status adamant_wait(adamant_optimizer* optimizer, uint64_t timeout_ns, int32_t* over,
                                          adamant_report* report);

/* The state of an optimizer: step count, loss scaler, groups, params and moments. */

/* ---- Step count and loss scaler --------------------------------------------------------------------------------- */

/** Sets the number of applied steps, for an engine that restores its own count: the next step is number steps + 1.
 * Params, moments, loss scaler and accumulators do not change. The last step can no longer be rolled back. invalid
 * argument: 2^64 - 1, and during a step. */
ADAMANT_C_API adamant_status adamant_set_steps(adamant_optimizer* optimizer, uint64_t steps);

/** State of dynamic loss scaling. */
typedef struct adamant_loss_scaler {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    double scale;             /**< the loss scale */
    uint32_t good_steps;      /**< steps since the scale last grew or a gradient last overflowed */
    uint32_t hysteresis_left; /**< overflows until the scale shrinks */
} adamant_loss_scaler;
/** Sets struct_bytes, sets scale and hysteresis_left to 1, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_loss_scaler_init(adamant_loss_scaler* scaler, size_t struct_bytes);
/** Returns the loss scaler, whose struct_bytes must be set. Sets *found to whether loss scaling is dynamic; if not, the
 * scaler is not written. */
ADAMANT_C_API adamant_status adamant_get_loss_scaler(const adamant_optimizer* optimizer, adamant_loss_scaler* scaler,
                                                     int32_t* found);
/** Sets the loss scaler from the next step on. The last step can no longer be rolled back. invalid argument: a scale
 * outside [2^-125, 2^125], no dynamic loss scaling in the options, and during a step. */
ADAMANT_C_API adamant_status adamant_set_loss_scaler(adamant_optimizer* optimizer, const adamant_loss_scaler* scaler);

/* ---- Checkpoints in files ---------------------------------------------------------------------------------------- */

/** Writes step count, loss scaler, groups and all params and moments to a safetensors file. A reader of the path always
 * finds the complete old or the complete new file. Accumulated gradients are not saved. invalid argument: an empty
 * path, and during a step. unavailable: the file cannot be written, with the system's reason. device failed: a copy
 * from the device failed. If the file is complete, but the file system cannot sync its folder or set its permission
 * bits, the status is OK and adamant_last_error() reports that; otherwise it is empty. */
ADAMANT_C_API adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path);
/** Checks before hours of training that a save to the path will work: makes every system call of a save on a small file
 * next to the path, which does not change. Status and adamant_last_error() are those of a save. invalid argument: an
 * empty path. unavailable: a save would fail. */
ADAMANT_C_API adamant_status adamant_check_can_save(const char* path);
/** Loads the state from the file of one process, or from the files of all ranks of one run, with any shard boundaries:
 * ranks may have parts of a parameter, or different parameters. Groups are matched by name and shards by their
 * parameters' names; param is rounded to weight_out. Everything is checked first. invalid argument: a missing part,
 * another shape or type, a loss scale outside [2^-125, 2^125], and during a step. unavailable: a file cannot be read.
 * corrupted: a file is damaged. A file that another program truncates or writes during the call is corrupted, too.
 * After that, and after device failed during the load, params and moments may be partly overwritten, and no step can be
 * taken before a load succeeds. */
ADAMANT_C_API adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths,
                                                      size_t count);

/* ---- Checkpoints in memory -------------------------------------------------------------------------------------- */

/** Returns the bytes that adamant_save_memory() would write now. invalid argument: during a step. device failed: a copy
 * from the device failed. */
ADAMANT_C_API adamant_status adamant_save_bytes(const adamant_optimizer* optimizer, size_t* bytes);
/** Writes the content of a file of adamant_save_safetensors() to the caller's memory of `bytes` bytes, which must not
 * overlap any array of the optimizer. Sets *written, which may be null, to the number of bytes written. invalid
 * argument: too little memory, with the size that is needed, and during a step. device failed: a copy from the device
 * failed. */
ADAMANT_C_API adamant_status adamant_save_memory(const adamant_optimizer* optimizer, void* destination, size_t bytes,
                                                 size_t* written);
/** Loads the state like adamant_load_safetensors(), from `count` states in memory: states[i] has bytes[i] bytes, which
 * must not change during the call. They may also be the content of files of adamant_save_safetensors(). */
ADAMANT_C_API adamant_status adamant_load_memory(adamant_optimizer* optimizer, const void* const* states,
                                                 const size_t* bytes, size_t count);

/* ---- Views, for checkpoints in the caller's format -------------------------------------------------------------- */

/** A list of all tensors of the state as views of the shards' arrays. It has the shards at the time of its creation, is
 * valid as long as their arrays, and shows their current content. A device's part of the state is copied to the arrays
 * when the list is created (see adamant_update_host_arrays()). Accumulated gradients are not part of the state. */
typedef struct adamant_state adamant_state;
/** Creates the list in *made. invalid argument: during a step. device failed: a copy failed. */
ADAMANT_C_API adamant_status adamant_state_create(adamant_optimizer* optimizer, adamant_state** made);
/** May be null. */
ADAMANT_C_API void adamant_state_free(adamant_state* state);
/** Returns the number of tensors. From any thread. */
ADAMANT_C_API adamant_status adamant_state_tensor_count(const adamant_state* state, size_t* count);

typedef int32_t adamant_state_array;
enum { ADAMANT_STATE_PARAM = 0, ADAMANT_STATE_EXP_AVG = 1, ADAMANT_STATE_EXP_AVG_SQ = 2 };

/** Elements [begin, begin + elements) of one array of a parameter, in row-major order. The texts and the shape live as
 * long as the list. */
typedef struct adamant_state_tensor {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* param;   /**< the parameter's name */
    const char* group;   /**< the name of its parameter group */
    /** Address in the shard's array. Null without elements, and for split masters (ADAMANT_SPLIT_FLOAT32), the tensor's
     * dtype is float32, and adamant_state_read_tensor() joins them to it. */
    const void* data;
    size_t elements;           /**< number of elements */
    size_t begin;              /**< index of the first element in the parameter */
    const size_t* shape;       /**< shape of the whole parameter */
    size_t dims;               /**< number of dimensions */
    adamant_dtype dtype;       /**< an adamant_dtype */
    adamant_state_array array; /**< an adamant_state_array */
} adamant_state_tensor;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_state_tensor_init(adamant_state_tensor* tensor, size_t struct_bytes);
/** Returns tensor number `index` of the list. From any thread. invalid argument: there is no such tensor. */
ADAMANT_C_API adamant_status adamant_state_get_tensor(const adamant_state* state, size_t index,
                                                      adamant_state_tensor* tensor);
/** Copies `elements` elements of tensor number `index`, beginning with element `begin` of the tensor (not of the
 * parameter), to the caller's memory, as an array of the tensor's dtype. ADAMANT_QUANTIZED8 is copied in whole groups.
 * From any thread. invalid argument: no such tensor or elements, or a null pointer with elements. */
ADAMANT_C_API adamant_status adamant_state_read_tensor(const adamant_state* state, size_t index, size_t begin,
                                                       size_t elements, void* destination);

/* Tuning: the number of cores that an optimizer needs on this machine, measured by timed steps, and saved in a file. */

/** Result of tuning for a machine and a kind of work. */
typedef struct adamant_tuned adamant_tuned;

/** Reads a file of `adamant tune --save` or adamant_tuned_save() to *made, and checks that it is for this machine and
 * the same work: cores has the ranks, PUs, masks and GPUs (its sizes are ignored), types is a shard with
 * nothing but types set, and isa is the instruction set, which may be null as in adamant_executor_options. unavailable:
 * no such file, a result of another machine or other work, with each difference, and an unfinished result. corrupted:
 * the file does not contain a tuning result of this version. */
ADAMANT_C_API adamant_status adamant_tuned_load(const char* path, const adamant_core_options* cores,
                                                const adamant_shard* types, const char* isa, adamant_tuned** made);
/** May be null. */
ADAMANT_C_API void adamant_tuned_free(adamant_tuned* tuned);
/** Sets the tuned options: cpuadam_cores of cores, whose other three sizes become 0, and max_chunk_elems and
 * prefetch_bytes of executor. Other fields do not change. Each struct must be initialised, and may be null. invalid
 * argument: an executor's struct of a version without these fields. */
ADAMANT_C_API adamant_status adamant_tuned_apply(const adamant_tuned* tuned, adamant_core_options* cores,
                                                 adamant_executor_options* executor);
/** Writes the result to a file, and replaces an existing file atomically. Status and adamant_last_error() are those of
 * adamant_save_safetensors(): invalid argument for an empty path, unavailable if the file cannot be written. */
ADAMANT_C_API adamant_status adamant_tuned_save(const adamant_tuned* tuned, const char* path);

/** Result of adamant_tune_cores(). */
typedef struct adamant_tuned_summary {
    size_t struct_bytes;       /**< size of this struct; set by the init function */
    double cpuadam_cores_perc; /**< the optimizer's share of a rank's cores */
    double step_s;             /**< step time of all ranks together, with the tuned options */
    size_t elements;           /**< elements of each rank in the timed steps */
    size_t max_chunk_elems;    /**< for adamant_executor_options */
    size_t prefetch_bytes;     /**< for adamant_executor_options */
    uint32_t cores;            /**< number of the optimizer's cores of each rank */
    uint32_t available_cores;  /**< number of all cores of a rank */
    int32_t finished;          /**< 0: the deadline came before it was known whether more cores are worth using */
    int32_t all;               /**< every core is worth using */
} adamant_tuned_summary;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_tuned_summary_init(adamant_tuned_summary* summary, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_tuned_describe(const adamant_tuned* tuned, adamant_tuned_summary* summary);

/** Called after each timed step, with its number of cores and its time. Returns 0; any other value ends the tuning with
 * ADAMANT_UNAVAILABLE. */
typedef int32_t (*adamant_on_trial_step)(void* user, uint32_t cores, double seconds);

/** Options of adamant_tune_cores(). */
typedef struct adamant_tuning_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* isa;     /**< as in adamant_executor_options; may be null */
    double deadline_s;   /**< 60; time limit of the whole search; the result is then marked as not finished */
    size_t elements;     /**< elements of each rank's arrays; 0: far more than fit in the machine's caches */
    /** Share of the gain of perfect scaling that makes more cores worth using.
     * 0.25; in (0, 1]. */
    double worth;
    /** Confidence of a comparison of two numbers of cores. It takes `rounds` to most_rounds rounds, until the faster
     * one is known with this confidence. */
    double confidence;             /**< 0.99 */
    size_t rounds;                 /**< 9 */
    size_t most_rounds;            /**< 41 */
    double settings_worth;         /**< 0.03; share by which another setting must be faster than the default */
    adamant_on_trial_step on_step; /**< may be null */
    void* on_step_user;            /**< passed to on_step */
    int32_t settings;              /**< 1; also try other chunk sizes and prefetch distances on the final cores */
} adamant_tuning_options;
ADAMANT_C_API adamant_status adamant_tuning_options_init(adamant_tuning_options* options, size_t struct_bytes);
/** Measures how many cores each rank's optimizer needs, in *made. All ranks step concurrently in this process; cores
 * and types as above. Uses up to a quarter of the available memory, and the machine's cores and memory bandwidth:
 * nothing else should run. options may be null: the defaults. invalid argument: invalid options. unavailable: errors of
 * adamant_select_cores(), adamant_team_create() and adamant_buffer_create(), and a tuning that on_step ended. */
ADAMANT_C_API adamant_status adamant_tune_cores(const adamant_core_options* cores, const adamant_shard* types,
                                                const adamant_tuning_options* options, adamant_tuned** made);

/* DeepSpeed's configuration as options of this library. */

typedef struct adamant_deepspeed adamant_deepspeed;

/** Parses the text of a ds_config.json, of `bytes` bytes, to *made. From any thread. invalid argument: the text is not
 * JSON, or has an invalid value, with its position. */
ADAMANT_C_API adamant_status adamant_deepspeed_parse(const char* text, size_t bytes, adamant_deepspeed** made);
/** May be null. */
ADAMANT_C_API void adamant_deepspeed_free(adamant_deepspeed* config);
/** Sets the fields that the configuration decides, with DeepSpeed's defaults for missing keys; other fields do not
 * change. Each struct must be initialised, and may be null.
 * hyper, *maximize: all fields, for the single group. Without an optimizer in the configuration the decay is unset.
 * options: max_norm, and loss_scaling, which points into config and lives as long as config.
 * values: the loss scale if it is fixed, else none.
 * cores: the optimizer's or the host framework's share, if the configuration has one.
 * The rest of the configuration: adamant_deepspeed_get_offload() and adamant_deepspeed_model(). */
ADAMANT_C_API adamant_status adamant_deepspeed_apply(const adamant_deepspeed* config, adamant_hyperparameters* hyper,
                                                     int32_t* maximize, adamant_optimizer_options* options,
                                                     adamant_step_values* values, adamant_core_options* cores);
/** Offloading options of the configuration. They are for the engine; the library does not use them. */
typedef struct adamant_deepspeed_offload {
    size_t struct_bytes;           /**< size of this struct; set by the init function */
    uint64_t sub_group_size_elems; /**< number of params that stage 3 steps at a time; 0: each tensor alone */
    double ratio;                  /**< the CPU's share of the params, from 0 to 1 */
    double cpuadam_cores_perc;     /**< the optimizer's share of a rank's cores; 0: absent */
    double pt_reserved_cores_perc; /**< share of cores reserved for the host, from 0 to below 1; 0 if absent */
    uint32_t zero_stage;           /**< 0 to 3 */
    int32_t offload;               /**< whether the optimizer is offloaded: device is "cpu" */
    int32_t pin_memory;            /**< put the CPU's arrays in page-locked memory */
    int32_t super_offload;         /**< step while gradients still arrive */
} adamant_deepspeed_offload;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_deepspeed_offload_init(adamant_deepspeed_offload* offload, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_deepspeed_get_offload(const adamant_deepspeed* config,
                                                           adamant_deepspeed_offload* offload);
/** Returns the type of gradients and weights, and the number of accumulated micro-steps (0: computed from the batch
 * sizes). Each result may be null. */
ADAMANT_C_API adamant_status adamant_deepspeed_model(const adamant_deepspeed* config, adamant_dtype* type,
                                                     uint32_t* accumulation_steps);
/** Returns warning number `index`, about an ignored key, in *text; null after the last one. The text lives as long as
 * config. */
ADAMANT_C_API adamant_status adamant_deepspeed_warning(const adamant_deepspeed* config, size_t index,
                                                       const char** text);

/* Optimizers with deferred gradients (ZenFlow): a few columns of each matrix are updated every step, the others later,
 * while training continues. docs/zenflow.md describes the algorithm. */

typedef int32_t adamant_column_score; /* score of a column: the sum over its rows of magnitudes or squares */
enum { ADAMANT_COLUMN_MAGNITUDE = 0, ADAMANT_COLUMN_SQUARE = 1 };

typedef int32_t adamant_selection_scope; /* set of columns from which the best are selected */
enum { ADAMANT_SELECT_EACH_PARAM = 0, ADAMANT_SELECT_ALL_PARAMS = 1 };

typedef int32_t adamant_column_reduction;
enum { ADAMANT_COLUMNS_SUM = 0, ADAMANT_COLUMNS_MAX = 1 };

/** Reduces column scores of matrices whose rows are partitioned between processes: replaces each number by its sum or
 * maximum over all processes, like MPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_INT64_T, MPI_SUM or MPI_MAX, comm),
 * and returns 0. Any other value fails the step with ADAMANT_REDUCE_FAILED, and numbers that are no sum or maximum of
 * those passed fail it with ADAMANT_INVALID_ARGUMENT; nothing has changed. Called twice in a step that selects columns.
 * Every process must have the same params in the same order; a rank without rows of a matrix has a shard without
 * elements. It must not call this optimizer, nor wait for a thread that does. */
typedef int32_t (*adamant_reduce_columns)(void* user, int64_t* numbers, size_t count, adamant_column_reduction how);

/** Options of adamant_zenflow_create(). "Steps" are applied steps. */
typedef struct adamant_zenflow_options {
    size_t struct_bytes;    /**< size of this struct; set by the init function */
    double topk_ratio;      /**< 0.1; share of selected columns, from 0 to 1 */
    size_t select_interval; /**< 16; least number of steps between selections, which are in the first step of a window
                             */
    size_t update_interval; /**< 4; steps in a window; 0: a window ends when the deferred gradients reach auto_ratio
                               times the applied ones */
    double auto_ratio;      /**< 1; ratio of squared norms, for update_interval 0 */
    size_t max_deferred;    /**< 64; maximum of steps in a window, for update_interval 0 */
    size_t full_warm_up_rounds;            /**< 0; number of plain steps before ZenFlow begins */
    adamant_column_score score;            /**< ADAMANT_COLUMN_MAGNITUDE */
    adamant_selection_scope scope;         /**< ADAMANT_SELECT_EACH_PARAM */
    int32_t overlap;                       /**< 1; apply deferred gradients during the next window */
    adamant_reduce_columns reduce_columns; /**< may be null */
    void* reduce_columns_user;             /**< passed to reduce_columns */
} adamant_zenflow_options;
ADAMANT_C_API adamant_status adamant_zenflow_options_init(adamant_zenflow_options* options, size_t struct_bytes);

typedef struct adamant_zenflow adamant_zenflow;

/** Creates a ZenFlow optimizer without groups and params in *made. Both options may be null: the defaults.
 * keep_last_step and weights_ready of adamant_optimizer_options must not be set; speculate, journal_budget_bytes and
 * device_records are ignored. The executor may be freed afterwards. invalid argument: invalid options. */
ADAMANT_C_API adamant_status adamant_zenflow_create(const adamant_executor* executor,
                                                    const adamant_zenflow_options* zenflow,
                                                    const adamant_optimizer_options* options, adamant_zenflow** made);
/** Frees a ZenFlow optimizer. May be null. Finishes background work; weights that are not published yet are not
 * written.
 */
ADAMANT_C_API void adamant_zenflow_free(adamant_zenflow* zenflow);

/** See adamant_add_group() and adamant_set_hyperparameters(). */
ADAMANT_C_API adamant_status adamant_zenflow_add_group(adamant_zenflow* zenflow, const char* name,
                                                       const adamant_hyperparameters* hyper, int32_t maximize,
                                                       size_t* group);
ADAMANT_C_API adamant_status adamant_zenflow_set_hyperparameters(adamant_zenflow* zenflow, size_t group,
                                                                 const adamant_hyperparameters* hyper);
/** Adds a param to a group. Writes its number to *number, which may be null. columns: number of columns of a matrix.
 * Its param, moments and weight_out are column-major, its grad is row-major. weights: the row-major weights of a
 * matrix, of the type of weight_out, or of param without weight_out; their values must be those of the masters. columns
 * 0: a vector, which is an ordinary shard and is updated every step; weights is null. The shard has no accumulator. Its
 * shape and begin are row-major: `shape` ends with columns, and begin is a multiple of columns. invalid argument:
 * errors of adamant_add_shard(); a matrix whose shard does not have whole rows, or whose 8-bit moments do not have
 * whole groups of 64 rows; and after a step. */
ADAMANT_C_API adamant_status adamant_zenflow_add_param(adamant_zenflow* zenflow, size_t group, const char* name,
                                                       const adamant_shard* shard, size_t columns, void* weights,
                                                       size_t* number);
/** Returns the bytes that adamant_zenflow_prepare() allocates for sums of gradients. */
ADAMANT_C_API adamant_status adamant_zenflow_memory_bytes(const adamant_zenflow* zenflow, size_t* bytes);
/** Allocates memory for sums of gradients. Without this call, the first step allocates it. invalid argument:
 * overlapping arrays if one is written (gradients are, on a device), and during a step. unavailable: too little memory.
 */
ADAMANT_C_API adamant_status adamant_zenflow_prepare(adamant_zenflow* zenflow);

/** Report of deferred updates, in addition to adamant_report. */
typedef struct adamant_zenflow_report {
    size_t struct_bytes;  /**< size of this struct; set by the init function */
    int32_t warm_up;      /**< a plain step of all elements */
    int32_t selected;     /**< the step selected columns */
    size_t columns_moved; /**< newly selected columns */
    size_t deferred;      /**< elements whose gradients were accumulated */
    int32_t window_ended; /**< a window ended: deferred_stepped elements are stepped with the accumulated gradients, now
                             or in the background */
    int32_t deferred_skipped; /**< the deferred gradients were not finite and were dropped */
    size_t deferred_stepped;  /**< elements whose deferred gradients are applied when the window ends */
    double waited_seconds;    /**< time of waiting for the deferred update of the previous window */
    double publish_seconds;   /**< time of publishing its weights */
    double sums_seconds;      /**< mean busy time of the executor's threads in sums of the previous step */
    double deferred_seconds;  /**< mean busy time of these threads in that update, if a window ended */
} adamant_zenflow_report;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_report_init(adamant_zenflow_report* report, size_t struct_bytes);

/** Sets the address of the param's gradient from the current or next step on, like adamant_set_gradient(), but not
 * while another function runs. invalid argument: as there, and with a device any array but the shard's grad. */
ADAMANT_C_API adamant_status adamant_zenflow_set_gradient(adamant_zenflow* zenflow, size_t param, const void* grad);
/** Takes a step with gradients at new addresses: grads[i] is param i's row-major gradient. Null: skips the param; its
 * sum is later divided by the number of steps that had its gradient. All processes must skip the same params. values
 * and both reports may be null; `elements` of report counts immediately stepped elements. With a device, gradients are
 * on the device, and grads[i] is null or the shard's grad, to which the gradient is copied.
 *
 * invalid argument: invalid values, a count that is not the number of params, other arrays with a device, and during a
 * step of adamant_zenflow_begin_step(). reduce failed: reduce returned an error; nothing has changed. unavailable: too
 * little device memory for a selection; nothing has changed. device failed: see adamant_zenflow_place(). After any
 * error, gradients may be set. */
ADAMANT_C_API adamant_status adamant_zenflow_step_gradients(adamant_zenflow* zenflow, const void* const* grads,
                                                            size_t count, const adamant_step_values* values,
                                                            adamant_report* report, adamant_zenflow_report* more);
/** Take a step whose gradients arrive one by one: open the step, submit or skip each param, and finish the step. One
 * thread at a time. values and both reports may be null. A submitted gradient must not change until the step is over.
 *
 * invalid argument: invalid values; no open step, or an open one; no such param; a param submitted or skipped twice,
 * or, in adamant_zenflow_finish(), never. adamant_zenflow_finish() also returns reduce failed, and unavailable if a
 * selection has too little device memory: the step stays open, and adamant_zenflow_abandon() abandons it. device
 * failed: see adamant_zenflow_place(); the step is over. */
ADAMANT_C_API adamant_status adamant_zenflow_begin_step(adamant_zenflow* zenflow, const adamant_step_values* values);
ADAMANT_C_API adamant_status adamant_zenflow_submit(adamant_zenflow* zenflow, size_t param);
ADAMANT_C_API adamant_status adamant_zenflow_skip(adamant_zenflow* zenflow, size_t param);
ADAMANT_C_API adamant_status adamant_zenflow_finish(adamant_zenflow* zenflow, adamant_report* report,
                                                    adamant_zenflow_report* more);
/** Abandons the open step: nothing has changed. invalid argument: no step is open. device failed: the device failed. */
ADAMANT_C_API adamant_status adamant_zenflow_abandon(adamant_zenflow* zenflow);
/** Finishes background work and publishes its weights now, for example at the end of training. Changes the bits of
 * later steps, compared to a run without this call. invalid argument: during a step. device failed: the weights are not
 * published yet; the next call publishes them first. */
ADAMANT_C_API adamant_status adamant_zenflow_flush(adamant_zenflow* zenflow);
/** Returns the loss scale for the next backward pass. */
ADAMANT_C_API adamant_status adamant_zenflow_loss_scale(const adamant_zenflow* zenflow, double* scale);

/* ---- A device: between steps ------------------------------------------------------------------------------------ */

/** Sets the caller's row-major arrays of a param's gradient and weights in device memory, aligned to 16 bytes. They are
 * used until adamant_zenflow_place() returns everything to the CPU. Call it for every param with elements before
 * adamant_zenflow_place(). weight_out has the type of `weights`; for a vector the type of its weight_out, or of its
 * param without weight_out. invalid argument: params are on a device already, an address that is missing or not
 * aligned, no such param, and during a step. */
ADAMANT_C_API adamant_status adamant_zenflow_set_device_arrays(adamant_zenflow* zenflow, size_t param, uint64_t grad,
                                                               uint64_t weight_out);
/** Steps selected columns and vectors on a device from the next step on, to the same bits, or, if device is null,
 * returns everything to the CPU. Until the next selection their masters and moments are only in device memory.
 * adamant_zenflow_submit() computes the norm on the device and copies the gradient to the shard's grad, which should be
 * in pinned memory. The gradient is accumulated during forward and backward, so the optimizer uses grad until the
 * param's next adamant_zenflow_submit(). The results of deferred updates are copied to the device during the next
 * window, to a second array of all weights of matrices. `weights`, and the vectors' arrays in host memory, are written
 * when everything returns to the CPU and when the state is read. The device's handle may be freed. If params and
 * moments are inconsistent, a null device is only detached, and other devices are refused until a state is loaded.
 *
 * A step that ends with ADAMANT_DEVICE_FAILED has been rolled back by records on the device, and can be repeated;
 * weights of columns that were being selected may be new ones already. If only publishing failed, the step has been
 * applied, adamant_zenflow_get_position() counts it, and weights are published before any other work. If the device
 * does not recover within device_timeout_s, the error says that a state must be loaded.
 *
 * invalid argument: a param without device arrays, a device that has another optimizer's params or shards, another
 * device while device arrays are set, tracked weights whose device array is their array in host memory, overlapping
 * arrays, and during a step. unavailable, device failed: the device has too little memory, or has failed; nothing has
 * moved. */
ADAMANT_C_API adamant_status adamant_zenflow_place(adamant_zenflow* zenflow, const adamant_device* device);

/* ---- State ------------------------------------------------------------------------------------------------------ */

/** Position of a run in its schedule. */
typedef struct adamant_zenflow_position {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    uint64_t steps;           /**< number of applied steps */
    uint64_t since_selection; /**< steps since the last selection */
    uint64_t in_window;       /**< steps in the current window */
    int32_t has_selection;    /**< whether columns have been selected */
    int32_t has_loss_scaler;  /**< whether the next three fields are set */
    double loss_scale;        /**< the loss scale; 0: no dynamic loss scaling */
    uint32_t good_steps;      /**< steps since the scale last grew or a gradient last overflowed */
    uint32_t hysteresis_left; /**< overflows until the scale shrinks */
    double done_squares;      /**< squares of applied gradients, for update_interval 0 */
    double deferred_norm;     /**< upper bound of the norm of deferred gradients */
} adamant_zenflow_position;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_position_init(adamant_zenflow_position* position, size_t struct_bytes);

/** The state of a param, or of a process's rows of it. Arrays are views. */
typedef struct adamant_zenflow_param {
    size_t struct_bytes;            /**< size of this struct; set by the init function */
    const char* name;               /**< name of the param */
    size_t columns;                 /**< 0: a vector */
    size_t all_rows;                /**< rows of the whole matrix, or elements of a vector */
    size_t first_row;               /**< index of this rank's first row */
    size_t rows;                    /**< this rank's rows, or elements of a vector */
    const void* param;              /**< params or split residuals, of type param_dtype */
    const void* exp_avg;            /**< first moments, of type exp_avg_dtype */
    const void* exp_avg_sq;         /**< second moments, of type exp_avg_sq_dtype */
    const void* weight_out;         /**< weights of split masters, else null */
    const void* weights;            /**< row-major; null: rounded from the masters when loaded */
    const uint64_t* counts;         /**< number of updates of each column; one for a vector */
    const uint8_t* selected;        /**< 0 or 1 for each column */
    const uint8_t* publishing;      /**< whether weights are published at the end of the window, for each column */
    const float* sums;              /**< row-major; null if no gradient is deferred in this window */
    uint64_t summed;                /**< number of steps in sums */
    adamant_dtype param_dtype;      /**< an adamant_dtype */
    adamant_dtype exp_avg_dtype;    /**< an adamant_dtype */
    adamant_dtype exp_avg_sq_dtype; /**< an adamant_dtype */
    adamant_dtype weight_out_dtype; /**< an adamant_dtype */
} adamant_zenflow_param;
/** Sets struct_bytes, and all other fields to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_param_init(adamant_zenflow_param* param, size_t struct_bytes);

/** Finishes background work, which changes no bit, and returns the position of the run. invalid argument: during a
 * step. device failed: a copy from the device failed. */
ADAMANT_C_API adamant_status adamant_zenflow_get_position(adamant_zenflow* zenflow, adamant_zenflow_position* position);
/** Finishes background work and returns the state of param number `number`. Its arrays are valid until the next call of
 * another function. invalid argument: there is no such param, and during a step. device failed: a copy from the device
 * failed. */
ADAMANT_C_API adamant_status adamant_zenflow_get_param(adamant_zenflow* zenflow, size_t number,
                                                       adamant_zenflow_param* param);
/** Loads a state: params are those of all processes of the saved run, in any order and partitioned by rows in any way;
 * they are matched by name. Their arrays may be the optimizer's own, each for its own param and rows. Hyperparameters
 * do not change. Columns stay selected until the next selection. invalid argument: a missing part, another type, parts
 * of one param that differ in counts, selected columns or `summed`, a loss scale outside [2^-125, 2^125], and during a
 * step; nothing has changed. device failed: the device failed; a state must be loaded before the next step. */
ADAMANT_C_API adamant_status adamant_zenflow_load(adamant_zenflow* zenflow, const adamant_zenflow_position* position,
                                                  const adamant_zenflow_param* params, size_t count);

/** Writes the state and the groups to a safetensors file, like adamant_save_safetensors(). The file has only the rows
 * of this optimizer. invalid argument: an empty path, text that is not UTF-8, and during a step. unavailable: the file
 * cannot be written. device failed: a copy from the device failed. */
ADAMANT_C_API adamant_status adamant_zenflow_save_safetensors(adamant_zenflow* zenflow, const char* path);
/** Loads the state from `count` files: those of all processes of the saved run, in any order and partitioned by rows in
 * any way. Hyperparameters are those of the files. All files are checked before anything changes. invalid argument: a
 * missing or duplicate part, another type, a file of an optimizer without deferred gradients, and during a step.
 * corrupted: a file is damaged. unavailable: a file cannot be read. If a file is truncated or the device fails (device
 * failed) during the call, a state must be loaded before the next step. */
ADAMANT_C_API adamant_status adamant_zenflow_load_safetensors(adamant_zenflow* zenflow, const char* const* paths,
                                                              size_t count);

#ifdef __cplusplus
}
#endif

#endif
