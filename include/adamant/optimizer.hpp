// SPDX-License-Identifier: Apache-2.0
// The optimizer that an engine embeds: gradients in, weights out. It takes the norm, clips, checks for infinities and
// NaNs, and steps, in one or two passes over memory. A step may begin before the last gradient is there; where that
// turns out wrong, it is rolled back to the last bit and done again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/device.hpp>
#include <adamant/executor.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {
class optimizer_core;
struct delete_optimizer_core {
    void operator()(optimizer_core* core) const noexcept;
};
} // namespace detail

/// What optimizer::add_shard() takes. The arrays stay the caller's and must outlive the optimizer, or remove_shard().
struct shard_to_add {
    group_id group; ///< the group
    /// The parameter's. It may have several shards, of different elements and the same types.
    std::string name;
    optimizer_shard shard;              ///< its arrays
    accumulator_array accumulator = {}; ///< for optimizer::accumulate(); none if that is not called for this shard
    shard_place place = {};             ///< in its parameter; the default: the shard is all of it
};

/// Adam or AdamW over parameter groups; all arrays are the caller's. First add groups and shards, and call prepare().
/// Then, for every batch, either call step(), or begin_step(), submit() for each shard as its gradient arrives, and
/// finish(). Both give the same bits, in any order, with any number of threads and any budget for the journal.
///
/// The norm is made of blocks of norm_block_elems elements, whose sums are added exactly: a model has the same norm in
/// any order of shards, on any number of ranks, and however tensors are cut at multiples of that. If the
/// norm, gradients are read once (see optimizer_report::measured).
///
/// Before the first step weight_out must hold the rounded params: a step that is rolled back leaves that there.
///
/// A step() over few elements is done in the calling thread, as executor::for_each_slice() does slices, and one over
/// any number where the executor has no team. What goes on without the caller, begin_step() and step_async(), and steps
/// with a device, are the team's work; an executor without one gets one of a single thread for it, which is bound to
/// nothing.
///
/// Threads: submit(), skip() and set_gradient() may be called from any thread but the team's own, from several at
/// once; everything else from one thread at a time. Gradients must not change between their submit() and the end of
/// finish(). The caller's floating-point mode and traps have no effect on a step and do not change (options.reduce is
/// called without traps).
///
/// Errors: an exception leaves the optimizer as it was before the call, except where a function says otherwise. In a
/// process forked from the one that made the team, every call that needs the team throws unavailable. Where work was
/// under way at the fork, every call but those that only look throws it. The destructor waits for nothing there, and
/// leaks what threads were at work on.
///
/// Movable; an optimizer that was moved from can only be destroyed or assigned to.
class optimizer {
public:
    /// Works with the executor's threads. Throws invalid_argument for options that cannot be.
    explicit optimizer(executor const& cpu, optimizer_options options = {});
    /// Moves the optimizer; the moved-from one may only be destroyed.
    optimizer(optimizer&& other) noexcept;
    /// Moves the optimizer; the moved-from one may only be destroyed.
    optimizer& operator=(optimizer&& other) noexcept;
    /// Waits for a step that is under way. Takes a step that was begun and not finished back, where abandon() could;
    /// otherwise shards that were submitted stay stepped, and the others are as before.
    ~optimizer();

    // ---- Set-up: before the first step, and between steps

    /// Adds a group and returns its number. The last step cannot be rolled back any more. Throws invalid_argument where
    /// validate() does, and for a name that is empty, taken or not UTF-8.
    group_id add_group(parameter_group group);
    /// The same.
    group_id add_group(std::string name, hyperparameters const& hyper, bool maximize = false);
    /// Removes a group. The groups behind it move down by one number. The last step cannot be rolled back any more.
    /// Throws invalid_argument for a number that no group has, while a shard belongs to the group, while a step is
    /// under way, and while a device has shards (see place()).
    void remove_group(group_id group);
    /// By number.
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept;
    /// Throws invalid_argument for a number that no group has.
    [[nodiscard]] parameter_group const& group(group_id which) const;
    /// The group of that name; none if there is no such group.
    std::optional<group_id> find_group(std::string_view name) const;
    /// From the next step on. Throws invalid_argument as add_group() does, and while a step is under way.
    void set_hyperparameters(group_id group, hyperparameters const& hyper);

