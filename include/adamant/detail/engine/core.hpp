// SPDX-License-Identifier: Apache-2.0
// The implementation of adamant::optimizer: checks each call and delegates it to the parts. Documented in
// optimizer.hpp.
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
    // If true, the object must not be destroyed: see step_session.
    [[nodiscard]] bool is_left_behind() const noexcept { return session_.is_left_behind(); }
    [[nodiscard]] std::uint64_t cpu_blocks_done() const noexcept { return session_.dispatcher().queue().done(); }

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
            session_.dispatcher().queue().check_process();
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
            throw_invalid_argument({"cannot call set_loss_scaler(): this optimizer has no dynamic loss scale. Set "
                                    "loss_scaling in the options."});
        if (!is_loss_scale(state.scale))
            throw_invalid_argument({"cannot set the loss scale to ", state.scale, ": it must be ", loss_scale_rule});
        session_.training().scaler = state;
        session_.history().forget();
    }
    [[nodiscard]] std::size_t memory_bytes(bool with_journal) const
    {
        std::vector<block_range> const ranges = session_.dispatcher().cpu_ranges();
        return layout_bytes(registry_, ranges.size(), options_) +
               (needs_journal(with_journal) ? budget_for(ranges) : 0);
    }
    void prepare(bool with_journal)
    {
        no_traps_scope const no_traps;
        rules_.between_steps("prepare()");
        if (with_journal)
            dispatcher().queue().ensure_team();
        allocate(with_journal);
    }

    // ---- A device

    void place(std::shared_ptr<device> target, placement const& requested)
    {
        no_traps_scope const no_traps;
        rules_.between_steps("place()");
        dispatcher().queue().check_process();
        session_.catch_up();
        rules_.known_state();
        check_placement(target.get(), requested, registry_, partition(), options_);
        registry_.check_overlaps();
        if (requested.device_elems == 0 && !registry_.has_device_arrays())
            target.reset(); // it would have no work
        is_laid_out_ = false;
        session_.history().forget();
        move_shards(std::move(target), requested.pieces, registry_, session_, options_);
        build_layout();
        // The weights of shards that moved back were on the device only. From now on the CPU uploads them.
        cpu_backend const& host = dispatcher().host();
        for (block_range const& r : host.ranges())
            if (registry_.has_device_arrays(r.shard))
                host.for_each_slice_of(
                    r, [&](std::size_t begin, std::size_t end) { registry_[r.shard].shard.round_weights(begin, end); });
        if (partition() == nullptr)
            registry_.forget_device_arrays();
        allocate(true);
    }
    [[nodiscard]] std::size_t device_bytes(device const& target, placement const& requested) const
    {
        validate(requested, registry_.sizes());
        return device_pieces::bytes_for(registry_, target, requested.pieces, options_.device_records);
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
    // gradients: one for each shard; null for a shard that takes no part.
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
        dispatcher().queue().check_process(); // first: after a fork, the lock's holder may be in another process
        std::lock_guard const lock(submit_mutex_);
        rules_.shard_awaited("submit()", shard);
        session_.submit(shard);
    }
    void submit(std::size_t shard, void const* grad)
    {
        no_traps_scope const no_traps;
        dispatcher().queue().check_process();
        std::lock_guard const lock(submit_mutex_);
        rules_.shard_awaited("submit()", shard);
        registry_.set_gradient(shard, grad, true);
        session_.submit(shard);
    }
    void skip(std::size_t shard)
    {
        dispatcher().queue().check_process();
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
                {"cannot abandon the step: it needs no norm, so the submitted shards are stepped already, and ",
                 session_.unrecorded_blocks(),
                 " of their blocks have no record to roll back from. Call finish(), or set keep_last_step in the "
                 "options",
                 options_.keep_last_step ? " and journal_budget_bytes to " + longest_journal_text() : std::string(),
                 "."});
        session_.roll_back_open_step();
    }
    void rollback()
    {
        no_traps_scope const no_traps;
        rules_.between_steps("rollback()");
        rules_.step_kept(options_);
        if (std::size_t const n = session_.unrecorded_blocks(); n != 0)
            throw_unavailable({"cannot roll back the last step: the journal's budget of ",
                               budget_for(dispatcher().host().ranges()), " bytes was too small for ", n, " of ",
                               counted(registry_.blocks(), "block"), ". Set journal_budget_bytes to ",
                               longest_journal_text(), ", which is always enough."});
        session_.catch_up();
        session_.roll_back_last_step();
    }
    void accumulate(std::size_t shard)
    {
        no_traps_scope const no_traps;
        if (!machine().is_between_steps())
            dispatcher().queue().check_process();
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

    [[nodiscard]] bool done() const { return session_.dispatcher().queue().idle(); }
    [[nodiscard]] double progress() const
    {
        no_traps_scope const no_traps;
        return done() ? 1.0 : session_.dispatcher().progress();
    }
    bool wait_until(std::chrono::steady_clock::time_point deadline)
    {
        return dispatcher().queue().wait_until(deadline);
    }
    optimizer_report wait()
    {
        no_traps_scope const no_traps;
        if (!machine().is_async())
            throw_invalid_argument({"wait() was already called on this ticket, or its step is over"});
        return session_.collect();
    }

    // ---- State

    [[nodiscard]] state_dict state()
    {
        copy_to_host("state()");
        return views_of(registry_, training());
    }
    void update_host_arrays() { copy_to_host("update_host_arrays()"); }
    void load(state_dict const& state)
    {
        no_traps_scope const no_traps;
        rules_.between_steps("load()");
        dispatcher().queue().check_process();
        session_.catch_up();
        state_to_load next = fit_state(state, registry_, training());
        if (partition() != nullptr) {
            allocate(true);
            partition()->at_rest([&] { partition()->wait(); }); // detects a failed device before any change
        }
        session_.history().forget();
        session_.begin_load();
        next.copy_all();
        for (tracked_shard const& s : registry_.shards())
            cpu_.for_each_slice(s.shard.size(), [&](slice part) { s.shard.round_weights(part.begin, part.end); });
        registry_.forget_sums();
        if (partition() != nullptr)
            partition()->at_rest([&] { partition()->copy_state_from_host(); });
        session_.end_load();
        registry_.replace_groups(std::move(next.groups));
        session_.training() = next.training;
    }

private:
    enum class step_kind { whole, as_they_arrive, async };

    [[nodiscard]] static optimizer_options checked(optimizer_options options)
    {
        validate(options);
        return options;
    }
    [[nodiscard]] hybrid_dispatcher& dispatcher() noexcept { return session_.dispatcher(); }
    [[nodiscard]] step_machine const& machine() const noexcept { return session_.machine(); }
    // The device backend; null without a device.
    [[nodiscard]] device_backend* partition() const noexcept { return session_.dispatcher().device(); }

    // ---- Memory

    // Returns change(). Unless that throws, the last step cannot be rolled back any more.
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
        return for_begin_step || options_.keep_last_step || partition() != nullptr;
    }
    [[nodiscard]] std::size_t budget_for(std::vector<block_range> const& cpu_ranges) const noexcept
    {
        return journal_budget(options_, registry_, cpu_ranges, cpu_.threads());
    }
    [[nodiscard]] std::string longest_journal_text() const
    {
        return std::to_string(longest_journal(registry_, session_.dispatcher().host().ranges(), cpu_.threads()));
    }
    void allocate(bool with_journal)
    {
        if (!is_laid_out_) {
            registry_.check_overlaps();
            build_layout();
        }
        if (needs_journal(with_journal) && !has_journal_) {
            std::vector<block_range> const& ranges = dispatcher().host().ranges();
            session_.blocks().records().allocate(
                cpu_, budget_for(ranges), usual_journal(registry_, ranges, cpu_.threads()), longest_record(registry_));
            has_journal_ = true;
        }
    }
    void build_layout()
    {
        session_.build_layout();
        has_journal_ = false;
        is_laid_out_ = true;
    }
    // Opens a step: completes the rollback of a failed step, allocates, and starts the session.
    void open(step_values const& values, char const* call, step_kind kind = step_kind::whole)
    {
        bool const as_they_arrive = kind == step_kind::as_they_arrive;
        rules_.between_steps(call);
        session_.catch_up();
        rules_.known_state();
        dispatcher().queue().check_process();
        if (!as_they_arrive)
            dispatcher().queue().check_caller();
        allocate(as_they_arrive);
        if (kind == step_kind::async || partition() != nullptr || (as_they_arrive && !dispatcher().works_in_submit()))
            dispatcher().queue().ensure_team();
        session_.open(values, as_they_arrive, kind == step_kind::async);
    }
    void copy_to_host(char const* call)
    {
        no_traps_scope const no_traps;
        rules_.between_steps(call);
        session_.catch_up();
        rules_.known_state();
        if (partition() != nullptr && partition()->has_pieces())
            partition()->at_rest([&] { partition()->copy_state_to_host(); });
    }

    optimizer_options options_;
    executor cpu_;
    registry registry_;
    step_session session_;
    call_rules rules_{registry_, session_};
    std::mutex submit_mutex_; // serializes submit(), skip() and set_gradient()
    bool is_laid_out_ = false;
    bool has_journal_ = false;
};

} // namespace detail
ADAMANT_END_NAMESPACE
