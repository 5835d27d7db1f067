// SPDX-License-Identifier: Apache-2.0
// The parts of an adamant::optimizer, and the work that several of its functions share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/call_rules.hpp>
#include <adamant/detail/engine/device_partition.hpp>
#include <adamant/detail/engine/memory_needs.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_session.hpp>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

struct optimizer_core {
    optimizer_core(executor const& executor, optimizer_options requested)
        : options(std::move(requested)), cpu(executor), session(cpu, options, shards)
    {
    }

    [[nodiscard]] hybrid_dispatcher& dispatcher() noexcept { return session.dispatcher(); }
    [[nodiscard]] work_queue& queue() noexcept { return dispatcher().queue(); }
    [[nodiscard]] background_team& team() noexcept { return session.team(); }
    [[nodiscard]] step_machine const& machine() const noexcept { return session.machine(); }
    // Both are null without a device.
    [[nodiscard]] device_backend* partition() noexcept { return dispatcher().device(); }
    [[nodiscard]] adamant::device const* device() noexcept
    {
        return partition() == nullptr ? nullptr : &partition()->device();
    }

    // Returns change(). Unless that throws, the last step cannot be rolled back any more.
    template <class Change>
    std::size_t change_layout(char const* call, Change const& change)
    {
        no_traps_scope const no_traps;
        rules.between_steps(call);
        std::size_t const number = change();
        is_laid_out = false;
        session.history().forget();
        return number;
    }
    [[nodiscard]] bool needs_journal(bool for_begin_step) noexcept
    {
        return for_begin_step || options.keep_last_step || partition() != nullptr;
    }
    [[nodiscard]] std::size_t budget_for(std::vector<block_range> const& cpu_ranges) const noexcept
    {
        return journal_budget(options, shards, cpu_ranges, cpu.threads());
    }
    [[nodiscard]] std::string longest_journal_text()
    {
        return std::to_string(longest_journal(shards, dispatcher().host().ranges(), cpu.threads()));
    }
    void allocate(bool with_journal)
    {
        if (!is_laid_out) {
            shards.check_overlaps();
            build_layout();
        }
        if (needs_journal(with_journal) && !has_journal) {
            std::vector<block_range> const& ranges = dispatcher().host().ranges();
            session.blocks().records().allocate(cpu, budget_for(ranges), usual_journal(shards, ranges, cpu.threads()),
                                                longest_record(shards));
            has_journal = true;
        }
    }
    void build_layout()
    {
        session.build_layout();
        has_journal = false;
        is_laid_out = true;
    }
    // Call after shards have moved. The weights of those that moved back were on the device only; from now on the CPU
    // uploads them.
    void build_layout_of_placement()
    {
        try {
            build_layout();
            cpu_backend const& host = dispatcher().host();
            for (block_range const& r : host.ranges())
                if (shards.has_device_arrays(r.shard))
                    host.for_each_slice_of(r, [&](std::size_t begin, std::size_t end) {
                        shards[r.shard].shard.round_weights(begin, end);
                    });
        } catch (...) { // round in this thread, which allocates nothing
            is_laid_out = false;
            for (std::size_t i = 0; i < shards.size() && partition() == nullptr; ++i)
                if (shards.has_device_arrays(i))
                    shards[i].shard.round_weights(0, shards[i].shard.size());
            forget_unused_device_arrays();
            throw;
        }
        forget_unused_device_arrays();
        is_laid_out = false; // until the check has passed
        shards.check_overlaps();
        is_laid_out = true;
    }
    // Opens a step: completes the rollback of a failed step, allocates, and starts the session.
    void open(step_values const& values, char const* call, step_kind kind)
    {
        bool const as_they_arrive = kind == step_kind::as_they_arrive;
        rules.between_steps(call);
        session.catch_up();
        rules.known_state(device());
        team().check_process();
        if (!as_they_arrive)
            team().check_caller();
        allocate(as_they_arrive);
        if (kind == step_kind::async || partition() != nullptr || (as_they_arrive && !dispatcher().works_in_submit()))
            team().ensure();
        session.open(values, kind);
    }
    // gradients: null pointers skip their shards; empty: no shard is skipped.
    optimizer_report whole_step(step_values const& values, char const* call, std::span<void const* const> gradients)
    {
        no_traps_scope const no_traps;
        open(values, call, step_kind::whole);
        try {
            session.submit_all(gradients);
            return session.finish();
        } catch (...) {
            session.give_up_and_rethrow();
        }
    }
    // Throws as device_backend::place().
    void move_shards(std::shared_ptr<adamant::device> target, std::vector<shard_piece> const& pieces)
    {
        if (partition() == nullptr) {
            if (target == nullptr)
                return;
            dispatcher().set_device(std::make_unique<device_partition>(shards, session.plan(), session.blocks(),
                                                                       dispatcher().host(), options));
        }
        auto const drop_empty = [&] {
            if (!partition()->has_device())
                dispatcher().set_device(nullptr);
        };
        try {
            partition()->place(std::move(target), pieces);
        } catch (...) {
            drop_empty();
            throw;
        }
        drop_empty();
    }
    // Throws as registry::set_gradient(), and as call_rules::aligned_for().
    void set_gradient(std::size_t shard, void const* grad, bool overlaps_are_checked)
    {
        if (shards.has_device_arrays(shard))
            throw_invalid_argument({"cannot set the gradient of shard ", shards.text(shard),
                                    ": its gradients are on a device (see set_device_arrays())"});
        if (partition() != nullptr && partition()->shares_gradient(shard))
            rules.aligned_for(*device(), shard, grad);
        shards.set_gradient(shard, grad, overlaps_are_checked);
    }
    // Copies params and moments that are on a device to the shards' arrays.
    void copy_to_host(char const* call)
    {
        no_traps_scope const no_traps;
        rules.between_steps(call);
        session.catch_up();
        rules.known_state(device());
        if (partition() != nullptr && partition()->has_pieces())
            partition()->at_rest([&] { partition()->copy_state_to_host(); });
    }

    // Without a device, device arrays have no use.
    void forget_unused_device_arrays() noexcept
    {
        if (partition() == nullptr)
            shards.forget_device_arrays();
    }

    optimizer_options options;
    executor cpu;
    registry shards;
    step_session session;
    call_rules rules{"shard", shards, session.machine(), session.plan().shards, session.team()};
    std::mutex submit_mutex; // serializes submit(), skip() and set_gradient()
    bool is_laid_out = false;
    bool has_journal = false;
    std::uint64_t async_steps = 0; // number of the newest ticket
};

} // namespace detail
ADAMANT_END_NAMESPACE
