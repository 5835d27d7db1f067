// SPDX-License-Identifier: Apache-2.0
// A step in its order, when its gradients are there: first everything that may fail, then what writes. And where a run
// is in its schedule.
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
    // The sum of the norms of the deferred gradients in this window: no element of it is larger.
    [[nodiscard]] double deferred_norm() const noexcept { return deferred_norm_; }
    void go_on_from(zenflow_position const& position, double deferred_norm) noexcept
    {
        position_ = position;
        deferred_norm_ = deferred_norm;
    }

    // Whether there is a step, and how it is clipped.
    [[nodiscard]] norm_verdict norm(step_terms const& terms, zenflow_report& report) const
    {
        return gradients_.norm(background_.home(), terms, report);
    }
    // Takes it.
    void apply(step_terms const& terms, norm_verdict const& verdict, zenflow_report& report)
    {
        bool const warm_up = is_in_warm_up(zenflow_, position_);
        bool const selects = selects_next(zenflow_, position_);
        device_columns* const home = background_.home();
        report.warm_up = warm_up;
        for (zenflow_param_state& own : model_.params) {
            if (warm_up)
                std::fill(own.wanted.begin(), own.wanted.end(), std::uint8_t{0});
            else if (!selects)
                own.wanted = own.selected;
        }
        if (selects)
            gradients_.select(home);
        zenflow_plan const plan(model_, terms, verdict.clip);
        std::size_t const gathered_bytes = plan.selected(home == nullptr);
        if (home == nullptr)
            host_.have_room(gathered_bytes);
        zenflow_position after = position_;
        ++after.steps;
        ++after.in_window;
        after.since_selection = selects ? 1 : after.since_selection + !warm_up;
        after.has_selection = after.has_selection || selects;
        double const deferred_norm = deferred_norm_ + (report.measured ? verdict.norm * verdict.clip : 0);
        // Without a norm the accumulated gradients are not checked for infinities and NaNs.
        bool const is_finite_for_sure = deferred_norm < 1e38 || !report.measured;
        bool const automatic = !zenflow_.update_interval && !warm_up;
        bool ends = false;
        zenflow_gradients::window_squares squares;
        if (automatic || !is_finite_for_sure)
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
            background_.next().zero_nonfinite = terms.zero_nonfinite && !is_finite_for_sure;
        }

        std::vector<sum_tile> sums = plan.sums(report);
        if (home != nullptr)
            step_on_device(*home, selects, report);

        // From here on nothing fails.
        if (home == nullptr) {
            if (selects)
                change_selection(report);
            host_.step(background_.access());
        }
        count_selected(report);
        position_ = after;
        deferred_norm_ = deferred_norm;
        bool const waits = home == nullptr || (ends && (warm_up || !zenflow_.overlap));
        if (waits) {
            background_.begin_sums(std::move(sums));
            background_.finish_sums();
        }
        if (ends)
            end_window(warm_up, drops, report);
        if (!waits)
            background_.begin_sums(std::move(sums));
    }
    // In the background. Where the next step selects, not before it has: what it selects is stepped first.
    void go_on() { background_.go_on(selects_next(zenflow_, position_)); }

private:
    // What is resident on the device steps there; with another selection, it moves first.
    void step_on_device(device_columns& home, bool selects, zenflow_report& report)
    {
        try {
            try_to_step_on_device(home, selects, report);
        } catch (device_error const&) { // the caller takes the step back
            if (selects)
                keep_selection();
            throw;
        } catch (...) { // memory is short; the step may be finished once more
            if (selects)
                keep_selection();
            background_.roll_back();
            throw;
        }
    }
    void try_to_step_on_device(device_columns& home, bool selects, zenflow_report& report)
    {
        for (zenflow_param_state& own : model_.params)
            own.before.clear();
        bool const is_new = selects || !home.has_state();
        if (is_new) {
            home.copy_to_host();
            home.drop();
            if (selects)
                change_selection(report);
            std::vector<resident> all;
            static std::vector<std::uint32_t> const one = {0};
            for (std::size_t i = 0; i < model_.size(); ++i) {
                zenflow_param_state const& own = model_.params[i];
                all.push_back({model_.is_matrix(i) ? &own.list : &one, &own.step_of, own.steps.size(),
                               !own.steps.empty() && rounds_stochastically(model_.matrices[i].shard().format().types,
                                                                           own.steps[0].c.rounding)});
            }
            home.send(all);
        }
        std::vector<group_step> steps;
        for (zenflow_param_state const& own : model_.params)
            steps.insert(steps.end(), own.steps.begin(), own.steps.end());
        home.step(steps, model_.present, is_new);
    }
    // A column that is selected from now on is first stepped with its deferred gradients.
    void change_selection(zenflow_report& report)
    {
        report.selected = true;
        deferred_update& now = background_.now();
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state& own = model_.params[i];
            if (!model_.is_matrix(i))
                continue;
            std::vector<std::uint8_t>& moved = own.late;
            moved.assign(own.wanted.size(), 0);
            bool late = false;
            for (std::size_t c = 0; c < moved.size(); ++c) {
                report.columns_moved += own.wanted[c] > own.selected[c];
                moved[c] = now.is_there() && own.wanted[c] != 0 && now.parts[i].columns[c] != 0;
                late = late || moved[c] != 0;
            }
            own.before = own.selected;
            own.selected = own.wanted;
            if (!late)
                continue;
            if (!now.is_done())
                now.do_columns(model_.cpu, model_.matrices, i, moved, background_.access());
            for (std::size_t c = 0; c < moved.size(); ++c)
                now.parts[i].columns[c] = now.parts[i].columns[c] != 0 && moved[c] == 0;
            if (background_.home() != nullptr)
                continue; // their weights follow with the step
            list_columns(moved, 1, own.late_list);
            model_.copy_weights(i, own.late_list);
        }
    }
    // The step that was to change it has failed. Deferred gradients has been stepped early, and publishes with all
    // else.
    void keep_selection() noexcept
    {
        background_.settle(); // or it would be stepped again
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state& own = model_.params[i];
            if (own.before.empty())
                continue;
            own.selected = own.before;
            for (std::size_t c = 0; c < own.late.size(); ++c)
                if (own.late[c] != 0)
                    background_.now().parts[i].columns[c] = 1;
        }
    }
    void count_selected(zenflow_report& report)
    {
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state& own = model_.params[i];
            if (!model_.takes_part(i))
                continue;
            own.summed += model_.is_matrix(i);
            report.elements +=
                model_.is_matrix(i) ? own.list.size() * model_.matrices[i].rows() : model_.matrices[i].shard().size();
            if (!model_.is_matrix(i))
                ++own.counts[0];
            for (std::uint32_t const c : own.list)
                ++own.counts[c];
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
