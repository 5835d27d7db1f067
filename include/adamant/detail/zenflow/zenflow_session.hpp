// SPDX-License-Identifier: Apache-2.0
// The step session of a zenflow_optimizer: opens a step, takes its gradients, decides once the norm is known, and
// completes it. Tracks the position of the run in its schedule. docs/design.md compares it with step_session.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/report_fields.hpp>
#include <adamant/detail/engine/step_machine.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/exec/background_team.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/host_columns.hpp>
#include <adamant/detail/zenflow/window_step.hpp>
#include <adamant/detail/zenflow/zenflow_background.hpp>
#include <adamant/detail/zenflow/zenflow_gradients.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>
#include <adamant/detail/zenflow/zenflow_plan.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// zenflow_optimizer checks the preconditions. Not thread-safe, except machine().
class zenflow_session {
public:
    zenflow_session(zenflow_model& model, zenflow_options const& zenflow, optimizer_options const& options)
        : model_(model), zenflow_(zenflow), options_(options), pus_(bound_pus(model.cpu)), team_(model.cpu.team())
    {
        if (options_.loss_scaling)
            scaler_ = initial_state(*options_.loss_scaling);
    }
    zenflow_session(zenflow_session const&) = delete;
    zenflow_session& operator=(zenflow_session const&) = delete;
    // Whether this process was forked during background work, with a device attached, or in a step. If so, the object
    // must not be destroyed.
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return background_.is_left_behind() || (!machine_.is_between_steps() && !team_.in_this_process());
    }

    [[nodiscard]] step_machine const& machine() const noexcept { return machine_; }
    [[nodiscard]] background_team& team() noexcept { return team_; }
    [[nodiscard]] zenflow_background& background() noexcept { return background_; }
    [[nodiscard]] zenflow_background const& background() const noexcept { return background_; }
    [[nodiscard]] zenflow_position const& position() const noexcept { return position_; }
    // The sum of the norms of this window's gradients: an upper bound of every deferred element.
    [[nodiscard]] double deferred_norm() const noexcept { return deferred_norm_; }
    [[nodiscard]] std::optional<loss_scaler_state> const& scaler() const noexcept { return scaler_; }
    [[nodiscard]] double loss_scale() const noexcept { return scaler_ ? scaler_->scale : 1.0; }
    // Between these, params and moments are inconsistent.
    void begin_load() { machine_.go(step_state::inconsistent); }
    void end_load() { machine_.go(step_state::idle); }
    // Continues from a loaded state.
    void restore(zenflow_position const& position, double deferred_norm,
                 std::optional<loss_scaler_state> const& scaler) noexcept
    {
        position_ = position;
        deferred_norm_ = deferred_norm;
        scaler_ = scaler;
    }
    // Call after params have been added. Allocates the memory of steps.
    void build_layout()
    {
        if (!model_.overlaps_are_checked)
            model_.check_overlaps(background_.device_state() != nullptr);
        if (model_.is_laid_out)
            return;
        background_.build_layout(zenflow_.overlap);
        model_.build_layout(zenflow_.overlap ? 2 : 1);
    }
    // Allocates what steps need, and publishes what the last call could not.
    void catch_up()
    {
        build_layout();
        background_.catch_up(position_.steps);
    }

    // ---- A step

    // Throws invalid_argument for invalid values, before changing anything.
    void open(step_values const& values)
    {
        if (!values.shard_steps.empty())
            throw_invalid_argument({"cannot step with step numbers for shards: a zenflow_optimizer counts the steps of "
                                    "each param itself. Do not pass shard_steps."});
        make_terms(terms_, values, options_, model_.registry.groups().size(), position_.steps + 1, loss_scale());
        rounded_to_nearest([&] { // refuses values before the step is open
            std::vector<group_step> unused;
            make_group_steps(model_.registry.groups(), terms_, unused);
        });
        started_ = clock::now();
        if (background_.device_state() != nullptr)
            usage_before_ = background_.device_state()->device().usage();
        model_.in_step.assign(model_.size(), shard_in_step::awaited);
        background_.begin_step();
        machine_.open(false);
    }
    // Submits a param whose gradient is complete.
    void submit(std::size_t param)
    {
        if (background_.device_state() != nullptr) {
            background_.device_state()->gradients().submit(param);
            background_.download(param);
        }
        model_.in_step[param] = shard_in_step::submitted;
    }
    void skip(std::size_t param) { model_.in_step[param] = shard_in_step::skipped; }
    // Finishes the step. Requires that all params are submitted or skipped. Throws device_error after rolling back the
    // step; if the device does not recover, params and moments are inconsistent. If only publishing fails, throws, and
    // the step is complete. After any other exception the step stays open.
    zenflow_report finish()
    {
        background_.finish_sums();
        zenflow_report report;
        begin_report(report, model_.cpu, pus_, terms_);
        report.sums_s = background_.take_busy_s_of_sums() / std::max(1u, model_.cpu.threads());
        try {
            norm_verdict const verdict = gradients_.norm(background_.device_state(), terms_, report);
            auto const decided = clock::now();
            report.gradients.seconds = std::chrono::duration<double>(decided - started_).count();
            if (!verdict.skips)
                apply(verdict, report);
            machine_.go(step_state::idle);
            move_scaler(scaler_, terms_, options_, report.nonfinite_grads != 0);
            report.update.seconds = std::chrono::duration<double>(clock::now() - decided).count();
        } catch (rank_error const& failure) {
            std::rethrow_exception(failure.error);
        } catch (device_error const&) {
            if (machine_.is_between_steps()) // a rollback has failed already
                throw;
            machine_.go(step_state::idle);
            background_.roll_back();
            throw;
        }
        // If the next step selects, it runs the deferred update of the newly selected columns first, and would wait for
        // all columns if the update had started.
        background_.resume(selects_next(zenflow_, position_));
        background_.rethrow_publishing_error(position_.steps);
        complete_report(report);
        return report;
    }
    // Discards the open step and its gradients.
    void abandon()
    {
        machine_.go(step_state::idle);
        background_.discard_gradients();
    }
    // Call in an exception handler, in functions that leave no step open. Rethrows the exception; if the state is
    // inconsistent now, the message says so.
    [[noreturn]] void give_up_and_rethrow()
    {
        if (machine_.is_between_steps()) // finish() has closed the step
            throw;
        try {
            abandon();
        } catch (device_error const&) { // the first error is rethrown below
        }
        if (!machine_.is_inconsistent())
            throw;
        rethrow_as_device_error("; the device failed, too, and does not recover, so params and moments are "
                                "inconsistent. Call load() with a state.");
    }

