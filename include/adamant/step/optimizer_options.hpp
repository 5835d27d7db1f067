// SPDX-License-Identifier: Apache-2.0
// What an optimizer is made with: options, and parameter groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <adamant/numerics/hyperparameters.hpp>
#include <adamant/numerics/squares_total.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/step/optimizer_report.hpp>

ADAMANT_BEGIN_NAMESPACE

// The number of a parameter group, and of a shard, of an optimizer: from 0, in the order in which they were added. An
// integer converts to either, so that loops may count; neither converts to the other.
struct group_id {
    std::size_t index = 0;
    ADAMANT_ALWAYS_INLINE constexpr group_id(std::size_t number) noexcept : index(number) {} // NOLINT: meant to convert
    friend bool operator==(group_id, group_id) = default;
};
struct shard_id {
    std::size_t index = 0;
    ADAMANT_ALWAYS_INLINE constexpr shard_id(std::size_t number) noexcept : index(number) {} // NOLINT: meant to convert
    friend bool operator==(shard_id, shard_id) = default;
};

// Parameters that share hyperparameters.
struct parameter_group {
    std::string name;
    hyperparameters hyper;
    bool maximize = false; // step up the gradient
};

// The most dimensions of a parameter.
inline constexpr std::size_t max_dimensions = 64;

// Where a shard lies in its parameter.
struct shard_place {
    std::vector<std::size_t> shape = {}; // of the whole parameter, kept for checkpoints; empty: the shard is all of it
    std::size_t begin = 0;               // the shard's first element in it, in row-major order
};

// Whether begin_step() lets shards be stepped before the norm is known. It changes no bit of any result.
enum class speculation : std::uint8_t {
    automatic, // until finish() is called, unless most of the last eight steps had to be taken back. What finish()
               // finds unstepped waits for the norm, which is near then, except where every step leaves a record
               // (keep_last_step, or a device)
    always,    // all of them
    never,     // submit() only measures
};

struct optimizer_options {
    double max_norm = 0;     // see step_values; 0: not clipped
    double max_abs_grad = 0; // the same
    nonfinite_policy on_nonfinite = nonfinite_policy::skip;
    // Dynamic loss scaling; absent: the scale is in the step_values, or 1.
    std::optional<loss_scaling_options> loss_scaling = {};
    speculation speculate = speculation::automatic;
    // How many bytes the records may take that steps are taken back from. No more is allocated than the records of one
    // step can take. A record takes, in bytes an element, by the types of param and moments:
    //
    // - float32, moments float32: 2 in a first step, 2.1 to 2.3 in ordinary training, at most 14; 12 on the
    //   tiers scalar and, on x86, generic
    // - float32, moments bfloat16: 8
    // - float32, one moment of each type: 10
    // - 16 bits, moments float32: 10
    // - 16 bits, one moment of each type: 8
    // - 16 bits, moments bfloat16: 6
    //
    // and an eighth more, and some KiB a thread, as pages are not filled to the end. Absent: 3 bytes an element with
    // float32 throughout and the state's bytes with other types; with keep_last_step, the most that records can take. A
    // block that finds the budget used up waits for the norm.
    std::optional<std::size_t> journal_budget_bytes = {};
    bool keep_last_step = false; // for rollback()
    // How long a device may take for its part of a step before it counts as one that has stopped answering.
    double device_timeout_s = 300;
    // Whether a device has room for records of all its blocks: as much again as its params and moments. Without records
    // it never begins before the norm is known, and a failure in the update itself cannot be taken back: the error says
    // so, and a state has to be loaded.
    bool device_records = true;
    // Where gradients are spread over ranks: adds the words of all ranks (see squares_total) and leaves the sums in
    // these, as MPI_Allreduce(MPI_IN_PLACE, words.data(), words.size(), MPI_INT64_T, MPI_SUM, comm) does. Integers have
    // no order of addition, so all ranks have one norm, and it is that of one process with all gradients, as long as
    // these are cut at multiples of norm_block_elems. Called once in every step, by finish() or step(), and for
    // step_async() in one of the team's threads. May throw. Words that no sum can have, or that are less than this
    // process's own, are invalid_argument. After either, step() and step_async() leave everything as it was, and for
    // finish() the step stays open: call finish() again, or abandon().
    std::function<void(std::span<std::int64_t, squares_total::word_count> words)> reduce = {};
    // For an engine that copies weights to where they are used while other shards are still stepped. Called whenever
    // elements [begin, end) of a shard have new weights: mostly once a step, for all of a shard that the CPU has; again
    // where a step that was taken too early is taken back or done again, or a shard is stepped in parts. The last call
    // before finish(), step(), wait(), abandon() or rollback() returns has the weights that stay. Both param and
    // weight_out are written then, and only the next step changes them. In the executor's threads or the caller's, for
    // different shards at once. Must not call this optimizer, nor wait for anyone who does, nor throw, which ends the
    // program.
    std::function<void(shard_id shard, std::size_t begin, std::size_t end)> weights_ready = {};
};

namespace detail {

void check_limits(double max_norm, double max_abs_grad);
// The total of all ranks, by options.reduce, which must be set. Throws what it throws, and invalid_argument for a
// result that cannot be: a step by that would be clipped to anything, or not at all.
[[nodiscard]] squares_total reduced(optimizer_options const& options, squares_total const& own);
} // namespace detail

// Throws invalid_argument naming the first option that cannot be.
void validate(optimizer_options const& options);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/step/optimizer_options.ipp>
#endif
