// SPDX-License-Identifier: Apache-2.0
// One optimizer step over one shard, or over all shards of a list.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <adamant/core/error.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/kernel/dispatch.hpp>
#include <adamant/shard/shard.hpp>
#include <adamant/shard/shard_list.hpp>
#include <adamant/step/small_pieces.hpp>

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
                            std::size_t n, std::size_t bytes_per_element, coefficients const& c)
{
    kernel::memory_access const how{n >= stream_weight_out_from_elems, cpu.prefetch_bytes()};
    std::atomic<std::uint64_t> nonfinite{0};
    unsigned const threads = cpu.for_each_slice(n, [&](slice part) {
        nonfinite.fetch_add(run(arrays, part.begin, part.end, c, how), std::memory_order_relaxed);
    });
    return {n, n * bytes_per_element, nonfinite.load(std::memory_order_relaxed), cpu.tier(), threads};
}

} // namespace detail

// Adam or AdamW, once, in place, on every element of the shard: see oracle::update for the formula. Bit for bit the
// same for every instruction set, number of threads and cut of the shard. Allocates nothing. Safe to call from several
// threads at once for shards that do not overlap. The caller's floating-point mode neither matters nor changes. Throws,
// before anything is written, only what team::submit() throws: after a fork, or in a task of the executor's own team.
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
step_report step(executor const& cpu, shard<Param, Grad, ExpAvg, ExpAvgSq, WeightOut> const& shard,
                 coefficients const& c)
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

// The same for all shards of a list, in one hand-over to the threads, so that ten thousand small ones take the time of
// one of their total size. coefficients: one for each parameter group of the list, in order. Throws invalid_argument,
// before anything is written, where there are fewer than groups, and what the others throw.
inline step_report step(executor const& cpu, shard_list const& shards, std::span<coefficients const> group_coefficients)
{
    if (group_coefficients.size() < shards.groups())
        throw invalid_argument("adamant: the list has " + std::to_string(shards.groups()) +
                               " parameter groups, but there are coefficients for " +
                               std::to_string(group_coefficients.size()) + "; give one for each group");
    kernel::memory_access const how{shards.elements() >= stream_weight_out_from_elems, cpu.prefetch_bytes()};
    std::atomic<std::uint64_t> nonfinite{0};
    // On the line of granules the shards are one range of elements, some of which do not exist.
    unsigned const threads = cpu.for_each_slice(shards.granules() * shard_list::granule_elems, [&](slice part) {
        float_mode_scope const mode(subnormals::flushed); // set once for all shards
        std::uint64_t found = 0;
        detail::small_pieces small(cpu.tier(), group_coefficients);
        shards.for_each_piece(part.begin / shard_list::granule_elems, part.end / shard_list::granule_elems,
                              [&](grouped_shard const& s, std::size_t begin, std::size_t end) {
                                  if (small.takes(end - begin))
                                      small.add(s, begin, end);
                                  else
                                      found += s.shard.step_for(cpu.tier())(s.shard.pointers(), begin, end,
                                                                            group_coefficients[s.group], how);
                              });
        nonfinite.fetch_add(found + small.finish(), std::memory_order_relaxed);
    });
    return {shards.elements(), shards.bytes_moved(), nonfinite.load(std::memory_order_relaxed), cpu.tier(), threads};
}

// The same from hyperparameters, for all groups alike.
inline step_report step(executor const& cpu, shard_list const& shards, hyperparameters const& hyper,
                        std::uint64_t step_number, grad_scaling const& scaling = {})
{
    coefficients const c = make_coefficients(hyper, step_number, scaling);
    if (shards.groups() > 1)
        throw invalid_argument("adamant: the list has " + std::to_string(shards.groups()) +
                               " parameter groups; give coefficients for each, from make_coefficients()");
    return step(cpu, shards, std::span(&c, 1));
}

ADAMANT_END_NAMESPACE
