// SPDX-License-Identifier: Apache-2.0
// Sum of squares of a gradient, and the blocks by which it is computed.
//
// Not in reference.hpp, because that includes <cmath>, which takes a tenth of the time of compiling a small program.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Elements of a block: squares of a gradient are summed block by block, counted from the start of its array.
///
/// The last block may be shorter. Shard boundaries are multiples of it, so that sharding never changes a sum.
inline constexpr std::size_t norm_block_elems = 4096;

/// Sum of squares of a gradient.
struct grad_squares {
    double sum = 0;              ///< sum of the squares of the finite elements
    std::uint64_t nonfinite = 0; ///< number of infinite or NaN elements, which the sum excludes
};

ADAMANT_END_NAMESPACE
