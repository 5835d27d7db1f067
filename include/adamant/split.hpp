// SPDX-License-Identifier: Apache-2.0
// split(): divides shards between CPU and device. forecast(), best_ratio(): step times and the best ratio. Pure.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/error.hpp>

// split() turns a ratio into a placement, which says which shards and parts of shards the CPU updates and which the
// device updates.

ADAMANT_BEGIN_NAMESPACE

/// How shards may be divided.
enum class split_unit : std::uint8_t {
    element,   ///< divides one shard, at a multiple of norm_block_elems: half of that is the largest error
    shard,     ///< whole shards only, see placement::nearest; the order decides among equal sizes
    deepspeed, ///< whole shards by DeepSpeed's rule: the first int((1 - ratio) * n) of n shards go to the device
};

/// Which shards go to the device first.
enum class split_order : std::uint8_t {
    /// The shards that were added first. If shards are in forward order, the device gets the first layers: backward
    /// produces their gradients last, and forward needs their weights first. So the CPU's work on the other layers
    /// overlaps the end of backward and the beginning of forward.
    front,
    back, ///< the shards that were added last
};

/// Request to split().
struct split_request {
    double ratio = 1; ///< the share of the elements that the CPU steps: `ratio` in DeepSpeed's offload_optimizer
    split_unit unit = split_unit::element;  ///< how shards may be divided
    split_order order = split_order::front; ///< which shards the device gets first
    /// The numbers of all shards, in the order in which they go to the device; empty: by `order`. In both cases
    /// `order` decides whether the device gets the beginning or the end of the divided shard. Not for
    /// split_unit::deepspeed, which has its own order.
    std::vector<std::size_t> device_order = {};
    std::optional<std::size_t> most_on_cpu = {};    ///< elements that fit in host memory
    std::optional<std::size_t> most_on_device = {}; ///< elements that fit on the device
};

/// Divides shards between CPU and device.
///
/// sizes: elements of each shard, in the optimizer's order. If a limit does not allow the ratio, the placement obeys
/// the limit, and placement::limited is true. Pure.
/// @throws invalid_argument for an invalid request or more than 2^53 elements
/// @throws unavailable if the elements do not fit into both memories together, if a limit does not allow the result of
/// split_unit::deepspeed, or if no placement is found within both limits. split_unit::element tries those with one
/// boundary, at a multiple of norm_block_elems, in the requested order; split_unit::shard tries sets of whole shards
[[nodiscard]] placement split(std::vector<std::size_t> const& sizes, split_request const& request);

/// Consecutive parameters that are stepped together.
struct subgroup {
    std::size_t first_param = 0; ///< index of the first param
    std::size_t params = 0;      ///< number of params
    std::size_t elems = 0;       ///< elements of one rank
};

/// Forms the subgroups of one parameter group as DeepSpeed's ZeRO stage 3 does.
///
/// Parameters are added in order, each with one rank's share of its elements (rounded up). Once a subgroup has
/// sub_group_size elements or more, the next one begins. Source: deepspeed/runtime/zero/stage3.py. Pure.
/// @throws invalid_argument if sub_group_size or ranks is 0
[[nodiscard]] std::vector<subgroup> form_subgroups(std::vector<std::size_t> const& param_sizes,
                                                   std::size_t sub_group_size, std::size_t ranks = 1);

// Rates of CPU, device and link, and the time of a step, as plain data.

/// Rates and times of one rank's training step. A rate is infinite if it does not limit the step.
struct step_rates {
    double elems = 0;                                                 ///< elements of the optimizer on CPU and device
    double cpu_elems_per_s = std::numeric_limits<double>::infinity(); ///< elements that the CPU updates per second
    /// Elements that the device updates per second.
    double device_elems_per_s = std::numeric_limits<double>::infinity();
    double down_bytes_per_s = std::numeric_limits<double>::infinity(); ///< device to host
    double up_bytes_per_s = std::numeric_limits<double>::infinity();   ///< host to device
    double grad_bytes = 2;                                             ///< bytes of a gradient on the link
    double weight_bytes = 2;                                           ///< bytes of a published weight
    /// Whether gradients are made and weights are needed on the device. If so, the CPU's part of them crosses the link:
    /// gradients down, weights up. If they are in host memory, the device's part does: gradients up, weights down.
    bool arrays_on_device = true;
    double backward_s = 0; ///< duration of backward
    double forward_s = 0;  ///< duration of forward
    double fixed_s = 0;    ///< additional time of each step at any ratio
    /// Whether shards are submitted as backward makes their gradients; otherwise the optimizer starts after backward.
    bool overlaps_backward = true;
    /// Whether forward begins with the first new weights, while weights from the CPU still arrive; otherwise it waits
    /// for all.
    bool overlaps_forward = false;
};

