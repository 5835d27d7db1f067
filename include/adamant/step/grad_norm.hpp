// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a gradient and the count of its non-finite elements, in one pass.
#pragma once

#include <cstddef>
#include <iterator>

#include <adamant/exec/executor.hpp>
#include <adamant/numerics/squares_total.hpp>
#include <adamant/shard/format.hpp>

ADAMANT_BEGIN_NAMESPACE

// Of n elements at any address: the block sums (see norm_block_elems), added exactly and rounded once, so the result
// has the same bits for every instruction set and number of threads. Allocates nothing and reads the gradient once. The
// caller applies a loss scale to the result. Throws invalid_argument for a null pointer with n > 0. Thread-safe.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float const* grad, std::size_t n);
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, bfloat16 const* grad, std::size_t n);
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, float16 const* grad, std::size_t n);
// The same of a type that is known at run time. Throws invalid_argument also for dtype::none.
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, void const* grad, dtype type, std::size_t n);

// The same added to a total, for the norm of several gradients: the root of to.rounded().sum. It is the same for any
// order, and however gradients are cut at multiples of norm_block_elems. Nothing is added where it throws.
void add_squares(executor const& cpu, float const* grad, std::size_t n, squares_total& to);
void add_squares(executor const& cpu, bfloat16 const* grad, std::size_t n, squares_total& to);
void add_squares(executor const& cpu, float16 const* grad, std::size_t n, squares_total& to);
void add_squares(executor const& cpu, void const* grad, dtype type, std::size_t n, squares_total& to);

// Both over a vector, span or other contiguous range.
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

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/step/grad_norm.ipp>
#endif
