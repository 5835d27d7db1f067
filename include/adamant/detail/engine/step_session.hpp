// SPDX-License-Identifier: Apache-2.0
// The one step that is under way: it is opened, gives passes to both sides, decides once the norm is known, and ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/history.hpp>
#include <adamant/detail/engine/hybrid_dispatcher.hpp>
#include <adamant/detail/engine/step_stats.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Who may call what when is checked by the caller, an optimizer_core. finish() and what is called between steps wait.
class step_session {
public:
    step_session(executor const& cpu, optimizer_options const& options, registry& over)
        : options_(options), over_(over),
          sides_(cpu, {this, &enter_worker}, over_, plan_, blocks_, options_.weights_ready),
          stats_(over_, plan_, blocks_, sides_.host())
    {
        if (options_.loss_scaling)
            training_.scaler = initial_state(*options_.loss_scaling);
    }
    step_session(step_session const&) = delete;
    step_session& operator=(step_session const&) = delete;
    // Waits for a step that is under way, and takes it back where that can be. In any case a device that answers has no
    // work left that uses the caller's memory.
    ~step_session()
    {
        if (is_left_behind())
            return;
        sides_.line().wait();
        if (machine_.state() == step_state::failed || (machine_.state() == step_state::open && can_roll_back()))
            roll_back_open_step();
        else if (!machine_.is_between_steps() || machine_.is_behind())
            (void)sides_.stop();
    }
    // Whether this process was forked from the one that made the team while work was under way or a device had shards.
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        work_queue const& line = sides_.line();
        return !line.in_this_process() && (!line.was_idle() || !machine_.is_between_steps() || has_device());
    }

    [[nodiscard]] step_machine const& machine() const noexcept { return machine_; }
    [[nodiscard]] bool has_device() const noexcept { return sides_.device() != nullptr; }
    [[nodiscard]] step_plan const& plan() const noexcept { return plan_; }
    [[nodiscard]] block_table& blocks() noexcept { return blocks_; }
    [[nodiscard]] hybrid_dispatcher& sides() noexcept { return sides_; }
    [[nodiscard]] hybrid_dispatcher const& sides() const noexcept { return sides_; }
    [[nodiscard]] step_history& history() noexcept { return history_; }
    [[nodiscard]] step_history const& history() const noexcept { return history_; }
    [[nodiscard]] training_state const& training() const noexcept { return training_; }
    [[nodiscard]] training_state& training() noexcept { return training_; }
    // After groups or shards have changed, or have been placed elsewhere. Allocates all that steps need but records.
    void build_layout()
    {
        sides_.host().build_layout(sides_.cpu_ranges());
        blocks_.build_layout(over_.blocks(), options_.keep_last_step);
        history_.reserve(over_.size());
        plan_.shards.assign(over_.size(), shard_in_step::awaited);
        plan_.assumed.reserve(over_.groups().size());
        plan_.decided.reserve(over_.groups().size());
        terms_.lr.reserve(over_.groups().size());
    }

    // ---- A step

    // as_they_arrive: shards are submitted one by one. is_async: the team drives the step. Groups and shards stay as
    // they are until the step is over. Throws invalid_argument for values that cannot be, before anything is changed.
    void open(step_values const& values, bool as_they_arrive, bool is_async)
    {
        make_terms(terms_, values, options_, over_.groups().size(), training_.steps + 1, training_.loss_scale());
        rounded_to_nearest([&] { make_group_steps(over_.groups(), terms_, 1.0, plan_.assumed); });
        make_plan(plan_, terms_, options_, over_.size(), as_they_arrive, has_device(), training_.wrong_assumptions);
        history_.forget();
        forget_records();
        error_ = nullptr;
        sides_.begin();
        stats_.begin(terms_, sides_.device());
        stats_.passes_at_once(false, !has_device() && !is_async);
        machine_.open(is_async);
    }
    // This shard's gradient is there. One call at a time. Throws what work_queue::check_caller() does.
    void submit(std::size_t shard)
    {
        plan_.shards[shard] = shard_in_step::submitted;
        watch([&] { sides_.submit(shard); });
    }
    void submit_all()
    {
        if (!has_device() && !machine_.is_async()) {
            plan_.shards.assign(over_.size(), shard_in_step::submitted);
            stats_.passes_at_once(true, true);
            sides_.do_pass(plan_.first_pass, false);
            return;
        }
        {
            std::lock_guard const lock(submit_all_mutex_);
            plan_.shards.assign(over_.size(), shard_in_step::submitted);
            watch([&] { sides_.submit_all(machine_.is_async()); });
        }
        if (machine_.is_async() && sides_.host().nothing_enqueued()) // no thread comes to the end of nothing
            (void)go_on_at_end();
    }
    void skip(std::size_t shard) { plan_.shards[shard] = shard_in_step::skipped; }
    // All shards are submitted or left out. Throws what options.reduce throws, and the step stays open; and
    // device_error, after the step has been rolled back.
    optimizer_report finish()
    {
        try {
            if (machine_.has_failed())
                throw_device_error({"a submit() to this step has failed; the step is rolled back"});
            sides_.host().all_is_submitted();
            watch([&] { sides_.wait_for_pass(); });
            while (decide_next())
                watch([&] { sides_.do_pass(next_pass_, device_takes_part()); });
        } catch (...) {
            rollback_failed_and_rethrow();
        }
        machine_.go(step_state::idle);
        return stats_.report();
    }
    // The end of an asynchronous step. Waits; throws what finish() does, and nothing is changed by that step then.
    optimizer_report collect()
    {
        sides_.line().wait();
        if (error_ == nullptr) {
            machine_.go(step_state::idle);
            return stats_.report();
        }
        try {
            std::rethrow_exception(std::exchange(error_, nullptr));
        } catch (...) {
            give_up_and_rethrow();
        }
    }
    // In an exception handler, for calls that leave no step open: takes the step back unless that has been done. Throws
    // what is being handled, with what it means for the state where that is inconsistent now.
    [[noreturn]] void give_up_and_rethrow()
    {
        if (machine_.is_between_steps()) // finish() has taken it back, and said so
            throw;
        if (machine_.state() == step_state::open)
            roll_back_open_step();
        rollback_failed_and_rethrow();
    }
    // Whether what the open step has done can be rolled back: not where shards are stepped without waiting for a norm,
    // and no record is kept. Waits for what was submitted.
    [[nodiscard]] bool can_roll_back()
    {
        sides_.line().wait();
        return plan_.first_pass != block_pass::step || unrecorded_blocks() == 0;
    }
    // What the open step has done is rolled back. The part of a device that does not answer is left for catch_up().
    void roll_back_open_step()
    {
        bool const answers = sides_.stop();
        if (has_device() || plan_.first_pass != block_pass::measure)
            sides_.rollback_on_cpu();
        bool const is_inconsistent = has_device() && sides_.device()->stepped_for_good();
        bool const is_back = answers && (!has_device() || sides_.device()->roll_back());
        blocks_.forget_records();
        machine_.go(is_inconsistent ? (is_back ? step_state::inconsistent : step_state::inconsistent_behind)
                                    : (is_back ? step_state::idle : step_state::behind));
    }
    [[nodiscard]] std::size_t unrecorded_blocks() const noexcept { return blocks_.unrecorded_blocks(over_, plan_); }
    // Marks the step as one that has to be rolled back where this fails, if there is a device.
    template <class Work>
    void watch(Work const& work)
    {
        if (!has_device())
            return work();
        try {
            work();
        } catch (...) {
            machine_.fail();
            throw;
        }
    }

    // ---- Between steps

    // Whatever a device has yet to roll back of a step that failed, it must before anything else. Throws device_error.
    void catch_up()
    {
        if (!machine_.is_behind())
            return;
        sides_.line().check_process();
        if (!sides_.stop() || !sides_.device()->roll_back())
            throw_device_error({sides_.device()->device().name(),
                                " has failed in a step and does not answer yet; its part of that step is still to be "
                                "rolled back. Call again later, or load a checkpoint into a new optimizer"});
        blocks_.forget_records();
        machine_.go(machine_.is_inconsistent() ? step_state::inconsistent : step_state::idle);
    }
    // Rolls back the last step, all of which has records. Throws invalid_argument where its gradients have changed.
    void roll_back_last_step()
    {
        sides_.line().check_caller();
        plan_.assumed = plan_.decided; // a step that was refused since may have changed it
        over_.set_sums(history_.sums());
        sides_.begin();
        machine_.go(step_state::rolling_back_last_step);
        auto const stay = [this] {
            over_.forget_sums();
            machine_.go(step_state::idle);
        };
        bool same = true;
        try {
            if (has_device()) {
                sides_.begin_pass(block_pass::compare, true);
                sides_.line().wait();
                same = sides_.device()->wait_for_results(true);
            } else {
                sides_.do_pass(block_pass::compare, false);
            }
            same = sides_.host().same_gradients() && same;
        } catch (...) {
            (void)sides_.stop();
            stay();
            throw;
        }
        if (!same) {
            stay();
            throw_invalid_argument({"the last step cannot be rolled back: it needs that step's gradients, and "
                                    "they have changed since"});
        }
        sides_.rollback_on_cpu();
        bool const is_back = !has_device() || sides_.device()->roll_back();
        blocks_.forget_records();
        history_.forget();
        --training_.steps;
        training_.scaler = history_.scaler();
        machine_.go(is_back ? step_state::idle : step_state::behind);
        catch_up();
    }
    // The arrays are about to be loaded, and have been.
    void begin_load() { machine_.go(step_state::inconsistent); }
    void end_load() { machine_.go(step_state::idle); }

