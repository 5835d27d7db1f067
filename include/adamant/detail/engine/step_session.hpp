// SPDX-License-Identifier: Apache-2.0
// The step session: opens a step, runs its passes on both backends, decides once the norm is known, and completes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <type_traits>
#include <utility>

#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/history.hpp>
#include <adamant/detail/engine/hybrid_dispatcher.hpp>
#include <adamant/detail/engine/step_stats.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

enum class step_kind {
    whole,          // all gradients are complete
    as_they_arrive, // shards are submitted one by one
    async           // all gradients are complete, and the team drives the step
};

// The caller, optimizer_core, checks the preconditions. finish() and the functions for use between steps wait.
class step_session final : private step_driver {
public:
    step_session(executor const& cpu, optimizer_options const& options, registry& shard_registry)
        : options_(options), registry_(shard_registry), team_(cpu.team()),
          dispatcher_(cpu, team_, *this, registry_, plan_, blocks_, options_.weights_ready),
          stats_(registry_, plan_, blocks_, dispatcher_.host())
    {
        if (options_.loss_scaling)
            training_.scaler = initial_state(*options_.loss_scaling);
    }
    step_session(step_session const&) = delete;
    step_session& operator=(step_session const&) = delete;
    // Waits for the current step, and rolls it back if possible. Afterwards a device that answers has no work left that
    // uses the caller's memory.
    ~step_session()
    {
        if (is_left_behind())
            return;
        dispatcher_.queue().wait();
        if (machine_.state() == step_state::failed || (machine_.state() == step_state::open && can_roll_back()))
            roll_back_open_step();
        else if (!machine_.is_between_steps() || machine_.is_behind())
            (void)dispatcher_.stop();
    }
    // Whether this process was forked from the team's process during a step, or while a device had shards. If so, the
    // object must not be destroyed: its threads and the device are in the parent process.
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return !team_.in_this_process() &&
               (!dispatcher_.queue().was_idle() || !machine_.is_between_steps() || has_device());
    }

    [[nodiscard]] step_machine const& machine() const noexcept { return machine_; }
    [[nodiscard]] background_team& team() noexcept { return team_; }
    [[nodiscard]] bool has_device() const noexcept { return dispatcher_.device() != nullptr; }
    [[nodiscard]] step_plan const& plan() const noexcept { return plan_; }
    [[nodiscard]] block_table& blocks() noexcept { return blocks_; }
    [[nodiscard]] hybrid_dispatcher& dispatcher() noexcept { return dispatcher_; }
    [[nodiscard]] step_history& history() noexcept { return history_; }
    [[nodiscard]] training_state& training() noexcept { return training_; }
    // Call after groups, shards or the placement have changed. Allocates the memory of steps, except the journal.
    void build_layout()
    {
        dispatcher_.host().build_layout(dispatcher_.cpu_ranges());
        blocks_.build_layout(registry_.blocks(), options_.keep_last_step);
        history_.reserve(registry_.size());
        plan_.shards.assign(registry_.size(), shard_in_step::awaited);
        plan_.assumed.reserve(registry_.groups().size());
        plan_.decided.reserve(registry_.groups().size());
        plan_.terms.lr.reserve(registry_.groups().size());
    }

    // ---- A step

    // Groups and shards must not change until the step is over. Throws invalid_argument for invalid values, before
    // changing anything.
    void open(step_values const& values, step_kind kind)
    {
        bool const is_async = kind == step_kind::async;
        check_shard_steps(values.shard_steps);
        make_terms(plan_.terms, values, options_, registry_.groups().size(), training_.steps + 1,
                   training_.loss_scale());
        rounded_to_nearest([&] {
            make_group_steps(registry_.groups(), plan_.terms, plan_.assumed);
            add_own_steps(plan_, registry_.groups(), registry_.shards(), values.shard_steps);
        });
        // With a small model, submit() works in the calling thread, so speculation would hide nothing.
        bool const may_speculate = kind == step_kind::as_they_arrive &&
                                   (!dispatcher_.works_in_submit() || options_.speculate == speculation::always);
        make_plan(plan_, options_, registry_.size(), {may_speculate, has_device(), training_.wrong_assumptions});
        history_.forget();
        forget_records();
        error_ = nullptr;
        dispatcher_.begin();
        stats_.begin(dispatcher_.device());
        stats_.set_unmeasured(is_async || dispatcher_.do_pass_measures() ? unmeasured_passes::none
                              : kind == step_kind::whole                 ? unmeasured_passes::all
                                                                         : unmeasured_passes::later);
        machine_.open(is_async);
    }
    // Submits a shard whose gradient is complete. Not thread-safe.
    void submit(std::size_t shard)
    {
        plan_.shards[shard] = shard_in_step::submitted;
        watch([&] { dispatcher_.submit(shard); });
    }
    // gradients: null pointers skip their shards; empty: no shard is skipped.
    void submit_all(std::span<void const* const> gradients = {})
    {
        plan_.shards.assign(registry_.size(), shard_in_step::submitted);
        for (std::size_t i = 0; i < gradients.size(); ++i)
            if (gradients[i] == nullptr)
                plan_.shards[i] = shard_in_step::skipped;
        if (!has_device() && !machine_.is_async()) {
            dispatcher_.do_pass(plan_.first_pass, backends::cpu);
            return;
        }
        {
            std::lock_guard const lock(submit_all_mutex_);
            watch([&] { dispatcher_.submit_all(machine_.is_async()); });
        }
        if (machine_.is_async() && dispatcher_.host().is_empty()) // no thread will reach the end of an empty queue
            (void)continue_at_end();
    }
    void skip(std::size_t shard) { plan_.shards[shard] = shard_in_step::skipped; }
    // Adds a shard's gradient to its accumulator, in an open step or between steps, and waits. Call after
    // build_layout(). Throws what the team and the device throw. A device's failure in an open step fails the step, and
    // finish() reports it.
    void accumulate(std::size_t shard)
    {
        tracked_shard const& s = registry_[shard];
        bool const first = s.summed == 0;
        if (has_device())
            accumulate_on_device(shard, first);
        cpu_backend const& host = dispatcher_.host();
        for (std::size_t r = host.first_range(shard); r < host.first_range(shard + 1); ++r)
            host.for_each_slice_of(host.ranges()[r],
                                   [&](std::size_t begin, std::size_t end) { s.shard.accumulate(begin, end, first); });
        registry_.count_micro_step(shard);
    }
    // Finishes the step. Requires that all shards are submitted or skipped. If options.reduce throws, rethrows and
    // leaves the step open. Throws device_error after rolling back the step.
    optimizer_report finish()
    {
        try {
            if (machine_.has_failed())
                throw_device_error(
                    {"cannot finish the step: a call of submit() failed earlier. The step was rolled back."});
            dispatcher_.host().all_is_submitted();
            watch([&] { dispatcher_.wait_for_pass(); });
            while (decide_next())
                watch([&] { dispatcher_.do_pass(next_pass_, next_backends()); });
        } catch (...) {
            rollback_failed_and_rethrow();
        }
        machine_.go(step_state::idle);
        return stats_.report();
    }
    // Ends an asynchronous step. Waits. Throws as finish(); then the step has changed nothing.
    optimizer_report collect()
    {
        dispatcher_.queue().wait();
        if (error_ == nullptr) {
            machine_.go(step_state::idle);
            return stats_.report();
        }
        try {
            std::rethrow_exception(error_); // keep error_: without it continue_at_end() would continue the step
        } catch (...) {
            give_up_and_rethrow();
        }
    }
    // Call in an exception handler, in functions that leave no step open. Rolls back the step unless that is done
    // already. Rethrows the exception; if the state is inconsistent now, the message says so.
    [[noreturn]] void give_up_and_rethrow()
    {
        if (machine_.is_between_steps()) // finish() has rolled back and reported it
            throw;
        if (machine_.state() == step_state::open)
            roll_back_open_step();
        rollback_failed_and_rethrow();
    }
    // Whether the open step can be rolled back. It cannot if shards are stepped without waiting for a norm and without
    // records. Waits for submitted work.
    [[nodiscard]] bool can_roll_back()
    {
        dispatcher_.queue().wait();
        return plan_.first_pass != block_pass::step || unrecorded_blocks() == 0;
    }
    // Rolls back the open step. If the device does not answer, catch_up() rolls back its part later.
    void roll_back_open_step()
    {
        bool const answers = dispatcher_.stop();
        if (has_device() || plan_.first_pass != block_pass::measure)
            dispatcher_.rollback_on_cpu();
        bool const is_inconsistent = has_device() && dispatcher_.device()->stepped_for_good();
        bool const device_is_back = answers && (!has_device() || dispatcher_.device()->roll_back());
        blocks_.forget_records();
        machine_.go(is_inconsistent ? (device_is_back ? step_state::inconsistent : step_state::inconsistent_behind)
                                    : (device_is_back ? step_state::idle : step_state::behind));
    }
    [[nodiscard]] std::size_t unrecorded_blocks() const noexcept { return blocks_.unrecorded_blocks(registry_, plan_); }

    // ---- Between steps

    // Completes the device's rollback of a failed step. Call before any other work. Throws device_error.
    void catch_up()
    {
        if (!machine_.is_behind())
            return;
        team_.check_process();
        if (!dispatcher_.stop() || !dispatcher_.device()->roll_back())
            throw_device_error({dispatcher_.device()->device().name(),
                                " failed in a step and fails again or does not answer yet, so that step is neither "
                                "complete on it nor rolled back. Call again later, or load a checkpoint into a new "
                                "optimizer."});
        end_recovery();
    }
    // Gives up what a device without pieces has left to do of a failed step: only copies of weights.
    void abandon_device_work()
    {
        if (!machine_.is_behind())
            return;
        team_.check_process();
        static_cast<void>(dispatcher_.stop());
        end_recovery();
    }
    // Rolls back the last step. Requires records of all its blocks. Throws invalid_argument if its gradients have
    // changed.
    void roll_back_last_step()
    {
        team_.check_caller();
        plan_.assumed = plan_.decided; // a call that failed since then may have changed it
        registry_.set_sums(history_.sums());
        dispatcher_.begin();
        machine_.go(step_state::rolling_back_last_step);
        auto const keep_step = [this] {
            registry_.forget_sums();
            machine_.go(step_state::idle);
        };
        bool same = true;
        try {
            if (has_device()) {
                dispatcher_.begin_pass(block_pass::compare, backends::both);
                dispatcher_.queue().wait();
                same = dispatcher_.device()->compare_results();
            } else {
                dispatcher_.do_pass(block_pass::compare, backends::cpu);
            }
            same = dispatcher_.host().same_gradients() && same;
        } catch (...) {
            (void)dispatcher_.stop();
            keep_step();
            throw;
        }
        if (!same) {
            keep_step();
            throw_invalid_argument({"cannot roll back the last step: its gradients have changed since then, and the "
                                    "rollback needs them"});
        }
        dispatcher_.rollback_on_cpu();
        if (has_device())
            dispatcher_.device()->restore_changes();
        bool const device_is_back = !has_device() || dispatcher_.device()->roll_back();
        blocks_.forget_records();
        history_.forget();
        --training_.steps;
        training_.scaler = history_.scaler();
        machine_.go(device_is_back ? step_state::idle : step_state::behind);
        catch_up();
    }
    // Call before and after loading the arrays.
    void begin_load() { machine_.go(step_state::inconsistent); }
    void end_load() { machine_.go(step_state::idle); }

