/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of adamant, for C and every language that can call C. */
#ifndef ADAMANT_H
#define ADAMANT_H

#include <stddef.h>
#include <stdint.h>

/*
 * Errors. A function that can fail returns a status; ADAMANT_OK is 0. After any other status adamant_last_error() says,
 * to the thread that made the call, what was asked, what was found and what to do. Unless its comment says otherwise, a
 * call that fails has changed nothing and has written none of its results. No exception leaves the library. A null
 * pointer is an error, except where the comment says "may be null"; a pointer that is not null is believed.
 * A call that runs out of memory says so and has changed nothing. The exceptions are in other libraries, which then end
 * the process: nlohmann-json, which reads and writes checkpoints, tuning results and configurations, if memory runs out
 * while it frees its own; hwloc, if it does while the machine is read, which is once in a process, in the first call
 * that needs cores or makes threads (8 MiB must be free before), again where another machine is described, and while a
 * team's threads are bound; and the OpenMP runtime, while they are made (for both, 1 MiB and 32 KiB for each thread
 * must be free before).
 *
 * Threads. Different optimizers may be used by different threads at the same time, even on one executor. Of one
 * optimizer, functions whose comment says "from any thread" may be called by several threads concurrently, and all
 * others by one thread at a time. A thread must not be cancelled (pthread_cancel) during a call. In a process that was
 * forked from that of an optimizer, executor, team or device, calls that need their threads return ADAMANT_UNAVAILABLE.
 * Handles may be freed there: that waits for nothing, and leaks what threads were at work on.
 *
 * Ownership. Arrays of params, gradients, moments and weights are the caller's, and must outlive the optimizer that was
 * told of them. Everything else that is passed in (names, structs and what they point to) is copied, and may be freed
 * after the call. Texts that are returned belong to the library; each comment says how long they live. What an
 * adamant_..._create() has made is given back to its adamant_..._free(), which takes a null pointer, too. Handles count
 * their users: what another object was made with may be freed first.
 *
 * Structs. Each begins with struct_bytes, its size as the caller's compiler knows it, so that later versions of the
 * library may append fields. adamant_..._init(&it, sizeof it) sets struct_bytes and all defaults; a struct of zeros
 * with struct_bytes set is not the same. Fields that this version of the library does not know must be zero. Fields
 * that the caller's version does not know have their defaults.
 *
 * Numbers. Sizes and indices are of type size_t; they count elements unless the name says bytes, and indices begin at
 * 0. True and false are int32_t: 0 is false, anything else is true. Only what belongs to the formula changes the bits
 * of a result: hyperparameters, limits, the loss scale and the order of shards. No other choice does.
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

/** The version of this interface. A program that was compiled against one version works with every library that has the
 * same version. Within a version, functions and statuses are only added, and fields of structs are only appended. */
#define ADAMANT_C_VERSION 1
/** ADAMANT_C_VERSION of the library that was loaded, to be compared with that of the header. */
ADAMANT_C_API uint32_t adamant_c_version(void);
/** The version of the project, "0.2.0". Lives for ever. */
ADAMANT_C_API const char* adamant_version(void);

typedef int32_t adamant_status;
enum {
    ADAMANT_OK = 0,
    ADAMANT_INVALID_ARGUMENT = 1, /**< the request can never be right */
    ADAMANT_UNAVAILABLE = 2,      /**< it is well formed, but this machine, file system or build cannot serve it */
    ADAMANT_OUT_OF_MEMORY = 3,
    ADAMANT_CORRUPTED = 4,     /**< a file, or a state in memory, that is damaged */
    ADAMANT_REDUCE_FAILED = 5, /**< adamant_optimizer_options.reduce said so */
    ADAMANT_INTERNAL = 6,      /**< a defect of the library */
    ADAMANT_DEVICE_FAILED = 7  /**< a device has failed at something, or has stopped answering */
};
/** The text of this thread's last call that failed, or of a save that left something out, in at most 4095 bytes of
 * UTF-8;
 * "" before the first one, and after a save that left nothing out. Bytes of a
 * path or name that are not UTF-8 are written in hexadecimal (`\\xff`). Lives until the next call of this thread that
 * fails, or the end of the thread. Never null. */
ADAMANT_C_API const char* adamant_last_error(void);
/** "ok", "invalid argument" and so on; "unknown status" for numbers that are none. Lives for ever. */
ADAMANT_C_API const char* adamant_status_name(adamant_status status);

/** A size that the library chooses, where a comment allows it. */
#define ADAMANT_AUTOMATIC_BYTES SIZE_MAX

/* Teams: threads that are bound to hardware threads. Executors: the instruction set and the threads that do the work.
 */

typedef int32_t adamant_binding;
enum {
    ADAMANT_BIND_DEFAULT = 0,     /**< required; none in a library that was built without hwloc */
    ADAMANT_BIND_REQUIRED = 1,    /**< a thread that cannot be bound is an error */
    ADAMANT_BIND_IF_POSSIBLE = 2, /**< such a thread stays where the system puts it */
    ADAMANT_BIND_NONE = 3
};

/* ---- Teams: threads for several executors -------------------------------------------------------------------------
 */

typedef struct adamant_team adamant_team;

/** Options of adamant_team_create(). */
typedef struct adamant_team_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* pus;  /**< one thread on each, "0-3,8" or "0xf"; may be null or "" with ADAMANT_BIND_NONE and threads */
    uint64_t spin_ns; /**< 50000; how long a thread without work looks for some before it sleeps */
    uint32_t threads; /**< 0: one on each PU. More share the PUs, fewer are on the first ones */
    adamant_binding bind; /**< an adamant_binding */
} adamant_team_options;
ADAMANT_C_API adamant_status adamant_team_options_init(adamant_team_options* options, size_t struct_bytes);

/** Starts the threads of a team for *made. They live until the team and all executors on it are freed. Each is bound,
 * and its binding is read back; the caller's threads and OpenMP settings are left alone. Executors on one team take
 * turns. invalid argument: a list of PUs that is none, or no PUs where some are needed. unavailable: threads that
 * cannot be started or bound. */
ADAMANT_C_API adamant_status adamant_team_create(const adamant_team_options* options, adamant_team** made);
/** May be null. */
ADAMANT_C_API void adamant_team_free(adamant_team* team);
/** The number of threads, and the PUs that they are bound to ("" where they are not). Each result may be null. The text
 * lives as long as the handle. From any thread. */
ADAMANT_C_API adamant_status adamant_team_describe(const adamant_team* team, uint32_t* threads, const char** pus);
/** Thread number `index` of the team: its number in the system (as ps -L shows it), the PU that it was to be bound to
 * and those that it is bound to, as lists ("" for none), and why it is not bound, or "". Each result may be null. The
 * texts live as long as the handle. From any thread. invalid argument: the team has no such thread. */
ADAMANT_C_API adamant_status adamant_team_thread(const adamant_team* team, uint32_t index, int64_t* system_id,
                                                 const char** asked, const char** bound_to, const char** problem);

/* ---- Executors --------------------------------------------------------------------------------------------------- */

typedef struct adamant_executor adamant_executor;

/** Options of adamant_executor_create(). */
typedef struct adamant_executor_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* isa;  /**< "scalar", "generic", "avx2", "avx512" or "avx512_bf16"; may be null or "automatic": what the
                       * environment variable ADAMANT_ISA says, else the best that this CPU has */
    const char* pus;  /**< where the threads go, "0-3,8" or "0xf"; may be null or "": one PU of each allowed core */
    uint32_t threads; /**< 0: one on each PU. 1: the caller, unless pus is given. An optimizer
                       * of one thread gets one that is not bound for steps that go on without the caller */
    adamant_binding bind;   /**< an adamant_binding */
    size_t min_slice_elems; /**< adamant_accumulate() and adamant_load_...() use fewer threads where each would have
                               less */
    size_t max_chunk_elems; /**< no thread takes more in one piece; 0: the default, 65536. Changes no bit, nor does the
                               next */
    size_t prefetch_bytes;  /**< how far ahead a step asks for memory; ADAMANT_AUTOMATIC_BYTES: 256 on AMD, else 2048 */
    const adamant_team* team; /**< may be null: threads of its own. Else threads, pus and bind are left at their
                               * defaults, or say what the team has */
} adamant_executor_options;
ADAMANT_C_API adamant_status adamant_executor_options_init(adamant_executor_options* options, size_t struct_bytes);

/** Makes an executor, with its threads, for *made. options may be null: the defaults. invalid argument: no such
 * instruction set, a list of PUs that is none, or options that the team contradicts. unavailable: an instruction set
 * that this CPU lacks, or threads that cannot be started or bound. */
ADAMANT_C_API adamant_status adamant_executor_create(const adamant_executor_options* options, adamant_executor** made);
/** May be null. The threads end with the last user of the executor. */
ADAMANT_C_API void adamant_executor_free(adamant_executor* executor);
/** The instruction set in use, the number of threads, and the PUs that they are bound to ("" where they are not). Each
 * result may be null. The texts live as long as the handle. From any thread. */
ADAMANT_C_API adamant_status adamant_executor_describe(const adamant_executor* executor, const char** isa,
                                                       uint32_t* threads, const char** pus);

/* Shards, hyperparameters, and a step without an optimizer. */

typedef int32_t adamant_dtype;
enum {
    ADAMANT_NONE = 0, /**< there is no such array */
    ADAMANT_FLOAT32 = 1,
    ADAMANT_BFLOAT16 = 2,
    ADAMANT_FLOAT16 = 3,
    ADAMANT_SPLIT_FLOAT32 = 4, /**< the residuals of split float32 masters; see adamant_split_masters() */
    ADAMANT_QUANTIZED8 = 5     /**< moments in groups of 64: 64 codes of 8 bits and a float32 scale, 68 bytes in all */
};