/// Rows of a forecast's timeline.
enum class forecast_row : std::uint8_t { backward, down, cpu, up, device, forward };
[[nodiscard]] constexpr char const* name(forecast_row row) noexcept
{
    constexpr char const* names[] = {"backward", "down", "cpu", "up", "device", "forward"};
    return names[static_cast<std::size_t>(row)];
}
/// Work in a row of the forecast, from begin to end.
struct forecast_span {
    forecast_row row; ///< the row
    double begin_s;   ///< seconds from the beginning of the step
    double end_s;     ///< seconds from the beginning of the step
};

/// Time of a step at a ratio.
struct step_forecast {
    double ratio = 1;                               ///< share of elements on the CPU
    double step_s = 0;                              ///< backward, optimizer, fixed time, and forward
    double update_s = 0;                            ///< step_s without backward and forward
    forecast_row bound_by = forecast_row::backward; ///< the bottleneck
    std::vector<forecast_span> timeline;            ///< work of each row
};

// Times of the parts of a step as linear functions of the ratio. The step takes the maximum of them.

namespace detail {

// A time as a function of the ratio, with one term for each backend, so that a backend without elements adds exactly 0.
struct ratio_line {
    forecast_row row;
    double fixed;
    double on_cpu;
    double on_device;
    [[nodiscard]] double seconds(double ratio) const noexcept
    {
        return fixed + on_cpu * ratio + on_device * (1 - ratio);
    }
    [[nodiscard]] double slope() const noexcept { return on_cpu - on_device; }
};

// The time of each row for all elements.
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
    auto const refuse = [](char const* key, double value, char const* rule) {
        throw_invalid_argument({key, " is ", value, ", but must be ", rule});
    };
    auto const rate = [&](char const* key, double value) {
        if (!(value > 0))
            refuse(key, value, "above 0, or infinite if it does not limit the step");
    };
    auto const time = [&](char const* key, double value) {
        if (!std::isfinite(value) || value < 0)
            refuse(key, value, "a finite number, 0 or above");
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
    whole_times const times = times_of_all(r);
    time("a step at these rates",
         times.cpu + times.device + times.down + times.up + r.backward_s + r.forward_s + r.fixed_s);
}

// Returns, for each row, the time that a step would take if it waited only for this row. The step takes the longest of
// these times. The rows of one backend work concurrently, so a backend takes as long as its slowest row. Backward makes
// the CPU's gradients first, at a constant rate; the device's part begins when backward has finished. (The CPU backend
// also waits for its gradients. This wait is never the longest time, because these gradients are complete before
// backward ends.)
inline std::vector<ratio_line> lines_of(step_rates const& r)
{
    whole_times const times = times_of_all(r);
    // Forward needs the CPU's weights only after the device's layers.
    double const cpu_layers = r.overlaps_forward ? r.forward_s : 0;
    double const cpu_fixed =
        (r.overlaps_backward ? 0 : r.backward_s) + r.fixed_s + (r.overlaps_forward ? 0 : r.forward_s);
    double const device_fixed = r.backward_s + r.fixed_s + r.forward_s;
    // Of equally long rows the first in this list is reported. A row without work at this ratio is never longer than
    // the first row, so it is not reported.
    std::vector<ratio_line> lines{
        {r.backward_s > 0 ? forecast_row::backward : forecast_row::forward, device_fixed, 0, 0},
        {forecast_row::device, device_fixed, 0, times.device},
        {forecast_row::cpu, cpu_fixed, times.cpu + cpu_layers, 0}};
    for (auto const& [row, time] : {std::pair{forecast_row::down, times.down}, std::pair{forecast_row::up, times.up}})
        lines.push_back(r.arrays_on_device ? ratio_line{row, cpu_fixed, time + cpu_layers, 0}
                                           : ratio_line{row, device_fixed, 0, time});
    return lines;
}

inline ratio_line const& longest(std::vector<ratio_line> const& lines, double ratio)
{
    return *std::max_element(lines.begin(), lines.end(), [&](ratio_line const& a, ratio_line const& b) {
        return a.seconds(ratio) < b.seconds(ratio);
    });
}

} // namespace detail

// forecast() predicts the time and the timeline of a step; best_ratio() finds the ratio with the shortest step.

/// Forecasts a step with this ratio, from 0 to 1. Throws invalid_argument for invalid rates, times or ratios.
[[nodiscard]] step_forecast forecast(step_rates const& rates, double ratio);

/// Finds the ratio from `least` to `most` (limits of memory, for example) with the shortest step.
///
/// If several ratios have the shortest step, returns the largest of them, which leaves the most device memory free. The
/// time is the maximum of a few linear functions of the ratio, so the best ratio is a crossing of two of them or a
/// bound. Throws invalid_argument as forecast() does, and if least is above most.
[[nodiscard]] step_forecast best_ratio(step_rates const& rates, double least = 0, double most = 1);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/device/best_ratio.ipp>
#include <adamant/detail/device/split.ipp>
#endif
