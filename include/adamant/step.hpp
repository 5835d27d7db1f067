// SPDX-License-Identifier: Apache-2.0
// Optimizer steps over shards without an optimizer object, and the norm of gradients.
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

ADAMANT_BEGIN_NAMESPACE

/// Result of a step.
struct step_report {
    std::size_t elements = 0;          ///< elements that were updated
    std::size_t bytes_moved = 0;       ///< bytes read and written; see step_bytes()
    std::uint64_t nonfinite_grads = 0; ///< infinite or NaN elements of grad; the step used them unchanged
    isa tier = isa::scalar;            ///< instruction set
    unsigned threads = 0;              ///< number of threads
};

/// A step of at least this many elements writes weight_out with non-temporal stores.
///
/// The step does not read weight_out again, and a cache would read each line before it is overwritten. Smaller arrays
/// stay in cache for their next reader.
inline constexpr std::size_t stream_weight_out_from_elems = std::size_t{1} << 22;

/// Computes one step of Adam or AdamW in place on every element of a shard. reference::update() is the formula.
///
/// The result has the same bits for every instruction set, number of threads and sharding. Allocates nothing.
/// Thread-safe for shards that do not overlap. Neither depends on nor changes the caller's floating-point mode.
/// @throws unavailable  before anything is written: in a forked child process.
/// @throws invalid_argument  before anything is written: in a task of the executor's team.
step_report step(executor const& cpu, any_shard const& shard, coefficients const& c);

/// Computes one step of a shard from hyperparameters. Keeps no state between calls.
/// @param step_number  number of the step, counted from 1.
/// @throws invalid_argument  before anything is written: as make_coefficients() does, and as above.
/// @throws unavailable  before anything is written: in a forked child process.
step_report step(executor const& cpu, any_shard const& shard, hyperparameters const& hyper, std::uint64_t step_number,
                 grad_scaling const& scaling = {});

/// Computes one step of all shards of a list, in one handover to the threads.
///
/// Ten thousand small shards therefore take the time of one shard of their total size.
/// @param group_coefficients  coefficients of each parameter group of the list, in order.
/// @throws invalid_argument  before anything is written: if there are fewer coefficients than groups, and as above.
/// @throws unavailable  before anything is written: in a forked child process.
step_report step(executor const& cpu, shard_list const& shards, std::span<coefficients const> group_coefficients);

/// Computes one step of all shards of a list from hyperparameters that apply to all groups.
/// @throws invalid_argument, unavailable  before anything is written: as above.
step_report step(executor const& cpu, shard_list const& shards, hyperparameters const& hyper, std::uint64_t step_number,
                 grad_scaling const& scaling = {});

/// Returns the sum of squares of a gradient and the number of its non-finite elements. Thread-safe.
///
/// The block sums (see norm_block_elems) are added exactly and rounded once, so the result has the same bits for every
/// instruction set and number of threads. Reads the gradient once, allocates nothing, and does not apply a loss scale.
/// @param grad  n elements; any alignment.
/// @throws invalid_argument  for a null pointer with n > 0.
/// @throws unavailable, invalid_argument  as team::submit() does.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float const* grad, std::size_t n);
/// @overload
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, bfloat16 const* grad, std::size_t n);
/// @overload
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float16 const* grad, std::size_t n);
/// Returns the sum of squares of a gradient whose type is known at run time.
/// @throws invalid_argument  as above, and for a type that gradients cannot have.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, void const* grad, dtype type, std::size_t n);

/// Adds the sum of squares of a gradient to a total, for the norm of several gradients: sqrt(total.rounded().sum).
///
/// The total is independent of the order of additions and of sharding at multiples of norm_block_elems. The total is
/// unchanged if this throws.
/// @throws invalid_argument, unavailable  as sum_of_squares() does.
void add_squares(executor const& cpu, float const* grad, std::size_t n, squares_total& total);
/// @overload
void add_squares(executor const& cpu, bfloat16 const* grad, std::size_t n, squares_total& total);
/// @overload
void add_squares(executor const& cpu, float16 const* grad, std::size_t n, squares_total& total);
/// @overload
void add_squares(executor const& cpu, void const* grad, dtype type, std::size_t n, squares_total& total);

/// Returns the sum of squares of a vector, span or other contiguous range.
/// @throws unavailable, invalid_argument  as team::submit() does.
template <class Range>
    requires requires(Range const& r)
    {
        sum_of_squares(std::declval<executor const&>(), std::data(r), std::size(r));
    }
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, Range const& grad)
{
    return sum_of_squares(cpu, std::data(grad), std::size(grad));
}
/// Adds the sum of squares of a vector, span or other contiguous range to a total.
/// @throws unavailable, invalid_argument  as team::submit() does.
template <class Range>
    requires requires(Range const& r)
    {
        sum_of_squares(std::declval<executor const&>(), std::data(r), std::size(r));
    }
void add_squares(executor const& cpu, Range const& grad, squares_total& total)
{
    add_squares(cpu, std::data(grad), std::size(grad), total);
}

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/step/grad_norm.ipp>
#include <adamant/detail/step/step.ipp>
#endif
