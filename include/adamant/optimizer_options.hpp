// SPDX-License-Identifier: Apache-2.0
// Options and report of an optimizer, and dynamic loss scaling.
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

// ---- Dynamic loss scaling: finds by trial the factor that keeps float16 gradients from underflowing.

ADAMANT_BEGIN_NAMESPACE

/// Options of dynamic loss scaling (Micikevicius et al., arXiv 1710.03740, section 3.2): the scale grows after
/// growth_interval steps without overflow and shrinks after an overflow. With growth_factor 2 and backoff_factor 0.5
/// every scale is a power of two, so scaling is exact. Scales are in [2^-125, 2^125].
struct loss_scaling_options {
    double initial_scale = 65536;         ///< first scale
    double growth_factor = 2;             ///< at least 1
    double backoff_factor = 0.5;          ///< in (0, 1]
    std::uint32_t growth_interval = 2000; ///< steps in a row without an overflow, at least 1
    /// Overflows are numbered from 1 since the scale last grew. Those before this number leave the scale as it is; this
    /// one and every later one shrink it. As in DeepSpeed. At least 1.
    std::uint32_t hysteresis = 1;
    double min_scale = 1;      ///< smallest scale
    double max_scale = 0x1p32; ///< larger ones gain nothing
};

/// State of dynamic loss scaling; saved with the optimizer's state.
struct loss_scaler_state {
    double scale = 1;                  ///< the loss scale
    std::uint32_t good_steps = 0;      ///< since the scale last grew or a gradient last overflowed
    std::uint32_t hysteresis_left = 1; ///< overflows until the scale shrinks
    /// Compares all members.
    friend bool operator==(loss_scaler_state const&, loss_scaler_state const&) = default;
};

namespace detail {
// Whether a float can hold the inverse of the scale; gradients are multiplied by this inverse.
[[nodiscard]] bool is_loss_scale(double scale) noexcept;
inline constexpr char const* loss_scale_rule = "from 2.4e-38 to 4.2e37, so that float holds its inverse";
} // namespace detail

/// Checks the options.
/// @throws invalid_argument for the first invalid field
void validate(loss_scaling_options const& options);

/// State of a scaler that has not seen a step.
[[nodiscard]] loss_scaler_state initial_state(loss_scaling_options const& options);

/// Returns the state after a step. Pure; thread-safe.
[[nodiscard]] loss_scaler_state after_step(loss_scaler_state state, loss_scaling_options const& options,
                                           bool overflow) noexcept;

// ---- Values of one step, and its report

/// What happens to a step with infinities or NaNs in its gradients. They are counted and reported if gradients are
/// measured (see optimizer_report::measured).
enum class nonfinite_policy : std::uint8_t {
    skip,  ///< nothing changes, as is usual with dynamic loss scaling
    zero,  ///< those elements count as zeros
    apply, ///< they go into the step as they are
};

/// Values of one step. An absent value is that of the options. Setting max_norm or max_abs_grad replaces both limits
/// of the options. Setting loss_scale replaces the dynamic loss scale, which this step then does not adjust.
struct step_values {
    /// Factor that the loss was multiplied by; its inverse must be above 2^-126 and at most 3.4e38. Absent: the
    /// scaler's, or 1.
    std::optional<double> loss_scale = {};
    std::optional<double> max_norm = {};     ///< of all gradients together, after unscaling; 0: no limit
    std::optional<double> max_abs_grad = {}; ///< of each element, after unscaling; 0: no limit. Not with max_norm
    std::span<double const> lr = {};         ///< one for each group; empty: the groups' own
    /// Number of this step for each shard, at least 1; empty: steps() + 1 for all. It determines the bias correction
    /// and stochastic rounding. For engines that count the steps of each param themselves, as PyTorch does, because
    /// some params have no gradient in some steps. Copied by the call. Not with a device that has shards, and not
    /// for zenflow_optimizer, which counts each param's steps.
    std::span<std::uint64_t const> shard_steps = {};
};

/// Clip coefficient for gradients of this norm, as in torch.nn.utils.clip_grad_norm_, but in double:
/// min(1, max_norm / (norm + 1e-6)). Returns 1 if max_norm is 0 or the norm is a NaN. Pure.
[[nodiscard]] double clip_coefficient(double norm, double max_norm) noexcept;

/// Whether a step changed the state.
enum class step_outcome : std::uint8_t { applied, skipped };

/// Time and memory traffic of a part of a step. Bytes are computed, not measured.
struct step_phase {
    double seconds = 0;          ///< duration
    std::size_t bytes_moved = 0; ///< bytes read and written
    /// Bandwidth in 10^9 bytes a second.
    [[nodiscard]] double gb_per_s() const noexcept;
};

