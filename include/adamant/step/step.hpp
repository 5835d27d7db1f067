// SPDX-License-Identifier: Apache-2.0
// One optimizer step over one shard.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <adamant/exec/executor.hpp>
#include <adamant/kernel/dispatch.hpp>
#include <adamant/shard/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

// What a step did, and with what.
struct step_report {
    std::size_t elements = 0;
    std::size_t bytes_moved = 0;       // read and written, see shard::bytes_per_element
    std::uint64_t nonfinite_grads = 0; // elements of grad that are infinite or NaN; they went into the step as they are
    isa tier = isa::scalar;
    unsigned threads = 0;
};

// From this many elements on, weight_out is stored past the caches: nobody here reads it again, and a cache would read
// each line before it is overwritten. A smaller one may well be read from cache next.
inline constexpr std::size_t stream_weight_out_from_elems = std::size_t{1} << 22;

namespace detail {

// One step over n elements by a kernel that is already chosen.
inline step_report run_step(executor const& cpu, kernel::step_function run, kernel::step_pointers const& arrays,
                            std::size_t n, std::size_t bytes_per_element, coefficients const& c) noexcept
{
    bool const stream = n >= stream_weight_out_from_elems;
    std::atomic<std::uint64_t> nonfinite{0};
    unsigned const threads = cpu.for_each_slice(n, [&](slice part) {
        nonfinite.fetch_add(run(arrays, part.begin, part.end, c, stream), std::memory_order_relaxed);
    });
    return {n, n * bytes_per_element, nonfinite.load(std::memory_order_relaxed), cpu.tier(), threads};
}

} // namespace detail

// Adam or AdamW, once, in place, on every element of the shard: see oracle::update for the formula. Bit for bit the
// same for every instruction set, number of threads and cut of the shard. Allocates nothing. Safe to call from several
// threads at once for shards that do not overlap. The caller's floating-point mode neither matters nor changes.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
step_report step(executor const& cpu, shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& shard,
                 coefficients const& c) noexcept
{
    return detail::run_step(cpu, kernel::step_for<Param, Grad, ExpAvg, ExpAvgSq, WeightOut>(cpu.tier()),
                            shard.pointers(), shard.size(), shard.bytes_per_element(), c);
}

// The same from hyperparameters: step number `step_number` counts from 1, and nothing is remembered between calls, so
// every call says them all. Throws what make_coefficients() throws, before anything is written.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
step_report step(executor const& cpu, shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& shard,
                 hyperparameters const& hyper, std::uint64_t step_number, grad_scaling const& scaling = {})
{
    return step(cpu, shard, make_coefficients(hyper, step_number, scaling));
}

ADAMANT_END_NAMESPACE
