// SPDX-License-Identifier: Apache-2.0
// Immediate updates on the host: without a device, selected columns and vectors are stepped in place.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/memory.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class host_columns {
public:
    explicit host_columns(zenflow_model const& model) : model_(model) {}

    // Reserves `bytes` for gradients gathered by columns, and the list of columns of step().
    void reserve(std::size_t bytes)
    {
        std::size_t columns = 0;
        for (zenflow_param_state const& state : model_.params)
            columns += state.plan.list.size();
        columns_.reserve(columns);
        if (gathered_.size() < bytes)
            gathered_ = buffer<std::byte>(bytes);
    }
    // Steps selected columns and vectors, and writes their weights.
    void step(kernel::memory_access const& access)
    {
        for_each_part(model_.cpu, model_.rows.size(), model_.matrix_elems, [&](std::size_t i) {
            zenflow_part const& p = model_.rows[i];
            zenflow_param_state const& state = model_.params[p.param];
            if (model_.takes_part(p.param))
                model_.matrices[p.param].gather(state.plan.list, p.begin, p.end,
                                                gathered_.data() + state.plan.gathered);
        });
        columns_.clear();
        std::size_t elems = 0;
        for (std::size_t i = 0; i < model_.size(); ++i)
            for (std::size_t k = 0;
                 k < model_.params[i].plan.list.size() && model_.takes_part(i) && model_.matrices[i].rows() != 0; ++k) {
                columns_.push_back({i, k, model_.params[i].plan.list[k]});
                elems += model_.matrices[i].rows();
            }
        for_each_part(model_.cpu, columns_.size(), elems, [&](std::size_t i) {
            zenflow_part const& p = columns_[i];
            zenflow_param_state const& state = model_.params[p.param];
            zenflow_matrix const& m = model_.matrices[p.param];
            m.step_column(
                p.end, gathered_.data() + state.plan.gathered + m.shard().bytes(shard_array::grad, p.begin * m.rows()),
                state.plan.steps[state.plan.step_of[p.end]], access);
        });
        for_each_part(model_.cpu, model_.blocks.size(), model_.all_elems - model_.matrix_elems, [&](std::size_t i) {
            zenflow_part const& p = model_.blocks[i];
            if (model_.is_matrix(p.param) || !model_.takes_part(p.param))
                return;
            group_step const& terms = model_.params[p.param].plan.steps[0];
            float_mode_scope const mode(subnormals::flushed);
            model_.matrices[p.param].shard().step_blocks(p.begin, p.end, terms.c, terms.rules, access);
        });
        for_each_part(model_.cpu, model_.rows.size(), model_.matrix_elems, [&](std::size_t i) {
            zenflow_part const& p = model_.rows[i];
            if (model_.takes_part(p.param))
                model_.matrices[p.param].copy_weights(model_.params[p.param].plan.list, p.begin, p.end);
        });
    }

private:
    zenflow_model const& model_;
    buffer<std::byte> gathered_;
    std::vector<zenflow_part> columns_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
