/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an optimizer: step count, loss scaler, groups, params and moments. adamant_c.h has the rules. */
#ifndef ADAMANT_C_STATE_H
#define ADAMANT_C_STATE_H

#include <adamant/c/optimizer.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Checkpoints in files ---------------------------------------------------------------------------------------- */

/* Writes step count, loss scaler, groups and all params and moments to a safetensors file. Whatever happens, whoever
 * opens the path finds the old file or the new one, both whole. Gradients accumulated since the last step are not in
 * it. invalid argument: during a step. unavailable: the file cannot be written, with the system's reason. */
ADAMANT_C_API adamant_status adamant_save_safetensors(const adamant_optimizer* optimizer, const char* path);
/* Loads what was saved, from one file or from those of several ranks of one run, however it was cut: ranks may have
 * parts of a parameter, or whole ones that others lack. Groups are found by their names and shards by those of their
 * parameters; weight_out is made of param. Everything is checked first. invalid argument: something is missing or of
 * another shape or type, and during a step. unavailable: a file cannot be read. corrupted: a file is damaged. If
 * another program cuts a file short or writes into it during the call, that is corrupted, too; params and moments may
 * then be overwritten in part, and no step can be taken before a load succeeds. */
ADAMANT_C_API adamant_status adamant_load_safetensors(adamant_optimizer* optimizer, const char* const* paths,
                                                      size_t count);

#ifdef __cplusplus
}
#endif

#endif
