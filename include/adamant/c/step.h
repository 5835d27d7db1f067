/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of an optimizer, and what they report. adamant_c.h has the rules. */
#ifndef ADAMANT_C_STEP_H
#define ADAMANT_C_STEP_H

#include <adamant/c/optimizer.h>
#include <adamant/c/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The values of one step. Those that are not given are the optimizer's. */
typedef struct adamant_step_values {
    size_t struct_bytes;
    int32_t has_loss_scale;   /* whether loss_scale counts; else it is the dynamic one, or 1 */
    int32_t has_max_norm;     /* whether max_norm counts; then max_abs_grad of the options does not */
    int32_t has_max_abs_grad; /* whether max_abs_grad counts; then max_norm of the options does not */
    double loss_scale;        /* what the loss was multiplied by; finite, above 0 */
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
    int32_t speculated;           /* shards were stepped before the norm was known */
    int32_t rolled_back;          /* and that was taken back, as the norm called for clipping or a skip */
    int32_t has_first_nonfinite;  /* whether the two fields below count: this process has nonfinite gradients */
    size_t first_nonfinite_shard; /* the first shard that has one, in the order of shards */
    size_t first_nonfinite_index; /* and the first such element of it */
    uint64_t nonfinite_grads;     /* over all processes */
    double loss_scale;
    double global_norm; /* of the finite gradients, unscaled, over all processes; a NaN where measured is 0 */
    double clip_coefficient;
    size_t elements;          /* stepped */
    size_t shards_waited;     /* for the norm: finish came first, or the journal was full */
    size_t journal_bytes;     /* written */
    double seconds;           /* from beginning to end, with the time that gradients took to arrive */
    double gradients_seconds; /* until the norm was known: computing it, and what was stepped meanwhile */
    double update_seconds;    /* from then on */
    size_t gradients_bytes;   /* of memory traffic, counted and not measured */
    size_t update_bytes;
    uint32_t threads;
    const char* isa; /* lives for ever */
    const char* pus; /* that the threads are bound to; lives as long as the optimizer */
    /* With a device; without one ratio is 1, and what is said of the device is 0. */
    double ratio;               /* the share of `elements` that the CPU has stepped */
    double cpu_busy_seconds;    /* how long the CPU's threads have worked, on average */
    double device_work_seconds; /* how long the device was busy with passes, ... */
    double device_up_seconds;   /* ... copies from the host, ... */
    double device_down_seconds; /* ... and copies to it */
    size_t device_elements;     /* stepped there */
    size_t device_work_bytes;   /* read and written by passes */
    size_t device_up_bytes;     /* copied */
    size_t device_down_bytes;
    /* Whether gradients were looked at before the step. Not where nobody clips by norm, scales the loss dynamically,
     * reduces over processes, or asks that steps with infinities or NaNs be skipped or these be zeroed: that saves
     * reading them twice. nonfinite_grads is 0 then, whatever there was. */
    int32_t measured;
    double
        cpu_quota; /* as adamant_cpu_quota() said when the executor was made: fewer CPUs than threads make steps slow */
} adamant_report;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_report_init(adamant_report* report, size_t struct_bytes);

/* How many steps have been applied. */
ADAMANT_C_API adamant_status adamant_steps(const adamant_optimizer* optimizer, uint64_t* steps);
/* What the next loss is to be multiplied by: the dynamic scale, or 1. */
ADAMANT_C_API adamant_status adamant_loss_scale(const adamant_optimizer* optimizer, double* scale);

/* A whole step, when all gradients are there: one pass over memory, or two if the norm or the finiteness has to be
 * known first. values may be null: all are the optimizer's. report may be null; else its struct_bytes must be set.
 * invalid argument: values that cannot be, and while another step is under way. */
ADAMANT_C_API adamant_status adamant_step(adamant_optimizer* optimizer, const adamant_step_values* values,
                                          adamant_report* report);

/* adamant_step() over gradients that are elsewhere than in the step before: grads[i] is shard i's, as by
 * adamant_set_gradient(), and a null pointer leaves the shard out, as adamant_leave_out() does. grads has `count`
 * elements, as many as there are shards, and may be null with a count of 0. Errors as for those; the state is as before
 * then, but gradients may be set. */
