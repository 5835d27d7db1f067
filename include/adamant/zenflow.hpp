// SPDX-License-Identifier: Apache-2.0
// ZenFlow: deferred updates of the less important gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/device.hpp>
#include <adamant/executor.hpp>
#include <adamant/formats.hpp>
#include <adamant/offload_config.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/numerics/column_score.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Which columns compete for selection.
enum class selection_scope : std::uint8_t {
    each_param, ///< each matrix has its own share
    all_params, ///< one share of all elements; columns compete by their score per element
};

/// What zenflow_options::reduce_columns computes over ranks.
enum class column_reduction : std::uint8_t { sum, max };

/// Options of ZenFlow (Lan and others, arXiv 2505.12242). Options shared with DeepSpeed have its names, except
/// overlap (DeepSpeed: overlap_step).
/// "Steps" are applied steps.
struct zenflow_options {
    /// Share of the columns that is selected, from 0 to 1. Of n columns, topk_ratio * n are selected, rounded to the
    /// nearest integer (half up), but at least one unless the ratio is 0. With selection_scope::all_params, topk_ratio
    /// is the share of the elements of all matrices together. Columns are then selected in descending order of their
    /// scores per element until the next one would exceed this share, so some or all matrices may get none. 1: nothing
    /// is deferred.
    double topk_ratio = 0.1;
    column_score score = column_score::magnitude;        ///< how columns are scored
    selection_scope scope = selection_scope::each_param; ///< which columns compete with each other
    /// The first step of a window selects again if at least this many steps were taken since the last selection.
    std::size_t select_interval = 16;
    /// Steps in a window. Absent: the window ends after max_deferred steps, or once D > 0 and D >= auto_ratio * S. D is
    /// the squared norm of the deferred sums. S adds up, over the window's steps, the squared norms of the selected
    /// columns' gradients. Vectors count in neither.
    std::optional<std::size_t> update_interval = 4;
    /// If update_interval is absent: how much the deferred gradients must outweigh the applied ones. Differs from
    /// DeepSpeed's auto_ratio, which is a share of matrices.
    double auto_ratio = 1;
    std::size_t max_deferred = 64;       ///< maximum number of steps in a window without update_interval
    std::size_t full_warm_up_rounds = 0; ///< number of plain steps before ZenFlow begins
    /// Whether deferred gradients are applied during the next window, and the new weights published at its end; false:
    /// both happen immediately. With overlap the updates are the same, but the model sees the new weights one
    /// window later.
    bool overlap = true;
    /// For matrices whose rows are sharded over ranks: replaces each number by its sum or maximum over all ranks, as
    /// MPI_Allreduce(MPI_IN_PLACE, numbers.data(), numbers.size(), MPI_INT64_T, MPI_SUM or MPI_MAX, comm) does. Called
    /// twice in a step that selects. Every rank has the same params in the same order; a rank without rows of a matrix
    /// has a shard without elements for it. May throw; numbers that are no sum or maximum of those passed throw
    /// invalid_argument. Then the step has changed nothing. It must not call this optimizer.
    std::function<void(std::span<std::int64_t> numbers, column_reduction how)> reduce_columns = {};
};

/// Checks the options.
/// @throws invalid_argument for the first invalid option
void validate(zenflow_options const& options);

/// Returns the options of a DeepSpeed configuration; zenflow_config::never becomes the largest std::size_t. Pure.
/// @throws invalid_argument as validate() does
[[nodiscard]] zenflow_options zenflow_options_of(zenflow_config const& config);

/// Position of a run in its schedule, a part of the state. Plain data.
struct zenflow_position {
    std::uint64_t steps = 0;           ///< steps that were applied
    std::uint64_t since_selection = 0; ///< steps since the last selection
    std::uint64_t in_window = 0;       ///< steps in this window
    bool has_selection = false;        ///< whether columns have been selected
    /// Without update_interval: sum of the squared norms of the selected columns' gradients over the window.
    double done_squares = 0;

    /// Compares all members.
    friend bool operator==(zenflow_position const&, zenflow_position const&) = default;
};

