// SPDX-License-Identifier: Apache-2.0
// The state of each param: shown, and where it comes from when states are loaded. First all is looked at, then it is
// copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The state of param i, which has nothing to publish.
[[nodiscard]] inline zenflow_state_param view_of(zenflow_model& model, std::size_t i)
{
    zenflow_matrix const& m = model.matrices[i];
    zenflow_param_state const& own = model.params[i];
    zenflow_state_param view;
    view.name = model.registry.name(i);
    view.group = model.registry[i].group;
    view.columns = m.columns();
    view.all_rows = m.all_rows();
    view.first_row = m.first_row();
    view.rows = model.own_rows(i);
    view.types = m.shard().format().types;
    for (shard_array::index const which : state_arrays)
        view.arrays[which] = m.shard().is_state(which) ? m.shard().data(which) : nullptr;
    view.weights = m.weights();
    view.counts = own.counts;
    view.selected = own.selected;
    view.publishing = own.publishing;
    view.summed = own.summed;
    view.sums = own.summed != 0 ? model.sums_of(i) : nullptr;
    return view;
}

class zenflow_loading {
public:
    // from: in any order. has_scaler: whether the optimizer scales dynamically. Throws invalid_argument where these are
    // not the states of all ranks of this model.
    zenflow_loading(zenflow_model& model, std::vector<zenflow_state const*> const& from, bool has_scaler)
        : model_(model)
    {
        if (from.empty())
            throw_invalid_argument({"load() is given no state"});
        for (zenflow_state const* const each : from) {
            if (each->position != from.front()->position)
                throw_invalid_argument({"states are to be loaded of ", from.front()->position.steps, " and of ",
                                        each->position.steps, " steps; give the states of all ranks after one step"});
            if (each->loss_scaler.has_value() != has_scaler)
                throw_invalid_argument({"the state ", each->loss_scaler ? "has" : "lacks",
                                        " a dynamic loss scale, but "
                                        "this optimizer ",
                                        has_scaler ? "has one" : "does not scale dynamically"});
            bool same = each->groups.size() == model_.registry.groups().size();
            for (std::size_t g = 0; same && g < each->groups.size(); ++g)
                same = each->groups[g].name == model_.registry.groups()[g].name;
            if (!same)
                throw_invalid_argument(
                    {"the state has other groups than this optimizer; add groups of the same names, in "
                     "the same order"});
        }
        all_.resize(model_.size());
        for (std::size_t i = 0; i < model_.size(); ++i) {
            std::size_t const begin = model_.matrices[i].first_row();
            std::size_t const end = begin + model_.own_rows(i);
            std::size_t found = 0;
            bool known = false;
            for (zenflow_state const* const state : from)
                for (zenflow_state_param const& each : state->params) {
                    if (each.name != model_.registry.name(i))
                        continue;
                    known = true;
                    check_like(i, each);
                    source const piece{&each, std::max(begin, each.first_row),
                                       std::min(end, each.first_row + each.rows)};
                    if (piece.begin < piece.end) {
                        found += piece.end - piece.begin;
                        all_[i].push_back(piece);
                    } else if (all_[i].empty() && begin == end) {
                        all_[i].push_back({&each, begin, begin}); // its counts
                    }
                }
            if (!known || found != end - begin)
                throw_invalid_argument({"the states to be loaded have ", found, " of the ", end - begin, " rows of '",
                                        model_.registry.name(i), "'; give the states of all ranks, once each"});
        }
    }

