// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/optimizer.hpp>: every function forwards to optimizer_core.
#pragma once

#include <algorithm>

#include <adamant/optimizer.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/core.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void delete_optimizer_core::operator()(optimizer_core* core) const noexcept
{
    if (!core->is_left_behind())
        delete core;
}

} // namespace detail

ADAMANT_DECL optimizer::optimizer(executor const& cpu, optimizer_options options)
    : core_(new detail::optimizer_core(cpu, std::move(options)))
{
}
ADAMANT_DECL optimizer::optimizer(optimizer&& other) noexcept = default;
ADAMANT_DECL optimizer& optimizer::operator=(optimizer&& other) noexcept = default;
ADAMANT_DECL optimizer::~optimizer() = default;

ADAMANT_DECL group_id optimizer::add_group(parameter_group group)
{
    return core_->add_group(std::move(group));
}
ADAMANT_DECL group_id optimizer::add_group(std::string name, hyperparameters const& hyper, bool maximize)
{
    return core_->add_group({std::move(name), hyper, maximize});
}
ADAMANT_DECL std::vector<parameter_group> const& optimizer::groups() const noexcept
{
    return core_->registered().groups();
}
ADAMANT_DECL parameter_group const& optimizer::group(group_id group) const
{
    core_->registered().require_group(group.index);
    return groups()[group.index];
}
ADAMANT_DECL std::optional<group_id> optimizer::find_group(std::string_view name) const
{
    std::optional<std::size_t> const index = core_->registered().find_group(name);
    return index ? std::optional<group_id>(*index) : std::nullopt;
}
ADAMANT_DECL void optimizer::remove_group(group_id group)
{
    core_->remove_group(group.index);
}
ADAMANT_DECL void optimizer::set_hyperparameters(group_id group, hyperparameters const& hyper)
{
    core_->set_hyperparameters(group.index, hyper);
}
ADAMANT_DECL shard_id optimizer::add_shard(shard_to_add added)
{
    return core_->add_shard(added.group.index, added.name, added.shard, added.accumulator, std::move(added.place));
}
ADAMANT_DECL std::size_t optimizer::shards() const noexcept
{
    return core_->registered().size();
}
ADAMANT_DECL std::string const& optimizer::name(shard_id shard) const
{
    return core_->registered().name(shard.index);
}
ADAMANT_DECL std::optional<shard_id> optimizer::find_shard(std::string_view name, std::size_t begin) const
{
    std::optional<std::size_t> const index = core_->registered().places().find(name, begin);
    return index ? std::optional<shard_id>(*index) : std::nullopt;
}
ADAMANT_DECL void optimizer::remove_shard(shard_id shard)
{
    core_->remove_shard(shard.index);
}
ADAMANT_DECL void optimizer::set_gradient(shard_id shard, void const* grad)
{
    core_->set_gradient(shard.index, grad);
}
ADAMANT_DECL std::size_t optimizer::memory_bytes(bool with_journal) const
{
    return core_->memory_bytes(with_journal);
}
ADAMANT_DECL void optimizer::prepare(bool with_journal)
{
    core_->prepare(with_journal);
}
ADAMANT_DECL std::uint64_t optimizer::cpu_blocks_done() const noexcept
{
    return core_->cpu_blocks_done();
}
ADAMANT_DECL std::uint64_t optimizer::steps() const noexcept
{
    return core_->training().steps;
}
ADAMANT_DECL void optimizer::set_steps(std::uint64_t steps)
{
    core_->set_steps(steps);
}
ADAMANT_DECL double optimizer::loss_scale() const noexcept
{
    return core_->training().loss_scale();
}
ADAMANT_DECL std::optional<loss_scaler_state> optimizer::loss_scaler() const noexcept
{
    return core_->training().scaler;
}
ADAMANT_DECL void optimizer::set_loss_scaler(loss_scaler_state const& state)
{
    core_->set_loss_scaler(state);
}
ADAMANT_DECL executor const& optimizer::cpu() const noexcept
{
    return core_->cpu();
}
ADAMANT_DECL void optimizer::place(std::shared_ptr<device> target, placement const& requested)
{
    core_->place(std::move(target), requested);
}
ADAMANT_DECL std::vector<std::size_t> optimizer::shard_sizes() const
{
    return core_->registered().sizes();
}
ADAMANT_DECL std::size_t optimizer::device_bytes(device const& target, placement const& requested) const
{
    return core_->device_bytes(target, requested);
}
ADAMANT_DECL void optimizer::set_device_arrays(shard_id shard, device_arrays const& arrays)
{
    core_->set_device_arrays(shard.index, arrays);
}
ADAMANT_DECL optimizer_report optimizer::step(step_values const& values)
{
    return core_->step(values);
}
ADAMANT_DECL optimizer_report optimizer::step_gradients(std::span<void const* const> gradients,
                                                        step_values const& values)
{
    if (gradients.size() != shards())
        detail::throw_invalid_argument({"cannot step with ", detail::counted(gradients.size(), "gradient"),
                                        ": the optimizer has ", detail::counted(shards(), "shard")});
    return core_->step_gradients(gradients, values);
}
ADAMANT_DECL void optimizer::begin_step(step_values const& values)
{
    core_->begin_step(values);
}
ADAMANT_DECL void optimizer::submit(shard_id shard)
{
    core_->submit(shard.index);
}
ADAMANT_DECL void optimizer::submit(shard_id shard, void const* grad)
{
    core_->submit(shard.index, grad);
}
ADAMANT_DECL void optimizer::skip(shard_id shard)
{
    core_->skip(shard.index);
}
ADAMANT_DECL optimizer_report optimizer::finish()
{
    return core_->finish();
}
ADAMANT_DECL void optimizer::abandon()
{
    core_->abandon();
}
ADAMANT_DECL void optimizer::rollback()
{
    core_->rollback();
}
ADAMANT_DECL void optimizer::accumulate(shard_id shard)
{
    core_->accumulate(shard.index);
}
ADAMANT_DECL void optimizer::clear_accumulators()
{
    core_->clear_accumulators();
}
ADAMANT_DECL optimizer::ticket optimizer::step_async(step_values const& values)
{
    core_->step_async(values);
    return ticket(*core_);
}
ADAMANT_DECL state_dict optimizer::state()
{
    return core_->state();
}
ADAMANT_DECL void optimizer::update_host_arrays()
{
    core_->update_host_arrays();
}
ADAMANT_DECL void optimizer::load(state_dict const& state)
{
    core_->load(state);
}

ADAMANT_DECL bool optimizer::ticket::done() const
{
    return of_->done();
}
ADAMANT_DECL double optimizer::ticket::progress() const
{
    return of_->progress();
}
ADAMANT_DECL bool optimizer::ticket::wait_until(std::chrono::steady_clock::time_point deadline) const
{
    return of_->wait_until(deadline);
}
ADAMANT_DECL bool optimizer::ticket::wait_for(std::chrono::nanoseconds time) const
{
    auto const now = std::chrono::steady_clock::now();
    return wait_until(now + std::min(time, std::chrono::steady_clock::time_point::max() - now));
}
ADAMANT_DECL optimizer_report optimizer::ticket::wait() const
{
    return of_->wait();
}

ADAMANT_END_NAMESPACE
