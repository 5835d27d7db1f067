// SPDX-License-Identifier: Apache-2.0
// How long each part of a step takes, as linear functions of the ratio. The step takes the maximum of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

#include <adamant/core/error.hpp>
#include <adamant/device/step_rates.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// A time as a function of the ratio, with one term for each side, so that a side without elements adds exactly nothing.
struct ratio_line {
    forecast_lane of;
    double fixed;
    double on_cpu;
    double on_device;
    [[nodiscard]] double at(double ratio) const noexcept { return fixed + on_cpu * ratio + on_device * (1 - ratio); }
    [[nodiscard]] double slope() const noexcept { return on_cpu - on_device; }
};

// How long each of them takes for all elements.
struct whole_times {
    double cpu, device, down, up;
};
inline whole_times times_of_all(step_rates const& r)
{
    double const down = (r.arrays_on_device ? r.grad_bytes : r.weight_bytes) * r.elems / r.down_bytes_per_s;
    double const up = (r.arrays_on_device ? r.weight_bytes : r.grad_bytes) * r.elems / r.up_bytes_per_s;
    return {r.elems / r.cpu_elems_per_s, r.elems / r.device_elems_per_s, down, up};
}

inline void check_rates(step_rates const& r)
{
    auto const refuse = [](char const* what, double value, char const* rule) {
        throw_invalid_argument({what, " is ", value, ", but must be ", rule});
    };
    auto const rate = [&](char const* what, double value) {
        if (!(value > 0))
            refuse(what, value, "above 0, or infinite where it limits nothing");
    };
    auto const time = [&](char const* what, double value) {
        if (!std::isfinite(value) || value < 0)
            refuse(what, value, "a finite number, 0 or above");
    };
    time("elems", r.elems);
    rate("cpu_elems_per_s", r.cpu_elems_per_s);
    rate("device_elems_per_s", r.device_elems_per_s);
    rate("down_bytes_per_s", r.down_bytes_per_s);
    rate("up_bytes_per_s", r.up_bytes_per_s);
    time("grad_bytes", r.grad_bytes);
    time("weight_bytes", r.weight_bytes);
    time("backward_s", r.backward_s);
    time("forward_s", r.forward_s);
    time("fixed_s", r.fixed_s);
    whole_times const all = times_of_all(r);
    time("a step at these rates", all.cpu + all.device + all.down + all.up + r.backward_s + r.forward_s + r.fixed_s);
}

// For each lane the time of a step that waits for nothing else; the step takes as long as the longest. The lanes of one
// side work at the same time, so a side takes as long as its slowest lane. Backward makes the CPU's gradients first, at
// an even rate; the device's part begins when backward has finished. (Backward is a lane of the CPU's side, too, but
// never the longest there: the CPU's gradients are complete before all gradients are.)
inline std::vector<ratio_line> lines_of(step_rates const& r)
{
    whole_times const all = times_of_all(r);
    // While forward runs, it needs the CPU's weights only after the device's layers.
    double const cpu_layers = r.overlaps_forward ? r.forward_s : 0;
    double const cpu_fixed =
        (r.overlaps_backward ? 0 : r.backward_s) + r.fixed_s + (r.overlaps_forward ? 0 : r.forward_s);
    double const device_fixed = r.backward_s + r.fixed_s + r.forward_s;
    // The first of equals is named: a lane without work at this ratio is never longer than this one.
    std::vector<ratio_line> lines{
        {r.backward_s > 0 ? forecast_lane::backward : forecast_lane::forward, device_fixed, 0, 0},
        {forecast_lane::device, device_fixed, 0, all.device},
        {forecast_lane::cpu, cpu_fixed, all.cpu + cpu_layers, 0}};
    for (auto const& [of, time] : {std::pair{forecast_lane::down, all.down}, std::pair{forecast_lane::up, all.up}})
        lines.push_back(r.arrays_on_device ? ratio_line{of, cpu_fixed, time + cpu_layers, 0}
                                           : ratio_line{of, device_fixed, 0, time});
    return lines;
}

inline ratio_line const& longest(std::vector<ratio_line> const& lines, double ratio)
{
    return *std::max_element(lines.begin(), lines.end(),
                             [&](ratio_line const& a, ratio_line const& b) { return a.at(ratio) < b.at(ratio); });
}

} // namespace detail

ADAMANT_END_NAMESPACE