/** Consecutive elements of one parameter. Every array has `elements` elements of its type, at any address; no array
 * that a step writes may overlap another. A pointer may be null where there are no elements, and must be null where its
 * type is ADAMANT_NONE. param:       read and written; any type except none and quantized8. With ADAMANT_SPLIT_FLOAT32
 * it is the residuals of split masters, and weight_out, of bfloat16, which is read then, too, their upper ones. grad:
 * read from adamant_submit() or adamant_step() to the end of the step; float32, bfloat16 or float16. exp_avg,
 * exp_avg_sq: the moments, read and written, zero before the first step; float32 or bfloat16, or both
 *              ADAMANT_QUANTIZED8: arrays of (elements + 63) / 64 groups, all bytes zero before the first step.
 * weight_out:  the new weights rounded, written; bfloat16 or float16 with a float32 param, else none. Before the first
 *              step it must hold the params, rounded: a step that is rolled back leaves that there.
 * accumulator: where adamant_accumulate() adds gradients up; float32, bfloat16 or none. */
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
    /** Where the shard lies in its parameter. shape: `dims` sizes, at most 64, of the whole parameter; with dims 0 and
     * shape null the shard is all of it. begin: the shard's first element in it, in row-major order. */
    const size_t* shape;
    size_t dims;              /**< number of dimensions in `shape` */
    size_t begin;             /**< index of the shard's first element in the parameter */
    uint64_t rounding_stream; /**< for adamant_step_shard(): a number that no other parameter has; else not looked at */
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
    /** Up or down stochastically, so that the mean of many roundings is the exact value. The chance is a pure function
     * of seed, step, parameter and element. */
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
    /** How second moments of bfloat16, and codes of both moments of quantized8, are rounded; ADAMANT_ROUND_STOCHASTIC,
     * because under rounding to nearest they do not come down where 1 - beta2 is less than 0.002. */
    adamant_rounding exp_avg_sq_rounding;
    adamant_rounding param_rounding; /**< of params of bfloat16; ADAMANT_ROUND_NEAREST */
    uint64_t rounding_seed;          /**< 0 */
} adamant_hyperparameters;
ADAMANT_C_API adamant_status adamant_hyperparameters_init(adamant_hyperparameters* hyper, size_t struct_bytes);

/** One step of Adam or AdamW without an optimizer, in place, on every element of the shard: for an engine that keeps
 * its own count. The executor's threads do it, and nothing is remembered between calls. The gradient is first
 * multiplied by clip_coefficient / loss_scale; pass 1 for each that is not used. step_number counts from 1. The number
 * of gradients that were infinite or NaN, which went into the step as they were, is written to *nonfinite, which may be
 * null. The shard's accumulator must be ADAMANT_NONE. Its begin and rounding_stream say which elements it has, for
 * stochastic rounding; its shape is not looked at. Has the same bits as adamant_step() with the same values, where
 * nothing is rounded stochastically: an optimizer goes by the parameter's name. From any thread, for shards that do not
 * overlap. invalid argument, before anything is written: types, pointers, hyperparameters or factors that cannot be,
 * and step number 0. */
ADAMANT_C_API adamant_status adamant_step_shard(const adamant_executor* executor, const adamant_shard* shard,
                                                const adamant_hyperparameters* hyper, uint64_t step_number,
                                                double loss_scale, double clip_coefficient, uint64_t* nonfinite);
/** Float32 masters into halves: weight is the master rounded to bfloat16, to nearest, ties away from zero, and low the
 * rest, 16 bits; together they are the master's bits (a NaN becomes 0x7fc00000). `low` may begin where `master` does,
 * in both directions; otherwise no arrays may overlap. From any thread. invalid argument: a null pointer with elements.
 */
ADAMANT_C_API adamant_status adamant_split_masters(const float* master, size_t elements, void* weight, void* low);
ADAMANT_C_API adamant_status adamant_join_masters(const void* weight, const void* low, size_t elements, float* master);
/** The sum of squares of a gradient's finite elements, and the number of its other elements, in one pass. The sums of
 * blocks of 4096 elements are added exactly and rounded once, so it has the same bits for every instruction set and
 * number of threads. Both results may be null. From any thread. invalid argument: a null pointer with elements, or no
 * type. */
ADAMANT_C_API adamant_status adamant_sum_of_squares(const adamant_executor* executor, const void* grad,
                                                    adamant_dtype dtype, size_t elements, double* sum,
                                                    uint64_t* nonfinite);
/** The norm of several gradients, the same for any order and however they are cut at multiples of 4096 elements: adds
 * one's sum and number to a total, ADAMANT_SQUARES_WORDS words that are zero at first. 20 words are an integer in units
 * of 2^-320, 32 bits each, the lowest first; the last is the number of elements that are not finite. Totals may be
 * added word by word. Errors as above, with nothing added; and invalid argument for words that no total has. */
#define ADAMANT_SQUARES_WORDS 21
ADAMANT_C_API adamant_status adamant_add_squares(const adamant_executor* executor, const void* grad,
                                                 adamant_dtype dtype, size_t elements,
                                                 int64_t words[ADAMANT_SQUARES_WORDS]);
/** A total's sum, rounded once, and number; the norm is the root of the sum. Both results may be null. invalid
 * argument: words that no total has. */
ADAMANT_C_API adamant_status adamant_round_squares(const int64_t words[ADAMANT_SQUARES_WORDS], double* sum,
                                                   uint64_t* nonfinite);

/* Memory for optimizer state: in huge pages, on chosen NUMA nodes, first touched by the threads that will use it.
 */

typedef int32_t adamant_pages;
enum {
    ADAMANT_PAGES_TRANSPARENT = 0, /**< huge where the kernel has huge ones at hand (MADV_HUGEPAGE) */
    ADAMANT_PAGES_NORMAL = 1,      /**< never huge */
    ADAMANT_PAGES_HUGETLB_2M = 2,  /**< from the pool that the administrator fills; reserved immediately */
    ADAMANT_PAGES_HUGETLB_1G = 3
};

typedef int32_t adamant_memory_binding;
enum {
    ADAMANT_MEMORY_UNBOUND = 0,   /**< where the process's policy puts it */
    ADAMANT_MEMORY_PREFERRED = 1, /**< on other nodes where the chosen ones are full */
    ADAMANT_MEMORY_BOUND = 2      /**< on the chosen nodes only */
};

/** Options of adamant_buffer_create(). */
typedef struct adamant_buffer_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* nodes;   /**< NUMA nodes, "0-1"; may be null or "": the process's policy. See adamant_select_nodes() */
    adamant_pages pages; /**< ADAMANT_PAGES_TRANSPARENT */
    int32_t pages_required;  /**< 0: hugetlb falls back to transparent pages, and these to normal ones */
    int32_t nodes_required;  /**< 0: a bound buffer falls back to preferred nodes, and these to no binding */
    int32_t check_available; /**< 1: refuse what does not fit in the memory that is free */
} adamant_buffer_options;
ADAMANT_C_API adamant_status adamant_buffer_options_init(adamant_buffer_options* options, size_t struct_bytes);

typedef struct adamant_buffer adamant_buffer;

/** Makes a buffer of `elements` elements of elem_bytes bytes each, all zero, for *made. Each part is first touched by
 * the thread of the executor that owns it in a step over that many elements, so the kernel puts it near that
 * thread. The executor may be null: then nothing is touched. options may be null: the defaults. It begins at a multiple
 * of a page. For few and large arrays. invalid argument: sizes that no machine has. unavailable: not enough memory, or
 * something required that cannot be had; nothing has been touched then. */
ADAMANT_C_API adamant_status adamant_buffer_create(const adamant_executor* executor, size_t elements, size_t elem_bytes,
                                                   const adamant_buffer_options* options, adamant_buffer** made);
/** May be null. The memory is gone then: free optimizers whose shards are in it first. */
ADAMANT_C_API void adamant_buffer_free(adamant_buffer* buffer);
/** Where it begins (null for no elements), and its bytes. Each result may be null. */
ADAMANT_C_API adamant_status adamant_buffer_data(const adamant_buffer* buffer, void** data, size_t* bytes);

/** What was got. */
typedef struct adamant_buffer_report {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    size_t bytes;        /**< that were asked for */
    size_t mapped_bytes; /**< in whole pages */
    const char* nodes;   /**< that it is bound to, as a list; "" for none. Lives as long as the buffer, as the next */
    const char* notes;   /**< what was asked for and not got, and why; "" where all was got */
    adamant_pages pages; /**< how many of them are huge, adamant_buffer_measure() says */
    adamant_memory_binding binding; /**< where the memory was bound, an adamant_memory_binding */
} adamant_buffer_report;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_buffer_report_init(adamant_buffer_report* report, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_buffer_describe(const adamant_buffer* buffer, adamant_buffer_report* report);
/** What the kernel has given to the buffer by now: how many bytes are in memory, how many of these in huge pages, and
 * how many on each of the NUMA nodes from 0 to node_count - 1 (a sample for large buffers). Each result may be null,
 * node_bytes with node_count 0. May take a second. */
ADAMANT_C_API adamant_status adamant_buffer_measure(const adamant_buffer* buffer, size_t* resident_bytes,
                                                    size_t* huge_bytes, size_t* node_bytes, size_t node_count);

/* Which cores an optimizer gets and which are left to the host framework. */

/** Options of adamant_select_cores(). */
typedef struct adamant_core_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    /** The size of the optimizer's part of each rank's cores. At most one of these four is set; 0 means that it is not.
     * With none of them the optimizer's share is 0.8. */
    double cpuadam_cores_perc;     /**< the optimizer's share, above 0 and at most 1 */
    double pt_reserved_cores_perc; /**< the host framework's share, above 0 and below 1 */
    uint32_t cpuadam_cores;        /**< the number of the optimizer's cores */
    uint32_t pt_reserved_cores;    /**< the number of the host framework's cores */
    /** How many ranks there are on this host, and which of them this one is, from 0. With ranks 0 both are taken from
     * the launcher's environment. */
    uint32_t ranks;
    uint32_t rank;              /**< the rank that is asked for */
    const char* pus;            /**< only these, as a list "0-3,8" or a mask "0xf"; may be null: all that are allowed */
    const char* machine;        /**< may be null: this one. Else an XML file of hwloc's or its synthetic description */
    int32_t every_pu_of_cores;  /**< all hardware threads of each core; else the first one of each */
    int32_t fast_cores_to_host; /**< on machines with fast and slow cores; else the optimizer gets the fast ones */
    /** The PUs that the ranks may use together, as a list; may be null: those of this process, or all of the file. */
    const char* allowed;
    /** The affinity mask that each rank was started with, as a list of its PUs: none or one where all have the same,
     * else one for each rank, which then keeps its own. May be null with mask_count 0. Ranks get each other's by
     * exchanging adamant_allowed_pus(), and set the union of all as `allowed`. */
    const char* const* masks;
    size_t mask_count; /**< number of masks */
    /** The GPU of each rank: its PCI address, its number on this machine, or "" for none. May be null with gpu_count 0.
     */
    const char* const* gpus;
    size_t gpu_count; /**< number of GPUs */
    /** CPUs' worth of time that the ranks may use together; 0: as adamant_cpu_quota() says, or no quota with `machine`.
     */
    double cpu_quota;
} adamant_core_options;
ADAMANT_C_API adamant_status adamant_core_options_init(adamant_core_options* options, size_t struct_bytes);

/** Chooses the cores of one rank. Writes the hardware threads (PUs) of the optimizer to adam_pus, and those left to the
 * host framework to host_pus, each as a list that adamant_executor_options.pus takes. host_pus may be null with
 * host_bytes 0. Depends only on its arguments, the machine, the CPU quota and the environment, which must not change
 * meanwhile; thread-safe. invalid argument: sizes that cannot be, and a text that does not fit, with the bytes that it
 * needs. unavailable: a request for more than the machine has. */
