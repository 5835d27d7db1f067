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

// ---- The norm of gradients

ADAMANT_BEGIN_NAMESPACE

/// Returns the sum of squares and the number of non-finite elements of n elements of any alignment, in one pass. Block
/// sums (see norm_block_elems) are added exactly and rounded once, so the result has the same bits for any instruction
/// set and number of threads. Does not undo a loss scale. Allocates nothing. Thread-safe.
/// @throws invalid_argument for a null pointer with n > 0
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float const* grad, std::size_t n);
/// The same for bfloat16.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, bfloat16 const* grad, std::size_t n);
/// The same for float16.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float16 const* grad, std::size_t n);
/// The same for a type known at run time.
/// @throws invalid_argument also for dtype::none
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, void const* grad, dtype type, std::size_t n);

/// Adds the sum of squares and the number of non-finite elements to a total. The norm of several gradients is the
/// square root of total.rounded().sum, for any order and any shard boundaries at multiples of norm_block_elems.
/// @throws as sum_of_squares() does; then it has added nothing
void add_squares(executor const& cpu, float const* grad, std::size_t n, squares_total& total);
/// The same for bfloat16.
void add_squares(executor const& cpu, bfloat16 const* grad, std::size_t n, squares_total& total);
/// The same for float16.
void add_squares(executor const& cpu, float16 const* grad, std::size_t n, squares_total& total);
/// The same for a type known at run time.
void add_squares(executor const& cpu, void const* grad, dtype type, std::size_t n, squares_total& total);

/// The same for a vector, span or other contiguous range.
template <class Range>
    requires requires(Range const& r)
    {
        sum_of_squares(std::declval<executor const&>(), std::data(r), std::size(r));
    }
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, Range const& grad)
{
    return sum_of_squares(cpu, std::data(grad), std::size(grad));
}
/// The same for a vector, span or other contiguous range.
template <class Range>
    requires requires(Range const& r)
    {
        sum_of_squares(std::declval<executor const&>(), std::data(r), std::size(r));
    }
void add_squares(executor const& cpu, Range const& grad, squares_total& total)
{
    add_squares(cpu, std::data(grad), std::size(grad), total);
}

// ---- Steps

/// Report of a step.
struct step_report {
    std::size_t elements = 0;    ///< elements updated
    std::size_t bytes_moved = 0; ///< read and written, see shard::bytes_per_element
    std::uint64_t nonfinite_grads =
        0;                  ///< elements of grad that are infinite or NaN; they went into the step as they are
    isa tier = isa::scalar; ///< instruction set
    unsigned threads = 0;   ///< threads that did the work
};

/// From this many elements on, weight_out and the records for an optimizer's rollback are written with streaming
/// stores, because ordinary stores would read each cache line before they overwrite it. Smaller arrays stay in cache,
/// where they may be read soon.
inline constexpr std::size_t stream_weight_out_from_elems = std::size_t{1} << 22;

/// Runs one step of Adam or AdamW in place on every element of the shard; reference::update is the formula. The result
/// has the same bits for any instruction set, number of threads and shard boundaries. Allocates nothing. It
/// may be called concurrently for shards that do not overlap. The caller's floating-point mode has no effect and does
/// not change.
/// @throws only what team::submit() throws, before anything is written
step_report step(executor const& cpu, any_shard const& shard, coefficients const& c);

/// The same from hyperparameters. step_number counts from 1. No state is kept between calls.
/// @throws what make_coefficients() throws, before anything is written
step_report step(executor const& cpu, any_shard const& shard, hyperparameters const& hyper, std::uint64_t step_number,
                 grad_scaling const& scaling = {});

/// The same for all shards of a list in one hand-over to the threads. group_coefficients: one for each parameter group,
/// in order.
/// @throws invalid_argument, before anything is written, if group_coefficients has fewer elements than shards.groups();
/// otherwise as above
step_report step(executor const& cpu, shard_list const& shards, std::span<coefficients const> group_coefficients);

/// As above, for a list with one parameter group.
/// @throws invalid_argument for a list with more
step_report step(executor const& cpu, shard_list const& shards, hyperparameters const& hyper, std::uint64_t step_number,
                 grad_scaling const& scaling = {});

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/step/grad_norm.ipp>
#include <adamant/detail/step/step.ipp>
#endif