ADAMANT_C_API adamant_status adamant_step_gradients(adamant_optimizer* optimizer, const void* const* grads,
                                                    size_t count, const adamant_step_values* values,
                                                    adamant_report* report);

/* Opens a step whose gradients arrive one by one; it has the bits of adamant_step(). values as there. */
ADAMANT_C_API adamant_status adamant_begin_step(adamant_optimizer* optimizer, const adamant_step_values* values);
/* Says that this shard's gradient is there. The executor's threads begin with it, and the call returns at once. The
 * gradient must not change until adamant_finish() has returned. From any thread. invalid argument: no such shard, one
 * that was submitted or left out already, and where no step is open. With a device, any other error fails the step:
 * adamant_finish() then takes it back, with ADAMANT_DEVICE_FAILED. */
ADAMANT_C_API adamant_status adamant_submit(adamant_optimizer* optimizer, size_t shard);
/* adamant_set_gradient() and adamant_submit() in one call, which fails as either does. From any thread. */
ADAMANT_C_API adamant_status adamant_submit_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad);
/* Says that this shard has no gradient in this step: it stays as it is, and what was accumulated for it is forgotten.
 * From any thread; errors as above. */
ADAMANT_C_API adamant_status adamant_leave_out(adamant_optimizer* optimizer, size_t shard);
/* Waits for what was submitted and completes the step: applied or skipped. report as for adamant_step().
 * invalid argument: a shard was neither submitted nor left out. reduce failed: as reduce said. After either the step
 * stays open: call this again, or adamant_abandon(). With a device, any other error has taken the step back; see
 * adamant_place(). */
ADAMANT_C_API adamant_status adamant_finish(adamant_optimizer* optimizer, adamant_report* report);
/* Gives up the step that is open: params and moments are as before it, to the bit, and weight_out is made of param.
 * Accumulated gradients stay. unavailable, and the step stays open: shards were submitted to a step that needs no norm
 * (it neither skips nor clips by it, and there is no reduce), without keep_last_step. */
ADAMANT_C_API adamant_status adamant_abandon(adamant_optimizer* optimizer);
/* Takes back the last step, which must have been applied with keep_last_step. Since then no step may have been begun,
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

/* Adds the shard's gradient to its accumulator. Call it for all micro-steps except the last one, whose gradient
 * adamant_submit() or adamant_step() adds by itself. Returns when it is done, so the gradient's memory may be used
 * again. The first call after a step overwrites what the accumulator holds. The sum is not divided: have the loss scale
 * count the micro-steps. The last step can then no longer be rolled back. invalid argument: a shard without
 * accumulator, one that was submitted, and during adamant_step_async(). */
ADAMANT_C_API adamant_status adamant_accumulate(adamant_optimizer* optimizer, size_t shard);
/* Forgets what was accumulated. The last step can then no longer be rolled back. */
ADAMANT_C_API adamant_status adamant_clear_accumulators(adamant_optimizer* optimizer);

/* adamant_step() that returns at once. Until adamant_wait() has said that the step is over, the optimizer takes no
 * other calls than adamant_poll() and adamant_wait(). */
ADAMANT_C_API adamant_status adamant_step_async(adamant_optimizer* optimizer, const adamant_step_values* values);
/* Whether the step is over, and the share that is done, from 0 to 1, of the passes that are known to be needed. Either
 * result may be null. Never blocks for long. invalid argument: there is no such step. */
ADAMANT_C_API adamant_status adamant_poll(const adamant_optimizer* optimizer, int32_t* over, double* progress);
#define ADAMANT_FOR_EVER UINT64_MAX
/* Waits for at most so many nanoseconds, or ADAMANT_FOR_EVER. If the step is over, *over is 1, the report (which may be
 * null) is written, and the optimizer takes all calls again. If not, *over is 0 and the step goes on. over may be null
 * with ADAMANT_FOR_EVER. invalid argument: there is no such step. reduce failed: as reduce said; the step is over and
 * has changed nothing, and *over is 1. */
ADAMANT_C_API adamant_status adamant_wait(adamant_optimizer* optimizer, uint64_t timeout_ns, int32_t* over,
                                          adamant_report* report);

#ifdef __cplusplus
}
#endif

#endif
