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

// How an optimizer defers gradients: which columns of a matrix are updated every step, and when the others are.

ADAMANT_BEGIN_NAMESPACE

/// Between what columns compete for being selected.
enum class selection_scope : std::uint8_t {
    each_param, ///< each matrix has its own share
    all_params, ///< one share of all elements; a column competes by its score for each element of it
};

enum class column_reduction : std::uint8_t { sum, max };

/// ZenFlow (Lan and others, arXiv 2505.12242). The names are DeepSpeed's where it has the same option. "Steps" are
/// those that were applied.
struct zenflow_options {
    /// The share of the columns that is selected, from 0 to 1: of n columns the nearest whole number of topk_ratio * n
    /// (a half is rounded up), and at least one unless the ratio is 0. 1: nothing is deferred.
    double topk_ratio = 0.1;
    column_score score = column_score::magnitude;        ///< how columns are scored
    selection_scope scope = selection_scope::each_param; ///< which columns compete with each other
    /// A window's first step selects anew once that many steps were taken since the last selection.
    std::size_t select_interval = 16;
    /// Steps in a window. Absent: it ends as soon as the deferred gradients outweigh the applied ones, that is
    /// when the squared norm of the sum of the deferred gradients is above 0 and at least auto_ratio times the
    /// sum of the squared norms of those of selected columns (vectors count on neither side); at the latest after
    /// max_deferred steps, also where all gradients are zero.
    std::optional<std::size_t> update_interval = 4;
    /// For an automatic interval: how much the deferred gradients must outweigh the applied ones.
    double auto_ratio = 1;
    std::size_t max_deferred = 64;       ///< most steps in a window with an automatic interval
    std::size_t full_warm_up_rounds = 0; ///< number of plain steps before ZenFlow begins
    /// Whether the deferred gradients of a window are applied while the next one goes on, and its weights are published
    /// at the end of that; else immediately. Changes when weights are seen, and nothing else of how they are computed.
    bool overlap = true;
    /// Where the rows of matrices are spread over ranks: sums, or takes the largest of, the numbers of all ranks, as
    /// MPI_Allreduce(MPI_IN_PLACE, numbers.data(), numbers.size(), MPI_INT64_T, MPI_SUM or MPI_MAX, comm) does. Called
    /// twice in a step that selects. Every rank has to have the same params, in the same order. For a matrix without
    /// rows on this rank it adds a shard without elements. May throw; then the step has changed nothing.
    std::function<void(std::span<std::int64_t> numbers, column_reduction how)> reduce_columns = {};
};

/// Throws invalid_argument naming the first option that cannot be.
void validate(zenflow_options const& options);

/// The options that a DeepSpeed configuration asks for, where an interval `never` is the largest number. Of "auto"
/// its auto_ratio is not taken, as it is another; see both. Throws invalid_argument for what validate() refuses. Pure.
[[nodiscard]] zenflow_options zenflow_options_of(zenflow_config const& config);

/// Where a run is in its schedule: plain data, a part of the state. `steps` are those that were applied.
struct zenflow_position {
    std::uint64_t steps = 0;           ///< steps that were applied
    std::uint64_t since_selection = 0; ///< steps
    std::uint64_t in_window = 0;       ///< steps
    bool has_selection = false;        ///< whether columns have been selected
    /// For update_interval absent: the sum of the squared norms, over the window's steps, of the gradients of selected
    /// columns.
    double done_squares = 0;

    /// Compares all members.
    friend bool operator==(zenflow_position const&, zenflow_position const&) = default;
};

/// Whether the next step is a plain step of everything; whether it selects; and, after a step that is counted in it
/// already, whether the window ends. deferred_squares: the squared norm of the deferred gradients, for update_interval
/// absent. Pure.
[[nodiscard]] bool is_in_warm_up(zenflow_options const& options, zenflow_position const& at) noexcept;
[[nodiscard]] bool selects_next(zenflow_options const& options, zenflow_position const& at) noexcept;
[[nodiscard]] bool ends_window(zenflow_options const& options, zenflow_position const& at,
                               double deferred_squares) noexcept;

// The report of a step that defers gradients.