ADAMANT_C_API adamant_status adamant_select_cores(const adamant_core_options* options, char* adam_pus,
                                                  size_t adam_bytes, char* host_pus, size_t host_bytes);
/** Writes the PUs that this process may use, by its affinity and cgroup, as a list to pus. Errors as above. */
ADAMANT_C_API adamant_status adamant_allowed_pus(char* pus, size_t pus_bytes);
/** The CPU time that the quotas of this process's cgroups leave it and all that share these, in CPUs: 2.5, say. 0: no
 * quota. source: the file that sets it, "" without one; may be null with source_bytes 0. Executors of default size and
 * adamant_select_cores() use no more threads than each rank's part of it keeps busy. Errors as above. */
ADAMANT_C_API adamant_status adamant_cpu_quota(double* cpus, char* source, size_t source_bytes);
/** The NUMA nodes that the optimizer's state of that rank belongs on, as a list that adamant_buffer_options.nodes takes
 * (empty where none may be used), and in words why the rank has these cores. why may be null with why_bytes 0. All else
 * as for adamant_select_cores(). */
ADAMANT_C_API adamant_status adamant_select_nodes(const adamant_core_options* options, char* nodes, size_t nodes_bytes,
                                                  char* why, size_t why_bytes);

/* Which shards, and parts of shards, the CPU steps and which a device. */

/* ---- From a ratio to a placement ----------------------------------------------------------------------------------
 */

typedef int32_t adamant_split_unit; /* what may be cut */
enum {
    ADAMANT_SPLIT_ELEMENT = 0,  /**< one shard, at a multiple of 4096 elements: the ratio is met to half of that */
    ADAMANT_SPLIT_SHARD = 1,    /**< none: the set of whole shards that comes nearest */
    ADAMANT_SPLIT_DEEPSPEED = 2 /**< none, and DeepSpeed's rule: the first int((1 - ratio) * n) of n go to the device */
};

typedef int32_t adamant_split_order; /* which shards go to the device first */
enum {
    ADAMANT_SPLIT_FRONT =
        0, /**< the first ones: backward brings their gradients last, forward needs their weights first */
    ADAMANT_SPLIT_BACK = 1 /**< the last ones */
};

/** Options of adamant_split(). */
typedef struct adamant_split_options {
    size_t struct_bytes;        /**< size of this struct; set by the init function */
    double ratio;               /**< 1; the share of the elements that the CPU steps */
    adamant_split_unit unit;    /**< ADAMANT_SPLIT_ELEMENT */
    adamant_split_order order;  /**< ADAMANT_SPLIT_FRONT */
    const size_t* device_order; /**< all shards by number, the first for the device first; null with a count of 0: as
                                 * order says. Not with ADAMANT_SPLIT_DEEPSPEED */
    size_t device_order_count;  /**< number of shards in device_order */
    size_t most_on_cpu;         /**< elements that its memory has room for; ADAMANT_NO_LIMIT */
    size_t most_on_device;      /**< the same */
} adamant_split_options;
#define ADAMANT_NO_LIMIT SIZE_MAX
ADAMANT_C_API adamant_status adamant_split_options_init(adamant_split_options* options, size_t struct_bytes);

typedef struct adamant_placement adamant_placement;

/** Makes the placement of `count` shards of these sizes in elements, in the order of adamant_shard_sizes(), for *made.
 * Depends only on its arguments. A limit that stands against the ratio is kept, and adamant_placement_describe() says
 * so. From any thread. invalid argument: options that cannot be, or more than 2^53 elements. unavailable: both memories
 * together are too small, or no cut of this kind fits them; ADAMANT_SPLIT_DEEPSPEED, whose rule does not bend, and a
 * limit that stands against it. */
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
/** Makes a placement of the caller's own for *made: each element of every shard in one piece, in the order of shards
 * and elements, shards without elements in none. Whether that is so is checked when it is used. invalid argument:
 * on_device is neither 0 nor 1. */
ADAMANT_C_API adamant_status adamant_placement_create(const adamant_piece* pieces, size_t count,
                                                      adamant_placement** made);
/** May be null. */
ADAMANT_C_API void adamant_placement_free(adamant_placement* placement);

/** What adamant_split() returns beside the pieces. */
typedef struct adamant_placement_summary {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    size_t pieces;       /**< number of pieces */
    size_t cpu_elems;    /**< elements that the CPU updates */
    size_t device_elems; /**< elements that the device updates */
    double ratio;        /**< the share of the elements that the CPU has; 1 where there are none */
    double ratio_asked;  /**< of adamant_split(); else ratio */
    int32_t limited;     /**< a memory limit stood against the ratio, and this is the nearest that it allows */
    int32_t nearest;     /**< no other placement of this kind within the limits comes nearer to the ratio */
} adamant_placement_summary;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_placement_summary_init(adamant_placement_summary* summary, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_placement_describe(const adamant_placement* placement,
                                                        adamant_placement_summary* summary);
/** Piece number `index`. invalid argument: there is none of that number. */
ADAMANT_C_API adamant_status adamant_placement_piece(const adamant_placement* placement, size_t index,
                                                     adamant_piece* piece);

/* ---- The best ratio ---------------------------------------------------------------------------------------------- */

/** What a step of training is made of, at the rates of the rank that it is for. */
typedef struct adamant_step_rates {
    size_t struct_bytes;       /**< size of this struct; set by the init function */
    double elems;              /**< of the optimizer, on both sides */
    double cpu_elems_per_s;    /**< INFINITY, as the next four rates: what does not limit the step */
    double device_elems_per_s; /**< elements that the device updates a second */
    double down_bytes_per_s;   /**< from the device to the host */
    double up_bytes_per_s;     /**< from the host to the device */
    double grad_bytes;         /**< 2; of an element, where they cross the link */
    double weight_bytes;       /**< 2 */
    double backward_s;         /**< 0 */
    double forward_s;          /**< 0 */
    double fixed_s;            /**< 0; of each step, whatever the ratio */
    int32_t arrays_on_device;  /**< 1: gradients are made and weights are wanted on the device; 0: in host memory */
    int32_t overlaps_backward; /**< 1: shards are submitted while backward makes gradients; 0: all comes after it */
    int32_t overlaps_forward;  /**< 0: forward begins after all else; 1: when its first weights are there */
} adamant_step_rates;
ADAMANT_C_API adamant_status adamant_step_rates_init(adamant_step_rates* rates, size_t struct_bytes);
/** How many seconds a step takes with this ratio, and how many of them the optimizer adds to backward and forward. Each
 * result may be null. Depends only on its arguments; from any thread. invalid argument: rates, times or a ratio that
 * cannot be. */
ADAMANT_C_API adamant_status adamant_forecast(const adamant_step_rates* rates, double ratio, double* step_s,
                                              double* update_s);
/** The ratio from `least` to `most` with the shortest step; of several the largest, which leaves the device the most
 * memory. And the seconds of that step, which may be null. All else as above. */
ADAMANT_C_API adamant_status adamant_best_ratio(const adamant_step_rates* rates, double least, double most,
                                                double* ratio, double* step_s);

/* Optimizers, their parameter groups and their shards. */

/* ---- Options ---------------------------------------------------------------------------------------------------- */

/** Dynamic loss scaling. The scale grows after growth_interval steps without an overflow, and backs off at one. */
typedef struct adamant_loss_scaling {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    double initial_scale;     /**< 65536 */
    double growth_factor;     /**< 2; at least 1 */
    double backoff_factor;    /**< 0.5; in (0, 1] */
    double min_scale;         /**< 1 */
    double max_scale;         /**< 2^32 */
    uint32_t growth_interval; /**< 2000; at least 1 */
    uint32_t hysteresis;      /**< 1; which overflow since the scale last grew is the first to back off; at least 1 */
} adamant_loss_scaling;
ADAMANT_C_API adamant_status adamant_loss_scaling_init(adamant_loss_scaling* scaling, size_t struct_bytes);

typedef int32_t adamant_nonfinite; /* what becomes of a step whose gradients hold infinities or NaNs */
enum {
    ADAMANT_NONFINITE_SKIP = 0, /**< nothing changes, as is usual with dynamic loss scaling */
    ADAMANT_NONFINITE_ZERO = 1, /**< those elements count as zeros */
    ADAMANT_NONFINITE_APPLY = 2 /**< they go into the step as they are */
};

typedef int32_t adamant_speculation; /* whether shards are stepped before the norm is known; changes no bit */
enum {
    ADAMANT_SPECULATE_AUTOMATIC =
        0,                        /**< until finish, unless most of the last eight steps had to be rolled back for it */
    ADAMANT_SPECULATE_ALWAYS = 1, /**< all of them */
    ADAMANT_SPECULATE_NEVER = 2
};

/** For gradients that are spread over processes. It is given the ADAMANT_SQUARES_WORDS words of this process's sum of
 * squares (see adamant_add_squares()), and replaces each by its sum over all processes, as 64-bit integers: what
 * MPI_Allreduce(MPI_IN_PLACE, words, count, MPI_INT64_T, MPI_SUM, comm) does. Integers have no order of addition, so
 * the norm is that of one process with all gradients, if these are cut at multiples of 4096 elements. It returns 0. Any
 * other value fails the step with ADAMANT_REDUCE_FAILED. Words that no sum has, or that are less than this process's
 * own, fail it with ADAMANT_INVALID_ARGUMENT. It is called once in every step: by adamant_finish() or adamant_step() in
 * their thread, and for adamant_step_async() in a thread of the executor. It must not call this optimizer, nor wait for
 * anyone who does. */
typedef int32_t (*adamant_reduce)(void* user, int64_t* words, size_t count);

/** For an engine that copies weights to where they are used while other shards are still stepped. Called whenever
 * elements [begin, end) of a shard have new weights: mostly once a step, for all of a shard that the CPU has; again
 * where a step that was taken too early is rolled back or done again, or a shard is stepped in parts. The last call
 * before adamant_finish(), adamant_step(), adamant_wait(), adamant_abandon() or adamant_rollback() returns has the
 * weights that stay. Both param and weight_out are written then, and only the next step changes them. In the executor's
 * threads or the caller's, for different shards concurrently. It must not call this optimizer, nor wait for anyone who
 * does, nor throw, which ends the program. */
typedef void (*adamant_weights_ready)(void* user, size_t shard, size_t begin, size_t end);

/** Options of an optimizer; see <adamant/optimizer_options.hpp>. */
typedef struct adamant_optimizer_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    double max_norm; /**< unscaled gradients are scaled down to this norm of all of them together; 0: they are not */
    double max_abs_grad; /**< every unscaled element is limited to this; 0: it is not. Not together with max_norm */
    adamant_nonfinite on_nonfinite;           /**< ADAMANT_NONFINITE_SKIP */
    adamant_speculation speculate;            /**< ADAMANT_SPECULATE_AUTOMATIC */
    const adamant_loss_scaling* loss_scaling; /**< may be null: not dynamic; every step says its scale, or it is 1 */
    size_t journal_budget_bytes;              /**< ADAMANT_AUTOMATIC_BYTES; a bound: see below */
    int32_t keep_last_step;                   /**< 0; set for adamant_rollback() */
    adamant_reduce reduce;                    /**< may be null */
    void* reduce_user;                        /**< passed to reduce */
    /** How many seconds a device may take for what a step gives it before it counts as one that has stopped answering.
     */
    double device_timeout_s; /**< 300 */
    /** Whether a device has room for records of all of its part: as much again as its params and moments. Without, the
     * device never begins before the norm is known, and if it fails in the update itself, the step cannot be rolled
     * back: the error says so, and a state must be loaded. */
    int32_t device_records;              /**< 1 */
    adamant_weights_ready weights_ready; /**< may be null */
    void* weights_ready_user;            /**< passed to weights_ready */
} adamant_optimizer_options;
/** journal_budget_bytes bounds the records with which a step can be rolled back; never more is allocated than one
 * step's records can take. They take, in bytes per element, with float32 params and moments: 2 in the first step, 2.1
 * to 2.3 in ordinary training and 14 at most (12 with the instruction sets scalar and, on x86, generic); with other
 * types as much as params and moments themselves (6, 8 or 10); and an eighth more, as memory is handed out in pages.
 * ADAMANT_AUTOMATIC_BYTES stands for 3 bytes per element with float32, for the size of params and moments with other
 * types, and with keep_last_step for the most that the records can take. A shard that finds no room for its records
 * waits for the norm. */
