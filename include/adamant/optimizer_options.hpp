// SPDX-License-Identifier: Apache-2.0
// Options, per-step values and report of an optimizer, and dynamic loss scaling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/isa.hpp>
#include <adamant/detail/numerics/squares_total.hpp>

ADAMANT_BEGIN_NAMESPACE

// ---- Dynamic loss scaling

/// Options of dynamic loss scaling, which keeps float16 gradients from underflowing.
///
/// The rule is that of Micikevicius et al., arXiv 1710.03740, section 3.2: the scale grows after growth_interval steps
/// without an overflow and backs off after an overflow. With growth_factor 2 and backoff_factor 0.5 every scale is a
/// power of two, so scaling loses no bits.
struct loss_scaling_options {
    double initial_scale = 65536;         ///< Scale of the first step.
    double growth_factor = 2;             ///< Factor by which the scale grows; at least 1.
    double backoff_factor = 0.5;          ///< Factor by which the scale backs off; in (0, 1].
    std::uint32_t growth_interval = 2000; ///< Consecutive steps without an overflow before the scale grows; at least 1.
    /// Overflows since the scale last grew that make it back off (DeepSpeed's hysteresis); at least 1.
    std::uint32_t hysteresis = 1;
    double min_scale = 1;      ///< Lower bound of the scale.
    double max_scale = 0x1p32; ///< Upper bound of the scale. Larger scales gain nothing.
};

/// State of dynamic loss scaling. It is saved with the optimizer's state.
struct loss_scaler_state {
    double scale = 1;                  ///< Current loss scale.
    std::uint32_t good_steps = 0;      ///< Consecutive steps without an overflow.
    std::uint32_t hysteresis_left = 1; ///< Overflows left until the scale backs off.
    /// Compares all fields.
    friend bool operator==(loss_scaler_state const&, loss_scaler_state const&) = default;
};

namespace detail {
// Gradients are multiplied by the inverse of the scale, so float must be able to represent that inverse.
[[nodiscard]] bool is_loss_scale(double scale) noexcept;
inline constexpr char const* loss_scale_rule = "from 2.4e-38 to 4.2e37, so that float holds its inverse";
} // namespace detail

/// Checks the options of dynamic loss scaling.
/// @throws invalid_argument naming the first invalid field.
void validate(loss_scaling_options const& options);

/// Returns the state of a loss scaler before the first step.
[[nodiscard]] loss_scaler_state initial_state(loss_scaling_options const& options);

/// Returns the state of a loss scaler after a step. Pure; thread-safe.
[[nodiscard]] loss_scaler_state after_step(loss_scaler_state state, loss_scaling_options const& options,
                                           bool overflow) noexcept;

// ---- Values and report of one step

/// Treatment of gradients that contain infinities or NaNs. They are always counted and reported.
enum class nonfinite_policy : std::uint8_t {
    skip,  ///< Skip the step: nothing changes, as is usual with dynamic loss scaling.
    zero,  ///< Treat these elements as zeros.
    apply, ///< Use these elements unchanged.
};

/// Values of one step. A value that is not set comes from optimizer_options or the parameter groups.
struct step_values {
    std::optional<double> loss_scale = {};   ///< Factor applied to the loss; unset: the loss scaler's scale, or 1.
    std::optional<double> max_norm = {};     ///< Limit of the norm of all gradients, after unscaling; 0: no limit.
    std::optional<double> max_abs_grad = {}; ///< Limit of each element, after unscaling; 0: none. Excludes max_norm.
    std::span<double const> lr = {};         ///< Learning rate of each group; empty: the groups' own.
};

/// Returns the factor that clips gradients of the given norm to max_norm. Pure.
///
/// The formula is that of torch.nn.utils.clip_grad_norm_ (with its 1e-6), evaluated in double:
/// min(1, max_norm / (norm + 1e-6)). A max_norm of 0 returns 1.
[[nodiscard]] double clip_coefficient(double norm, double max_norm) noexcept;

/// Outcome of a step.
enum class step_outcome : std::uint8_t {
    applied, ///< Parameters and moments were updated.
    skipped, ///< Parameters and moments are unchanged; see nonfinite_policy.
};

/// Time and memory traffic of one phase of a step.
struct step_phase {
    double seconds = 0;          ///< Duration.
    std::size_t bytes_moved = 0; ///< Bytes that have to be read and written: counted, not measured.
    /// Returns the memory traffic in GB/s.
    [[nodiscard]] double gb_per_s() const noexcept;
};

