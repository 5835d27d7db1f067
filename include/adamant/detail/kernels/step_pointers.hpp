// SPDX-License-Identifier: Apache-2.0
// The interface between the library and its kernels: plain structs of pointers, and function types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <adamant/dtype.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/detail/core/granule.hpp>
#include <adamant/detail/numerics/grad_squares.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

// Where a step copies the state that it overwrites: element i to element i of each array. The arrays begin at multiples
// of 64 bytes.
struct state_copies {
    std::byte* param;
    std::byte* exp_avg;
    std::byte* exp_avg_sq;
    std::byte* weight_out; // of split masters
    bool stream;           // past the caches
};

// The arrays of one shard, and its position in the parameter, on which stochastic rounding depends. The arrays are
// bytes because they may have any alignment. weight_out may be null. With split masters weight_out is also read, as the
// upper half of the params.
struct step_pointers {
    std::byte* param;
    std::byte const* grad;
    std::byte* exp_avg;
    std::byte* exp_avg_sq;
    std::byte* weight_out;
    param_position position = {};
    std::uint64_t* changed = nullptr;     // bits of changed weights, see any_shard::track()
    state_copies const* copies = nullptr; // ignored for 8-bit moments and where records are codes
};

// How far past the element that it steps a kernel prefetches each array, in bytes. Prefetching past the end of an array
// is harmless.
struct prefetch_distances {
    std::ptrdiff_t param, grad, exp_avg, exp_avg_sq, weight_out;
    [[nodiscard]] constexpr bool operator==(prefetch_distances const&) const noexcept = default;
};

// How a step accesses memory, which affects its speed and never its bits; and what the arrays hold. Passed by
// reference: a copy of fields that were just stored waits for these stores.
struct memory_access {
    bool stream = false;          // store weight_out and records past the caches; see offload_shard::copies_state()
    bool fences = true;           // a kernel that streams ends with a fence; if false, the caller must stream_fence()
    bool native_bfloat16 = false; // set only by the kernels of AVX512_BF16
    prefetch_distances ahead;
    bool param_is_old = false; // for rollback_function: param holds the values before the step
    dtype grad = dtype::none;  // for recorded_step_function: type of grad; none: the shard's
    constexpr memory_access(bool stream_weight_out, std::uint32_t ahead_bytes = default_prefetch_bytes) noexcept
        : stream(stream_weight_out), ahead{ahead_bytes, ahead_bytes, ahead_bytes, ahead_bytes, ahead_bytes}
    {
    }
};

// Whether the master weight is split into a bf16 weight, in weight_out, and a 16-bit residual, in param.
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

// Scalars of a step over a part of a shard that is within one line of random numbers. The lines are relative to the
// elements of the step_pointers.
struct step_scalars : coefficients {
    rounding_lines lines = {};

    [[nodiscard]] ADAMANT_ALWAYS_INLINE step_scalars from(std::size_t element) const noexcept
    {
        return {*this, {lines.exp_avg_sq.from(element), lines.param.from(element)}};
    }
};

// One step over elements [begin, end). Returns the number of infinite and NaN elements of grad.
using step_function = std::uint64_t (*)(step_pointers const&, std::size_t begin, std::size_t end, coefficients const&,
                                        memory_access const&) noexcept;

// reference::block_squares of one block of n elements.
using block_squares_function = grad_squares (*)(std::byte const* grad, std::size_t n) noexcept;

// Elements per unit. A record keeps the old values of a whole unit or none of them, on every instruction set.
inline constexpr std::size_t record_unit = 16;

// One step over the first n elements (at most norm_block_elems) of a shard of float moments, and of params that are
// floats or have 16 bits. Writes a record from which rollback_function restores every bit of param, exp_avg and
// exp_avg_sq. With 16-bit params it begins with a copy of them, of param_copy_bytes(n). It begins at a multiple of 64
// bytes and takes at most record_bytes_at_most(n). Only the same instruction set can read it. Returns its end.
using recorded_step_function = std::byte* (*)(step_pointers const&, std::size_t n, coefficients const&,
                                              memory_access const&, std::byte* record) noexcept;
