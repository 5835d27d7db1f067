/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers that put gradients off (ZenFlow): a few columns of each matrix are stepped at once, the others later,
 * while training goes on. docs/zenflow.md says what is computed; adamant_c.h has the rules. */
#ifndef ADAMANT_C_ZENFLOW_H
#define ADAMANT_C_ZENFLOW_H

#include <adamant/c/device.h>
#include <adamant/c/executor.h>
#include <adamant/c/optimizer.h>
#include <adamant/c/shard.h>
#include <adamant/c/status.h>
#include <adamant/c/step.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t adamant_column_score; /* what columns are selected by: the sum over their rows of */
enum { ADAMANT_COLUMN_MAGNITUDE = 0, ADAMANT_COLUMN_SQUARE = 1 };

typedef int32_t adamant_selection_scope; /* between what columns compete */
enum { ADAMANT_SELECT_EACH_PARAM = 0, ADAMANT_SELECT_ALL_PARAMS = 1 };

typedef int32_t adamant_column_reduction;
enum { ADAMANT_COLUMNS_SUM = 0, ADAMANT_COLUMNS_MAX = 1 };

/* For matrices whose rows are spread over processes: replaces each number by its sum over all processes, or by the
 * largest, as MPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_INT64_T, MPI_SUM or MPI_MAX, comm) does, and returns 0.
 * Any other value fails the step with ADAMANT_REDUCE_FAILED, and nothing has changed. Called twice in a step that
 * selects. Every process has the same params, in the same order; of a matrix of which it has no rows, a shard of no
 * elements. */
typedef int32_t (*adamant_reduce_columns)(void* user, int64_t* numbers, size_t count, adamant_column_reduction how);

/* "Steps" are those that were applied. */
typedef struct adamant_zenflow_options {
    size_t struct_bytes;
    double topk_ratio;      /* 0.1; the share of the columns that is selected, from 0 to 1 */
    size_t select_interval; /* 16; a window's first step selects where so many steps were taken since the last time */
    size_t update_interval; /* 4; steps in a window; 0: it ends as soon as what was put off outweighs what was done */
    double auto_ratio;      /* 1; for 0: how much it has to weigh, in squared norms */
    size_t most_put_off;    /* 64; for 0: the most steps in a window */
    size_t full_warm_up_rounds;            /* 0; so many steps at first are plain steps of everything */
    adamant_column_score score;            /* ADAMANT_COLUMN_MAGNITUDE */
    adamant_selection_scope scope;         /* ADAMANT_SELECT_EACH_PARAM */
    int32_t overlap;                       /* 1; what was put off is stepped while the next window goes on */
    adamant_reduce_columns reduce_columns; /* may be null */
    void* reduce_columns_user;             /* passed to reduce_columns */
} adamant_zenflow_options;
ADAMANT_C_API adamant_status adamant_zenflow_options_init(adamant_zenflow_options* options, size_t struct_bytes);

typedef struct adamant_zenflow adamant_zenflow;

/* Makes such an optimizer, without groups and params, for *made. Both options may be null: the defaults. Of
 * adamant_optimizer_options keep_last_step and weights_ready must not be set; speculate, journal_budget_bytes and
 * device_records mean nothing. The executor may be freed afterwards. invalid argument: options that cannot be. */
ADAMANT_C_API adamant_status adamant_zenflow_create(const adamant_executor* executor,
                                                    const adamant_zenflow_options* zenflow,
                                                    const adamant_optimizer_options* options, adamant_zenflow** made);
/* May be null. Finishes what goes on in the background; weights that have not landed stay as they are. */
ADAMANT_C_API void adamant_zenflow_free(adamant_zenflow* zenflow);

/* As adamant_add_group() and adamant_set_hyperparameters(). */
ADAMANT_C_API adamant_status adamant_zenflow_add_group(adamant_zenflow* zenflow, const char* name,
                                                       const adamant_hyperparameters* hyper, int32_t maximize,
                                                       size_t* group);
ADAMANT_C_API adamant_status adamant_zenflow_set_hyperparameters(adamant_zenflow* zenflow, size_t group,
                                                                 const adamant_hyperparameters* hyper);
/* Adds a param to a group; its number is written to *number, which may be null. columns: of a matrix, whose param,
 * moments and weight_out lie by columns (all rows of the first column, then those of the next), and whose grad lies by
 * rows; weights: its weights by rows, of the type of weight_out, or of param where there is none, which have to be
 * those of the masters. 0 columns: a vector, which is a shard as any other and is stepped at once; weights is null. The
 * shard has no accumulator. Its shape and begin are those of rows: `shape` ends with columns, and begin is a multiple
 * of them. invalid argument: what adamant_add_shard() refuses; a matrix of which the shard has no whole rows, or whose
 * moments of 8 bits have other than whole groups of 64 rows; and after a step. */
