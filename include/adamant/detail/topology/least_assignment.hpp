// SPDX-License-Identifier: Apache-2.0
// Who takes what, where every pair has its cost: the assignment of the least sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// A column for each row, no column twice, so that the sum of cost[row][column] is least; of several such assignments
// the one that keeps the order best: with the least sum of squares of column - row. There are at least as many columns
// as rows. The Hungarian method (H. W. Kuhn, Naval Research Logistics Quarterly 2, 1955), which takes a row at a time
// along the shortest path: rows^2 * columns operations.
inline std::vector<std::size_t> least_assignment(std::vector<std::vector<std::int64_t>> const& cost)
{
    std::size_t const rows = cost.size();
    std::size_t const columns = rows == 0 ? 0 : cost.front().size();
    auto const both = [&](std::size_t row, std::size_t column) { // the order weighs less than a cost of one
        auto const apart = static_cast<std::int64_t>(column) - static_cast<std::int64_t>(row);
        return cost[row][column] * static_cast<std::int64_t>(rows * columns * columns + 1) + apart * apart;
    };
    // Rows and columns count from 1 here; 0 is none, and the column from which a new row sets out.
    std::vector<std::int64_t> row_price(rows + 1), column_price(columns + 1);
    std::vector<std::size_t> row_of(columns + 1);
    for (std::size_t row = 1; row <= rows; ++row) {
        std::vector<std::int64_t> length(columns + 1, std::numeric_limits<std::int64_t>::max());
        std::vector<std::size_t> from(columns + 1);
        std::vector<bool> reached(columns + 1);
        std::size_t at = 0;
        row_of[0] = row;
        do {
            reached[at] = true;
            std::size_t nearest = 0;
            for (std::size_t c = 1; c <= columns; ++c) {
                if (reached[c])
                    continue;
                std::int64_t const step = both(row_of[at] - 1, c - 1) - row_price[row_of[at]] - column_price[c];
                if (step < length[c]) {
                    length[c] = step;
                    from[c] = at;
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
            at = nearest;
        } while (row_of[at] != 0);
        for (; at != 0; at = from[at])
            row_of[at] = row_of[from[at]];
    }
    std::vector<std::size_t> column_of(rows);
    for (std::size_t c = 1; c <= columns; ++c)
        if (row_of[c] != 0)
            column_of[row_of[c] - 1] = c - 1;
    return column_of;
}

} // namespace detail

ADAMANT_END_NAMESPACE
