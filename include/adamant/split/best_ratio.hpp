// SPDX-License-Identifier: Apache-2.0
// The ratio that makes a step shortest, from the rates of everybody who takes part, with the timeline that it predicts.
// Pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

// What a step of training is made of. All rates are of the rank that the step is for; what does not limit it is
// infinite.
struct step_rates {
    double elems = 0; // of the optimizer, on both sides
    double cpu_elems_per_s = std::numeric_limits<double>::infinity();
    double device_elems_per_s = std::numeric_limits<double>::infinity();
    double down_bytes_per_s = std::numeric_limits<double>::infinity(); // from the device to the host
    double up_bytes_per_s = std::numeric_limits<double>::infinity();
    double grad_bytes = 2; // that cross the link for an element
    double weight_bytes = 2;
    // Where gradients are made and weights are wanted. On the device, the CPU's part of them crosses the link:
    // gradients down, weights up. In host memory, the device's part does: gradients up, weights down.
    bool arrays_on_device = true;
    double backward_s = 0;
    double forward_s = 0;
    double fixed_s = 0; // of each step, whatever the ratio
    // Whether shards are submitted as backward makes their gradients; else all of the optimizer's work comes after it.
    bool overlaps_backward = true;
    // Whether forward begins when the first weights are there, and the CPU's may come while it runs; else after all.
    bool overlaps_forward = false;
};

// Who is busy from when to when, in seconds from the beginning of backward.
enum class lane : std::uint8_t { backward, down, cpu, up, device, forward };
[[nodiscard]] constexpr char const* name(lane of) noexcept
{
    constexpr char const* names[] = {"backward", "down", "cpu", "up", "device", "forward"};
    return names[static_cast<std::size_t>(of)];
}
struct time_span {
    lane on;
    double begin_s;
    double end_s;
};

struct step_forecast {
    double ratio = 1;
    double step_s = 0;              // backward, optimizer, what is fixed, and forward
    double update_s = 0;            // what all but backward and forward adds to them
    lane bound_by = lane::backward; // what would have to be faster for the step to be
    std::vector<time_span> timeline;
};