/// What a ZenFlow step did. `elements` counts those updated in this step.
struct zenflow_report : optimizer_report {
    bool warm_up = false;          ///< a plain step of all elements: nothing is deferred, and no window ends
    bool selected = false;         ///< whether columns were selected anew
    std::size_t columns_moved = 0; ///< selected columns that were not selected before
    std::size_t deferred = 0;      ///< elements whose gradients were accumulated
    bool window_ended = false;     ///< whether the window ended with this step
    /// Elements whose deferred gradients are applied: now, or with overlap during the next window.
    std::size_t deferred_stepped = 0;
    /// Whether the deferred gradients were not finite and were dropped (nonfinite_policy::skip).
    bool deferred_skipped = false;
    double waited_s = 0;  ///< for the deferred update of the last window, when this one ended
    double publish_s = 0; ///< and then for its weights to come into use
    /// How long the executor's threads have worked, on average, on the sums of the step before (with a device), and,
    /// where a window ends, on the deferred gradients of the window before it.
    double sums_s = 0;
    double deferred_s = 0; ///< duration of deferred updates
};

// The state of an optimizer that defers gradients, as plain data: all that another one needs to go on with the same
// bits, in the middle of a window, too.

/// One param, or a rank's rows of it. The arrays are views, of the optimizer's params or of whatever was saved.
struct zenflow_state_param {
    std::string name;          ///< name of the param
    std::size_t group = 0;     ///< index in zenflow_state::groups
    std::size_t columns = 0;   ///< of a matrix; 0: a vector
    std::size_t all_rows = 0;  ///< of the whole matrix; of a vector, its elements
    std::size_t first_row = 0; ///< index of this rank's first row
    std::size_t rows = 0;      ///< of a vector, elements
    shard_dtypes types = {};   ///< element types
    /// By shard_array: those that are state. A matrix's lie by columns: `rows` elements of the first column, then of
    /// the next.
    std::byte const* arrays[shard_arrays] = {};
    /// A matrix's weights by rows, of the type of weight_out, or of param where there is none. Null: they are made from
    /// the masters.
    std::byte const* weights = nullptr;
    std::vector<std::uint64_t> counts = {};  ///< of updates, for each column; of a vector, one
    std::vector<std::uint8_t> selected = {}; ///< of each column: 0 or 1
    /// Columns whose masters are ahead of the weights, which follow at the end of the window.
    std::vector<std::uint8_t> publishing = {};
    float const* sums = nullptr; ///< by rows; null where nothing is deferred in this window
    std::uint64_t summed = 0;    ///< steps in them
    /// If not null, loading and saving read what the pointers point to through it, as of a state_tensor.
    state_source const* source = nullptr;
};

/// The state of a ZenFlow optimizer as plain data.
struct zenflow_state {
    zenflow_position position; ///< position in the schedule
    double deferred_norm = 0;  ///< the sum of the norms in this window, for a bound of the deferred gradients
    std::optional<loss_scaler_state> loss_scaler; ///< state of dynamic loss scaling
    std::vector<parameter_group> groups;          ///< parameter groups in order
    std::vector<zenflow_state_param> params;      ///< params in order
    /// The caller's own, as in a state_dict.
    std::map<std::string, std::string> metadata = {};
};

// ZenFlow's step, exact: the few columns of each matrix that matter are updated every step, and what the others have
// deferred is applied later, while training continues. Lan and others, "ZenFlow: Enabling Stall-Free Offloading
// Training via Asynchronous Updates", arXiv 2505.12242. See docs/zenflow.md.

namespace detail {
class zenflow_core;
struct delete_zenflow_core {
    void operator()(zenflow_core* core) const noexcept;
};
} // namespace detail

/// What zenflow_optimizer::add_param() takes. The arrays stay the caller's and must outlive the optimizer.
///
/// A matrix has `columns`. Its state lies by columns: param, exp_avg, exp_avg_sq and weight_out of the shard hold all
/// rows of the first column, then those of the next. So a column is a stretch of memory, which can be stepped, counted
/// and moved by itself. Its gradient and its weights lie by rows, as the model has them: the shard's grad, and
/// `weights`, of the type of weight_out, or of param where there is none. Moments of 8 bits are in groups of 64 rows of
/// a column, so rows are a multiple of that.
///
/// A vector (columns 0) is a shard as any other and is updated every step; its weights are weight_out, or param.
struct zenflow_param {
    group_id group;          ///< the group
    std::string name;        ///< name of the param
    optimizer_shard shard;   ///< its arrays
    std::size_t columns = 0; ///< columns of the matrix; 0: a vector
    void* weights = nullptr; ///< where weights are published
    /// Where the shard lies in its parameter, by rows: `shape` ends with `columns`, and `begin` is a multiple of them.
    /// The default: the shard is all of it.
    shard_place place = {};
};

