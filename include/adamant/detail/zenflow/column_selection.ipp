// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/detail/zenflow/column_selection.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>

#include <adamant/error.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/column_selection.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void check_selection(double ratio, std::size_t columns, std::size_t flags)
{
    if (!(ratio >= 0 && ratio <= 1))
        throw_invalid_argument({"the share of columns to be selected is ", ratio, ", but must be from 0 to 1"});
    if (columns != flags)
        throw_invalid_argument({"there are scores of ", columns, " columns, but room for the selection of ", flags});
}

// The least number that `few` is true for, where it is true for all numbers from some number on.
template <class Few>
[[nodiscard]] std::uint64_t least_number(std::uint64_t most, Few const& few)
{
    std::uint64_t low = 0;
    while (low < most) {
        std::uint64_t const middle = low + (most - low) / 2;
        if (few(middle))
            most = middle;
        else
            low = middle + 1;
    }
    return low;
}

// Doubles of at least 0 are in the order of these.
[[nodiscard]] inline std::uint64_t rank_of(column_candidates const& of, std::size_t column) noexcept
{
    return std::bit_cast<std::uint64_t>(static_cast<double>(of.scores[column]) * of.unit /
                                        static_cast<double>(of.rows));
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
    detail::check_selection(ratio, scores.size(), selected.size());
    std::size_t const wanted = selected_columns(scores.size(), ratio);
    auto const above = [&](std::uint64_t score) {
        return static_cast<std::size_t>(std::count_if(
            scores.begin(), scores.end(), [&](std::int64_t each) { return each > static_cast<std::int64_t>(score); }));
    };
    std::int64_t const highest = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
    // What is above it is selected, and of those that are equal to it as many as are left.
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
    for (column_candidates const& of : matrices) {
        detail::check_selection(ratio, of.scores.size(), of.selected.size());
        elements += of.rows * of.scores.size();
    }
    detail::rounded_to_nearest([&] {
        auto const budget = static_cast<std::size_t>(std::floor(static_cast<double>(elements) * ratio + 0.5));
        std::uint64_t highest = 0;
        for (column_candidates const& of : matrices)
            for (std::size_t c = 0; c < of.scores.size() && of.rows != 0; ++c)
                highest = std::max(highest, detail::rank_of(of, c));
        auto const above = [&](std::uint64_t rank) {
            std::size_t sum = 0;
            for (column_candidates const& of : matrices)
                for (std::size_t c = 0; c < of.scores.size() && of.rows != 0; ++c)
                    sum += detail::rank_of(of, c) > rank ? of.rows : 0;
            return sum;
        };
        std::uint64_t const edge =
            detail::least_number(highest, [&](std::uint64_t rank) { return above(rank) <= budget; });
        std::size_t left = budget - above(edge);
        for (column_candidates const& of : matrices)
            for (std::size_t c = 0; c < of.scores.size(); ++c) {
                std::uint64_t const rank = of.rows == 0 ? 0 : detail::rank_of(of, c);
                bool const at_edge = rank == edge && of.rows != 0 && left >= of.rows;
                if (rank == edge && !at_edge)
                    left = 0;
                left -= at_edge ? of.rows : 0;
                of.selected[c] = at_edge || rank > edge;
            }
    });
}

ADAMANT_END_NAMESPACE
