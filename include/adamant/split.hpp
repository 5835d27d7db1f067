// SPDX-License-Identifier: Apache-2.0
// Which part of the shards runs on the CPU, and the best ratio.
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

// From a ratio to a placement: which shards, and parts of shards, the CPU steps, and which the device. Pure functions.

ADAMANT_BEGIN_NAMESPACE

/// Which cuts are allowed.
enum class split_unit : std::uint8_t {
    element,   ///< one shard is cut, at a multiple of norm_block_elems: the ratio is met to half of that
    shard,     ///< no cut: the nearest set of whole shards; the order chooses between shards of one size
    deepspeed, ///< no cut, DeepSpeed's rule: the first int((1 - ratio) * n) of n go to the device, whatever their sizes
};

/// Which shards go to the device first.
enum class split_order : std::uint8_t {
    /// Those that were added first. With shards in the order in which forward uses them, backward makes their gradients
    /// last and forward needs their weights first. So the CPU's shards leave time to hide its work in.
    front,
    back, ///< the last ones
};

/// What split() is asked.
struct split_request {
    double ratio = 1; ///< the share of the elements that the CPU steps: `ratio` in DeepSpeed's offload_optimizer
    split_unit unit = split_unit::element;  ///< what may be divided
    split_order order = split_order::front; ///< which shards the device gets first
    /// The numbers of all shards, in the order in which they go to the device; empty: as `order` says. `order` also
    /// says whether the shard that is cut gives its beginning or its end to the device. Not for split_unit::deepspeed,
    /// which has its own order.
    std::vector<std::size_t> device_order = {};
    /// Limits by memory, in elements.
    std::optional<std::size_t> most_on_cpu = {};
    std::optional<std::size_t> most_on_device = {}; ///< elements that fit on the device
};

/// sizes: of the shards, in elements, in the optimizer's order. Where a limit does not allow the ratio, the placement
/// keeps the limit and says so (placement::limited). Throws invalid_argument for an impossible request or more than
/// 2^53 elements; and unavailable where both memories together are too small, where no cut in this order or no set of
/// whole shards fits them, and where a limit does not allow what split_unit::deepspeed prescribes. Pure.
[[nodiscard]] placement split(std::vector<std::size_t> const& sizes, split_request const& request);

/// Consecutive parameters that are stepped together.
struct subgroup {
    std::size_t first_param = 0; ///< index of the first param
    std::size_t params = 0;      ///< number of params
    std::size_t elems = 0;       ///< of one rank
};

/// The subgroups that DeepSpeed's ZeRO stage 3 forms of one parameter group. Parameters are added in order, each with
/// one rank's share of its elements (rounded up). Once a subgroup has sub_group_size elements or more, the next one
/// begins. Throws invalid_argument for a sub_group_size or number of ranks of 0. Pure. Source:
/// deepspeed/runtime/zero/stage3.py.
[[nodiscard]] std::vector<subgroup> form_subgroups(std::vector<std::size_t> const& param_sizes,
                                                   std::size_t sub_group_size, std::size_t ranks = 1);

// The rates of both sides of a step and of the link between them, and how long a step takes, as plain data.

/// The parts of a training step, for one rank. A rate that limits nothing is infinite.
struct step_rates {
    double elems = 0;                                                 ///< of the optimizer, both sides together
    double cpu_elems_per_s = std::numeric_limits<double>::infinity(); ///< elements that the CPU updates a second
    /// Elements that the device updates a second.
    double device_elems_per_s = std::numeric_limits<double>::infinity();
    double down_bytes_per_s = std::numeric_limits<double>::infinity(); ///< from the device to the host
    double up_bytes_per_s = std::numeric_limits<double>::infinity();   ///< host to device
    double grad_bytes = 2;                                             ///< for each element that crosses the link
    double weight_bytes = 2;                                           ///< bytes of a published weight
    /// Where gradients are made and weights are needed. If on the device, the CPU's part of them crosses the link:
    /// gradients down, weights up. If in host memory, the device's part does: gradients up, weights down.
    bool arrays_on_device = true;
    double backward_s = 0; ///< duration of backward
    double forward_s = 0;  ///< duration of forward
    double fixed_s = 0;    ///< in each step, at any ratio
    /// Whether shards are submitted as backward makes their gradients; otherwise all of the optimizer's work follows
    /// it.
    bool overlaps_backward = true;
    /// Whether forward begins with the first new weights, while the CPU's still arrive; otherwise it waits for all.
    bool overlaps_forward = false;
};

