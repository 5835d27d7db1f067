// SPDX-License-Identifier: Apache-2.0
// How an optimizer puts gradients off: which columns of a matrix are stepped at once, and when the others are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include <adamant/config/offload_config.hpp>
#include <adamant/numerics/column_score.hpp>

ADAMANT_BEGIN_NAMESPACE

// Between what columns compete for being selected.
enum class selection_scope : std::uint8_t {
    each_param, // each matrix has its own share
    all_params, // one share of all elements; a column competes by its score for each element of it
};

enum class column_reduction : std::uint8_t { sum, max };

// ZenFlow (Lan and others, arXiv 2505.12242). The names are DeepSpeed's where it has the same option. "Steps" are those
// that were applied.
struct zenflow_options {
    // The share of the columns that is selected, from 0 to 1: of n columns the nearest whole number of topk_ratio * n
    // (a half is rounded up), and at least one unless the ratio is 0. 1: nothing is put off.
    double topk_ratio = 0.1;
    column_score score = column_score::magnitude;
    selection_scope scope = selection_scope::each_param;
    // A window's first step selects anew where so many steps have been taken since the last selection.
    std::size_t select_interval = 16;
    // A window has so many steps. Absent: it ends as soon as what has been put off outweighs what was done, that is
    // when the squared norm of the sum of the gradients that were put off is above 0 and at least auto_ratio times the
    // sum of the squared norms of those of selected columns (vectors count on neither side); at the latest after
    // most_put_off steps, also where all gradients are zero.
    std::optional<std::size_t> update_interval = 4;
    double auto_ratio = 1;
    std::size_t most_put_off = 64;
    std::size_t full_warm_up_rounds = 0; // so many steps at first are plain steps of everything
    // Whether what was put off in a window is stepped while the next one goes on, and its weights land at the end of
    // that; else at once. Changes when weights are seen, and nothing else of how they are computed.
    bool overlap = true;
    // Where the rows of matrices are spread over ranks: adds up, or takes the largest of, the numbers of all ranks, as
    // MPI_Allreduce(MPI_IN_PLACE, numbers.data(), numbers.size(), MPI_INT64_T, MPI_SUM or MPI_MAX, comm) does. Called
    // twice in a step that selects. Every rank has to have the same params, in the same order; of a matrix of which it
    // has no rows it adds a shard without elements. May throw; then the step has changed nothing.
    std::function<void(std::span<std::int64_t> numbers, column_reduction how)> reduce_columns = {};
};

// Throws invalid_argument naming the first option that cannot be.
void validate(zenflow_options const& options);

// The options that a DeepSpeed configuration asks for, of which an interval `never` is the largest number. Of "auto"
// its auto_ratio is not taken, as it is another; see both. Throws invalid_argument for what validate() refuses. Pure.
[[nodiscard]] zenflow_options zenflow_options_of(zenflow_config const& config);

// Where a run is in its schedule: plain data, a part of the state. `steps` are those that were applied.
struct zenflow_position {
    std::uint64_t steps = 0;
    std::uint64_t since_selection = 0; // steps
    std::uint64_t in_window = 0;       // steps
    bool has_selection = false;
    // For update_interval absent: the sum of the squared norms, over the window's steps, of the gradients of selected
    // columns.
    double done_squares = 0;

    friend bool operator==(zenflow_position const&, zenflow_position const&) = default;
};

// Whether the next step is a plain step of everything; whether it selects; and, after a step that is counted in it
// already, whether the window ends. put_off_squares: the squared norm of what has been put off, for update_interval
// absent. Pure.
[[nodiscard]] bool is_in_warm_up(zenflow_options const& options, zenflow_position const& at) noexcept;
[[nodiscard]] bool selects_next(zenflow_options const& options, zenflow_position const& at) noexcept;
[[nodiscard]] bool ends_window(zenflow_options const& options, zenflow_position const& at,
                               double put_off_squares) noexcept;

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/zenflow/zenflow_options.ipp>
#endif
