// SPDX-License-Identifier: Apache-2.0
// A ZenFlow step after its gradients are complete: first everything that may fail, then everything that writes. Tracks
// the position of the run in its schedule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/host_columns.hpp>
#include <adamant/detail/zenflow/zenflow_background.hpp>
#include <adamant/detail/zenflow/zenflow_gradients.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>
#include <adamant/detail/zenflow/zenflow_plan.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class zenflow_session {
public:
    zenflow_session(zenflow_model& model, zenflow_options const& zenflow, optimizer_options const& options,
                    zenflow_background& background)
        : model_(model), zenflow_(zenflow), options_(options), background_(background)
    {
    }

    [[nodiscard]] zenflow_position const& position() const noexcept { return position_; }
    // The sum of the norms of this window's gradients: an upper bound of every deferred element.
    [[nodiscard]] double deferred_norm() const noexcept { return deferred_norm_; }
    void restore(zenflow_position const& position, double deferred_norm) noexcept
    {
        position_ = position;
        deferred_norm_ = deferred_norm;
    }

    // Decides whether the step is skipped, and how it is clipped.
    [[nodiscard]] norm_verdict norm(step_terms const& terms, zenflow_report& report) const
    {
        return gradients_.norm(background_.device_state(), terms, report);
    }
    // Applies the step.
    void apply(step_terms const& terms, norm_verdict const& verdict, zenflow_report& report)
    {
        bool const warm_up = is_in_warm_up(zenflow_, position_);
        bool const selects = selects_next(zenflow_, position_);
        device_columns* const device_state = background_.device_state();
        report.warm_up = warm_up;
        for (zenflow_param_state& state : model_.params) {
            if (warm_up)
                std::fill(state.wanted.begin(), state.wanted.end(), std::uint8_t{0});
            else if (!selects)
                state.wanted = state.selected;
        }
        if (selects)
            gradients_.select(device_state);
        zenflow_plan const plan(model_, terms, verdict.clip);
        std::size_t const gathered_bytes = plan.selected(device_state == nullptr);
        if (device_state == nullptr)
            host_.reserve(gathered_bytes);
        zenflow_position after = position_;
        ++after.steps;
        ++after.in_window;
        after.since_selection = selects ? 1 : after.since_selection + !warm_up;
        after.has_selection = after.has_selection || selects;
        double const deferred_norm = deferred_norm_ + (report.measured ? verdict.norm * verdict.clip : 0);
        // Without a norm, no policy depends on whether the sums are finite.
        bool const is_surely_finite = deferred_norm < 1e38 || !report.measured;
        bool const automatic = !zenflow_.update_interval && !warm_up;
        bool ends = false;
        zenflow_gradients::window_squares squares;
        if (automatic || !is_surely_finite)
            squares = gradients_.squares_of_window();
        rounded_to_nearest([&] {
            after.done_squares += automatic ? squares.done.sum : 0;
            ends = ends_window(zenflow_, after, squares.deferred.sum);
        });
        bool drops = false;
        if (ends) {
            plan.deferred(background_.next());
            background_.next().prepare(model_.matrices);
            drops = options_.on_nonfinite == nonfinite_policy::skip && squares.deferred.nonfinite != 0;
            background_.next().zero_nonfinite = terms.zero_nonfinite && !is_surely_finite;
        }

        std::vector<sum_tile> sums = plan.sums(report);
        if (device_state != nullptr)
            step_on_device(*device_state, selects, report);

        // Nothing fails from here on.
        if (device_state == nullptr) {
            if (selects)
                prepare_selection(report);
            host_.step(background_.access());
        }
        for (zenflow_param_state& state : model_.params)
            if (selects)
                state.selected = state.wanted;
        count_selected(report);
        position_ = after;
        deferred_norm_ = deferred_norm;
        bool const waits = device_state == nullptr || (ends && (warm_up || !zenflow_.overlap));
        if (waits) {
            background_.begin_sums(std::move(sums));
            background_.finish_sums();
        }
        if (ends)
            end_window(warm_up, drops, report);
        if (!waits)
            background_.begin_sums(std::move(sums));
    }
    // Resumes background work. If the next step selects, the deferred update waits until then, because newly selected
    // columns must be updated first.
    void resume() { background_.resume(selects_next(zenflow_, position_)); }

