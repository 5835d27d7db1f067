// SPDX-License-Identifier: Apache-2.0
// What is updated every step, on the host: without a device, selected columns and vectors are stepped where they are.
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

    // Memory for gradients in the order of their columns, and for what step() notes.
    void have_room(std::size_t bytes)
    {
        std::size_t columns = 0;
        for (zenflow_param_state const& own : model_.params)
            columns += own.list.size();
        columns_.reserve(columns);
        if (gathered_.size() < bytes)
            gathered_ = buffer<std::byte>(bytes);
    }
    // The step of what is selected, and of vectors; with their weights.
    void step(kernel::memory_access how)
    {
        gather();
        columns_.clear();
        std::size_t elems = 0;
        for (std::size_t i = 0; i < model_.size(); ++i)
            for (std::size_t k = 0;
                 k < model_.params[i].list.size() && model_.takes_part(i) && model_.matrices[i].rows() != 0; ++k) {
                columns_.push_back({i, k, model_.params[i].list[k]});
                elems += model_.matrices[i].rows();
            }
        for_each_part(model_.cpu, columns_.size(), elems, [&](std::size_t at) {
            zenflow_part const& p = columns_[at];
            zenflow_param_state const& own = model_.params[p.param];
            zenflow_matrix const& m = model_.matrices[p.param];
            m.step_column(p.end,
                          gathered_.data() + own.gathered + m.shard().bytes(shard_array::grad, p.begin * m.rows()),
                          own.steps[own.step_of[p.end]], how);
        });
        for_each_part(model_.cpu, model_.blocks.size(), model_.all_elems - model_.matrix_elems, [&](std::size_t at) {
            zenflow_part const& p = model_.blocks[at];
            if (model_.is_matrix(p.param) || !model_.takes_part(p.param))
                return;
            offload_shard const& s = model_.matrices[p.param].shard();
            group_step const& by = model_.params[p.param].steps[0];
            float_mode_scope const mode(subnormals::flushed);
            scratch_block scratch;
            for (std::size_t b = p.begin; b < p.end; ++b)
                s.step(b, s.gradient(b, false, by.rules, false, scratch), by.c, how);
        });
        for_each_part(model_.cpu, model_.rows.size(), model_.matrix_elems, [&](std::size_t at) {
            zenflow_part const& p = model_.rows[at];
            if (model_.takes_part(p.param))
                model_.matrices[p.param].copy_weights(model_.params[p.param].list, p.begin, p.end);
        });
    }

private:
    void gather()
    {
        for_each_part(model_.cpu, model_.rows.size(), model_.matrix_elems, [&](std::size_t at) {
            zenflow_part const& p = model_.rows[at];
            zenflow_param_state const& own = model_.params[p.param];
            if (model_.takes_part(p.param))
                model_.matrices[p.param].gather(own.list, p.begin, p.end, gathered_.data() + own.gathered);
        });
    }

    zenflow_model const& model_;
    buffer<std::byte> gathered_;
    std::vector<zenflow_part> columns_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
