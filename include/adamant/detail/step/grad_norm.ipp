// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/step.hpp>: gradient norms.
#pragma once

#include <algorithm>

#include <adamant/error.hpp>
#include <adamant/formats.hpp>
#include <adamant/step.hpp>
#include <adamant/detail/core/array_size.hpp>
#include <adamant/detail/exec/striped_total.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline void add_squares_of_blocks(executor const& cpu, void const* grad, std::size_t elem_bytes,
                                  kernel::block_squares_function run, std::size_t n, squares_total& total)
{
    check_array_size("a gradient of", n);
    if (grad == nullptr && n > 0)
        throw_invalid_argument({"cannot sum the squares of ", counted(n, "element"), ": grad is null."});
    // The squares of the blocks that begin in a slice.
    auto const squares_of = [&](slice part) {
        constexpr std::size_t mask = norm_block_elems - 1;
        float_mode_scope const mode(subnormals::flushed); // set once for all blocks
        squares_total sum;
        for (std::size_t i = (part.begin + mask) & ~mask; i < part.end; i += norm_block_elems)
            sum.add(run(static_cast<std::byte const*>(grad) + i * elem_bytes, std::min(norm_block_elems, n - i)));
        return sum;
    };
    // Two threads that only read gain less than two that step: they are worth it from twice as many bytes on.
    if (cpu.works_itself(n, elem_bytes / 2))
        return total.add(squares_of({0, n}));
    striped_total<squares_total> sum;
    cpu.for_each_slice(
        n, [&](slice part) { sum.add(part.begin / norm_block_elems, squares_of(part)); }, elem_bytes);
    total.add(sum.sum());
}

} // namespace detail

ADAMANT_DECL void add_squares(executor const& cpu, float const* grad, std::size_t n, squares_total& total)
{
    detail::add_squares_of_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<float>(cpu.tier()), n, total);
}

ADAMANT_DECL void add_squares(executor const& cpu, bfloat16 const* grad, std::size_t n, squares_total& total)
{
    detail::add_squares_of_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<bfloat16>(cpu.tier()), n, total);
}

ADAMANT_DECL void add_squares(executor const& cpu, float16 const* grad, std::size_t n, squares_total& total)
{
    detail::add_squares_of_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<float16>(cpu.tier()), n, total);
}

ADAMANT_DECL void add_squares(executor const& cpu, void const* grad, dtype type, std::size_t n, squares_total& total)
{
    switch (type) {
    case dtype::float32: return add_squares(cpu, static_cast<float const*>(grad), n, total);
    case dtype::bfloat16: return add_squares(cpu, static_cast<bfloat16 const*>(grad), n, total);
    case dtype::float16: return add_squares(cpu, static_cast<float16 const*>(grad), n, total);
    case dtype::split_float32:
    case dtype::quantized8:
    case dtype::none: break;
    }
    detail::throw_invalid_argument({"cannot sum the squares of a gradient of type ", name(type),
                                    ". Pass the type of its elements: float32, bfloat16 or float16."});
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
