// SPDX-License-Identifier: Apache-2.0
// The optimizer that engines embed: norm, clipping, loss scale and update in one or two passes over memory. A step may
// begin before the last gradient arrives. If the norm then requires clipping or a skip, the speculative updates are
// rolled back exactly. If the step has to be clipped, they are then repeated with the clip coefficient.
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
struct optimizer_core;
struct delete_optimizer_core {
    void operator()(optimizer_core* core) const noexcept;
};
} // namespace detail

/// A shard for optimizer::add_shard(). Its arrays must live until remove_shard() returns or the optimizer is destroyed.
struct shard_to_add {
    group_id group; ///< the group
    /// Name of the parameter. A parameter may have several shards. They have different elements and the same types.
    std::string name;
    optimizer_shard shard;              ///< its arrays
    accumulator_array accumulator = {}; ///< for optimizer::accumulate(); may be absent
    shard_position position = {};       ///< position in the parameter; default: the whole parameter
};

/// Adam or AdamW over parameter groups. The caller owns all arrays.
///
/// Add groups and shards and call prepare(). For every batch, call step(). Or call begin_step(), then submit() for each
/// shard once its gradient is ready, then finish(). Both give the same bits, for any order of submit() calls, number of
/// threads and journal_budget_bytes.
///
/// The norm is computed from the sums of squares of blocks of norm_block_elems (4096) elements. Block sums are added
/// exactly, and the total is rounded once. A model has the same norm for any order of shards, any number of ranks, and
/// any shard boundaries at multiples of norm_block_elems. If nothing needs the norm, gradients are read once (see
/// optimizer_report::measured).
///
/// Initialize weight_out with the rounded params: a rollback recomputes it from param.
///
/// If there is no device and there are few elements, the calling thread does the work of step() and of the calls from
/// begin_step() to finish(). If there is no device and the executor has no team, the calling thread does the work of
/// step() for any number of elements. The executor's team does all other work, including that of step_async() and of
/// all steps with a device. If a team is needed and the executor has none, the optimizer creates one with a single
/// unbound thread.
///
/// Thread safety: call submit(), skip() and set_gradient() from any thread except the team's, also concurrently; call
/// everything else, except cpu_blocks_done(), from one thread at a time. Gradients must not change between submit() and
/// the end of finish(). The caller's floating-point mode and traps do not affect a step and do not change;
/// options.reduce is called without traps.
///
/// Errors: if a call throws, the optimizer is unchanged unless the function says otherwise. After a device has failed,
/// calls that use the state (steps, accumulate(), clear_accumulators(), place(), state(), update_host_arrays(), load())
/// first complete what is left of the failed step, and throw device_error if that fails. While params and moments are
/// inconsistent, all of them but clear_accumulators() and load() throw device_error, or without a device
/// invalid_argument. In a forked child process every call that needs the team throws `unavailable`; if work was in
/// flight at the fork, every non-const call does. In that case the destructor in the child process does not wait, and
/// leaks what threads were working on.
///
/// Movable. A moved-from optimizer may only be destroyed or assigned to.
class optimizer {
public:
    /// Uses the threads of the executor.
    /// @throws invalid_argument for invalid options
    explicit optimizer(executor const& cpu, optimizer_options options = {});
    /// Moves the optimizer; the moved-from one may only be destroyed or assigned to.
    optimizer(optimizer&& other) noexcept;
    /// Moves the optimizer; the moved-from one may only be destroyed or assigned to.
    optimizer& operator=(optimizer&& other) noexcept;
    /// Waits for a step in flight. Rolls back a step that was begun but not finished, in the cases in which abandon()
    /// can; in all others, submitted shards stay updated.
    ~optimizer();

    // ---- Set-up: before the first step, and between steps

    /// Adds a group and returns its number. Makes the last step final (see rollback()).
    /// @throws invalid_argument as validate() does, for a name that is empty, taken or not UTF-8, and during a step
    group_id add_group(parameter_group group);
    /// Adds a group with this name and these hyperparameters.
    group_id add_group(std::string name, hyperparameters const& hyper, bool maximize = false);
    /// Removes a group. Higher numbers move down by one. Makes the last step final.
    /// @throws invalid_argument for an unknown number, while shards belong to the group, during a step, and while a
    /// device has shards (see place())
    void remove_group(group_id group);
    /// All groups, by number. The reference is valid as long as the optimizer.
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept;
    /// The group with this number. Valid until add_group(), remove_group() or load().
    /// @throws invalid_argument for an unknown number
    [[nodiscard]] parameter_group const& group(group_id which) const;
    /// The group with this name; absent if there is none.
    std::optional<group_id> find_group(std::string_view name) const;
    /// Sets hyperparameters from the next step on.
    /// @throws invalid_argument as validate() does, for an unknown number, and during a step
    void set_hyperparameters(group_id group, hyperparameters const& hyper);

