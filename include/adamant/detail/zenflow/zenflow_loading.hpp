// SPDX-License-Identifier: Apache-2.0
// Views of each param's state, and loading of states: checks all states first, then copies them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/core/sorting.hpp>
#include <adamant/detail/io/live_arrays.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>
#include <adamant/detail/zenflow/zenflow_state_check.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A view of the state of param i. current: the deferred update of the last window.
[[nodiscard]] inline zenflow_state_param view_of(zenflow_model& model, deferred_update const& current, std::size_t i)
{
    zenflow_matrix const& m = model.matrices[i];
    zenflow_param_state const& state = model.params[i];
    zenflow_state_param view;
    view.name = model.registry.name(i);
    view.group = model.registry[i].group;
    view.columns = m.columns();
    view.all_rows = m.all_rows();
    view.first_row = m.first_row();
    view.rows = m.state_rows();
    view.types = m.shard().format().types;
    for (shard_array::index const which : state_arrays)
        view.arrays[which] = m.shard().is_state(which) ? m.shard().data(which) : nullptr;
    view.weights = m.weights();
    view.counts = state.counts;
    view.selected = state.selected;
    view.publishing = current.is_active() ? current.parts[i].columns : std::vector<std::uint8_t>(m.columns());
    view.summed = state.summed;
    view.sums = state.summed != 0 ? model.sums_of(i) : nullptr;
    return view;
}

// Throws invalid_argument for counts of steps that contradict each other, and for negative or NaN sums and norms. Files
// may hold any numbers, but no run continues from these.
inline void check_position(zenflow_position const& position, double deferred_norm)
{
    check_steps(position.steps);
    for (auto const& [name, steps] :
         {std::pair{"since_selection", position.since_selection}, std::pair{"in_window", position.in_window}})
        if (steps > position.steps)
            throw_invalid_argument(
                {name, " is ", steps, ", but must be at most the number of steps, ", position.steps});
    for (auto const& [name, value] :
         {std::pair{"done_squares", position.done_squares}, std::pair{"deferred_norm", deferred_norm}})
        if (!(value >= 0))
            throw_invalid_argument({name, " is ", value, ", but must be at least 0"});
}

// Throws invalid_argument if the states are not those of one run.
inline void check_same_run(zenflow_state const& first, zenflow_state const& other)
{
    auto const refuse = [](std::string const& difference) {
        throw_invalid_argument({"cannot load states that differ in ", difference,
                                ". Pass the states that all ranks saved after the same step."});
    };
    if (other.position != first.position)
        throw_invalid_argument({"cannot load states of different steps: ", first.position.steps, " and ",
                                other.position.steps, ". Pass the states that all ranks saved after the same step."});
    if (other.loss_scaler != first.loss_scaler)
        refuse("the loss scaler");
    if (std::memcmp(&other.deferred_norm, &first.deferred_norm, sizeof(double)) != 0)
        refuse("deferred_norm");
    for (std::size_t g = 0; g < std::min(first.groups.size(), other.groups.size()); ++g) {
        parameter_group const& a = first.groups[g];
        parameter_group const& b = other.groups[g];
        for (auto const& [key, field] : hyperparameter_numbers)
            if (a.hyper.*field < b.hyper.*field || a.hyper.*field > b.hyper.*field)
                refuse(text_of({key, " of group ", in_quotes(b.name)}));
        if (a.maximize != b.maximize || a.hyper.mode != b.hyper.mode ||
            a.hyper.bias_correction != b.hyper.bias_correction || a.hyper.rounding != b.hyper.rounding)
            refuse(text_of({"an option of group ", in_quotes(b.name)}));
    }
}

