// SPDX-License-Identifier: Apache-2.0
// The params of a zenflow_optimizer: their arrays, what is selected and counted of each, and the sums.
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

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct zenflow_param_state {
    std::vector<std::uint64_t> counts;          // of updates
    std::vector<std::uint8_t> selected, wanted; // of each column; wanted: by the selection that is being made
    std::vector<std::uint8_t> publishing;       // zeros
    std::vector<std::uint8_t> before, late;     // what was selected; what takes its deferred update early,
    std::vector<std::uint32_t> late_list;       // as a list
    std::vector<std::uint32_t> list;            // the selected columns,
    std::vector<group_step> steps;              // how those of each count are stepped now,
    std::vector<std::uint32_t> step_of;         // and which of these each has
    std::size_t gathered = 0;                   // where their gradients begin
    std::size_t first_sum = 0;                  // in the sums
    std::uint64_t summed = 0;                   // steps in the sums
    group_step added = {};                      // how gradients are scaled before they are accumulated
    float largest = 0;                          // magnitude of its gradients
};
// A part of a param that one thread takes: rows of a matrix, norm blocks, or one of its columns.
struct zenflow_part {
    std::size_t param, begin, end;
};
inline void list_columns(std::vector<std::uint8_t> const& flags, std::uint8_t flag, std::vector<std::uint32_t>& list)
{
    list.clear();
    for (std::size_t c = 0; c < flags.size(); ++c)
        if (flags[c] == flag)
            list.push_back(static_cast<std::uint32_t>(c));
}

struct zenflow_model {
    explicit zenflow_model(executor const& on) : cpu(on) {}
    zenflow_model(zenflow_model const&) = delete;
    zenflow_model& operator=(zenflow_model const&) = delete;

    executor cpu;
    adamant::detail::registry registry;
    std::vector<zenflow_matrix> matrices; // of each param; without columns for a vector
    std::vector<zenflow_param_state> params;
    std::vector<std::uint8_t> present; // of each param: whether it takes part in this step
    std::vector<zenflow_part> blocks, rows;
    std::size_t all_elems = 0, matrix_elems = 0;
    bool is_laid_out = false;

    [[nodiscard]] std::size_t size() const noexcept { return matrices.size(); }
    [[nodiscard]] bool is_matrix(std::size_t i) const noexcept { return matrices[i].columns() != 0; }
    [[nodiscard]] bool is_empty(std::size_t i) const noexcept { return matrices[i].shard().size() == 0; }
    [[nodiscard]] bool takes_part(std::size_t i) const noexcept { return present[i] != 0; }
    // A vector's elements are its rows.
    [[nodiscard]] std::size_t own_rows(std::size_t i) const noexcept
    {
        return is_matrix(i) ? matrices[i].rows() : matrices[i].shard().size();
    }

    std::size_t add_param(std::size_t group, std::string const& name, any_shard const& shard, std::size_t columns,
                          void* weights, shard_place place)
    {
        std::size_t all_rows = shard.size();
        std::size_t first_row = 0;
        if (columns != 0) {
            check_matrix(name, shard, columns, weights, place);
            if (place.shape.empty())
                place.shape = {shard.size() / columns, columns};
            all_rows = 1;
            for (std::size_t const each : place.shape) // the registry refuses what overflows
                all_rows *= each;
            all_rows /= columns;
            first_row = place.begin / columns;
        } else if (weights != nullptr) {
            throw_invalid_argument({"a param '", name,
                                    "' without columns is given an array of weights, but its weights "
                                    "are weight_out, or param"});
        } else {
            first_row = place.begin;
        }
        matrices.reserve(matrices.size() + 1);
        params.reserve(params.size() + 1);
        zenflow_param_state own;
        own.counts.resize(columns == 0 ? 1 : columns);
        own.selected.resize(columns);
        own.wanted.resize(columns);
        own.publishing.resize(columns);
        own.before.reserve(columns);
        own.late.reserve(columns);
        own.late_list.reserve(columns);
        std::size_t const number = registry.add_shard(group, name, shard, {}, std::move(place), cpu.tier());
        if (columns == 0)
            all_rows = element_count(registry.places().params()[registry.places()[number].param]);
        matrices.emplace_back(registry[number].shard, cpu.tier(), columns, all_rows, first_row,
                              static_cast<std::byte*>(weights));
        params.push_back(std::move(own));
        is_laid_out = false;
        return number;
    }
    void set_gradient(std::size_t param, void const* grad)
    {
        registry.set_gradient(param, grad, is_laid_out);
        matrices[param].set_gradient(static_cast<std::byte const*>(grad));
    }

