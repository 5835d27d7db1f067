// SPDX-License-Identifier: Apache-2.0
// The measurement of `adamant plan --measure`: real steps on this machine's CPU, for about a second.

#include "plan_measure.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/tune.hpp>

#include "cores_text.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t elems = std::size_t{1} << 24; // 268 MB with float32 state, no cache holds that
constexpr std::chrono::milliseconds min_time{800};
constexpr std::size_t most_steps = 200;

} // namespace

measured_rate measure_cpu(plan_request const& r)
{
    shard_format const* const format = find_format({r.param, r.grad, r.exp_avg, r.exp_avg_sq, r.weight_out});
    if (format == nullptr)
        throw invalid_argument("adamant: there is no step for these types");
    executor const cpu;
    trial_step arrays(cpu, *format, elems);
    using clock = std::chrono::steady_clock;
    std::vector<double> times;
    clock::time_point const begin = clock::now();
    for (std::size_t t = 0; t < 5 || (clock::now() - begin < min_time && t < most_steps); ++t)
        if (double const seconds = arrays.seconds(cpu); t >= 2) // the first ones warm up caches and pages
            times.push_back(seconds);
    measured_rate result;
    result.bytes_per_s = static_cast<double>(step_bytes(format->types, elems)) / median(times);
    result.source = "measured here (" + std::string(name(cpu.tier())) + ", " + plural(cpu.threads(), "thread") +
                    "); a rank must run on such a machine, on as many cores";
    return result;
}

} // namespace cli
