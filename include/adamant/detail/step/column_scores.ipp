// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/detail/step/column_scores.hpp>.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/kernels/column_kernels.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/step/column_scores.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Rows of a piece. Large pieces are best, because merging the sums of a piece takes time, but every thread needs enough
// pieces.
[[nodiscard]] constexpr std::size_t score_chunk_rows(std::size_t rows, std::size_t strips, unsigned threads) noexcept
{
    return rows / column_score_rows * strips >= std::size_t{8} * threads ? column_score_rows : column_score_rows / 4;
}
inline constexpr std::size_t most_strip_columns = 8192;
// Columns of a piece, whose sums stay in cache while rows are read. Whole rows are best. Without AVX-512 the
// first-level cache needs room for prefetched lines, too, so strips are narrower.
[[nodiscard]] constexpr std::size_t score_strip_columns(isa tier) noexcept
{
    return tier == isa::avx512 || tier == isa::avx512_bf16 ? most_strip_columns : 2048;
}

} // namespace detail

ADAMANT_DECL float largest_magnitude(executor const& cpu, void const* grad, dtype type, std::size_t n)
{
    detail::column_kernels const kernels = detail::column_kernels_for(type, cpu.tier(), column_score::magnitude);
    if (grad == nullptr && n > 0)
        detail::throw_invalid_argument(
            {"cannot find the largest of ", detail::counted(n, "gradient"), ": grad is null."});
    std::atomic<std::uint32_t> largest{0};
    cpu.for_each_slice(n, [&](slice part) {
        std::uint32_t const slice_largest =
            detail::largest_finite_bits(kernels, static_cast<std::byte const*>(grad), type, part.begin, part.end);
        for (std::uint32_t known = largest;
             known < slice_largest && !largest.compare_exchange_weak(known, slice_largest);)
            ;
    });
    return std::bit_cast<float>(largest.load());
}

ADAMANT_DECL void add_column_scores(executor const& cpu, void const* grad, dtype type, std::size_t rows,
                                    std::size_t columns, float largest, column_score kind,
                                    std::span<std::int64_t> scores)
{
    detail::column_kernels const kernels = detail::column_kernels_for(type, cpu.tier(), kind);
    if (grad == nullptr && rows != 0 && columns != 0)
        detail::throw_invalid_argument({"cannot score ", detail::counted(columns, "column"), ": grad is null."});
    if (scores.size() != columns)
        detail::throw_invalid_argument({"cannot score ", detail::counted(columns, "column"), ": scores has ",
                                        detail::counted(scores.size(), "element"), ". Pass one for each column."});
    if (!(largest >= 0) || !is_finite(largest))
        detail::throw_invalid_argument(
            {"the largest magnitude is ", double{largest}, ", but must be finite and not below 0"});
    float scale = 1;
    detail::rounded_to_nearest([&] { scale = column_score_scale_for(largest, kind).scale; });
    std::size_t const strip_columns = detail::score_strip_columns(cpu.tier());
    std::size_t const strips = (columns + strip_columns - 1) / strip_columns;
    std::size_t const chunk_rows = detail::score_chunk_rows(rows, strips, std::max(1u, cpu.threads()));
    std::size_t const chunks = (rows + chunk_rows - 1) / chunk_rows;
    std::size_t const row_bytes = columns * size_bytes(type);
    std::mutex mutex;
    detail::for_each_part(cpu, strips * chunks, rows * columns, [&](std::size_t part) {
        std::size_t const first_row = part / strips * chunk_rows;
        std::size_t const first = part % strips * strip_columns;
        std::size_t const n_columns = std::min(strip_columns, columns - first);
        std::size_t const n_rows = std::min(chunk_rows, rows - first_row);
        std::byte const* const piece =
            static_cast<std::byte const*>(grad) + first_row * row_bytes + first * size_bytes(type);
        alignas(64) std::uint32_t sums[detail::most_strip_columns];
        detail::score_piece(kernels, piece, row_bytes, n_rows, n_columns, scale, sums);
        std::lock_guard const lock(mutex);
        for (std::size_t c = 0; c < n_columns; ++c)
            scores[first + c] += sums[c];
    });
}

ADAMANT_END_NAMESPACE