    /// Adds a shard and returns its number. Makes the last step final. prepare() or the next step throws if arrays of
    /// different shards overlap in memory and one of them is written. A step only reads gradients, so they may share
    /// memory, except those of shards with set_device_arrays().
    /// @throws invalid_argument for an unknown group, a position outside the parameter or inside a group of 64 elements
    /// with 8-bit moments, a name that is empty or not UTF-8, a null accumulator, one whose size is not the shard's or
    /// whose type is neither float32 nor bfloat16, arrays of the shard that overlap, and during a step; and if the
    /// parameter has other shards: for no position, for another group, shape or types, and for elements that one of
    /// them has
    shard_id add_shard(shard_to_add added);
    /// Removes a shard. Afterwards its arrays hold its final state, and you may free them. Higher numbers move down by
    /// one; accumulated gradients of other shards stay. Makes the last step final.
    /// @throws invalid_argument for an unknown number, during a step, and while a device has shards: call
    /// place(nullptr, ...) first
    void remove_shard(shard_id shard);
    /// Number of shards.
    [[nodiscard]] std::size_t shards() const noexcept;
    /// Name of a shard. Valid until add_shard() or remove_shard().
    /// @throws invalid_argument for an unknown number
    [[nodiscard]] std::string const& name(shard_id shard) const;
    /// The shard of parameter `name` that begins at element `begin`; absent if there is none.
    std::optional<shard_id> find_shard(std::string_view name, std::size_t begin = 0) const;
    /// Uses another gradient buffer of the same size and type from now on. Call it between steps, or in an open step
    /// before the submit() of the shard; from any thread except the team's. Allocates nothing after prepare(). If the
    /// shard has got another buffer since the last step, set that step's buffer before you call rollback().
    /// @throws invalid_argument for an unknown number, for a null pointer (unless the shard has no elements), for
    /// memory that a step writes, for a submitted or skipped shard, for a shard whose gradient is on a device, and, if
    /// a device that shares the host's memory updates a part of the shard, for an address that is not a multiple of 16;
    /// and during step_async()
    void set_gradient(shard_id shard, void const* grad);

    /// Bytes that prepare(with_journal) allocates, accurate to a few KiB. The journal holds the records from which a
    /// step is rolled back.
    [[nodiscard]] std::size_t memory_bytes(bool with_journal = true) const;
    /// Allocates what steps need. If you do not call it, the first step allocates. Later steps allocate nothing, except
    /// when step_values::shard_steps is first used, and except small objects in steps with a device. with_journal: also
    /// allocates the journal, which begin_step() needs.
    /// @throws invalid_argument for arrays that overlap if one is written (see add_shard()), and during a step; what
    /// the constructors of buffer (memory.hpp) and team throw
    void prepare(bool with_journal = true);

    /// How many blocks of norm_block_elems elements the CPU threads have processed; a block counts once for each pass
    /// over it. For displays of progress. Call it from any thread at any time.
    [[nodiscard]] std::uint64_t cpu_blocks_done() const noexcept;

    /// Number of steps taken.
    [[nodiscard]] std::uint64_t steps() const noexcept;
    /// Restores an engine's own step count: the next step has number steps + 1. State, scaler and accumulators stay.
    /// Makes the last step final.
    /// @throws invalid_argument during a step, and for 2^64 - 1
    void set_steps(std::uint64_t steps);
    /// Loss scale to use for the next backward pass.
    [[nodiscard]] double loss_scale() const noexcept;
    /// State of dynamic loss scaling; absent without it.
    [[nodiscard]] std::optional<loss_scaler_state> loss_scaler() const noexcept;
    /// Sets the state of dynamic loss scaling from the next step on. Makes the last step final.
    /// @throws invalid_argument for a scale outside [2^-125, 2^125], for an optimizer without dynamic loss scaling, and
    /// during a step
    void set_loss_scaler(loss_scaler_state const& state);
    /// The executor. Valid as long as the optimizer.
    [[nodiscard]] executor const& cpu() const noexcept;

    // ---- A device beside the CPU

