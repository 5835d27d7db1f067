// SPDX-License-Identifier: Apache-2.0
// The inside of an optimizer: owns its parts, and says which of them does what. optimizer.hpp says what functions do.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/executor.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/accumulation.hpp>
#include <adamant/detail/engine/call_rules.hpp>
#include <adamant/detail/engine/memory_needs.hpp>
#include <adamant/detail/engine/placing.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/state_views.hpp>
#include <adamant/detail/engine/step_session.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class optimizer_core {
public:
    optimizer_core(executor const& cpu, optimizer_options options)
        : options_(checked(std::move(options))), cpu_(cpu), session_(cpu_, options_, registry_)
    {
    }

    [[nodiscard]] registry const& registered() const noexcept { return registry_; }
    [[nodiscard]] training_state const& training() const noexcept { return session_.training(); }
    [[nodiscard]] executor const& cpu() const noexcept { return cpu_; }
    // Must not be touched: see step_session.
    [[nodiscard]] bool is_left_behind() const noexcept { return session_.is_left_behind(); }
    [[nodiscard]] std::uint64_t cpu_blocks_done() const noexcept { return session_.sides().line().done(); }

    // ---- Set-up

    std::size_t add_group(parameter_group group)
    {
        return change_layout("add_group()", [&] { return registry_.add_group(std::move(group)); });
    }
    void remove_group(std::size_t group)
    {
        change_layout("remove_group()", [&] {
            rules_.no_device("remove_group()");
            registry_.remove_group(group);
            return group;
        });
    }
    void set_hyperparameters(std::size_t group, hyperparameters const& hyper)
    {
        no_traps_scope const no_traps;
        rules_.between_steps("set_hyperparameters()");
        registry_.set_hyperparameters(group, hyper);
    }
    std::size_t add_shard(std::size_t group, std::string const& name, any_shard const& view,
                          accumulator_array const& sum, shard_place place)
    {
        return change_layout(
            "add_shard()", [&] { return registry_.add_shard(group, name, view, sum, std::move(place), cpu_.tier()); });
    }
    void remove_shard(std::size_t shard)
    {
        change_layout("remove_shard()", [&] {
            rules_.no_device("remove_shard()");
            registry_.remove_shard(shard);
            return shard;
        });
    }
    void set_gradient(std::size_t shard, void const* grad)
    {
        if (!machine().is_between_steps())
            session_.sides().line().check_process();
        std::lock_guard const lock(submit_mutex_);
        registry_.require_shard(shard);
        if (!machine().is_between_steps())
            rules_.shard_awaited("set_gradient()", shard);
        registry_.set_gradient(shard, grad, is_laid_out_);
    }
    void set_steps(std::uint64_t steps)
    {
        rules_.between_steps("set_steps()");
        session_.training().steps = steps;
        session_.history().forget();
    }
    void set_loss_scaler(loss_scaler_state const& state)
    {
        rules_.between_steps("set_loss_scaler()");
        if (!training().scaler)
            throw_invalid_argument({"set_loss_scaler() is called, but this optimizer does not scale "
                                    "dynamically; set loss_scaling in the options"});
        if (!is_loss_scale(state.scale))
            throw_invalid_argument({"the loss scaler's scale is ", state.scale, ", but must be ", loss_scale_rule});
        session_.training().scaler = state;
        session_.history().forget();
    }
    [[nodiscard]] std::size_t memory_bytes(bool with_journal) const
    {
        std::vector<block_range> const ranges = session_.sides().cpu_ranges();
        return layout_bytes(registry_, ranges.size(), options_) +
               (needs_journal(with_journal) ? budget_for(ranges) : 0);
    }
    void prepare(bool with_journal)
    {
        no_traps_scope const no_traps;
        rules_.between_steps("prepare()");
        if (with_journal)
            sides().line().ensure_team();
        allocate(with_journal);
    }

    // ---- A device

    void place(std::shared_ptr<device> on, placement const& where)
    {
        no_traps_scope const no_traps;
        rules_.between_steps("place()");
        sides().line().check_process();
        session_.catch_up();
        rules_.known_state();
        check_placement(on.get(), where, registry_, placed(), options_);
        registry_.check_overlaps();
        if (where.device_elems == 0 && !registry_.has_device_arrays())
            on.reset(); // it would have nothing to do
        is_laid_out_ = false;
        session_.history().forget();
        move_shards(std::move(on), where.pieces, registry_, session_, options_);
        build_layout();
        // The weights of shards that come back were on the device alone; from now on they go up from here.
        cpu_backend const& host = sides().host();
        for (block_range const& r : host.ranges())
            if (registry_.has_device_arrays(r.shard))
                host.for_each_slice_of(
                    r, [&](std::size_t begin, std::size_t end) { registry_[r.shard].shard.round_weights(begin, end); });
        if (placed() == nullptr)
            registry_.forget_device_arrays();
        allocate(true);
    }
    [[nodiscard]] std::size_t device_bytes(device const& on, placement const& where) const
    {
        validate(where, registry_.sizes());
        return device_pieces::bytes_for(registry_, on, where.pieces, options_.device_records);
    }
    void set_device_arrays(std::size_t shard, device_arrays const& arrays)
    {
        rules_.between_steps("set_device_arrays()");
        registry_.require_shard(shard);
        rules_.no_device("set_device_arrays()");
        registry_.set_device_arrays(shard, arrays);
    }

    // ---- Steps

    optimizer_report step(step_values const& values)
    {
        no_traps_scope const no_traps;
        open(values, "step()");
        try {
            session_.submit_all();
            return session_.finish();
        } catch (...) {
            session_.give_up_and_rethrow();
        }
    }
    // gradients: of all shards; null for one without.
    optimizer_report step_gradients(std::span<void const* const> gradients, step_values const& values)
    {
        bool all = true;
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            all = all && gradients[i] != nullptr;
            if (gradients[i] != nullptr)
                set_gradient(i, gradients[i]);
        }
        if (all)
            return step(values);
        begin_step(values);
        try {
            for (std::size_t i = 0; i < gradients.size(); ++i)
                gradients[i] != nullptr ? submit(i) : skip(i);
            return finish();
        } catch (...) {
            no_traps_scope const no_traps;
            session_.give_up_and_rethrow();
        }
    }
    void step_async(step_values const& values)
    {
        no_traps_scope const no_traps;
        open(values, "step_async()", step_kind::async);
        try {
            session_.submit_all();
        } catch (...) {
            session_.give_up_and_rethrow();
        }
    }
    void begin_step(step_values const& values)
    {
        no_traps_scope const no_traps;
        open(values, "begin_step()", step_kind::as_they_arrive);
    }
    void submit(std::size_t shard)
    {
        no_traps_scope const no_traps;
        sides().line().check_process(); // first: who had the lock may be in another process
        std::lock_guard const lock(submit_mutex_);
        rules_.shard_awaited("submit()", shard);
        session_.submit(shard);
    }
    void submit(std::size_t shard, void const* grad)
    {
        no_traps_scope const no_traps;
        sides().line().check_process();
        std::lock_guard const lock(submit_mutex_);
        rules_.shard_awaited("submit()", shard);
        registry_.set_gradient(shard, grad, true);
        session_.submit(shard);
    }
    void skip(std::size_t shard)
    {
        sides().line().check_process();
        std::lock_guard const lock(submit_mutex_);
        rules_.shard_awaited("skip()", shard);
        session_.skip(shard);
    }
    optimizer_report finish()
    {
        no_traps_scope const no_traps;
        rules_.step_open("finish()");
        rules_.all_submitted();
        return session_.finish();
    }
    void abandon()
    {
        no_traps_scope const no_traps;
        rules_.step_open("abandon()");
        if (!session_.can_roll_back())
            throw_unavailable(
                {"abandon() is called, but this step needs no norm, so what was submitted has been "
                 "stepped, and ",
                 session_.unrecorded_blocks(),
                 " blocks of it cannot be rolled back; finish() the step, or set keep_last_step in the options",
                 options_.keep_last_step ? " and journal_budget_bytes to " + longest_journal_text() : std::string()});
        session_.roll_back_open_step();
    }
    void rollback()
    {
        no_traps_scope const no_traps;
        rules_.between_steps("rollback()");
        rules_.step_kept(options_);
        if (std::size_t const n = session_.unrecorded_blocks(); n != 0)
            throw_unavailable({"the last step cannot be rolled back: for ", n, " of ", registry_.blocks(),
                               " blocks the journal's budget of ", budget_for(sides().host().ranges()),
                               " bytes was full; set journal_budget_bytes to ", longest_journal_text(), " to be sure"});
        session_.catch_up();
        session_.roll_back_last_step();
    }
    void accumulate(std::size_t shard)
    {
        no_traps_scope const no_traps;
        if (!machine().is_between_steps())
            sides().line().check_process();
        rules_.may_accumulate(shard);
        if (machine().is_between_steps()) {
            session_.catch_up();
            rules_.known_state();
            allocate(false);
        }
        session_.history().forget();
        accumulate_gradient(shard, registry_, session_);
    }
    void clear_accumulators()
    {
        rules_.between_steps("clear_accumulators()");
        session_.catch_up();
        session_.history().forget();
        registry_.forget_sums();
    }

    // ---- The ticket of step_async()

    [[nodiscard]] bool done() const { return session_.sides().line().idle(); }
    [[nodiscard]] double progress() const
    {
        no_traps_scope const no_traps;
        return done() ? 1.0 : session_.sides().progress();
    }
    bool wait_until(std::chrono::steady_clock::time_point deadline) { return sides().line().wait_until(deadline); }
    optimizer_report wait()
    {
        no_traps_scope const no_traps;
        if (!machine().is_async())
            throw_invalid_argument({"a ticket is waited for twice, or its step is over"});
        return session_.collect();
    }

    // ---- State

    [[nodiscard]] state_dict state()
    {
        copy_to_host("state()");
        return views_of(registry_, training());
    }
    void update_host_arrays() { copy_to_host("update_host_arrays()"); }
    void load(state_dict const& from)
    {
        no_traps_scope const no_traps;
        rules_.between_steps("load()");
        sides().line().check_process();
        session_.catch_up();
        state_to_load what = fit_state(from, registry_, training());
        if (placed() != nullptr) {
            allocate(true);
            placed()->at_rest([&] { placed()->wait(); }); // a device that is of no use now is found out before a change
        }
        session_.history().forget();
        session_.begin_load();
        what.copy_all();
        for (tracked_shard const& s : registry_.shards())
            cpu_.for_each_slice(s.shard.size(), [&](slice part) { s.shard.round_weights(part.begin, part.end); });
        registry_.forget_sums();
        if (placed() != nullptr)
            placed()->at_rest([&] { placed()->copy_state_from_host(); });
        session_.end_load();
        registry_.replace_groups(std::move(what.groups));
        session_.training() = what.training;
    }

