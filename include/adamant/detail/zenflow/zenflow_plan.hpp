// SPDX-License-Identifier: Apache-2.0
// The plan of a ZenFlow step: coefficients and work for each column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/deferred_update.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Plans one step. Requires `wanted` of each param.
class zenflow_plan {
public:
    zenflow_plan(zenflow_model& model, step_terms const& terms, double clip) : model_(model), terms_(terms), clip_(clip)
    {
    }

    // Plans the immediate update of selected columns and vectors. Returns the bytes of the columns' gradients.
    [[nodiscard]] std::size_t selected() const
    {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state& state = model_.params[i];
            zenflow_matrix const& m = model_.matrices[i];
            state.plan.gathered = bytes;
            auto const make = [&](std::uint64_t count) { return make_step(i, count); };
            if (model_.is_matrix(i))
                list_columns(state.plan.wanted, state.plan.list);
            make_steps(state.counts, state.plan.list, state.plan.steps, state.plan.step_of, make);
            if (state.plan.list.size() < m.columns())
                state.plan.added = make(1); // only its gradient scaling is used
            bytes += m.shard().bytes(shard_array::grad, state.plan.list.size() * m.rows());
            bytes = (bytes + 63) / 64 * 64;
        }
        return bytes;
    }
    // Plans the deferred update of a window that ends with this step.
    void deferred(deferred_update& next) const
    {
        std::vector<std::uint32_t> list;
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state const& state = model_.params[i];
            deferred_part& p = next.parts[i];
            std::uint64_t const summed = state.summed + model_.takes_part(i);
            p.columns.resize(model_.matrices[i].columns());
            for (std::size_t c = 0; c < p.columns.size(); ++c)
                p.columns[c] = summed != 0 && state.plan.wanted[c] == 0;
            list_columns(p.columns, list);
            p.sums = nullptr;
            if (list.empty())
                continue;
            make_steps(state.counts, list, p.steps, p.step_of,
                       [&](std::uint64_t count) { return make_step(i, count).c; });
            rounded_to_nearest([&] { p.scale = round_coefficient(1.0 / static_cast<double>(summed)); });
            p.sums = model_.sums_of(i);
        }
    }
    // Plans the accumulation of the deferred gradients.
    [[nodiscard]] std::vector<sum_tile> sums(zenflow_report& report) const
    {
        std::vector<sum_tile> tiles;
        for (zenflow_part const& p : model_.rows) {
            zenflow_param_state const& state = model_.params[p.param];
            std::size_t const deferred_columns = model_.matrices[p.param].columns() - state.plan.list.size();
            if (!model_.takes_part(p.param) || deferred_columns == 0)
                continue;
            tiles.push_back({&model_.matrices[p.param], p.begin, p.end, &state.plan.added, state.summed == 0,
                             model_.sums_of(p.param)});
            report.deferred += deferred_columns * (p.end - p.begin);
        }
        return tiles;
    }

private:
    // Makes one step for each distinct count of updates of the given columns, for the update after it.
    template <class Step, class Make>
    static void make_steps(std::vector<std::uint64_t> const& counts, std::vector<std::uint32_t> const& columns,
                           std::vector<Step>& steps, std::vector<std::uint32_t>& step_of, Make const& make)
    {
        std::vector<std::uint64_t> column_counts;
        column_counts.reserve(columns.size());
        for (std::uint32_t const c : columns)
            column_counts.push_back(counts[c]);
        std::vector<std::size_t> const order =
            sorted_order(column_counts, [](std::uint64_t a, std::uint64_t b) { return a < b; });
        steps.clear();
        step_of.resize(counts.size());
        for (std::size_t k = 0; k < order.size(); ++k) {
            if (k == 0 || column_counts[order[k]] != column_counts[order[k - 1]])
                steps.push_back(make(column_counts[order[k]] + 1));
            step_of[columns[order[k]]] = static_cast<std::uint32_t>(steps.size() - 1);
        }
    }
    [[nodiscard]] group_step make_step(std::size_t param, std::uint64_t count) const
    {
        std::size_t const group = model_.registry[param].group;
        group_step result;
        rounded_to_nearest(
            [&] { result = make_group_step(model_.registry.groups()[group], group, terms_, clip_, count); });
        return result;
    }

    zenflow_model& model_;
    step_terms const& terms_;
    double clip_; // clip coefficient of this step
};

} // namespace detail
ADAMANT_END_NAMESPACE