ADAMANT_C_API adamant_status adamant_zenflow_add_param(adamant_zenflow* zenflow, size_t group, const char* name,
                                                       const adamant_shard* shard, size_t columns, void* weights,
                                                       size_t* number);
/* How many bytes adamant_zenflow_prepare() allocates for sums of gradients. */
ADAMANT_C_API adamant_status adamant_zenflow_memory_bytes(const adamant_zenflow* zenflow, size_t* bytes);
/* Allocates; otherwise the first step does. invalid argument: arrays that overlap. unavailable: too little memory. */
ADAMANT_C_API adamant_status adamant_zenflow_prepare(adamant_zenflow* zenflow);

/* What a step reports beside adamant_report. */
typedef struct adamant_zenflow_report {
    size_t struct_bytes;
    int32_t warm_up;      /* a plain step of everything */
    int32_t selected;     /* columns were selected anew */
    size_t columns_moved; /* so many of which were not selected before */
    size_t put_off;       /* elements whose gradients were added up */
    int32_t
        window_ended; /* and put_off_stepped elements are stepped with what was added up, now or in the background */
    int32_t put_off_skipped; /* what was added up was not finite, and was dropped */
    size_t put_off_stepped;
    double waited_seconds;  /* for what the window before had put off */
    double landing_seconds; /* and then for its weights to come into use */
    /* How long the executor's threads have worked, on average, on the sums of the step before (with a device), ... */
    double sums_seconds;
    double put_off_seconds; /* ... and, where a window ends, on what the one before it had put off */
} adamant_zenflow_report;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_report_init(adamant_zenflow_report* report, size_t struct_bytes);

/* From the next step on, or in this one, the param's gradient is at `grad`, as adamant_set_gradient() has it. */
ADAMANT_C_API adamant_status adamant_zenflow_set_gradient(adamant_zenflow* zenflow, size_t param, const void* grad);
/* A step with gradients that may be new arrays: grads[i] is param i's, by rows. Null: the param takes no part, and its
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
/* The same as gradients arrive, by one thread at a time: opens a step; says that the param's gradient is there, or that
 * it has none in this step; and ends the step. values and both reports may be null. A gradient may then not change
 * until the step is over.
 *
 * invalid argument: values that cannot be; no step is open, or one already; a param that was submitted or left out, or,
 * for the end, one that was neither; no such param. Of adamant_zenflow_finish(): reduce failed, or unavailable as a
 * selection finds no memory on the device: the step stays open, and adamant_zenflow_abandon() gives it up. device
 * failed: see adamant_zenflow_place(); the step is over. */
ADAMANT_C_API adamant_status adamant_zenflow_begin_step(adamant_zenflow* zenflow, const adamant_step_values* values);
ADAMANT_C_API adamant_status adamant_zenflow_submit(adamant_zenflow* zenflow, size_t param);
ADAMANT_C_API adamant_status adamant_zenflow_leave_out(adamant_zenflow* zenflow, size_t param);
ADAMANT_C_API adamant_status adamant_zenflow_finish(adamant_zenflow* zenflow, adamant_report* report,
                                                    adamant_zenflow_report* more);
/* Gives up the step that is open: nothing has changed. invalid argument: no step is open. device failed: as it says. */
ADAMANT_C_API adamant_status adamant_zenflow_abandon(adamant_zenflow* zenflow);
/* Finishes what goes on in the background and lets its weights land now, as at the end of training. Goes on with other
 * bits than a run in which this is not called. */
ADAMANT_C_API adamant_status adamant_zenflow_land(adamant_zenflow* zenflow);
/* The factor for the next loss. */
ADAMANT_C_API adamant_status adamant_zenflow_loss_scale(const adamant_zenflow* zenflow, double* scale);

/* ---- A device: between steps ---------------------------------------------------------------------------------------
 */

/* Where the param's gradient is made and its weights are wanted, by rows, in the device's memory, at multiples of 16
 * bytes, until all is taken back: of every param with elements, before adamant_zenflow_place(). weight_out is of the
 * type of `weights`; of a vector, of its weight_out, or of its param where there is none. invalid argument: params are
 * on a device already, an address that is missing or not such a multiple, no such param. */
ADAMANT_C_API adamant_status adamant_zenflow_set_device_arrays(adamant_zenflow* zenflow, size_t param, uint64_t grad,
                                                               uint64_t weight_out);
