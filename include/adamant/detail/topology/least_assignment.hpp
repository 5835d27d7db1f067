// SPDX-License-Identifier: Apache-2.0
// Minimum-cost assignment of rows to columns (Hungarian method).
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Returns a distinct column for each row with the least sum of cost[row][column]. Ties are broken by the order: by the
// least sum of squares of column - row. There must be at least as many columns as rows. The Hungarian method (H. W.
// Kuhn, Naval Research Logistics Quarterly 2, 1955) with shortest augmenting paths: rows^2 * columns operations.
inline std::vector<std::size_t> least_assignment(std::vector<std::vector<std::int64_t>> const& cost)
{
    std::size_t const rows = cost.size();
    std::size_t const columns = rows == 0 ? 0 : cost.front().size();
    auto const weight = [&](std::size_t row, std::size_t column) { // the order weighs less than a cost of 1
        auto const offset = static_cast<std::int64_t>(column) - static_cast<std::int64_t>(row);
        return cost[row][column] * static_cast<std::int64_t>(rows * columns * columns + 1) + offset * offset;
    };
    // Rows and columns count from 1. Row 0 is none. Column 0 is the start of a new row's path.
    std::vector<std::int64_t> row_price(rows + 1), column_price(columns + 1);
    std::vector<std::size_t> row_of(columns + 1);
    for (std::size_t row = 1; row <= rows; ++row) {
        std::vector<std::int64_t> length(columns + 1, std::numeric_limits<std::int64_t>::max());
        std::vector<std::size_t> previous(columns + 1);
        std::vector<bool> reached(columns + 1);
        std::size_t column = 0;
        row_of[0] = row;
        do {
            reached[column] = true;
            std::size_t nearest = 0;
            for (std::size_t c = 1; c <= columns; ++c) {
                if (reached[c])
                    continue;
                std::int64_t const step =
                    weight(row_of[column] - 1, c - 1) - row_price[row_of[column]] - column_price[c];
                if (step < length[c]) {
                    length[c] = step;
                    previous[c] = column;
                }
                if (nearest == 0 || length[c] < length[nearest])
                    nearest = c;
            }
            std::int64_t const shortest = length[nearest];
            for (std::size_t c = 0; c <= columns; ++c)
                if (reached[c]) {
                    row_price[row_of[c]] += shortest;
                    column_price[c] -= shortest;
                } else {
                    length[c] -= shortest;
                }
            column = nearest;
        } while (row_of[column] != 0);
        for (; column != 0; column = previous[column])
            row_of[column] = row_of[previous[column]];
    }
    std::vector<std::size_t> column_of(rows);
    for (std::size_t c = 1; c <= columns; ++c)
        if (row_of[c] != 0)
            column_of[row_of[c] - 1] = c - 1;
    return column_of;
}

} // namespace detail

ADAMANT_END_NAMESPACE
