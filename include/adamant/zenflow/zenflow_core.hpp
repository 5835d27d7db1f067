// SPDX-License-Identifier: Apache-2.0
// The inside of zenflow_optimizer: a step in its order. First everything that may fail, then what writes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/exec/memory.hpp>
#include <adamant/numerics/float_mode.hpp>
#include <adamant/optimizer/decision.hpp>
#include <adamant/optimizer/registry.hpp>
#include <adamant/optimizer/step_plan.hpp>
#include <adamant/step/column_scores.hpp>
#include <adamant/zenflow/column_selection.hpp>
#include <adamant/zenflow/device_home.hpp>
#include <adamant/zenflow/put_off_step.hpp>
#include <adamant/zenflow/zenflow_report.hpp>
#include <adamant/zenflow/zenflow_state.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class zenflow_core {
public:
    zenflow_core(executor const& cpu, zenflow_options zenflow, optimizer_options options)
        : zenflow_(checked(std::move(zenflow))), options_(checked(std::move(options))), cpu_(cpu),
          worker_(cpu, [this] { bring_down_rest(); })
    {
        if (options_.loss_scaling)
            scaler_ = initial_state(*options_.loss_scaling);
        if (auto const& threads = cpu_.team(); threads != nullptr && threads->bound())
            pus_ = to_list(threads->bound_to());
    }

    [[nodiscard]] registry const& registered() const noexcept { return registry_; }
    [[nodiscard]] zenflow_position const& position() const noexcept { return position_; }
    [[nodiscard]] std::optional<loss_scaler_state> const& scaler() const noexcept { return scaler_; }
    [[nodiscard]] double loss_scale() const noexcept { return scaler_ ? scaler_->scale : 1.0; }
    [[nodiscard]] executor const& cpu() const noexcept { return cpu_; }

    // ---- Set-up

    std::size_t add_group(parameter_group group) { return registry_.add_group(std::move(group)); }
    void set_hyperparameters(std::size_t group, hyperparameters const& hyper)
    {
        no_traps_scope const no_traps;
        registry_.set_hyperparameters(group, hyper);
    }
    std::size_t add_param(std::size_t group, std::string const& name, any_shard const& shard, std::size_t columns,
                          void* weights, shard_place place)
    {
        no_traps_scope const no_traps;
        if (position_.steps != 0)
            throw_invalid_argument(
                {"a param '", name, "' is to be added after ", position_.steps, " steps; add all params first"});
        std::size_t all_rows = shard.size();
        std::size_t first_row = 0;
        if (columns != 0) {
            check_matrix(name, shard, columns, weights, place);
            if (place.shape.empty())
                place.shape = {shard.size() / columns, columns};
            all_rows = 1;
            for (std::size_t const each : place.shape) // registry_ refuses what overflows
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
        matrices_.reserve(matrices_.size() + 1);
        params_.reserve(params_.size() + 1);
        param_state own;
        own.counts.resize(columns == 0 ? 1 : columns);
        own.selected.resize(columns);
        own.wanted.resize(columns);
        own.landing.resize(columns);
        std::size_t const number = registry_.add_shard(group, name, shard, {}, std::move(place), cpu_.tier());
        if (columns == 0)
            all_rows = element_count(registry_.places().params()[registry_.places()[number].param]);
        matrices_.emplace_back(registry_[number].shard, cpu_.tier(), columns, all_rows, first_row,
                               static_cast<std::byte*>(weights));
        params_.push_back(std::move(own));
        is_laid_out_ = false;
        return number;
    }
    void set_gradient(std::size_t param, void const* grad)
    {
        registry_.require_shard(param);
        if (is_open_)
            awaited("set_gradient()", param);
        worker_.finish(sums_);
        registry_.set_gradient(param, grad, is_laid_out_);
        matrices_[param].set_gradient(static_cast<std::byte const*>(grad));
    }
    [[nodiscard]] bool is_empty(std::size_t param) const noexcept { return matrices_[param].shard().size() == 0; }
    // Bytes of the sums.
    [[nodiscard]] std::size_t memory_bytes() const noexcept
    {
        std::size_t elems = 0;
        for (zenflow_matrix const& m : matrices_)
            elems += m.size();
        return elems * sizeof(float) * (zenflow_.overlap ? 2 : 1);
    }
    void prepare()
    {
        no_traps_scope const no_traps;
        lay_out();
    }

    // ---- Steps

    void begin_step(step_values const& values)
    {
        no_traps_scope const no_traps;
        between_steps("begin_step()");
        if (is_lost_)
            throw_invalid_argument(
                {"the last load() failed in the middle, or a device has stopped answering, so params and "
                 "moments are of no known step; load() a state"});
        if (cpu_.team() != nullptr)
            cpu_.team()->check_submit();
        lay_out();
        catch_up();
        rounded_to_nearest([&] {
            make_terms(terms_, values, options_, registry_.groups().size(), position_.steps + 1, loss_scale());
        });
        started_ = std::chrono::steady_clock::now();
        if (home_ != nullptr)
            usage_before_ = home_->device().usage();
        submitted_.assign(matrices_.size(), shard_in_step::awaited);
        {
            std::lock_guard const lock(down_mutex_);
            waiting_down_.clear();
            waiting_down_.reserve(matrices_.size());
        }
        is_open_ = true;
    }
    void submit(std::size_t param)
    {
        no_traps_scope const no_traps;
        awaited("submit()", param);
        if (home_ != nullptr) {
            home_->submit(param);
            std::lock_guard const lock(down_mutex_);
            if (sums_.is_done())
                home_->bring_down(param);
            else // until gradients are added up that lie where this one comes down
                waiting_down_.push_back(param);
        }
        submitted_[param] = shard_in_step::submitted;
    }
    void bring_down_rest() noexcept
    {
        std::lock_guard const lock(down_mutex_);
        if (!sums_.is_done())
            return;
        for (std::size_t const param : waiting_down_)
            home_->bring_down(param);
        waiting_down_.clear();
    }
    void leave_out(std::size_t param)
    {
        awaited("leave_out()", param);
        submitted_[param] = shard_in_step::left_out;
    }
    zenflow_report finish()
    {
        no_traps_scope const no_traps;
        if (!is_open_)
            throw_invalid_argument({"finish() is called, but no step is open; begin_step() first"});
        present_.resize(matrices_.size());
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            if (submitted_[i] == shard_in_step::awaited)
                throw_invalid_argument({"finish() is called, but param ", registry_.text(i),
                                        " has not been submitted; submit() it, or leave_out() it"});
            present_[i] = submitted_[i] == shard_in_step::submitted;
        }
        worker_.finish(sums_);
        bring_down_rest();
        zenflow_report report;
        double const threads = std::max(1u, cpu_.threads());
        report.sums_s = sums_.take_busy_s() / threads;
        report.tier = cpu_.tier();
        report.threads = cpu_.threads();
        report.pus = pus_;
        report.step = position_.steps + 1;
        report.loss_scale = terms_.loss_scale;
        try {
            norm_verdict const verdict = look_at_gradients(report);
            auto const known = std::chrono::steady_clock::now();
            report.gradients.seconds = std::chrono::duration<double>(known - started_).count();
            if (!verdict.skips)
                apply(verdict, report);
            is_open_ = false;
            if (scaler_ && terms_.moves_scaler)
                rounded_to_nearest(
                    [&] { scaler_ = after_step(*scaler_, *options_.loss_scaling, report.nonfinite_grads != 0); });
            report.update.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - known).count();
        } catch (device_error const&) {
            is_open_ = false;
            take_back_and_rethrow();
        }
        go_on();
        rethrow_landing_error();
        report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
        if (home_ != nullptr)
            report_device(report);
        return report;
    }
    void abandon()
    {
        if (!is_open_)
            throw_invalid_argument({"abandon() is called, but no step is open; begin_step() first"});
        is_open_ = false;
        if (home_ == nullptr)
            return;
        worker_.finish(sums_);
        bring_down_rest();
        home_->wait();
    }
    // gradients: null for a param that takes no part.
    template <class Present>
    zenflow_report step(step_values const& values, Present const& present)
    {
        begin_step(values);
        try {
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                if (present(i))
                    submit(i);
                else
                    leave_out(i);
            }
            return finish();
        } catch (...) {
            is_open_ = false;
            throw;
        }
    }
    // What is stepped in the background is finished, and all weights are those of the masters.
    void land()
    {
        no_traps_scope const no_traps;
        between_steps("land()");
        lay_out();
        catch_up();
        finish_and_land();
        rethrow_landing_error();
    }

    // ---- A device

    void set_device_arrays(std::size_t param, device_arrays const& arrays)
    {
        registry_.require_shard(param);
        if (home_ != nullptr)
            throw_invalid_argument(
                {"set_device_arrays() is called after place(); take everything back with place(nullptr) "
                 "first"});
        if (!arrays.grad || !arrays.weight_out || arrays.grad.address % 16 != 0 || arrays.weight_out.address % 16 != 0)
            throw_invalid_argument({"param ", registry_.text(param),
                                    " needs an array of gradients and one of weights on the "
                                    "device, each at a multiple of 16 bytes"});
        device_arrays_.resize(std::max(device_arrays_.size(), matrices_.size()));
        device_arrays_[param] = arrays;
    }
    void place(std::shared_ptr<device> on)
    {
        no_traps_scope const no_traps;
        between_steps("place()");
        lay_out();
        catch_up();
        settle();
        if (on != nullptr) {
            device_arrays_.resize(matrices_.size());
            for (std::size_t i = 0; i < matrices_.size(); ++i)
                if (!device_arrays_[i].grad && matrices_[i].shard().size() != 0)
                    throw_invalid_argument({"param ", registry_.text(i),
                                            " has no arrays on the device; tell them by "
                                            "set_device_arrays() before place()"});
        }
        come_home();
        home_.reset();
        if (on == nullptr)
            return;
        worker_.have_team();
        home_ =
            std::make_unique<device_home>(std::move(on), this, matrices_, device_arrays_, options_.device_timeout_s);
        try {
            for (std::size_t i = 0; i < matrices_.size(); ++i)
                home_->copy_weights(i, false);
            home_->wait();
        } catch (...) {
            home_.reset();
            throw;
        }
        is_staged_.assign(matrices_.size(), 0);
    }
    [[nodiscard]] bool has_device() const noexcept { return home_ != nullptr; }

    // ---- State

    [[nodiscard]] std::vector<std::uint8_t> const& selected(std::size_t param) const
    {
        registry_.require_shard(param);
        return params_[param].selected;
    }
    [[nodiscard]] std::vector<std::uint64_t> const& counts(std::size_t param) const
    {
        registry_.require_shard(param);
        return params_[param].counts;
    }
    [[nodiscard]] zenflow_state state()
    {
        no_traps_scope const no_traps;
        between_steps("state()");
        lay_out();
        catch_up();
        settle();
        come_home();
        zenflow_state all{position_, put_off_norm_, scaler_, registry_.groups(), {}};
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            zenflow_matrix const& m = matrices_[i];
            param_state const& own = params_[i];
            zenflow_state_param one;
            one.name = registry_.name(i);
            one.group = registry_[i].group;
            one.columns = m.columns();
            one.all_rows = m.all_rows();
            one.first_row = m.first_row();
            one.rows = m.columns() == 0 ? m.shard().size() : m.rows();
            one.types = m.shard().format().types;
            for (shard_array::index const which : state_arrays)
                one.arrays[which] = m.shard().is_state(which) ? m.shard().data(which) : nullptr;
            one.weights = m.weights();
            one.counts = own.counts;
            one.selected = own.selected;
            one.landing = now_->is_there() ? now_->parts[i].columns : own.landing;
            one.summed = own.summed;
            one.sums = own.summed != 0 ? sums_of(i) : nullptr;
            all.params.push_back(std::move(one));
        }
        return all;
    }
    // The states of all ranks that there were, in any order.
    void load(std::vector<zenflow_state const*> const& from)
    {
        no_traps_scope const no_traps;
        between_steps("load()");
        lay_out();
        std::vector<std::vector<source>> const sources = find_sources(from);
        zenflow_state const& first = *from.front();
        std::vector<parameter_group> groups = first.groups;
        settle();
        now_->forget();
        is_lost_ = true;
        if (home_ != nullptr) {
            if (!home_->device().reset(std::chrono::steady_clock::now() + std::chrono::seconds(1)))
                throw_device_error({home_->device().name(),
                                    " does not answer, so no state can be loaded to it; place() "
                                    "another device, or place(nullptr), and load() the state"});
            home_->drop();
            landing_is_due_ = false;
            is_staged_.assign(matrices_.size(), 0);
        }
        half_ = 0;
        bool any_landing = false;
        for (std::size_t i = 0; i < matrices_.size(); ++i)
            any_landing = load_param(i, sources[i]) || any_landing;
        position_ = first.position;
        put_off_norm_ = first.put_off_norm;
        scaler_ = first.loss_scaler;
        registry_.replace_groups(std::move(groups));
        if (any_landing) {
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                now_->parts[i].columns = params_[i].landing;
                std::fill(params_[i].landing.begin(), params_[i].landing.end(), std::uint8_t{0});
            }
            now_->begin_done();
        }
        if (home_ != nullptr) {
            for (std::size_t i = 0; i < matrices_.size(); ++i)
                home_->copy_weights(i, false);
            home_->wait();
        }
        is_lost_ = false;
    }