namespace detail {

// A time as a function of the ratio. In two parts, so that a side without elements adds nothing at all.
struct ratio_line {
    lane of;
    double fixed;
    double on_cpu;
    double on_device;
    [[nodiscard]] double at(double ratio) const noexcept { return fixed + on_cpu * ratio + on_device * (1 - ratio); }
    [[nodiscard]] double slope() const noexcept { return on_cpu - on_device; }
};

// How long everybody takes for all elements.
struct whole_times {
    double cpu, device, down, up;
};
inline whole_times times_of_all(step_rates const& r)
{
    double const down = (r.arrays_on_device ? r.grad_bytes : r.weight_bytes) * r.elems / r.down_bytes_per_s;
    double const up = (r.arrays_on_device ? r.weight_bytes : r.grad_bytes) * r.elems / r.up_bytes_per_s;
    return {r.elems / r.cpu_elems_per_s, r.elems / r.device_elems_per_s, down, up};
}

inline void check(step_rates const& r)
{
    auto const refuse = [](char const* what, double value, char const* rule) {
        throw invalid_argument("adamant: " + std::string(what) + " is " + text(value) + ", but must be " + rule);
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

// For each lane the time of a step that waits for nothing else: the step takes as long as the longest. Work of one side
// flows through its lanes at once, so a side takes as long as its slowest lane. The CPU's gradients are those that
// backward makes first, evenly; the device's part begins when backward is through. (That backward is a lane of the
// CPU's side, too, never counts: the CPU's gradients are there before all are.)
inline std::vector<ratio_line> lines_of(step_rates const& r)
{
    whole_times const all = times_of_all(r);
    // With forward running, the CPU's weights are wanted when it has done the device's layers: its own come after them.
    double const cpu_layers = r.overlaps_forward ? r.forward_s : 0;
    double const cpu_fixed =
        (r.overlaps_backward ? 0 : r.backward_s) + r.fixed_s + (r.overlaps_forward ? 0 : r.forward_s);
    double const device_fixed = r.backward_s + r.fixed_s + r.forward_s;
    // The first of equals is named: one that does no work at this ratio is never longer than this.
    std::vector<ratio_line> lines{{r.backward_s > 0 ? lane::backward : lane::forward, device_fixed, 0, 0},
                                  {lane::device, device_fixed, 0, all.device},
                                  {lane::cpu, cpu_fixed, all.cpu + cpu_layers, 0}};
    for (auto const& [of, time] : {std::pair{lane::down, all.down}, std::pair{lane::up, all.up}})
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

// What a step with this ratio (from 0 to 1) takes. Throws invalid_argument for rates, times or a ratio that cannot be.
[[nodiscard]] inline step_forecast forecast(step_rates const& rates, double ratio)
{
    detail::check(rates);
    if (!(ratio >= 0 && ratio <= 1))
        throw invalid_argument("adamant: ratio is " + detail::text(ratio) +
                               ", but it is the CPU's share of the elements, from 0 to 1");
    detail::ratio_line const last = detail::longest(detail::lines_of(rates), ratio);
    step_forecast result;
    result.ratio = ratio;
    result.step_s = last.at(ratio);
    result.update_s = std::max(0.0, result.step_s - rates.backward_s - rates.forward_s);
    result.bound_by = last.of;

    detail::whole_times const all = detail::times_of_all(rates);
    auto const span = [&](lane on, double begin, double end) {
        if (end > begin)
            result.timeline.push_back({on, begin, end});
    };
    // Lanes of one side in their order, each with the time that it needs. All begin at once; as elements flow from one
    // to the next, none ends before those that feed it. `fed_until`: when the last element comes to the first of them.
    using lane_time = std::pair<lane, double>;
    auto const flow = [&](double begin, double fed_until, std::initializer_list<lane_time> lanes) {
        double end = std::max(begin, fed_until);
        for (auto const& [on, time] : lanes)
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
    span(lane::backward, 0, rates.backward_s);
    if (rates.arrays_on_device) {
        flow(cpu_begin, last_gradient,
             {{lane::down, ratio * all.down}, {lane::cpu, ratio * all.cpu}, {lane::up, ratio * all.up}});
        device_end = flow(rates.backward_s, 0, {{lane::device, on_device * all.device}});
    } else {
        flow(cpu_begin, last_gradient, {{lane::cpu, ratio * all.cpu}});
        device_end = flow(rates.backward_s, 0,
                          {{lane::up, on_device * all.up},
                           {lane::device, on_device * all.device},
                           {lane::down, on_device * all.down}});
    }
    // The layers whose weights the device makes come first; those of the CPU's may have to wait.
    double const cpu_layers = rates.overlaps_forward ? ratio * rates.forward_s : rates.forward_s;
    double const cpu_layers_begin = result.step_s - cpu_layers;
    if (rates.overlaps_forward)
        span(lane::forward, device_end + rates.fixed_s,
             std::min(device_end + rates.fixed_s + on_device * rates.forward_s, cpu_layers_begin));
    span(lane::forward, cpu_layers_begin, result.step_s);
    return result;
}

// The ratio from `least` to `most` (which memory may have narrowed) with the shortest step; of several the largest,
// which leaves the device the most memory. The time is the largest of a few lines over the ratio, so the best is where
// two of them cross, or at a bound. Throws invalid_argument as forecast() does, and where least is above most.
[[nodiscard]] inline step_forecast best_ratio(step_rates const& rates, double least = 0, double most = 1)
{
    detail::check(rates);
    if (!(least >= 0 && least <= most && most <= 1))
        throw invalid_argument("adamant: the ratio is to lie from " + detail::text(least) + " to " +
                               detail::text(most) + ", but it is a share, from 0 to 1");
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
