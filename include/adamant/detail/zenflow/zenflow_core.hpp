// SPDX-License-Identifier: Apache-2.0
// The parts of a zenflow_optimizer, and the work that several of its functions share.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/call_rules.hpp>
#include <adamant/detail/engine/report_fields.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/zenflow/zenflow_background.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>
#include <adamant/detail/zenflow/zenflow_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct zenflow_core {
    zenflow_core(executor const& cpu, zenflow_options requested, optimizer_options step_options)
        : zenflow(std::move(requested)), options(std::move(step_options)), model(cpu), pus(bound_pus(cpu)),
          team(cpu.team())
    {
        if (options.loss_scaling)
            scaler = initial_state(*options.loss_scaling);
    }

    // If true, the object must not be destroyed: this process was forked while work was running.
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return background.is_left_behind() || (!machine.is_between_steps() && !team.in_this_process());
    }
    [[nodiscard]] zenflow_position const& position() const noexcept { return session.position(); }
    // Null without a device.
    [[nodiscard]] device_columns* device_state() const noexcept { return background.device_state(); }

    void between_steps(char const* call) const
    {
        background.check_at_rest();
        rules.between_steps(call);
    }
    void build_layout()
    {
        if (model.is_laid_out)
            return;
        background.build_layout(zenflow.overlap);
        model.build_layout(zenflow.overlap ? 2 : 1);
    }
    // Allocates what steps need, and publishes what the last call could not.
    void catch_up()
    {
        build_layout();
        background.catch_up(position().steps);
    }
    void report_device(zenflow_report& report) const
    {
        std::size_t const on_cpu = report.warm_up ? report.deferred_stepped : 0;
        std::size_t const all = report.elements + on_cpu;
        report.ratio = all == 0 ? 1 : static_cast<double>(on_cpu) / static_cast<double>(all);
        report.device = device_report_since(usage_before, device_state()->device().usage(), report.elements);
    }
    // Call in an exception handler, in functions that leave no step open. Rethrows the exception; if the state is
    // inconsistent now, the message says so.
    [[noreturn]] void give_up_and_rethrow()
    {
        if (machine.is_between_steps()) // finish() has closed the step
            throw;
        machine.go(step_state::idle);
        try {
            background.discard_gradients();
        } catch (device_error const&) { // the first error is rethrown below
        }
        if (!machine.is_inconsistent())
            throw;
        rethrow_as_device_error("; the device failed, too, and does not recover, so params and moments are "
                                "inconsistent. Call load() with a state.");
    }

    zenflow_options zenflow;
    optimizer_options options;
    zenflow_model model;
    std::chrono::steady_clock::time_point started;
    std::string pus;
    step_terms terms;
    std::optional<loss_scaler_state> scaler;
    step_machine machine;
    std::vector<device_arrays> arrays_on_device; // for each param
    device_usage usage_before;
    background_team team;
    zenflow_background background{model, machine, team}; // its threads use the model
    call_rules rules{"param", model.registry, machine, model.in_step, team};
    zenflow_session session{model, zenflow, options, background};
};

} // namespace detail
ADAMANT_END_NAMESPACE
