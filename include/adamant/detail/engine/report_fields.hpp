// SPDX-License-Identifier: Apache-2.0
// Fields of a report that steps with and without deferred gradients fill in alike.
#pragma once

#include <cstddef>
#include <limits>
#include <string>

#include <adamant/device.hpp>
#include <adamant/executor.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/step_plan.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The PUs that the executor's threads are bound to; empty if they are not bound.
[[nodiscard]] inline std::string bound_pus(executor const& cpu)
{
    auto const& threads = cpu.team();
    return threads != nullptr && threads->bound() ? to_list(threads->bound_to()) : std::string();
}

// pus: bound_pus().
inline void begin_report(optimizer_report& report, executor const& cpu, std::string const& pus, step_terms const& terms)
{
    report.step = terms.step;
    report.loss_scale = terms.loss_scale;
    report.tier = cpu.tier();
    report.threads = cpu.threads();
    report.pus = pus;
    report.cpu_quota = cpu.cpu_quota();
}

// Records the norm over all ranks.
inline void report_norm(optimizer_report& report, bool measured, grad_squares const& squares,
                        norm_verdict const& verdict)
{
    report.measured = measured;
    report.nonfinite_grads = squares.nonfinite;
    report.global_norm = measured ? verdict.norm : std::numeric_limits<double>::quiet_NaN();
    report.clip_coefficient = verdict.clip;
    report.outcome = verdict.skips ? step_outcome::skipped : step_outcome::applied;
}

// before, now: device::usage() at the beginning and the end of the step.
[[nodiscard]] inline device_report device_report_since(device_usage const& before, device_usage const& now,
                                                       std::size_t elements)
{
    auto const bytes = [&](device_stream stream) {
        auto const i = static_cast<std::size_t>(stream);
        return static_cast<std::size_t>(now.bytes[i] - before.bytes[i]);
    };
    auto const seconds = [&](device_stream stream) {
        auto const i = static_cast<std::size_t>(stream);
        return now.busy_s[i] - before.busy_s[i];
    };
    return {elements,
            seconds(device_stream::work),
            seconds(device_stream::up),
            seconds(device_stream::down),
            bytes(device_stream::work),
            bytes(device_stream::up),
            bytes(device_stream::down)};
}

} // namespace detail
ADAMANT_END_NAMESPACE