private:
    // Call when the device has nothing left to do of a failed step.
    void end_recovery()
    {
        blocks_.forget_records();
        machine_.go(machine_.is_inconsistent() ? step_state::inconsistent : step_state::idle);
    }
    // If the team drives the step, continues it.
    [[nodiscard]] bool continue_at_end() noexcept override
    {
        if (!machine_.is_async() || machine_.state() == step_state::over || error_ != nullptr)
            return false;
        try {
            // Wait for submit_all(): gradients may arrive and be stepped before it has returned.
            std::unique_lock(submit_all_mutex_).unlock();
            while (!machine_.has_failed()) {
                if (has_device()) {
                    if (watch([&] { return dispatcher_.awaits_gradients(); }) ||
                        dispatcher_.queue().done() != dispatcher_.queue().added())
                        return true; // step the gradients that have arrived
                    watch([&] { dispatcher_.take_results(); });
                }
                if (!decide_next())
                    return false;
                if (watch([&] { return dispatcher_.begin_pass_at_end(next_pass_, next_backends()); }))
                    return true;
            }
        } catch (...) {
            error_ = std::current_exception();
        }
        return false;
    }

    // Throws invalid_argument for step numbers that do not fit the shards.
    void check_shard_steps(std::span<std::uint64_t const> numbers) const
    {
        if (numbers.empty())
            return;
        if (numbers.size() != registry_.size())
            throw_invalid_argument({"cannot step with ", counted(numbers.size(), "step number"), ": the optimizer has ",
                                    counted(registry_.size(), "shard"), ". Pass one for each shard."});
        for (std::size_t i = 0; i < numbers.size(); ++i)
            if (numbers[i] == 0)
                throw_invalid_argument(
                    {"cannot step shard ", registry_.text(i),
                     " with step number 0: steps are counted from 1. Pass 1 more than the steps that "
                     "it has taken."});
        if (has_device())
            throw_invalid_argument(
                {"cannot step shards with step numbers of their own: a device has shards, and all of them "
                 "take the optimizer's step. Call place() with a null device first."});
    }
    // Returns work(). With a device, an exception marks the step as failed, so that it is rolled back.
    template <class Work>
    std::invoke_result_t<Work const&> watch(Work const& work)
    {
        if (!has_device())
            return work();
        try {
            return work();
        } catch (...) {
            machine_.fail();
            throw;
        }
    }
    // Call after a pass. Returns whether another pass follows, and stores it in next_pass_. If options.reduce throws,
    // rethrows and changes nothing.
    [[nodiscard]] bool decide_next()
    {
        step_state const state = machine_.state();
        bool const some_deferred = plan_.on_full_journal == full_journal_policy::defer &&
                                   state == step_state::stepping && unrecorded_blocks() != 0;
        decision const next = state == step_state::open ? decide_by_norm() : after_pass(state, some_deferred);
        if (state == step_state::rolling_back) {
            forget_records();
            stats_.forgets_records();
        }
        if (next.state == step_state::finishing)
            plan_.on_full_journal = full_journal_policy::step;
        if (next.state != step_state::over && next.pass == block_pass::rest)
            plan_.assumed = plan_.decided; // the coefficients of records from now on
        next_pass_ = next.pass;
        if (next.state == step_state::over)
            complete();
        machine_.go(next.state);
        return next.state != step_state::over;
    }
    [[nodiscard]] decision decide_by_norm()
    {
        squares_total total = plan_.measures() ? dispatcher_.squares() : squares_total();
        if (total.nonfinite() != 0)
            watch([&] { stats_.report().first_nonfinite = dispatcher_.first_nonfinite(); });
        if (options_.reduce)
            stats_.wait_for_ranks([&] { total = reduced(options_, total); });
        grad_squares const squares = total.rounded();
        norm_verdict verdict;
        rounded_to_nearest([&] {
            verdict = judge(squares, plan_.terms.loss_scale, plan_.terms.max_norm, plan_.terms.on_nonfinite);
            if (!verdict.skips && plan_.terms.max_norm != 0)
                clip_decided_steps(plan_, registry_.groups(), verdict.clip);
        });
        stats_.norm_is_known(squares, verdict);
        first_pass_facts const facts = stats_.facts(dispatcher_.device());
        training_.record_assumption(!facts.skips && facts.same_scales);
        stats_.report().speculated = facts.pass == block_pass::speculate && plan_.needs_norm() && facts.stepped;
        decision const decided = decide(facts);
        stats_.decided(decided);
        return decided;
    }
    void complete()
    {
        stats_.finish(dispatcher_.device());
        bool const applied = stats_.report().outcome == step_outcome::applied;
        if (applied && has_device())
            dispatcher_.device()->commit_changes();
        if (applied && options_.keep_last_step)
            history_.keep(training_.scaler, registry_);
        else
            blocks_.forget_records();
        move_scaler(training_.scaler, plan_.terms, options_, stats_.report().nonfinite_grads != 0);
        registry_.forget_sums();
        training_.steps += applied;
    }
    void accumulate_on_device(std::size_t shard, bool first)
    {
        device_backend& device = *dispatcher_.device();
        auto const run = [&](auto const& work) { machine_.is_between_steps() ? device.at_rest(work) : watch(work); };
        if (!device.has_pieces_of(shard) && !registry_.has_device_arrays(shard))
            return;
        run([&] { device.bring_gradients(shard); });
        if (!device.has_pieces_of(shard))
            return;
        try {
            run([&] { device.accumulate(shard, first); });
        } catch (...) { // std::bad_alloc included: some pieces may have been added
            registry_.forget_sum(shard);
            rethrow_as_device_error(
                text_of({"; the gradients accumulated for shard ", registry_.text(shard), " are lost"}));
        }
    }
    void forget_records() noexcept
    {
        blocks_.forget_records();
        if (has_device())
            dispatcher_.device()->forget_records();
    }
    // The backends of the next pass. In `finishing` the device is done, and only the CPU has work left.
    [[nodiscard]] backends next_backends() const noexcept
    {
        return has_device() && machine_.state() != step_state::finishing ? backends::both : backends::cpu;
    }
    // Call in an exception handler. Rolls back the step if its device has failed, and rethrows.
    [[noreturn]] void rollback_failed_and_rethrow()
    {
        if (machine_.state() == step_state::failed_finishing)
            complete_and_rethrow();
        if (machine_.state() == step_state::failed)
            roll_back_open_step();
        if (!machine_.is_inconsistent())
            throw;
        rethrow_as_device_error("; without records (see device_records in the options) params and moments are "
                                "inconsistent now. Call load() "
                                "with a complete state.");
    }
    // Call in an exception handler. The step is complete and cannot be rolled back. The device lacks some weights,
    // which catch_up() uploads.
    [[noreturn]] void complete_and_rethrow()
    {
        (void)dispatcher_.stop();
        complete();
        forget_records();
        history_.forget();
        machine_.go(step_state::behind);
        rethrow_as_device_error(
            text_of({"; step ", stats_.report().step,
                     " is complete nevertheless. The next call uploads the missing weights first."}));
    }

    optimizer_options const& options_;
    registry& registry_;
    training_state training_;
    step_history history_;

    step_machine machine_;
    step_plan plan_;
    block_pass next_pass_ = block_pass::rest;
    block_table blocks_;
    std::exception_ptr error_; // of a step that the team drives, for collect()
    std::mutex submit_all_mutex_;
    background_team team_;
    hybrid_dispatcher dispatcher_;
    step_stats stats_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
