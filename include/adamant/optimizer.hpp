// SPDX-License-Identifier: Apache-2.0
// The optimizer that a training engine embeds: gradients in, weights out, in one or two passes over memory.
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

/// Argument of optimizer::add_shard().
///
/// The caller owns the arrays. They must outlive the optimizer, or exist until remove_shard().
struct shard_to_add {
    group_id group; ///< Parameter group of the shard.
    /// Name of the parameter. It may have several shards, with different elements and the same types.
    std::string name;
    optimizer_shard shard;              ///< Arrays of the shard.
    accumulator_array accumulator = {}; ///< Accumulator for optimizer::accumulate(); empty if that is never called.
    shard_place place = {};             ///< Position in the parameter; by default, the shard is all of it.
};

/// Adam or AdamW over parameter groups whose arrays belong to the caller.
///
/// First add groups and shards, and call prepare(). Then, for every batch, call either step(), or begin_step(),
/// submit() for each shard as its gradient arrives, and finish(). Both give the same bits, in any order, with any
/// number of threads and any journal budget. A step may begin before the last gradient arrives; if it then has to be
/// clipped or skipped, it is rolled back bit for bit and redone.
///
/// Norm: the norm is built from blocks of norm_block_elems elements, whose sums are added exactly. A model therefore
/// has the same norm with any order of shards, on any number of ranks, and for all shard boundaries that are multiples
/// of norm_block_elems. If a step does not need the norm, gradients are read only once (see
/// optimizer_report::measured).
///
/// Weights: before the first step weight_out must hold the rounded params, because a rollback restores it to them.
///
/// Where steps run: a step() over few elements runs on the calling thread, as executor::for_each_slice() does slices;
/// so does every step() if the executor has no team. Asynchronous work, which is begin_step() and step_async(), and
/// steps with a device run on the team. If the executor has no team, a single unbound worker thread is created for
/// them.
///
/// Threads: submit(), skip() and set_gradient() may be called from any thread except the team's own, also concurrently.
/// Call everything else from one thread at a time. Gradients must not change between their submit() and the end of
/// finish(). The caller's floating-point mode and traps do not affect a step and are preserved (options.reduce is
/// called without traps).
///
/// Errors: an exception leaves the optimizer as it was before the call, unless a function says otherwise. In a process
/// forked from the one that created the team, every call that needs the team throws unavailable. If work was in
/// progress at the fork, every call except pure queries throws it. The destructor waits for nothing in such a process,
/// and leaks the memory that threads were working on.
///
/// Movable. A moved-from optimizer can only be destroyed or assigned to.
class optimizer {
public:
    /// Creates an optimizer without groups and shards that works with the executor's threads.
    /// @throws invalid_argument for invalid options.
    explicit optimizer(executor const& cpu, optimizer_options options = {});
    /// Moves an optimizer. Tickets stay valid.
    optimizer(optimizer&& other) noexcept;
    /// Destroys this optimizer and moves the other one here.
    optimizer& operator=(optimizer&& other) noexcept;
    /// Waits for a step in progress, and rolls back an open step if abandon() could.
    ///
    /// If it could not, submitted shards stay stepped, and the others are unchanged.
    ~optimizer();

    // ---- Set-up: before the first step, and between steps

    /// Adds a group and returns its number. The last step can no longer be rolled back.
    /// @throws invalid_argument if validate() throws it, or if the name is empty, taken or not UTF-8.
    group_id add_group(parameter_group group);
    /// Adds a group of the given name and hyperparameters; see add_group(parameter_group).
    /// @throws invalid_argument if validate() throws it, or if the name is empty, taken or not UTF-8.
    group_id add_group(std::string name, hyperparameters const& hyper, bool maximize = false);
    /// Removes a group. Later groups move up by one number. The last step can no longer be rolled back.
    /// @throws invalid_argument if the group does not exist or still has shards, if a step is in progress, or if a
    /// device has shards (see place()).
    void remove_group(group_id group);
    /// Returns all groups, by number.
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept;
    /// Returns one group.
    /// @throws invalid_argument if the group does not exist.
    [[nodiscard]] parameter_group const& group(group_id number) const;
    /// Finds a group by its name; returns none if no group has it.
    std::optional<group_id> find_group(std::string_view name) const;
    /// Sets the hyperparameters of a group from the next step on.
    /// @throws invalid_argument as add_group() does, and if a step is in progress.
    void set_hyperparameters(group_id group, hyperparameters const& hyper);