    /// Adds a shard and returns its number. The last step cannot be rolled back any more. Throws invalid_argument for a
    /// group that does not exist, a place that is outside the parameter or in another of its shards, a name that is
    /// empty or not UTF-8, an accumulator of another size or type, and arrays that overlap. Overlaps within the shard
    /// are found here, others before anything is written.
    shard_id add_shard(shard_to_add added);
    /// Removes a shard and leaves its arrays alone: they hold its state, and may go away now. The shards behind it move
    /// down by one number; what accumulators hold still counts. The last step cannot be rolled back any more. Throws
    /// invalid_argument for a number that no shard has, while a step is under way, and while a device has shards: take
    /// them back with place(nullptr, ...) first.
    void remove_shard(shard_id shard);
    /// Number of shards.
    [[nodiscard]] std::size_t shards() const noexcept;
    /// Name of a shard.
    [[nodiscard]] std::string const& name(shard_id shard) const;
    /// The shard of parameter `name` that begins at element `begin` of it; none if there is no such shard.
    std::optional<shard_id> find_shard(std::string_view name, std::size_t begin = 0) const;
    /// From now on the shard's gradient is at `grad`, in as many elements of the same type as before: for an engine
    /// with rotating buffers. Between steps, or in an open step before the shard's submit(); from any thread, as
    /// submit(). Allocates nothing once memory is prepared. rollback() reads the gradient where it is set then, so for
    /// a rollback set the one that the step was taken with. Throws invalid_argument for a null pointer (if the shard
    /// has elements), memory that a step writes, a shard that has been submitted, and one with an array of gradients on
    /// a device.
    void set_gradient(shard_id shard, void const* grad);

    /// What prepare() will allocate, in bytes, with the journal of begin_step() or without. Exact to some KiB, as there
    /// are a few things for each thread and group, too.
    [[nodiscard]] std::size_t memory_bytes(bool with_journal = true) const;
    /// Allocates all that steps need; without this call the first step does. No later step allocates (with a device,
    /// only small things for what is enqueued). with_journal: for begin_step(), too. Throws invalid_argument where
    /// arrays overlap, and what buffer does.
    void prepare(bool with_journal = true);

    /// How many blocks of norm_block_elems the CPU's threads have worked on since the optimizer was made, counted once
    /// for every pass: for displays of progress. From any thread, at any time.
    [[nodiscard]] std::uint64_t cpu_blocks_done() const noexcept;

    /// Steps taken so far.
    [[nodiscard]] std::uint64_t steps() const noexcept;
    /// For an engine that restores its own count: the next step is number steps + 1. State, scaler and accumulators
    /// stay. The last step cannot be rolled back any more. Throws invalid_argument while a step is under way.
    void set_steps(std::uint64_t steps);
    /// The factor for the next loss.
    [[nodiscard]] double loss_scale() const noexcept;
    /// What dynamic loss scaling has learned; none without it.
    [[nodiscard]] std::optional<loss_scaler_state> loss_scaler() const noexcept;
    /// Sets that, from the next step on. The last step cannot be rolled back any more. Throws invalid_argument for a
    /// scale whose inverse float does not hold, without dynamic loss scaling in the options, and while a step is under
    /// way.
    void set_loss_scaler(loss_scaler_state const& state);
    /// The executor.
    [[nodiscard]] executor const& cpu() const noexcept;

    // ---- A device beside the CPU

    /// Gives a part of the shards to a device, takes it back, or changes what the device has. From the next step on the
    /// device steps its pieces while the CPU steps the others, with the same bits wherever the cut is. Make the
    /// placement by split() from shard_sizes(). A null device takes everything back.
    ///
    /// The state moves: what a device has is in its memory alone, and the shards' own arrays of it are out of date
    /// until update_host_arrays() or state() is called, or it comes back. (Until then the pages of these arrays may be
    /// given back to the system; those functions touch them again.) Shards that are added later are the CPU's. The last
    /// step cannot be rolled back any more. The device needs room for the new pieces beside the old ones: a piece whose
    /// cut moves is allocated anew.
    ///
    /// Where an error says that the device has failed, or did not answer in time, the step is rolled back on both
    /// sides: state and accumulated gradients are as before it. For that, both sides record every step (see
    /// journal_budget_bytes and device_records). A device that does not answer takes its part back later, before
    /// anything else; until then the gradients of that step must stay where they are on it.
    ///
    /// Throws, with everything where it was: invalid_argument for a placement of other shards, device_error and
    /// unavailable where the device fails or lacks the memory, invalid_argument where it has another optimizer's
    /// shards. What prepare() throws comes when all has moved.
    void place(std::shared_ptr<device> on, placement const& where);
    /// The shards' sizes in elements, by number: for split().
    [[nodiscard]] std::vector<std::size_t> shard_sizes() const;
    /// What all pieces of such a placement take on that device, in bytes.
    [[nodiscard]] std::size_t device_bytes(device const& on, placement const& where) const;
    /// The shard's gradient is made on the device that place() is given next, and its weights are wanted there, in
    /// arrays of the caller's in the device's memory, until place(nullptr, ...). Without: in host memory. See
    /// device_arrays. Throws invalid_argument after place(), and where an array is missing.
    void set_device_arrays(shard_id shard, device_arrays const& arrays);

    // ---- Steps

    /// A whole step; all gradients are there. One pass over memory, or two where the norm or the finiteness has to be
    /// known first. Throws invalid_argument for values that cannot be, before anything is written.
    optimizer_report step(step_values const& values = {});

    /// A whole step over gradients that are elsewhere than in the step before: gradients[i] is shard i's, as by
    /// set_gradient(), and a null pointer leaves the shard out, as skip() does. Throws what these and step() throw;
    /// state is as before then, but gradients may be set.
    optimizer_report step_gradients(std::span<void const* const> gradients, step_values const& values = {});

