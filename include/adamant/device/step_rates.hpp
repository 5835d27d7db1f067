// SPDX-License-Identifier: Apache-2.0
// The rates of both sides of a step and of the link between them, and how long a step takes, as plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <adamant/core/error.hpp>

ADAMANT_BEGIN_NAMESPACE

// The parts of a training step, for one rank. A rate that limits nothing is infinite.
struct step_rates {
    double elems = 0; // of the optimizer, both sides together
    double cpu_elems_per_s = std::numeric_limits<double>::infinity();
    double device_elems_per_s = std::numeric_limits<double>::infinity();
    double down_bytes_per_s = std::numeric_limits<double>::infinity(); // from the device to the host
    double up_bytes_per_s = std::numeric_limits<double>::infinity();
    double grad_bytes = 2; // for each element that crosses the link
    double weight_bytes = 2;
    // Where gradients are made and weights are needed. If on the device, the CPU's part of them crosses the link:
    // gradients down, weights up. If in host memory, the device's part does: gradients up, weights down.
    bool arrays_on_device = true;
    double backward_s = 0;
    double forward_s = 0;
    double fixed_s = 0; // in each step, at any ratio
    // Whether shards are submitted as backward makes their gradients; otherwise all of the optimizer's work follows it.
    bool overlaps_backward = true;
    // Whether forward begins with the first new weights, while the CPU's still arrive; otherwise it waits for all.
    bool overlaps_forward = false;
};

// What is busy from when to when, in seconds from the beginning of backward.
enum class forecast_lane : std::uint8_t { backward, down, cpu, up, device, forward };
[[nodiscard]] constexpr char const* name(forecast_lane of) noexcept
{
    constexpr char const* names[] = {"backward", "down", "cpu", "up", "device", "forward"};
    return names[static_cast<std::size_t>(of)];
}
struct forecast_span {
    forecast_lane on;
    double begin_s;
    double end_s;
};

struct step_forecast {
    double ratio = 1;
    double step_s = 0;                                // backward, optimizer, fixed time, and forward
    double update_s = 0;                              // step_s without backward and forward
    forecast_lane bound_by = forecast_lane::backward; // the lane that would have to be faster for a shorter step
    std::vector<forecast_span> timeline;
};

ADAMANT_END_NAMESPACE
