/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an optimizer: step count, loss scaler, groups, params and moments. adamant_c.h has the rules. */
#ifndef ADAMANT_C_STATE_H
#define ADAMANT_C_STATE_H

#include <adamant/c/optimizer.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Step count and loss scaler -----------------------------------------------------------------------------------
 */

/* For an engine that restores its own count: the next step is number steps + 1. Params, moments, loss scaler and
 * accumulators stay. The last step can then no longer be rolled back. invalid argument: during a step. */
ADAMANT_C_API adamant_status adamant_set_steps(adamant_optimizer* optimizer, uint64_t steps);

/* What dynamic loss scaling has learned. */
typedef struct adamant_loss_scaler {
    size_t struct_bytes;
    double scale;
    uint32_t good_steps;      /* in a row */
    uint32_t hysteresis_left; /* how many more overflows until the scale backs off */
} adamant_loss_scaler;
/* Sets struct_bytes, scale and hysteresis_left to 1, and all else to zero. */
ADAMANT_C_API adamant_status adamant_loss_scaler_init(adamant_loss_scaler* scaler, size_t struct_bytes);
/* *found says whether loss scaling is dynamic; if not, the scaler is not written. Its struct_bytes must be set. */
ADAMANT_C_API adamant_status adamant_get_loss_scaler(const adamant_optimizer* optimizer, adamant_loss_scaler* scaler,
                                                     int32_t* found);
/* Holds from the next step on. The last step can then no longer be rolled back. invalid argument: a scale whose inverse
 * no float holds, no dynamic loss scaling in the options, and during a step. */
ADAMANT_C_API adamant_status adamant_set_loss_scaler(adamant_optimizer* optimizer, const adamant_loss_scaler* scaler);

/* ---- Checkpoints in files ---------------------------------------------------------------------------------------- */

/* Writes step count, loss scaler, groups and all params and moments to a safetensors file. Whatever happens, whoever
 * opens the path finds the old file or the new one, both whole. Gradients accumulated since the last step are not in
 * it. invalid argument: during a step. unavailable: the file cannot be written, with the system's reason. Where the
 * file is complete, but the file system cannot sync its folder or set its permission bits, the status is OK and
 * adamant_last_error() says so; it is empty where nothing is missing. */
ADAMANT_C_API adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path);
/* Performs every system call of a save on a small file next to the path, before hours of training, and returns what a
 * save would; adamant_last_error() likewise. What is at the path is not touched. unavailable: a save would fail. */
ADAMANT_C_API adamant_status adamant_check_can_save(const char* path);
/* Loads what was saved, from one file or from those of several ranks of one run, however it was cut: ranks may have
 * parts of a parameter, or whole ones that others lack. Groups are found by their names and shards by those of their
 * parameters; weight_out is made of param. Everything is checked first. invalid argument: something is missing or of
 * another shape or type, and during a step. unavailable: a file cannot be read. corrupted: a file is damaged. If
 * another program cuts a file short or writes into it during the call, that is corrupted, too; params and moments may
 * then be overwritten in part, and no step can be taken before a load succeeds. */
ADAMANT_C_API adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths,
                                                      size_t count);

/* ---- Checkpoints in memory ----------------------------------------------------------------------------------------
 */

/* How many bytes adamant_save_memory() would write now. invalid argument: during a step. */
ADAMANT_C_API adamant_status adamant_save_bytes(const adamant_optimizer* optimizer, size_t* bytes);
/* Writes the bytes of such a file to the caller's memory, of `bytes` bytes, which must not overlap any array of the
 * optimizer's. How many were written goes to *written, which may be null. invalid argument: too little memory, with how
 * much is needed, and during a step. */
ADAMANT_C_API adamant_status adamant_save_memory(const adamant_optimizer* optimizer, void* to, size_t bytes,
                                                 size_t* written);
/* As adamant_load_safetensors(), from `count` states in memory: states[i] has bytes[i] bytes, which must not change
 * during the call. They may come from files of adamant_save_safetensors(), too. */
ADAMANT_C_API adamant_status adamant_load_memory(adamant_optimizer* optimizer, const void* const* states,
                                                 const size_t* bytes, size_t count);

/* ---- Views, for checkpoints in a form of the caller's own ---------------------------------------------------------
 */

/* A list of all tensors of the state as views of the shards' arrays. It holds for the shards that there were when it
 * was made, and as long as their arrays; it shows what the arrays hold at any time. What a device has of the state is
 * copied into the arrays when the list is made (see adamant_update_host_arrays()). Gradients accumulated since the last
 * step are no part of the state. */
typedef struct adamant_state adamant_state;
/* Makes the list for *made. invalid argument: during a step. device failed: as it says. */
ADAMANT_C_API adamant_status adamant_state_create(adamant_optimizer* optimizer, adamant_state** made);
/* May be null. */
ADAMANT_C_API void adamant_state_free(adamant_state* state);
/* From any thread, as the next one. */
ADAMANT_C_API adamant_status adamant_state_tensor_count(const adamant_state* state, size_t* count);

typedef int32_t adamant_state_array;
enum { ADAMANT_STATE_PARAM = 0, ADAMANT_STATE_EXP_AVG = 1, ADAMANT_STATE_EXP_AVG_SQ = 2 };

/* Elements [begin, begin + elements) of one array of a parameter, in row-major order. The texts and the shape live as
 * long as the list. */
typedef struct adamant_state_tensor {
    size_t struct_bytes;
    const char* param; /* the parameter's name */
    const char* group; /* the name of its parameter group */
    /* In the shard's own array. Null if there are no elements, and for split masters (ADAMANT_SPLIT_FLOAT32), which are
     * no array of the tensor's dtype, float32: adamant_state_read_tensor() copies them as one. */
    const void* data;
    size_t elements;
    size_t begin;
    const size_t* shape; /* of the whole parameter */
    size_t dims;
    adamant_dtype dtype;
    adamant_state_array array;
} adamant_state_tensor;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_state_tensor_init(adamant_state_tensor* tensor, size_t struct_bytes);
/* Tensor number `index` of the list. invalid argument: there is none of that number. */
ADAMANT_C_API adamant_status adamant_state_get_tensor(const adamant_state* state, size_t index,
                                                      adamant_state_tensor* tensor);
/* Copies `elements` elements of tensor number `index`, the first of which is number `begin` in the tensor (not in the
 * parameter), to the caller's memory, as an array of the tensor's dtype, wherever `data` is. Of ADAMANT_QUANTIZED8
 * whole groups. From any thread. invalid argument: no such tensor or elements, or a null pointer with elements. */
ADAMANT_C_API adamant_status adamant_state_read_tensor(const adamant_state* state, size_t index, size_t begin,
                                                       size_t elements, void* to);

#ifdef __cplusplus
}
#endif

#endif
