// SPDX-License-Identifier: Apache-2.0
// The sum of squares of a gradient and the count of its non-finite elements, in one pass.
#pragma once

#include <algorithm>
#include <cstddef>
#include <ranges>

#include <adamant/exec/executor.hpp>
#include <adamant/kernel/dispatch.hpp>
#include <adamant/shard/shard.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// In block order. Not inlined, so that its additions stay inside the floating-point scope around the call.
[[gnu::noinline]] inline void add_blocks(grad_squares const* blocks, std::size_t n, grad_squares& total) noexcept
{
    for (std::size_t b = 0; b < n; ++b) {
        total.sum += blocks[b].sum;
        total.nonfinite += blocks[b].nonfinite;
    }
}

} // namespace detail

// n elements at any address. The norm of several gradients is the root of their sums added in a fixed order. Sums of
// blocks (see norm_block_elems) are added in block order, so the result has the same bits for every instruction set
// and number of threads. Allocates nothing; reads the gradient once; the scale (loss scaling) is the caller's to apply
// to the result. Throws invalid_argument for a null pointer with n > 0. Thread-safe.
template <element_type Grad>
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, Grad const* grad, std::size_t n)
{
    if (grad == nullptr && n > 0)
        throw invalid_argument("adamant: grad is null, but " + std::to_string(n) + " elements are to be summed");
    constexpr std::size_t round_elems = 1024 * norm_block_elems; // block sums of one round wait on the stack
    kernel::block_squares_function const run = kernel::block_squares_for<Grad>(cpu.tier());
    float_mode_scope const mode(subnormals::kept);
    grad_squares total;
    grad_squares blocks[1024];
    for (std::size_t begin = 0; begin < n; begin += round_elems) {
        std::size_t const length = std::min(round_elems, n - begin);
        auto const* const base = reinterpret_cast<std::byte const*>(grad) + begin * sizeof(Grad);
        auto const first_block = [](std::size_t element) {
            return (element + norm_block_elems - 1) / norm_block_elems;
        };
        cpu.for_each_slice(length, [&](slice part) {
            // The blocks that begin in this slice.
            for (std::size_t b = first_block(part.begin); b < first_block(part.end); ++b) {
                std::size_t const at = b * norm_block_elems;
                blocks[b] = run(base + at * sizeof(Grad), std::min(norm_block_elems, length - at));
            }
        });
        detail::add_blocks(blocks, first_block(length), total);
    }
    return total;
}

// The same over a vector, span or other contiguous range.
template <std::ranges::contiguous_range Range>
    requires element_type<std::ranges::range_value_t<Range>>
[[nodiscard]] grad_squares sum_of_squares(executor const& cpu, Range const& grad)
{
    return sum_of_squares(cpu, std::ranges::data(grad), std::ranges::size(grad));
}

ADAMANT_END_NAMESPACE
