// SPDX-License-Identifier: Apache-2.0
// The steps of an optimizer: opened, submitted to, finished, taken back; and its state.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <adamant/checkpoint/restore.hpp>
#include <adamant/checkpoint/state_dict.hpp>
#include <adamant/core/error.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/optimizer/setup.hpp>
#include <adamant/step/optimizer_options.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// The inside of an optimizer; says what optimizer.hpp says.
class optimizer_core : public optimizer_setup {
public:
    // Works with the executor's team; an executor without one gets a team of one thread, bound to nothing. Throws
    // invalid_argument for options that cannot be.
    optimizer_core(executor const& cpu, optimizer_options options) : optimizer_setup(cpu, std::move(options)) {}
    // A step that is under way is waited for. One that has been begun and not finished is taken back where abandon()
    // could do that; where it could not, shards that were submitted stay stepped, and the others are as before.
    ~optimizer_core()
    {
        passes_.line().wait();
        if (device_failed_ || (stage_ == stage::open && can_take_back()))
            take_back();
    }

    // The whole step: all gradients are there. One pass over memory; two where the norm or the finiteness has to be
    // known first. Throws invalid_argument for values that cannot be, before anything is written.
    optimizer_report step(step_values const& values)
    {
        open(values, false);
        try {
            submit_all(false);
            return finish();
        } catch (...) {
            if (stage_ == stage::open)
                take_back();
            throw;
        }
    }

    // Opens a step; see the class. The first call allocates, unless prepare() has.
    void begin_step(step_values const& values) { open(values, true); }
    // This shard's gradient is there: work on it begins at once, in the team's threads. Returns at once. Throws
    // invalid_argument where no step is open or the shard has been submitted.
    void submit(std::size_t shard)
    {
        no_traps_scope const no_traps;
        std::lock_guard const lock(submit_mutex_);
        require_open("submit()", shard);
        passes_.shards[shard].submitted = true;
        side_.there() ? on_device([&] { start(shard); }) : start(shard);
    }
    // This shard has no gradient in this step and stays as it is; what was accumulated for it is forgotten.
    void leave_out(std::size_t shard)
    {
        std::lock_guard const lock(submit_mutex_);
        require_open("leave_out()", shard);
        passes_.shards[shard].left_out = true;
    }
    // Waits for what was submitted, and completes the step: applied as it is, or taken back and done again with the
    // clip coefficient, or skipped. Throws invalid_argument where a shard was neither submitted nor left out (the step
    // stays open), and what options.reduce throws (it stays open, too: finish again, or abandon()).
    optimizer_report finish()
    {
        no_traps_scope const no_traps;
        require_step_open("finish()");
        std::string missing;
        std::size_t how_many = 0;
        for (std::size_t i = 0; i < passes_.shards.size(); ++i)
            if (!passes_.shards[i].submitted && !passes_.shards[i].left_out && ++how_many <= 3)
                missing += (how_many == 1 ? "" : ", ") + std::to_string(i) + " ('" + name(i) + "')";
        if (how_many != 0)
            throw invalid_argument("adamant: finish() is called, but of " + std::to_string(shards()) + " shards " +
                                   std::to_string(how_many) + " have not been submitted: " + missing +
                                   (how_many > 3 ? ", ..." : "") +
                                   "; submit() them, or leave_out() those without a gradient");
        try {
            if (device_failed_)
                throw device_error("adamant: a submit() to this step has failed; the step is taken back");
            wait_for_pass();
            while (next_stage())
                run_all(next_pass_);
        } catch (...) {
            if (device_failed_)
                take_back_and_rethrow();
            throw;
        }
        stage_ = stage::idle;
        return report_;
    }
    // Gives up the step that is open: what it has stepped is taken back, to the bit. Accumulated gradients stay. Throws
    // unavailable, and the step stays open, where that cannot be: where shards were submitted to a step that needs no
    // norm (it neither skips nor clips by it, and there is no reduce), without keep_last_step.
    void abandon()
    {
        no_traps_scope const no_traps;
        require_step_open("abandon()");
        if (!can_take_back())
            throw unavailable(
                "adamant: abandon() is called, but this step needs no norm, so what was submitted has been "
                "stepped, and " +
                std::to_string(passes_.unrecorded_blocks()) +
                " blocks of it cannot be taken back; finish() the step, or set keep_last_step in the "
                "options" +
                (options_.keep_last_step ? " and journal_budget_bytes to " + std::to_string(longest_journal())
                                         : std::string()));
        take_back();
    }