private:
    // Steps the residents of the device. A new selection replaces them first.
    void step_on_device(device_columns& device_state, bool selects, zenflow_report& report)
    {
        try {
            try_to_step_on_device(device_state, selects, report);
        } catch (device_error const&) { // the caller rolls back the step
            if (selects)
                keep_selection();
            throw;
        } catch (...) { // memory is short; finish() may be called again
            if (selects)
                keep_selection();
            background_.roll_back();
            throw;
        }
    }
    void try_to_step_on_device(device_columns& device_state, bool selects, zenflow_report& report)
    {
        for (zenflow_param_state& state : model_.params)
            state.late.clear();
        bool const is_new = selects || !device_state.has_state();
        if (is_new) {
            device_state.copy_to_host();
            device_state.drop();
            if (selects)
                prepare_selection(report);
            std::vector<resident> all;
            static std::vector<std::uint32_t> const first_column = {0};
            for (std::size_t i = 0; i < model_.size(); ++i) {
                zenflow_param_state const& state = model_.params[i];
                all.push_back({model_.is_matrix(i) ? &state.list : &first_column, &state.step_of, state.steps.size(),
                               !state.steps.empty() && rounds_stochastically(model_.matrices[i].shard().format().types,
                                                                             state.steps[0].c.rounding)});
            }
            device_state.send(all);
        }
        std::vector<group_step> steps;
        for (zenflow_param_state const& state : model_.params)
            steps.insert(steps.end(), state.steps.begin(), state.steps.end());
        device_state.step(steps, model_.in_step, is_new);
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
            std::vector<std::uint8_t>& moved = state.late;
            moved.assign(state.wanted.size(), 0);
            bool late = false;
            for (std::size_t c = 0; c < moved.size(); ++c) {
                report.columns_moved += state.wanted[c] > state.selected[c];
                moved[c] = current.is_active() && state.wanted[c] != 0 && current.parts[i].columns[c] != 0;
                late = late || moved[c] != 0;
            }
            if (!late)
                continue;
            if (!current.is_done())
                current.do_columns(model_.cpu, model_.matrices, i, moved, background_.access());
            for (std::size_t c = 0; c < moved.size(); ++c)
                current.parts[i].columns[c] = current.parts[i].columns[c] != 0 && moved[c] == 0;
            if (background_.device_state() != nullptr || model_.takes_part(i))
                continue; // the step publishes their weights
            list_columns(moved, 1, state.late_list);
            model_.copy_weights(i, state.late_list);
        }
    }
    // Keeps the selection after a failed step. The columns whose deferred update ran early are published with the
    // others.
    void keep_selection() noexcept
    {
        background_.settle(); // otherwise these columns would be stepped again
        for (std::size_t i = 0; i < model_.size(); ++i) {
            std::vector<std::uint8_t> const& late = model_.params[i].late;
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
            report.elements +=
                model_.is_matrix(i) ? state.list.size() * model_.matrices[i].rows() : model_.matrices[i].shard().size();
            if (!model_.is_matrix(i))
                ++state.counts[0];
            for (std::uint32_t const c : state.list)
                ++state.counts[c];
        }
    }
    void end_window(bool warm_up, bool drops, zenflow_report& report)
    {
        report.window_ended = true;
        report.deferred_skipped = drops;
        background_.finish_and_flush(report);
        for (std::size_t i = 0; i < model_.size(); ++i) {
            deferred_part const& p = background_.next().parts[i];
            for (std::size_t c = 0; c < p.columns.size() && !drops; ++c) {
                model_.params[i].counts[c] += p.columns[c];
                report.deferred_stepped += p.columns[c] != 0 ? model_.matrices[i].rows() : 0;
            }
            model_.params[i].summed = 0;
        }
        position_.in_window = 0;
        position_.done_squares = 0;
        deferred_norm_ = 0;
        if (drops)
            return;
        background_.begin_next();
        if (warm_up || !zenflow_.overlap)
            background_.finish_and_flush(report);
        else
            model_.use_other_sums();
    }
    zenflow_model& model_;
    zenflow_options const& zenflow_;
    optimizer_options const& options_;
    zenflow_background& background_;
    zenflow_gradients gradients_{model_, zenflow_, options_};
    host_columns host_{model_};
    zenflow_position position_;
    double deferred_norm_ = 0;
};

} // namespace detail
ADAMANT_END_NAMESPACE