    /// Opens a step; see the class. The first call allocates, unless prepare() has.
    void begin_step(step_values const& values = {});
    /// This shard's gradient is there: the team's threads begin to work on it immediately. Returns immediately. Throws
    /// invalid_argument where no step is open or the shard has been submitted or left out; then nothing has changed.
    /// With a device, any other error fails the step: finish() then takes it back and throws device_error.
    void submit(shard_id shard);
    /// set_gradient() and submit() in one call.
    void submit(shard_id shard, void const* grad);
    /// This shard has no gradient in this step and stays as it is. What was accumulated for it is forgotten.
    void skip(shard_id shard);
    /// Waits for what was submitted, and completes the step: it stays as it was taken, is rolled back and done again
    /// with the clip coefficient, or is skipped. Throws invalid_argument where a shard was neither submitted nor left
    /// out, and what options.reduce throws; in both cases the step stays open: call finish() again, or abandon().
    optimizer_report finish();
    /// Gives up the open step: what it has stepped is rolled back to the last bit, and accumulated gradients stay.
    /// Throws unavailable, and the step stays open, where that cannot be: in a step that needs no norm (it neither
    /// skips nor clips by it, and there is no reduce) what was submitted can be rolled back only with keep_last_step.
    void abandon();

    /// Rolls back the last step, which must have been applied with keep_last_step. Since then no step may have been
    /// begun, no gradient accumulated, no group or shard added or removed, nothing placed, no step count or loss scaler
    /// set and no state loaded. The step's gradients must be where set_gradient() last said, unchanged, which a
    /// checksum tells.
    ///
    /// Restores every bit of param, exp_avg and exp_avg_sq, the step count and the loss scale, and makes weight_out of
    /// param. Accumulators count again: a step reads them without changing them and then forgets them, so after the
    /// rollback they hold the same micro-steps as before the step. Submit the last gradient again to repeat the step,
    /// or call clear_accumulators() to begin anew; what an accumulator holds must not have changed either.
    ///
    /// Throws invalid_argument where there is no such step or the gradients have changed, with nothing touched, and
    /// unavailable where the journal's budget was too small.
    void rollback();

    /// Adds the shard's gradient to its accumulator: for every micro-step but the last one, whose gradient submit() or
    /// step() adds on the way. Returns when it is done, so that the gradient's memory may be used again. The first
    /// micro-step after a step overwrites the accumulator. The sum is not divided: let loss_scale count the
    /// micro-steps. The last step cannot be rolled back any more. Throws invalid_argument for a shard without an
    /// accumulator, or one that was submitted.
    void accumulate(shard_id shard);
    /// Forgets what was accumulated. The last step cannot be rolled back any more.
    void clear_accumulators();

    /// A step that the team's threads drive. Refers to the optimizer, even where that is moved.
    class ticket {
    public:
        /// Whether the step is over. Never blocks for long.
        [[nodiscard]] bool done() const;
        /// The share of the work that is done, from 0 to 1, of the passes that are known to be needed.
        [[nodiscard]] double progress() const;
        /// False where the step is not over by then; it goes on all the same.
        bool wait_until(std::chrono::steady_clock::time_point deadline) const;
        /// Waits for the given time. Returns whether the step is over.
        bool wait_for(std::chrono::nanoseconds time) const;
        /// Waits for as long as it takes. Throws what options.reduce threw; then the step has changed nothing.
        optimizer_report wait() const;

    private:
        friend class optimizer;
        explicit ticket(detail::optimizer_core& of) noexcept : of_(&of) {}
        detail::optimizer_core* of_;
    };
    /// As step(), but returns immediately. Until wait() has returned, only the ticket may be used.
    [[nodiscard]] ticket step_async(step_values const& values = {});

    // ---- State

    /// The state as views of the shards' arrays, which last as long as those; their bits are those of the last step. A
    /// device's part is copied into those arrays first. Accumulated gradients are not in it: to resume to the bit, take
    /// the state after a step and before the next micro-step. Throws invalid_argument while a step is under way, and
    /// device_error.
    [[nodiscard]] state_dict state();
    /// Copies the params and moments that a device has into the shards' own arrays, so that they can be read there (see
    /// place()). Does nothing without a device. Throws as state() does.
    void update_host_arrays();
    /// Takes over a state: step count, loss scale, the groups' hyperparameters (by name), and all arrays (by the
    /// parameter's name), however they were cut; weight_out is made of param. What the state has besides is ignored.
    /// Accumulated gradients are forgotten. The last step cannot be rolled back any more.
    ///
    /// Checks everything first, and throws invalid_argument that says what is missing or does not fit, with nothing
    /// changed. Where the device (device_error) or the file that the state is read from (corrupted, unavailable) fails
    /// after that, params and moments are a mixture, and every step throws until load() has succeeded.
    void load(state_dict const& from);

private:
    std::unique_ptr<detail::optimizer_core, detail::delete_optimizer_core> core_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/engine/optimizer.ipp>
#endif
