// SPDX-License-Identifier: Apache-2.0
// The optimizer that an engine embeds: gradients in, weights out, with the norm, clipping, finiteness and the step in
// one or two passes over memory, begun before the last gradient is there if need be, and taken back exactly.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/device/device.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/shard/optimizer_shard.hpp>
#include <adamant/split/placement.hpp>
#include <adamant/step/optimizer_options.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {
class optimizer_core;
}

// What optimizer::add_shard() is told. The arrays stay the caller's and must outlive the optimizer.
struct shard_to_add {
    group_id group;
    std::string
        name; // the parameter's, of which there may be several shards, with other elements each, of the same types
    optimizer_shard shard;
    accumulator_array accumulator = {}; // for optimizer::accumulate(); none: it is not called for this shard
    shard_place place = {};             // in its parameter; none: the shard is all of it
};

// Adam or AdamW over parameter groups, with all memory the caller's. Set up: groups, shards; prepare(). Then for every
// batch either step(), or begin_step(), a submit() for each shard as its gradient arrives, and finish(). Both have the
// same bits, whatever the order, the number of threads and the journal's budget.
//
// The norm adds sums over blocks of norm_block_elems elements, in the order in which shards were added: a model whose
// tensors are cut at multiples of that has the norm of the uncut one.
//
// weight_out is taken to hold the params, rounded, before the first step: a step that is taken back writes that.
//
// submit() and leave_out() may be called from any thread but the team's own, from several at once; everything else from
// one at a time. Gradients must not change between their submit() and the end of finish(). The caller's floating-point
// mode and traps neither matter in a step nor change (options.reduce is called without traps). An exception leaves the
// optimizer as it was before the call, but where said otherwise; after a fork, every call that needs the team throws
// unavailable. Movable; one that was moved from can only be destroyed or assigned to.
class optimizer {
public:
    // Works with the executor's team; an executor without one gets a team of one thread, bound to nothing. Throws
    // invalid_argument for options that cannot be.
    explicit optimizer(executor const& cpu, optimizer_options options = {});
    optimizer(optimizer&& other) noexcept;
    optimizer& operator=(optimizer&& other) noexcept;
    // A step that is under way is waited for. One that has been begun and not finished is taken back where abandon()
    // could do that; where it could not, shards that were submitted stay stepped, and the others are as before.
    ~optimizer();

    // ---- Set-up: before the first step, and between steps

    // A new group, by its number; its name must be new, not empty, and UTF-8. The last step cannot be taken back any
    // more. Throws invalid_argument where validate() does.
    group_id add_group(parameter_group group);
    group_id add_group(std::string name, hyperparameters const& hyper, bool maximize = false);
    [[nodiscard]] std::vector<parameter_group> const& groups() const noexcept;
    // Throws invalid_argument for a number that none has.
    [[nodiscard]] parameter_group const& group(group_id which) const;
    // From the next step on. Throws invalid_argument as add_group() does, and while a step is under way.
    void set_hyperparameters(group_id group, hyperparameters const& hyper);

    // A new shard, by its number; see shard_to_add. The last step cannot be taken back any more. Throws
    // invalid_argument for a place outside the parameter or in another shard, a name that is empty or not UTF-8, an
    // accumulator of another size or type, and for arrays that overlap: this shard's here, those of others before
    // anything is written to them.
    shard_id add_shard(shard_to_add added);
    [[nodiscard]] std::size_t shards() const noexcept;
    [[nodiscard]] std::string const& name(shard_id shard) const;

    // What prepare() will allocate, in bytes, with the journal of begin_step() or without; to some KiB, as there are a
    // few things for each thread and group, too.
    [[nodiscard]] std::size_t memory_bytes(bool with_journal = true) const;
    // Allocates all that steps need; else the first one does, and after it none allocates (with a device, only small
    // things, for what is enqueued). with_journal: for begin_step(), too. Throws invalid_argument where arrays overlap,
    // and what buffer does.
    void prepare(bool with_journal = true);

    // How many blocks of norm_block_elems the CPU's threads have been through since the optimizer was made, every pass
    // over one counted: for whoever shows what is going on. From any thread, at any time.
    [[nodiscard]] std::uint64_t cpu_blocks_done() const noexcept;

    // Steps taken so far.
    [[nodiscard]] std::uint64_t steps() const noexcept;
    // What the next loss is to be multiplied with.
    [[nodiscard]] double loss_scale() const noexcept;
    [[nodiscard]] executor const& cpu() const noexcept;

    // ---- A device beside the CPU

