// SPDX-License-Identifier: Apache-2.0
// ZenFlow: an optimizer that defers the updates of less important columns.
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

// ---- Options and schedule

/// Set of columns among which columns compete for being selected.
enum class selection_scope : std::uint8_t {
    each_param, ///< Each matrix selects its own share of columns.
    all_params, ///< One share of all elements is selected; a column competes by its score per element.
};

/// Reduction that zenflow_options::reduce_columns performs.
enum class column_reduction : std::uint8_t {
    sum, ///< Sum over all ranks.
    max, ///< Maximum over all ranks.
};

/// Options of ZenFlow (Lan and others, arXiv 2505.12242).
///
/// The names are DeepSpeed's where it has the same option. A "step" is a step that was applied. A window is a series of
/// steps over which the gradients of columns that are not selected are accumulated.
struct zenflow_options {
    /// Share of the columns that is selected, from 0 to 1. With 1, nothing is deferred.
    ///
    /// Of n columns, topk_ratio * n are selected, rounded to the nearest whole number (a half rounds up), and at least
    /// one unless the ratio is 0.
    double topk_ratio = 0.1;
    column_score score = column_score::magnitude;        ///< Score by which columns are selected.
    selection_scope scope = selection_scope::each_param; ///< Set of columns that compete.
    /// Steps between selections.
    ///
    /// A window's first step selects if this many steps passed since the last selection.
    std::size_t select_interval = 16;
    /// Steps in a window; unset: automatic.
    ///
    /// An automatic window ends as soon as the deferred gradients outweigh the applied ones: the squared norm of the
    /// sum of the deferred gradients is above 0 and at least auto_ratio times the sum of the squared norms of the
    /// gradients of selected columns (vectors count in neither). It ends at the latest after max_deferred steps, also
    /// if all gradients are zero.
    std::optional<std::size_t> update_interval = 4;
    double auto_ratio = 1;               ///< Weight at which an automatic window ends; see update_interval.
    std::size_t max_deferred = 64;       ///< Maximum number of steps in an automatic window.
    std::size_t full_warm_up_rounds = 0; ///< Number of initial steps that update all elements.
    /// Whether the deferred update of a window runs during the next window.
    ///
    /// If true, its weights are published at the end of the next window; if false, it runs and publishes immediately.
    /// Changes when new weights become visible, and nothing else about their computation.
    bool overlap = true;
    /// Reduces numbers over all ranks in place, for matrices whose rows are distributed over ranks.
    ///
    /// Does what MPI_Allreduce(MPI_IN_PLACE, numbers.data(), numbers.size(), MPI_INT64_T, MPI_SUM or MPI_MAX, comm)
    /// does, by `how`. Called twice in a step that selects. Every rank must have the same params in the same order; for
    /// a matrix of which it has no rows, it adds a shard without elements. May throw; the step has then changed
    /// nothing.
    std::function<void(std::span<std::int64_t> numbers, column_reduction how)> reduce_columns = {};
};

/// Checks the options of ZenFlow.
/// @throws invalid_argument naming the first invalid option.
void validate(zenflow_options const& options);

/// Returns the options for a DeepSpeed configuration. Pure.
///
/// An interval of zenflow_config::never becomes the largest number. The auto_ratio of the configuration is not used,
/// because DeepSpeed defines it differently; see zenflow_config::auto_ratio.
/// @throws invalid_argument if validate() does.
[[nodiscard]] zenflow_options zenflow_options_of(zenflow_config const& config);

/// Position of a run in its schedule: plain data, and a part of the state.
struct zenflow_position {
    std::uint64_t steps = 0;           ///< Steps applied.
    std::uint64_t since_selection = 0; ///< Steps applied since the last selection.
    std::uint64_t in_window = 0;       ///< Steps applied in this window.
    bool has_selection = false;        ///< Columns have been selected.
    /// Sum over the window's steps of the squared norms of the gradients of selected columns.
    ///
    /// Only for an automatic update_interval.
    double done_squares = 0;

