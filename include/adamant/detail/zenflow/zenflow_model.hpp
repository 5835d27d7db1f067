// SPDX-License-Identifier: Apache-2.0
// The params of a zenflow_optimizer: arrays, selection, update counts and accumulated gradients.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/executor.hpp>
#include <adamant/memory.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/zenflow/zenflow_matrix.hpp>
#include <adamant/detail/zenflow/zenflow_state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// What the current step does with a param.
struct zenflow_param_plan {
    std::vector<std::uint8_t> wanted;   // for each column: selected by this step
    std::vector<std::uint8_t> late;     // columns whose deferred update runs early, because they are selected now
    std::vector<std::uint32_t> list;    // the selected columns; for a vector always column 0
    std::vector<group_step> steps;      // steps of the selected columns, one for each count of updates
    std::vector<std::uint32_t> step_of; // for each column: its index in steps
    std::size_t gathered = 0;           // offset of their gathered gradients, in bytes
    group_step added = {};              // scaling of gradients before they are accumulated
};
// What a param carries from step to step besides its arrays.
struct zenflow_param_state {
    std::vector<std::uint64_t> counts;  // updates of each column
    std::vector<std::uint8_t> selected; // for each column
    std::uint64_t summed = 0;           // number of steps in the sums
    std::size_t first_sum = 0;          // offset in the sums
    zenflow_param_plan plan = {};
};
// A part of a param that one thread processes: rows of a matrix, norm blocks, or one column.
struct zenflow_part {
    std::size_t param, begin, end;
};
// Lists the columns whose flag is set.
inline void list_columns(std::vector<std::uint8_t> const& flags, std::vector<std::uint32_t>& list)
{
    list.clear();
    for (std::size_t c = 0; c < flags.size(); ++c)
        if (flags[c] != 0)
            list.push_back(static_cast<std::uint32_t>(c));
}

struct zenflow_model {
    explicit zenflow_model(executor const& executor) : cpu(executor) {}
    zenflow_model(zenflow_model const&) = delete;
    zenflow_model& operator=(zenflow_model const&) = delete;

    executor cpu;
    adamant::detail::registry registry;
    std::vector<zenflow_matrix> matrices; // for each param; a vector has 0 columns
    std::vector<zenflow_param_state> params;
    std::vector<shard_in_step> in_step; // the params of the open step
    std::vector<zenflow_part> blocks, rows;
    std::size_t all_elems = 0, matrix_elems = 0;
    bool is_laid_out = false;
    bool overlaps_are_checked = false; // of the current arrays, on the CPU or the device

    [[nodiscard]] std::size_t size() const noexcept { return matrices.size(); }
    [[nodiscard]] bool is_matrix(std::size_t i) const noexcept { return matrices[i].columns() != 0; }
    [[nodiscard]] bool is_empty(std::size_t i) const noexcept { return matrices[i].shard().size() == 0; }
    [[nodiscard]] bool takes_part(std::size_t i) const noexcept { return detail::takes_part(in_step[i]); }

    std::size_t add_param(std::size_t group, std::string const& name, any_shard const& shard, std::size_t columns,
                          void* weights, shard_position position)
    {
        std::size_t const state_columns = std::max<std::size_t>(1, columns);
        std::size_t const first_row = position.begin / state_columns;
        if (columns != 0) {
            check_matrix(name, shard, columns, weights, position);
            if (position.shape.empty())
                position.shape = {shard.size() / columns, columns};
        } else if (weights != nullptr) {
            throw_invalid_argument(
                {"cannot add param '", name,
                 "' with `weights`: it has 0 columns, so its weights are weight_out or param. Omit `weights`, or set "
                 "the number of columns."});
        }
        reserve_one(matrices);
        reserve_one(params);
        zenflow_param_state state;
        state.counts.resize(state_columns);
        state.selected.resize(columns);
        state.plan.wanted.resize(columns);
        state.plan.late.reserve(columns);
        state.plan.list.resize(columns == 0 ? 1 : 0);
        std::vector<array_extent> extents;
        append_extent(extents, "weights", static_cast<std::byte const*>(weights),
                      columns == 0 ? 0 : shard.size() * size_bytes(weights_type(shard.format().types)), size(), true);
        std::size_t const number =
            registry.add_shard(group, name, shard, {}, std::move(position), cpu.tier(), std::move(extents));
        std::size_t const all_elems_of_param =
            element_count(registry.positions().params()[registry.positions()[number].param]);
        matrices.emplace_back(registry[number].shard, cpu.tier(), columns, all_elems_of_param / state_columns,
                              first_row, static_cast<std::byte*>(weights));
        params.push_back(std::move(state));
        is_laid_out = overlaps_are_checked = false;
        return number;
    }
    void set_gradient(std::size_t param, void const* grad)
    {
        registry.set_gradient(param, grad, overlaps_are_checked);
        matrices[param].set_gradient(static_cast<std::byte const*>(grad));
    }

