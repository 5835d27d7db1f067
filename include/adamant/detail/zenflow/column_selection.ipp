// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/detail/zenflow/column_selection.hpp>.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/column_selection.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Binary search: the least number up to `max` for which the predicate holds. The predicate is monotonic, from false to
// true.
template <class Predicate>
[[nodiscard]] std::uint64_t least_number(std::uint64_t max, Predicate const& predicate)
{
    std::uint64_t low = 0;
    while (low < max) {
        std::uint64_t const middle = low + (max - low) / 2;
        if (predicate(middle))
            max = middle;
        else
            low = middle + 1;
    }
    return low;
}

// The bits of a column's score per row. Bits of non-negative doubles have the order of the doubles.
[[nodiscard]] inline std::uint64_t rank_of(column_candidates const& matrix, std::size_t column) noexcept
{
    return matrix.rows == 0 ? 0
                            : std::bit_cast<std::uint64_t>(static_cast<double>(matrix.scores[column]) * matrix.unit /
                                                           static_cast<double>(matrix.rows));
}

} // namespace detail

ADAMANT_DECL std::size_t selected_columns(std::size_t columns, double ratio) noexcept
{
    detail::default_mode_scope const mode;
    if (columns == 0 || ratio == 0)
        return 0;
    double const wanted = std::floor(static_cast<double>(columns) * ratio + 0.5);
    return std::clamp<std::size_t>(static_cast<std::size_t>(wanted), 1, columns);
}

ADAMANT_DECL void select_columns(std::span<std::int64_t const> scores, double ratio, std::span<std::uint8_t> selected)
{
    std::size_t const wanted = selected_columns(scores.size(), ratio);
    auto const above = [&](std::uint64_t score) {
        return static_cast<std::size_t>(std::count_if(
            scores.begin(), scores.end(), [&](std::int64_t each) { return each > static_cast<std::int64_t>(score); }));
    };
    std::int64_t const highest = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
    // Columns above the edge are selected. Of the columns at the edge, the first `left` are selected.
    std::uint64_t const edge = detail::least_number(static_cast<std::uint64_t>(std::max<std::int64_t>(highest, 0)),
                                                    [&](std::uint64_t score) { return above(score) <= wanted; });
    std::size_t left = wanted - above(edge);
    for (std::size_t c = 0; c < scores.size(); ++c) {
        bool const at_edge = scores[c] == static_cast<std::int64_t>(edge) && left != 0;
        left -= at_edge;
        selected[c] = at_edge || scores[c] > static_cast<std::int64_t>(edge);
    }
}

ADAMANT_DECL void select_columns(std::span<column_candidates const> matrices, double ratio)
{
    std::size_t elements = 0;
    for (column_candidates const& m : matrices)
        elements += m.rows * m.scores.size();
    detail::rounded_to_nearest([&] {
        auto const budget = static_cast<std::size_t>(std::floor(static_cast<double>(elements) * ratio + 0.5));
        std::uint64_t highest = 0;
        for (column_candidates const& m : matrices)
            for (std::size_t c = 0; c < m.scores.size(); ++c)
                highest = std::max(highest, detail::rank_of(m, c));
        auto const above = [&](std::uint64_t rank) {
            std::size_t sum = 0;
            for (column_candidates const& m : matrices)
                for (std::size_t c = 0; c < m.scores.size(); ++c)
                    sum += detail::rank_of(m, c) > rank ? m.rows : 0;
            return sum;
        };
        std::uint64_t const edge =
            detail::least_number(highest, [&](std::uint64_t rank) { return above(rank) <= budget; });
        std::size_t left = budget - above(edge);
        for (column_candidates const& m : matrices)
            for (std::size_t c = 0; c < m.scores.size(); ++c) {
                std::uint64_t const rank = detail::rank_of(m, c);
                bool const at_edge = rank == edge && m.rows != 0 && left >= m.rows;
                if (rank == edge && !at_edge)
                    left = 0;
                left -= at_edge ? m.rows : 0;
                m.selected[c] = at_edge || rank > edge;
            }
    });
}

ADAMANT_END_NAMESPACE