    /// Compares all fields.
    friend bool operator==(zenflow_position const&, zenflow_position const&) = default;
};

/// Returns whether the next step is a warm-up step, which updates all elements. Pure.
[[nodiscard]] bool is_in_warm_up(zenflow_options const& options, zenflow_position const& position) noexcept;
/// Returns whether the next step selects columns. Pure.
[[nodiscard]] bool selects_next(zenflow_options const& options, zenflow_position const& position) noexcept;
/// Returns whether the window ends with the last step, which `position` already counts. Pure.
///
/// deferred_squares is the squared norm of the sum of the deferred gradients, for an automatic update_interval.
[[nodiscard]] bool ends_window(zenflow_options const& options, zenflow_position const& position,
                               double deferred_squares) noexcept;

// ---- Report

/// Report of a step. The inherited `elements` counts the elements that were stepped immediately.
struct zenflow_report : optimizer_report {
    bool warm_up = false;             ///< The step updated all elements: nothing is deferred, and no window ends.
    bool selected = false;            ///< The step selected columns.
    std::size_t columns_moved = 0;    ///< Newly selected columns that were not selected before.
    std::size_t deferred = 0;         ///< Elements whose gradients were accumulated for later.
    bool window_ended = false;        ///< The step ended a window, which starts a deferred update.
    std::size_t deferred_stepped = 0; ///< Elements of that update. With overlap, it runs during the next window.
    /// The window's update was dropped: its accumulated gradients were not finite.
    ///
    /// Only with nonfinite_policy::skip.
    bool deferred_skipped = false;
    double waited_s = 0;  ///< At the end of a window: time spent waiting for the previous window's deferred update.
    double publish_s = 0; ///< At the end of a window: time spent publishing the weights of that update.
    /// With a device: average busy time of the executor's threads on the previous step's sums.
    double sums_s = 0;
    /// At the end of a window: average busy time of the threads on the previous deferred update.
    double deferred_s = 0;
};

// ---- State

/// State of one param, or of a rank's rows of it.
///
/// The arrays are views of the optimizer's params, or of saved data.
struct zenflow_state_param {
    std::string name;          ///< Name of the param.
    std::size_t group = 0;     ///< Index in zenflow_state::groups.
    std::size_t columns = 0;   ///< Columns of a matrix; 0: a vector.
    std::size_t all_rows = 0;  ///< Rows of the whole matrix, or elements of the whole vector.
    std::size_t first_row = 0; ///< Index of the first row (element) in the param.
    std::size_t rows = 0;      ///< Number of rows (elements).
    shard_dtypes types = {};   ///< Types of the arrays.
    /// State arrays, indexed by shard_array.
    ///
    /// The arrays of a matrix are column-major: `rows` elements of the first column, then those of the next.
    std::byte const* arrays[shard_arrays] = {};
    /// Row-major weights of a matrix, of the type of weight_out, or of param without weight_out.
    ///
    /// If null, loading computes them from the master weights.
    std::byte const* weights = nullptr;
    std::vector<std::uint64_t> counts = {};  ///< Number of updates of each column; one for a vector.
    std::vector<std::uint8_t> selected = {}; ///< Whether each column is selected: 0 or 1.
    /// Whether each column's master weights are ahead of its weights: 0 or 1.
    ///
    /// The weights are published at the end of the window.
    std::vector<std::uint8_t> publishing = {};
    float const* sums = nullptr; ///< Row-major sums of deferred gradients; null if this window deferred nothing.
    std::uint64_t summed = 0;    ///< Number of steps in the sums.
    /// If not null, loading and saving read all pointers through this source; see state_tensor::source.
    state_source const* source = nullptr;
};