private:
    struct param_state {
        std::vector<std::uint64_t> counts;          // of updates
        std::vector<std::uint8_t> selected, wanted; // of each column; wanted: by the selection that is being made
        std::vector<std::uint8_t> landing;          // zeros
        std::vector<std::uint32_t> list;            // the selected columns,
        std::vector<group_step> steps;              // how those of each count are stepped now,
        std::vector<std::uint32_t> step_of;         // and which of these each has
        std::size_t gathered = 0;                   // where their gradients begin
        std::size_t first_sum = 0;                  // in the sums
        std::uint64_t summed = 0;                   // steps in the sums
        group_step added = {};                      // how gradients are scaled before they are added up
        float largest = 0;                          // magnitude of its gradients
    };
    // A part of a param that one thread takes: rows of a matrix, or norm blocks.
    struct part {
        std::size_t param, begin, end;
    };

    static zenflow_options checked(zenflow_options options)
    {
        validate(options);
        return options;
    }
    static optimizer_options checked(optimizer_options options)
    {
        validate(options);
        if (options.keep_last_step || options.weights_ready)
            throw_invalid_argument({"an optimizer that puts gradients off has no ",
                                    options.keep_last_step ? "rollback(), so keep_last_step" : "weights_ready, so it",
                                    " must not be set"});
        return options;
    }
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
                                    "columns, by which it is stepped at once"});
        if (weights == nullptr && shard.size() != 0)
            throw_invalid_argument({of, "has no array of weights; its param and weight_out lie by columns, and weights "
                                        "by rows, as the model has them"});
    }

    void between_steps(char const* call) const
    {
        if (is_open_)
            throw_invalid_argument({call, " is called while a step is under way; finish() or abandon() it first"});
    }
    void awaited(char const* call, std::size_t param) const
    {
        if (!is_open_)
            throw_invalid_argument({call, " is called, but no step is open; begin_step() first"});
        registry_.require_shard(param);
        if (submitted_[param] != shard_in_step::awaited)
            throw_invalid_argument({"param ", registry_.text(param), " has been ",
                                    submitted_[param] == shard_in_step::submitted ? "submitted" : "left out",
                                    " in this step already"});
    }

    // ---- Memory

    [[nodiscard]] bool is_matrix(std::size_t i) const noexcept { return matrices_[i].columns() != 0; }
    [[nodiscard]] bool takes_part(std::size_t i) const noexcept { return present_[i] != 0; }
    [[nodiscard]] float* sums_of(std::size_t i) noexcept { return sum_memory_[half_].data() + params_[i].first_sum; }
    void lay_out()
    {
        if (is_laid_out_)
            return;
        registry_.check_overlaps();
        std::vector<array_extent> extents;
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            append_extents(extents, matrices_[i].shard(), i, false);
            append_extent(extents, "weights", matrices_[i].weights(),
                          matrices_[i].size() * size_bytes(matrices_[i].weights_type()), i, true);
        }
        refuse_overlaps(std::move(extents));
        std::size_t elems = 0;
        blocks_.clear();
        rows_.clear();
        all_elems_ = matrix_elems_ = 0;
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            zenflow_matrix const& m = matrices_[i];
            params_[i].first_sum = elems;
            elems += m.size();
            all_elems_ += m.shard().size();
            constexpr std::size_t together = 16; // norm blocks
            for (std::size_t b = 0; b < m.shard().blocks(); b += together)
                blocks_.push_back({i, b, std::min(b + together, m.shard().blocks())});
            std::size_t const some =
                m.columns() == 0 ? 1 : std::clamp<std::size_t>(65536 / m.columns() / 64 * 64, 64, 4096);
            for (std::size_t row = 0; row < m.rows(); row += some)
                rows_.push_back({i, row, std::min(row + some, m.rows())});
        }
        matrix_elems_ = elems;
        sum_memory_[0] = buffer<float>(elems);
        if (zenflow_.overlap) {
            sum_memory_[1] = buffer<float>(elems);
            worker_.have_team();
        }
        now_->parts.resize(matrices_.size());
        next_->parts.resize(matrices_.size());
        is_laid_out_ = true;
    }

    // ---- Loading

    // Rows [begin, end) of a param are in that state.
    struct source {
        zenflow_state_param const* from;
        std::size_t begin, end;
    };
    // For each param. Throws invalid_argument where these are not the states of all ranks of this model.
    [[nodiscard]] std::vector<std::vector<source>> find_sources(std::vector<zenflow_state const*> const& from) const
    {
        if (from.empty())
            throw_invalid_argument({"load() is given no state"});
        for (zenflow_state const* const each : from) {
            if (each->position != from.front()->position)
                throw_invalid_argument({"states are to be loaded of ", from.front()->position.steps, " and of ",
                                        each->position.steps, " steps; give the states of all ranks after one step"});
            if (each->loss_scaler.has_value() != scaler_.has_value())
                throw_invalid_argument({"the state ", each->loss_scaler ? "has" : "lacks",
                                        " a dynamic loss scale, but "
                                        "this optimizer ",
                                        scaler_ ? "has one" : "does not scale dynamically"});
            bool same = each->groups.size() == registry_.groups().size();
            for (std::size_t g = 0; same && g < each->groups.size(); ++g)
                same = each->groups[g].name == registry_.groups()[g].name;
            if (!same)
                throw_invalid_argument(
                    {"the state has other groups than this optimizer; add groups of the same names, in "
                     "the same order"});
        }
        std::vector<std::vector<source>> all(matrices_.size());
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            std::size_t const begin = matrices_[i].first_row();
            std::size_t const end = begin + own_rows(i);
            std::size_t found = 0;
            bool known = false;
            for (zenflow_state const* const state : from)
                for (zenflow_state_param const& each : state->params) {
                    if (each.name != registry_.name(i))
                        continue;
                    known = true;
                    check_like(i, each);
                    source const piece{&each, std::max(begin, each.first_row),
                                       std::min(end, each.first_row + each.rows)};
                    if (piece.begin < piece.end) {
                        found += piece.end - piece.begin;
                        all[i].push_back(piece);
                    } else if (all[i].empty() && begin == end) {
                        all[i].push_back({&each, begin, begin}); // its counts
                    }
                }
            if (!known || found != end - begin)
                throw_invalid_argument({"the states to be loaded have ", found, " of the ", end - begin, " rows of '",
                                        registry_.name(i), "'; give the states of all ranks, once each"});
        }
        return all;
    }
    [[nodiscard]] std::size_t own_rows(std::size_t i) const noexcept
    {
        return is_matrix(i) ? matrices_[i].rows() : matrices_[i].shard().size();
    }
    void check_like(std::size_t i, zenflow_state_param const& of) const
    {
        zenflow_matrix const& m = matrices_[i];
        std::string const name = text_of({"the state of '", of.name, "' "});
        if (of.columns != m.columns() || of.all_rows != m.all_rows())
            throw_invalid_argument({name, "has ", of.all_rows, " rows and ", of.columns, " columns, but the param has ",
                                    m.all_rows(), " and ", m.columns()});
        std::size_t const counts = m.columns() == 0 ? 1 : m.columns();
        if (of.counts.size() != counts || of.selected.size() != m.columns() || of.landing.size() != m.columns())
            throw_invalid_argument({name, "has counts of ", of.counts.size(), " columns and flags of ",
                                    of.selected.size(), " and ", of.landing.size(), ", but the param has ",
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
            throw_invalid_argument({name, "has put off ", of.summed, " steps, but has no sums"});
    }
    // Whether columns of it are still to land. The source may be the param itself.
    bool load_param(std::size_t i, std::vector<source> const& from)
    {
        zenflow_matrix const& m = matrices_[i];
        param_state& own = params_[i];
        std::size_t const columns = is_matrix(i) ? m.columns() : 1;
        bool has_weights = is_matrix(i);
        for (source const& piece : from) {
            has_weights = has_weights && piece.from->weights != nullptr;
            for (shard_array::index const which : state_arrays)
                for (std::size_t c = 0; c < columns && m.shard().is_state(which) && piece.begin != piece.end; ++c)
                    std::memmove(m.shard().data(which) +
                                     m.shard().bytes(which, c * own_rows(i) + piece.begin - m.first_row()),
                                 piece.from->arrays[which] +
                                     m.shard().bytes(which, c * piece.from->rows + piece.begin - piece.from->first_row),
                                 m.shard().bytes(which, piece.end - piece.begin));
            if (is_matrix(i) && piece.from->summed != 0 && piece.begin != piece.end)
                std::memmove(sums_of(i) + (piece.begin - m.first_row()) * columns,
                             piece.from->sums + (piece.begin - piece.from->first_row) * columns,
                             (piece.end - piece.begin) * columns * sizeof(float));
        }
        zenflow_state_param const& any = *from.front().from;
        own.counts = any.counts;
        own.selected = any.selected;
        own.summed = any.summed;
        m.shard().round_weights(0, m.shard().size());
        if (!is_matrix(i))
            return false;
        if (!has_weights) {
            copy_weights(i);
            return false;
        }
        std::size_t const row_bytes = columns * size_bytes(m.weights_type());
        for (source const& piece : from)
            if (piece.begin != piece.end)
                std::memmove(m.weights() + (piece.begin - m.first_row()) * row_bytes,
                             piece.from->weights + (piece.begin - piece.from->first_row) * row_bytes,
                             (piece.end - piece.begin) * row_bytes);
        own.landing = any.landing;
        return std::find(own.landing.begin(), own.landing.end(), 1) != own.landing.end();
    }

    // ---- What comes before anything is written

    [[nodiscard]] norm_verdict look_at_gradients(zenflow_report& report)
    {
        bool const skips = options_.on_nonfinite == nonfinite_policy::skip;
        report.measured = terms_.max_norm != 0 || skips || options_.reduce || terms_.zero_nonfinite ||
                          (options_.loss_scaling && terms_.moves_scaler);
        report.global_norm = std::numeric_limits<double>::quiet_NaN();
        norm_verdict verdict;
        squares_total all;
        if (home_ != nullptr)
            all = home_->squares(present_); // and all gradients are down
        if (!report.measured)
            return verdict;
        std::mutex mutex;
        for_each_part(cpu_, home_ != nullptr ? 0 : blocks_.size(), all_elems_, [&](std::size_t at) {
            part const& p = blocks_[at];
            if (!takes_part(p.param))
                return;
            float_mode_scope const mode(subnormals::flushed);
            squares_total own;
            scratch_block scratch;
            for (std::size_t b = p.begin; b < p.end; ++b)
                own.add(matrices_[p.param].shard().gradient(b, false, {}, true, scratch).squares);
            std::lock_guard const lock(mutex);
            all.add(own);
        });
        if (options_.reduce)
            all = reduced(options_, all);
        rounded_to_nearest([&] { verdict = judge(all.rounded(), terms_.loss_scale, terms_.max_norm, skips); });
        report.nonfinite_grads = all.nonfinite();
        report.global_norm = verdict.norm;
        report.clip_coefficient = verdict.clip;
        report.outcome = verdict.skips ? step_outcome::skipped : step_outcome::applied;
        if (report.nonfinite_grads != 0)
            find_first_nonfinite(report);
        return verdict;
    }
    void find_first_nonfinite(zenflow_report& report) const
    {
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            offload_shard const& s = matrices_[i].shard();
            for (std::size_t b = 0; takes_part(i) && b < s.blocks(); ++b) {
                scratch_block scratch;
                float_mode_scope const mode(subnormals::flushed);
                if (s.gradient(b, false, {}, true, scratch).squares.nonfinite == 0)
                    continue;
                report.first_nonfinite = optimizer_report::place{i, s.first_nonfinite(b, false)};
                return;
            }
        }
    }
    void make_selection()
    {
        std::vector<std::int64_t> numbers(matrices_.size());
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            zenflow_matrix const& m = matrices_[i];
            params_[i].largest = 0;
            if (is_matrix(i) && takes_part(i))
                params_[i].largest = largest_magnitude(cpu_, m.shard().data(shard_array::grad),
                                                       m.shard().type(shard_array::grad), m.size());
            numbers[i] = std::bit_cast<std::int32_t>(params_[i].largest); // in the order of magnitudes
        }
        if (zenflow_.reduce_columns)
            zenflow_.reduce_columns(numbers, column_reduction::max);
        std::vector<std::int64_t> scores;
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            zenflow_matrix const& m = matrices_[i];
            auto const largest = std::bit_cast<float>(static_cast<std::uint32_t>(numbers[i]));
            if (numbers[i] < std::bit_cast<std::int32_t>(params_[i].largest) || !is_finite(largest))
                throw_invalid_argument({"reduce_columns was given ", double{params_[i].largest},
                                        " as the bits of a float, ", "and left ", numbers[i],
                                        ", which is not the largest of all ranks' numbers"});
            params_[i].largest = largest;
            std::size_t const first = scores.size();
            scores.resize(first + m.columns());
            if (takes_part(i) && m.size() != 0)
                add_column_scores(cpu_, m.shard().data(shard_array::grad), m.shard().type(shard_array::grad), m.rows(),
                                  m.columns(), largest, zenflow_.score, std::span(scores).subspan(first));
        }
        if (zenflow_.reduce_columns)
            zenflow_.reduce_columns(scores, column_reduction::sum);
        std::vector<column_candidates> candidates;
        std::size_t first = 0;
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            std::size_t const n = matrices_[i].columns();
            double unit = 1;
            rounded_to_nearest([&] { unit = column_score_scale_for(params_[i].largest, zenflow_.score).unit; });
            if (is_matrix(i))
                candidates.push_back(
                    {std::span(scores).subspan(first, n), unit, matrices_[i].all_rows(), params_[i].wanted});
            first += n;
        }
        if (std::any_of(scores.begin(), scores.end(), [](std::int64_t score) { return score < 0; }))
            throw_invalid_argument({"reduce_columns left a score below 0, which no sum of scores is"});
        if (zenflow_.scope == selection_scope::all_params)
            select_columns(candidates, zenflow_.topk_ratio);
        else
            for (column_candidates const& each : candidates)
                select_columns(each.scores, zenflow_.topk_ratio, each.selected);
    }
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
    static void list_columns(std::vector<std::uint8_t> const& flags, std::uint8_t flag,
                             std::vector<std::uint32_t>& list)
    {
        list.clear();
        for (std::size_t c = 0; c < flags.size(); ++c)
            if (flags[c] == flag)
                list.push_back(static_cast<std::uint32_t>(c));
    }
    [[nodiscard]] group_step make_step(std::size_t param, double clip, std::uint64_t count) const
    {
        std::size_t const group = registry_[param].group;
        group_step made;
        rounded_to_nearest([&] { made = make_group_step(registry_.groups()[group], group, terms_, clip, count); });
        return made;
    }
    // How what is stepped at once is stepped, and where gradients are gathered.
    void plan_selected(double clip)
    {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            param_state& own = params_[i];
            zenflow_matrix const& m = matrices_[i];
            own.gathered = bytes;
            auto const make = [&](std::uint64_t count) { return make_step(i, clip, count); };
            if (!is_matrix(i)) {
                make_steps(own.counts, {0}, own.steps, own.step_of, make);
                continue;
            }
            list_columns(own.wanted, 1, own.list);
            make_steps(own.counts, own.list, own.steps, own.step_of, make);
            if (own.list.size() != m.columns())
                own.added = make(1); // of which only the scaling of gradients counts
            bytes += home_ != nullptr ? 0 : m.shard().bytes(shard_array::grad, own.list.size() * m.rows());
            bytes = (bytes + 63) / 64 * 64;
        }
        if (gathered_.size() < bytes)
            gathered_ = buffer<std::byte>(bytes);
    }
    // The window ends with this step: how what has been put off is stepped.
    void plan_put_off(double clip)
    {
        next_->zero_nonfinite = false;
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            param_state const& own = params_[i];
            put_off_part& p = next_->parts[i];
            std::uint64_t const summed = own.summed + takes_part(i);
            p.columns.assign(matrices_[i].columns(), 0);
            p.sums = nullptr;
            if (!is_matrix(i) || summed == 0)
                continue;
            list_columns(own.wanted, 0, list_);
            for (std::uint32_t const c : list_)
                p.columns[c] = 1;
            make_steps(own.counts, list_, p.steps, p.step_of,
                       [&](std::uint64_t count) { return make_step(i, clip, count).c; });
            rounded_to_nearest([&] { p.scale = round_coefficient(1.0 / static_cast<double>(summed)); });
            p.sums = list_.empty() ? nullptr : sums_of(i);
        }
    }
    struct window_squares {
        grad_squares done, put_off;
    };
    // The squares of what this step does at once, and of what will have been put off after it, over all ranks.
    [[nodiscard]] window_squares look_ahead()
    {
        squares_total done, put_off;
        std::mutex mutex;
        for_each_part(cpu_, blocks_.size(), all_elems_, [&](std::size_t at) {
            part const& p = blocks_[at];
            param_state const& own = params_[p.param];
            if (!is_matrix(p.param))
                return;
            zenflow_matrix const& m = matrices_[p.param];
            float const* const sums = own.summed == 0 ? nullptr : sums_of(p.param);
            squares_total own_done, own_put_off;
            for (std::size_t b = p.begin; b < p.end; ++b) {
                if (takes_part(p.param) && !own.list.empty())
                    own_done.add(m.squares_of_gradient(b, own.steps[0], own.wanted, 1, nullptr));
                if (own.list.size() == m.columns())
                    continue;
                if (takes_part(p.param))
                    own_put_off.add(m.squares_of_gradient(b, own.added, own.wanted, 0, sums));
                else if (sums != nullptr)
                    own_put_off.add(m.squares_of_sums(b, sums, own.wanted, 0));
            }
            std::lock_guard const lock(mutex);
            done.add(own_done);
            put_off.add(own_put_off);
        });
        if (options_.reduce) {
            done = reduced(options_, done);
            put_off = reduced(options_, put_off);
        }
        return {done.rounded(), put_off.rounded()};
    }

    // ---- A step

    void apply(norm_verdict const& verdict, zenflow_report& report)
    {
        bool const warm_up = is_in_warm_up(zenflow_, position_);
        bool const selects = selects_next(zenflow_, position_);
        report.warm_up = warm_up;
        for (param_state& own : params_) {
            if (warm_up)
                std::fill(own.wanted.begin(), own.wanted.end(), std::uint8_t{0});
            else if (!selects)
                own.wanted = own.selected;
        }
        if (selects)
            make_selection();
        plan_selected(verdict.clip);
        zenflow_position after = position_;
        ++after.steps;
        ++after.in_window;
        after.since_selection = selects ? 1 : after.since_selection + !warm_up;
        after.has_selection = after.has_selection || selects;
        double const put_off_norm = put_off_norm_ + (report.measured ? verdict.norm * verdict.clip : 0);
        // Without a norm nobody asks whether what was added up is finite.
        bool const is_finite_for_sure = put_off_norm < 1e38 || !report.measured;
        bool const automatic = !zenflow_.update_interval && !warm_up;
        bool ends = false;
        window_squares squares;
        if (automatic || !is_finite_for_sure)
            squares = look_ahead();
        rounded_to_nearest([&] {
            after.done_squares += automatic ? squares.done.sum : 0;
            ends = ends_window(zenflow_, after, squares.put_off.sum);
        });
        bool drops = false;
        if (ends) {
            plan_put_off(verdict.clip);
            drops = options_.on_nonfinite == nonfinite_policy::skip && squares.put_off.nonfinite != 0;
            next_->zero_nonfinite = terms_.zero_nonfinite && !is_finite_for_sure;
        }

        std::vector<sum_tile> sums = plan_sums(report);
        if (home_ != nullptr)
            step_on_device(selects, report);

        // From here on nothing fails.
        if (selects && home_ == nullptr)
            change_selection(report);
        if (home_ == nullptr) {
            gather();
            step_selected();
        }
        count_selected(report);
        position_ = after;
        put_off_norm_ = put_off_norm;
        bool const waits = home_ == nullptr || (ends && (warm_up || !zenflow_.overlap));
        if (waits) {
            sums_.begin(std::move(sums));
            worker_.finish(sums_);
        }
        if (ends)
            end_window(warm_up, drops, report);
        if (!waits)
            sums_.begin(std::move(sums));
    }
    // What is resident on the device steps there; with another selection, it moves first.
    void step_on_device(bool selects, zenflow_report& report)
    {
        bool const is_new = selects || !home_->has_state();
        if (is_new) {
            home_->bring_home();
            home_->drop();
            if (selects)
                change_selection(report);
            std::vector<resident> all;
            static std::vector<std::uint32_t> const one = {0};
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                param_state const& own = params_[i];
                all.push_back({is_matrix(i) ? &own.list : &one, &own.step_of, own.steps.size(),
                               !own.steps.empty() &&
                                   rounds_by_chance(matrices_[i].shard().format().types, own.steps[0].c.rounding)});
            }
            home_->send(all);
        }
        std::vector<group_step> steps;
        for (param_state const& own : params_)
            steps.insert(steps.end(), own.steps.begin(), own.steps.end());
        home_->step(steps, present_, is_new);
    }
    // A column that is selected from now on is first stepped with what it has put off.
    void change_selection(zenflow_report& report)
    {
        report.selected = true;
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            param_state& own = params_[i];
            if (!is_matrix(i))
                continue;
            std::vector<std::uint8_t> moved(own.wanted.size());
            bool late = false;
            for (std::size_t c = 0; c < moved.size(); ++c) {
                report.columns_moved += own.wanted[c] > own.selected[c];
                moved[c] = now_->is_there() && own.wanted[c] != 0 && now_->parts[i].columns[c] != 0;
                late = late || moved[c] != 0;
            }
            own.selected = own.wanted;
            if (!late)
                continue;
            if (!now_->is_done())
                now_->do_columns(cpu_, matrices_, i, moved, worker_.access());
            for (std::size_t c = 0; c < moved.size(); ++c)
                now_->parts[i].columns[c] = now_->parts[i].columns[c] != 0 && moved[c] == 0;
            if (home_ != nullptr)
                continue; // their weights follow with the step
            list_columns(moved, 1, list_);
            copy_weights(i, list_);
        }
    }
    [[nodiscard]] std::vector<sum_tile> plan_sums(zenflow_report& report)
    {
        std::vector<sum_tile> tiles;
        for (part const& p : rows_) {
            param_state const& own = params_[p.param];
            if (takes_part(p.param) && own.list.size() != matrices_[p.param].columns())
                tiles.push_back({&matrices_[p.param], p.begin, p.end, &own.added, own.summed == 0, sums_of(p.param)});
        }
        for (std::size_t i = 0; i < matrices_.size(); ++i)
            if (is_matrix(i) && takes_part(i))
                report.put_off += (matrices_[i].columns() - params_[i].list.size()) * matrices_[i].rows();
        return tiles;
    }
    // The gradients of selected columns are brought into their order.
    void gather()
    {
        for_each_part(cpu_, rows_.size(), matrix_elems_, [&](std::size_t at) {
            part const& p = rows_[at];
            param_state const& own = params_[p.param];
            if (takes_part(p.param))
                matrices_[p.param].gather(own.list, p.begin, p.end, gathered_.data() + own.gathered);
        });
    }
    void step_selected()
    {
        kernel::memory_access const how = worker_.access();
        columns_.clear();
        std::size_t elems = 0;
        for (std::size_t i = 0; i < matrices_.size(); ++i)
            for (std::size_t k = 0; k < params_[i].list.size() && takes_part(i) && matrices_[i].rows() != 0; ++k) {
                columns_.push_back({i, k, params_[i].list[k]});
                elems += matrices_[i].rows();
            }
        for_each_part(cpu_, columns_.size(), elems, [&](std::size_t at) {
            part const& p = columns_[at];
            param_state const& own = params_[p.param];
            zenflow_matrix const& m = matrices_[p.param];
            m.step_column(p.end,
                          gathered_.data() + own.gathered + m.shard().bytes(shard_array::grad, p.begin * m.rows()),
                          own.steps[own.step_of[p.end]], how);
        });
        for_each_part(cpu_, blocks_.size(), all_elems_ - matrix_elems_, [&](std::size_t at) {
            part const& p = blocks_[at];
            if (is_matrix(p.param) || !takes_part(p.param))
                return;
            offload_shard const& s = matrices_[p.param].shard();
            group_step const& by = params_[p.param].steps[0];
            float_mode_scope const mode(subnormals::flushed);
            scratch_block scratch;
            for (std::size_t b = p.begin; b < p.end; ++b)
                s.step(b, s.gradient(b, false, by.rules, false, scratch), by.c, how);
        });
        for_each_part(cpu_, rows_.size(), matrix_elems_, [&](std::size_t at) {
            part const& p = rows_[at];
            if (takes_part(p.param))
                matrices_[p.param].copy_weights(params_[p.param].list, p.begin, p.end);
        });
    }
    void count_selected(zenflow_report& report)
    {
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            param_state& own = params_[i];
            if (!takes_part(i))
                continue;
            own.summed += is_matrix(i);
            report.elements += is_matrix(i) ? own.list.size() * matrices_[i].rows() : matrices_[i].shard().size();
            if (!is_matrix(i))
                ++own.counts[0];
            for (std::uint32_t const c : own.list)
                ++own.counts[c];
        }
    }
    void end_window(bool warm_up, bool drops, zenflow_report& report)
    {
        report.window_ended = true;
        report.put_off_skipped = drops;
        finish_and_land(report);
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            put_off_part const& p = next_->parts[i];
            for (std::size_t c = 0; c < p.columns.size() && !drops; ++c) {
                params_[i].counts[c] += p.columns[c];
                report.put_off_stepped += p.columns[c] != 0 ? matrices_[i].rows() : 0;
            }
            params_[i].summed = 0;
        }
        position_.in_window = 0;
        position_.done_squares = 0;
        put_off_norm_ = 0;
        if (drops)
            return;
        std::swap(now_, next_);
        is_staged_.assign(matrices_.size(), 0);
        now_->is_through = {};
        if (home_ != nullptr)
            now_->is_through = [this](std::size_t matrix) {
                home_->stage(matrix);
                is_staged_[matrix] = 1;
            };
        now_->begin(matrices_);
        if (warm_up || !zenflow_.overlap)
            finish_and_land(report);
        else
            half_ = 1 - half_;
    }
    void finish_and_land(zenflow_report& report)
    {
        if (!now_->is_there())
            return;
        auto const start = std::chrono::steady_clock::now();
        worker_.finish(sums_, *now_, matrices_);
        report.put_off_s = now_->take_busy_s() / std::max(1u, cpu_.threads());
        auto const done = std::chrono::steady_clock::now();
        finish_and_land();
        report.waited_s = std::chrono::duration<double>(done - start).count();
        report.landing_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - done).count();
    }
    // In the background. Where the next step selects, not before it has: what it selects is stepped first.
    void go_on()
    {
        bool const waits = landing_is_due_ || selects_next(zenflow_, position_);
        worker_.go_on(sums_, waits ? nullptr : now_.get(), matrices_);
    }
    void finish_and_land()
    {
        if (!now_->is_there())
            return;
        worker_.finish(sums_, *now_, matrices_);
        landing_.resize(matrices_.size());
        for (std::size_t i = 0; i < matrices_.size(); ++i) {
            list_columns(now_->parts[i].columns, 1, landing_[i]);
            if (home_ == nullptr && !landing_[i].empty())
                copy_weights(i); // those of all other columns are what their masters say already
        }
        now_->forget();
        landing_is_due_ = home_ != nullptr;
        try_to_land();
    }
    // On the device. Where it fails that is known by landing_is_due_, and nothing else is done with it before.
    void try_to_land() noexcept
    {
        if (!landing_is_due_)
            return;
        try {
            for (std::size_t i = 0; i < matrices_.size(); ++i) {
                if (is_staged_[i] == 0 && !landing_[i].empty())
                    home_->stage(i);
                home_->land(i, landing_[i]);
            }
            home_->wait();
            landing_is_due_ = false;
        } catch (...) {
            landing_error_ = std::current_exception();
            std::fill(is_staged_.begin(), is_staged_.end(), std::uint8_t{0});
            (void)home_->come_back(); // where it does not, the next attempt fails, and asks again
        }
    }
    void rethrow_landing_error()
    {
        if (landing_error_ == nullptr)
            return;
        try {
            std::rethrow_exception(std::exchange(landing_error_, nullptr));
        } catch (device_error const&) {
            rethrow_as_device_error(text_of({"; step ", position_.steps,
                                             " has been taken all the same, and the weights that "
                                             "could not land do so before anything else"}));
        }
    }
    // What the last call has left.
    void catch_up()
    {
        try_to_land();
        rethrow_landing_error();
    }
    // Nothing goes on in the background.
    void settle() { worker_.finish(sums_, *now_, matrices_); }
    // The host's arrays show what the device has.
    void come_home()
    {
        if (home_ == nullptr)
            return;
        try {
            home_->bring_home();
            for (std::size_t i = 0; i < matrices_.size(); ++i)
                home_->copy_weights(i, true);
            home_->wait();
        } catch (device_error const&) { // or what has failed in the background would do so in every call
            take_back_and_rethrow();
        }
    }
    // In a handler of a device_error.
    [[noreturn]] void take_back_and_rethrow()
    {
        settle(); // or something could be staged meanwhile
        std::fill(is_staged_.begin(), is_staged_.end(), std::uint8_t{0});
        if (home_->take_back())
            throw;
        is_lost_ = true;
        rethrow_as_device_error(
            "; it does not come back from that, so what it has is of no known step: load() a state");
    }
    void report_device(zenflow_report& report) const
    {
        device_usage const now = home_->device().usage();
        auto const bytes = [&](device_lane lane) {
            auto const i = static_cast<std::size_t>(lane);
            return static_cast<std::size_t>(now.bytes[i] - usage_before_.bytes[i]);
        };
        auto const seconds = [&](device_lane lane) {
            auto const i = static_cast<std::size_t>(lane);
            return now.busy_s[i] - usage_before_.busy_s[i];
        };
        report.device = {report.outcome == step_outcome::applied ? report.elements : 0,
                         seconds(device_lane::work),
                         seconds(device_lane::up),
                         seconds(device_lane::down),
                         bytes(device_lane::work),
                         bytes(device_lane::up),
                         bytes(device_lane::down)};
    }
    void copy_weights(std::size_t param)
    {
        zenflow_matrix const& m = matrices_[param];
        constexpr std::size_t some = 64;
        for_each_part(cpu_, (m.rows() + some - 1) / some, m.size(),
                      [&](std::size_t at) { m.copy_weights(at * some, std::min(m.rows(), (at + 1) * some)); });
    }
    void copy_weights(std::size_t param, std::vector<std::uint32_t> const& columns)
    {
        zenflow_matrix const& m = matrices_[param];
        constexpr std::size_t some = 64;
        if (columns.empty())
            return;
        for_each_part(cpu_, (m.rows() + some - 1) / some, columns.size() * m.rows(),
                      [&](std::size_t at) { m.copy_weights(columns, at * some, std::min(m.rows(), (at + 1) * some)); });
    }

    zenflow_options zenflow_;
    optimizer_options options_;
    executor cpu_;
    registry registry_;
    std::vector<zenflow_matrix> matrices_; // of each param; without columns for a vector
    std::vector<param_state> params_;
    std::vector<part> blocks_, rows_, columns_;
    std::vector<shard_in_step> submitted_; // of the step that is open
    std::vector<std::uint8_t> present_;    // the same as flags, when it ends
    std::chrono::steady_clock::time_point started_;
    std::vector<std::uint32_t> list_;
    std::string pus_;
    step_terms terms_;
    zenflow_position position_;
    double put_off_norm_ = 0;
    std::optional<loss_scaler_state> scaler_;
    buffer<float> sum_memory_[2];
    std::size_t half_ = 0; // the one that gradients are added up in
    buffer<std::byte> gathered_;
    std::size_t all_elems_ = 0, matrix_elems_ = 0;
    bool is_laid_out_ = false;
    bool is_open_ = false;
    bool is_lost_ = false;
    std::vector<device_arrays> device_arrays_;
    device_usage usage_before_;
    std::vector<std::uint8_t> is_staged_;             // of each matrix: its weights by columns are up
    std::vector<std::vector<std::uint32_t>> landing_; // columns that land
    bool landing_is_due_ = false;
    std::exception_ptr landing_error_;
    std::unique_ptr<device_home> home_; // null without a device
    sum_work sums_;
    std::mutex down_mutex_;
    std::vector<std::size_t> waiting_down_; // params whose gradients are still to come down
    std::unique_ptr<put_off_step> now_ = std::make_unique<put_off_step>();  // what the last window has put off
    std::unique_ptr<put_off_step> next_ = std::make_unique<put_off_step>(); // what this one does
    put_off_worker worker_;                                                 // last: its threads use the others
};

} // namespace detail
ADAMANT_END_NAMESPACE