    // Throws invalid_argument if an array that steps write overlaps another one. on_device: see registry.
    void check_overlaps(bool on_device)
    {
        std::vector<array_extent> weights;
        for (std::size_t i = 0; i < size(); ++i)
            append_extent(weights, "weights", matrices[i].weights(),
                          matrices[i].size() * size_bytes(matrices[i].weights_type()), i, true);
        registry.check_overlaps(on_device, std::move(weights));
        overlaps_are_checked = true;
    }
    // sum_buffers: 1 or 2. With two, gradients are accumulated in one while the deferred update reads the other.
    void build_layout(std::size_t sum_buffers)
    {
        std::size_t elems = 0;
        blocks.clear();
        rows.clear();
        all_elems = matrix_elems = 0;
        for (std::size_t i = 0; i < size(); ++i) {
            zenflow_matrix const& m = matrices[i];
            params[i].first_sum = elems;
            elems += m.size();
            all_elems += m.shard().size();
            constexpr std::size_t together = 16; // norm blocks
            for (std::size_t b = 0; b < m.shard().blocks(); b += together)
                blocks.push_back({i, b, std::min(b + together, m.shard().blocks())});
            std::size_t const tile_rows =
                m.columns() == 0 ? 1 : std::clamp<std::size_t>(65536 / m.columns() / 64 * 64, 64, 4096);
            for (std::size_t row = 0; row < m.rows(); row += tile_rows)
                rows.push_back({i, row, std::min(row + tile_rows, m.rows())});
        }
        matrix_elems = elems;
        for (std::size_t k = 0; k < sum_buffers; ++k)
            sum_memory_[k] = make_buffer<float>(cpu, elems);
        is_laid_out = true;
    }
    // The accumulated gradients of this window.
    [[nodiscard]] float* sums_of(std::size_t i) noexcept
    {
        return sum_memory_[sum_buffer_].data() + params[i].first_sum;
    }
    void use_other_sums() noexcept { sum_buffer_ = 1 - sum_buffer_; }
    void use_first_sums() noexcept { sum_buffer_ = 0; }

    // Copies weights by columns to the model's weights by rows: of all columns, or of the given ones.
    void copy_weights(std::size_t param) const
    {
        zenflow_matrix const& m = matrices[param];
        for_each_part(cpu, (m.rows() + copy_rows - 1) / copy_rows, m.size(),
                      [&](std::size_t i) { m.copy_weights(i * copy_rows, std::min(m.rows(), (i + 1) * copy_rows)); });
    }
    void copy_weights(std::size_t param, std::vector<std::uint32_t> const& columns) const
    {
        zenflow_matrix const& m = matrices[param];
        if (columns.empty())
            return;
        for_each_part(cpu, (m.rows() + copy_rows - 1) / copy_rows, columns.size() * m.rows(), [&](std::size_t i) {
            m.copy_weights(columns, i * copy_rows, std::min(m.rows(), (i + 1) * copy_rows));
        });
    }

private:
    static constexpr std::size_t copy_rows = 64;

    static void check_matrix(std::string const& name, any_shard const& shard, std::size_t columns, void const* weights,
                             shard_position const& position)
    {
        std::string const subject = text_of({"cannot add matrix '", name, "' with ", counted(columns, "column"), ": "});
        std::size_t const last = position.shape.empty() ? columns : position.shape.back();
        if (shard.size() % columns != 0 || position.begin % columns != 0)
            throw_invalid_argument(
                {subject, "elements ", position.begin, " to ", position.begin + shard.size(), " are not whole rows"});
        if (last != columns)
            throw_invalid_argument({subject, "the last dimension of its shape is ", last});
        std::size_t const together = elems_together(shard.format().types);
        if (shard.size() / columns % together != 0 || position.begin / columns % together != 0)
            throw_invalid_argument({subject, "it has rows ", position.begin / columns, " to ",
                                    (position.begin + shard.size()) / columns, ", but 8-bit moments are in groups of ",
                                    together,
                                    " rows. Pass a multiple of that, other moments, or 0 columns to update it every "
                                    "step."});
        if (weights == nullptr && shard.size() != 0)
            throw_invalid_argument({subject, "it has no array of weights. Weights are stored by rows, as the "
                                             "model reads them; param and weight_out by columns."});
    }

    buffer<float> sum_memory_[2];
    std::size_t sum_buffer_ = 0;
};

} // namespace detail
ADAMANT_END_NAMESPACE
