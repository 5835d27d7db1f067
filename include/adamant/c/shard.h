/* SPDX-License-Identifier: Apache-2.0 */
/* Shards, hyperparameters, and a step without an optimizer. adamant_c.h has the rules. */
#ifndef ADAMANT_C_SHARD_H
#define ADAMANT_C_SHARD_H

#include <adamant/c/executor.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t adamant_dtype;
enum {
    ADAMANT_NONE = 0, /* there is no such array */
    ADAMANT_FLOAT32 = 1,
    ADAMANT_BFLOAT16 = 2,
    ADAMANT_FLOAT16 = 3,
    ADAMANT_SPLIT_FLOAT32 = 4, /* the lower halves of float32 masters; see adamant_split_masters() */
    ADAMANT_QUANTIZED8 = 5     /* moments in groups of 64: 64 codes of 8 bits and a float32 scale, 68 bytes in all */
};

/* Consecutive elements of one parameter. Every array has `elements` elements of its type, at any address; no array that
 * a step writes may overlap another. A pointer may be null where there are no elements, and must be null where its type
 * is ADAMANT_NONE.
 * param:       read and written; any type except none and quantized8. With ADAMANT_SPLIT_FLOAT32 it is the masters' lower halves, and
 *              weight_out, of bfloat16, which is read then, too, their upper ones.
 * grad:        read from adamant_submit() or adamant_step() to the end of the step; float32, bfloat16 or float16.
 * exp_avg, exp_avg_sq: the moments, read and written, zero before the first step; float32 or bfloat16, or both
 *              ADAMANT_QUANTIZED8: arrays of (elements + 63) / 64 groups, all bytes zero before the first step.
 * weight_out:  the new weights rounded, written; bfloat16 or float16 with a float32 param, else none. Before the first
 *              step it must hold the params, rounded: a step that is taken back leaves that there.
 * accumulator: where adamant_accumulate() adds gradients up; float32, bfloat16 or none. */
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
    /* Where the shard lies in its parameter. shape: `dims` sizes, at most 64, of the whole parameter; with dims 0 and
     * shape null the shard is all of it. begin: the shard's first element in it, in row-major order. */
    const size_t* shape;
    size_t dims;
    size_t begin;
    uint64_t rounding_stream; /* for adamant_step_shard(): a number that no other parameter has; else not looked at */
} adamant_shard;
ADAMANT_C_API adamant_status adamant_shard_init(adamant_shard* shard, size_t struct_bytes);

typedef int32_t adamant_decay; /* how weight_decay acts */
enum {
    ADAMANT_DECAY_UNSET = 0,     /* allowed only while weight_decay is 0 */
    ADAMANT_DECAY_DECOUPLED = 1, /* AdamW */
    ADAMANT_DECAY_L2 = 2         /* Adam */
};

typedef int32_t adamant_rounding; /* of arrays of bfloat16 that the next step reads again */
enum {
    ADAMANT_ROUND_NEAREST = 0,
    /* Up or down by chance, so that the mean of many roundings is the exact value. The chance is a pure function of
     * seed, step, parameter and element. */
    ADAMANT_ROUND_STOCHASTIC = 1
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
    /* How second moments of bfloat16, and codes of both moments of quantized8, are rounded; ADAMANT_ROUND_STOCHASTIC, because under rounding to nearest they do
     * not come down where 1 - beta2 is less than 0.002. */
    adamant_rounding exp_avg_sq_rounding;
    adamant_rounding param_rounding; /* of params of bfloat16; ADAMANT_ROUND_NEAREST */
    uint64_t rounding_seed;          /* 0 */
} adamant_hyperparameters;
ADAMANT_C_API adamant_status adamant_hyperparameters_init(adamant_hyperparameters* hyper, size_t struct_bytes);

/* One step of Adam or AdamW without an optimizer, in place, on every element of the shard: for an engine that keeps its
 * own count. The executor's threads do it, and nothing is remembered between calls. The gradient is first multiplied by
 * clip_coefficient / loss_scale; pass 1 for each that is not used. step_number counts from 1. The number of gradients
 * that were infinite or NaN, which went into the step as they were, is written to *nonfinite, which may be null. The
 * shard's accumulator must be ADAMANT_NONE. Its begin and rounding_stream say which elements it has, for stochastic
 * rounding; its shape is not looked at. Has the same bits as adamant_step() with the same values, where nothing is
 * rounded by chance: an optimizer goes by the parameter's name. From any thread, for shards that do not overlap.
 * invalid argument, before anything is written: types, pointers, hyperparameters or factors that cannot be, and step
 * number 0. */
ADAMANT_C_API adamant_status adamant_step_shard(const adamant_executor* executor, const adamant_shard* shard,
                                                const adamant_hyperparameters* hyper, uint64_t step_number,
                                                double loss_scale, double clip_coefficient, uint64_t* nonfinite);
/* Float32 masters into halves: weight is the master rounded to bfloat16, to nearest, ties away from zero, and low the
 * rest, 16 bits; together they are the master's bits (a NaN becomes 0x7fc00000). `low` may begin where `master` does,
 * in both directions; otherwise no arrays may overlap. From any thread. invalid argument: a null pointer with elements.
 */
ADAMANT_C_API adamant_status adamant_split_masters(const float* master, size_t elements, void* weight, void* low);
ADAMANT_C_API adamant_status adamant_join_masters(const void* weight, const void* low, size_t elements, float* master);
/* The sum of squares of a gradient's finite elements, and the number of its other elements, in one pass. The sums of
 * blocks of 4096 elements are added exactly and rounded once, so it has the same bits for every instruction set and
 * number of threads. Both results may be null. From any thread. invalid argument: a null pointer with elements, or no
 * type. */
ADAMANT_C_API adamant_status adamant_sum_of_squares(const adamant_executor* executor, const void* grad,
                                                    adamant_dtype dtype, size_t elements, double* sum,
                                                    uint64_t* nonfinite);
/* The norm of several gradients, the same for any order and however they are cut at multiples of 4096 elements: adds
 * one's sum and number to a total, ADAMANT_SQUARES_WORDS words that are zero at first. 20 words are an integer in units
 * of 2^-320, 32 bits each, the lowest first; the last is the number of elements that are not finite. Totals may be
 * added word by word. Errors as above, with nothing added; and invalid argument for words that no total has. */
#define ADAMANT_SQUARES_WORDS 21
ADAMANT_C_API adamant_status adamant_add_squares(const adamant_executor* executor, const void* grad,
                                                 adamant_dtype dtype, size_t elements,
                                                 int64_t words[ADAMANT_SQUARES_WORDS]);
/* A total's sum, rounded once, and number; the norm is the root of the sum. Both results may be null. invalid argument:
 * words that no total has. */
ADAMANT_C_API adamant_status adamant_round_squares(const int64_t words[ADAMANT_SQUARES_WORDS], double* sum,
                                                   uint64_t* nonfinite);

#ifdef __cplusplus
}
#endif

#endif