    // Param i goes on from there. Returns whether columns of it are still to be published. The source may be the param
    // itself. Throws what reading a state of a file throws, with a part of the param overwritten.
    bool load(std::size_t i) const
    {
        zenflow_matrix const& m = model_.matrices[i];
        std::vector<source> const& from = all_[i];
        zenflow_param_state& own = model_.params[i];
        std::size_t const columns = model_.is_matrix(i) ? m.columns() : 1;
        bool has_weights = model_.is_matrix(i);
        for (source const& piece : from) {
            has_weights = has_weights && piece.from->weights != nullptr;
            for (shard_array::index const which : state_arrays)
                for (std::size_t c = 0; c < columns && m.shard().is_state(which) && piece.begin != piece.end; ++c)
                    copy(*piece.from,
                         piece.from->arrays[which] +
                             m.shard().bytes(which, c * piece.from->rows + piece.begin - piece.from->first_row),
                         m.shard().bytes(which, piece.end - piece.begin),
                         m.shard().data(which) +
                             m.shard().bytes(which, c * model_.own_rows(i) + piece.begin - m.first_row()));
            if (model_.is_matrix(i) && piece.from->summed != 0 && piece.begin != piece.end)
                copy(*piece.from, piece.from->sums + (piece.begin - piece.from->first_row) * columns,
                     (piece.end - piece.begin) * columns * sizeof(float),
                     model_.sums_of(i) + (piece.begin - m.first_row()) * columns);
        }
        zenflow_state_param const& any = *from.front().from;
        own.counts = any.counts;
        own.selected = any.selected;
        own.summed = any.summed;
        m.shard().round_weights(0, m.shard().size());
        if (!model_.is_matrix(i))
            return false;
        if (!has_weights) {
            model_.copy_weights(i);
            return false;
        }
        std::size_t const row_bytes = columns * size_bytes(m.weights_type());
        for (source const& piece : from)
            if (piece.begin != piece.end)
                copy(*piece.from, piece.from->weights + (piece.begin - piece.from->first_row) * row_bytes,
                     (piece.end - piece.begin) * row_bytes, m.weights() + (piece.begin - m.first_row()) * row_bytes);
        own.publishing = any.publishing;
        return std::find(own.publishing.begin(), own.publishing.end(), 1) != own.publishing.end();
    }

private:
    // Rows [begin, end) of a param are in that state.
    struct source {
        zenflow_state_param const* from;
        std::size_t begin, end;
    };

    // `to` may be what is copied. Throws what the state's source does.
    static void copy(zenflow_state_param const& of, void const* from, std::size_t bytes, void* to)
    {
        if (of.source == nullptr)
            std::memmove(to, from, bytes);
        else
            of.source->read(static_cast<std::byte const*>(from), bytes, static_cast<std::byte*>(to));
    }

    void check_like(std::size_t i, zenflow_state_param const& of) const
    {
        zenflow_matrix const& m = model_.matrices[i];
        std::string const name = text_of({"the state of '", of.name, "' "});
        if (of.columns != m.columns() || of.all_rows != m.all_rows())
            throw_invalid_argument({name, "has ", of.all_rows, " rows and ", of.columns, " columns, but the param has ",
                                    m.all_rows(), " and ", m.columns()});
        std::size_t const counts = m.columns() == 0 ? 1 : m.columns();
        if (of.counts.size() != counts || of.selected.size() != m.columns() || of.publishing.size() != m.columns())
            throw_invalid_argument({name, "has counts of ", of.counts.size(), " columns and flags of ",
                                    of.selected.size(), " and ", of.publishing.size(), ", but the param has ",
                                    m.columns()});
        for (shard_array::index const which : state_arrays)
            if (m.shard().is_state(which) &&
                (of.types[which] != m.shard().type(which) || (of.arrays[which] == nullptr && of.rows != 0)))
                throw_invalid_argument({name, "has ", shard_array::names[which], " of ", adamant::name(of.types[which]),
                                        of.arrays[which] == nullptr ? ", which is null" : "", ", but the param has ",
                                        adamant::name(m.shard().type(which))});
        std::size_t const together = elems_together(m.shard().format().types);
        if (m.columns() != 0 && (of.first_row % together != 0 || of.rows % together != 0))
            throw_invalid_argument({name, "has rows ", of.first_row, " to ", of.first_row + of.rows,
                                    ", but its moments are in groups of ", together, " rows"});
        if (of.summed != 0 && of.sums == nullptr && of.rows != 0 && m.columns() != 0)
            throw_invalid_argument({name, "has deferred ", of.summed, " steps, but has no sums"});
    }

    zenflow_model& model_;
    std::vector<std::vector<source>> all_; // of each param
};

} // namespace detail
ADAMANT_END_NAMESPACE