private:
    enum class step_kind { whole, as_they_arrive, async };

    [[nodiscard]] static optimizer_options checked(optimizer_options options)
    {
        validate(options);
        return options;
    }
    [[nodiscard]] hybrid_dispatcher& sides() noexcept { return session_.sides(); }
    [[nodiscard]] step_machine const& machine() const noexcept { return session_.machine(); }
    // The device's side; null without a device.
    [[nodiscard]] device_backend* placed() const noexcept { return session_.sides().device(); }

    // ---- Memory

    // Returns what `change` does. The last step cannot be rolled back any more, unless it throws.
    template <class Change>
    std::size_t change_layout(char const* call, Change const& change)
    {
        no_traps_scope const no_traps;
        rules_.between_steps(call);
        std::size_t const number = change();
        is_laid_out_ = false;
        session_.history().forget();
        return number;
    }
    [[nodiscard]] bool needs_journal(bool for_begin_step) const noexcept
    {
        return for_begin_step || options_.keep_last_step || placed() != nullptr;
    }
    [[nodiscard]] std::size_t budget_for(std::vector<block_range> const& on_cpu) const noexcept
    {
        return journal_budget(options_, registry_, on_cpu, cpu_.threads());
    }
    [[nodiscard]] std::string longest_journal_text() const
    {
        return std::to_string(longest_journal(registry_, session_.sides().host().ranges(), cpu_.threads()));
    }
    void allocate(bool with_journal)
    {
        if (!is_laid_out_) {
            registry_.check_overlaps();
            build_layout();
        }
        if (needs_journal(with_journal) && !has_journal_) {
            session_.blocks().records().allocate(cpu_, budget_for(sides().host().ranges()), longest_record(registry_));
            has_journal_ = true;
        }
    }
    void build_layout()
    {
        session_.build_layout();
        has_journal_ = false;
        is_laid_out_ = true;
    }
    // All that steps need is there, and nothing is left over from one that failed.
    void open(step_values const& values, char const* call, step_kind kind = step_kind::whole)
    {
        bool const as_they_arrive = kind == step_kind::as_they_arrive;
        rules_.between_steps(call);
        session_.catch_up();
        rules_.known_state();
        sides().line().check_process();
        if (!as_they_arrive)
            sides().line().check_caller();
        if (kind != step_kind::whole || placed() != nullptr)
            sides().line().ensure_team();
        allocate(as_they_arrive);
        session_.open(values, as_they_arrive, kind == step_kind::async);
    }
    void copy_to_host(char const* call)
    {
        no_traps_scope const no_traps;
        rules_.between_steps(call);
        session_.catch_up();
        rules_.known_state();
        if (placed() != nullptr && placed()->has_pieces())
            placed()->at_rest([&] { placed()->copy_state_to_host(); });
    }

    optimizer_options options_;
    executor cpu_;
    registry registry_;
    step_session session_;
    call_rules rules_{registry_, session_};
    std::mutex submit_mutex_; // of calls from several threads
    bool is_laid_out_ = false;
    bool has_journal_ = false;
};

} // namespace detail
ADAMANT_END_NAMESPACE
