// SPDX-License-Identifier: Apache-2.0
// A step, planned: what is done with each column, and by which coefficients.
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

// Coefficients of one step, and what it does with which columns; what is wanted of each param is known.
class zenflow_plan {
public:
    zenflow_plan(zenflow_model& model, step_terms const& terms, double clip) : model_(model), terms_(terms), clip_(clip)
    {
    }

    // How what is updated every step is stepped. on_host: its gradients are gathered there; returns how many bytes they
    // take.
    [[nodiscard]] std::size_t selected(bool on_host) const
    {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state& own = model_.params[i];
            zenflow_matrix const& m = model_.matrices[i];
            own.gathered = bytes;
            auto const make = [&](std::uint64_t count) { return make_step(i, count); };
            if (!model_.is_matrix(i)) {
                make_steps(own.counts, {0}, own.steps, own.step_of, make);
                continue;
            }
            list_columns(own.wanted, 1, own.list);
            make_steps(own.counts, own.list, own.steps, own.step_of, make);
            if (own.list.size() != m.columns())
                own.added = make(1); // only its scaling of gradients counts
            bytes += on_host ? m.shard().bytes(shard_array::grad, own.list.size() * m.rows()) : 0;
            bytes = (bytes + 63) / 64 * 64;
        }
        return bytes;
    }
    // The window ends with this step: how deferred gradients are applied.
    void deferred(deferred_update& next) const
    {
        next.zero_nonfinite = false;
        std::vector<std::uint32_t> list;
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_param_state const& own = model_.params[i];
            deferred_part& p = next.parts[i];
            std::uint64_t const summed = own.summed + model_.takes_part(i);
            p.columns.assign(model_.matrices[i].columns(), 0);
            p.sums = nullptr;
            if (!model_.is_matrix(i) || summed == 0)
                continue;
            list_columns(own.wanted, 0, list);
            for (std::uint32_t const c : list)
                p.columns[c] = 1;
            make_steps(own.counts, list, p.steps, p.step_of,
                       [&](std::uint64_t count) { return make_step(i, count).c; });
            rounded_to_nearest([&] { p.scale = round_coefficient(1.0 / static_cast<double>(summed)); });
            p.sums = list.empty() ? nullptr : model_.sums_of(i);
        }
    }
    // The gradients that are accumulated.
    [[nodiscard]] std::vector<sum_tile> sums(zenflow_report& report) const
    {
        std::vector<sum_tile> tiles;
        for (zenflow_part const& p : model_.rows) {
            zenflow_param_state const& own = model_.params[p.param];
            if (model_.takes_part(p.param) && own.list.size() != model_.matrices[p.param].columns())
                tiles.push_back(
                    {&model_.matrices[p.param], p.begin, p.end, &own.added, own.summed == 0, model_.sums_of(p.param)});
        }
        for (std::size_t i = 0; i < model_.size(); ++i)
            if (model_.is_matrix(i) && model_.takes_part(i))
                report.deferred +=
                    (model_.matrices[i].columns() - model_.params[i].list.size()) * model_.matrices[i].rows();
        return tiles;
    }

private:
    // How columns of these counts, and one update more, are stepped: a step for each count that there is.
    template <class Step, class Make>
    static void make_steps(std::vector<std::uint64_t> const& counts, std::vector<std::uint32_t> const& columns,
                           std::vector<Step>& steps, std::vector<std::uint32_t>& step_of, Make const& make)
    {
        std::vector<std::uint64_t> of;
        of.reserve(columns.size());
        for (std::uint32_t const c : columns)
            of.push_back(counts[c]);
        std::vector<std::size_t> const order = sorted_order(of, [](std::uint64_t a, std::uint64_t b) { return a < b; });
        steps.clear();
        step_of.resize(counts.size());
        for (std::size_t k = 0; k < order.size(); ++k) {
            if (k == 0 || of[order[k]] != of[order[k - 1]])
                steps.push_back(make(of[order[k]] + 1));
            step_of[columns[order[k]]] = static_cast<std::uint32_t>(steps.size() - 1);
        }
    }
    [[nodiscard]] group_step make_step(std::size_t param, std::uint64_t count) const
    {
        std::size_t const group = model_.registry[param].group;
        group_step made;
        rounded_to_nearest(
            [&] { made = make_group_step(model_.registry.groups()[group], group, terms_, clip_, count); });
        return made;
    }

    zenflow_model& model_;
    step_terms const& terms_;
    double clip_; // of this step's gradients
};

} // namespace detail
ADAMANT_END_NAMESPACE
