// SPDX-License-Identifier: Apache-2.0
// What this machine's CPU does in a step: real ones, for about a second.

#include "plan_measure.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include <adamant/exec/executor.hpp>
#include <adamant/exec/memory.hpp>
#include <adamant/numerics/convert.hpp>
#include <adamant/step/step.hpp>

#include "../combinations.hpp"
#include "cores_text.hpp"

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t elems = std::size_t{1} << 24; // 268 MB with float32 state, no cache holds that
constexpr std::chrono::milliseconds at_least{800};
constexpr std::size_t most_steps = 200;

// Values as training has them, for these decide which path a kernel takes.
void fill(std::byte* at, dtype type, float value, slice part)
{
    for (std::size_t i = part.begin; i < part.end; ++i) {
        float const x = (i % 3 == 0 ? -value : value) * (1.0f + 0.01f * static_cast<float>(i % 61));
        if (type == dtype::float32)
            store_unaligned(at + 4 * i, x);
        else if (type == dtype::bfloat16)
            store_unaligned(at + 2 * i, narrow<bfloat16>(x));
        else
            store_unaligned(at + 2 * i, narrow<float16>(x));
    }
}

} // namespace

measured_rate measure_cpu(plan_request const& r)
{
    std::array<dtype, 5> const types = {r.param, r.grad, r.exp_avg, r.exp_avg_sq, r.weight_out};
    auto const& all = all_combinations();
    auto const entry = std::find_if(all.begin(), all.end(), [&](auto const& one) { return one.dtypes == types; });
    if (entry == all.end())
        throw invalid_argument("adamant: there is no step for these types");
    executor const cpu;
    std::size_t bytes = 0;
    for (dtype const type : types)
        bytes += elems * size_bytes(type);
    check_memory(bytes);
    std::vector<memory_block> blocks;
    for (dtype const type : types)
        blocks.emplace_back(elems * size_bytes(type));
    // Filled by who will step it, so that memory lies near it. Second moments stay at 0 and are made by the first step.
    cpu.for_each_slice(elems, [&](slice part) {
        for (std::size_t a = 0; a < types.size(); ++a)
            if (size_bytes(types[a]) != 0)
                blocks[a].touch(part.begin * size_bytes(types[a]), part.end * size_bytes(types[a]));
        fill(blocks[0].data(), types[0], 0.02f, part);
        fill(blocks[1].data(), types[1], 0.001f, part);
    });
    kernel::step_pointers const arrays{blocks[0].data(), blocks[1].data(), blocks[2].data(), blocks[3].data(),
                                       types[4] == dtype::none ? nullptr : blocks[4].data()};
    kernel::step_function const run = entry->step_for(cpu.tier());
    using clock = std::chrono::steady_clock;
    std::vector<double> times;
    unsigned threads = 0;
    clock::time_point const begin = clock::now();
    for (std::size_t t = 1; t <= 5 || (clock::now() - begin < at_least && t < most_steps); ++t) {
        coefficients const c = make_coefficients({.lr = 1e-5, .weight_decay = 0.01, .mode = decay_mode::decoupled}, t);
        clock::time_point const from = clock::now();
        threads = detail::run_step(cpu, run, arrays, elems, entry->bytes_per_element, c).threads;
        if (t > 2) // the first ones make the moments
            times.push_back(std::chrono::duration<double>(clock::now() - from).count());
    }
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    measured_rate result;
    result.bytes_per_s = static_cast<double>(elems * entry->bytes_per_element) / times[times.size() / 2];
    result.what = "measured here (" + std::string(name(cpu.tier())) + ", " + plural(threads, "thread") +
                  "); a rank is to run on such a machine, on as many cores";
    return result;
}

} // namespace cli
