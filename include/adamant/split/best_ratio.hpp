// SPDX-License-Identifier: Apache-2.0
// The ratio that makes a step shortest, from the rates of everybody who takes part, with the timeline that it predicts.
// Pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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
    // Where gradients are made and weights are wanted. On the device, the CPU's part of them crosses the link: gradients
    // down, weights up. In host memory, the device's part does: gradients up, weights down.
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
    double step_s = 0;  // backward, optimizer and forward
    double update_s = 0; // what the optimizer adds to backward and forward
    lane bound_by = lane::backward; // what would have to be faster for the step to be
    std::vector<time_span> timeline;
};

namespace detail {

// The end of something as a function of the ratio: begin + slope * ratio.
struct ratio_line {
    lane of;
    double begin;
    double slope;
    [[nodiscard]] double at(double ratio) const noexcept { return begin + slope * ratio; }
};

inline void check(step_rates const& r)
{
    auto const refuse = [](char const* what, double value, char const* rule) {
        throw invalid_argument("adamant: " + std::string(what) + " is " + std::to_string(value) + ", but must be " +
                               rule);
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
}

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

// When each would be done if it were alone, on a line that forward's end adds to alike: the step takes as long as the
// latest. Work of one side flows through its lanes at once, so a side takes as long as its slowest lane. The CPU's
// gradients are those that backward makes first, evenly; the device steps when backward is through with it.
inline std::vector<ratio_line> ends(step_rates const& r)
{
    whole_times const all = times_of_all(r);
    double const cpu_from = r.overlaps_backward ? 0 : r.backward_s;
    // With forward running, the CPU's weights are wanted when it has done the device's layers.
    double const cpu_forward = r.overlaps_forward ? r.forward_s : 0;
    double const cpu_then = r.fixed_s + (r.overlaps_forward ? 0 : r.forward_s);
    double const device_then = r.backward_s + r.fixed_s + r.forward_s;
    std::vector<ratio_line> lines{{lane::backward, device_then, 0},
                                  {lane::device, device_then + all.device, -all.device},
                                  {lane::cpu, cpu_from + cpu_then, all.cpu + cpu_forward}};
    if (r.overlaps_backward)
        lines.push_back({lane::backward, cpu_then, r.backward_s + cpu_forward});
    for (auto const& [of, time] : {std::pair{lane::down, all.down}, std::pair{lane::up, all.up}})
        lines.push_back(r.arrays_on_device ? ratio_line{of, cpu_from + cpu_then, time + cpu_forward}
                                           : ratio_line{of, device_then + time, -time});
    return lines;
}

inline ratio_line const& latest(std::vector<ratio_line> const& lines, double ratio)
{
    return *std::max_element(lines.begin(), lines.end(), [&](ratio_line const& a, ratio_line const& b) {
        return a.at(ratio) < b.at(ratio);
    });
}

} // namespace detail

// What a step with this ratio (from 0 to 1) takes. Throws invalid_argument for rates, times or a ratio that cannot be.
[[nodiscard]] inline step_forecast forecast(step_rates const& rates, double ratio)
{
    detail::check(rates);
    if (!(ratio >= 0 && ratio <= 1))
        throw invalid_argument("adamant: ratio is " + std::to_string(ratio) +
                               ", but it is the CPU's share of the elements, from 0 to 1");
    std::vector<detail::ratio_line> const lines = detail::ends(rates);
    detail::ratio_line const& last = detail::latest(lines, ratio);
    detail::whole_times const all = detail::times_of_all(rates);
    step_forecast result;
    result.ratio = ratio;
    result.step_s = last.at(ratio);
    result.update_s = result.step_s - rates.backward_s - rates.forward_s;
    result.bound_by = last.of;
    double const forward_begin =
        rates.overlaps_forward ? rates.backward_s + rates.fixed_s + (1 - ratio) * all.device : result.step_s - rates.forward_s;
    double const cpu_from = rates.overlaps_backward ? 0 : rates.backward_s;
    double const crossing = rates.arrays_on_device ? ratio : 1 - ratio;
    double const crossing_from = rates.arrays_on_device ? cpu_from : rates.backward_s;
    auto const span = [&](lane on, double begin, double length) {
        if (length > 0)
            result.timeline.push_back({on, begin, begin + length});
    };
    // What flows through several lanes ends with the slowest of them.
    auto const flow = [&](lane on, double from, double length, double slowest) {
        span(on, from, std::min(std::max(length, slowest), result.step_s));
    };
    double const gradients = rates.overlaps_backward ? ratio * rates.backward_s : 0;
    double const first = rates.arrays_on_device ? std::max(gradients, crossing * all.down) : gradients;
    span(lane::backward, 0, rates.backward_s);
    if (rates.arrays_on_device) {
        flow(lane::down, crossing_from, crossing * all.down, crossing * all.down > 0 ? gradients : 0);
        flow(lane::cpu, cpu_from, ratio * all.cpu, ratio * all.cpu > 0 ? first : 0);
        flow(lane::up, crossing_from, crossing * all.up, crossing * all.up > 0 ? std::max(first, ratio * all.cpu) : 0);
        span(lane::device, rates.backward_s, (1 - ratio) * all.device);
    } else {
        flow(lane::cpu, cpu_from, ratio * all.cpu, ratio * all.cpu > 0 ? gradients : 0);
        span(lane::up, crossing_from, crossing * all.up);
        flow(lane::device, rates.backward_s, (1 - ratio) * all.device, crossing * all.device > 0 ? crossing * all.up : 0);
        flow(lane::down, crossing_from, crossing * all.down,
             crossing * all.down > 0 ? std::max(crossing * all.up, crossing * all.device) : 0);
    }
    span(lane::forward, forward_begin, result.step_s - forward_begin);
    return result;
}

// The ratio from `least` to `most` (which memory may have narrowed) with the shortest step; of several the largest,
// which leaves the device the most memory. The time is the largest of a few lines over the ratio, so the best is where
// two of them cross, or at a bound. Throws invalid_argument as forecast() does, and where least is above most.
[[nodiscard]] inline step_forecast best_ratio(step_rates const& rates, double least = 0, double most = 1)
{
    detail::check(rates);
    if (!(least >= 0 && least <= most && most <= 1))
        throw invalid_argument("adamant: the ratio is to lie from " + std::to_string(least) + " to " +
                               std::to_string(most) + ", but it is a share, from 0 to 1");
    std::vector<detail::ratio_line> const lines = detail::ends(rates);
    double best = most;
    double best_s = detail::latest(lines, most).at(most);
    auto const consider = [&](double ratio) {
        if (!(ratio >= least && ratio <= most))
            return;
        double const s = detail::latest(lines, ratio).at(ratio);
        // Crossings are rounded: what is better by less than that is no better.
        if (s < best_s * (1 - 1e-12) || (s <= best_s * (1 + 1e-12) && ratio > best)) {
            best = ratio;
            best_s = s;
        }
    };
    consider(least);
    for (std::size_t i = 0; i < lines.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
            consider((lines[j].begin - lines[i].begin) / (lines[i].slope - lines[j].slope));
    return forecast(rates, best);
}

ADAMANT_END_NAMESPACE