/// Work of a device in one step, and its busy time for each kind of work.
struct device_report {
    std::size_t elements = 0;   ///< Elements that the device stepped.
    double work_s = 0;          ///< Busy time of its kernels.
    double up_s = 0;            ///< Busy time of copies from host to device.
    double down_s = 0;          ///< Busy time of copies from device to host.
    std::size_t work_bytes = 0; ///< Bytes that its kernels read and wrote.
    std::size_t up_bytes = 0;   ///< Bytes copied from host to device.
    std::size_t down_bytes = 0; ///< Bytes copied from device to host.
};

/// Report of one step.
struct optimizer_report {
    std::uint64_t step = 0;                       ///< Number of this step, whether it was applied or skipped.
    step_outcome outcome = step_outcome::applied; ///< Whether the step was applied or skipped.
    bool speculated = false;                      ///< Some shards were stepped before the norm was known.
    bool rolled_back = false; ///< Speculative work was rolled back, because the step had to be clipped or skipped.
    double loss_scale = 1;    ///< Loss scale of this step.
    /// Whether gradients were measured before the step.
    ///
    /// A step that does not clip by norm, scale the loss dynamically, reduce over ranks, or skip or zero infinities and
    /// NaNs omits this pass. Then global_norm is a NaN, and nonfinite_grads is 0 whatever the gradients contain.
    bool measured = true;
    double global_norm = 0; ///< Norm of the finite gradients over all ranks, unscaled.
    /// Factor that clipped the gradients to max_norm.
    ///
    /// It is 0 if clip_coefficient / loss_scale would be at most 2^-251 (2.8e-76): gradients then count as zeros.
    double clip_coefficient = 1;
    std::uint64_t nonfinite_grads = 0; ///< Infinities and NaNs over all ranks.
    /// Position of a gradient element.
    struct place {
        std::size_t shard; ///< Index of the shard.
        std::size_t index; ///< Index of the element in the shard.
    };
    /// First infinity or NaN of this process, in the order of shards; unset if there is none.
    std::optional<place> first_nonfinite = {};
    std::size_t elements = 0;      ///< Elements stepped, by the CPU and the device.
    double ratio = 1;              ///< Share of these elements that the CPU stepped.
    double cpu_busy_s = 0;         ///< Average busy time of the CPU's threads.
    device_report device;          ///< Work of the device.
    std::size_t shards_waited = 0; ///< Shards that waited for the norm: finish() came first, or the journal was full.
    std::size_t journal_bytes = 0; ///< Bytes of records written to the journal.
    double seconds = 0;            ///< Duration of the step, including the time until the gradients arrived.
    step_phase gradients;          ///< Until the norm was known, including shards stepped as gradients arrived.
    step_phase update;             ///< After the norm was known: the (rest of the) step, or the rollback.
    /// Returns the memory traffic of both phases in bytes.
    [[nodiscard]] std::size_t bytes_moved() const noexcept;
    isa tier = isa::scalar; ///< Instruction set in use.
    unsigned threads = 0;   ///< Number of CPU threads.
    std::string_view pus;   ///< PUs that the threads are bound to, as a list. Points into the optimizer.
    double cpu_quota = 0;   ///< executor::cpu_quota(): a quota of fewer CPUs than threads makes steps slow.
};

// ---- Parameter groups, shards and options

/// Number of a parameter group: its position in the order of addition, from 0.
///
/// Converts from an integer, so that loops can count, and not from a shard_id.
struct group_id {
    std::size_t index = 0; ///< The number.
    /// Converts from an integer.
    ADAMANT_ALWAYS_INLINE constexpr group_id(std::size_t number) noexcept : index(number) {} // NOLINT: meant to convert
    /// Compares the numbers.
    friend bool operator==(group_id, group_id) = default;
};
/// Number of a shard: its position in the order of addition, from 0.
///
/// Converts from an integer, so that loops can count, and not from a group_id.
struct shard_id {
    std::size_t index = 0; ///< The number.
    /// Converts from an integer.
    ADAMANT_ALWAYS_INLINE constexpr shard_id(std::size_t number) noexcept : index(number) {} // NOLINT: meant to convert
    /// Compares the numbers.
    friend bool operator==(shard_id, shard_id) = default;
};

/// Parameters that share hyperparameters.
struct parameter_group {
    std::string name;      ///< Name, by which checkpoints find the group.
    hyperparameters hyper; ///< Hyperparameters of all its parameters.
    bool maximize = false; ///< Step up the gradient instead of down.
};

/// Maximum number of dimensions of a parameter.
inline constexpr std::size_t max_dimensions = 64;

/// Position of a shard in its parameter.
struct shard_place {
    std::vector<std::size_t> shape = {}; ///< Shape of the parameter, for checkpoints; empty: the shard is all of it.
    std::size_t begin = 0;               ///< Index of the shard's first element in it, in row-major order.
};

