// SPDX-License-Identifier: Apache-2.0
// Kernels that score a gradient's columns, selected by its type and instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <adamant/error.hpp>
#include <adamant/detail/kernels/dispatch.hpp>
#include <adamant/detail/numerics/column_score.hpp>

#define ADAMANT_KERNELS <adamant/detail/kernels/column_scores.inl>
#include <adamant/detail/kernels/for_each_target.inl>

ADAMANT_BEGIN_NAMESPACE

namespace kernel {

namespace scalar {

template <class Grad>
std::uint32_t largest_bits(std::byte const* grad, std::size_t n) noexcept
{
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
        float const g = widen(load_unaligned<Grad>(grad + i * sizeof(Grad)));
        std::uint32_t const bits = std::bit_cast<std::uint32_t>(g) & float_abs_mask;
        largest = largest < bits ? bits : largest;
    }
    return largest;
}

template <class Grad, bool Squares>
bool add_column_scores(std::byte const* grad, std::size_t row_bytes, std::size_t rows, std::size_t columns, float scale,
                       std::uint32_t* sums) noexcept
{
    float_mode_scope const mode(subnormals::kept);
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t c = 0; c < columns; ++c)
            sums[c] += reference::column_score_of(
                widen(load_unaligned<Grad>(grad + row * row_bytes + c * sizeof(Grad))), scale, Squares);
    return true;
}

} // namespace scalar

#if defined(__x86_64__)
namespace avx512_bf16 {
using avx512::add_column_scores;
using avx512::largest_bits;
} // namespace avx512_bf16
#endif

template <class Grad>
[[nodiscard]] largest_bits_function largest_bits_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::largest_bits<Grad>), largest_bits<Grad>);
}
template <class Grad, bool Squares>
[[nodiscard]] column_scores_function column_scores_for(isa tier) noexcept
{
    ADAMANT_FOR_TIER(tier, (scalar::add_column_scores<Grad, Squares>), add_column_scores<Grad, Squares>);
}

} // namespace kernel

namespace detail {

struct column_kernels {
    kernel::largest_bits_function largest_bits;
    kernel::column_scores_function scores;
    kernel::column_scores_function careful_scores; // counts elements that are not finite as zero
};

template <class Grad>
[[nodiscard]] column_kernels column_kernels_of(isa tier, bool squares) noexcept
{
    if (squares)
        return {kernel::largest_bits_for<Grad>(tier), kernel::column_scores_for<Grad, true>(tier),
                kernel::column_scores_for<Grad, true>(isa::scalar)};
    return {kernel::largest_bits_for<Grad>(tier), kernel::column_scores_for<Grad, false>(tier),
            kernel::column_scores_for<Grad, false>(isa::scalar)};
}
[[nodiscard]] inline column_kernels column_kernels_for(dtype type, isa tier, column_score kind)
{
    bool const squares = kind == column_score::square;
    switch (type) {
    case dtype::float32: return column_kernels_of<float>(tier, squares);
    case dtype::bfloat16: return column_kernels_of<bfloat16>(tier, squares);
    case dtype::float16: return column_kernels_of<float16>(tier, squares);
    case dtype::split_float32:
    case dtype::quantized8:
    case dtype::none: break;
    }
    throw_invalid_argument({"cannot score the columns of a gradient of type ", name(type),
                            ". Pass the type of its elements: float32, bfloat16 or float16."});
}

// The bits of the largest finite magnitude of elements [begin, end).
[[nodiscard]] inline std::uint32_t largest_finite_bits(column_kernels const& kernels, std::byte const* grad, dtype type,
                                                       std::size_t begin, std::size_t end) noexcept
{
    auto const address_of = [&](std::size_t i) { return grad + i * size_bytes(type); };
    std::uint32_t largest = kernels.largest_bits(address_of(begin), end - begin);
    if (largest < float_infinity_bits)
        return largest;
    largest = 0; // element by element, skipping infinities and NaNs
    for (std::size_t i = begin; i < end; ++i)
        if (std::uint32_t const bits = kernels.largest_bits(address_of(i), 1); bits < float_infinity_bits)
            largest = std::max(largest, bits);
    return largest;
}
// Writes the scores of n columns over at most column_score_rows rows to sums, whose size is n rounded up to a multiple
// of 64.
inline void score_piece(column_kernels const& kernels, std::byte const* grad, std::size_t row_bytes, std::size_t rows,
                        std::size_t n, float scale, std::uint32_t* sums) noexcept
{
    std::fill_n(sums, (n + 63) / 64 * 64, 0u);
    if (kernels.scores(grad, row_bytes, rows, n, scale, sums))
        return;
    std::fill_n(sums, (n + 63) / 64 * 64, 0u);
    kernels.careful_scores(grad, row_bytes, rows, n, scale, sums);
}

} // namespace detail
ADAMANT_END_NAMESPACE
