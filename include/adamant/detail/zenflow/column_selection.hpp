// SPDX-License-Identifier: Apache-2.0
// Column selection: picks the important columns by their scores. Pure functions of plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <adamant/zenflow.hpp>

ADAMANT_BEGIN_NAMESPACE

// The number of columns to select out of `columns`. ratio: a valid zenflow_options::topk_ratio.
[[nodiscard]] std::size_t selected_columns(std::size_t columns, double ratio) noexcept;

// Sets selected[c] to 1 for the selected_columns() columns with the highest scores, and to 0 for the others. Scores
// must be at least 0, and the ratio from 0 to 1. Among equal scores the lower column wins. Allocates nothing.
void select_columns(std::span<std::int64_t const> scores, double ratio, std::span<std::uint8_t> selected);

// The columns of one matrix, for a selection among all matrices.
struct column_candidates {
    std::span<std::int64_t const> scores;
    double unit = 1;      // unit of the scores, see column_score_scale
    std::size_t rows = 0; // rows of the whole matrix, over all ranks
    std::span<std::uint8_t> selected;
};

// Selects among the columns of all matrices, in the order of their scores per row, as many as fit into `ratio` of all
// elements (rounded to the nearest element). The first column that does not fit ends the selection. Among equal scores
// the earlier matrix wins, and within a matrix the lower column. Allocates nothing.
void select_columns(std::span<column_candidates const> matrices, double ratio);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/zenflow/column_selection.ipp>
#endif