    /// Adds a shard and returns its number. The last step can no longer be rolled back.
    ///
    /// Overlaps within the shard are detected here, overlaps with other shards before anything is written.
    /// @throws invalid_argument if the group does not exist, if the place is outside the parameter or overlaps another
    /// of its shards, if the name is empty or not UTF-8, if the accumulator has another size or type, or if arrays
    /// overlap.
    shard_id add_shard(shard_to_add shard);
    /// Removes a shard. Later shards move up by one number. The last step can no longer be rolled back.
    ///
    /// The shard's arrays keep its state and may be freed. Accumulated gradients of the other shards stay valid.
    /// @throws invalid_argument if the shard does not exist, if a step is in progress, or if a device has shards: move
    /// them to the host with place(nullptr, ...) first.
    void remove_shard(shard_id shard);
    /// Returns the number of shards.
    [[nodiscard]] std::size_t shards() const noexcept;
    /// Returns the name of a shard's parameter.
    [[nodiscard]] std::string const& name(shard_id shard) const;
    /// Finds the shard that begins at element `begin` of a parameter; returns none if there is none.
    std::optional<shard_id> find_shard(std::string_view name, std::size_t begin = 0) const;
    /// Sets the address of a shard's gradient, for engines that rotate buffers.
    ///
    /// The gradient keeps its type and number of elements. Call it between steps, or in an open step before the shard's
    /// submit(); from any thread, as submit(). Does not allocate once memory is prepared. rollback() reads the gradient
    /// at its current address, so before a rollback set the address that the step used.
    /// @throws invalid_argument if the pointer is null and the shard has elements, if a step writes that memory, if the
    /// shard was submitted, or if its gradient array is on a device.
    void set_gradient(shard_id shard, void const* grad);

    /// Returns the bytes that prepare() will allocate, with the journal of begin_step() or without.
    ///
    /// Exact to some KiB, because each thread and group needs a little memory, too.
    [[nodiscard]] std::size_t memory_bytes(bool with_journal = true) const;
    /// Allocates the memory that steps need. Without this call the first step allocates it.
    ///
    /// Later steps do not allocate, except for small objects of enqueued work with a device. Pass with_journal for
    /// begin_step().
    /// @throws invalid_argument if arrays overlap, and what buffer throws.
    void prepare(bool with_journal = true);

    /// Returns the number of blocks of norm_block_elems that the CPU has processed since construction.
    ///
    /// Every pass counts a block once. For progress displays. From any thread, at any time.
    [[nodiscard]] std::uint64_t cpu_blocks_done() const noexcept;

    /// Returns the number of steps taken.
    [[nodiscard]] std::uint64_t steps() const noexcept;
    /// Sets the step count, for engines that restore their own: the next step is number steps + 1.
    ///
    /// State, loss scaler and accumulators stay. The last step can no longer be rolled back.
    /// @throws invalid_argument if a step is in progress.
    void set_steps(std::uint64_t steps);
    /// Returns the loss scale to use for the next backward pass.
    [[nodiscard]] double loss_scale() const noexcept;
    /// Returns the state of dynamic loss scaling; none if the loss is not scaled dynamically.
    [[nodiscard]] std::optional<loss_scaler_state> loss_scaler() const noexcept;
    /// Sets the state of dynamic loss scaling from the next step on.
    ///
    /// The last step can no longer be rolled back.
    /// @throws invalid_argument if float cannot represent the inverse of the scale, if the options have no dynamic loss
    /// scaling, or if a step is in progress.
    void set_loss_scaler(loss_scaler_state const& state);
    /// Returns the executor.
    [[nodiscard]] executor const& cpu() const noexcept;

    // ---- A device beside the CPU