class zenflow_loading {
public:
    // states: those of all ranks, in any order. has_scaler: whether the optimizer has a dynamic loss scale. Throws
    // invalid_argument if they are not the states of all ranks of this model, each once.
    zenflow_loading(zenflow_model& model, std::span<zenflow_state const> states, bool has_scaler) : model_(model)
    {
        if (states.empty())
            throw_invalid_argument({"cannot call load() without a state"});
        for (zenflow_state const& each : states) {
            validate(each);
            check_position(each.position, each.deferred_norm);
            check_same_run(states.front(), each);
            check_has_scaler(each.loss_scaler.has_value(), has_scaler);
            bool same = each.groups.size() == model_.registry.groups().size();
            for (std::size_t g = 0; same && g < each.groups.size(); ++g)
                same = each.groups[g].name == model_.registry.groups()[g].name;
            if (!same)
                throw_invalid_argument(
                    {"cannot load the state: its groups differ from this optimizer's. Add groups of the same names, in "
                     "the same order."});
        }
        std::map<std::string_view, std::vector<zenflow_state_param const*>> by_name;
        for (zenflow_state const& state : states)
            for (zenflow_state_param const& each : state.params)
                by_name[each.name].push_back(&each);
        all_.resize(model_.size());
        for (std::size_t i = 0; i < model_.size(); ++i) {
            std::size_t const begin = model_.matrices[i].first_row();
            std::size_t const end = begin + model_.matrices[i].state_rows();
            std::vector<source>& pieces = all_[i];
            for (zenflow_state_param const* const each : by_name[model_.registry.name(i)]) {
                check_matches(i, *each);
                source const piece{each, std::max(begin, each->first_row), std::min(end, each->first_row + each->rows)};
                if (piece.begin < piece.end)
                    pieces.push_back(piece);
                else if (pieces.empty() && begin == end)
                    pieces.push_back({each, begin, begin}); // for its counts
            }
            if (pieces.empty())
                throw_invalid_argument({"cannot load '", model_.registry.name(i),
                                        "': the states have no such param. Pass the states of all ranks of the same "
                                        "model."});
            sort_stably(pieces, [](source const& a, source const& b) { return a.begin < b.begin; });
            std::size_t next = begin; // the first row that no piece has
            for (source const& piece : pieces) {
                if (piece.begin < next)
                    throw_invalid_argument({"cannot load '", model_.registry.name(i), "': row ", piece.begin,
                                            " is in two states. Pass the state of every rank exactly once."});
                if (piece.begin > next)
                    break;
                next = piece.end;
                check_same_columns(*pieces.front().state, *piece.state);
            }
            if (next != end)
                throw_invalid_argument({"cannot load '", model_.registry.name(i), "': row ", next,
                                        " is missing (needed: ", begin, " to ", end - 1,
                                        "). Pass the state of every rank exactly once."});
        }
        check_sources();
    }

    // Loads param i. publishing: set to a flag for each column whose weights are not published yet. Returns whether any
    // is set. The source may be the param itself. Throws as reading a state from a file, with a part of the param
    // overwritten.
    bool load(std::size_t i, std::vector<std::uint8_t>& publishing) const
    {
        zenflow_matrix const& m = model_.matrices[i];
        std::vector<source> const& pieces = all_[i];
        zenflow_param_state& state = model_.params[i];
        std::size_t const columns = model_.is_matrix(i) ? m.columns() : 1;
        bool has_weights = model_.is_matrix(i);
        for_each_array_copy(i, copy);
        for (source const& piece : pieces) {
            has_weights = has_weights && piece.state->weights != nullptr;
            if (model_.is_matrix(i) && piece.state->summed != 0 && piece.begin != piece.end)
                copy(*piece.state, piece.state->sums + (piece.begin - piece.state->first_row) * columns,
                     (piece.end - piece.begin) * columns * sizeof(float),
                     model_.sums_of(i) + (piece.begin - m.first_row()) * columns);
        }
        zenflow_state_param const& any = *pieces.front().state;
        state.counts = any.counts;
        state.selected = any.selected;
        state.summed = any.summed;
        publishing.assign(m.columns(), 0);
        m.shard().round_weights(0, m.shard().size());
        if (!model_.is_matrix(i))
            return false;
        if (!has_weights) {
            model_.copy_weights(i);
            return false;
        }
        for_each_weight_copy(i, copy);
        for (source const& piece : pieces)
            for (std::size_t c = 0; c < publishing.size(); ++c)
                publishing[c] |= piece.state->publishing[c];
        return std::find(publishing.begin(), publishing.end(), 1) != publishing.end();
    }

private:
    // The state that has rows [begin, end) of a param.
    struct source {
        zenflow_state_param const* state;
        std::size_t begin, end;
    };