/// A device's part of a step and its busy times.
struct device_report {
    std::size_t elements = 0;   ///< stepped there
    double work_s = 0;          ///< time of updates on the device
    double up_s = 0;            ///< copies from the host
    double down_s = 0;          ///< time of copies from the device
    std::size_t work_bytes = 0; ///< bytes of the device's memory that updates move
    std::size_t up_bytes = 0;   ///< bytes copied to the device
    std::size_t down_bytes = 0; ///< bytes copied from the device
};

/// Report of a step.
struct optimizer_report {
    std::uint64_t step = 0;                       ///< the number of this step, whether it was applied or skipped
    step_outcome outcome = step_outcome::applied; ///< applied or skipped
    bool speculated = false;                      ///< whether shards were updated before the norm was known
    bool rolled_back = false;                     ///< whether these updates were rolled back to clip or skip the step
    double loss_scale = 1;                        ///< the loss scale of this step
    /// Whether the step computed the norm of its gradients and counted the non-finite ones. False if nothing needs
    /// them, that is with neither max_norm nor a dynamic loss scale nor reduce, and with nonfinite_policy::apply. Then
    /// global_norm is NaN and nonfinite_grads is 0.
    bool measured = true;
    double global_norm = 0; ///< of the finite gradients, unscaled, over all ranks
    /// The applied clip coefficient. 0 if clip_coefficient / loss_scale would be at most 2^-251 (2.8e-76): gradients
    /// then count as zeros.
    double clip_coefficient = 1;
    std::uint64_t nonfinite_grads = 0; ///< over all ranks
    /// Position of a gradient element.
    struct element {
        std::size_t shard; ///< index of the shard
        std::size_t index; ///< index of the element in the shard
    };
    std::optional<element> first_nonfinite = {}; ///< absent: none in this process
    std::size_t elements = 0;                    ///< stepped, CPU and device
    double ratio = 1;                            ///< the share of them that the CPU has stepped
    double cpu_busy_s = 0;                       ///< how long its threads have worked, on average
    device_report device;                        ///< the device's part
    /// Shards that waited for the norm, because their update had not begun when finish() was called, or because the
    /// journal's budget was used up.
    std::size_t shards_waited = 0;
    std::size_t journal_bytes = 0; ///< of records written
    double seconds = 0;            ///< from its beginning to its end, with the time that gradients took to arrive
    step_phase gradients;          ///< until the norm was known, speculative updates included
    /// After that: either all updates, or only the remaining ones, or a rollback and the repeated updates.
    step_phase update;
    /// Bytes read and written by gradients and update.
    [[nodiscard]] std::size_t bytes_moved() const noexcept;
    isa tier = isa::scalar; ///< instruction set
    unsigned threads = 0;   ///< threads of the executor; small steps use fewer
    std::string_view pus;   ///< list of PUs (hardware threads) of the threads; valid as long as the optimizer exists
    double cpu_quota = 0;   ///< executor::cpu_quota(): fewer CPUs than threads make steps slow
};

// ---- Options and parameter groups

/// Number of a parameter group, from 0 in the order of add_group(). Integers convert to it, so a loop counter can be
/// passed; group and shard numbers do not convert to each other.
struct group_id {
    std::size_t index = 0; ///< position in the optimizer
    /// Converts a number.
    ADAMANT_ALWAYS_INLINE constexpr group_id(std::size_t number) noexcept : index(number) {} // NOLINT: meant to convert
    /// Compares all members.
    friend bool operator==(group_id, group_id) = default;
};
/// Number of a shard, from 0 in the order of add_shard().
struct shard_id {
    std::size_t index = 0; ///< position in the optimizer
    /// Converts a number.
    ADAMANT_ALWAYS_INLINE constexpr shard_id(std::size_t number) noexcept : index(number) {} // NOLINT: meant to convert
    /// Compares all members.
    friend bool operator==(shard_id, shard_id) = default;
};

/// Parameters that share hyperparameters.
struct parameter_group {
    std::string name;      ///< name of the group
    hyperparameters hyper; ///< its hyperparameters
    bool maximize = false; ///< step up the gradient
};

/// Maximum number of dimensions of a parameter.
inline constexpr std::size_t max_dimensions = 64;

/// Position of a shard in its parameter.
struct shard_position {
    std::vector<std::size_t> shape =
        {};                ///< of the whole parameter, kept for checkpoints; empty: the shard is all of it
    std::size_t begin = 0; ///< the shard's first element in it, in row-major order
};

/// Whether submit() updates shards before the norm is known. Changes no bit of a result.
enum class speculation : std::uint8_t {
    /// Updates them, unless more than half of the last eight steps were clipped or skipped, or the model is so small
    /// that submit() works in the calling thread. Once finish() is called, shards wait for the norm, which is known
    /// soon; with keep_last_step or a device they are still updated immediately.
    automatic,
    always, ///< all of them, also after finish() is called
    never,  ///< submit() only measures
};

