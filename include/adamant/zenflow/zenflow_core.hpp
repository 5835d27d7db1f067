// SPDX-License-Identifier: Apache-2.0
// The inside of zenflow_optimizer: a step in its order. First everything that may fail, then what writes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/optimizer/decision.hpp>
#include <adamant/optimizer/step_plan.hpp>
#include <adamant/zenflow/host_home.hpp>
#include <adamant/zenflow/zenflow_background.hpp>
#include <adamant/zenflow/zenflow_gradients.hpp>
#include <adamant/zenflow/zenflow_loading.hpp>
#include <adamant/zenflow/zenflow_model.hpp>
#include <adamant/zenflow/zenflow_plan.hpp>
#include <adamant/zenflow/zenflow_report.hpp>
#include <adamant/zenflow/zenflow_state.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class zenflow_core {
public:
    zenflow_core(executor const& cpu, zenflow_options zenflow, optimizer_options options)
        : zenflow_(checked(std::move(zenflow))), options_(checked(std::move(options))), model_(cpu)
    {
        if (options_.loss_scaling)
            scaler_ = initial_state(*options_.loss_scaling);
        if (auto const& threads = model_.cpu.team(); threads != nullptr && threads->bound())
            pus_ = to_list(threads->bound_to());
    }

    [[nodiscard]] registry const& registered() const noexcept { return model_.registry; }
    [[nodiscard]] zenflow_position const& position() const noexcept { return position_; }
    [[nodiscard]] double loss_scale() const noexcept { return scaler_ ? scaler_->scale : 1.0; }
    [[nodiscard]] executor const& cpu() const noexcept { return model_.cpu; }

    // ---- Set-up

    std::size_t add_group(parameter_group group) { return model_.registry.add_group(std::move(group)); }
    void set_hyperparameters(std::size_t group, hyperparameters const& hyper)
    {
        no_traps_scope const no_traps;
        model_.registry.set_hyperparameters(group, hyper);
    }
    std::size_t add_param(std::size_t group, std::string const& name, any_shard const& shard, std::size_t columns,
                          void* weights, shard_place place)
    {
        no_traps_scope const no_traps;
        if (position_.steps != 0)
            throw_invalid_argument(
                {"a param '", name, "' is to be added after ", position_.steps, " steps; add all params first"});
        return model_.add_param(group, name, shard, columns, weights, std::move(place));
    }
    void set_gradient(std::size_t param, void const* grad)
    {
        model_.registry.require_shard(param);
        if (is_open_)
            awaited("set_gradient()", param);
        if (background_.home() != nullptr && !is_empty(param)) {
            if (grad == model_.matrices[param].shard().data(shard_array::grad))
                return;
            throw_invalid_argument({"param ", model_.registry.text(param),
                                    " is given another gradient in host memory, but its gradients are made on a device "
                                    "(see set_device_arrays()), and come down to where they did"});
        }
        background_.finish_sums();
        model_.set_gradient(param, grad);
    }
    [[nodiscard]] bool is_empty(std::size_t param) const noexcept { return model_.is_empty(param); }
    // Bytes of the sums.
    [[nodiscard]] std::size_t memory_bytes() const noexcept
    {
        std::size_t elems = 0;
        for (zenflow_matrix const& m : model_.matrices)
            elems += m.size();
        return elems * sizeof(float) * (zenflow_.overlap ? 2 : 1);
    }
    void prepare()
    {
        no_traps_scope const no_traps;
        lay_out();
    }

    // ---- Steps

    void between_steps(char const* call) const
    {
        if (is_open_)
            throw_invalid_argument({call, " is called while a step is under way; finish() or abandon() it first"});
    }
    void begin_step(step_values const& values)
    {
        no_traps_scope const no_traps;
        between_steps("begin_step()");
        if (background_.is_lost())
            throw_invalid_argument(
                {"the last load() failed in the middle, or a device has stopped answering, so params and "
                 "moments are of no known step; load() a state"});
        if (model_.cpu.team() != nullptr)
            model_.cpu.team()->check_submit();
        lay_out();
        background_.catch_up(position_.steps);
        rounded_to_nearest([&] {
            make_terms(terms_, values, options_, model_.registry.groups().size(), position_.steps + 1, loss_scale());
        });
        started_ = std::chrono::steady_clock::now();
        if (device_home* const home = background_.home())
            usage_before_ = home->device().usage();
        submitted_.assign(model_.size(), shard_in_step::awaited);
        background_.begin_step();
        is_open_ = true;
    }
    void submit(std::size_t param)
    {
        no_traps_scope const no_traps;
        awaited("submit()", param);
        if (device_home* const home = background_.home()) {
            home->submit(param);
            background_.bring_down(param);
        }
        submitted_[param] = shard_in_step::submitted;
    }
    void leave_out(std::size_t param)
    {
        awaited("leave_out()", param);
        submitted_[param] = shard_in_step::left_out;
    }
    zenflow_report finish()
    {
        no_traps_scope const no_traps;
        if (!is_open_)
            throw_invalid_argument({"finish() is called, but no step is open; begin_step() first"});
        model_.present.resize(model_.size());
        for (std::size_t i = 0; i < model_.size(); ++i) {
            if (submitted_[i] == shard_in_step::awaited)
                throw_invalid_argument({"finish() is called, but param ", model_.registry.text(i),
                                        " has not been submitted; submit() it, or leave_out() it"});
            model_.present[i] = submitted_[i] == shard_in_step::submitted;
        }
        background_.finish_sums();
        zenflow_report report;
        double const threads = std::max(1u, model_.cpu.threads());
        report.sums_s = background_.take_busy_s_of_sums() / threads;
        report.tier = model_.cpu.tier();
        report.threads = model_.cpu.threads();
        report.pus = pus_;
        report.step = position_.steps + 1;
        report.loss_scale = terms_.loss_scale;
        try {
            norm_verdict const verdict = gradients_.norm(background_.home(), terms_, report);
            auto const known = std::chrono::steady_clock::now();
            report.gradients.seconds = std::chrono::duration<double>(known - started_).count();
            if (!verdict.skips)
                apply(verdict, report);
            is_open_ = false;
            if (scaler_ && terms_.moves_scaler)
                rounded_to_nearest(
                    [&] { scaler_ = after_step(*scaler_, *options_.loss_scaling, report.nonfinite_grads != 0); });
            report.update.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - known).count();
        } catch (device_error const&) {
            is_open_ = false;
            background_.take_back();
            throw;
        }
        // Where the next step selects, not before it has: what it selects is stepped first.
        background_.go_on(selects_next(zenflow_, position_));
        background_.rethrow_landing_error(position_.steps);
        report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
        if (background_.home() != nullptr)
            report_device(report);
        return report;
    }
    void abandon()
    {
        if (!is_open_)
            throw_invalid_argument({"abandon() is called, but no step is open; begin_step() first"});
        is_open_ = false;
        if (background_.home() == nullptr)
            return;
        background_.finish_sums();
        background_.home()->wait();
    }
    // gradients: null for a param that takes no part.
    template <class Present>
    zenflow_report step(step_values const& values, Present const& present)
    {
        begin_step(values);
        try {
            for (std::size_t i = 0; i < model_.size(); ++i) {
                if (present(i))
                    submit(i);
                else
                    leave_out(i);
            }
            return finish();
        } catch (...) {
            is_open_ = false;
            throw;
        }
    }
    // What is stepped in the background is finished, and all weights are those of the masters.
    void land()
    {
        no_traps_scope const no_traps;
        between_steps("land()");
        lay_out();
        background_.catch_up(position_.steps);
        background_.finish_and_land();
        background_.rethrow_landing_error(position_.steps);
    }

    // ---- A device

    void set_device_arrays(std::size_t param, device_arrays const& arrays)
    {
        model_.registry.require_shard(param);
        if (background_.home() != nullptr)
            throw_invalid_argument(
                {"set_device_arrays() is called after place(); take everything back with place(nullptr) "
                 "first"});
        if (!arrays.grad || !arrays.weight_out || arrays.grad.address % 16 != 0 || arrays.weight_out.address % 16 != 0)
            throw_invalid_argument({"param ", model_.registry.text(param),
                                    " needs an array of gradients and one of weights on the "
                                    "device, each at a multiple of 16 bytes"});
        device_arrays_.resize(std::max(device_arrays_.size(), model_.size()));
        device_arrays_[param] = arrays;
    }
    void place(std::shared_ptr<device> on)
    {
        no_traps_scope const no_traps;
        between_steps("place()");
        lay_out();
        background_.catch_up(position_.steps);
        background_.settle();
        if (on != nullptr) {
            device_arrays_.resize(model_.size());
            for (std::size_t i = 0; i < model_.size(); ++i)
                if (!device_arrays_[i].grad && !model_.is_empty(i))
                    throw_invalid_argument({"param ", model_.registry.text(i),
                                            " has no arrays on the device; tell them by "
                                            "set_device_arrays() before place()"});
        }
        background_.come_home();
        background_.leave_home();
        if (on != nullptr)
            background_.move_to(std::move(on), this, device_arrays_, options_.device_timeout_s);
    }
    // ---- State

    [[nodiscard]] std::vector<std::uint8_t> const& selected(std::size_t param) const
    {
        model_.registry.require_shard(param);
        return model_.params[param].selected;
    }
    [[nodiscard]] std::vector<std::uint64_t> const& counts(std::size_t param) const
    {
        model_.registry.require_shard(param);
        return model_.params[param].counts;
    }
    [[nodiscard]] zenflow_state state()
    {
        no_traps_scope const no_traps;
        between_steps("state()");
        lay_out();
        background_.catch_up(position_.steps);
        background_.settle();
        background_.come_home();
        zenflow_state all{position_, put_off_norm_, scaler_, model_.registry.groups(), {}};
        for (std::size_t i = 0; i < model_.size(); ++i) {
            all.params.push_back(view_of(model_, i));
            if (background_.now().is_there())
                all.params.back().landing = background_.now().parts[i].columns;
        }
        return all;
    }
    // The states of all ranks that there were, in any order.
    void load(std::vector<zenflow_state const*> const& from)
    {
        no_traps_scope const no_traps;
        between_steps("load()");
        lay_out();
        zenflow_loading const loading(model_, from, scaler_.has_value());
        zenflow_state const& first = *from.front();
        std::vector<parameter_group> groups = first.groups;
        background_.settle();
        background_.set_lost(true);
        if (device_home* const home = background_.home()) {
            if (!home->device().reset(std::chrono::steady_clock::now() + std::chrono::seconds(1)))
                throw_device_error({home->device().name(), " does not answer, so no state can be loaded to it; place() "
                                                           "another device, or place(nullptr), and load() the state"});
            home->drop();
        }
        background_.forget();
        model_.use_first_sums();
        bool any_landing = false;
        for (std::size_t i = 0; i < model_.size(); ++i)
            any_landing = loading.load(i) || any_landing;
        position_ = first.position;
        put_off_norm_ = first.put_off_norm;
        scaler_ = first.loss_scaler;
        model_.registry.replace_groups(std::move(groups));
        if (any_landing) {
            for (std::size_t i = 0; i < model_.size(); ++i) {
                std::vector<std::uint8_t>& landing = model_.params[i].landing;
                background_.now().parts[i].columns = landing;
                std::fill(landing.begin(), landing.end(), std::uint8_t{0});
            }
            background_.now().begin_done();
        }
        if (background_.home() != nullptr)
            background_.copy_weights(false);
        background_.set_lost(false);
    }

