// SPDX-License-Identifier: Apache-2.0
// Which columns are selected, by their scores: pure functions of plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <adamant/zenflow.hpp>

ADAMANT_BEGIN_NAMESPACE

// Number of selected columns: see zenflow_options::topk_ratio, which `ratio` must be. Pure.
[[nodiscard]] std::size_t selected_columns(std::size_t columns, double ratio) noexcept;

// Sets selected[c] to 1 for that many columns with the highest scores, and to 0 for the others. Of equal scores the
// lower column wins. Scores are at least 0. Throws invalid_argument for another number of flags than of scores, and for
// a ratio that cannot be. Allocates nothing. Pure.
void select_columns(std::span<std::int64_t const> scores, double ratio, std::span<std::uint8_t> selected);

// The columns of one matrix, for a selection among all matrices.
struct column_candidates {
    std::span<std::int64_t const> scores;
    double unit = 1;      // of the scores, see column_score_scale
    std::size_t rows = 0; // of the whole matrix
    std::span<std::uint8_t> selected;
};

// The same among all columns of all matrices, in the order of their scores for each row: as many as fit into `ratio`
// of all elements (to the nearest whole element). The first column that does not fit ends it. Of equal scores the
// earlier matrix wins, and in it the lower column. Allocates nothing. Pure.
void select_columns(std::span<column_candidates const> matrices, double ratio);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/zenflow/column_selection.ipp>
#endif