ADAMANT_C_API adamant_status adamant_optimizer_options_init(adamant_optimizer_options* options, size_t struct_bytes);

typedef struct adamant_optimizer adamant_optimizer;

/** Makes an optimizer without groups and shards for *made. options may be null: the defaults. The executor may be freed
 * afterwards. invalid argument: options that cannot be. */
ADAMANT_C_API adamant_status adamant_optimizer_create(const adamant_executor* executor,
                                                      const adamant_optimizer_options* options,
                                                      adamant_optimizer** made);
/** May be null. Waits for a step that is under way. A step that was begun and not finished is rolled back if
 * adamant_abandon() could do that; if not, the shards that were submitted stay stepped, and the others are as before.
 */
ADAMANT_C_API void adamant_optimizer_free(adamant_optimizer* optimizer);

/* ---- Parameter groups: before the first step, and between steps ---------------------------------------------------
 */

/** Adds a parameter group. Its name must be UTF-8, not empty and new; its number is written to *group, which may be
 * null. maximize: steps go up the gradient. The last step can then no longer be rolled back. invalid argument:
 * hyperparameters that cannot be, a name that is taken or not UTF-8, and during a step. */
ADAMANT_C_API adamant_status adamant_add_group(adamant_optimizer* optimizer, const char* name,
                                               const adamant_hyperparameters* hyper, int32_t maximize, size_t* group);
/** Removes a group; the groups behind it move down by one number. The last step can then no longer be rolled back.
 * invalid argument: no such group, a shard that belongs to it, shards on a device, and during a step. */
ADAMANT_C_API adamant_status adamant_remove_group(adamant_optimizer* optimizer, size_t group);
ADAMANT_C_API adamant_status adamant_group_count(const adamant_optimizer* optimizer, size_t* count);
/** The number of the group of that name. *found says whether there is one; if not, *group is not written. */
ADAMANT_C_API adamant_status adamant_find_group(const adamant_optimizer* optimizer, const char* name, size_t* group,
                                                int32_t* found);
/** The name of a group. The text lives until groups are added or removed. invalid argument: no such group. */
ADAMANT_C_API adamant_status adamant_group_name(const adamant_optimizer* optimizer, size_t group, const char** name);
/** Holds from the next step on. invalid argument: hyperparameters that cannot be, no such group, and during a step. */
ADAMANT_C_API adamant_status adamant_set_hyperparameters(adamant_optimizer* optimizer, size_t group,
                                                         const adamant_hyperparameters* hyper);
/** The hyperparameters that a group has now. hyper->struct_bytes must be set. */
ADAMANT_C_API adamant_status adamant_get_hyperparameters(const adamant_optimizer* optimizer, size_t group,
                                                         adamant_hyperparameters* hyper);

/* ---- Shards: before the first step, and between steps -------------------------------------------------------------
 */

/** Adds a shard to a group; its number is written to *number, which may be null. name: the parameter's, in UTF-8, by
 * which checkpoints go. The norm is accumulated in the order of shards. The last step can then no longer be rolled
 * back. invalid argument: types, pointers or a place that cannot be, a name that is empty or not UTF-8, elements of a
 * parameter that another shard has, arrays of the shard that overlap, and during a step. */
ADAMANT_C_API adamant_status adamant_add_shard(adamant_optimizer* optimizer, size_t group, const char* name,
                                               const adamant_shard* shard, size_t* number);
/** Removes a shard and leaves its arrays alone: they hold its state, and may be freed now. The shards behind it move up
 * by one number; what accumulators hold still counts. The last step can then no longer be rolled back. invalid
 * argument: no such shard, shards on a device (take them back with adamant_place() first), and during a step. */
ADAMANT_C_API adamant_status adamant_remove_shard(adamant_optimizer* optimizer, size_t shard);
ADAMANT_C_API adamant_status adamant_shard_count(const adamant_optimizer* optimizer, size_t* count);
/** The number of the shard of parameter `name` that begins at element `begin` of it. *found says whether there is one;
 * if not, *shard is not written. */
ADAMANT_C_API adamant_status adamant_find_shard(const adamant_optimizer* optimizer, const char* name, size_t begin,
                                                size_t* shard, int32_t* found);
/** The name of a shard's parameter. The text lives until shards are added or removed. invalid argument: no such shard.
 */
ADAMANT_C_API adamant_status adamant_shard_name(const adamant_optimizer* optimizer, size_t shard, const char** name);
/** From now on the shard's gradient is at `grad`, with as many elements of the same type as before: for buffers that
 * take turns. Between steps, and in an open step before the shard is submitted; from any thread. Allocates nothing once
 * memory is prepared. adamant_rollback() reads the gradient where it is set then, so set the one that the step was
 * taken with. invalid argument: no such shard, a null pointer with elements, memory that a step writes, a shard that
 * was submitted, and one with an array of gradients on a device. */
ADAMANT_C_API adamant_status adamant_set_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad);

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/** How many bytes adamant_prepare() will allocate: with what adamant_begin_step() needs beyond adamant_step(), or
 * without. */
ADAMANT_C_API adamant_status adamant_memory_bytes(const adamant_optimizer* optimizer, int32_t with_journal,
                                                  size_t* bytes);
/** Allocates what steps need; otherwise the first step does. invalid argument: arrays of different shards that overlap
 * where one of them is written, and during a step. unavailable: more memory than there is. */
ADAMANT_C_API adamant_status adamant_prepare(adamant_optimizer* optimizer, int32_t with_journal);

/* Devices that step a part of an optimizer's shards beside the CPU, with the same bits. */

/* ---- Devices ------------------------------------------------------------------------------------------------------
 */

/** One optimizer at a time, of either kind, has shards on a device; make another handle for another optimizer, of the
 * same GPU if need be. The functions below may be called from any thread, but not during a step of that optimizer where
 * they copy. */
typedef struct adamant_device adamant_device;

/** Makes an NVIDIA GPU of compute capability 7.0 or newer for *made, by CUDA's number for it, from 0, as
 * CUDA_VISIBLE_DEVICES leaves them. unavailable: there is none of that number, it is older, or the library was built
 * without nvcc. device failed: CUDA says so. */
ADAMANT_C_API adamant_status adamant_cuda_device_create(int32_t ordinal, adamant_device** made);
/** What is submitted from now on waits for this event of the caller's, a cudaEvent_t on any stream of this GPU: for
 * gradients that are still being made there. Call it before adamant_submit() or adamant_zenflow_submit(). invalid
 * argument: not such a device. */
ADAMANT_C_API adamant_status adamant_cuda_device_wait_event(adamant_device* device, void* event);

/** A device that is imitated in host memory: for tests, and for machines without a GPU. */
typedef struct adamant_emulation_options {
    size_t struct_bytes;     /**< size of this struct; set by the init function */
    const char* name;        /**< may be null: "emulated device" */
    size_t memory_bytes;     /**< 1 TiB; only what is used is allocated */
    double work_bytes_per_s; /**< INFINITY, as the next two: as fast as this machine */
    double up_bytes_per_s;   /**< copies from the host */
    double down_bytes_per_s; /**< copies to the host */
    double latency_s;        /**< 0; of everything that it does */
} adamant_emulation_options;
ADAMANT_C_API adamant_status adamant_emulation_options_init(adamant_emulation_options* options, size_t struct_bytes);
/** Makes one for *made. options may be null: the defaults. invalid argument: rates that are not above 0, a latency
 * below 0. */
ADAMANT_C_API adamant_status adamant_emulated_device_create(const adamant_emulation_options* options,
                                                            adamant_device** made);
typedef int32_t adamant_device_operation;
enum { ADAMANT_DEVICE_COPY_UP = 0, ADAMANT_DEVICE_COPY_DOWN = 1, ADAMANT_DEVICE_WORK = 2, ADAMANT_DEVICE_ALLOCATE = 3 };
/** To see what a program does when a device fails: operation number `after` of this kind from now on, counted from 0,
 * fails. invalid argument: not an emulated device. */
ADAMANT_C_API adamant_status adamant_emulated_device_fail(adamant_device* device, adamant_device_operation operation,
                                                          size_t after);
/** The same for an operation that does not end until adamant_emulated_device_resume(). */
ADAMANT_C_API adamant_status adamant_emulated_device_hang(adamant_device* device, adamant_device_operation operation,
                                                          size_t after);
/** Nothing hangs, or will hang or fail, any more. */
ADAMANT_C_API adamant_status adamant_emulated_device_resume(adamant_device* device);

/** May be null. An optimizer that has shards on the device keeps it. */
ADAMANT_C_API void adamant_device_free(adamant_device* device);
/** Its name, for people, and its memory. Each result may be null. The text lives as long as the handle. */
ADAMANT_C_API adamant_status adamant_device_describe(const adamant_device* device, const char** name,
                                                     size_t* total_bytes, size_t* free_bytes);

/** Memory on the device, for adamant_set_device_arrays() and adamant_zenflow_set_device_arrays(); a program that uses
 * CUDA may take cudaMalloc()'s addresses, too. Addresses are not for the host to look at. They begin at multiples of
 * 256 bytes, and their contents are undefined. 0 for 0 bytes. unavailable: it has too little memory left. */
