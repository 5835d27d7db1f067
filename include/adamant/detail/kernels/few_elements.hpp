// SPDX-License-Identifier: Apache-2.0
// Parts of the careful step (detail/kernels/careful_step.inl) that are the same for all instruction sets: compiled
// once.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/dtype.hpp>
#include <adamant/detail/kernels/copy_few.hpp>
#include <adamant/detail/kernels/step_pointers.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace kernel {

// The types of the arrays of a shard.
struct array_types {
    dtype param, grad, exp_avg, exp_avg_sq, weight_out;
};
template <class Param, class Grad, class ExpAvg, class ExpAvgSq, class WeightOut>
inline constexpr array_types types_of = {dtype_of<Param>, dtype_of<Grad>, dtype_of<ExpAvg>, dtype_of<ExpAvgSq>,
                                         dtype_of<WeightOut>};

// Elements per conversion to floats.
inline constexpr std::size_t careful_elems = 64;
struct careful_buffer {
    alignas(64) std::byte floats[careful_elems * sizeof(float)];
};

namespace generic {
// A bit for each element whose published weight differs between two buffers that copy_published() has filled. See
// detail/kernels/few_changes.inl.
inline std::uint64_t few_changes(array_types const& types, careful_buffer const& before,
                                 careful_buffer const& after) noexcept;
} // namespace generic

// Copies n float params, or published weights of 16 bits. The rest of the buffer is zeroed.
[[gnu::noinline]] inline void copy_published(step_pointers const& a, array_types const& types, std::size_t begin,
                                             std::size_t n, careful_buffer& target) noexcept
{
    __builtin_memset(target.floats, 0, sizeof target.floats);
    if (types.param == dtype::float32)
        copy_few(target.floats, a.param + begin * sizeof(float), n * sizeof(float));
    else
        copy_few(target.floats,
                 (types.param == dtype::split_float32 ? a.weight_out : a.param) + begin * sizeof(std::uint16_t),
                 n * sizeof(std::uint16_t));
}

// Copies the state of n elements, see state_copies.
[[gnu::noinline]] inline void copy_few_states(step_pointers const& a, array_types const& types, std::size_t begin,
                                              std::size_t n) noexcept
{
    auto const copy = [begin, n](dtype type, std::byte* copies, std::byte const* array) {
        std::size_t const bytes = size_bytes(type);
        copy_few(copies + begin * bytes, array + begin * bytes, n * bytes);
    };
    copy(types.param, a.copies->param, a.param);
    copy(types.exp_avg, a.copies->exp_avg, a.exp_avg);
    copy(types.exp_avg_sq, a.copies->exp_avg_sq, a.exp_avg_sq);
    if (types.param == dtype::split_float32)
        copy(types.weight_out, a.copies->weight_out, a.weight_out);
}

} // namespace kernel
ADAMANT_END_NAMESPACE