/// Whether the next step is a plain step. Pure.
[[nodiscard]] bool is_in_warm_up(zenflow_options const& options, zenflow_position const& position) noexcept;
/// Whether the next step selects columns. Pure.
[[nodiscard]] bool selects_next(zenflow_options const& options, zenflow_position const& position) noexcept;
/// Whether the last step, which `position` already counts, ends the window. deferred_squares: squared norm of the
/// deferred gradients, for an absent update_interval. Pure.
[[nodiscard]] bool ends_window(zenflow_options const& options, zenflow_position const& position,
                               double deferred_squares) noexcept;

/// Report of a ZenFlow step. `elements` counts those updated in this step.
struct zenflow_report : optimizer_report {
    bool warm_up = false;          ///< whether it was a plain step of all elements
    bool selected = false;         ///< whether columns were selected anew
    std::size_t columns_moved = 0; ///< selected columns that were not selected before
    std::size_t deferred = 0;      ///< elements whose gradients were accumulated
    bool window_ended = false;     ///< whether the window ended with this step
    /// Elements whose deferred gradients are applied: now, or with overlap during the next window.
    std::size_t deferred_stepped = 0;
    /// Whether the deferred gradients were not finite and were dropped (nonfinite_policy::skip).
    bool deferred_skipped = false;
    double waited_s = 0;  ///< time that this window's end waited for the previous window's update
    double publish_s = 0; ///< time to publish the weights of that update
    /// Mean busy time of the executor's threads in accumulating the previous step's gradients.
    double sums_s = 0;
    double deferred_s = 0; ///< mean busy time of these threads in that update
};

/// State of one param, or of a rank's rows of it. The arrays are views of the optimizer's params or of a saved state.
struct zenflow_state_param {
    std::string name;          ///< name of the param
    std::size_t group = 0;     ///< index in zenflow_state::groups
    std::size_t columns = 0;   ///< columns of the matrix; 0: a vector
    std::size_t all_rows = 0;  ///< rows of the whole matrix; elements of a vector
    std::size_t first_row = 0; ///< index of this rank's first row
    std::size_t rows = 0;      ///< rows here; elements of a vector
    shard_dtypes types = {};   ///< element types
    /// State arrays by shard_array. Those of a matrix are stored by columns: `rows` elements of the first column, then
    /// of the next.
    std::byte const* arrays[shard_arrays] = {};
    /// Row-major weights of a matrix. Their type is that of weight_out, or that of param if there is no weight_out.
    /// Null: computed from the masters.
    std::byte const* weights = nullptr;
    std::vector<std::uint64_t> counts = {};  ///< update counts: one for each column, or one for a vector
    std::vector<std::uint8_t> selected = {}; ///< 1 for each selected column, else 0
    /// Columns whose new weights are published at the end of the window.
    std::vector<std::uint8_t> publishing = {};
    float const* sums = nullptr; ///< row-major deferred gradients; null if there are none
    std::uint64_t summed = 0;    ///< number of steps whose gradients are in `sums`
    /// If not null, loading and saving read the arrays through it, as for a state_tensor.
    state_source const* source = nullptr;
};

/// State of a ZenFlow optimizer, also in the middle of a window: everything that is needed to continue with the same
/// bits.
struct zenflow_state {
    zenflow_position position;                    ///< position in the schedule
    double deferred_norm = 0;                     ///< sum of the clipped norms of this window; bounds the deferred sums
    std::optional<loss_scaler_state> loss_scaler; ///< state of dynamic loss scaling
    std::vector<parameter_group> groups;          ///< parameter groups in order
    std::vector<zenflow_state_param> params;      ///< params in order
    /// The caller's own entries, as in a state_dict.
    std::map<std::string, std::string> metadata = {};
};

namespace detail {
struct zenflow_core;
struct delete_zenflow_core {
    void operator()(zenflow_core* core) const noexcept;
};
} // namespace detail

