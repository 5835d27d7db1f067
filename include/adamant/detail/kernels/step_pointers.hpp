// SPDX-License-Identifier: Apache-2.0
// What crosses from the rest of the library into a kernel: plain structs of pointers, and function types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <adamant/reference.hpp>
#include <adamant/detail/core/granule.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

// The arrays of one shard, as bytes because they may lie at any address. weight_out may be null, and is read, too,
// where it is the upper half of the params. `place` says which elements of the parameter they are: stochastic rounding
// depends on that.
struct step_pointers {
    std::byte* param;
    std::byte const* grad;
    std::byte* exp_avg;
    std::byte* exp_avg_sq;
    std::byte* weight_out;
    place_in_param place = {};
};

// How a step accesses memory, which changes its speed and never its bits; and the type of the gradient.
struct memory_access {
    bool stream = false;                                   // store weight_out past the caches
    bool native_bfloat16 = false;                          // set only by the kernels of AVX512_BF16
    std::uint32_t prefetch_bytes = default_prefetch_bytes; // past the end of an array that does nothing
    bool grad_is_float = false; // for recorded_step_function: grad is of floats, whatever the shard's is of
    constexpr memory_access(bool stream_weight_out, std::uint32_t ahead_bytes = default_prefetch_bytes) noexcept
        : stream(stream_weight_out), prefetch_bytes(ahead_bytes)
    {
    }
};

// Whether the master is split in two, param and weight_out.
template <class Param>
inline constexpr bool is_split = std::is_same_v<Param, split_float32>;

struct pair_of_u32 {
    std::uint32_t a, b;
    constexpr pair_of_u32(std::uint32_t first, std::uint32_t second) noexcept : a(first), b(second) {}
    constexpr explicit pair_of_u32(std::uint64_t both) noexcept
        : a(static_cast<std::uint32_t>(both)), b(static_cast<std::uint32_t>(both >> 32))
    {
    }
};

// What a kernel steps a stretch of a shard with that lies in one line of random numbers. Lines count elements as the
// stretch's pointers do.
struct step_scalars : coefficients {
    rounding_lines lines = {};

    [[nodiscard]] ADAMANT_ALWAYS_INLINE step_scalars from(std::size_t element) const noexcept
    {
        return {*this, {lines.exp_avg_sq.from(element), lines.param.from(element)}};
    }
};

// One step over elements [begin, end); returns how many elements of grad are infinite or NaN.
using step_function = std::uint64_t (*)(step_pointers const&, std::size_t begin, std::size_t end, coefficients const&,
                                        memory_access) noexcept;

// reference::block_squares of one block of n elements.
using block_squares_function = grad_squares (*)(std::byte const* grad, std::size_t n) noexcept;

// A record keeps old values whole for units of this many elements, on every instruction set.
inline constexpr std::size_t record_unit = 16;

// One step over the first n elements (at most norm_block_elems) of a shard of float params and moments, with a record
// of what rollback_function needs to bring back every bit of param, exp_avg and exp_avg_sq. The record begins at a
// multiple of 64 bytes, takes at most record_bytes_at_most(n), and means something only to the same instruction set.
// Returns its end.
using recorded_step_function = std::byte* (*)(step_pointers const&, std::size_t n, coefficients const&, memory_access,
                                              std::byte* record) noexcept;
[[nodiscard]] constexpr std::size_t record_bytes_at_most(std::size_t n) noexcept
{
    return (3 * sizeof(float) + sizeof(std::uint16_t)) * n + 128;
}

// Takes the step back, given the same gradient and coefficients; weight_out stays as it is. Of memory_access only
// prefetch_bytes counts.
using rollback_function = void (*)(step_pointers const&, std::size_t n, coefficients const&, memory_access how,
                                   std::byte const* record) noexcept;

// out = grad + sum, as reference::added; out = grad, rounded, where there is no sum. out may be sum.
using add_gradients_function = void (*)(std::byte const* grad, std::byte const* sum, std::size_t n,
                                        std::byte* out) noexcept;

// sum = reference::added(g, sum), or g where it is the first, of g = reference::clamped(grad, false, scale, infinity).
using add_scaled_function = void (*)(std::byte const* grad, std::size_t n, float scale, bool first,
                                     float* sum) noexcept;

// reference::clamped over n floats in place.
using clamp_gradient_function = void (*)(std::byte* grad, std::size_t n, bool zero_nonfinite, float scale,
                                         float bound) noexcept;

// Joins n split masters to floats, and splits them: every pair, also of a NaN, comes back with its bits.
using join_function = void (*)(std::byte const* weight, std::byte const* low, std::size_t n,
                               std::byte* master) noexcept;
using split_function = void (*)(std::byte const* master, std::size_t n, std::byte* weight, std::byte* low) noexcept;

// weight_out from float params as a step would round them.
using round_weights_function = void (*)(std::byte const* param, std::size_t n, std::byte* weight_out) noexcept;

// The bits of the largest magnitude of n gradients, as a float; infinity or more where one is not finite.
using largest_bits_function = std::uint32_t (*)(std::byte const* grad, std::size_t n) noexcept;

// Adds reference::column_score_of of each element to its column's sum. The rows, at most column_score_rows, begin
// row_bytes apart. sums begin with zeros, and have room for a multiple of 64 columns. False, with sums that mean
// nothing, where something is not finite; the scalar tier takes it for zero and returns true.
using column_scores_function = bool (*)(std::byte const* grad, std::size_t row_bytes, std::size_t rows,
                                        std::size_t columns, float scale, std::uint32_t* sums) noexcept;
// How far ahead they ask for memory: in each row, or where they do so line after line.
inline constexpr std::size_t column_prefetch_bytes = 512;
inline constexpr std::size_t column_block_ahead_bytes = 16384;

} // namespace kernel

ADAMANT_END_NAMESPACE
