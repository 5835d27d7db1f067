// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/split.hpp>: the forecast of a step and the best ratio.
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
            {"ratio is ", ratio, ", but must be from 0 to 1: it is the CPU's share of the elements"});
    detail::ratio_line const slowest = detail::longest(detail::lines_of(rates), ratio);
    step_forecast result;
    result.ratio = ratio;
    result.step_s = slowest.seconds(ratio);
    result.update_s = std::max(0.0, result.step_s - rates.backward_s - rates.forward_s);
    result.bound_by = slowest.row;

    detail::whole_times const times = detail::times_of_all(rates);
    auto const add_span = [&](forecast_row row, double begin, double end) {
        if (end > begin)
            result.timeline.push_back({row, begin, end});
    };
    // The pipeline of one backend: its rows in order, each with the time that it takes. All rows begin together.
    // Elements flow from each row to the next, so no row ends before the rows that feed it. input_end: the time when
    // the last element reaches the first row.
    using row_time = std::pair<forecast_row, double>;
    auto const add_pipeline = [&](double begin, double input_end, std::initializer_list<row_time> rows) {
        double end = std::max(begin, input_end);
        for (auto const& [row, time] : rows)
            if (time > 0) {
                end = std::max(end, begin + time);
                add_span(row, begin, end);
            }
        return end;
    };
    double const device_share = 1 - ratio;
    double const cpu_begin = rates.overlaps_backward ? 0 : rates.backward_s;
    double const last_cpu_gradient = ratio * rates.backward_s;
    double device_end = 0;
    add_span(forecast_row::backward, 0, rates.backward_s);
    if (rates.arrays_on_device) {
        add_pipeline(cpu_begin, last_cpu_gradient,
                     {{forecast_row::down, ratio * times.down},
                      {forecast_row::cpu, ratio * times.cpu},
                      {forecast_row::up, ratio * times.up}});
        device_end = add_pipeline(rates.backward_s, 0, {{forecast_row::device, device_share * times.device}});
    } else {
        add_pipeline(cpu_begin, last_cpu_gradient, {{forecast_row::cpu, ratio * times.cpu}});
        device_end = add_pipeline(rates.backward_s, 0,
                                  {{forecast_row::up, device_share * times.up},
                                   {forecast_row::device, device_share * times.device},
                                   {forecast_row::down, device_share * times.down}});
    }
    // Forward runs the layers of the device's weights first; the layers of the CPU's weights may have to wait.
    double const cpu_layers = rates.overlaps_forward ? ratio * rates.forward_s : rates.forward_s;
    double const cpu_layers_begin = result.step_s - cpu_layers;
    if (rates.overlaps_forward)
        add_span(forecast_row::forward, device_end + rates.fixed_s,
                 std::min(device_end + rates.fixed_s + device_share * rates.forward_s, cpu_layers_begin));
    add_span(forecast_row::forward, cpu_layers_begin, result.step_s);
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
    double best_s = detail::longest(lines, most).seconds(most);
    auto const consider = [&](double ratio) {
        if (!(ratio >= least && ratio <= most))
            return;
        double const s = detail::longest(lines, ratio).seconds(ratio);
        // Crossings are rounded, so a smaller improvement is none.
        if (s < best_s * (1 - 1e-12) || (s <= best_s * (1 + 1e-12) && ratio > best)) {
            best = ratio;
            best_s = s;
        }
    };
    consider(least);
    for (std::size_t i = 0; i < lines.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
            consider((lines[j].seconds(0) - lines[i].seconds(0)) / (lines[i].slope() - lines[j].slope()));
    return forecast(rates, best);
}

ADAMANT_END_NAMESPACE