/// What is busy from when to when, in seconds from the beginning of backward.
enum class forecast_row : std::uint8_t { backward, down, cpu, up, device, forward };
[[nodiscard]] constexpr char const* name(forecast_row of) noexcept
{
    constexpr char const* names[] = {"backward", "down", "cpu", "up", "device", "forward"};
    return names[static_cast<std::size_t>(of)];
}
/// Work in a row of the forecast, from begin to end.
struct forecast_span {
    forecast_row on; ///< the row
    double begin_s;  ///< seconds from the beginning of the step
    double end_s;    ///< seconds from the beginning of the step
};

/// Time of a step at a ratio.
struct step_forecast {
    double ratio = 1;                               ///< share of elements on the CPU
    double step_s = 0;                              ///< backward, optimizer, fixed time, and forward
    double update_s = 0;                            ///< step_s without backward and forward
    forecast_row bound_by = forecast_row::backward; ///< the row that would have to be faster for a shorter step
    std::vector<forecast_span> timeline;            ///< what runs when
};

// How long each part of a step takes, as linear functions of the ratio. The step takes the maximum of them.

namespace detail {

// A time as a function of the ratio, with one term for each side, so that a side without elements adds exactly nothing.
struct ratio_line {
    forecast_row of;
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

// For each row the time of a step that waits for nothing else; the step takes as long as the longest. The rows of one
// side work at the same time, so a side takes as long as its slowest row. Backward makes the CPU's gradients first, at
// an even rate; the device's part begins when backward has finished. (Backward is a row of the CPU's side, too, but
// never the longest there: the CPU's gradients are complete before all gradients are.)
inline std::vector<ratio_line> lines_of(step_rates const& r)
{
    whole_times const all = times_of_all(r);
    // While forward runs, it needs the CPU's weights only after the device's layers.
    double const cpu_layers = r.overlaps_forward ? r.forward_s : 0;
    double const cpu_fixed =
        (r.overlaps_backward ? 0 : r.backward_s) + r.fixed_s + (r.overlaps_forward ? 0 : r.forward_s);
    double const device_fixed = r.backward_s + r.fixed_s + r.forward_s;
    // The first of equals is named: a row without work at this ratio is never longer than this one.
    std::vector<ratio_line> lines{
        {r.backward_s > 0 ? forecast_row::backward : forecast_row::forward, device_fixed, 0, 0},
        {forecast_row::device, device_fixed, 0, all.device},
        {forecast_row::cpu, cpu_fixed, all.cpu + cpu_layers, 0}};
    for (auto const& [of, time] : {std::pair{forecast_row::down, all.down}, std::pair{forecast_row::up, all.up}})
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

// The ratio with the shortest step, from the rates of CPU, device and link, and the timeline that it predicts. Pure
// functions.

/// How long a step with this ratio (from 0 to 1) takes. Throws invalid_argument for impossible rates, times or ratios.
[[nodiscard]] step_forecast forecast(step_rates const& rates, double ratio);

/// The ratio from `least` to `most` (bounds by memory, for example) with the shortest step; of several the largest,
/// which leaves the device the most memory. The time is the maximum of a few linear functions of the ratio, so the best
/// ratio is where two of them cross, or a bound. Throws invalid_argument as forecast() does, and where least is above
/// most.
[[nodiscard]] step_forecast best_ratio(step_rates const& rates, double least = 0, double most = 1);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/device/best_ratio.ipp>
#include <adamant/detail/device/split.ipp>
#endif
