// SPDX-License-Identifier: Apache-2.0
// The read-only passes of a step over its gradients: their norm, the scores of their columns, and the squares of a
// window.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/decision.hpp>
#include <adamant/detail/engine/report_fields.hpp>
#include <adamant/detail/exec/striped_total.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/numerics/squares_total.hpp>
#include <adamant/detail/step/column_scores.hpp>
#include <adamant/detail/zenflow/column_selection.hpp>
#include <adamant/detail/zenflow/device_columns.hpp>
#include <adamant/detail/zenflow/window_step.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A device_error thrown by reduce or reduce_columns: unlike one of the optimizer's device, it leaves the step open.
struct rank_error {
    std::exception_ptr error;
};

class zenflow_gradients {
public:
    zenflow_gradients(zenflow_model& model, zenflow_options const& zenflow, optimizer_options const& options)
        : model_(model), zenflow_(zenflow), options_(options)
    {
    }

    // Computes the norm of all gradients, and decides whether the step is skipped or clipped. device_state: null if the
    // gradients are in host memory. This and the other public functions throw rank_error.
    [[nodiscard]] norm_verdict norm(device_columns* device_state, step_terms const& terms, zenflow_report& report) const
    {
        norm_verdict verdict;
        squares_total total;
        if (device_state != nullptr)
            total = device_state->gradients().squares(model_.in_step); // waits for the downloads, too
        if (measuring_of(terms, options_) == measuring::none) {
            report_norm(report, false, {}, verdict);
            return verdict;
        }
        striped_total<squares_total> squares_of_parts;
        for_each_part(model_.cpu, device_state != nullptr ? 0 : model_.blocks.size(), model_.all_elems,
                      [&](std::size_t index) {
                          zenflow_part const& p = model_.blocks[index];
                          if (!model_.takes_part(p.param))
                              return;
                          float_mode_scope const mode(subnormals::flushed);
                          squares_total part;
                          scratch_block scratch;
                          for (std::size_t b = p.begin; b < p.end; ++b)
                              part.add(model_.matrices[p.param].shard().gradient(b, false, {}, true, scratch).squares);
                          squares_of_parts.add(index, part);
                      });
        total.add(squares_of_parts.sum());
        reduce(total);
        grad_squares const squares = total.rounded();
        rounded_to_nearest([&] { verdict = judge(squares, terms.loss_scale, terms.max_norm, terms.on_nonfinite); });
        report_norm(report, true, squares, verdict);
        if (report.nonfinite_grads != 0)
            find_first_nonfinite(report);
        return verdict;
    }
    // Sets `wanted` of each param by the scores of its columns, over all ranks. device_state: null if the gradients are
    // read in host memory.
    void select(device_columns* device_state) const
    {
        std::vector<float> const largest = largest_gradients(device_state);
        std::vector<std::int64_t> const scores = column_scores(device_state, largest);
        std::vector<column_candidates> candidates;
        std::size_t first = 0;
        for (std::size_t i = 0; i < model_.size(); ++i) {
            std::size_t const n = model_.matrices[i].columns();
            if (model_.is_matrix(i))
                candidates.push_back({std::span(scores).subspan(first, n), score_scale(largest[i]).unit,
                                      model_.matrices[i].all_rows(), model_.params[i].plan.wanted});
            first += n;
        }
        if (zenflow_.scope == selection_scope::all_params)
            select_columns(candidates, zenflow_.topk_ratio);
        else
            for (column_candidates const& each : candidates)
                select_columns(each.scores, zenflow_.topk_ratio, each.selected);
    }
    // The squares of the gradients that this step applies immediately, and of the deferred gradients after it, over all
    // ranks.
    [[nodiscard]] window_squares squares_of_window() const
    {
        striped_total<squares_total> done_parts, deferred_parts;
        for_each_part(model_.cpu, model_.blocks.size(), model_.all_elems, [&](std::size_t index) {
            zenflow_part const& p = model_.blocks[index];
            zenflow_param_state const& state = model_.params[p.param];
            if (!model_.is_matrix(p.param))
                return;
            zenflow_matrix const& m = model_.matrices[p.param];
            float const* const sums = state.summed == 0 ? nullptr : model_.sums_of(p.param);
            squares_total part_done, part_deferred;
            for (std::size_t b = p.begin; b < p.end; ++b) {
                if (model_.takes_part(p.param) && !state.plan.list.empty())
                    part_done.add(m.squares_of_gradient(b, state.plan.steps[0], state.plan.wanted, 1, nullptr));
                if (state.plan.list.size() == m.columns())
                    continue;
                if (model_.takes_part(p.param))
                    part_deferred.add(m.squares_of_gradient(b, state.plan.added, state.plan.wanted, 0, sums));
                else if (sums != nullptr)
                    part_deferred.add(m.squares_of_sums(b, sums, state.plan.wanted, 0));
            }
            done_parts.add(index, part_done);
            deferred_parts.add(index, part_deferred);
        });
        squares_total done = done_parts.sum(), deferred = deferred_parts.sum();
        reduce(done);
        reduce(deferred);
        return {done.rounded(), deferred.rounded()};
    }

private:
    // Calls callback(arguments...) of the options.
    template <class Callback, class... Arguments>
    static auto ask_ranks(Callback const& callback, Arguments&&... arguments)
    {
        try {
            return callback(std::forward<Arguments>(arguments)...);
        } catch (device_error const&) {
            throw rank_error{std::current_exception()};
        }
    }
    void reduce(squares_total& total) const
    {
        if (options_.reduce)
            total = ask_ranks(reduced, options_, total);
    }
    // The largest magnitude of each param's gradients, over all ranks.
    [[nodiscard]] std::vector<float> largest_gradients(device_columns* device_state) const
    {
        std::vector<std::uint32_t> const device_largest =
            device_state != nullptr ? device_state->gradients().largest(model_.in_step) : std::vector<std::uint32_t>();
        std::vector<float> largest(model_.size());
        std::vector<std::int64_t> numbers(model_.size());
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_matrix const& m = model_.matrices[i];
            if (device_state != nullptr)
                largest[i] = std::bit_cast<float>(device_largest[i]);
            else if (model_.is_matrix(i) && model_.takes_part(i))
                largest[i] = largest_magnitude(model_.cpu, m.shard().data(shard_array::grad),
                                               m.shard().type(shard_array::grad), m.size());
            numbers[i] = std::bit_cast<std::int32_t>(largest[i]); // bits of non-negative floats have their order
        }
        if (zenflow_.reduce_columns)
            ask_ranks(zenflow_.reduce_columns, numbers, column_reduction::max);
        for (std::size_t i = 0; i < model_.size(); ++i) {
            auto const passed = std::bit_cast<std::int32_t>(largest[i]);
            if (numbers[i] < passed || numbers[i] >= std::int64_t{float_infinity_bits})
                throw_invalid_argument({"cannot use the result of reduce_columns: it returned the maximum ", numbers[i],
                                        ", but this rank passed ", passed,
                                        " (the bits of a finite float). Return the maximum over all ranks."});
            largest[i] = std::bit_cast<float>(static_cast<std::uint32_t>(numbers[i]));
        }
        return largest;
    }
    [[nodiscard]] column_score_scale score_scale(float largest) const
    {
        column_score_scale result;
        rounded_to_nearest([&] { result = column_score_scale_for(largest, zenflow_.score); });
        return result;
    }
    // The scores of all columns over all ranks.
    [[nodiscard]] std::vector<std::int64_t> column_scores(device_columns* device_state,
                                                          std::vector<float> const& largest) const
    {
        std::vector<std::int64_t> scores;
        std::vector<float> scales;
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_matrix const& m = model_.matrices[i];
            scales.push_back(score_scale(largest[i]).scale);
            std::size_t const first = scores.size();
            scores.resize(first + m.columns());
            if (device_state == nullptr && model_.takes_part(i) && m.size() != 0)
                add_column_scores(model_.cpu, m.shard().data(shard_array::grad), m.shard().type(shard_array::grad),
                                  m.rows(), m.columns(), largest[i], zenflow_.score, std::span(scores).subspan(first));
        }
        if (device_state != nullptr)
            device_state->gradients().add_scores(model_.in_step, zenflow_.score, scales, scores);
        if (zenflow_.reduce_columns)
            ask_ranks(zenflow_.reduce_columns, scores, column_reduction::sum);
        if (std::any_of(scores.begin(), scores.end(), [](std::int64_t score) { return score < 0; }))
            throw_invalid_argument(
                {"cannot use the result of reduce_columns: a score is negative. Return the sum over all "
                 "ranks."});
        auto first = scores.begin();
        for (std::size_t i = 0; i < model_.size(); ++i) {
            auto const end = first + static_cast<std::ptrdiff_t>(model_.matrices[i].columns());
            // Below 2^-102, gradients may be too small for a score above 0.
            if (first != end && largest[i] >= 0x1p-102f &&
                std::all_of(first, end, [](std::int64_t score) { return score == 0; }))
                throw_invalid_argument({"cannot use the results of reduce_columns: all scores of param ",
                                        model_.registry.text(i), " are 0, but the maximum of its gradients is ",
                                        double{largest[i]},
                                        ". Return the maximum over all ranks in the first call, and the sum in the "
                                        "second."});
            first = end;
        }
        return scores;
    }
    void find_first_nonfinite(zenflow_report& report) const
    {
        for (std::size_t i = 0; i < model_.size(); ++i) {
            offload_shard const& s = model_.matrices[i].shard();
            for (std::size_t b = 0; model_.takes_part(i) && b < s.blocks(); ++b) {
                scratch_block scratch;
                float_mode_scope const mode(subnormals::flushed);
                if (s.gradient(b, false, {}, true, scratch).squares.nonfinite == 0)
                    continue;
                report.first_nonfinite = optimizer_report::element{i, s.first_nonfinite(b, false)};
                return;
            }
        }
    }

    zenflow_model& model_;
    zenflow_options const& zenflow_;
    optimizer_options const& options_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
