// SPDX-License-Identifier: Apache-2.0
// The implementation of zenflow_optimizer: preconditions of calls, the device, and the state.
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

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/report_fields.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/engine/step_rules.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/zenflow_background.hpp>
#include <adamant/detail/zenflow/zenflow_loading.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>
#include <adamant/detail/zenflow/zenflow_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class zenflow_core {
public:
    zenflow_core(executor const& cpu, zenflow_options zenflow, optimizer_options options)
        : zenflow_(checked(std::move(zenflow))), options_(checked(std::move(options))), model_(cpu),
          pus_(bound_pus(cpu))
    {
        if (options_.loss_scaling)
            scaler_ = initial_state(*options_.loss_scaling);
    }

    // If true, the object must not be destroyed: this process was forked while work was running.
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return background_.is_left_behind() || (!machine_.is_between_steps() && !background_.in_this_process());
    }
    [[nodiscard]] registry const& registered() const noexcept { return model_.registry; }
    [[nodiscard]] zenflow_position const& position() const noexcept { return session_.position(); }
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
        if (position().steps != 0)
            throw_invalid_argument({"cannot add param '", name, "' after ", counted(position().steps, "step"),
                                    ". Add all params before the first step."});
        return model_.add_param(group, name, shard, columns, weights, std::move(place));
    }
    void set_gradient(std::size_t param, void const* grad)
    {
        background_.check_at_rest();
        model_.registry.require_shard(param);
        if (!machine_.is_between_steps())
            rules_.shard_awaited("set_gradient()", param);
        if (background_.device_state() != nullptr && !is_empty(param)) {
            if (grad == model_.matrices[param].shard().data(shard_array::grad))
                return;
            throw_invalid_argument({"cannot change the gradient of param ", model_.registry.text(param),
                                    ": its gradients are on a device (see set_device_arrays()), which copies them to "
                                    "the array of the time of place()"});
        }
        background_.finish_sums();
        model_.set_gradient(param, grad);
    }
    [[nodiscard]] bool is_empty(std::size_t param) const noexcept { return model_.is_empty(param); }
    // Bytes of the accumulated gradients.
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
        build_layout();
    }

    // ---- Steps

    void between_steps(char const* call) const
    {
        background_.check_at_rest();
        rules_.between_steps(call);
    }
    void begin_step(step_values const& values)
    {
        no_traps_scope const no_traps;
        between_steps("begin_step()");
        if (machine_.is_inconsistent())
            throw_invalid_argument({"cannot call begin_step(): the last load() failed midway, or a device stopped "
                                    "answering, so params and "
                                    "moments are inconsistent. Call load() with a state."});
        background_.check_process();
        background_.check_caller();
        build_layout();
        background_.catch_up(position().steps);
        rounded_to_nearest([&] {
            make_terms(terms_, values, options_, model_.registry.groups().size(), position().steps + 1, loss_scale());
        });
        started_ = std::chrono::steady_clock::now();
        if (device_columns* const device_state = background_.device_state())
            usage_before_ = device_state->device().usage();
        submitted_.assign(model_.size(), shard_in_step::awaited);
        background_.begin_step();
        machine_.open(false);
    }
    void submit(std::size_t param)
    {
        no_traps_scope const no_traps;
        rules_.shard_awaited("submit()", param);
        if (device_columns* const device_state = background_.device_state()) {
            device_state->gradients().submit(param);
            background_.download(param);
        }
        submitted_[param] = shard_in_step::submitted;
    }
    void skip(std::size_t param)
    {
        rules_.shard_awaited("skip()", param);
        submitted_[param] = shard_in_step::skipped;
    }
    zenflow_report finish()
    {
        no_traps_scope const no_traps;
        rules_.step_open("finish()");
        rules_.all_submitted();
        model_.present.resize(model_.size());
        for (std::size_t i = 0; i < model_.size(); ++i)
            model_.present[i] = submitted_[i] == shard_in_step::submitted;
        background_.finish_sums();
        zenflow_report report;
        begin_report(report, model_.cpu, pus_, terms_);
        double const threads = std::max(1u, model_.cpu.threads());
        report.sums_s = background_.take_busy_s_of_sums() / threads;
        try {
            norm_verdict const verdict = session_.norm(terms_, report);
            auto const known = std::chrono::steady_clock::now();
            report.gradients.seconds = std::chrono::duration<double>(known - started_).count();
            if (!verdict.skips)
                session_.apply(terms_, verdict, report);
            machine_.go(step_state::idle);
            if (scaler_ && terms_.moves_scaler)
                rounded_to_nearest(
                    [&] { scaler_ = after_step(*scaler_, *options_.loss_scaling, report.nonfinite_grads != 0); });
            report.update.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - known).count();
        } catch (device_error const&) {
            close_step();
            background_.roll_back();
            throw;
        }
        session_.resume();
        background_.rethrow_publishing_error(position().steps);
        report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
        if (background_.device_state() != nullptr)
            report_device(report);
        if (report.warm_up) { // internally, a window of one step without selected columns
            report.elements += std::exchange(report.deferred_stepped, 0);
            report.deferred = 0;
            report.window_ended = false;
        }
        return report;
    }
    void abandon()
    {
        no_traps_scope const no_traps;
        rules_.step_open("abandon()");
        machine_.go(step_state::idle);
        background_.discard_gradients();
    }
    // present(i): whether param i takes part.
    template <class Present>
    zenflow_report step(step_values const& values, Present const& present)
    {
        begin_step(values);
        try {
            for (std::size_t i = 0; i < model_.size(); ++i) {
                if (present(i))
                    submit(i);
                else
                    skip(i);
            }
            return finish();
        } catch (...) {
            give_up_and_rethrow();
        }
    }
    // Finishes background work, and publishes all weights.
    void flush()
    {
        no_traps_scope const no_traps;
        between_steps("flush()");
        background_.check_process();
        build_layout();
        background_.catch_up(position().steps);
        background_.finish_and_flush();
        background_.require_published(position().steps);
    }

    // ---- A device

    void set_device_arrays(std::size_t param, device_arrays const& arrays)
    {
        model_.registry.require_shard(param);
        if (background_.device_state() != nullptr)
            throw_invalid_argument({"cannot call set_device_arrays() after place(). Call place(nullptr) first."});
        if (!arrays.grad || !arrays.weight_out || arrays.grad.address % 16 != 0 || arrays.weight_out.address % 16 != 0)
            throw_invalid_argument({"cannot set the device arrays of param ", model_.registry.text(param),
                                    ": it needs an array of gradients and one of weights, each at a multiple of 16 "
                                    "bytes"});
        device_arrays_.resize(std::max(device_arrays_.size(), model_.size()));
        device_arrays_[param] = arrays;
    }
    void place(std::shared_ptr<device> target)
    {
        no_traps_scope const no_traps;
        between_steps("place()");
        background_.check_process();
        build_layout();
        background_.catch_up(position().steps);
        background_.settle();
        if (target != nullptr) {
            device_arrays_.resize(model_.size());
            for (std::size_t i = 0; i < model_.size(); ++i)
                if (!device_arrays_[i].grad && !model_.is_empty(i))
                    throw_invalid_argument({"cannot place param ", model_.registry.text(i),
                                            ": it has no arrays on the device. Call set_device_arrays() before "
                                            "place()."});
        }
        background_.copy_to_host();
        background_.detach_device();
        if (target != nullptr)
            background_.attach_device(std::move(target), device_arrays_, options_.device_timeout_s);
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
        build_layout();
        background_.catch_up(position().steps);
        background_.settle();
        background_.copy_to_host();
        zenflow_state all{position(), session_.deferred_norm(), scaler_, model_.registry.groups(), {}};
        for (std::size_t i = 0; i < model_.size(); ++i) {
            all.params.push_back(view_of(model_, i));
            if (background_.current().is_active())
                all.params.back().publishing = background_.current().parts[i].columns;
        }
        return all;
    }
    // states: those of all ranks of the saved run, in any order.
    void load(std::vector<zenflow_state const*> const& states)
    {
        no_traps_scope const no_traps;
        between_steps("load()");
        background_.check_process();
        build_layout();
        zenflow_loading const loading(model_, states, scaler_.has_value());
        zenflow_state const& first = *states.front();
        std::vector<parameter_group> groups = first.groups;
        background_.settle();
        machine_.go(step_state::inconsistent);
        if (device_columns* const device_state = background_.device_state()) {
            if (!device_state->stop())
                throw_device_error({device_state->device().name(),
                                    " does not answer, so load() cannot write to it. Call place() with "
                                    "another device, or place(nullptr), then load()."});
            device_state->drop();
        }
        background_.forget();
        model_.use_first_sums();
        bool any_publishing = false;
        for (std::size_t i = 0; i < model_.size(); ++i)
            any_publishing = loading.load(i) || any_publishing;
        session_.restore(first.position, first.deferred_norm);
        scaler_ = first.loss_scaler;
        model_.registry.replace_groups(std::move(groups));
        if (any_publishing) {
            for (std::size_t i = 0; i < model_.size(); ++i) {
                std::vector<std::uint8_t>& publishing = model_.params[i].publishing;
                background_.current().parts[i].columns = publishing;
                std::fill(publishing.begin(), publishing.end(), std::uint8_t{0});
            }
            background_.current().begin_done();
        }
        if (background_.device_state() != nullptr)
            background_.copy_weights(false);
        machine_.go(step_state::idle);
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
            throw_invalid_argument(
                {"cannot create an optimizer with deferred gradients: it does not support ",
                 options.keep_last_step ? "rollback(), so keep_last_step must not be set" : "weights_ready"});
        return options;
    }

    // Call in an exception handler, in functions that leave no step open. Rethrows the exception; if the state is
    // inconsistent now, the message says so.
    [[noreturn]] void give_up_and_rethrow()
    {
        if (machine_.is_between_steps()) // finish() has closed the step
            throw;
        machine_.go(step_state::idle);
        try {
            background_.discard_gradients();
        } catch (device_error const&) { // the first error is rethrown below
        }
        if (!machine_.is_inconsistent())
            throw;
        rethrow_as_device_error("; the device failed, too, and does not recover, so params and moments are "
                                "inconsistent. Call load() with a state.");
    }
    void close_step()
    {
        if (!machine_.is_between_steps())
            machine_.go(step_state::idle);
    }

    void build_layout()
    {
        if (model_.is_laid_out)
            return;
        background_.build_layout(zenflow_.overlap);
        model_.build_layout(zenflow_.overlap ? 2 : 1);
    }

    void report_device(zenflow_report& report) const
    {
        std::size_t const on_cpu = report.warm_up ? report.deferred_stepped : 0;
        std::size_t const all = report.elements + on_cpu;
        report.ratio = all == 0 ? 1 : static_cast<double>(on_cpu) / static_cast<double>(all);
        report.device =
            device_report_since(usage_before_, background_.device_state()->device().usage(), report.elements);
    }

    zenflow_options zenflow_;
    optimizer_options options_;
    zenflow_model model_;
    std::vector<shard_in_step> submitted_; // of the open step
    std::chrono::steady_clock::time_point started_;
    std::string pus_;
    step_terms terms_;
    std::optional<loss_scaler_state> scaler_;
    step_machine machine_;
    std::vector<device_arrays> device_arrays_;
    device_usage usage_before_;
    zenflow_background background_{model_, machine_}; // its threads use the model
    step_rules<zenflow_background> rules_{"param", model_.registry, machine_, submitted_, background_};
    zenflow_session session_{model_, zenflow_, options_, background_};
};

} // namespace detail
ADAMANT_END_NAMESPACE