/// Whether shards are stepped before the norm is known. Changes no bit of any result.
enum class speculation : std::uint8_t {
    /// Speculate until finish() is called, unless most of the last eight steps had to be rolled back.
    ///
    /// Shards that finish() finds unstepped wait for the norm, which is nearly complete by then. The exception is a
    /// step that always writes records (keep_last_step, or a device).
    automatic,
    always, ///< Step every shard as soon as it is submitted.
    never,  ///< Only measure the gradient in submit().
};

/// Options of an optimizer.
struct optimizer_options {
    double max_norm = 0;                                    ///< See step_values::max_norm; 0: no clipping.
    double max_abs_grad = 0;                                ///< See step_values::max_abs_grad; 0: no clipping.
    nonfinite_policy on_nonfinite = nonfinite_policy::skip; ///< Treatment of infinities and NaNs in gradients.
    /// Dynamic loss scaling; unset: the scale is that of step_values, or 1.
    std::optional<loss_scaling_options> loss_scaling = {};
    speculation speculate = speculation::automatic; ///< Whether shards are stepped before the norm is known.
    /// Maximum size in bytes of the journal, whose records make a rollback possible.
    ///
    /// No more is allocated than the records of one step can take. A record takes, in bytes per element, by the types
    /// of param and moments:
    ///
    /// - float32, moments float32: 2 in a first step, 2.1 to 2.3 in ordinary training, at most 14; 12 on the
    ///   tiers scalar and, on x86, generic
    /// - float32, moments bfloat16: 8
    /// - float32, one moment of each type: 10
    /// - 16 bits, moments float32: 10
    /// - 16 bits, one moment of each type: 8
    /// - 16 bits, moments bfloat16: 6
    ///
    /// and an eighth more, and some KiB per thread, because pages are not filled completely. If unset, the budget is 3
    /// bytes per element with float32 throughout, and the size of the state with other types; with keep_last_step, it
    /// is the most that records can take. A block that finds the budget exhausted waits for the norm.
    std::optional<std::size_t> journal_budget_bytes = {};
    bool keep_last_step = false; ///< Keep the records of the last step for rollback().
    /// Seconds that a device may take for its part of a step before it counts as unresponsive.
    double device_timeout_s = 300;
    /// Whether a device allocates records of all its blocks.
    ///
    /// The records take as much memory as its params and moments. Without records the device never begins before the
    /// norm is known, and a failure in the update itself cannot be rolled back: the error says so, and a state must be
    /// loaded.
    bool device_records = true;
    /// Sums words over all ranks in place, if gradients are distributed over ranks; see squares_total.
    ///
    /// Does what MPI_Allreduce(MPI_IN_PLACE, words.data(), words.size(), MPI_INT64_T, MPI_SUM, comm) does. Integer
    /// addition is associative, so all ranks compute the same norm: that of one process with all gradients, provided
    /// that shard boundaries are multiples of norm_block_elems. Called once per step, by finish() or step(), and for
    /// step_async() on one of the team's threads.
    ///
    /// May throw. Words that no sum can have, or that are less than this process's own, raise invalid_argument. After
    /// either, step() and step_async() have changed nothing; with finish() the step stays open: call finish() again, or
    /// abandon().
    std::function<void(std::span<std::int64_t, squares_total::word_count> words)> reduce = {};
    /// Reports new weights of elements [begin, end), so that an engine can copy them during the step.
    ///
    /// Usually called once per step, for all of a shard that the CPU has; again if a speculative step is rolled back or
    /// redone, or if a shard is stepped in parts. The last call before finish(), step(), wait(), abandon() or
    /// rollback() returns reports the final weights. Both param and weight_out are written by then, and only the next
    /// step changes them.
    ///
    /// Called on the executor's threads or the caller's, concurrently for different shards. It must not call this
    /// optimizer or wait for a thread that does, and must not throw: an exception terminates the program.
    std::function<void(shard_id shard, std::size_t begin, std::size_t end)> weights_ready = {};
};

namespace detail {

void check_limits(double max_norm, double max_abs_grad);
// Returns the total of all ranks by options.reduce, which must be set. Throws what reduce throws, and invalid_argument
// for a result that no sum can have: such a result would clip the step arbitrarily, or not at all.
[[nodiscard]] squares_total reduced(optimizer_options const& options, squares_total const& own);
} // namespace detail

/// Checks the options of an optimizer.
/// @throws invalid_argument naming the first invalid option.
void validate(optimizer_options const& options);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/io/loss_scaler.ipp>
#include <adamant/detail/io/optimizer_options.ipp>
#include <adamant/detail/io/optimizer_report.ipp>
#endif
