// SPDX-License-Identifier: Apache-2.0
// The parts of a zenflow_optimizer, and the preconditions of opening a step.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/call_rules.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>
#include <adamant/detail/zenflow/zenflow_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct zenflow_core {
    zenflow_core(executor const& cpu, zenflow_options requested, optimizer_options step_options)
        : zenflow(std::move(requested)), options(std::move(step_options)), model(cpu)
    {
    }

    [[nodiscard]] step_machine const& machine() const noexcept { return session.machine(); }
    [[nodiscard]] background_team& team() noexcept { return session.team(); }
    [[nodiscard]] zenflow_background& background() noexcept { return session.background(); }
    // Null without a device.
    [[nodiscard]] device_columns* device_state() const noexcept { return session.background().device_state(); }

    // Null without a device.
    [[nodiscard]] adamant::device const* device() const noexcept
    {
        return device_state() == nullptr ? nullptr : &device_state()->device();
    }

    void between_steps(char const* call) const
    {
        session.background().check_at_rest();
        rules.between_steps(call);
    }
    // Opens a step: allocates, publishes what the last call could not, and starts the session.
    void open(step_values const& values, char const* call)
    {
        between_steps(call);
        rules.known_state(device());
        team().check_process();
        team().check_caller();
        session.catch_up();
        session.open(values);
    }
    // gradients: a null pointer skips a param that has elements; an empty list skips none.
    zenflow_report whole_step(step_values const& values, char const* call, std::span<void const* const> gradients)
    {
        no_traps_scope const no_traps;
        open(values, call);
        try {
            for (std::size_t i = 0; i < model.size(); ++i)
                gradients.empty() || gradients[i] != nullptr || model.is_empty(i) ? session.submit(i) : session.skip(i);
            return session.finish();
        } catch (...) {
            session.give_up_and_rethrow();
        }
    }

    zenflow_options zenflow;
    optimizer_options options;
    zenflow_model model;
    zenflow_session session{model, zenflow, options};
    call_rules rules{"param", model.registry, session.machine(), model.in_step, session.team()};
};

} // namespace detail
ADAMANT_END_NAMESPACE
