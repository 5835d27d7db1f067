// SPDX-License-Identifier: Apache-2.0
// How fast both sides of a step and the link between them are, and how long a step takes at that, as plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
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

ADAMANT_END_NAMESPACE
