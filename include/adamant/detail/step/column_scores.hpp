// SPDX-License-Identifier: Apache-2.0
// Scores of a gradient's columns, by which ZenFlow selects columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <adamant/dtype.hpp>
#include <adamant/executor.hpp>
#include <adamant/detail/numerics/column_score.hpp>

ADAMANT_BEGIN_NAMESPACE

// The largest finite magnitude among n gradients at any address, ignoring infinities and NaNs; 0 if there is none.
// Reads the gradient once (parts that are not finite twice). The result is the same for any instruction set and number
// of threads. Throws invalid_argument for a null pointer with n > 0 and for a type other than float32, bfloat16 and
// float16. Thread-safe.
[[nodiscard]] float largest_magnitude(executor const& cpu, void const* grad, dtype type, std::size_t n);

// Adds the score of each column c of a [rows, columns] gradient (row-major, at any address) to scores[c]. A score is
// the sum over the rows of |g| or of g squared, each rounded to a multiple of column_score_scale_for(largest,
// kind).unit. Scores are integers in that unit. largest: at least the magnitude of every finite gradient, and the same
// on all ranks (see largest_magnitude()). Infinities and NaNs count as zero.
//
// Integer addition is associative, so scores have the same bits for any instruction set and number of threads. If rows
// are distributed over ranks, in any partition, the sum of the ranks' scores is the score of a single process.
//
// Reads the gradient once (parts that are not finite twice). Throws invalid_argument for a null pointer with elements,
// if scores.size() differs from columns, for a `largest` that is negative or not finite, and for a type other than
// float32, bfloat16 and float16; throws bad_alloc. Thread-safe.
void add_column_scores(executor const& cpu, void const* grad, dtype type, std::size_t rows, std::size_t columns,
                       float largest, column_score kind, std::span<std::int64_t> scores);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/step/column_scores.ipp>
#endif
