// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/split.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include <adamant/split.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL step_forecast forecast(step_rates const& rates, double ratio)
{
    detail::default_mode_scope const mode;
    detail::check_rates(rates);
    if (!(ratio >= 0 && ratio <= 1))
        detail::throw_invalid_argument(
            {"ratio is ", ratio, ", but it is the CPU's share of the elements, from 0 to 1"});
    detail::ratio_line const last = detail::longest(detail::lines_of(rates), ratio);
    step_forecast result;
    result.ratio = ratio;
    result.step_s = last.at(ratio);
    result.update_s = std::max(0.0, result.step_s - rates.backward_s - rates.forward_s);
    result.bound_by = last.of;

    detail::whole_times const all = detail::times_of_all(rates);
    auto const span = [&](forecast_row on, double begin, double end) {
        if (end > begin)
            result.timeline.push_back({on, begin, end});
    };
    // Rows of one backend in their order, each with the time that it needs. All begin at once; as elements flow from
    // one to the next, none ends before those that feed it. `fed_until`: when the last element comes to the first of
    // them.
    using lane_time = std::pair<forecast_row, double>;
    auto const flow = [&](double begin, double fed_until, std::initializer_list<lane_time> rows) {
        double end = std::max(begin, fed_until);
        for (auto const& [on, time] : rows)
            if (time > 0) {
                end = std::max(end, begin + time);
                span(on, begin, end);
            }
        return end;
    };
    double const on_device = 1 - ratio;
    double const cpu_begin = rates.overlaps_backward ? 0 : rates.backward_s;
    double const last_gradient = ratio * rates.backward_s; // of the CPU's
    double device_end = 0;
    span(forecast_row::backward, 0, rates.backward_s);
    if (rates.arrays_on_device) {
        flow(cpu_begin, last_gradient,
             {{forecast_row::down, ratio * all.down},
              {forecast_row::cpu, ratio * all.cpu},
              {forecast_row::up, ratio * all.up}});
        device_end = flow(rates.backward_s, 0, {{forecast_row::device, on_device * all.device}});
    } else {
        flow(cpu_begin, last_gradient, {{forecast_row::cpu, ratio * all.cpu}});
        device_end = flow(rates.backward_s, 0,
                          {{forecast_row::up, on_device * all.up},
                           {forecast_row::device, on_device * all.device},
                           {forecast_row::down, on_device * all.down}});
    }
    // The layers whose weights the device makes come first; those of the CPU's may have to wait.
    double const cpu_layers = rates.overlaps_forward ? ratio * rates.forward_s : rates.forward_s;
    double const cpu_layers_begin = result.step_s - cpu_layers;
    if (rates.overlaps_forward)
        span(forecast_row::forward, device_end + rates.fixed_s,
             std::min(device_end + rates.fixed_s + on_device * rates.forward_s, cpu_layers_begin));
    span(forecast_row::forward, cpu_layers_begin, result.step_s);
    return result;
}

ADAMANT_DECL step_forecast best_ratio(step_rates const& rates, double least, double most)
{
    detail::default_mode_scope const mode;
    detail::check_rates(rates);
    if (!(least >= 0 && least <= most && most <= 1))
        detail::throw_invalid_argument({"the bounds of the ratio are from ", least, " to ", most,
                                        ", but must be from 0 to 1, the lower one first"});
    std::vector<detail::ratio_line> const lines = detail::lines_of(rates);
    double best = most;
    double best_s = detail::longest(lines, most).at(most);
    auto const consider = [&](double ratio) {
        if (!(ratio >= least && ratio <= most))
            return;
        double const s = detail::longest(lines, ratio).at(ratio);
        // Crossings are rounded: what is better by less than that is no better.
        if (s < best_s * (1 - 1e-12) || (s <= best_s * (1 + 1e-12) && ratio > best)) {
            best = ratio;
            best_s = s;
        }
    };
    consider(least);
    for (std::size_t i = 0; i < lines.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
            consider((lines[j].at(0) - lines[i].at(0)) / (lines[i].slope() - lines[j].slope()));
    return forecast(rates, best);
}

ADAMANT_END_NAMESPACE
