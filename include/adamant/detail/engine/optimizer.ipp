// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/optimizer.hpp>: each function checks its preconditions and calls the parts.
#pragma once

#include <algorithm>

#include <adamant/optimizer.hpp>
#include <adamant/detail/engine/core.hpp>
#include <adamant/detail/engine/state_views.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void delete_optimizer_core::operator()(optimizer_core* core) const noexcept
{
    if (!core->session.is_left_behind())
        delete core;
}

} // namespace detail

[[gnu::noinline]] ADAMANT_DECL optimizer::optimizer(executor const& cpu, optimizer_options options)
{
    validate(options);
    core_.reset(new detail::optimizer_core(cpu, std::move(options)));
}
ADAMANT_DECL optimizer::optimizer(optimizer&& other) noexcept = default;
ADAMANT_DECL optimizer& optimizer::operator=(optimizer&& other) noexcept = default;
ADAMANT_DECL optimizer::~optimizer() = default;

// ---- Set-up

[[gnu::noinline]] ADAMANT_DECL group_id optimizer::add_group(parameter_group group)
{
    return core_->change_layout("add_group()", [&] { return core_->shards.add_group(std::move(group)); });
}
ADAMANT_DECL group_id optimizer::add_group(std::string name, hyperparameters const& hyper, bool maximize)
{
    return add_group({std::move(name), hyper, maximize});
}
ADAMANT_DECL void optimizer::remove_group(group_id group)
{
    core_->change_layout("remove_group()", [&] {
        core_->rules.no_device("remove_group()", core_->device());
        core_->shards.remove_group(group.index);
        return group.index;
    });
}
ADAMANT_DECL std::vector<parameter_group> const& optimizer::groups() const noexcept
{
    return core_->shards.groups();
}
ADAMANT_DECL parameter_group const& optimizer::group(group_id group) const
{
    core_->shards.require_group(group.index);
    return groups()[group.index];
}
ADAMANT_DECL std::optional<group_id> optimizer::find_group(std::string_view name) const
{
    std::optional<std::size_t> const index = core_->shards.find_group(name);
    return index ? std::optional<group_id>(*index) : std::nullopt;
}
ADAMANT_DECL void optimizer::set_hyperparameters(group_id group, hyperparameters const& hyper)
{
    no_traps_scope const no_traps;
    core_->rules.between_steps("set_hyperparameters()");
    core_->shards.set_hyperparameters(group.index, hyper);
}
[[gnu::noinline]] ADAMANT_DECL shard_id optimizer::add_shard(shard_to_add added)
{
    return core_->change_layout("add_shard()", [&] {
        return core_->shards.add_shard(added.group.index, added.name, added.shard, added.accumulator,
                                       std::move(added.position), cpu().tier());
    });
}
ADAMANT_DECL void optimizer::remove_shard(shard_id shard)
{
    core_->change_layout("remove_shard()", [&] {
        core_->rules.no_device("remove_shard()", core_->device());
        core_->shards.remove_shard(shard.index);
        return shard.index;
    });
}
ADAMANT_DECL std::size_t optimizer::shards() const noexcept
{
    return core_->shards.size();
}
ADAMANT_DECL std::string const& optimizer::name(shard_id shard) const
{
    core_->shards.require_shard(shard.index);
    return core_->shards.name(shard.index);
}
ADAMANT_DECL std::optional<shard_id> optimizer::find_shard(std::string_view name, std::size_t begin) const
{
    std::optional<std::size_t> const index = core_->shards.positions().find(name, begin);
    return index ? std::optional<shard_id>(*index) : std::nullopt;
}
ADAMANT_DECL void optimizer::set_gradient(shard_id shard, void const* grad)
{
    bool const in_step = !core_->machine().is_between_steps();
    if (in_step)
        core_->team().check_process();
    std::lock_guard const lock(core_->submit_mutex);
    core_->shards.require_shard(shard.index);
    if (in_step)
        core_->rules.shard_awaited("set_gradient()", shard.index);
    core_->set_gradient(shard.index, grad, core_->is_laid_out);
}
ADAMANT_DECL std::size_t optimizer::memory_bytes(bool with_journal) const
{
    std::vector<detail::block_range> const ranges = core_->dispatcher().cpu_ranges();
    return detail::layout_bytes(core_->shards, ranges.size(), core_->options) +
           (core_->needs_journal(with_journal) ? core_->budget_for(ranges) : 0);
}
ADAMANT_DECL void optimizer::prepare(bool with_journal)
{
    no_traps_scope const no_traps;
    core_->rules.between_steps("prepare()");
    if (with_journal)
        core_->team().ensure();
    core_->allocate(with_journal);
}
ADAMANT_DECL std::uint64_t optimizer::cpu_blocks_done() const noexcept
{
    return core_->queue().done();
}
ADAMANT_DECL std::uint64_t optimizer::steps() const noexcept
{
    return core_->session.training().steps;
}
ADAMANT_DECL void optimizer::set_steps(std::uint64_t steps)
{
    core_->rules.between_steps("set_steps()");
    detail::check_steps(steps);
    core_->session.training().steps = steps;
    core_->session.history().forget();
}
ADAMANT_DECL double optimizer::loss_scale() const noexcept
{
    return core_->session.training().loss_scale();
}
ADAMANT_DECL std::optional<loss_scaler_state> optimizer::loss_scaler() const noexcept
{
    return core_->session.training().scaler;
}
ADAMANT_DECL void optimizer::set_loss_scaler(loss_scaler_state const& state)
{
    no_traps_scope const no_traps;
    core_->rules.between_steps("set_loss_scaler()");
    if (!loss_scaler())
        detail::throw_invalid_argument({"cannot call set_loss_scaler(): this optimizer has no dynamic loss scale. Set "
                                        "loss_scaling in the options."});
    if (!detail::is_loss_scale(state.scale))
        detail::throw_invalid_argument(
            {"cannot set the loss scale to ", state.scale, ": it must be ", detail::loss_scale_rule});
    core_->session.training().scaler = state;
    core_->session.history().forget();
}
ADAMANT_DECL executor const& optimizer::cpu() const noexcept
{
    return core_->cpu;
}