    /// Moves parts of shards to a device, back, or to another one. From the next step on, the device updates its pieces
    /// while the CPU updates the others, with the same bits for every placement. Compute the placement with split()
    /// from shard_sizes(). A null device with a placement that is all on the CPU moves everything back. If you called
    /// set_device_arrays(), do this before you move to another device.
    ///
    /// The device then holds the only current copy of its state: the shards' own arrays are stale until
    /// update_host_arrays(), state() or a move back. Until then you may return their pages to the kernel. Shards that
    /// are added later belong to the CPU. Makes the last step final. The device needs memory for the new pieces beside
    /// the old ones: a piece whose boundaries change is allocated anew.
    ///
    /// If the device fails or does not answer in time, both backends roll the step back: state and accumulated
    /// gradients are as before. There is one exception: if only the upload of weights failed after the device completed
    /// its part, the step is complete. steps() counts it, the error says so, and the next call uploads the missing
    /// weights first. Compare steps() before you repeat a step.
    ///
    /// To make the rollback possible, both backends record every step (see journal_budget_bytes and device_records). A
    /// device that does not answer rolls back later, before it is used again; keep the gradients of that step until
    /// then. A device may have no pieces, only arrays of set_device_arrays(). If such a device fails, place(nullptr,
    /// ...) does not wait for its answer.
    ///
    /// @throws invalid_argument for a placement that does not match shard_sizes() or has elements on a null device, for
    /// keep_last_step without device_records, if the device has shards of another optimizer, for another device after
    /// set_device_arrays(), for overlapping arrays, and during a step; device_error and unavailable if the device fails
    /// or lacks memory. In these cases nothing has moved. After the move, place() allocates what steps need. If that
    /// fails, it throws as prepare() does, and the move is not undone.
    void place(std::shared_ptr<device> target, placement const& where);
    /// Sizes of the shards in elements, by number, for split().
    [[nodiscard]] std::vector<std::size_t> shard_sizes() const;
    /// Bytes that the pieces of this placement take on the device.
    /// @throws invalid_argument for a placement that does not match shard_sizes()
    [[nodiscard]] std::size_t device_bytes(device const& target, placement const& where) const;
    /// Sets the device arrays for the shard's gradient and weights. They are in the memory of the device that you pass
    /// to the next place(). The caller owns them. The arrays are used until place(nullptr, ...). Without this call,
    /// gradient and weights are in host memory. See device_arrays.
    /// @throws invalid_argument for an unknown number, after place(), during a step, for a missing array or a
    /// weight_out that the shard lacks, and for an address that is not a multiple of 16
    void set_device_arrays(shard_id shard, device_arrays const& arrays);

    // ---- Steps

    /// Runs a whole step. Call it when all gradients are ready. It takes one pass over memory, or two if the norm or
    /// finiteness must be known first.
    /// @throws invalid_argument for invalid values and during another step; what prepare() and options.reduce throw,
    /// with nothing changed; and device_error (see place())
    optimizer_report step(step_values const& values = {});

    /// Calls set_gradient() with gradients[i] for each shard i, and runs a step. A null pointer skips the shard. Throws
    /// as set_gradient() and step() do, and invalid_argument if there is not exactly one gradient for each shard. Some
    /// gradient buffers may then be replaced already.
    optimizer_report step_gradients(std::span<void const* const> gradients, step_values const& values = {});

    /// Opens a step. The first call allocates, unless prepare() was called.
    /// @throws invalid_argument for invalid values and during a step; what prepare() throws. Then it has opened no step
    void begin_step(step_values const& values = {});
    /// Submits the shard, whose gradient is ready. Workers start on it immediately, and the call does not wait for
    /// them. With few elements, the call does the work itself.
    /// @throws invalid_argument if no step is open, for an unknown number, or for a submitted or skipped shard; then
    /// nothing has changed. With a device any other error fails the step: finish() then rolls it back and throws
    /// device_error
    void submit(shard_id shard);
    /// Calls set_gradient() and submit(), and throws as they do.
    void submit(shard_id shard, void const* grad);
    /// Skips the shard in this step, because it has no gradient. Its accumulated gradients are discarded.
    /// @throws invalid_argument if no step is open, for an unknown number, or for a submitted or skipped shard
    void skip(shard_id shard);
    /// Waits for submitted shards and completes the step: commits it, repeats it with the clip coefficient after a
    /// rollback, or skips it.
    /// @throws invalid_argument if no step is open, for a shard that is neither submitted nor skipped, and for invalid
    /// words of options.reduce; and what that throws. An open step then stays open: call finish() again, or abandon().
    /// device_error if the device failed; the step is over (see place())
    optimizer_report finish();
    /// Rolls back the open step exactly; accumulated gradients stay. This needs records. If a step has neither max_norm
    /// nor reduce, and nonfinite_policy is not skip, it writes them only with keep_last_step or a device. A device that
    /// does not answer rolls back later, before it is used again.
    /// @throws invalid_argument if no step is open; unavailable if submitted shards have no records, because such a
    /// step does not write them or the journal budget was too small (never with a device): the step then stays open
    void abandon();