/* Has selected columns and vectors stepped on a device from the next step on, with the same bits, or, where device is
 * null, takes everything back. Until the next selection their masters and moments are in the device's memory alone.
 * adamant_zenflow_submit() takes the norm there and has the gradient come down into the shard's grad, which is best in
 * pinned memory. It is added up while forward and backward go on, so grad is the optimizer's until the param's next
 * adamant_zenflow_submit(). What the host has stepped goes up while the next window goes on, beside the weights in use,
 * for which the device has room for all weights of matrices once more. `weights`, and the vectors' arrays in host
 * memory, are written when everything is taken back and when the state is asked for. The device's handle may be freed.
 *
 * Where a step ends with ADAMANT_DEVICE_FAILED, it has been taken back, by records on the device, and can be taken
 * again; weights of columns that were being selected may be those that were to land. Where only weights could not land,
 * the step has been taken, adamant_zenflow_get_position() counts it, and they land before anything else. Where the
 * device does not come back from that within device_timeout_s, the error says that a state must be loaded.
 *
 * invalid argument: a param has no arrays there, the device has another optimizer's params or shards, and during a
 * step. unavailable, device failed: the device lacks the memory, or has failed; everything is where it was. */
ADAMANT_C_API adamant_status adamant_zenflow_place(adamant_zenflow* zenflow, const adamant_device* device);

/* ---- State --------------------------------------------------------------------------------------------------------
 */

/* Where a run is in its schedule. */
typedef struct adamant_zenflow_position {
    size_t struct_bytes;
    uint64_t steps;           /* applied */
    uint64_t since_selection; /* steps */
    uint64_t in_window;       /* steps */
    int32_t has_selection;
    int32_t has_loss_scaler; /* whether the next three count */
    double loss_scale;
    uint32_t good_steps;
    uint32_t hysteresis_left;
    double done_squares; /* for update_interval 0 */
    double put_off_norm; /* a bound of what has been put off */
} adamant_zenflow_position;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_position_init(adamant_zenflow_position* position, size_t struct_bytes);

/* The state of a param, or of a process's rows of it. Arrays are views, and of as many elements as said. */
typedef struct adamant_zenflow_param {
    size_t struct_bytes;
    const char* name;
    size_t columns;  /* 0: a vector */
    size_t all_rows; /* of the whole matrix; of a vector, its elements */
    size_t first_row;
    size_t rows; /* of a vector, elements */
    const void* param;
    const void* exp_avg;
    const void* exp_avg_sq;
    const void* weight_out;  /* where it is the upper half of the masters, else null */
    const void* weights;     /* by rows; null: made from the masters when loaded */
    const uint64_t* counts;  /* of updates, for each column; of a vector, one */
    const uint8_t* selected; /* of each column: 0 or 1 */
    const uint8_t* landing;  /* of each column: whether its weights follow at the end of the window */
    const float* sums;       /* by rows; null where nothing has been put off in this window */
    uint64_t summed;         /* steps in them */
    adamant_dtype param_dtype;
    adamant_dtype exp_avg_dtype;
    adamant_dtype exp_avg_sq_dtype;
    adamant_dtype weight_out_dtype;
} adamant_zenflow_param;
/* Sets struct_bytes, and all else to zero. */
ADAMANT_C_API adamant_status adamant_zenflow_param_init(adamant_zenflow_param* param, size_t struct_bytes);

/* Finishes what goes on in the background, which changes no bit, and writes where the run is to *position. */
ADAMANT_C_API adamant_status adamant_zenflow_get_position(adamant_zenflow* zenflow, adamant_zenflow_position* position);
/* The same, and the state of param number `number`, whose arrays hold until the next call but this. invalid argument:
 * there is none of that number. */
ADAMANT_C_API adamant_status adamant_zenflow_get_param(adamant_zenflow* zenflow, size_t number,
                                                       adamant_zenflow_param* param);
/* Goes on from there: params are those of all processes that there were, in any order and cut by rows in any way; they
 * are found by their names. Their arrays may be the optimizer's own. Hyperparameters stay. Columns stay selected until
 * the next selection is due. invalid argument: something is missing or of another type, with nothing changed. */
ADAMANT_C_API adamant_status adamant_zenflow_load(adamant_zenflow* zenflow, const adamant_zenflow_position* position,
                                                  const adamant_zenflow_param* params, size_t count);

/* Writes the state, and the groups, to a safetensors file, as adamant_save_safetensors() does. Where the optimizer has
 * rows of a model, they are what the file has. invalid argument: during a step, and text that is no UTF-8. unavailable:
 * the file cannot be written. */
ADAMANT_C_API adamant_status adamant_zenflow_save_safetensors(adamant_zenflow* zenflow, const char* path);
/* Goes on from `count` such files: those of all processes that there were, in any order and cut by rows in any way.
 * Hyperparameters are those of the files. All of a file is checked before anything changes. invalid argument: something
 * is missing, of another type, twice there or of an optimizer that puts nothing off. corrupted, unavailable: as they
 * say; where a file is cut short meanwhile, a state must be loaded before the next step. */
ADAMANT_C_API adamant_status adamant_zenflow_load_safetensors(adamant_zenflow* zenflow, const char* const* paths,
                                                              size_t count);

#ifdef __cplusplus
}
#endif

#endif