/// A param for zenflow_optimizer::add_param(). Its arrays must outlive the optimizer.
///
/// The state of a matrix is stored by columns: param, exp_avg, exp_avg_sq and weight_out of the shard hold all rows of
/// the first column, then those of the next. A column is contiguous, so it can be updated and moved on its own, and its
/// updates are counted separately. The shard's grad and `weights` are row-major, as in the model. The type of `weights`
/// is that of weight_out, or that of param if there is no weight_out. 8-bit moments are in groups of 64 rows of a
/// column, so the number of rows is a multiple of 64.
///
/// A vector (columns 0) is an ordinary shard and is updated every step; its weights are weight_out, or param.
struct zenflow_param {
    group_id group;   ///< the group
    std::string name; ///< name of the param
    /// Its arrays. Bits for changed weights (see any_shard::track()) are in the order of `weights` and are set when
    /// weights are published. If changes are tracked and there is a device, `weights` and a vector's weights in
    /// host memory are always kept equal to those on the device.
    optimizer_shard shard;
    std::size_t columns = 0; ///< columns of the matrix; 0: a vector
    void* weights = nullptr; ///< where weights are published
    /// Position of the shard in its parameter, in whole rows: the last dimension of `shape` is `columns`, and `begin`
    /// is a multiple of `columns`. The default is the whole parameter.
    shard_position position = {};
};

/// Adam or AdamW over parameter groups with exact deferred updates (docs/zenflow.md).
///
/// A step computes the norm of the whole gradient, and clips or skips as class optimizer does. It updates each selected
/// column and adds the gradient of every other column, scaled and clipped, to its sum. At the end of a window (see
/// zenflow_options) each column that was not selected takes one update. Its gradient is the column's sum times float(1
/// / n), where n is the number of steps in the sum; its hyperparameters are those of the step that ends the window.
/// With overlap, idle executor threads do that (the caller does a small update itself), and the weights are published
/// at the end of the next window. A newly selected column takes its deferred update first, and its weights are
/// published immediately.
///
/// Every element has one master and one pair of moments; every column has its own update count for bias correction. The
/// result is a pure function of gradients and options: the same bits for any instruction set, number of threads, timing
/// of background work, number of ranks, and row boundaries (at multiples of norm_block_elems, if steps are clipped).
/// With topk_ratio 1, or with update_interval 1 and no overlap, the result has the same bits as that of class optimizer
/// over the same arrays.
///
/// A skipped step changes nothing but a dynamic loss scale, and does not count towards update_interval and
/// select_interval. A deferred sum may overflow although every gradient was finite. Then nonfinite_policy::skip drops
/// the deferred update, `zero` counts the sum's non-finite elements as 0, and `apply` uses them.
///
/// keep_last_step and weights_ready are refused; speculate, journal_budget_bytes and device_records have no effect.
///
/// Thread safety: one call at a time. Gradients must not change during step(). Background work touches state and
/// weight_out of deferred columns, never the arrays `weights`. The caller's floating-point mode and traps have no
/// effect and do not change.
///
/// Errors: if a call throws, the optimizer is unchanged unless the function says otherwise. If a device could not
/// publish weights, calls that use the state (steps, flush(), place(), state()) publish them first, and throw
/// device_error if that fails. While params and moments are inconsistent, these calls, except place(nullptr), throw
/// device_error, or without a device invalid_argument. After step() throws, no copy between the caller's arrays and a
/// device is in progress any more, unless the device does not answer. In a forked child process, step calls, flush(),
/// place() and load() throw unavailable; if work was in flight at the fork, every non-const call throws it. In that
/// case the destructor in the child process does not wait, and leaks what threads were working on.
class zenflow_optimizer {
public:
    /// Uses the threads of the executor.
    /// @throws invalid_argument for invalid options
    explicit zenflow_optimizer(executor const& cpu, zenflow_options zenflow = {}, optimizer_options options = {});
    /// Moves the optimizer; the moved-from one may only be destroyed or assigned to.
    zenflow_optimizer(zenflow_optimizer&& other) noexcept;
    /// Moves the optimizer; the moved-from one may only be destroyed or assigned to.
    zenflow_optimizer& operator=(zenflow_optimizer&& other) noexcept;
    /// Finishes background work. Unpublished weights stay unpublished.
    ~zenflow_optimizer();