/// State of a ZenFlow optimizer as plain data.
///
/// Another optimizer continues from it with the same bits, also in the middle of a window.
struct zenflow_state {
    zenflow_position position; ///< Position in the schedule.
    /// Sum of the gradient norms in this window, a bound of the deferred gradients.
    double deferred_norm = 0;
    std::optional<loss_scaler_state> loss_scaler; ///< State of dynamic loss scaling; unset without it.
    std::vector<parameter_group> groups;          ///< Parameter groups.
    std::vector<zenflow_state_param> params;      ///< Params.
    /// Data of the caller; see state_dict::metadata.
    std::map<std::string, std::string> metadata = {};
};

// ---- Optimizer

namespace detail {
class zenflow_core;
struct delete_zenflow_core {
    void operator()(zenflow_core* core) const noexcept;
};
} // namespace detail

/// Argument of zenflow_optimizer::add_param().
///
/// The caller owns the arrays, which must outlive the optimizer.
///
/// A matrix has `columns` > 0. Its state is column-major: param, exp_avg, exp_avg_sq and weight_out of the shard hold
/// all rows of the first column, then those of the next. A column is thus contiguous, so it can be stepped, counted and
/// moved independently. Its gradient and its weights are row-major, as in the model: the shard's grad, and `weights`,
/// of the type of weight_out, or of param without weight_out. 8-bit moments are in groups of 64 rows of a column, so
/// the number of rows must be a multiple of 64.
///
/// A vector (`columns` 0) is an ordinary shard and is stepped immediately; its weights are weight_out, or param.
struct zenflow_param {
    group_id group;          ///< Parameter group of the param.
    std::string name;        ///< Name of the param.
    optimizer_shard shard;   ///< Arrays of the param.
    std::size_t columns = 0; ///< Columns of a matrix; 0: a vector.
    void* weights = nullptr; ///< Row-major weights of a matrix.
    /// Position of the shard in the param, row-major; by default, the shard is all of it.
    ///
    /// `shape` ends with `columns`, and `begin` is a multiple of `columns`.
    shard_place place = {};
};

/// Adam or AdamW with deferred updates (ZenFlow). Exact: bit-reproducible in every configuration.
///
/// The few important columns of each matrix are stepped every step. Gradients of the other columns are accumulated and
/// stepped later, while training continues. See Lan and others, "ZenFlow: Enabling Stall-Free Offloading Training via
/// Asynchronous Updates", arXiv 2505.12242, and docs/zenflow.md.
///
/// Step: a step takes the norm of the whole gradient, clips by it, and skips as optimizer does. Then each selected
/// column is updated with its gradient. The gradient of every other column, scaled and clipped as in this step, is
/// added to the column's sum. At the end of a window (see zenflow_options) each column that was not selected takes one
/// update with its sum times float(1 / number of steps in it), with the hyperparameters of the step that ends the
/// window. With overlap the executor's threads run this deferred update when they are otherwise idle, and its weights
/// are published at the end of the next window. A newly selected column takes its deferred update immediately, and its
/// weights are published immediately.
///
/// Bits: every element has one master weight and one pair of moments. Every column counts its own updates, and its bias
/// correction uses that count. The result is therefore a pure function of gradients and options: the same bits for any
/// instruction set, number of threads, timing of background work, partition by rows and number of ranks. With
/// topk_ratio 1, or with update_interval 1 and no overlap, the bits are those of optimizer over the same arrays.
///
/// Skipped steps: a skipped step changes nothing, and the schedule does not advance. If accumulated gradients are not
/// finite although every gradient was, the window's update is dropped entirely (nonfinite_policy::skip), or the
/// elements in question count as zeros.
///
/// Options: keep_last_step and weights_ready are rejected; speculate, journal_budget_bytes and device_records are
/// ignored.
///
/// Threads: call from one thread at a time. Gradients must not change during step(). They may change afterwards, also
/// during background work, which accesses state and weight_out of deferred columns, and never the weights. The caller's
/// floating-point mode and traps do not affect a step and are preserved.
///
/// Errors: an exception leaves the optimizer as it was before the call. After step() throws, no copies between the
/// caller's arrays and a device are in flight, unless the device is unresponsive. In a process forked from the team's,
/// every call of a step, flush(), place() and load() throw unavailable; if work was in progress at the fork, so does
/// every call except pure queries. The destructor waits for nothing in such a process, and leaks the memory that
/// threads were working on.
class zenflow_optimizer {
public:
    /// Creates an optimizer without groups and params that works with the executor's threads.
    /// @throws invalid_argument for invalid options.
    explicit zenflow_optimizer(executor const& cpu, zenflow_options zenflow = {}, optimizer_options options = {});
    /// Moves an optimizer. The moved-from one can only be destroyed or assigned to.
    zenflow_optimizer(zenflow_optimizer&& other) noexcept;
    /// Destroys this optimizer and moves the other one here.
    zenflow_optimizer& operator=(zenflow_optimizer&& other) noexcept;
    /// Completes background work. Weights that were not published stay as they are.
    ~zenflow_optimizer();