/// Adam or AdamW over parameter groups, as optimizer, which defers gradients.
///
/// A step takes the norm of the whole gradient, clips by it, and skips as optimizer does. Then each selected column
/// takes an update with its gradient, and each other column's gradient, scaled and clipped as this step's, is added to
/// its sum. At the end of a window (see zenflow_options) each column that was not selected takes one update with its
/// sum times float(1 / number of steps in it), with the hyperparameters of the step that ends the window. With overlap
/// the executor's threads do that while they have nothing else to do, and its weights are published at the end of the
/// next window. A column that is selected takes its deferred gradients at once, and its weights are published
/// immediately.
///
/// Every element has one master and one pair of moments. Every column has its own count of updates, by which its bias
/// correction goes. So the result is a pure function of gradients and options: the same bits for any instruction set,
/// number of threads, moment at which something is done in the background, cut by rows and number of ranks. With
/// topk_ratio 1, or with update_interval 1 and no overlap, these are the bits of optimizer over the same arrays.
///
/// Where a step is skipped nothing changes, and the schedule does not move. Where the deferred gradients are not
/// finite, though every gradient was, the window's update is dropped whole (nonfinite_policy::skip), or such elements
/// count as zero.
///
/// Of the options keep_last_step and weights_ready are refused; speculate, journal_budget_bytes and device_records mean
/// nothing.
///
/// Threads: one call at a time. Gradients must not change during step(); afterwards they may, also while threads work
/// in the background, which touch state and weight_out of the deferred gradients, and weights never. The caller's
/// floating-point mode and traps have no effect and do not change.
///
/// Errors: an exception leaves the optimizer as it was before the call. Where step() throws, nothing is copied between
/// the caller's arrays and a device any more, unless the device does not answer. In a process that was forked from the
/// team's, every call of a step, flush(), place() and load() throw unavailable; where something was under way at the
/// fork, so does every call but those that only look. There the destructor waits for nothing, and leaks what threads
/// were at work on.
class zenflow_optimizer {
public:
    /// Throws invalid_argument for options that cannot be.
    explicit zenflow_optimizer(executor const& cpu, zenflow_options zenflow = {}, optimizer_options options = {});
    /// Moves the optimizer; the moved-from one may only be destroyed.
    zenflow_optimizer(zenflow_optimizer&& other) noexcept;
    /// Moves the optimizer; the moved-from one may only be destroyed.
    zenflow_optimizer& operator=(zenflow_optimizer&& other) noexcept;
    /// Finishes what goes on in the background. Weights that have not published stay as they are.
    ~zenflow_optimizer();

    /// As optimizer's.
    group_id add_group(parameter_group group);
    /// The same.
    group_id add_group(std::string name, hyperparameters const& hyper, bool maximize = false);
    /// Number of groups.
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept;
    /// Sets hyperparameters from the next step on.
    void set_hyperparameters(group_id group, hyperparameters const& hyper);

    /// Adds a param and returns its number. Before the first step, weights have to be those of the masters. Throws
    /// invalid_argument where optimizer::add_shard() does, for a matrix whose shard does not hold whole rows, without
    /// weights, or with rows that moments of 8 bits cannot have, and after a step.
    shard_id add_param(zenflow_param added);
    /// Number of params.
    [[nodiscard]] std::size_t params() const noexcept;
    /// Name of a param.
    [[nodiscard]] std::string const& name(shard_id param) const;
    /// From the next step on, or in this one, the gradient is there; see optimizer::set_gradient(). With a device it
    /// has to stay where it comes down.
    void set_gradient(shard_id param, void const* grad);

    /// What prepare() allocates: a float for each element of a matrix, and two with overlap; beside it some bytes for
    /// each column, and, once columns are selected, their gradients.
    [[nodiscard]] std::size_t memory_bytes() const noexcept;
    /// Allocates; without this call the first step does. Throws invalid_argument where arrays overlap, and what buffer
    /// does.
    void prepare();