    /// See optimizer::add_group().
    group_id add_group(parameter_group group);
    /// See optimizer::add_group().
    group_id add_group(std::string name, hyperparameters const& hyper, bool maximize = false);
    /// All groups, by number. The reference is valid as long as the optimizer.
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept;
    /// See optimizer::set_hyperparameters().
    void set_hyperparameters(group_id group, hyperparameters const& hyper);

    /// Adds a param and returns its number. Before the first step, weights must equal the rounded masters.
    /// @throws invalid_argument as optimizer::add_shard() does; for a matrix without `weights` and a vector with
    /// `weights`; for a matrix whose shard does not hold whole rows; for a matrix with 8-bit moments whose number of
    /// rows is not a multiple of 64; after a step, and after place()
    shard_id add_param(zenflow_param added);
    /// Number of params.
    [[nodiscard]] std::size_t params() const noexcept;
    /// Name of a param. Valid until add_param().
    /// @throws invalid_argument for an unknown number
    [[nodiscard]] std::string const& name(shard_id param) const;
    /// Uses another gradient buffer of the same size and type from now on. Call it between steps, or in an open step
    /// before the submit() of the param.
    /// @throws invalid_argument as optimizer::set_gradient() does, and with a device for any array but the shard's own
    void set_gradient(shard_id param, void const* grad);

    /// Bytes of the deferred sums that prepare() allocates: a float for each element of a matrix, two with overlap. Not
    /// included are some bytes for each column and, once columns are selected, the memory for their gradients.
    [[nodiscard]] std::size_t memory_bytes() const noexcept;
    /// Allocates what steps need. If you do not call it, the first step allocates.
    /// @throws invalid_argument for arrays that overlap if one is written, and during a step; and the errors of the
    /// classes `buffer` and `team`
    void prepare();

    /// Runs a whole step. Call it when all gradients are ready.
    /// @throws invalid_argument for invalid values and during another step; what prepare(), options.reduce and
    /// reduce_columns throw, and unavailable if the device lacks memory for a selection, with nothing changed;
    /// device_error (see place())
    zenflow_report step(step_values const& values = {});
    /// Runs a step with gradients[i], row-major, as the gradient of param i. Null: the param takes no part in this
    /// step. Its sum is later divided by the number of steps in which it took part. All ranks pass null for the same
    /// params. Throws as set_gradient() and step() do, and invalid_argument if there is not exactly one gradient for
    /// each param. Some gradient buffers may then be replaced already.
    zenflow_report step_gradients(std::span<void const* const> gradients, step_values const& values = {});

    /// Opens a step whose gradients arrive one by one: submit or skip each param, then call finish() or abandon().
    /// @throws invalid_argument for invalid values and during a step; what prepare() throws. Then it has opened no step
    void begin_step(step_values const& values = {});
    /// Submits the param, whose gradient is ready. Without a device, only notes that. With a device, starts the work
    /// that place() describes.
    /// @throws invalid_argument if no step is open, for an unknown number, and for a submitted or skipped param
    void submit(shard_id param);
    /// Skips the param in this step, because it has no gradient. Its deferred sum stays. All ranks skip the same
    /// params. Throws as submit() does.
    void skip(shard_id param);
    /// Completes the step, or skips it.
    /// @throws invalid_argument if no step is open, for a param that is neither submitted nor skipped, and for invalid
    /// results of options.reduce and reduce_columns; what these throw; unavailable if the device lacks memory for a
    /// selection. An open step then stays open. device_error if the device failed; the step is over (see place())
    zenflow_report finish();
    /// Abandons the open step: state, sums and schedule do not change. The step is over even if it throws.
    /// @throws invalid_argument if no step is open; device_error if the device has failed
    void abandon();

    // ---- A device beside the CPU