    /// Adds a group and returns its number; see optimizer::add_group().
    /// @throws invalid_argument as optimizer::add_group() does.
    group_id add_group(parameter_group group);
    /// Adds a group of the given name and hyperparameters; see optimizer::add_group().
    /// @throws invalid_argument as optimizer::add_group() does.
    group_id add_group(std::string name, hyperparameters const& hyper, bool maximize = false);
    /// Returns all groups, by number.
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept;
    /// Sets the hyperparameters of a group from the next step on; see optimizer::set_hyperparameters().
    /// @throws invalid_argument as optimizer::set_hyperparameters() does.
    void set_hyperparameters(group_id group, hyperparameters const& hyper);

    /// Adds a param and returns its number.
    ///
    /// Before the first step, weights must equal the rounded master weights.
    /// @throws invalid_argument if optimizer::add_shard() would, for a matrix whose shard has partial rows, has no
    /// weights, or has a number of rows that does not fit 8-bit moments, and after a step.
    shard_id add_param(zenflow_param param);
    /// Returns the number of params.
    [[nodiscard]] std::size_t params() const noexcept;
    /// Returns the name of a param.
    [[nodiscard]] std::string const& name(shard_id param) const;
    /// Sets the address of a param's gradient; see optimizer::set_gradient().
    ///
    /// Effective from the next step on, or in the open step before submit(). With a device, the host array that
    /// receives the gradient cannot change.
    /// @throws invalid_argument as optimizer::set_gradient() does, and for another address with a device.
    void set_gradient(shard_id param, void const* grad);

    /// Returns the bytes of gradient sums that prepare() allocates.
    ///
    /// One float per element of a matrix, and two with overlap. In addition prepare() allocates some bytes per column;
    /// the gradients of columns are allocated once columns are selected.
    [[nodiscard]] std::size_t memory_bytes() const noexcept;
    /// Allocates the memory that steps need. Without this call the first step allocates it.
    /// @throws invalid_argument if arrays overlap, and what buffer throws.
    void prepare();

    /// Takes a whole step when all gradients are available.
    /// @throws invalid_argument for invalid values, and what options.reduce and reduce_columns throw.
    zenflow_report step(step_values const& values = {});
    /// Takes a whole step over gradients at new addresses.
    ///
    /// gradients[i] is the row-major gradient of param i. A null pointer excludes the param from this step; its sum is
    /// divided by the number of steps that include it. All ranks must exclude the same params.
    /// @throws what set_gradient() and step() throw.
    zenflow_report step_gradients(std::span<void const* const> gradients, step_values const& values = {});

    /// Opens a step whose gradients arrive one by one.
    /// @throws invalid_argument for invalid values, and if a step is open.
    void begin_step(step_values const& values = {});
    /// Marks a param's gradient as ready. Without a device this is only recorded.
    /// @throws invalid_argument if no step is open, or if the param was already submitted or skipped.
    void submit(shard_id param);
    /// Excludes a param from this step.
    /// @throws invalid_argument if no step is open, or if the param was already submitted or skipped.
    void skip(shard_id param);
    /// Completes the step.
    /// @throws invalid_argument if no step is open, or if a param was neither submitted nor skipped.
    /// @throws unavailable if a selection does not fit in the device's memory. After this, and after an exception from
    /// options.reduce or reduce_columns, the step stays open: call abandon() to drop it.
    /// @throws device_error if the device fails; see place().
    zenflow_report finish();
    /// Abandons the open step. Nothing has changed.
    /// @throws invalid_argument if no step is open.
    void abandon();