    /// A step; all gradients are there. Throws invalid_argument for values that cannot be, and what options.reduce and
    /// reduce_columns throw.
    zenflow_report step(step_values const& values = {});
    /// The same with gradients that are new arrays: gradients[i] is param i's, by rows. Null: the param takes no part
    /// in this step; its sum is divided by the number of steps in which it did. On ranks, the same params on all of
    /// them.
    zenflow_report step_gradients(std::span<void const* const> gradients, step_values const& values = {});

    /// The same as gradients arrive: opens a step; the param's gradient is there; it has none in this step; and
    /// completes the step. Without a device submit() only notes that. Where finish() throws what options.reduce or
    /// reduce_columns throw, or unavailable as a selection finds no memory on the device, the step stays open;
    /// abandon() gives it up, and nothing has changed. Throw invalid_argument where no step is open, a param has been
    /// submitted or left out, or one has been neither.
    void begin_step(step_values const& values = {});
    /// See optimizer::submit().
    void submit(shard_id param);
    /// See optimizer::skip().
    void skip(shard_id param);
    /// See optimizer::finish().
    zenflow_report finish();
    /// See optimizer::abandon().
    void abandon();

    // ---- A device beside the CPU

    /// Where the param's gradient is made and its weights are wanted, by rows, in the device's memory: `grad`, and
    /// `weight_out` for the weights of any type; a vector's, too. Of every param, before place().
    void set_device_arrays(shard_id param, device_arrays const& arrays);
    /// From the next step on selected columns and vectors are stepped on the device, and their masters and moments are
    /// there alone, until the next selection; null: they come back. The bits are the same. Columns are scored there;
    /// submit() takes the norm there and has the gradient come down into the shard's `grad`, at best in memory of the
    /// device's pinned(); it is accumulated while forward and backward go on, so grad is the optimizer's until the
    /// param's next submit(). What the host has stepped goes up while the next window goes on, beside the weights in
    /// use, for which the device has room for all weights of matrices once more. `weights` and the vectors' arrays in
    /// host memory are written by state() and place(nullptr).
    ///
    /// Where the device fails or stops answering, finish() throws device_error and the step is rolled back, by records
    /// on the device: state, sums and schedule are as before it. (Weights of columns that were being selected may be
    /// those that were to be published.) Where only weights could not publish, the error says that the step has been
    /// taken, and they publish before anything else. Where the device does not come back, the error says that a state
    /// must be loaded.
    ///
    /// Throws invalid_argument where a param has no arrays there, or the device has another optimizer's params;
    /// unavailable and device_error where it lacks the memory or fails, with everything where it was.
    void place(std::shared_ptr<device> on);

    // ---- State

    /// Finishes what goes on in the background, and lets its weights are published now, as at the end of training or
    /// before an evaluation. The accumulated gradient stays so. A run in which that is done goes on with other weights
    /// for the rest of a window than one in which it is not, and so with other bits.
    void flush();

    [[nodiscard]] std::uint64_t steps() const noexcept; ///< that were applied
    /// Position in the schedule.
    [[nodiscard]] zenflow_position const& position() const noexcept;
    /// Loss scale to use for the next backward pass.
    [[nodiscard]] double loss_scale() const noexcept;
    /// Of each column of a matrix, whether it is selected; and how many updates it has taken (a vector has one count).
    /// Until the next call.
    [[nodiscard]] std::vector<std::uint8_t> const& selected(shard_id param) const;
    /// Update counts: one for each column, or one for a vector.
    [[nodiscard]] std::vector<std::uint64_t> const& updates(shard_id param) const;
    /// The executor.
    [[nodiscard]] executor const& cpu() const noexcept;

    /// The state, also in the middle of a window: views of the arrays; the next call may change what they
    /// show. Finishes what goes on in the background, which changes no bit.
    [[nodiscard]] zenflow_state state();
    /// Goes on from there: the states of all ranks that there were, in any order, cut by rows in any way, of an
    /// optimizer with the same params and types, and any other options. The selection stays until the next one is due.
    /// Throws invalid_argument where something is missing or of other types, with nothing changed; and what reading a
    /// state of a file throws, after which no step can be taken until a load() succeeds.
    void load(zenflow_state const& from);
    /// Loads the states that all ranks saved.
    void load(std::span<zenflow_state const> from_all_ranks);

private:
    std::unique_ptr<detail::zenflow_core, detail::delete_zenflow_core> core_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/zenflow/zenflow.ipp>
#include <adamant/detail/zenflow/zenflow_options.ipp>
#endif