private:
    using clock = std::chrono::steady_clock;

    // On the CPU, does everything that may fail before it writes. On a device, a failure is rolled back.
    void apply(norm_verdict const& verdict, zenflow_report& report)
    {
        window_step step =
            make_window_step(zenflow_, position_, deferred_norm_,
                             report.measured ? std::optional(verdict.norm * verdict.clip) : std::nullopt);
        report.warm_up = step.warm_up;
        device_columns* const device_state = background_.device_state();
        want_columns(step);
        zenflow_plan const plan(model_, terms_, verdict.clip);
        std::size_t const gathered_bytes = plan.selected();
        if (device_state == nullptr)
            host_.reserve(gathered_bytes);
        decide_deferral(step, zenflow_, step.needs_squares() ? gradients_.squares_of_window() : window_squares(),
                        options_.on_nonfinite);
        if (step.ends_window()) {
            plan.deferred(background_.next());
            background_.next().prepare(model_.matrices);
            background_.next().zero_nonfinite = terms_.on_nonfinite == nonfinite_policy::zero && step.may_overflow;
        }
        std::vector<sum_tile> sums = plan.sums(report);
        if (device_state != nullptr)
            step_on_device(*device_state, step.selects, report);

        // Nothing fails from here on.
        if (device_state == nullptr) {
            if (step.selects)
                prepare_selection(report);
            host_.step(background_.access());
        }
        if (step.selects)
            for (zenflow_param_state& state : model_.params)
                state.selected = state.plan.wanted;
        count_selected(report);
        position_ = step.after;
        deferred_norm_ = step.deferred_norm;
        bool const publishes_now = step.ends_window() && (step.warm_up || !zenflow_.overlap);
        bool const waits = device_state == nullptr || publishes_now;
        if (waits) {
            background_.begin_sums(std::move(sums));
            background_.finish_sums();
        }
        if (step.ends_window())
            end_window(step, report);
        if (!waits)
            background_.begin_sums(std::move(sums));
    }
    // Sets `wanted` of each param: the columns that this step updates.
    void want_columns(window_step const& step)
    {
        for (zenflow_param_state& state : model_.params) {
            if (step.warm_up)
                std::fill(state.plan.wanted.begin(), state.plan.wanted.end(), std::uint8_t{0});
            else if (!step.selects)
                state.plan.wanted = state.selected;
        }
        if (step.selects)
            gradients_.select(background_.device_state());
    }
    void complete_report(zenflow_report& report) const
    {
        report.seconds = std::chrono::duration<double>(clock::now() - started_).count();
        if (device_columns const* const device_state = background_.device_state()) {
            std::size_t const on_cpu = report.warm_up ? report.deferred_stepped : 0;
            std::size_t const all = report.elements + on_cpu;
            report.ratio = all == 0 ? 1 : static_cast<double>(on_cpu) / static_cast<double>(all);
            report.device = device_report_since(usage_before_, device_state->device().usage(), report.elements);
        }
        if (report.warm_up) { // internally, a window of one step without selected columns
            report.elements += std::exchange(report.deferred_stepped, 0);
            report.deferred = 0;
            report.window_ended = false;
        }
    }
    // Steps the residents of the device. A new selection replaces them first.
    void step_on_device(device_columns& device_state, bool selects, zenflow_report& report)
    {
        for (zenflow_param_state& state : model_.params)
            state.plan.late.clear();
        bool const is_new = selects || !device_state.has_state();
        try {
            if (is_new) {
                device_state.copy_to_host();
                device_state.drop();
                if (selects)
                    prepare_selection(report);
                device_state.send(model_.params);
            }
            device_state.step(model_.params, model_.in_step, is_new);
        } catch (device_error const&) { // the caller rolls back the step
            keep_selection();
            throw;
        } catch (...) { // memory is short; finish() may be called again
            keep_selection();
            background_.roll_back();
            throw;
        }
    }
    // Runs the deferred update of newly selected columns, which comes before their first immediate one.
    void prepare_selection(zenflow_report& report)
    {
        report.selected = true;
        deferred_update& current = background_.current();
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state& state = model_.params[i];
            if (!model_.is_matrix(i))
                continue;
            std::vector<std::uint8_t>& moved = state.plan.late;
            moved.assign(state.plan.wanted.size(), 0);
            bool late = false;
            for (std::size_t c = 0; c < moved.size(); ++c) {
                report.columns_moved += state.plan.wanted[c] > state.selected[c];
                moved[c] = current.is_active() && state.plan.wanted[c] != 0 && current.parts[i].columns[c] != 0;
                late = late || moved[c] != 0;
            }
            if (!late)
                continue;
            if (!current.is_done())
                current.do_columns(model_.cpu, model_.matrices, i, moved, background_.access());
            for (std::size_t c = 0; c < moved.size(); ++c)
                current.parts[i].columns[c] = current.parts[i].columns[c] != 0 && moved[c] == 0;
            if (background_.device_state() == nullptr && !model_.takes_part(i)) // otherwise the step publishes them
                model_.copy_weights(i, state.plan.list); // those of the other selected columns are up to date
        }
    }
    // Keeps the selection after a failed step. The columns whose deferred update ran early are published with the
    // others.
    void keep_selection()
    {
        background_.settle(); // otherwise these columns would be stepped again
        for (std::size_t i = 0; i < model_.size(); ++i) {
            std::vector<std::uint8_t> const& late = model_.params[i].plan.late;
            for (std::size_t c = 0; c < late.size(); ++c)
                if (late[c] != 0)
                    background_.current().parts[i].columns[c] = 1;
        }
    }
    void count_selected(zenflow_report& report)
    {
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state& state = model_.params[i];
            if (!model_.takes_part(i))
                continue;
            state.summed += model_.is_matrix(i);
            report.elements += state.plan.list.size() * model_.matrices[i].state_rows();
            for (std::uint32_t const c : state.plan.list)
                ++state.counts[c];
        }
    }
    void end_window(window_step const& step, zenflow_report& report)
    {
        bool const is_dropped = step.deferred == deferral::dropped;
        report.window_ended = true;
        report.deferred_skipped = is_dropped;
        background_.finish_and_flush(report);
        for (std::size_t i = 0; i < model_.size(); ++i) {
            deferred_part const& p = background_.next().parts[i];
            for (std::size_t c = 0; c < p.columns.size() && !is_dropped; ++c) {
                model_.params[i].counts[c] += p.columns[c];
                report.deferred_stepped += p.columns[c] != 0 ? model_.matrices[i].rows() : 0;
            }
            model_.params[i].summed = 0;
        }
        position_.in_window = 0;
        position_.done_squares = 0;
        deferred_norm_ = 0;
        if (is_dropped)
            return;
        background_.begin_next();
        if (step.warm_up || !zenflow_.overlap)
            background_.finish_and_flush(report);
        else
            model_.use_other_sums();
    }

    zenflow_model& model_;
    zenflow_options const& zenflow_;
    optimizer_options const& options_;
    std::string const pus_;
    std::optional<loss_scaler_state> scaler_;
    zenflow_position position_;
    double deferred_norm_ = 0;

    step_machine machine_;
    step_terms terms_;
    clock::time_point started_;
    device_usage usage_before_;
    zenflow_gradients gradients_{model_, zenflow_, options_};
    host_columns host_{model_};
    background_team team_;
    zenflow_background background_{model_, machine_, team_}; // last: its threads use team_ and the model
};

} // namespace detail
ADAMANT_END_NAMESPACE