    // ---- A device beside the CPU

    /// Sets the device arrays of a param: where its gradient is produced and its weights are needed.
    ///
    /// Both are row-major and in the device's memory: `grad`, and `weight_out` for the weights of any type, also for a
    /// vector. Call it for every param, before place().
    void set_device_arrays(shard_id param, device_arrays const& arrays);
    /// Steps selected columns and vectors on a device. A null device moves them back to the host.
    ///
    /// Effective from the next step on. The bits do not change. Until the next selection, the master weights and
    /// moments of selected columns exist only on the device. Columns are scored there. submit() computes the gradient
    /// norm on the device and starts a copy of the gradient to the shard's `grad` in host memory, ideally memory from
    /// the device's pinned(). The host accumulates it during the next forward and backward pass, so `grad` belongs to
    /// the optimizer until the param's next submit(). Weights that the host has stepped are uploaded during the next
    /// window, next to the weights in use; for this the device needs memory for a second copy of the weights of all
    /// matrices. `weights` and the vectors' arrays in host memory are written by state() and place(nullptr).
    ///
    /// Failures: if the device fails or becomes unresponsive, finish() throws device_error, and the step is rolled back
    /// by records on the device: state, sums and schedule are as before it. (Columns that were being selected may
    /// already show the weights that were about to be published.) If only the publishing of weights failed, the error
    /// says that the step was taken, and the weights are published before anything else. If the device does not
    /// recover, the error says that a state must be loaded.
    /// @throws invalid_argument if a param has no device arrays, or if the device has another optimizer's params.
    /// @throws unavailable, device_error if the device lacks the memory or fails. Nothing has moved then.
    void place(std::shared_ptr<device> target);

    // ---- State

    /// Completes background work and publishes its weights now.
    ///
    /// Call it at the end of training or before an evaluation. Accumulated gradients stay. A run that calls flush()
    /// continues with other weights for the rest of a window than a run that does not, and therefore with other bits.
    void flush();

    /// Returns the number of steps applied.
    [[nodiscard]] std::uint64_t steps() const noexcept;
    /// Returns the position in the schedule.
    [[nodiscard]] zenflow_position const& position() const noexcept;
    /// Returns the loss scale to use for the next backward pass.
    [[nodiscard]] double loss_scale() const noexcept;
    /// Returns whether each column of a matrix is selected. Valid until the next call.
    [[nodiscard]] std::vector<std::uint8_t> const& selected(shard_id param) const;
    /// Returns the number of updates of each column; one number for a vector. Valid until the next call.
    [[nodiscard]] std::vector<std::uint64_t> const& updates(shard_id param) const;
    /// Returns the executor.
    [[nodiscard]] executor const& cpu() const noexcept;

    /// Returns the state as views of the arrays, also in the middle of a window.
    ///
    /// The next call may change what the views show. Completes background work, which changes no bit.
    [[nodiscard]] zenflow_state state();
    /// Loads a state; see load(std::span<zenflow_state const>).
    void load(zenflow_state const& state);
    /// Loads the states of all ranks of a run, in any order and with any partition by rows.
    ///
    /// The states must be of an optimizer with the same params and types; its options may differ. The selection stays
    /// until the next one is due.
    /// @throws invalid_argument if something is missing or of other types, with nothing changed.
    /// @throws corrupted, unavailable if reading a file behind a state fails. After these no step can be taken until a
    /// load() succeeds.
    void load(std::span<zenflow_state const> states);

private:
    std::unique_ptr<detail::zenflow_core, detail::delete_zenflow_core> core_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/zenflow/zenflow.ipp>
#include <adamant/detail/zenflow/zenflow_options.ipp>
#endif