    /// Moves a part of the shards to a device. A null device moves all shards back to the host.
    ///
    /// Called again, it changes the device's part.
    ///
    /// From the next step on the device steps its pieces while the CPU steps the others, with the same bits for every
    /// placement. Compute the placement with split() from shard_sizes(). Shards that are added later belong to the CPU.
    /// The last step can no longer be rolled back.
    ///
    /// State: the state of the device's pieces exists only in its memory. The shards' own arrays of it are out of date
    /// until update_host_arrays() or state() is called, or the pieces move back. (Until then the pages of these arrays
    /// may be returned to the system; those functions touch them again.) The device needs room for the new pieces in
    /// addition to the old ones, because a piece whose boundaries change is allocated anew.
    ///
    /// Failures: if an error says that the device failed or did not answer in time, the step was rolled back on CPU and
    /// device: state and accumulated gradients are as before it. For this both record every step (see
    /// journal_budget_bytes and device_records). An unresponsive device performs its rollback later, before anything
    /// else; until then the gradients of that step must stay at their addresses on the device.
    /// @throws invalid_argument if the placement does not match the shards, or if the device has another optimizer's
    /// shards.
    /// @throws device_error, unavailable if the device fails or lacks the memory. After these errors nothing has moved.
    /// Errors of prepare() are thrown after everything has moved.
    void place(std::shared_ptr<device> target, placement const& partition);
    /// Returns the sizes of all shards in elements, by number, for split().
    [[nodiscard]] std::vector<std::size_t> shard_sizes() const;
    /// Returns the bytes of device memory that the pieces of a placement take.
    [[nodiscard]] std::size_t device_bytes(device const& target, placement const& partition) const;
    /// Declares that a shard's gradient is produced, and its weights are needed, in device memory.
    ///
    /// The arrays belong to the caller and are on the device that place() is given next, until place(nullptr, ...).
    /// Without this call both are in host memory. See device_arrays.
    /// @throws invalid_argument after place(), and if an array is missing.
    void set_device_arrays(shard_id shard, device_arrays const& arrays);

    // ---- Steps

    /// Takes a whole step when all gradients are available.
    ///
    /// Makes one pass over memory, or two if the norm or the finiteness must be known first.
    /// @throws invalid_argument for invalid values, before anything is written, and what options.reduce throws.
    optimizer_report step(step_values const& values = {});

    /// Takes a whole step over gradients at new addresses.
    ///
    /// gradients[i] is the gradient of shard i, as for set_gradient(). A null pointer skips the shard, as skip() does.
    /// @throws what set_gradient(), skip() and step() throw. The state is then as before, but some gradient addresses
    /// may be set.
    optimizer_report step_gradients(std::span<void const* const> gradients, step_values const& values = {});

    /// Opens a step whose gradients arrive one by one. The first call allocates, unless prepare() has.
    /// @throws invalid_argument for invalid values, and if a step is in progress.
    void begin_step(step_values const& values = {});
    /// Marks a shard's gradient as ready. Workers start on it immediately; does not block.
    /// @throws invalid_argument if no step is open, or if the shard was already submitted or skipped; nothing has
    /// changed then. With a device, any other error fails the step: finish() then rolls it back and throws
    /// device_error.
    void submit(shard_id shard);
    /// Calls set_gradient() and submit().
    /// @throws what set_gradient() and submit() throw.
    void submit(shard_id shard, void const* grad);
    /// Excludes a shard from this step: it stays unchanged, and its accumulated gradients are discarded.
    /// @throws invalid_argument if no step is open, or if the shard was already submitted or skipped.
    void skip(shard_id shard);
    /// Waits for the submitted shards and completes the step.
    ///
    /// The speculative step is committed, or rolled back and redone with the clip coefficient, or skipped.
    /// @throws invalid_argument if a shard was neither submitted nor skipped, and what options.reduce throws. After
    /// either the step stays open: call finish() again, or abandon().
    optimizer_report finish();
    /// Abandons the open step: rolls it back bit for bit. Accumulated gradients stay.
    /// @throws unavailable if the step cannot be rolled back; it then stays open. A step that needs no norm (it neither
    /// skips nor clips by it, and there is no reduce) can only be rolled back with keep_last_step once a shard was
    /// submitted.
    void abandon();

