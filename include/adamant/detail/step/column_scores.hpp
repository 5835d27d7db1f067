// SPDX-License-Identifier: Apache-2.0
// How much each column of a gradient counts for: what ZenFlow selects columns by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <adamant/dtype.hpp>
#include <adamant/executor.hpp>
#include <adamant/detail/numerics/column_score.hpp>

ADAMANT_BEGIN_NAMESPACE

// The largest magnitude of n finite gradients at any address; infinities and NaNs are passed over. 0 for none. Reads
// the gradient once (twice where something is not finite). The same for any instruction set and number of threads.
// Throws invalid_argument for a null pointer with n > 0 and for a type that no gradient has. Thread-safe.
[[nodiscard]] float largest_magnitude(executor const& cpu, void const* grad, dtype type, std::size_t n);

// Adds to scores[c], for each of the columns, what that column of a [rows, columns] gradient (row-major, at any
// address) counts for: the sum over its rows of |g| or of g squared, each rounded to a multiple of
// column_score_scale_for(largest, kind).unit; the scores are whole multiples of it. largest: at least the magnitude of
// every finite gradient, on all ranks alike (see largest_magnitude()). What is not finite counts as zero.
//
// Integers have no order of addition, so scores have the same bits for any instruction set and number of threads; and
// where the rows are spread over ranks, however they are cut, the ranks' scores accumulated are those of one process.
//
// Reads the gradient once. Throws invalid_argument for a null pointer with elements, another number of scores than of
// columns, a `largest` that is negative or not finite, and a type that no gradient has; bad_alloc. Thread-safe.
void add_column_scores(executor const& cpu, void const* grad, dtype type, std::size_t rows, std::size_t columns,
                       float largest, column_score kind, std::span<std::int64_t> scores);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/step/column_scores.ipp>
#endif
