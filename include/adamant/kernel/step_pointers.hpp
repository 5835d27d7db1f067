// SPDX-License-Identifier: Apache-2.0
// What crosses from the rest of the library into a kernel: plain structs of pointers, and function types.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/numerics/oracle.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

// The arrays of one shard, as bytes because they may lie at any address. weight_out may be null.
struct step_pointers {
    std::byte* param;
    std::byte const* grad;
    std::byte* exp_avg;
    std::byte* exp_avg_sq;
    std::byte* weight_out;
};

// One step over elements [begin, end); returns how many elements of grad are infinite or NaN. `stream` asks for stores
// of weight_out that go past the caches: a matter of speed, never of bits.
using step_function = std::uint64_t (*)(step_pointers const&, std::size_t begin, std::size_t end, coefficients const&,
                                        bool stream) noexcept;

// oracle::block_squares of one block of n elements.
using block_squares_function = grad_squares (*)(std::byte const* grad, std::size_t n) noexcept;

} // namespace kernel

ADAMANT_END_NAMESPACE