    /// Rolls back the last step, which must have been applied with keep_last_step.
    ///
    /// Since then no step may have been begun, no gradient accumulated, no group or shard added or removed, nothing
    /// placed, no step count or loss scaler set and no state loaded. The step's gradients must be unchanged at the
    /// addresses that set_gradient() last set; a checksum verifies that.
    ///
    /// Restores every bit of param, exp_avg and exp_avg_sq, the step count and the loss scale, and recomputes
    /// weight_out from param. Accumulators become valid again: a step reads them without changing them and then
    /// discards them, so after the rollback they hold the same micro-steps as before the step. Submit the last gradient
    /// again to repeat the step, or call clear_accumulators() to start over. The contents of accumulators must not have
    /// changed either.
    /// @throws invalid_argument if there is no such step or the gradients have changed, with nothing touched.
    /// @throws unavailable if the journal's budget was too small.
    void rollback();

    /// Adds a shard's gradient to its accumulator (gradient accumulation).
    ///
    /// Call it for every micro-step except the last one, whose gradient submit() or step() adds. Blocks until done, so
    /// the gradient's memory may be reused. The first micro-step after a step overwrites the accumulator. The sum is
    /// not divided: include the number of micro-steps in loss_scale. The last step can no longer be rolled back.
    /// @throws invalid_argument if the shard has no accumulator or was submitted.
    void accumulate(shard_id shard);
    /// Discards all accumulated gradients. The last step can no longer be rolled back.
    void clear_accumulators();

    /// Handle of a step that the team's threads drive. Stays valid when the optimizer is moved.
    class ticket {
    public:
        /// Returns whether the step is complete. Never blocks for long.
        [[nodiscard]] bool done() const;
        /// Returns the completed share, from 0 to 1, of the passes that are known to be needed.
        [[nodiscard]] double progress() const;
        /// Waits until a deadline. Returns false if the step is not complete by then; the step continues.
        bool wait_until(std::chrono::steady_clock::time_point deadline) const;
        /// Waits for a duration. Returns false if the step is not complete by then; the step continues.
        bool wait_for(std::chrono::nanoseconds time) const;
        /// Waits without a deadline, and returns the report.
        /// @throws what options.reduce threw; the step has then changed nothing.
        optimizer_report wait() const;

    private:
        friend class optimizer;
        explicit ticket(detail::optimizer_core& of) noexcept : of_(&of) {}
        detail::optimizer_core* of_;
    };
    /// Starts a whole step and returns immediately; see step().
    ///
    /// Until wait() has returned, only the ticket may be used.
    /// @throws invalid_argument as step() does.
    [[nodiscard]] ticket step_async(step_values const& values = {});

    // ---- State

    /// Returns the state after the last step as views of the shards' arrays.
    ///
    /// The views are valid as long as the arrays. The device's part is first copied into the arrays. Accumulated
    /// gradients are not included: to resume bit for bit, take the state after a step and before the next micro-step.
    /// @throws invalid_argument if a step is in progress.
    /// @throws device_error if the device fails.
    [[nodiscard]] state_dict state();
    /// Copies the device's params and moments into the shards' own arrays.
    ///
    /// The caller can then read them there. See place(). Does nothing without a device.
    /// @throws invalid_argument if a step is in progress.
    /// @throws device_error if the device fails.
    void update_host_arrays();
    /// Loads a state: step count, loss scale, hyperparameters of the groups (by name), and all arrays.
    ///
    /// Arrays are found by the parameter's name, with any shard boundaries; weight_out is recomputed from param.
    /// Additional contents of the state are ignored. Accumulated gradients are discarded. The last step can no longer
    /// be rolled back. Everything is checked before anything changes.
    /// @throws invalid_argument naming what is missing or does not fit, with nothing changed.
    /// @throws device_error if the device fails, and corrupted or unavailable if the file behind the state fails. After
    /// these, params and moments are inconsistent, and every step throws until load() succeeds.
    void load(state_dict const& state);

private:
    std::unique_ptr<detail::optimizer_core, detail::delete_optimizer_core> core_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/engine/optimizer.ipp>
#endif