ADAMANT_C_API adamant_status adamant_device_allocate(adamant_device* device, size_t bytes, uint64_t* address);
/** Of adamant_device_allocate(), or 0. No optimizer may use it any more. */
ADAMANT_C_API adamant_status adamant_device_release(adamant_device* device, uint64_t address);
/** Copies to and from memory of the device, and returns when that is done. device failed: as it says. */
ADAMANT_C_API adamant_status adamant_device_copy_up(adamant_device* device, uint64_t to, const void* from,
                                                    size_t bytes);
ADAMANT_C_API adamant_status adamant_device_copy_down(adamant_device* device, void* to, uint64_t from, size_t bytes);

/* ---- Shards on a device: between steps -----------------------------------------------------------------------------
 */

/** The sizes of all shards in elements, in order: `count` of them, which must be what adamant_shard_count() says. */
ADAMANT_C_API adamant_status adamant_shard_sizes(const adamant_optimizer* optimizer, size_t* sizes, size_t count);
/** How many bytes of the device's memory adamant_place() would take with this placement. */
ADAMANT_C_API adamant_status adamant_device_bytes(const adamant_optimizer* optimizer, const adamant_device* device,
                                                  const adamant_placement* placement, size_t* bytes);
/** Gives a part of the shards to a device, changes which part it has, or takes all back: then device and placement are
 * null. From the next step on the device steps its pieces and the CPU the others, at once, with the same bits wherever
 * the cut. The state of those pieces moves: it is in the device's memory alone, and the shards' own arrays of it are
 * out of date until adamant_update_host_arrays(), a save, or its return. Shards that are added later are the CPU's.
 *
 * The device needs room for what it gets beside what it has. The last step can then no longer be rolled back.
 *
 * When a step ends with ADAMANT_DEVICE_FAILED, it has been rolled back on both sides: state and accumulated gradients
 * are as before it. For that the steps of both sides are recorded; see device_records of adamant_optimizer_options. A
 * device that does not answer in time does its part of that later, before anything else; until then the gradients of
 * the step must stay where they are on it.
 *
 * invalid argument: a placement of other shards, a device that has another optimizer's shards, and during a step.
 * unavailable, device failed: the device lacks the memory, or has failed; everything is where it was. What
 * adamant_prepare() fails with, lack of memory above all, comes when all has moved. */
ADAMANT_C_API adamant_status adamant_place(adamant_optimizer* optimizer, const adamant_device* device,
                                           const adamant_placement* placement);
/** Says that a shard's gradient is made on the device that adamant_place() is given next, and that its weights are
 * wanted there: in arrays of the caller's in the device's memory, with the shard's size and types, at multiples of 16
 * bytes, until all is rolled back. The shard's own grad and weight_out are then where the CPU's part of them passes
 * through. weight_out is 0 for a shard without; both 0: gradient and weights are in host memory. invalid argument:
 * shards are on a device already, an address that is missing or not such a multiple, no such shard, and during a step.
 */
ADAMANT_C_API adamant_status adamant_set_device_arrays(adamant_optimizer* optimizer, size_t shard, uint64_t grad,
                                                       uint64_t weight_out);
/** Copies what a device has of params and moments into the shards' own arrays, for the caller to read them there.
 * Without a device there is nothing to do. invalid argument: during a step. device failed: as it says. */
ADAMANT_C_API adamant_status adamant_update_host_arrays(adamant_optimizer* optimizer);

/* The steps of an optimizer, and what they report. */

/** The values of one step. Those that are not given are the optimizer's. */
typedef struct adamant_step_values {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    int32_t has_loss_scale;   /**< whether loss_scale counts; else it is the dynamic one, or 1 */
    int32_t has_max_norm;     /**< whether max_norm counts; then max_abs_grad of the options does not */
    int32_t has_max_abs_grad; /**< whether max_abs_grad counts; then max_norm of the options does not */
    double loss_scale;        /**< what the loss was multiplied by; finite, above 0 */
    double max_norm;          /**< of all gradients together, after unscaling; 0: no limit */
    double max_abs_grad;      /**< of each element, after unscaling; 0: no limit */
    const double* lr;         /**< one learning rate for each group; null with lr_count 0: the groups' own */
    size_t lr_count;          /**< number of learning rates in `lr` */
} adamant_step_values;
ADAMANT_C_API adamant_status adamant_step_values_init(adamant_step_values* values, size_t struct_bytes);

typedef int32_t adamant_outcome;
enum { ADAMANT_APPLIED = 0, ADAMANT_SKIPPED = 1 };

/** What a step did. */
typedef struct adamant_report {
    size_t struct_bytes;          /**< size of this struct; set by the init function */
    uint64_t step;                /**< the number of this step, from 1, whether it was applied or skipped */
    adamant_outcome outcome;      /**< an adamant_outcome */
    int32_t speculated;           /**< shards were stepped before the norm was known */
    int32_t rolled_back;          /**< and that was rolled back, as the norm called for clipping or a skip */
    int32_t has_first_nonfinite;  /**< whether the two fields below count: this process has nonfinite gradients */
    size_t first_nonfinite_shard; /**< the first shard that has one, in the order of shards */
    size_t first_nonfinite_index; /**< and the first such element of it */
    uint64_t nonfinite_grads;     /**< over all processes */
    double loss_scale;            /**< the loss scale of this step */
    double global_norm;       /**< of the finite gradients, unscaled, over all processes; a NaN where measured is 0 */
    double clip_coefficient;  /**< factor that brought gradients down to max_norm */
    size_t elements;          /**< stepped */
    size_t shards_waited;     /**< for the norm: finish came first, or the journal was full */
    size_t journal_bytes;     /**< written */
    double seconds;           /**< from beginning to end, with the time that gradients took to arrive */
    double gradients_seconds; /**< until the norm was known: computing it, and what was stepped meanwhile */
    double update_seconds;    /**< from then on */
    size_t gradients_bytes;   /**< of memory traffic, counted and not measured */
    size_t update_bytes;      /**< bytes moved after the norm was known */
    uint32_t threads;         /**< threads that did the work */
    const char* isa;          /**< lives for ever */
    const char* pus;          /**< that the threads are bound to; lives as long as the optimizer */
    /** With a device; without one ratio is 1, and what is said of the device is 0. */
    double ratio;               /**< the share of `elements` that the CPU has stepped */
    double cpu_busy_seconds;    /**< how long the CPU's threads have worked, on average */
    double device_work_seconds; /**< how long the device was busy with passes, ... */
    double device_up_seconds;   /**< ... copies from the host, ... */
    double device_down_seconds; /**< ... and copies to it */
    size_t device_elements;     /**< stepped there */
    size_t device_work_bytes;   /**< read and written by passes */
    size_t device_up_bytes;     /**< copied */
    size_t device_down_bytes;   /**< bytes copied from the device */
    /** Whether gradients were looked at before the step. 0 if nothing needs the norm: no step clips by norm, scales the
     * loss dynamically, reduces over processes, or asks that steps with infinities or NaNs be skipped or these be
     * zeroed: that saves reading them twice. nonfinite_grads is 0 then, whatever there was. */
    int32_t measured;
    double cpu_quota; /**< as adamant_cpu_quota() said when the executor was made: fewer CPUs than threads make steps
                         slow */
} adamant_report;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_report_init(adamant_report* report, size_t struct_bytes);

/** How many steps have been applied. */
ADAMANT_C_API adamant_status adamant_steps(const adamant_optimizer* optimizer, uint64_t* steps);
/** What the next loss is to be multiplied by: the dynamic scale, or 1. */
ADAMANT_C_API adamant_status adamant_loss_scale(const adamant_optimizer* optimizer, double* scale);

/** A whole step, when all gradients are there: one pass over memory, or two if the norm or the finiteness has to be
 * known first. values may be null: all are the optimizer's. report may be null; else its struct_bytes must be set.
 * invalid argument: values that cannot be, and while another step is under way. */
ADAMANT_C_API adamant_status adamant_step(adamant_optimizer* optimizer, const adamant_step_values* values,
                                          adamant_report* report);

/** adamant_step() over gradients that are elsewhere than in the step before: grads[i] is shard i's, as by
 * adamant_set_gradient(), and a null pointer leaves the shard out, as adamant_skip() does. grads has `count`
 * elements, as many as there are shards, and may be null with a count of 0. Errors as for those; the state is as before
 * then, but gradients may be set. */
ADAMANT_C_API adamant_status adamant_step_gradients(adamant_optimizer* optimizer, const void* const* grads,
                                                    size_t count, const adamant_step_values* values,
                                                    adamant_report* report);

/** Opens a step whose gradients arrive one by one; it has the bits of adamant_step(). values as there. */
ADAMANT_C_API adamant_status adamant_begin_step(adamant_optimizer* optimizer, const adamant_step_values* values);
/** Says that this shard's gradient is there. The executor's threads begin with it, and the call returns immediately.
 * The gradient must not change until adamant_finish() has returned. From any thread. invalid argument: no such shard,
 * one that was submitted or left out already, and where no step is open. With a device, any other error fails the step:
 * adamant_finish() then takes it back, with ADAMANT_DEVICE_FAILED. */
ADAMANT_C_API adamant_status adamant_submit(adamant_optimizer* optimizer, size_t shard);
/** adamant_set_gradient() and adamant_submit() in one call, which fails as either does. From any thread. */
ADAMANT_C_API adamant_status adamant_submit_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad);
/** Says that this shard has no gradient in this step: it stays as it is, and what was accumulated for it is forgotten.
 * From any thread; errors as above. */
ADAMANT_C_API adamant_status adamant_skip(adamant_optimizer* optimizer, size_t shard);
/** Waits for what was submitted and completes the step: applied or skipped. report as for adamant_step().
 * invalid argument: a shard was neither submitted nor left out. reduce failed: as reduce said. After either the step
 * stays open: call this again, or adamant_abandon(). With a device, any other error has taken the step back; see
 * adamant_place(). */
ADAMANT_C_API adamant_status adamant_finish(adamant_optimizer* optimizer, adamant_report* report);
/** Gives up the step that is open: params and moments are as before it, to the bit, and weight_out is made of param.
 * Accumulated gradients stay. unavailable, and the step stays open: shards were submitted to a step that needs no norm
 * (it neither skips nor clips by it, and there is no reduce), without keep_last_step. */
