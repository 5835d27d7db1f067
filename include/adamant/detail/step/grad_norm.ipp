// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/step.hpp.
#pragma once

#include <algorithm>
#include <mutex>

#include <adamant/error.hpp>
#include <adamant/formats.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline void add_squares_of_blocks(executor const& cpu, void const* grad, std::size_t elem_bytes,
                                  kernel::block_squares_function run, std::size_t n, squares_total& to)
{
    if (grad == nullptr && n > 0)
        throw_invalid_argument({"grad is null, but ", n, " elements are to be summed"});
    squares_total all;
    std::mutex mutex;
    cpu.for_each_slice(n, [&](slice part) {
        // The blocks that begin in this slice.
        constexpr std::size_t last = norm_block_elems - 1;
        float_mode_scope const mode(subnormals::flushed); // once for all blocks
        squares_total own;
        for (std::size_t at = (part.begin + last) & ~last; at < part.end; at += norm_block_elems)
            own.add(run(static_cast<std::byte const*>(grad) + at * elem_bytes, std::min(norm_block_elems, n - at)));
        std::lock_guard const lock(mutex);
        all.add(own);
    });
    to.add(all);
}

} // namespace detail

ADAMANT_DECL void add_squares(executor const& cpu, float const* grad, std::size_t n, squares_total& to)
{
    detail::add_squares_of_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<float>(cpu.tier()), n, to);
}

ADAMANT_DECL void add_squares(executor const& cpu, bfloat16 const* grad, std::size_t n, squares_total& to)
{
    detail::add_squares_of_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<bfloat16>(cpu.tier()), n, to);
}

ADAMANT_DECL void add_squares(executor const& cpu, float16 const* grad, std::size_t n, squares_total& to)
{
    detail::add_squares_of_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<float16>(cpu.tier()), n, to);
}

ADAMANT_DECL void add_squares(executor const& cpu, void const* grad, dtype type, std::size_t n, squares_total& to)
{
    switch (type) {
    case dtype::float32: return add_squares(cpu, static_cast<float const*>(grad), n, to);
    case dtype::bfloat16: return add_squares(cpu, static_cast<bfloat16 const*>(grad), n, to);
    case dtype::float16: return add_squares(cpu, static_cast<float16 const*>(grad), n, to);
    default: break;
    }
    detail::throw_invalid_argument({"a gradient to be summed is of type ", name(type),
                                    "; give the type of its elements: float32, bfloat16 or float16"});
}

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, float const* grad, std::size_t n)
{
    squares_total total;
    add_squares(cpu, grad, n, total);
    return total.rounded();
}

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, bfloat16 const* grad, std::size_t n)
{
    squares_total total;
    add_squares(cpu, grad, n, total);
    return total.rounded();
}

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, float16 const* grad, std::size_t n)
{
    squares_total total;
    add_squares(cpu, grad, n, total);
    return total.rounded();
}

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, void const* grad, dtype type, std::size_t n)
{
    squares_total total;
    add_squares(cpu, grad, type, n, total);
    return total.rounded();
}

ADAMANT_END_NAMESPACE
