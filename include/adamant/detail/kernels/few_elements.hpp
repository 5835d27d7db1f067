// SPDX-License-Identifier: Apache-2.0
// Parts of the careful step (detail/kernels/careful_step.inl) that are the same for all instruction sets: compiled
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <adamant/dtype.hpp>
#include <adamant/detail/kernels/copy_few.hpp>
#include <adamant/detail/kernels/step_pointers.hpp>
#include <adamant/detail/numerics/rounding.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

// The types of the arrays of a shard, and the bytes of an element of each, in the same order.
struct array_types {
    dtype param, grad, exp_avg, exp_avg_sq, weight_out;
    std::uint8_t elem_bytes[5];
};
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
inline constexpr array_types types_of = {dtype_of<Param>,
                                         dtype_of<Grad>,
                                         dtype_of<ExpAvg>,
                                         dtype_of<ExpAvgSq>,
                                         dtype_of<WeightOut>,
                                         {size_bytes(dtype_of<Param>), size_bytes(dtype_of<Grad>),
                                          size_bytes(dtype_of<ExpAvg>), size_bytes(dtype_of<ExpAvgSq>),
                                          size_bytes(dtype_of<WeightOut>)}};

// Whether all records of these types are codes (detail/kernels/journal.inl). Steps then ignore step_pointers::copies.
constexpr bool records_codes(array_types const& types) noexcept
{
    return types.exp_avg == dtype::float32 && types.exp_avg_sq == dtype::float32 &&
           (types.param == dtype::float32 || types.param == dtype::split_float32);
}

// Elements per conversion to floats.
inline constexpr std::size_t careful_elems = 64;
struct careful_buffer {
    alignas(64) std::byte floats[careful_elems * sizeof(float)];
};

// The array of the published weights: those that `changed` marks. `rounds`: they are float params, rounded.
struct published_weights {
    std::byte const* array;
    std::size_t elem_bytes;
    bool rounds;
};
inline published_weights published_by(step_pointers const& a, array_types const& types) noexcept
{
    bool const rounds = types.param == dtype::float32 && size_bytes(types.weight_out) == 2;
    if (rounds || types.param == dtype::split_float32)
        return {a.weight_out, 2, rounds};
    return {a.param, size_bytes(types.param), false};
}

// A bit for each of n elements of elem_bytes bytes, at most 64 elements of 2 or 4 bytes, in which two arrays differ.
[[gnu::noinline]] inline std::uint64_t differing_few(std::byte const* a, std::byte const* b, std::size_t n,
                                                     std::size_t elem_bytes) noexcept
{
    std::uint64_t differing = 0;
    for (std::size_t i = 0; i < n; ++i)
        if (__builtin_memcmp(a + i * elem_bytes, b + i * elem_bytes, 2) != 0 ||
            __builtin_memcmp(a + (i + 1) * elem_bytes - 2, b + (i + 1) * elem_bytes - 2, 2) != 0)
            differing |= std::uint64_t{1} << i;
    return differing;
}

// Rounds n floats to bfloat16 stochastically.
[[gnu::noinline]] inline void round_few(rounding_line const& line, careful_buffer const& source, std::byte* array,
                                        std::size_t begin, std::size_t n) noexcept
{
    for (std::size_t i = 0; i < n; ++i) {
        float x;
        std::memcpy(&x, source.floats + i * sizeof x, sizeof x);
        bfloat16 const rounded = stochastically_rounded(x, random_half(line, begin + i));
        std::memcpy(array + (begin + i) * sizeof rounded, &rounded, sizeof rounded);
    }
}

// Join split masters to floats, and split floats.
[[gnu::noinline]] inline void join_few(step_pointers const& a, std::size_t begin, std::size_t n,
                                       careful_buffer& target) noexcept
{
    for (std::size_t i = 0; i < n; ++i) {
        split_parts parts;
        std::memcpy(&parts.weight, a.weight_out + (begin + i) * sizeof parts.weight, sizeof parts.weight);
        std::memcpy(&parts.low, a.param + (begin + i) * sizeof parts.low, sizeof parts.low);
        float const x = joined_master(parts.weight, parts.low);
        std::memcpy(target.floats + i * sizeof x, &x, sizeof x);
    }
}
[[gnu::noinline]] inline void split_few(careful_buffer const& source, step_pointers const& a, std::size_t begin,
                                        std::size_t n) noexcept
{
    for (std::size_t i = 0; i < n; ++i) {
        float x;
        std::memcpy(&x, source.floats + i * sizeof x, sizeof x);
        split_parts const parts = split_master(x);
        std::memcpy(a.weight_out + (begin + i) * sizeof parts.weight, &parts.weight, sizeof parts.weight);
        std::memcpy(a.param + (begin + i) * sizeof parts.low, &parts.low, sizeof parts.low);
    }
}

// Copies n elements of each array that a step writes.
[[gnu::noinline]] inline void copy_results(array_types const& types, step_pointers const& target,
                                           std::size_t target_begin, step_pointers const& source,
                                           std::size_t source_begin, std::size_t n) noexcept
{
    auto const copy = [=](std::byte* target_array, std::byte const* source_array, std::size_t bytes) {
        copy_few(target_array + target_begin * bytes, source_array + source_begin * bytes, n * bytes);
    };
    copy(target.param, source.param, types.elem_bytes[0]);
    copy(target.exp_avg, source.exp_avg, types.elem_bytes[2]);
    copy(target.exp_avg_sq, source.exp_avg_sq, types.elem_bytes[3]);
    if (types.elem_bytes[4] != 0)
        copy(target.weight_out, source.weight_out, types.elem_bytes[4]);
}
// Copies the state of n elements, see state_copies.
[[gnu::noinline]] inline void copy_few_states(step_pointers const& a, array_types const& types, std::size_t begin,
                                              std::size_t n) noexcept
{
    array_types written = types;
    if (types.param != dtype::split_float32)
        written.elem_bytes[4] = 0;
    step_pointers const copies{a.copies->param, a.grad, a.copies->exp_avg, a.copies->exp_avg_sq, a.copies->weight_out};
    copy_results(written, copies, begin, a, begin, n);
}

} // namespace kernel
ADAMANT_END_NAMESPACE