    // Calls visit(state, source, bytes, target) for every copy into the param's arrays of params and moments.
    template <class Visit>
    void for_each_array_copy(std::size_t i, Visit const& visit) const
    {
        zenflow_matrix const& m = model_.matrices[i];
        std::size_t const columns = model_.is_matrix(i) ? m.columns() : 1;
        for (source const& piece : all_[i])
            for (shard_array::index const which : state_arrays)
                for (std::size_t c = 0; c < columns && m.shard().is_state(which) && piece.begin != piece.end; ++c)
                    visit(*piece.state,
                          piece.state->arrays[which] +
                              m.shard().bytes(which, c * piece.state->rows + piece.begin - piece.state->first_row),
                          m.shard().bytes(which, piece.end - piece.begin),
                          m.shard().data(which) +
                              m.shard().bytes(which, c * m.state_rows() + piece.begin - m.first_row()));
    }
    // The same for a matrix's weights. Pieces without weights are passed over.
    template <class Visit>
    void for_each_weight_copy(std::size_t i, Visit const& visit) const
    {
        zenflow_matrix const& m = model_.matrices[i];
        std::size_t const row_bytes = m.columns() * size_bytes(m.weights_type());
        for (source const& piece : all_[i])
            if (piece.begin != piece.end && piece.state->weights != nullptr)
                visit(*piece.state, piece.state->weights + (piece.begin - piece.state->first_row) * row_bytes,
                      (piece.end - piece.begin) * row_bytes, m.weights() + (piece.begin - m.first_row()) * row_bytes);
    }
    // Throws invalid_argument for a source that is another array of this optimizer.
    void check_sources() const
    {
        live_arrays written;
        for (std::size_t i = 0; i < model_.size(); ++i) {
            zenflow_matrix const& m = model_.matrices[i];
            for (shard_array::index const which : state_arrays)
                if (m.shard().is_state(which))
                    written.add(m.shard().data(which), m.shard().bytes(which, m.shard().size()));
            if (model_.is_matrix(i))
                written.add(m.weights(), m.shard().size() * size_bytes(m.weights_type()));
        }
        written.sort();
        for (std::size_t i = 0; i < model_.size(); ++i) {
            auto const check = [&](zenflow_state_param const& param, void const* src, std::size_t bytes, void* dst) {
                if (param.source == nullptr)
                    written.check_source(param.name, src, bytes, dst);
            };
            for_each_array_copy(i, check);
            if (model_.is_matrix(i))
                for_each_weight_copy(i, check);
        }
    }

    // The memory may overlap. Throws as the state's source.
    static void copy(zenflow_state_param const& param, void const* source, std::size_t bytes, void* target)
    {
        if (param.source == nullptr)
            std::memmove(target, source, bytes);
        else
            param.source->read(static_cast<std::byte const*>(source), bytes, static_cast<std::byte*>(target));
    }

    static void check_same_columns(zenflow_state_param const& first, zenflow_state_param const& other)
    {
        if (first.counts != other.counts || first.selected != other.selected || first.summed != other.summed)
            throw_invalid_argument({"cannot load '", other.name,
                                    "': two states differ in its counts, selected columns or number of summed "
                                    "gradients. Pass the states that all ranks saved after the same step."});
    }
    void check_matches(std::size_t i, zenflow_state_param const& p) const
    {
        for (std::uint64_t const count : p.counts)
            check_steps(count);
        check_steps(p.summed);
        zenflow_matrix const& m = model_.matrices[i];
        std::string const name = text_of({"cannot load the state of '", p.name, "': it "});
        if (p.columns != m.columns() || p.all_rows != m.all_rows())
            throw_invalid_argument({name, "has ", counted(p.all_rows, "row"), " and ", counted(p.columns, "column"),
                                    ", but the param has ", m.all_rows(), " and ", m.columns()});
        for (shard_array::index const which : state_arrays)
            if (m.shard().is_state(which) && p.types[which] != m.shard().type(which))
                throw_invalid_argument({name, "has ", shard_array::names[which], " of type ",
                                        adamant::name(p.types[which]), ", but the param has ",
                                        adamant::name(m.shard().type(which))});
    }

    zenflow_model& model_;
    std::vector<std::vector<source>> all_; // for each param
};

} // namespace detail
ADAMANT_END_NAMESPACE