    // Gives a part of the shards to a device, or back, or changes what it has: from the next step on the device steps
    // its pieces and the CPU the others, at once, with the same bits wherever the cut. Make the placement by split()
    // from shard_sizes(). The state moves: what a device has is in its memory alone, and the shards' own arrays of it
    // are out of date until update_host_arrays() or state() is called or it comes back (their pages may be given back
    // to the system meanwhile, and are touched again by those two). Shards added later are the CPU's. Null takes
    // everything back.
    //
    // Where an error says that the device failed, or did not answer in time, the step is taken back on both sides:
    // state and accumulated gradients are as before it. For that the steps of both sides are recorded (see
    // journal_budget_bytes and device_records), whether or not they wait for a norm. A device that does not answer does
    // its part of that later, before anything else; until then the gradients of that step must stay where they are on
    // it.
    //
    // The device needs room for what it gets beside what it has: a piece whose cut moves is allocated anew.
    //
    // Throws, with everything where it was: invalid_argument for a placement of other shards, what the device throws
    // where it lacks the memory or fails, or has another optimizer's shards. What prepare() throws comes when all has
    // moved. The last step cannot be taken back any more.
    void place(std::shared_ptr<device> on, placement const& where);
    // The shards' sizes in elements, in order: for split().
    [[nodiscard]] std::vector<std::size_t> shard_sizes() const;
    // What all pieces of such a placement take on that device, in bytes.
    [[nodiscard]] std::size_t device_bytes(device const& on, placement const& where) const;
    // A shard's gradient is made on the device that place() names next, and its weights are wanted there: in arrays of
    // the caller's in the device's memory, until place(nullptr). None: in host memory. See device_arrays. Throws
    // invalid_argument where a device has been placed on already, or an array is missing.
    void set_device_arrays(shard_id shard, device_arrays const& arrays);

    // ---- Steps

    // The whole step: all gradients are there. One pass over memory; two where the norm or the finiteness has to be
    // known first. Throws invalid_argument for values that cannot be, before anything is written.
    optimizer_report step(step_values const& values = {});

    // Opens a step; see the class. The first call allocates, unless prepare() has.
    void begin_step(step_values const& values = {});
    // This shard's gradient is there: work on it begins at once, in the team's threads. Returns at once. Throws
    // invalid_argument where no step is open or the shard has been submitted.
    void submit(shard_id shard);
    // This shard has no gradient in this step and stays as it is; what was accumulated for it is forgotten.
    void leave_out(shard_id shard);
    // Waits for what was submitted, and completes the step: applied as it is, or taken back and done again with the
    // clip coefficient, or skipped. Throws invalid_argument where a shard was neither submitted nor left out (the step
    // stays open), and what options.reduce throws (it stays open, too: finish again, or abandon()).
    optimizer_report finish();
    // Gives up the step that is open: what it has stepped is taken back, to the bit. Accumulated gradients stay. Throws
    // unavailable, and the step stays open, where that cannot be: where shards were submitted to a step that needs no
    // norm (it neither skips nor clips by it, and there is no reduce), without keep_last_step.
    void abandon();

    // Takes back the last step, which must have been applied with keep_last_step, and nothing begun, accumulated, added
    // or loaded since; its gradients must still be there, as they were (which a checksum tells). Restores every bit of
    // param, exp_avg and exp_avg_sq, the step count and the loss scale, and makes weight_out of param. Throws
    // invalid_argument where there is no such step or the gradients have changed, with nothing touched, and unavailable
    // where the journal's budget was too small.
    void rollback();

    // Adds the shard's gradient to its accumulator: for the micro-steps before the last one, whose gradient submit() or
    // step() adds by the way. Returns when it is done, so that the gradient's memory may be used again. The first one
    // after a step overwrites what the accumulator holds. The sum is not divided: have loss_scale count the
    // micro-steps. Throws invalid_argument for a shard without accumulator, or one that was submitted.
    void accumulate(shard_id shard);
    // Forgets what was accumulated.
    void clear_accumulators();

    // A step under way in the team's threads. Refers to the optimizer, wherever that is moved.
    class ticket {
    public:
        // Whether it is over. Never blocks for long.
        [[nodiscard]] bool done() const;
        // The share of the work that is done, from 0 to 1; of the passes that are known to be needed.
        [[nodiscard]] double progress() const;
        // False where it is not over by then; it goes on all the same.
        bool wait_until(std::chrono::steady_clock::time_point deadline) const;
        bool wait_for(std::chrono::nanoseconds time) const;
        // Waits for as long as it takes. Throws what options.reduce threw; nothing is changed by that step then.
        optimizer_report wait() const;

    private:
        friend class optimizer;
        explicit ticket(detail::optimizer_core& of) noexcept : of_(&of) {}
        detail::optimizer_core* of_;
    };
    // As step(), and returns at once. The optimizer takes no other call but the ticket's until that was waited for.
    [[nodiscard]] ticket step_async(step_values const& values = {});

    // ---- State

    // The state as views of the shards' arrays, which last as long as those; their bits are those of the last step.
    // What was accumulated since is no part of it: a run goes on from here to the bit where it is taken between a step
    // and the next micro-step. A device's part is copied into those arrays first. Throws invalid_argument while a step
    // is under way, and device_error.
    [[nodiscard]] state_dict state();
    // What a device has of params and moments is copied into the shards' own arrays, which are out of date otherwise
    // (see place()): before they are read where they lie. Without a device nothing is to be done. Throws as state()
    // does.
    void update_host_arrays();
    // Takes over a state: step count, loss scale, the groups' hyperparameters (by name), and all arrays (by the
    // parameter's name), however they were cut; weight_out is made of param. What the state has besides is ignored.
    // Checks everything first: throws invalid_argument that says what is missing or does not fit, with nothing changed.
    // What fails after that, a device (device_error) or the file that the state is read from (corrupted, unavailable),
    // leaves a state that is neither; no step can be taken until load() has been through.
    void load(state_dict const& from);

private:
    std::unique_ptr<detail::optimizer_core> core_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/optimizer.ipp>
#endif