ADAMANT_C_API adamant_status adamant_abandon(adamant_optimizer* optimizer);
/** Rolls back the last step, which must have been applied with keep_last_step. Since then no step may have been begun,
 * no gradient accumulated, no group or shard added or removed, nothing placed, no step count or loss scaler set and no
 * state loaded. The step's gradients must be where they were set last, unchanged, which a checksum tells. Params,
 * moments, the step count and the loss scale are as before the step, to the bit, and weight_out is made of param.
 *
 * Accumulators count again. A step reads them without changing them, and forgets them afterwards; so after the rollback
 * they hold the same micro-steps as before the step. To repeat the step, submit the last gradients again; to begin the
 * micro-steps anew, call adamant_clear_accumulators(). What an accumulator holds must not have changed since either.
 *
 * invalid argument: there is no such step, or gradients have changed; nothing is touched. unavailable: the journal's
 * budget was too small. */
ADAMANT_C_API adamant_status adamant_rollback(adamant_optimizer* optimizer);

/** Adds the shard's gradient to its accumulator. Call it for all micro-steps except the last one, whose gradient
 * adamant_submit() or adamant_step() adds by itself. Returns when it is done, so the gradient's memory may be used
 * again. The first call after a step overwrites what the accumulator holds. The sum is not divided: have the loss scale
 * count the micro-steps. The last step can then no longer be rolled back. invalid argument: a shard without
 * accumulator, one that was submitted, and during adamant_step_async(). */
ADAMANT_C_API adamant_status adamant_accumulate(adamant_optimizer* optimizer, size_t shard);
/** Forgets what was accumulated. The last step can then no longer be rolled back. */
ADAMANT_C_API adamant_status adamant_clear_accumulators(adamant_optimizer* optimizer);

/** adamant_step() that returns immediately. Until adamant_wait() has said that the step is over, the optimizer takes no
 * other calls than adamant_poll() and adamant_wait(). */
ADAMANT_C_API adamant_status adamant_step_async(adamant_optimizer* optimizer, const adamant_step_values* values);
/** Whether the step is over, and the share that is done, from 0 to 1, of the passes that are known to be needed. Either
 * result may be null. Never blocks for long. invalid argument: there is no such step. */
ADAMANT_C_API adamant_status adamant_poll(const adamant_optimizer* optimizer, int32_t* over, double* progress);
#define ADAMANT_FOR_EVER UINT64_MAX
/** Waits for at most the given number of nanoseconds, or ADAMANT_FOR_EVER. If the step is over, *over is 1, the report
 * (which may be null) is written, and the optimizer takes all calls again. If not, *over is 0 and the step goes on.
 * over may be null with ADAMANT_FOR_EVER. invalid argument: there is no such step. reduce failed: as reduce said; the
 * step is over and has changed nothing, and *over is 1. */
ADAMANT_C_API adamant_status adamant_wait(adamant_optimizer* optimizer, uint64_t timeout_ns, int32_t* over,
                                          adamant_report* report);

/* The state of an optimizer: step count, loss scaler, groups, params and moments. */

/* ---- Step count and loss scaler -----------------------------------------------------------------------------------
 */

/** For an engine that restores its own count: the next step is number steps + 1. Params, moments, loss scaler and
 * accumulators stay. The last step can then no longer be rolled back. invalid argument: during a step. */
ADAMANT_C_API adamant_status adamant_set_steps(adamant_optimizer* optimizer, uint64_t steps);

/** What dynamic loss scaling has learned. */
typedef struct adamant_loss_scaler {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    double scale;             /**< the loss scale */
    uint32_t good_steps;      /**< in a row */
    uint32_t hysteresis_left; /**< how many more overflows until the scale backs off */
} adamant_loss_scaler;
/** Sets struct_bytes, scale and hysteresis_left to 1, and all else to zero. */
ADAMANT_C_API adamant_status adamant_loss_scaler_init(adamant_loss_scaler* scaler, size_t struct_bytes);
/** *found says whether loss scaling is dynamic; if not, the scaler is not written. Its struct_bytes must be set. */
ADAMANT_C_API adamant_status adamant_get_loss_scaler(const adamant_optimizer* optimizer, adamant_loss_scaler* scaler,
                                                     int32_t* found);
/** Holds from the next step on. The last step can then no longer be rolled back. invalid argument: a scale whose
 * inverse no float holds, no dynamic loss scaling in the options, and during a step. */
ADAMANT_C_API adamant_status adamant_set_loss_scaler(adamant_optimizer* optimizer, const adamant_loss_scaler* scaler);

/* ---- Checkpoints in files ---------------------------------------------------------------------------------------- */

/** Writes step count, loss scaler, groups and all params and moments to a safetensors file. Whatever happens, a reader
 * that opens the path finds the old file or the new one, both whole. Gradients accumulated since the last step are not
 * in it. invalid argument: during a step. unavailable: the file cannot be written, with the system's reason. Where the
 * file is complete, but the file system cannot sync its folder or set its permission bits, the status is OK and
 * adamant_last_error() says so; it is empty where nothing is missing. */
ADAMANT_C_API adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path);
/** Performs every system call of a save on a small file next to the path, before hours of training, and returns what a
 * save would; adamant_last_error() likewise. What is at the path is not touched. unavailable: a save would fail. */
ADAMANT_C_API adamant_status adamant_check_can_save(const char* path);
/** Loads what was saved, from one file or from those of several ranks of one run, however it was cut: ranks may have
 * parts of a parameter, or whole ones that others lack. Groups are found by their names and shards by those of their
 * parameters; weight_out is made of param. Everything is checked first. invalid argument: something is missing or of
 * another shape or type, and during a step. unavailable: a file cannot be read. corrupted: a file is damaged. If
 * another program cuts a file short or writes into it during the call, that is corrupted, too; params and moments may
 * then be overwritten in part, and no step can be taken before a load succeeds. */
ADAMANT_C_API adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths,
                                                      size_t count);

/* ---- Checkpoints in memory ----------------------------------------------------------------------------------------
 */

/** How many bytes adamant_save_memory() would write now. invalid argument: during a step. */
ADAMANT_C_API adamant_status adamant_save_bytes(const adamant_optimizer* optimizer, size_t* bytes);
/** Writes the bytes of such a file to the caller's memory, of `bytes` bytes, which must not overlap any array of the
 * optimizer's. How many were written goes to *written, which may be null. invalid argument: too little memory, with how
 * much is needed, and during a step. */
ADAMANT_C_API adamant_status adamant_save_memory(const adamant_optimizer* optimizer, void* to, size_t bytes,
                                                 size_t* written);
/** As adamant_load_safetensors(), from `count` states in memory: states[i] has bytes[i] bytes, which must not change
 * during the call. They may come from files of adamant_save_safetensors(), too. */
ADAMANT_C_API adamant_status adamant_load_memory(adamant_optimizer* optimizer, const void* const* states,
                                                 const size_t* bytes, size_t count);

/* ---- Views, for checkpoints in a form of the caller's own ---------------------------------------------------------
 */

/** A list of all tensors of the state as views of the shards' arrays. It holds for the shards that there were when it
 * was made, and as long as their arrays; it shows what the arrays hold at any time. What a device has of the state is
 * copied into the arrays when the list is made (see adamant_update_host_arrays()). Gradients accumulated since the last
 * step are no part of the state. */
typedef struct adamant_state adamant_state;
/** Makes the list for *made. invalid argument: during a step. device failed: as it says. */
ADAMANT_C_API adamant_status adamant_state_create(adamant_optimizer* optimizer, adamant_state** made);
/** May be null. */
ADAMANT_C_API void adamant_state_free(adamant_state* state);
/** From any thread, as the next one. */
ADAMANT_C_API adamant_status adamant_state_tensor_count(const adamant_state* state, size_t* count);

typedef int32_t adamant_state_array;
enum { ADAMANT_STATE_PARAM = 0, ADAMANT_STATE_EXP_AVG = 1, ADAMANT_STATE_EXP_AVG_SQ = 2 };

/** Elements [begin, begin + elements) of one array of a parameter, in row-major order. The texts and the shape live as
 * long as the list. */
typedef struct adamant_state_tensor {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* param;   /**< the parameter's name */
    const char* group;   /**< the name of its parameter group */
    /** In the shard's own array. Null if there are no elements, and for split masters (ADAMANT_SPLIT_FLOAT32), which
     * are no array of the tensor's dtype, float32: adamant_state_read_tensor() copies them as one. */
    const void* data;
    size_t elements;           /**< number of elements */
    size_t begin;              /**< index of the first element in the parameter */
    const size_t* shape;       /**< of the whole parameter */
    size_t dims;               /**< number of dimensions */
    adamant_dtype dtype;       /**< an adamant_dtype */
    adamant_state_array array; /**< an adamant_state_array */
} adamant_state_tensor;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_state_tensor_init(adamant_state_tensor* tensor, size_t struct_bytes);
/** Tensor number `index` of the list. invalid argument: there is none of that number. */
ADAMANT_C_API adamant_status adamant_state_get_tensor(const adamant_state* state, size_t index,
                                                      adamant_state_tensor* tensor);
/** Copies `elements` elements of tensor number `index`, beginning with number `begin` of the tensor (not in the
 * parameter), to the caller's memory, as an array of the tensor's dtype, wherever `data` is. Of ADAMANT_QUANTIZED8
 * whole groups. From any thread. invalid argument: no such tensor or elements, or a null pointer with elements. */
ADAMANT_C_API adamant_status adamant_state_read_tensor(const adamant_state* state, size_t index, size_t begin,
                                                       size_t elements, void* to);

/* How many cores an optimizer needs on this machine, found by steps that are timed, and kept in a file.
 */

/** What tuning has found, for a machine and a kind of work. */
typedef struct adamant_tuned adamant_tuned;

/** Reads a file that `adamant tune --save` or adamant_tuned_save() wrote, for *made, and checks that it was found on
 * this machine for the same work: cores says which ranks, PUs, masks and GPUs are meant (its sizes do not matter),
 * types is a shard that gives only its types, and isa the instruction set, which may be null as in
 * adamant_executor_options. unavailable: no such file, a result of another machine or other work, with each difference,
 * and one whose deadline came too soon. corrupted: the file holds no tuning result of this version. */
ADAMANT_C_API adamant_status adamant_tuned_load(const char* path, const adamant_core_options* cores,
                                                const adamant_shard* types, const char* isa, adamant_tuned** made);
/** May be null. */
ADAMANT_C_API void adamant_tuned_free(adamant_tuned* tuned);
/** Sets what was found: cpuadam_cores of cores, whose other three sizes become 0, and max_chunk_elems and
 * prefetch_bytes of executor. All else stays. Each struct must be initialised, and may be null. invalid argument: an
 * executor's struct of a version that has no such fields. */
ADAMANT_C_API adamant_status adamant_tuned_apply(const adamant_tuned* tuned, adamant_core_options* cores,
                                                 adamant_executor_options* executor);
/** Writes it to a file, which is replaced as a whole or not at all. unavailable: it cannot be written, with the
 * system's reason. */
ADAMANT_C_API adamant_status adamant_tuned_save(const adamant_tuned* tuned, const char* path);

