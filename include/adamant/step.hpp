// SPDX-License-Identifier: Apache-2.0
// One optimizer step over a shard or a list of shards, and the norm of gradients.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include <adamant/executor.hpp>
#include <adamant/formats.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/shard.hpp>
#include <adamant/detail/numerics/squares_total.hpp>

// The sum of squares of a gradient and the count of its non-finite elements, in one pass.

ADAMANT_BEGIN_NAMESPACE

/// Of n elements at any address: the block sums (see norm_block_elems), added exactly and rounded once, so the result
/// has the same bits for every instruction set and number of threads. Allocates nothing and reads the gradient once.
/// The caller applies a loss scale to the result. Throws invalid_argument for a null pointer with n > 0. Thread-safe.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float const* grad, std::size_t n);
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, bfloat16 const* grad, std::size_t n);
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float16 const* grad, std::size_t n);
/// The same of a type that is known at run time. Throws invalid_argument also for dtype::none.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, void const* grad, dtype type, std::size_t n);

/// The same added to a total, for the norm of several gradients: the root of to.rounded().sum. It is the same for any
/// order, and however gradients are cut at multiples of norm_block_elems. Nothing is added where it throws.
void add_squares(executor const& cpu, float const* grad, std::size_t n, squares_total& to);
void add_squares(executor const& cpu, bfloat16 const* grad, std::size_t n, squares_total& to);
void add_squares(executor const& cpu, float16 const* grad, std::size_t n, squares_total& to);
void add_squares(executor const& cpu, void const* grad, dtype type, std::size_t n, squares_total& to);

/// Both over a vector, span or other contiguous range.
template <class Range>
    requires requires(Range const& r)
    {
        sum_of_squares(std::declval<executor const&>(), std::data(r), std::size(r));
    }
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, Range const& grad)
{
    return sum_of_squares(cpu, std::data(grad), std::size(grad));
}
template <class Range>
    requires requires(Range const& r)
    {
        sum_of_squares(std::declval<executor const&>(), std::data(r), std::size(r));
    }
void add_squares(executor const& cpu, Range const& grad, squares_total& to)
{
    add_squares(cpu, std::data(grad), std::size(grad), to);
}

// One optimizer step over one shard, or over all shards of a list.

/// What a step did, and with what.
struct step_report {
    std::size_t elements = 0;    ///< elements updated
    std::size_t bytes_moved = 0; ///< read and written, see shard::bytes_per_element
    std::uint64_t nonfinite_grads =
        0;                  ///< elements of grad that are infinite or NaN; they went into the step as they are
    isa tier = isa::scalar; ///< instruction set
    unsigned threads = 0;   ///< threads that did the work
};

/// From this many elements on, weight_out is stored past the caches: the step does not read it again, and a cache would
/// read each line before it is overwritten. A smaller one may be read from cache next.
inline constexpr std::size_t stream_weight_out_from_elems = std::size_t{1} << 22;

/// One step of Adam or AdamW, in place, on every element of the shard; reference::update is the formula. The result has
/// the same bits for every instruction set, number of threads and cut of the shard. Allocates nothing. May be called
/// from several threads concurrently for shards that do not overlap. The caller's floating-point mode neither matters
/// nor changes. Throws, before anything is written, only what team::submit() throws: after a fork, or in a task of the
/// executor's own team.
step_report step(executor const& cpu, any_shard const& shard, coefficients const& c);

/// The same from hyperparameters. step_number counts from 1. Nothing is remembered between calls, so every call gives
/// all values. Throws what make_coefficients() throws, before anything is written.
step_report step(executor const& cpu, any_shard const& shard, hyperparameters const& hyper, std::uint64_t step_number,
                 grad_scaling const& scaling = {});

/// The same for all shards of a list, in one hand-over to the threads, so that ten thousand small shards take the time
/// of one of their total size. group_coefficients: one for each parameter group of the list, in order. Throws
/// invalid_argument, before anything is written, where there are fewer than groups, and what the others throw.
step_report step(executor const& cpu, shard_list const& shards, std::span<coefficients const> group_coefficients);

/// The same from hyperparameters, for all groups alike.
step_report step(executor const& cpu, shard_list const& shards, hyperparameters const& hyper, std::uint64_t step_number,
                 grad_scaling const& scaling = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/step/grad_norm.ipp>
#include <adamant/detail/step/step.ipp>
#endif