    /// Sets row-major arrays in the device's memory: `grad`, where the param's gradient is made, and `weight_out`,
    /// where its weights are needed. Params of any type need both, vectors too. Call it for every param before place().
    /// If changed weights are tracked and the device shares host memory, `weight_out` must not be the param's own array
    /// of weights in host memory, because tracking compares new weights with that array. If it is, place() throws.
    /// Arrays begin at multiples of 16 bytes.
    /// @throws invalid_argument for an unknown number, after place(), during a step, for a missing array, and for an
    /// address that is not a multiple of 16
    void set_device_arrays(shard_id param, device_arrays const& arrays);
    /// From the next step on, the device updates selected columns and vectors. Until the next selection, it holds the
    /// only current copy of their masters and moments. A null device moves them back. The bits are the same. The device
    /// scores columns. submit() computes the norm on the device and starts the copy of the gradient into the shard's
    /// `grad`, which is ideally allocated with the device's pinned(). The host accumulates the gradient in the
    /// background, so `grad` belongs to the optimizer until the param's next submit(). During the next window, new
    /// weights of deferred columns are uploaded to a second buffer, so the device needs memory for a second copy of all
    /// weights of matrices. state() and place(nullptr) write `weights` and the vectors' arrays in host memory.
    /// place(nullptr) also forgets the device arrays. If params and moments are inconsistent, it only detaches the
    /// device, and place() refuses other devices until load(). To move to another device, call place(nullptr) and
    /// set_device_arrays() first.
    ///
    /// If the device fails or stops answering, finish() throws device_error and the step is rolled back by records on
    /// the device: state, sums and schedule are as before. (Weights of columns that were being selected may already be
    /// the new ones.) If only the publication of weights failed, the step is complete. The error says so, and the next
    /// call publishes them first. If the device does not recover, the error says that you must call load().
    ///
    /// @throws invalid_argument if a param has no device arrays, if changes are tracked and a param's device weights
    /// are its weights in host memory, if the device has params of another optimizer, for another device than the
    /// present one, for overlapping arrays, and during a step; unavailable and device_error if the device lacks memory
    /// or fails. Then nothing has moved.
    void place(std::shared_ptr<device> target);

    // ---- State

    /// Finishes background work and publishes its weights now, for example before an evaluation or at the end of
    /// training. Deferred sums stay. A flush() changes the weights that the rest of the window uses, and therefore the
    /// bits of the run.
    /// @throws invalid_argument during a step and after a failed load(); device_error
    void flush();

    [[nodiscard]] std::uint64_t steps() const noexcept; ///< number of applied steps
    /// Position in the schedule. Valid as long as the optimizer; steps and load() change it.
    [[nodiscard]] zenflow_position const& position() const noexcept;
    /// Loss scale to use for the next backward pass.
    [[nodiscard]] double loss_scale() const noexcept;
    /// Whether each column of a matrix is selected. Valid until a call that is not const.
    /// @throws invalid_argument for an unknown number
    [[nodiscard]] std::vector<std::uint8_t> const& selected(shard_id param) const;
    /// Update counts: one for each column, or one for a vector. Valid as long as selected().
    /// @throws invalid_argument for an unknown number
    [[nodiscard]] std::vector<std::uint64_t> const& updates(shard_id param) const;
    /// The executor. Valid as long as the optimizer.
    [[nodiscard]] executor const& cpu() const noexcept;

    /// Returns the state, also in the middle of a window, as views of the arrays, which the next call may change;
    /// `sums` is memory of the optimizer. Finishes background work, which changes no bit. Throws as flush() does.
    [[nodiscard]] zenflow_state state();
    /// Loads the state of an optimizer with the same params, types and group names. The options of the two optimizers
    /// may differ, but dynamic loss scaling must be set in both or in neither. The selection stays until the next one
    /// is due. The state's arrays may be this optimizer's own if every element is loaded into the address where it
    /// already is.
    /// @throws invalid_argument if something is missing or has other types, and during a step, and what prepare()
    /// throws, with nothing changed; device_error if the device fails, and what reading a file throws: steps are then
    /// refused until a load() succeeds
    void load(zenflow_state const& state);
    /// Loads the states that all ranks saved after one step, in any order and with any row boundaries.
    /// @throws as above, and invalid_argument if the states differ in what all ranks share
    void load(std::span<zenflow_state const> from_all_ranks);

private:
    std::unique_ptr<detail::zenflow_core, detail::delete_zenflow_core> core_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/zenflow/zenflow.ipp>
#include <adamant/detail/zenflow/zenflow_options.ipp>
#endif