    // Takes back the last step, which must have been applied with keep_last_step, and nothing begun, accumulated, added
    // or loaded since; its gradients must still be there, as they were (which a checksum tells). Restores every bit of
    // param, exp_avg and exp_avg_sq, the step count and the loss scale, and makes weight_out of param. Throws
    // invalid_argument where there is no such step or the gradients have changed, with nothing touched, and unavailable
    // where the journal's budget was too small.
    void rollback()
    {
        no_traps_scope const no_traps;
        require_idle("rollback()");
        if (!can_go_back_)
            throw invalid_argument(
                !options_.keep_last_step
                    ? "adamant: rollback() is called, but the last step was not kept; set keep_last_step in the options"
                    : "adamant: rollback() is called, but there is no step to take back: none was applied yet, or "
                      "since then another was begun or taken back, a gradient accumulated, something added or a state "
                      "loaded");
        if (std::size_t const n = passes_.unrecorded_blocks(); n != 0)
            throw unavailable("adamant: the last step cannot be taken back: for " + std::to_string(n) + " of " +
                              std::to_string(passes_.blocks()) + " blocks the journal's budget of " +
                              std::to_string(journal_budget()) + " bytes was full; set journal_budget_bytes to " +
                              std::to_string(longest_journal()) + " to be sure");
        settle();
        passes_.check_caller();
        set_summed(summed_before_);
        passes_.waits_for_room = side_.there(); // in the passes of a step
        passes_.begin();
        bool same = true;
        try {
            begin_pass(block_pass::compare);
            passes_.line().wait();
            same = passes_.same_gradients();
            if (side_.there())
                same = side_.wait_for_results(true) && same;
        } catch (...) {
            passes_.line().wait();
            (void)side_.stop();
            forget_failures();
            set_summed({});
            throw;
        }
        if (!same) {
            set_summed({});
            throw invalid_argument("adamant: the last step cannot be taken back: it needs that step's gradients, and "
                                   "they have changed since");
        }
        passes_.speculated = passes_.settled;
        undo_recorded();
        device_is_behind_ = !side_.take_back();
        passes_.forget_records();
        can_go_back_ = false;
        --steps_;
        scaler_ = scaler_before_;
        if (device_is_behind_)
            settle(); // throws
    }

    // Adds the shard's gradient to its accumulator: for the micro-steps before the last one, whose gradient submit() or
    // step() adds by the way. Returns when it is done, so that the gradient's memory may be used again. The first one
    // after a step overwrites what the accumulator holds. The sum is not divided: have loss_scale count the
    // micro-steps. Throws invalid_argument for a shard without accumulator, or one that was submitted.
    void accumulate(std::size_t shard)
    {
        no_traps_scope const no_traps;
        require_shard(shard);
        tracked_shard& s = passes_.shards[shard];
        if (!s.shard.has_accumulator())
            throw invalid_argument("adamant: a gradient of shard " + std::to_string(shard) + " ('" + name(shard) +
                                   "') is to be accumulated, but it was added without an accumulator");
        if (stage_ == stage::async || (stage_ == stage::open && (s.submitted || s.left_out)))
            throw invalid_argument(
                "adamant: a gradient of shard " + std::to_string(shard) + " ('" + name(shard) +
                "') is to be accumulated, but the shard is being stepped; accumulate before submit()");
        if (stage_ == stage::idle) {
            settle();
            require_not_lost();
            if (!laid_out_)
                prepare(false); // which looks for overlaps
        }
        can_go_back_ = false;
        bool const first = s.summed == 0;
        if (!side_.there()) {
            passes_.cpu().for_each_slice(s.shard.size(),
                                         [&](slice part) { s.shard.accumulate(part.begin, part.end, first); });
        } else {
            if (stage_ == stage::idle)
                prepare();
            accumulate_on_device(shard, first);
            for (std::size_t r = passes_.first_range(shard); r < passes_.first_range(shard + 1); ++r)
                for_each_slice_of(passes_.ranges()[r],
                                  [&](std::size_t begin, std::size_t end) { s.shard.accumulate(begin, end, first); });
        }
        ++s.summed;
    }
    // Forgets what was accumulated.
    void clear_accumulators()
    {
        require_idle("clear_accumulators()");
        settle();
        can_go_back_ = false;
        for (tracked_shard& s : passes_.shards)
            s.summed = 0;
    }

    // The ticket's, while a step is under way in the team's threads.
    [[nodiscard]] bool done() { return passes_.line().idle(); }
    [[nodiscard]] double progress()
    {
        no_traps_scope const no_traps;
        return done() ? 1.0 : passes_.progress();
    }
    bool wait_until(std::chrono::steady_clock::time_point deadline) { return passes_.line().wait_until(deadline); }
    optimizer_report wait()
    {
        no_traps_scope const no_traps;
        return collect();
    }
    // As step(), and returns at once. The optimizer takes no other call but the ticket's until that was waited for.
    void step_async(step_values const& values)
    {
        no_traps_scope const no_traps;
        open(values, false);
        stage_ = stage::async;
        try {
            submit_all(true);
        } catch (...) {
            stage_ = stage::open; // nobody is to decide anything at the line's end
            take_back();
            throw;
        }
        if (passes_.nothing_described()) // nothing to do, so nobody comes to the end
            next_at_end();
    }

