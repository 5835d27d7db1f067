// SPDX-License-Identifier: Apache-2.0
// What step/grad_norm.hpp declares.
#pragma once

#include <algorithm>
#include <string>

#include <adamant/core/error.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/shard/format.hpp>
#include <adamant/step/add_blocks.hpp>
#include <adamant/step/grad_norm.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline grad_squares sum_blocks(executor const& cpu, void const* grad, std::size_t elem_bytes,
                               kernel::block_squares_function run, std::size_t n)
{
    if (grad == nullptr && n > 0)
        throw_invalid_argument({"grad is null, but ", n, " elements are to be summed"});
    constexpr std::size_t round_elems = 1024 * norm_block_elems; // block sums of one round wait on the stack
    float_mode_scope const mode(subnormals::kept);
    grad_squares total;
    grad_squares blocks[1024];
    for (std::size_t begin = 0; begin < n; begin += round_elems) {
        std::size_t const length = std::min(round_elems, n - begin);
        auto const* const base = static_cast<std::byte const*>(grad) + begin * elem_bytes;
        auto const first_block = [](std::size_t element) {
            return (element + norm_block_elems - 1) / norm_block_elems;
        };
        cpu.for_each_slice(length, [&](slice part) {
            // The blocks that begin in this slice.
            for (std::size_t b = first_block(part.begin); b < first_block(part.end); ++b) {
                std::size_t const at = b * norm_block_elems;
                blocks[b] = run(base + at * elem_bytes, std::min(norm_block_elems, length - at));
            }
        });
        add_blocks(blocks, first_block(length), total);
    }
    return total;
}

} // namespace detail

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, float const* grad, std::size_t n)
{
    return detail::sum_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<float>(cpu.tier()), n);
}

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, bfloat16 const* grad, std::size_t n)
{
    return detail::sum_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<bfloat16>(cpu.tier()), n);
}

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, float16 const* grad, std::size_t n)
{
    return detail::sum_blocks(cpu, grad, sizeof *grad, kernel::block_squares_for<float16>(cpu.tier()), n);
}

ADAMANT_DECL grad_squares sum_of_squares(executor const& cpu, void const* grad, dtype type, std::size_t n)
{
    switch (type) {
    case dtype::float32: return sum_of_squares(cpu, static_cast<float const*>(grad), n);
    case dtype::bfloat16: return sum_of_squares(cpu, static_cast<bfloat16 const*>(grad), n);
    case dtype::float16: return sum_of_squares(cpu, static_cast<float16 const*>(grad), n);
    case dtype::none: break;
    }
    detail::throw_invalid_argument({"the gradient to be summed has no type; give the type of its elements"});
}

ADAMANT_END_NAMESPACE
