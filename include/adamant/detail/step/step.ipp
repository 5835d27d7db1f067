// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/step.hpp>: steps over shards.
#pragma once

#include <atomic>
#include <string>

#include <adamant/error.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/shard.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/core/stream_copy.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/step/large_pieces.hpp>
#include <adamant/detail/step/small_pieces.hpp>
#include <adamant/detail/step/step_elements.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL step_report step(executor const& cpu, any_shard const& shard, coefficients const& c)
{
    std::size_t const n = shard.size();
    kernel::memory_access const access{n >= stream_weight_out_from_elems, cpu.prefetch_bytes()};
    std::atomic<std::uint64_t> nonfinite{0};
    unsigned const threads = cpu.for_each_slice(n, [&](slice part) {
        std::uint64_t const found = detail::step_elements(shard, cpu.tier(), part.begin, part.end, c, access);
        if (found != 0) // a locked instruction would wait for all stores of the step
            nonfinite.fetch_add(found, std::memory_order_relaxed);
    });
    return {n, shard.bytes_moved(), nonfinite.load(std::memory_order_relaxed), cpu.tier(), threads};
}

ADAMANT_DECL step_report step(executor const& cpu, any_shard const& shard, hyperparameters const& hyper,
                              std::uint64_t step_number, grad_scaling const& scaling)
{
    return step(cpu, shard, make_coefficients(hyper, step_number, scaling));
}

ADAMANT_DECL step_report step(executor const& cpu, shard_list const& shards,
                              std::span<coefficients const> group_coefficients)
{
    if (group_coefficients.size() < shards.groups())
        detail::throw_invalid_argument({"cannot step a list with ", shards.groups(),
                                        " parameter groups: coefficients were passed for ", group_coefficients.size(),
                                        ". Pass coefficients for each group."});
    kernel::memory_access access{shards.elements() >= stream_weight_out_from_elems, cpu.prefetch_bytes()};
    access.fences = false; // each thread has one fence for all its shards
    std::atomic<std::uint64_t> nonfinite{0};
    // Shards are laid end to end, each padded to a granule; for_each_piece() skips the padding.
    unsigned const threads = cpu.for_each_slice(shards.granules() * granule_elems, [&](slice part) {
        float_mode_scope const mode(subnormals::flushed); // set once for all shards
        detail::small_pieces batched(cpu.tier(), group_coefficients);
        detail::large_pieces pipelined(cpu.tier(), group_coefficients, access, shards.elements());
        shards.for_each_piece(part.begin / granule_elems, part.end / granule_elems,
                              [&](grouped_shard const& s, std::size_t begin, std::size_t end) {
                                  if (batched.can_take(s, end - begin))
                                      batched.add(s, begin, end);
                                  else
                                      pipelined.add(s, begin, end);
                              });
        if (std::uint64_t const found = pipelined.finish() + batched.finish(); found != 0)
            nonfinite.fetch_add(found, std::memory_order_relaxed);
        if (access.stream)
            detail::stream_fence();
    });
    return {shards.elements(), shards.bytes_moved(), nonfinite.load(std::memory_order_relaxed), cpu.tier(), threads};
}

ADAMANT_DECL step_report step(executor const& cpu, shard_list const& shards, hyperparameters const& hyper,
                              std::uint64_t step_number, grad_scaling const& scaling)
{
    coefficients const c = make_coefficients(hyper, step_number, scaling);
    if (shards.groups() > 1)
        detail::throw_invalid_argument({"cannot step a list with ", shards.groups(),
                                        " parameter groups with one set of hyperparameters. Pass coefficients from "
                                        "make_coefficients() for each group."});
    return step(cpu, shards, std::span(&c, 1));
}

ADAMANT_END_NAMESPACE
