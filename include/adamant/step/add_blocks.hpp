// SPDX-License-Identifier: Apache-2.0
// Sums of blocks, added in block order.
#pragma once

#include <cstddef>

#include <adamant/numerics/oracle.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Not inlined, so that its additions stay inside the floating-point scope around the call.
[[gnu::noinline]] inline void add_blocks(grad_squares const* blocks, std::size_t n, grad_squares& total) noexcept
{
    for (std::size_t b = 0; b < n; ++b) {
        total.sum += blocks[b].sum;
        total.nonfinite += blocks[b].nonfinite;
    }
}

} // namespace detail
ADAMANT_END_NAMESPACE