// ---- A device

ADAMANT_DECL void optimizer::place(std::shared_ptr<device> target, placement const& requested)
{
    no_traps_scope const no_traps;
    detail::registry& shards = core_->shards;
    core_->rules.between_steps("place()");
    core_->team().check_process();
    bool const detaches = target == nullptr && core_->partition() != nullptr && !core_->partition()->has_pieces();
    if (!detaches)
        core_->session.catch_up();
    core_->rules.known_state(core_->device());
    core_->rules.may_place(target.get(), requested, core_->device(), core_->options);
    shards.check_overlaps();
    if (detaches)
        core_->session.abandon_device_work();
    if (requested.device_elems == 0 && !shards.has_device_arrays())
        target.reset(); // it would have no work
    core_->is_laid_out = false;
    core_->session.history().forget();
    bool const had_device = core_->partition() != nullptr;
    try {
        core_->move_shards(std::move(target), requested.pieces);
    } catch (...) {
        if (had_device && core_->partition() == nullptr) // the CPU has all shards now
            core_->build_layout_of_placement();
        throw;
    }
    core_->build_layout_of_placement();
    core_->allocate(true);
}
ADAMANT_DECL std::vector<std::size_t> optimizer::shard_sizes() const
{
    return core_->shards.sizes();
}
ADAMANT_DECL std::size_t optimizer::device_bytes(device const& target, placement const& requested) const
{
    validate(requested, shard_sizes());
    return detail::device_pieces::bytes_for(core_->shards, target, requested.pieces, core_->options.device_records);
}
ADAMANT_DECL void optimizer::set_device_arrays(shard_id shard, device_arrays const& arrays)
{
    core_->rules.between_steps("set_device_arrays()");
    core_->rules.no_device("set_device_arrays()", core_->device());
    core_->shards.set_device_arrays(shard.index, arrays);
}

// ---- Steps

ADAMANT_DECL optimizer_report optimizer::step(step_values const& values)
{
    return core_->whole_step(values, "step()", {});
}
ADAMANT_DECL optimizer_report optimizer::step_gradients(std::span<void const* const> gradients,
                                                        step_values const& values)
{
    core_->rules.between_steps("step_gradients()");
    core_->rules.gradient_for_each(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i] != nullptr)
            set_gradient(i, gradients[i]);
    return core_->whole_step(values, "step_gradients()", gradients);
}
ADAMANT_DECL optimizer::ticket optimizer::step_async(step_values const& values)
{
    no_traps_scope const no_traps;
    core_->open(values, "step_async()", detail::step_kind::async);
    try {
        core_->session.submit_all();
    } catch (...) {
        core_->session.give_up_and_rethrow();
    }
    return ticket(*core_, ++core_->async_steps);
}
[[gnu::noinline]] ADAMANT_DECL void optimizer::begin_step(step_values const& values)
{
    no_traps_scope const no_traps;
    core_->open(values, "begin_step()", detail::step_kind::as_they_arrive);
}
namespace detail {

// Calls work(), if the open step awaits this shard. Serializes its callers.
template <class Work>
void with_awaited_shard(optimizer_core& core, char const* call, std::size_t shard, Work const& work)
{
    no_traps_scope const no_traps;
    core.team().check_process(); // first: after a fork, the lock's holder may be in another process
    std::lock_guard const lock(core.submit_mutex);
    core.rules.shard_awaited(call, shard);
    work();
}

} // namespace detail