    // The state as views of the shards' arrays, which last as long as those; their bits are those of the last step.
    // What was accumulated since is no part of it: a run goes on from here to the bit where it is taken between a step
    // and the next micro-step. A device's part is copied into those arrays first. Throws invalid_argument while a step
    // is under way, and device_error.
    [[nodiscard]] state_dict state()
    {
        update_host_arrays("state()");
        return views();
    }
    // What a device has of params and moments is copied into the shards' own arrays, which are out of date otherwise
    // (see place()): before they are read where they lie. Without a device nothing is to be done. Throws as state()
    // does.
    void update_host_arrays() { update_host_arrays("update_host_arrays()"); }
    // Takes over a state: step count, loss scale, the groups' hyperparameters (by name), and all arrays (by the
    // parameter's name), however they were cut; weight_out is made of param. What the state has besides is ignored.
    // Checks everything first: throws invalid_argument that says what is missing or does not fit, with nothing changed.
    // What fails after that, a device (device_error) or the file that the state is read from (corrupted, unavailable),
    // leaves a state that is neither; no step can be taken until load() has been through.
    void load(state_dict const& from)
    {
        require_idle("load()");
        no_traps_scope const no_traps;
        settle();
        state_dict const here = views();
        std::vector<state_copy> const copies = plan_copies(from, here);
        std::vector<parameter_group> groups = groups_;
        auto const by_name = index_of_names(from.groups, "group");
        for (parameter_group& group : groups) {
            auto const found = by_name.find(group.name);
            if (found == by_name.end())
                throw invalid_argument("adamant: the state that is loaded has no parameter group '" + group.name + "'");
            group = from.groups[found->second];
        }
        if (from.loss_scaler.has_value() != scaler_.has_value())
            throw invalid_argument(std::string("adamant: the state that is loaded ") +
                                   (scaler_ ? "has no dynamic loss scale, but this optimizer scales"
                                            : "has a dynamic loss scale, but this optimizer does not scale") +
                                   " dynamically; set loss_scaling in the options as it was");
        if (side_.there())
            prepare();
        can_go_back_ = false;
        is_lost_ = true;
        for (state_copy const& copy : copies)
            copy.run();
        for (tracked_shard& s : passes_.shards) {
            passes_.cpu().for_each_slice(s.shard.size(),
                                         [&](slice part) { s.shard.round_weights(part.begin, part.end); });
            s.summed = 0;
        }
        if (side_.there())
            at_rest([&] { side_.copy_state_from_home(); });
        is_lost_ = false;
        groups_ = std::move(groups);
        scaler_ = from.loss_scaler;
        steps_ = from.step;
        taken_back_of_last_eight_ = 0;
        can_go_back_ = false;
    }

private:
    void update_host_arrays(char const* call)
    {
        no_traps_scope const no_traps;
        require_idle(call);
        settle();
        require_not_lost();
        if (side_.has_pieces())
            at_rest([&] { side_.copy_home(); });
    }
    [[nodiscard]] state_dict views() const
    {
        namespace arrays = shard_array;
        state_dict all{
            .step = steps_, .loss_scaler = scaler_, .groups = groups_, .params = places_.params(), .tensors = {}};
        for (std::size_t i = 0; i < places_.size(); ++i) {
            offload_shard const& s = passes_.shards[i].shard;
            for (auto const& [array, kept] :
                 {std::pair{arrays::param, state_array::param}, std::pair{arrays::exp_avg, state_array::exp_avg},
                  std::pair{arrays::exp_avg_sq, state_array::exp_avg_sq}})
                all.tensors.push_back(
                    {places_[i].param, kept, s.type(array), places_[i].begin, s.size(), s.data(array)});
        }
        return all;
    }
    void require_open(char const* call, std::size_t shard) const
    {
        require_step_open(call);
        require_shard(shard);
        tracked_shard const& s = passes_.shards[shard];
        if (s.submitted || s.left_out)
            throw invalid_argument("adamant: shard " + std::to_string(shard) + " ('" + name(shard) + "') has been " +
                                   (s.submitted ? "submitted" : "left out") + " in this step already");
    }

    void open(step_values const& values, bool as_they_arrive)
    {
        no_traps_scope const no_traps;
        require_idle(as_they_arrive ? "begin_step()" : "step()");
        settle();
        require_not_lost();
        prepare(as_they_arrive);
        open_step(groups_, values, as_they_arrive);
    }

    // In an open step the failure stays, and finish() finds it.
    void accumulate_on_device(std::size_t shard, bool first)
    {
        auto const carefully = [&](auto const& work) { stage_ == stage::open ? on_device(work) : at_rest(work); };
        if (!side_.has_pieces_of(shard) && !side_.has_arrays(shard))
            return;
        carefully([&] { side_.bring_gradients(shard); });
        if (!side_.has_pieces_of(shard))
            return;
        try {
            carefully([&] { side_.accumulate(shard, first); });
        } catch (device_error const& failure) {
            passes_.shards[shard].summed = 0;
            throw device_error(std::string(failure.what()) + "; the gradients accumulated for shard " +
                               std::to_string(shard) + " ('" + name(shard) + "') are lost");
        }
    }

    std::mutex submit_mutex_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