/** Result of adamant_tune_cores(). */
typedef struct adamant_tuned_summary {
    size_t struct_bytes;       /**< size of this struct; set by the init function */
    double cpuadam_cores_perc; /**< the optimizer's share of a rank's cores */
    double step_s;             /**< of all ranks together, with what was found */
    size_t elements;           /**< of each rank, in the steps that were timed */
    size_t max_chunk_elems;    /**< for adamant_executor_options */
    size_t prefetch_bytes;     /**< for adamant_executor_options */
    uint32_t cores;            /**< the number of the optimizer's cores, of each rank */
    uint32_t of;               /**< the number of cores that a rank has */
    int32_t finished;          /**< 0: the deadline came before it was known whether more cores are worth having */
    int32_t all;               /**< every core is worth having */
} adamant_tuned_summary;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_tuned_summary_init(adamant_tuned_summary* summary, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_tuned_describe(const adamant_tuned* tuned, adamant_tuned_summary* summary);

/** Called after each timed step, with the number of cores that it was on and its time. Returns 0; any other value ends
 * the tuning with ADAMANT_UNAVAILABLE. */
typedef int32_t (*adamant_on_trial_step)(void* user, uint32_t cores, double seconds);

/** Options of adamant_tune_cores(). */
typedef struct adamant_tuning_options {
    size_t struct_bytes; /**< size of this struct; set by the init function */
    const char* isa;     /**< as in adamant_executor_options; may be null */
    double deadline_s;   /**< 60; for all of it: then what is known is the result, and says that it is not finished */
    size_t elements;     /**< of each rank's arrays; 0: far more than the machine's caches hold */
    /** More cores are worth having if they bring at least this share of what they would bring if the time were
     * inversely proportional to their number. 0.25; in (0, 1]. */
    double worth;
    /** Two numbers of cores are compared in rounds, from `rounds` on until it is this sure which is faster, or there
     * have been most_rounds. */
    double confidence;             /**< 0.99 */
    size_t rounds;                 /**< 9 */
    size_t most_rounds;            /**< 41 */
    double settings_worth;         /**< 0.03; by which share another setting must be faster to be taken */
    adamant_on_trial_step on_step; /**< may be null */
    void* on_step_user;            /**< passed to on_step */
    int32_t settings; /**< 1; whether other chunks and prefetching are tried on the cores that were found */
} adamant_tuning_options;
ADAMANT_C_API adamant_status adamant_tuning_options_init(adamant_tuning_options* options, size_t struct_bytes);
/** Finds, for *made, how many cores each rank's optimizer needs, all ranks stepping concurrently in this process; cores
 * and types as above. Takes up to a quarter of the available memory, and the machine's cores and memory bandwidth:
 * nothing else should run. options may be null: the defaults. invalid argument: options that cannot be. unavailable: as
 * for adamant_select_cores(), adamant_team_create() and adamant_buffer_create(), and what on_step ended. */
ADAMANT_C_API adamant_status adamant_tune_cores(const adamant_core_options* cores, const adamant_shard* types,
                                                const adamant_tuning_options* options, adamant_tuned** made);

/* DeepSpeed's configuration as options of this library. */

typedef struct adamant_deepspeed adamant_deepspeed;

/** Reads the text of a ds_config.json, of `bytes` bytes, for *made. From any thread. invalid argument: the text is no
 * JSON, or has a value that cannot be, with its place. */
ADAMANT_C_API adamant_status adamant_deepspeed_parse(const char* text, size_t bytes, adamant_deepspeed** made);
/** May be null. */
ADAMANT_C_API void adamant_deepspeed_free(adamant_deepspeed* config);
/** Sets the fields that the configuration decides, with DeepSpeed's defaults for keys that it does not have; all other
 * fields stay as they are. Each struct must be initialised, and may be null.
 * hyper, *maximize: all of it, for the one group. Without an optimizer in the configuration the decay is unset.
 * options: max_norm, and loss_scaling, which points into config and lives as long as that.
 * values: the loss scale if it is fixed, else none.
 * cores: the optimizer's or the host framework's share, if the configuration has one.
 * The rest of the configuration: adamant_deepspeed_get_offload() and adamant_deepspeed_model(). */
ADAMANT_C_API adamant_status adamant_deepspeed_apply(const adamant_deepspeed* config, adamant_hyperparameters* hyper,
                                                     int32_t* maximize, adamant_optimizer_options* options,
                                                     adamant_step_values* values, adamant_core_options* cores);
/** What the configuration says about offloading. It is for the engine to act on: the library acts on none of it. */
typedef struct adamant_deepspeed_offload {
    size_t struct_bytes;           /**< size of this struct; set by the init function */
    uint64_t sub_group_size_elems; /**< number of params that stage 3 steps at a time; 0: each tensor alone */
    double ratio;                  /**< the share of the params that the CPU steps, from 0 to 1 */
    double cpuadam_cores_perc;     /**< of a rank's cores; 0: not given. The same holds for the next */
    double pt_reserved_cores_perc; /**< DeepSpeed's share of cores for the host; NaN: absent */
    uint32_t zero_stage;           /**< 0 to 3 */
    int32_t offload;               /**< whether the CPU steps at all: device is "cpu" */
    int32_t pin_memory;            /**< the CPU's arrays in page-locked memory */
    int32_t super_offload;         /**< step while gradients still arrive */
} adamant_deepspeed_offload;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_deepspeed_offload_init(adamant_deepspeed_offload* offload, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_deepspeed_get_offload(const adamant_deepspeed* config,
                                                           adamant_deepspeed_offload* offload);
/** The type of gradients and weights, and how many micro-steps are accumulated (0: it follows from the batch sizes).
 * Each result may be null. */
ADAMANT_C_API adamant_status adamant_deepspeed_model(const adamant_deepspeed* config, adamant_dtype* type,
                                                     uint32_t* accumulation_steps);
/** Writes warning number `index`, about an ignored key, to *text; null after the last one. The text
 * lives as long as config. */
ADAMANT_C_API adamant_status adamant_deepspeed_warning(const adamant_deepspeed* config, size_t index,
                                                       const char** text);

/* Optimizers that defer gradients (ZenFlow): a few columns of each matrix are updated every step, the others later,
 * while training goes on. docs/zenflow.md says what is computed */

typedef int32_t adamant_column_score; /* what columns are selected by: the sum over their rows of */
enum { ADAMANT_COLUMN_MAGNITUDE = 0, ADAMANT_COLUMN_SQUARE = 1 };

typedef int32_t adamant_selection_scope; /* between what columns compete */
enum { ADAMANT_SELECT_EACH_PARAM = 0, ADAMANT_SELECT_ALL_PARAMS = 1 };

typedef int32_t adamant_column_reduction;
enum { ADAMANT_COLUMNS_SUM = 0, ADAMANT_COLUMNS_MAX = 1 };

/** For matrices whose rows are spread over processes: replaces each number by its sum over all processes, or by the
 * largest, as MPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_INT64_T, MPI_SUM or MPI_MAX, comm) does, and returns 0.
 * Any other value fails the step with ADAMANT_REDUCE_FAILED, and nothing has changed. Called twice in a step that
 * selects. Every process has the same params, in the same order; of a matrix without rows on this rank, a shard of no
 * elements. */
typedef int32_t (*adamant_reduce_columns)(void* user, int64_t* numbers, size_t count, adamant_column_reduction how);

/** "Steps" are those that were applied. */
typedef struct adamant_zenflow_options {
    size_t struct_bytes;    /**< size of this struct; set by the init function */
    double topk_ratio;      /**< 0.1; the share of the columns that is selected, from 0 to 1 */
    size_t select_interval; /**< 16; a window's first step selects once that many steps were taken since the last
                               selection */
    size_t update_interval; /**< 4; steps in a window; 0: it ends as soon as the deferred gradients outweigh the applied
                               ones */
    double auto_ratio;      /**< 1; for 0: how much it has to weigh, in squared norms */
    size_t max_deferred;    /**< 64; for 0: the most steps in a window */
    size_t full_warm_up_rounds;            /**< 0; number of plain steps before ZenFlow begins */
    adamant_column_score score;            /**< ADAMANT_COLUMN_MAGNITUDE */
    adamant_selection_scope scope;         /**< ADAMANT_SELECT_EACH_PARAM */
    int32_t overlap;                       /**< 1; deferred gradients are applied while the next window goes on */
    adamant_reduce_columns reduce_columns; /**< may be null */
    void* reduce_columns_user;             /**< passed to reduce_columns */
} adamant_zenflow_options;
ADAMANT_C_API adamant_status adamant_zenflow_options_init(adamant_zenflow_options* options, size_t struct_bytes);

typedef struct adamant_zenflow adamant_zenflow;

/** Makes such an optimizer, without groups and params, for *made. Both options may be null: the defaults. Of
 * adamant_optimizer_options keep_last_step and weights_ready must not be set; speculate, journal_budget_bytes and
 * device_records mean nothing. The executor may be freed afterwards. invalid argument: options that cannot be. */
ADAMANT_C_API adamant_status adamant_zenflow_create(const adamant_executor* executor,
                                                    const adamant_zenflow_options* zenflow,
                                                    const adamant_optimizer_options* options, adamant_zenflow** made);
/** May be null. Finishes what goes on in the background; weights that have not published stay as they are. */
ADAMANT_C_API void adamant_zenflow_free(adamant_zenflow* zenflow);

/** As adamant_add_group() and adamant_set_hyperparameters(). */
ADAMANT_C_API adamant_status adamant_zenflow_add_group(adamant_zenflow* zenflow, const char* name,
                                                       const adamant_hyperparameters* hyper, int32_t maximize,
                                                       size_t* group);
ADAMANT_C_API adamant_status adamant_zenflow_set_hyperparameters(adamant_zenflow* zenflow, size_t group,
                                                                 const adamant_hyperparameters* hyper);
/** Adds a param to a group; its number is written to *number, which may be null. columns: of a matrix, whose param,
 * moments and weight_out lie by columns (all rows of the first column, then those of the next), and whose grad lies by
 * rows; weights: its weights by rows, of the type of weight_out, or of param where there is none, which have to be
 * those of the masters. 0 columns: a vector, which is a shard as any other and is updated every step; weights is null.
 * The shard has no accumulator. Its shape and begin are those of rows: `shape` ends with columns, and begin is a
 * multiple of them. invalid argument: what adamant_add_shard() refuses; a matrix whose shard does not hold whole
 * rows, or whose moments of 8 bits have other than whole groups of 64 rows; and after a step. */
ADAMANT_C_API adamant_status adamant_zenflow_add_param(adamant_zenflow* zenflow, size_t group, const char* name,
                                                       const adamant_shard* shard, size_t columns, void* weights,
                                                       size_t* number);
/** How many bytes adamant_zenflow_prepare() allocates for sums of gradients. */
ADAMANT_C_API adamant_status adamant_zenflow_memory_bytes(const adamant_zenflow* zenflow, size_t* bytes);
/** Allocates; otherwise the first step does. invalid argument: arrays that overlap. unavailable: too little memory. */
ADAMANT_C_API adamant_status adamant_zenflow_prepare(adamant_zenflow* zenflow);

/** What a step reports beside adamant_report. */
typedef struct adamant_zenflow_report {
    size_t struct_bytes;  /**< size of this struct; set by the init function */
    int32_t warm_up;      /**< a plain step of everything */
    int32_t selected;     /**< columns were selected anew */
    size_t columns_moved; /**< selected columns that were not selected before */
    size_t deferred;      /**< elements whose gradients were accumulated */
    int32_t window_ended; /**< and deferred_stepped elements are stepped with the accumulated gradients, now or in the
                             background */
    int32_t deferred_skipped; /**< the deferred gradients were not finite and were dropped */
    size_t deferred_stepped;  /**< elements whose deferred gradients are applied when the window ends */
    double waited_seconds;    /**< for what the window before deferred */
    double publish_seconds;   /**< and then for its weights to come into use */
    /** How long the executor's threads have worked, on average, on the sums of the step before (with a device), ... */
    double sums_seconds;
    double deferred_seconds; /**< ... and, where a window ends, on the deferred gradients of the window before it */
} adamant_zenflow_report;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_report_init(adamant_zenflow_report* report, size_t struct_bytes);

/** From the next step on, or in this one, the param's gradient is at `grad`, as adamant_set_gradient() has it. */
ADAMANT_C_API adamant_status adamant_zenflow_set_gradient(adamant_zenflow* zenflow, size_t param, const void* grad);
/** A step with gradients that may be new arrays: grads[i] is param i's, by rows. Null: the param takes no part, and its
 * sum is divided by the number of steps in which it did. On several processes these are the same params. values and
 * both reports may be null; of what `report` says, `elements` are those that were stepped at once, and the fields of a
 * device count. With a device gradients are there, and grads[i] is null or the shard's own grad, into which it comes
 * down.
 *
 * invalid argument: values that cannot be, another count than of params, other arrays with a device, and during a step
 * that adamant_zenflow_begin_step() opened. reduce failed: as it says, and nothing has changed. unavailable: a
 * selection finds no memory on the device; the same. device failed: see adamant_zenflow_place(). */
ADAMANT_C_API adamant_status adamant_zenflow_step_gradients(adamant_zenflow* zenflow, const void* const* grads,
                                                            size_t count, const adamant_step_values* values,
                                                            adamant_report* report, adamant_zenflow_report* more);
/** The same as gradients arrive, by one thread at a time: opens a step; says that the param's gradient is there, or
 * that it has none in this step; and ends the step. values and both reports may be null. A gradient may then not change
 * until the step is over.
 *
 * invalid argument: values that cannot be; no step is open, or one already; a param that was submitted or left out, or,
 * for the end, one that was neither; no such param. Of adamant_zenflow_finish(): reduce failed, or unavailable as a
 * selection finds no memory on the device: the step stays open, and adamant_zenflow_abandon() gives it up. device
 * failed: see adamant_zenflow_place(); the step is over. */
ADAMANT_C_API adamant_status adamant_zenflow_begin_step(adamant_zenflow* zenflow, const adamant_step_values* values);
ADAMANT_C_API adamant_status adamant_zenflow_submit(adamant_zenflow* zenflow, size_t param);
ADAMANT_C_API adamant_status adamant_zenflow_skip(adamant_zenflow* zenflow, size_t param);
ADAMANT_C_API adamant_status adamant_zenflow_finish(adamant_zenflow* zenflow, adamant_report* report,
                                                    adamant_zenflow_report* more);
/** Gives up the step that is open: nothing has changed. invalid argument: no step is open. device failed: as it says.
 */
ADAMANT_C_API adamant_status adamant_zenflow_abandon(adamant_zenflow* zenflow);
/** Finishes what goes on in the background and lets its weights are published now, as at the end of training. Goes on
 * with other bits than a run in which this is not called. */
ADAMANT_C_API adamant_status adamant_zenflow_flush(adamant_zenflow* zenflow);
/** The factor for the next loss. */
ADAMANT_C_API adamant_status adamant_zenflow_loss_scale(const adamant_zenflow* zenflow, double* scale);

/* ---- A device: between steps ---------------------------------------------------------------------------------------
 */

/** Where the param's gradient is made and its weights are wanted, by rows, in the device's memory, at multiples of 16
 * bytes, until all is rolled back: of every param with elements, before adamant_zenflow_place(). weight_out is of the
 * type of `weights`; of a vector, of its weight_out, or of its param where there is none. invalid argument: params are
 * on a device already, an address that is missing or not such a multiple, no such param. */
ADAMANT_C_API adamant_status adamant_zenflow_set_device_arrays(adamant_zenflow* zenflow, size_t param, uint64_t grad,
                                                               uint64_t weight_out);
/** Has selected columns and vectors stepped on a device from the next step on, with the same bits, or, where device is
 * null, takes everything back. Until the next selection their masters and moments are in the device's memory alone.
 * adamant_zenflow_submit() takes the norm there and has the gradient come down into the shard's grad, which is best in
 * pinned memory. It is accumulated while forward and backward go on, so grad is the optimizer's until the param's next
 * adamant_zenflow_submit(). What the host has stepped goes up while the next window goes on, beside the weights in use,
 * for which the device has room for all weights of matrices once more. `weights`, and the vectors' arrays in host
 * memory, are written when everything is rolled back and when the state is asked for. The device's handle may be freed.
 *
 * Where a step ends with ADAMANT_DEVICE_FAILED, it has been rolled back, by records on the device, and can be taken
 * again; weights of columns that were being selected may be those that were to be published. Where only weights could
 * not publish, the step has been taken, adamant_zenflow_get_position() counts it, and they publish before anything
 * else. Where the device does not come back from that within device_timeout_s, the error says that a state must be
 * loaded.
 *
 * invalid argument: a param has no arrays there, the device has another optimizer's params or shards, and during a
 * step. unavailable, device failed: the device lacks the memory, or has failed; everything is where it was. */
ADAMANT_C_API adamant_status adamant_zenflow_place(adamant_zenflow* zenflow, const adamant_device* device);

/* ---- State --------------------------------------------------------------------------------------------------------
 */

/** Where a run is in its schedule. */
typedef struct adamant_zenflow_position {
    size_t struct_bytes;      /**< size of this struct; set by the init function */
    uint64_t steps;           /**< applied */
    uint64_t since_selection; /**< steps */
    uint64_t in_window;       /**< steps */
    int32_t has_selection;    /**< whether columns have been selected */
    int32_t has_loss_scaler;  /**< whether the next three count */
    double loss_scale;        /**< the loss scale; 0: no dynamic loss scaling */
    uint32_t good_steps;      /**< steps without overflow since the scale last changed */
    uint32_t hysteresis_left; /**< overflows until the scale shrinks */
    double done_squares;      /**< for update_interval 0 */
    double deferred_norm;     /**< a bound of the deferred gradients */
} adamant_zenflow_position;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_position_init(adamant_zenflow_position* position, size_t struct_bytes);

/** The state of a param, or of a process's rows of it. Arrays are views, and of as many elements as said. */
typedef struct adamant_zenflow_param {
    size_t struct_bytes;            /**< size of this struct; set by the init function */
    const char* name;               /**< name of the param */
    size_t columns;                 /**< 0: a vector */
    size_t all_rows;                /**< of the whole matrix; of a vector, its elements */
    size_t first_row;               /**< index of this rank's first row */
    size_t rows;                    /**< of a vector, elements */
    const void* param;              /**< params or split residuals, of type param_dtype */
    const void* exp_avg;            /**< first moments, of type exp_avg_dtype */
    const void* exp_avg_sq;         /**< second moments, of type exp_avg_sq_dtype */
    const void* weight_out;         /**< where it is the upper half of the masters, else null */
    const void* weights;            /**< by rows; null: made from the masters when loaded */
    const uint64_t* counts;         /**< of updates, for each column; of a vector, one */
    const uint8_t* selected;        /**< of each column: 0 or 1 */
    const uint8_t* publishing;      /**< of each column: whether its weights follow at the end of the window */
    const float* sums;              /**< by rows; null where nothing is deferred in this window */
    uint64_t summed;                /**< steps in them */
    adamant_dtype param_dtype;      /**< an adamant_dtype */
    adamant_dtype exp_avg_dtype;    /**< an adamant_dtype */
    adamant_dtype exp_avg_sq_dtype; /**< an adamant_dtype */
    adamant_dtype weight_out_dtype; /**< an adamant_dtype */
} adamant_zenflow_param;
/** Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_param_init(adamant_zenflow_param* param, size_t struct_bytes);

/** Finishes what goes on in the background, which changes no bit, and writes where the run is to *position. */
ADAMANT_C_API adamant_status adamant_zenflow_get_position(adamant_zenflow* zenflow, adamant_zenflow_position* position);
/** The same, and the state of param number `number`, whose arrays hold until the next call but this. invalid argument:
 * there is none of that number. */
ADAMANT_C_API adamant_status adamant_zenflow_get_param(adamant_zenflow* zenflow, size_t number,
                                                       adamant_zenflow_param* param);
/** Goes on from there: params are those of all processes that there were, in any order and cut by rows in any way; they
 * are found by their names. Their arrays may be the optimizer's own. Hyperparameters stay. Columns stay selected until
 * the next selection is due. invalid argument: something is missing or of another type, with nothing changed. */
ADAMANT_C_API adamant_status adamant_zenflow_load(adamant_zenflow* zenflow, const adamant_zenflow_position* position,
                                                  const adamant_zenflow_param* params, size_t count);

/** Writes the state, and the groups, to a safetensors file, as adamant_save_safetensors() does. Where the optimizer has
 * rows of a model, they are what the file has. invalid argument: during a step, and text that is no UTF-8. unavailable:
 * the file cannot be written. */
ADAMANT_C_API adamant_status adamant_zenflow_save_safetensors(adamant_zenflow* zenflow, const char* path);
/** Goes on from `count` such files: those of all processes that there were, in any order and cut by rows in any way.
 * Hyperparameters are those of the files. All of a file is checked before anything changes. invalid argument: something
 * is missing, of another type, twice there or of an optimizer that puts nothing off. corrupted, unavailable: as they
 * say; where a file is cut short meanwhile, a state must be loaded before the next step. */
ADAMANT_C_API adamant_status adamant_zenflow_load_safetensors(adamant_zenflow* zenflow, const char* const* paths,
                                                              size_t count);

#ifdef __cplusplus
}
#endif

#endif