ADAMANT_DECL void optimizer::submit(shard_id shard)
{
    detail::with_awaited_shard(*core_, "submit()", shard.index, [&] { core_->session.submit(shard.index); });
}
ADAMANT_DECL void optimizer::submit(shard_id shard, void const* grad)
{
    detail::with_awaited_shard(*core_, "submit()", shard.index, [&] {
        core_->set_gradient(shard.index, grad, true);
        core_->session.submit(shard.index);
    });
}
ADAMANT_DECL void optimizer::skip(shard_id shard)
{
    detail::with_awaited_shard(*core_, "skip()", shard.index, [&] { core_->session.skip(shard.index); });
}
[[gnu::noinline]] ADAMANT_DECL optimizer_report optimizer::finish()
{
    no_traps_scope const no_traps;
    core_->rules.step_open("finish()");
    core_->rules.all_submitted();
    return core_->session.finish();
}
ADAMANT_DECL void optimizer::abandon()
{
    no_traps_scope const no_traps;
    core_->rules.step_open("abandon()");
    if (!core_->session.can_roll_back())
        detail::throw_unavailable(
            {"cannot abandon the step: it needs no norm, so the submitted shards are stepped already, and ",
             core_->session.unrecorded_blocks(),
             " of their blocks have no record to roll back from. Call finish(), or set keep_last_step in the options",
             core_->options.keep_last_step ? " and journal_budget_bytes to " : "",
             core_->options.keep_last_step ? core_->longest_journal_text() : "", "."});
    core_->session.roll_back_open_step();
}
ADAMANT_DECL void optimizer::rollback()
{
    no_traps_scope const no_traps;
    core_->rules.between_steps("rollback()");
    core_->rules.step_kept(core_->session.history().has_step(), core_->options);
    if (std::size_t const n = core_->session.unrecorded_blocks(); n != 0)
        detail::throw_unavailable({"cannot roll back the last step: the journal's budget of ",
                                   core_->budget_for(core_->dispatcher().host().ranges()), " bytes was too small for ",
                                   n, " of ", detail::counted(core_->shards.blocks(), "block"),
                                   ". Set journal_budget_bytes to ", core_->longest_journal_text(),
                                   ", which is always enough."});
    core_->session.roll_back_last_step();
}
ADAMANT_DECL void optimizer::accumulate(shard_id shard)
{
    no_traps_scope const no_traps;
    bool const in_step = !core_->machine().is_between_steps();
    if (in_step)
        core_->team().check_process();
    core_->rules.may_accumulate(shard.index);
    core_->team().check_caller();
    if (!in_step) {
        core_->session.catch_up();
        core_->rules.known_state(core_->device());
        core_->allocate(false);
    }
    core_->session.history().forget();
    core_->session.accumulate(shard.index);
}
ADAMANT_DECL void optimizer::clear_accumulators()
{
    core_->rules.between_steps("clear_accumulators()");
    core_->session.catch_up();
    core_->session.history().forget();
    core_->shards.forget_sums();
}

ADAMANT_DECL bool optimizer::ticket::is_used() const noexcept
{
    return number_ != core_->async_steps || !core_->machine().is_async();
}
ADAMANT_DECL bool optimizer::ticket::done() const
{
    return is_used() || core_->queue().idle();
}
ADAMANT_DECL double optimizer::ticket::progress() const
{
    no_traps_scope const no_traps;
    return done() ? 1.0 : core_->dispatcher().progress();
}
ADAMANT_DECL bool optimizer::ticket::wait_until(std::chrono::steady_clock::time_point deadline) const
{
    return is_used() || core_->queue().wait_until(deadline);
}
ADAMANT_DECL bool optimizer::ticket::wait_for(std::chrono::nanoseconds time) const
{
    return wait_until(detail::time_after(std::chrono::steady_clock::now(), time));
}
ADAMANT_DECL optimizer_report optimizer::ticket::wait() const
{
    no_traps_scope const no_traps;
    if (is_used())
        detail::throw_invalid_argument({"wait() was already called on this ticket"});
    return core_->session.collect();
}

// ---- State

ADAMANT_DECL state_dict optimizer::state()
{
    core_->copy_to_host("state()");
    return detail::views_of(core_->shards, core_->session.training());
}
[[gnu::noinline]] ADAMANT_DECL void optimizer::update_host_arrays()
{
    core_->copy_to_host("update_host_arrays()");
}
ADAMANT_DECL void optimizer::load(state_dict const& state)
{
    no_traps_scope const no_traps;
    detail::step_session& session = core_->session;
    detail::device_backend* const partition = core_->partition();
    core_->rules.between_steps("load()");
    core_->team().check_process();
    core_->team().check_caller();
    session.catch_up();
    detail::state_to_load next = detail::fit_state(state, core_->shards, session.training());
    if (partition != nullptr) {
        core_->allocate(true);
        partition->at_rest([&] { partition->wait(); }); // detects a failed device before any change
    }
    session.history().forget();
    session.begin_load();
    for (detail::tracked_shard const& s : core_->shards.shards())
        s.shard.mark_all();
    next.copy_all();
    for (detail::tracked_shard const& s : core_->shards.shards())
        cpu().for_each_slice(s.shard.size(), [&](slice part) { s.shard.round_weights(part.begin, part.end); });
    core_->shards.forget_sums();
    if (partition != nullptr)
        partition->at_rest([&] { partition->copy_state_from_host(); });
    session.end_load();
    core_->shards.replace_groups(std::move(next.groups));
    session.training() = next.training;
}

ADAMANT_END_NAMESPACE