    // halves: of the sums; with two, gradients are accumulated in one while what the other has is stepped.
    void build_layout(std::size_t halves)
    {
        registry.check_overlaps();
        std::vector<array_extent> extents;
        for (std::size_t i = 0; i < size(); ++i) {
            append_extents(extents, matrices[i].shard(), i, false);
            append_extent(extents, "weights", matrices[i].weights(),
                          matrices[i].size() * size_bytes(matrices[i].weights_type()), i, true);
        }
        refuse_overlaps(std::move(extents));
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
            std::size_t const some =
                m.columns() == 0 ? 1 : std::clamp<std::size_t>(65536 / m.columns() / 64 * 64, 64, 4096);
            for (std::size_t row = 0; row < m.rows(); row += some)
                rows.push_back({i, row, std::min(row + some, m.rows())});
        }
        matrix_elems = elems;
        for (std::size_t half = 0; half < halves; ++half)
            sum_memory_[half] = make_buffer<float>(cpu, elems);
        is_laid_out = true;
    }
    // Where the gradients of this window are accumulated.
    [[nodiscard]] float* sums_of(std::size_t i) noexcept { return sum_memory_[half_].data() + params[i].first_sum; }
    void use_other_sums() noexcept { half_ = 1 - half_; }
    void use_first_sums() noexcept { half_ = 0; }

    // The model's weights are made from what lies by columns.
    void copy_weights(std::size_t param) const
    {
        zenflow_matrix const& m = matrices[param];
        for_each_part(cpu, (m.rows() + some_rows - 1) / some_rows, m.size(), [&](std::size_t at) {
            m.copy_weights(at * some_rows, std::min(m.rows(), (at + 1) * some_rows));
        });
    }
    void copy_weights(std::size_t param, std::vector<std::uint32_t> const& columns) const
    {
        zenflow_matrix const& m = matrices[param];
        if (columns.empty())
            return;
        for_each_part(cpu, (m.rows() + some_rows - 1) / some_rows, columns.size() * m.rows(), [&](std::size_t at) {
            m.copy_weights(columns, at * some_rows, std::min(m.rows(), (at + 1) * some_rows));
        });
    }

private:
    static constexpr std::size_t some_rows = 64;

    static void check_matrix(std::string const& name, any_shard const& shard, std::size_t columns, void const* weights,
                             shard_place const& place)
    {
        std::string const of = text_of({"a matrix '", name, "' with ", columns, " columns "});
        std::size_t const last = place.shape.empty() ? columns : place.shape.back();
        if (shard.size() % columns != 0 || place.begin % columns != 0)
            throw_invalid_argument({of, "has elements ", place.begin, " to ", place.begin + shard.size(),
                                    "; a rank has whole rows of it"});
        if (last != columns)
            throw_invalid_argument({of, "has a shape that ends with ", last, "; columns are its last dimension"});
        std::size_t const together = elems_together(shard.format().types);
        if (shard.size() / columns % together != 0 || place.begin / columns % together != 0)
            throw_invalid_argument({of, "has rows ", place.begin / columns, " to ",
                                    (place.begin + shard.size()) / columns, ", but moments of 8 bits are in groups of ",
                                    together,
                                    " rows of a column; give it a multiple of that, other moments, or 0 "
                                    "columns, by which it is updated every step"});
        if (weights == nullptr && shard.size() != 0)
            throw_invalid_argument({of, "has no array of weights; its param and weight_out lie by columns, and weights "
                                        "by rows, as the model has them"});
    }

    buffer<float> sum_memory_[2];
    std::size_t half_ = 0;
};

} // namespace detail
ADAMANT_END_NAMESPACE
