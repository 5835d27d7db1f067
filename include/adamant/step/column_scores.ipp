// SPDX-License-Identifier: Apache-2.0
// What step/column_scores.hpp declares.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <mutex>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/exec/for_each_part.hpp>
#include <adamant/kernel/dispatch.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/step/column_scores.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

struct column_kernels {
    kernel::largest_bits_function largest_bits;
    kernel::column_scores_function scores, careful_scores; // these take what is not finite for zero
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
[[nodiscard]] ADAMANT_DECL column_kernels column_kernels_for(dtype type, isa tier, column_score kind)
{
    bool const squares = kind == column_score::square;
    switch (type) {
    case dtype::float32: return column_kernels_of<float>(tier, squares);
    case dtype::bfloat16: return column_kernels_of<bfloat16>(tier, squares);
    case dtype::float16: return column_kernels_of<float16>(tier, squares);
    default: break;
    }
    throw_invalid_argument({"the columns of a gradient of type ", name(type),
                            " are to be scored; give the type of its elements: float32, bfloat16 or float16"});
}

// Rows that are scored in one piece: as many as may be, as adding up what each piece has takes time of its own, but
// enough pieces for all threads.
[[nodiscard]] constexpr std::size_t score_chunk_rows(std::size_t rows, std::size_t strips, unsigned threads) noexcept
{
    return rows / column_score_rows * strips >= std::size_t{8} * threads ? column_score_rows : column_score_rows / 4;
}
inline constexpr std::size_t most_strip_columns = 8192;
// Columns whose sums stay near while rows are read. Whole rows are best read in one piece; without AVX-512 the first
// cache has to have room for what was asked for ahead, too.
[[nodiscard]] constexpr std::size_t score_strip_columns(isa tier) noexcept
{
    return tier == isa::avx512 || tier == isa::avx512_bf16 ? most_strip_columns : 2048;
}

} // namespace detail

ADAMANT_DECL float largest_magnitude(executor const& cpu, void const* grad, dtype type, std::size_t n)
{
    detail::column_kernels const run = detail::column_kernels_for(type, cpu.tier(), column_score::magnitude);
    if (grad == nullptr && n > 0)
        detail::throw_invalid_argument({"grad is null, but ", n, " elements are to be looked at"});
    std::atomic<std::uint32_t> largest{0};
    cpu.for_each_slice(n, [&](slice part) {
        auto const at = [&](std::size_t i) { return static_cast<std::byte const*>(grad) + i * size_bytes(type); };
        std::uint32_t own = run.largest_bits(at(part.begin), part.end - part.begin);
        if (own >= float_infinity_bits) { // one by one, without what is not finite
            own = 0;
            for (std::size_t i = part.begin; i < part.end; ++i)
                if (std::uint32_t const bits = run.largest_bits(at(i), 1); bits < float_infinity_bits)
                    own = std::max(own, bits);
        }
        for (std::uint32_t known = largest; known < own && !largest.compare_exchange_weak(known, own);)
            ;
    });
    return std::bit_cast<float>(largest.load());
}

ADAMANT_DECL void add_column_scores(executor const& cpu, void const* grad, dtype type, std::size_t rows,
                                    std::size_t columns, float largest, column_score kind,
                                    std::span<std::int64_t> scores)
{
    detail::column_kernels const run = detail::column_kernels_for(type, cpu.tier(), kind);
    if (grad == nullptr && rows != 0 && columns != 0)
        detail::throw_invalid_argument({"grad is null, but ", columns, " columns are to be scored"});
    if (scores.size() != columns)
        detail::throw_invalid_argument({"there are ", columns, " columns, but room for the scores of ", scores.size()});
    if (!(largest >= 0) || !is_finite(largest))
        detail::throw_invalid_argument({"the largest magnitude is ", double{largest},
                                        ", but must be finite and not "
                                        "below 0"});
    float scale = 1;
    detail::rounded_to_nearest([&] { scale = column_score_scale_for(largest, kind).scale; });
    std::size_t const strip = detail::score_strip_columns(cpu.tier());
    std::size_t const strips = (columns + strip - 1) / strip;
    std::size_t const chunk = detail::score_chunk_rows(rows, strips, std::max(1u, cpu.threads()));
    std::size_t const chunks = (rows + chunk - 1) / chunk;
    std::size_t const row_bytes = columns * size_bytes(type);
    std::mutex mutex;
    detail::for_each_part(cpu, strips * chunks, rows * columns, [&](std::size_t part) {
        std::size_t const first_row = part / strips * chunk;
        std::size_t const first = part % strips * strip;
        std::size_t const n = std::min(strip, columns - first);
        std::size_t const some = std::min(chunk, rows - first_row);
        std::byte const* const at =
            static_cast<std::byte const*>(grad) + first_row * row_bytes + first * size_bytes(type);
        alignas(64) std::uint32_t sums[detail::most_strip_columns];
        std::fill_n(sums, (n + 63) / 64 * 64, 0u);
        if (!run.scores(at, row_bytes, some, n, scale, sums)) {
            std::fill_n(sums, (n + 63) / 64 * 64, 0u);
            run.careful_scores(at, row_bytes, some, n, scale, sums);
        }
        std::lock_guard const lock(mutex);
        for (std::size_t c = 0; c < n; ++c)
            scores[first + c] += sums[c];
    });
}

ADAMANT_END_NAMESPACE
