/* SPDX-License-Identifier: Apache-2.0 */
/* Which shards, and parts of shards, the CPU steps and which a device. adamant_c.h has the rules. */
#ifndef ADAMANT_C_SPLIT_H
#define ADAMANT_C_SPLIT_H

#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- From a ratio to a placement ----------------------------------------------------------------------------------
 */

typedef int32_t adamant_split_unit; /* what may be cut */
enum {
    ADAMANT_SPLIT_ELEMENT = 0,  /* one shard, at a multiple of 4096 elements: the ratio is met to half of that */
    ADAMANT_SPLIT_SHARD = 1,    /* none: the set of whole shards that comes nearest */
    ADAMANT_SPLIT_DEEPSPEED = 2 /* none, and DeepSpeed's rule: the first int((1 - ratio) * n) of n go to the device */
};

typedef int32_t adamant_split_order; /* which shards go to the device first */
enum {
    ADAMANT_SPLIT_FRONT =
        0,                 /* the first ones: backward brings their gradients last, forward needs their weights first */
    ADAMANT_SPLIT_BACK = 1 /* the last ones */
};

typedef struct adamant_split_options {
    size_t struct_bytes;
    double ratio;               /* 1; the share of the elements that the CPU steps */
    adamant_split_unit unit;    /* ADAMANT_SPLIT_ELEMENT */
    adamant_split_order order;  /* ADAMANT_SPLIT_FRONT */
    const size_t* device_order; /* all shards by number, the first for the device first; null with a count of 0: as
                                 * order says. Not with ADAMANT_SPLIT_DEEPSPEED */
    size_t device_order_count;
    size_t most_on_cpu;    /* elements that its memory has room for; ADAMANT_NO_LIMIT */
    size_t most_on_device; /* the same */
} adamant_split_options;
#define ADAMANT_NO_LIMIT SIZE_MAX
ADAMANT_C_API adamant_status adamant_split_options_init(adamant_split_options* options, size_t struct_bytes);

typedef struct adamant_placement adamant_placement;

/* Makes the placement of `count` shards of these sizes in elements, in the order of adamant_shard_sizes(), for *made.
 * Depends only on its arguments. A limit that stands against the ratio is kept, and adamant_placement_describe() says
 * so. From any thread. invalid argument: options that cannot be, or more than 2^53 elements. unavailable: both memories
 * together are too small, or no cut of this kind fits them; ADAMANT_SPLIT_DEEPSPEED, whose rule does not bend, and a
 * limit that stands against it. */
ADAMANT_C_API adamant_status adamant_split(const size_t* sizes, size_t count, const adamant_split_options* options,
                                           adamant_placement** made);

/* Elements [begin, begin + elements) of a shard. begin is a multiple of 4096. This struct never grows, so it has no
 * struct_bytes. */
typedef struct adamant_piece {
    size_t shard;
    size_t begin;
    size_t elements;
    size_t on_device; /* 0: stepped by the CPU, 1: by the device */
} adamant_piece;
/* Makes a placement of the caller's own for *made: each element of every shard in one piece, in the order of shards and
 * elements, shards without elements in none. Whether that is so is checked when it is used. invalid argument: on_device
 * is neither 0 nor 1. */
ADAMANT_C_API adamant_status adamant_placement_create(const adamant_piece* pieces, size_t count,
                                                      adamant_placement** made);
/* May be null. */
ADAMANT_C_API void adamant_placement_free(adamant_placement* placement);

typedef struct adamant_placement_summary {
    size_t struct_bytes;
    size_t pieces;
    size_t cpu_elems;
    size_t device_elems;
    double ratio;       /* the share of the elements that the CPU has; 1 where there are none */
    double ratio_asked; /* of adamant_split(); else ratio */
    int32_t limited;    /* a memory limit stood against the ratio, and this is the nearest that it allows */
    int32_t nearest;    /* no other placement of this kind within the limits comes nearer to the ratio */
} adamant_placement_summary;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_placement_summary_init(adamant_placement_summary* summary, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_placement_describe(const adamant_placement* placement,
                                                        adamant_placement_summary* summary);
/* Piece number `index`. invalid argument: there is none of that number. */
ADAMANT_C_API adamant_status adamant_placement_piece(const adamant_placement* placement, size_t index,
                                                     adamant_piece* piece);

/* ---- The best ratio ---------------------------------------------------------------------------------------------- */

/* What a step of training is made of, at the rates of the rank that it is for. */
typedef struct adamant_step_rates {
    size_t struct_bytes;
    double elems;           /* of the optimizer, on both sides */
    double cpu_elems_per_s; /* INFINITY, as the next four rates: what does not limit the step */
    double device_elems_per_s;
    double down_bytes_per_s;   /* from the device to the host */
    double up_bytes_per_s;     /* from the host to the device */
    double grad_bytes;         /* 2; of an element, where they cross the link */
    double weight_bytes;       /* 2 */
    double backward_s;         /* 0 */
    double forward_s;          /* 0 */
    double fixed_s;            /* 0; of each step, whatever the ratio */
    int32_t arrays_on_device;  /* 1: gradients are made and weights are wanted on the device; 0: in host memory */
    int32_t overlaps_backward; /* 1: shards are submitted while backward makes gradients; 0: all comes after it */
    int32_t overlaps_forward;  /* 0: forward begins after all else; 1: when its first weights are there */
} adamant_step_rates;
ADAMANT_C_API adamant_status adamant_step_rates_init(adamant_step_rates* rates, size_t struct_bytes);
/* How many seconds a step takes with this ratio, and how many of them the optimizer adds to backward and forward. Each
 * result may be null. Depends only on its arguments; from any thread. invalid argument: rates, times or a ratio that
 * cannot be. */
ADAMANT_C_API adamant_status adamant_forecast(const adamant_step_rates* rates, double ratio, double* step_s,
                                              double* update_s);
/* The ratio from `least` to `most` with the shortest step; of several the largest, which leaves the device the most
 * memory. And the seconds of that step, which may be null. All else as above. */
ADAMANT_C_API adamant_status adamant_best_ratio(const adamant_step_rates* rates, double least, double most,
                                                double* ratio, double* step_s);

#ifdef __cplusplus
}
#endif

#endif