[[nodiscard]] constexpr std::size_t param_copy_bytes(std::size_t n) noexcept
{
    return (n * sizeof(std::uint16_t) + 63) / 64 * 64;
}
[[nodiscard]] constexpr std::size_t record_bytes_at_most(std::size_t n, bool copies_params) noexcept
{
    return (2 * sizeof(float) + sizeof(std::uint16_t)) * n + 128 +
           (copies_params ? param_copy_bytes(n) : n * sizeof(float));
}

// Rolls the step back, given the same gradient and coefficients. Does not change weight_out. Params are floats. With
// memory_access::param_is_old they are only read, and the record begins after the copy of the params.
using rollback_function = void (*)(step_pointers const&, std::size_t n, coefficients const&, memory_access const&,
                                   std::byte const* record) noexcept;

// out = grad + sum, as reference::added, or out = grad, rounded, without a sum. out may alias sum.
using add_gradients_function = void (*)(std::byte const* grad, std::byte const* sum, std::size_t n,
                                        std::byte* out) noexcept;

// With g = reference::clamped(grad, false, scale, infinity): sum = g if first, else sum = reference::added(g, sum).
using add_scaled_function = void (*)(std::byte const* grad, std::size_t n, float scale, bool first,
                                     float* sum) noexcept;

// reference::clamped over n floats in place.
using clamp_gradient_function = void (*)(std::byte* grad, std::size_t n, bool zero_nonfinite, float scale,
                                         float bound) noexcept;

// Join n split masters to floats, and split them again. A round trip preserves every bit, also of NaNs.
using join_function = void (*)(std::byte const* weight, std::byte const* low, std::size_t n,
                               std::byte* master) noexcept;
using split_function = void (*)(std::byte const* master, std::size_t n, std::byte* weight, std::byte* low) noexcept;

// Rounds float params to weight_out as a step does.
using round_weights_function = void (*)(std::byte const* param, std::size_t n, std::byte* weight_out) noexcept;

// Sets bit i of `changed`, counted from the lowest bit of its first word, for each of n elements that
// reference::is_changed(). Leaves other bits as they are, and does not write words without a change. before, after:
// arrays of published weights, or of float params that the function rounds to a 16-bit weight_out.
using mark_changes_function = void (*)(std::byte const* before, std::byte const* after, std::size_t n,
                                       std::uint64_t* changed) noexcept;
inline constexpr std::size_t changed_word_elems = 64;

// Number of bits that are set in n words.
using count_changes_function = std::size_t (*)(std::uint64_t const* words, std::size_t n) noexcept;
// Where changed weights are collected: their indices of 32 or 64 bits (the other array is null), and their values;
// values may be null.
struct changed_weights_out {
    std::uint32_t* indices;
    std::uint64_t* wide_indices;
    std::byte* values;
    std::size_t room; // of the arrays, in elements
};
// Writes the indices of the bits that are set in n words, plus first_index, and the weights with these indices from the
// array `weights`, whose elements have weight_bytes bytes, 2 or 4. clear: clears the words. `out` is then what follows.
// If there is no room for all, returns false: then the first ones are written, and their words are cleared.
// prefetch_words: prefetch distance, in words; it may lead beyond the n words.
using collect_changes_function = bool (*)(std::uint64_t* words, std::size_t n, std::size_t prefetch_words,
                                          std::byte const* weights, std::size_t weight_bytes, std::uint64_t first_index,
                                          bool clear, changed_weights_out& out) noexcept;

// The bits of the largest magnitude of n gradients, as a float; at least those of infinity if one is not finite.
using largest_bits_function = std::uint32_t (*)(std::byte const* grad, std::size_t n) noexcept;

// Adds reference::column_score_of() of each element to its column's sum. The rows, at most column_score_rows, are
// row_bytes apart. The caller zeroes sums, whose size must be a multiple of 64 columns. If an element is not finite,
// returns false and leaves the sums undefined; the scalar tier counts it as zero and returns true.
using column_scores_function = bool (*)(std::byte const* grad, std::size_t row_bytes, std::size_t rows,
                                        std::size_t columns, float scale, std::uint32_t* sums) noexcept;
// Prefetch distance of column scores: within each row, and for prefetching line by line in memory order.
inline constexpr std::size_t column_prefetch_bytes = 512;
inline constexpr std::size_t column_block_ahead_bytes = 16384;

} // namespace kernel

ADAMANT_END_NAMESPACE