/// Options of an optimizer.
struct optimizer_options {
    double max_norm = 0;                                    ///< see step_values; 0: not clipped
    double max_abs_grad = 0;                                ///< the same
    nonfinite_policy on_nonfinite = nonfinite_policy::skip; ///< what happens to a step with infinities or NaNs
    /// Dynamic loss scaling; absent: the scale is in the step_values, or 1.
    std::optional<loss_scaling_options> loss_scaling = {};
    speculation speculate = speculation::automatic; ///< when shards are updated before the norm is known
    /// Maximum size of the records from which a step is rolled back. Even with a larger
    /// maximum, no more memory is allocated than the records of one step can take. The size of a record, in bytes per
    /// element, depends on the types of param and moments:
    ///
    /// - float32 or split_float32, moments float32: 2 in the first step, 2.1 to 2.3 in training, at most 14;
    ///   always 12 with tier scalar
    /// - float32, moments bfloat16: 8
    /// - float32, one moment of each type: 10
    /// - 16 bits, moments float32: 10. If param is rounded to nearest and the model has 4 million elements or more:
    ///   4.0 to 4.2 in training, at most 12
    /// - 16 bits, one moment of each type: 8
    /// - 16 bits, moments bfloat16: 6
    /// - other types: the bytes of param and moments
    ///
    /// If the shard tracks which weights change (any_shard::track()), a record also holds an eighth of a byte for each
    /// element. Each record begins at a multiple of 64 bytes. In a record that copies the state, each copied array
    /// begins at such a multiple, too. This padding matters only for shards of a few elements. The journal does not
    /// fill its pages completely: to compute a budget, multiply these sizes by 9/8, then add for each thread 16 times
    /// the longest record of one block (at most 0.9 MiB a thread). If this option is absent, the maximum is: with
    /// keep_last_step, the most that records can take; otherwise 3 bytes an element for shards whose records take 2
    /// to 2.3, and the size of the state for all others. A block that finds the budget used up waits for the norm.
    std::optional<std::size_t> journal_budget_bytes = {};
    bool keep_last_step = false; ///< for rollback()
    /// Seconds that a device may take for its part of a step before it counts as not answering.
    double device_timeout_s = 300;
    /// Whether a device keeps records of all its blocks, which take as much memory as its params and moments. Without
    /// them it never starts before the norm is known, and a failure during the update cannot be rolled back: the error
    /// asks for a load().
    bool device_records = true;
    /// For gradients that are sharded over ranks: replaces each word (see squares_total) by its sum over all ranks, as
    /// MPI_Allreduce(MPI_IN_PLACE, words.data(), words.size(), MPI_INT64_T, MPI_SUM, comm) does. Integer addition is
    /// exact, so all ranks get the norm of one process with all gradients, if shard boundaries are multiples of
    /// norm_block_elems. Called once in every step (up to three times in a step of zenflow_optimizer, on all ranks
    /// alike), by finish() or step(), or for step_async() in a thread of the team. May throw. If it leaves invalid
    /// words, or a total that is less than this process's own part, the call throws invalid_argument. If reduce fails,
    /// step() and step_async() have changed nothing, and the step of finish() stays open: call finish() again, or
    /// abandon(). It must not call this optimizer.
    std::function<void(std::span<std::int64_t, squares_total::word_count> words)> reduce = {};
    /// For engines that copy new weights while other shards are still being updated. Called whenever elements [begin,
    /// end) of a shard have new weights: usually once a step for the CPU's whole part of a shard; more often after a
    /// rollback, or if the CPU's part is updated in several ranges. It is not called for a device's part, whose weights
    /// are complete when the step's last call returns. When finish(), step(), wait(), abandon() or rollback() returns,
    /// the last call for each range has reported its final weights. When it is called, param and weight_out of the
    /// range are both written. Runs in the executor's threads or the caller's, concurrently for different shards. It
    /// must not call this optimizer or wait for a thread that does. It must not throw: an exception ends the program.
    std::function<void(shard_id shard, std::size_t begin, std::size_t end)> weights_ready = {};
};

namespace detail {

void check_limits(double max_norm, double max_abs_grad);
// The total of all ranks by options.reduce, which must be set. Throws what that throws, and invalid_argument for an
// invalid result.
[[nodiscard]] squares_total reduced(optimizer_options const& options, squares_total const& local);
} // namespace detail

/// Checks the options.
/// @throws invalid_argument for the first invalid option
void validate(optimizer_options const& options);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/io/loss_scaler.ipp>
#include <adamant/detail/io/optimizer_options.ipp>
#include <adamant/detail/io/optimizer_report.ipp>
#endif