    /// Rolls back the last step, which must have been applied with keep_last_step. The step must not be final. It
    /// becomes final when you begin a step, accumulate a gradient, call clear_accumulators(), add or remove a group or
    /// shard, call place(), set the step count or the loss scaler, or load a state. The gradients must be unchanged,
    /// which a checksum verifies.
    ///
    /// Restores every bit of param, exp_avg and exp_avg_sq, the step count and the loss scale, and computes weight_out
    /// from param. Accumulators hold the same micro-steps as before the step: submit the last gradient again to repeat
    /// the step, or call clear_accumulators() to start over. Accumulators must be unchanged, too.
    ///
    /// @throws invalid_argument if there is no such step, if gradients have changed, and during a step; unavailable if
    /// the journal budget was too small; device_error if the device fails: if steps() has decreased, the next call that
    /// uses the state completes the rollback; otherwise nothing has changed
    void rollback();

    /// Adds the gradient of the shard to its accumulator. Call it for every micro-step except the last: the step adds
    /// the last gradient. Returns when it is done, so the gradient's memory may be reused. The first micro-step after a
    /// step overwrites the accumulator. To average, multiply step_values::loss_scale by the number of micro-steps. With
    /// dynamic loss scaling, divide the loss instead: a loss_scale in the values would replace the dynamic one. Makes
    /// the last step final.
    /// @throws invalid_argument for an unknown number, for a shard without an accumulator, for one that was submitted
    /// or skipped, and during step_async(); what prepare() throws; device_error if a device fails: the error says
    /// whether the gradients accumulated for the shard are lost, and an open step fails
    void accumulate(shard_id shard);
    /// Discards accumulated gradients. Makes the last step final.
    /// @throws invalid_argument during a step
    void clear_accumulators();

    /// A step that the team's threads run. Stays valid when the optimizer is moved.
    class ticket {
    public:
        /// Whether the step is over. Does not block.
        [[nodiscard]] bool done() const;
        /// Completed share, from 0 to 1, of the work that is known so far. A rollback or a second pass adds work.
        [[nodiscard]] double progress() const;
        /// Waits until the deadline. Returns whether the step is over.
        bool wait_until(std::chrono::steady_clock::time_point deadline) const;
        /// Waits for the given time. Returns whether the step is over.
        bool wait_for(std::chrono::nanoseconds time) const;
        /// Waits for the step.
        /// @throws what options.reduce threw, and invalid_argument for its invalid words: the step has then changed
        /// nothing; device_error if the device failed (see place()); invalid_argument in a second call
        optimizer_report wait() const;

    private:
        friend class optimizer;
        ticket(detail::optimizer_core& core, std::uint64_t number) noexcept : core_(&core), number_(number) {}
        // Whether wait() was called.
        [[nodiscard]] bool is_used() const noexcept;
        detail::optimizer_core* core_;
        std::uint64_t number_;
    };
    /// Starts step() and returns immediately. Until wait() has returned, use only the ticket and cpu_blocks_done(). Do
    /// not use the ticket after the optimizer's end.
    /// @throws invalid_argument for invalid values and during a step; what prepare() throws. Then it has started no
    /// step
    [[nodiscard]] ticket step_async(step_values const& values = {});

    // ---- State

    /// Returns the state after the last step, as views of the shards' arrays. The views are valid as long as the arrays
    /// exist. A device's part is copied into the arrays first. Accumulated gradients are not included: to resume with
    /// the same bits, take the state between a step and the next micro-step.
    /// @throws invalid_argument during a step; device_error if a copy from the device fails
    [[nodiscard]] state_dict state();
    /// Copies params and moments of the device into the shards' own arrays (see place()). Does nothing without a
    /// device. Throws as state() does.
    void update_host_arrays();
    /// Loads a state: step count, loss scale, hyperparameters (matched by group name) and arrays (matched by parameter
    /// name), for any shard boundaries; computes weight_out from param. Groups and parameters that only the state has
    /// are ignored, as is its metadata. Accumulated gradients are discarded. Makes the last step final. The state's
    /// arrays may be this optimizer's own if every element is loaded into the address where it already is; otherwise
    /// pass a copy.
    ///
    /// @throws invalid_argument if something is missing or does not fit, and during a step, with nothing changed;
    /// device_error, corrupted or unavailable if the device or the file fails later: params and moments are then
    /// inconsistent, and every step throws until load() succeeds
    void load(state_dict const& state);

private:
    std::unique_ptr<detail::optimizer_core, detail::delete_optimizer_core> core_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/engine/optimizer.ipp>
#endif
