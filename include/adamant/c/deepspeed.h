/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's configuration as options of this library. adamant_c.h has the rules. */
#ifndef ADAMANT_C_DEEPSPEED_H
#define ADAMANT_C_DEEPSPEED_H

#include <adamant/c/cores.h>
#include <adamant/c/optimizer.h>
#include <adamant/c/shard.h>
#include <adamant/c/status.h>
#include <adamant/c/step.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct adamant_deepspeed adamant_deepspeed;

/* Reads the text of a ds_config.json, of `bytes` bytes, for *made. From any thread. invalid argument: the text is no
 * JSON, or has a value that cannot be, with its place. */
ADAMANT_C_API adamant_status adamant_deepspeed_parse(const char* text, size_t bytes, adamant_deepspeed** made);
/* May be null. */
ADAMANT_C_API void adamant_deepspeed_free(adamant_deepspeed* config);
/* Sets the fields that the configuration decides, with DeepSpeed's defaults for keys that it does not have; all other
 * fields stay as they are. Each struct must be initialised, and may be null.
 * hyper, *maximize: all of it, for the one group. Without an optimizer in the configuration the decay is unset.
 * options: max_norm, and loss_scaling, which points into config and lives as long as that.
 * values: the loss scale if it is fixed, else none.
 * cores: the optimizer's or the host framework's share, if the configuration has one.
 * The rest of the configuration: adamant_deepspeed_get_offload() and adamant_deepspeed_model(). */
ADAMANT_C_API adamant_status adamant_deepspeed_apply(const adamant_deepspeed* config, adamant_hyperparameters* hyper,
                                                     int32_t* maximize, adamant_optimizer_options* options,
                                                     adamant_step_values* values, adamant_core_options* cores);
/* What the configuration says about offloading. It is for the engine to act on: the library acts on none of it. */
typedef struct adamant_deepspeed_offload {
    size_t struct_bytes;
    uint64_t sub_group_size_elems; /* stage 3 steps so many params at a time; 0: each tensor alone */
    double ratio;                  /* the share of the params that the CPU steps, from 0 to 1 */
    double cpuadam_cores_perc;     /* of a rank's cores; 0: not given. The same holds for the next */
    double pt_reserved_cores_perc;
    uint32_t zero_stage;   /* 0 to 3 */
    int32_t offload;       /* whether the CPU steps at all: device is "cpu" */
    int32_t pin_memory;    /* the CPU's arrays in page-locked memory */
    int32_t super_offload; /* step while gradients still arrive */
} adamant_deepspeed_offload;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_deepspeed_offload_init(adamant_deepspeed_offload* offload, size_t struct_bytes);
ADAMANT_C_API adamant_status adamant_deepspeed_get_offload(const adamant_deepspeed* config,
                                                           adamant_deepspeed_offload* offload);
/* The type of gradients and weights, and how many micro-steps are accumulated (0: it follows from the batch sizes).
 * Each result may be null. */
ADAMANT_C_API adamant_status adamant_deepspeed_model(const adamant_deepspeed* config, adamant_dtype* type,
                                                     uint32_t* accumulation_steps);
/* Writes warning number `index`, about a key that means nothing here, to *text; null after the last one. The text lives
 * as long as config. */
ADAMANT_C_API adamant_status adamant_deepspeed_warning(const adamant_deepspeed* config, size_t index,
                                                       const char** text);

#ifdef __cplusplus
}
#endif

#endif