private:
    static zenflow_options checked(zenflow_options options)
    {
        validate(options);
        return options;
    }
    static optimizer_options checked(optimizer_options options)
    {
        validate(options);
        if (options.keep_last_step || options.weights_ready)
            throw_invalid_argument({"an optimizer that puts gradients off has no ",
                                    options.keep_last_step ? "rollback(), so keep_last_step" : "weights_ready, so it",
                                    " must not be set"});
        return options;
    }

    void awaited(char const* call, std::size_t param) const
    {
        if (!is_open_)
            throw_invalid_argument({call, " is called, but no step is open; begin_step() first"});
        model_.registry.require_shard(param);
        if (submitted_[param] != shard_in_step::awaited)
            throw_invalid_argument({"param ", model_.registry.text(param), " has been ",
                                    submitted_[param] == shard_in_step::submitted ? "submitted" : "left out",
                                    " in this step already"});
    }

    void lay_out()
    {
        if (model_.is_laid_out)
            return;
        background_.lay_out(zenflow_.overlap);
        model_.lay_out(zenflow_.overlap ? 2 : 1);
    }

    // ---- A step

    void apply(norm_verdict const& verdict, zenflow_report& report)
    {
        bool const warm_up = is_in_warm_up(zenflow_, position_);
        bool const selects = selects_next(zenflow_, position_);
        device_home* const home = background_.home();
        report.warm_up = warm_up;
        for (zenflow_param_state& own : model_.params) {
            if (warm_up)
                std::fill(own.wanted.begin(), own.wanted.end(), std::uint8_t{0});
            else if (!selects)
                own.wanted = own.selected;
        }
        if (selects)
            gradients_.select(home);
        zenflow_plan const plan(model_, terms_, verdict.clip);
        std::size_t const gathered_bytes = plan.selected(home == nullptr);
        if (home == nullptr)
            host_.have_room(gathered_bytes);
        zenflow_position after = position_;
        ++after.steps;
        ++after.in_window;
        after.since_selection = selects ? 1 : after.since_selection + !warm_up;
        after.has_selection = after.has_selection || selects;
        double const put_off_norm = put_off_norm_ + (report.measured ? verdict.norm * verdict.clip : 0);
        // Without a norm nobody asks whether what was added up is finite.
        bool const is_finite_for_sure = put_off_norm < 1e38 || !report.measured;
        bool const automatic = !zenflow_.update_interval && !warm_up;
        bool ends = false;
        zenflow_gradients::window_squares squares;
        if (automatic || !is_finite_for_sure)
            squares = gradients_.squares_of_window();
        rounded_to_nearest([&] {
            after.done_squares += automatic ? squares.done.sum : 0;
            ends = ends_window(zenflow_, after, squares.put_off.sum);
        });
        bool drops = false;
        if (ends) {
            plan.put_off(background_.next());
            drops = options_.on_nonfinite == nonfinite_policy::skip && squares.put_off.nonfinite != 0;
            background_.next().zero_nonfinite = terms_.zero_nonfinite && !is_finite_for_sure;
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
        put_off_norm_ = put_off_norm;
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
    // What is resident on the device steps there; with another selection, it moves first.
    void step_on_device(device_home& home, bool selects, zenflow_report& report)
    {
        try {
            try_to_step_on_device(home, selects, report);
        } catch (...) {
            if (selects)
                keep_selection();
            throw;
        }
    }
    void try_to_step_on_device(device_home& home, bool selects, zenflow_report& report)
    {
        for (zenflow_param_state& own : model_.params)
            own.before.clear();
        bool const is_new = selects || !home.has_state();
        if (is_new) {
            home.bring_home();
            home.drop();
            if (selects)
                change_selection(report);
            std::vector<resident> all;
            static std::vector<std::uint32_t> const one = {0};
            for (std::size_t i = 0; i < model_.size(); ++i) {
                zenflow_param_state const& own = model_.params[i];
                all.push_back({model_.is_matrix(i) ? &own.list : &one, &own.step_of, own.steps.size(),
                               !own.steps.empty() && rounds_by_chance(model_.matrices[i].shard().format().types,
                                                                      own.steps[0].c.rounding)});
            }
            home.send(all);
        }
        std::vector<group_step> steps;
        for (zenflow_param_state const& own : model_.params)
            steps.insert(steps.end(), own.steps.begin(), own.steps.end());
        home.step(steps, model_.present, is_new);
    }
    // A column that is selected from now on is first stepped with what it has put off.
    void change_selection(zenflow_report& report)
    {
        report.selected = true;
        put_off_step& now = background_.now();
        std::vector<std::uint32_t> list;
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
            list_columns(moved, 1, list);
            model_.copy_weights(i, list);
        }
    }
    // The step that was to change it has failed. What was put off has been stepped early, and lands with all else.
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
        report.put_off_skipped = drops;
        background_.finish_and_land(report);
        for (std::size_t i = 0; i < model_.size(); ++i) {
            put_off_part const& p = background_.next().parts[i];
            for (std::size_t c = 0; c < p.columns.size() && !drops; ++c) {
                model_.params[i].counts[c] += p.columns[c];
                report.put_off_stepped += p.columns[c] != 0 ? model_.matrices[i].rows() : 0;
            }
            model_.params[i].summed = 0;
        }
        position_.in_window = 0;
        position_.done_squares = 0;
        put_off_norm_ = 0;
        if (drops)
            return;
        background_.begin_next();
        if (warm_up || !zenflow_.overlap)
            background_.finish_and_land(report);
        else
            model_.use_other_sums();
    }
    void report_device(zenflow_report& report) const
    {
        device_usage const now = background_.home()->device().usage();
        auto const bytes = [&](device_lane lane) {
            auto const i = static_cast<std::size_t>(lane);
            return static_cast<std::size_t>(now.bytes[i] - usage_before_.bytes[i]);
        };
        auto const seconds = [&](device_lane lane) {
            auto const i = static_cast<std::size_t>(lane);
            return now.busy_s[i] - usage_before_.busy_s[i];
        };
        report.ratio = report.elements == 0 ? 1 : 0;
        report.device = {
            report.elements,          seconds(device_lane::work), seconds(device_lane::up), seconds(device_lane::down),
            bytes(device_lane::work), bytes(device_lane::up),     bytes(device_lane::down)};
    }

    zenflow_options zenflow_;
    optimizer_options options_;
    zenflow_model model_;
    zenflow_gradients gradients_{model_, zenflow_, options_};
    host_home host_{model_};
    std::vector<shard_in_step> submitted_; // of the step that is open
    std::chrono::steady_clock::time_point started_;
    std::string pus_;
    step_terms terms_;
    zenflow_position position_;
    double put_off_norm_ = 0;
    std::optional<loss_scaler_state> scaler_;
    bool is_open_ = false;
    std::vector<device_arrays> device_arrays_;
    device_usage usage_before_;
    zenflow_background background_{model_}; // last: its threads use the model
};

} // namespace detail
ADAMANT_END_NAMESPACE