private:
    // A thread of the team comes in.
    static void enter_worker(void* self, work_queue::drain& in, unsigned member)
    {
        static_cast<step_session*>(self)->run_drain(in, member);
    }
    void run_drain(work_queue::drain& in, unsigned member)
    {
        work_queue& line = sides_.line();
        work_queue::clock::time_point waits_until{};
        for (;;) {
            work_queue::work_item const work_item = line.next(in, waits_until);
            if (work_item.action == work_queue::work_item::kind::leave)
                return;
            if (work_item.action == work_queue::work_item::kind::work) {
                sides_.run(member, work_item.begin, work_item.end);
                line.complete(work_item.end - work_item.begin);
            } else {
                line.close(in, go_on_at_end());
            }
        }
    }
    // A thread of the team has come to the end of the line. If the team drives the step, this goes on with it; returns
    // whether there is more to do.
    [[nodiscard]] bool go_on_at_end() noexcept
    {
        if (!machine_.is_async() || machine_.state() == step_state::over || error_ != nullptr)
            return false;
        try {
            // Gradients that have come down may be stepped before submit_all() is through.
            std::unique_lock(submit_all_mutex_).unlock();
            while (!machine_.has_failed()) {
                if (has_device()) {
                    bool awaits = false;
                    watch([&] { awaits = sides_.awaits_gradients(); });
                    if (awaits || sides_.line().done() != sides_.line().added())
                        return true; // some may be stepped meanwhile
                    watch([&] { sides_.take_results(); });
                }
                if (!decide_next())
                    return false;
                bool more = false;
                watch([&] { more = sides_.begin_pass_at_end(next_pass_, device_takes_part()); });
                if (more)
                    return true;
            }
        } catch (...) {
            error_ = std::current_exception();
        }
        return false;
    }

    // A pass is over: whether there is another, which is then next_pass_. Throws what options.reduce throws, with
    // nothing changed.
    [[nodiscard]] bool decide_next()
    {
        step_state const in = machine_.state();
        bool const without_room = plan_.waits_for_room && in == step_state::stepping && unrecorded_blocks() != 0;
        decision const next = in == step_state::open ? decide_by_norm() : after_pass(in, without_room);
        if (in == step_state::rolling_back) {
            forget_records();
            stats_.forgets_records();
        }
        if (next.state == step_state::finishing)
            plan_.waits_for_room = false;
        if (next.state != step_state::over && next.pass == block_pass::rest)
            plan_.assumed = plan_.decided; // which records are made with from now on
        next_pass_ = next.pass;
        if (next.state == step_state::over)
            complete();
        machine_.go(next.state);
        return next.state != step_state::over;
    }
    [[nodiscard]] decision decide_by_norm()
    {
        squares_total total = plan_.measures ? sides_.squares() : squares_total();
        if (total.nonfinite() != 0)
            watch([&] { stats_.report().first_nonfinite = sides_.first_nonfinite(); });
        if (options_.reduce)
            stats_.wait_for_ranks([&] { total = reduced(options_, total); });
        grad_squares const found = total.rounded();
        norm_verdict verdict;
        rounded_to_nearest([&] {
            verdict = judge(found, terms_.loss_scale, terms_.max_norm, plan_.skips_nonfinite);
            if (!verdict.skips && terms_.max_norm != 0)
                clip_group_steps(over_.groups(), terms_, verdict.clip, plan_.decided);
        });
        stats_.norm_is_known(found, verdict);
        first_pass_facts const facts = stats_.facts(sides_.device());
        training_.assumed(!facts.skips && facts.same_scales);
        stats_.report().speculated = facts.pass == block_pass::speculate && plan_.needs_norm && facts.stepped;
        decision const decided = decide(facts);
        stats_.decided(decided);
        return decided;
    }
    void complete()
    {
        stats_.finish(sides_.device());
        bool const applied = stats_.report().outcome == step_outcome::applied;
        if (applied && options_.keep_last_step)
            history_.keep(training_.scaler, over_);
        else
            blocks_.forget_records();
        if (training_.scaler && terms_.moves_scaler)
            rounded_to_nearest([&] {
                training_.scaler =
                    after_step(*training_.scaler, *options_.loss_scaling, stats_.report().nonfinite_grads != 0);
            });
        over_.forget_sums();
        training_.steps += applied;
    }
    void forget_records() noexcept
    {
        blocks_.forget_records();
        if (has_device())
            sides_.device()->forget_records();
    }
    // In `finishing` it is through, and only the CPU has something left.
    [[nodiscard]] bool device_takes_part() const noexcept
    {
        return has_device() && machine_.state() != step_state::finishing;
    }
    // In a handler. Takes the step back if its device has failed.
    [[noreturn]] void rollback_failed_and_rethrow()
    {
        if (machine_.state() == step_state::failed_finishing)
            complete_and_rethrow();
        if (machine_.state() == step_state::failed)
            roll_back_open_step();
        if (!machine_.is_inconsistent())
            throw;
        rethrow_as_device_error(
            "; as there are no records (see device_records in the options), what it has is of no known step now: "
            "load() a state");
    }
    // In a handler. All is stepped, and some of it for good. What the device lacks are weights, which catch_up() sends.
    [[noreturn]] void complete_and_rethrow()
    {
        (void)sides_.stop();
        complete();
        forget_records();
        history_.forget();
        machine_.go(step_state::behind);
        rethrow_as_device_error(
            text_of({"; step ", stats_.report().step,
                     " has been taken all the same, and the weights that could not be sent are sent again "
                     "before anything else"}));
    }

    optimizer_options const& options_;
    registry& over_;
    training_state training_;
    step_history history_;

    step_machine machine_;
    step_terms terms_;
    step_plan plan_;
    block_pass next_pass_ = block_pass::rest;
    block_table blocks_;
    std::exception_ptr error_; // of a step that the team drives
    std::mutex submit_all_mutex_;
    hybrid_dispatcher sides_;
    step_stats stats_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
