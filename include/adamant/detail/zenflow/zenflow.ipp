// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/zenflow.hpp>: every function forwards to zenflow_core.
#pragma once

#include <adamant/zenflow.hpp>
#include <adamant/detail/kernels/dispatch.hpp>
#include <adamant/detail/zenflow/zenflow_core.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void delete_zenflow_core::operator()(zenflow_core* core) const noexcept
{
    if (!core->is_left_behind())
        delete core;
}

ADAMANT_DECL kernel::add_scaled_function add_scaled_for(dtype grad, isa tier) noexcept
{
    switch (grad) {
    case dtype::bfloat16: return kernel::add_scaled_of<bfloat16>(tier);
    case dtype::float16: return kernel::add_scaled_of<float16>(tier);
    case dtype::float32:
    case dtype::split_float32: // no gradient has these three
    case dtype::quantized8:
    case dtype::none: break;
    }
    return kernel::add_scaled_of<float>(tier);
}

} // namespace detail

ADAMANT_DECL zenflow_optimizer::zenflow_optimizer(executor const& cpu, zenflow_options zenflow,
                                                  optimizer_options options)
    : core_(new detail::zenflow_core(cpu, std::move(zenflow), std::move(options)))
{
}
ADAMANT_DECL zenflow_optimizer::zenflow_optimizer(zenflow_optimizer&& other) noexcept = default;
ADAMANT_DECL zenflow_optimizer& zenflow_optimizer::operator=(zenflow_optimizer&& other) noexcept = default;
ADAMANT_DECL zenflow_optimizer::~zenflow_optimizer() = default;

ADAMANT_DECL group_id zenflow_optimizer::add_group(parameter_group group)
{
    return core_->add_group(std::move(group));
}
ADAMANT_DECL group_id zenflow_optimizer::add_group(std::string name, hyperparameters const& hyper, bool maximize)
{
    return core_->add_group({std::move(name), hyper, maximize});
}
ADAMANT_DECL std::vector<parameter_group> const& zenflow_optimizer::groups() const noexcept
{
    return core_->registered().groups();
}
ADAMANT_DECL void zenflow_optimizer::set_hyperparameters(group_id group, hyperparameters const& hyper)
{
    core_->set_hyperparameters(group.index, hyper);
}
ADAMANT_DECL shard_id zenflow_optimizer::add_param(zenflow_param added)
{
    return core_->add_param(added.group.index, added.name, added.shard, added.columns, added.weights,
                            std::move(added.place));
}
ADAMANT_DECL std::size_t zenflow_optimizer::params() const noexcept
{
    return core_->registered().size();
}
ADAMANT_DECL std::string const& zenflow_optimizer::name(shard_id param) const
{
    core_->registered().require_shard(param.index);
    return core_->registered().name(param.index);
}
ADAMANT_DECL void zenflow_optimizer::set_gradient(shard_id param, void const* grad)
{
    core_->set_gradient(param.index, grad);
}
ADAMANT_DECL std::size_t zenflow_optimizer::memory_bytes() const noexcept
{
    return core_->memory_bytes();
}
ADAMANT_DECL void zenflow_optimizer::prepare()
{
    core_->prepare();
}
ADAMANT_DECL zenflow_report zenflow_optimizer::step(step_values const& values)
{
    return core_->step(values, [](std::size_t) { return true; });
}
ADAMANT_DECL zenflow_report zenflow_optimizer::step_gradients(std::span<void const* const> gradients,
                                                              step_values const& values)
{
    core_->between_steps("step_gradients()");
    if (gradients.size() != params())
        detail::throw_invalid_argument({"cannot step with ", detail::counted(gradients.size(), "gradient"),
                                        ": the optimizer has ", detail::counted(params(), "param")});
    for (std::size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i] != nullptr)
            core_->set_gradient(i, gradients[i]);
    return core_->step(values, [&](std::size_t i) { return gradients[i] != nullptr || core_->is_empty(i); });
}
ADAMANT_DECL void zenflow_optimizer::begin_step(step_values const& values)
{
    core_->begin_step(values);
}
ADAMANT_DECL void zenflow_optimizer::submit(shard_id param)
{
    core_->submit(param.index);
}
ADAMANT_DECL void zenflow_optimizer::skip(shard_id param)
{
    core_->skip(param.index);
}
ADAMANT_DECL zenflow_report zenflow_optimizer::finish()
{
    return core_->finish();
}
ADAMANT_DECL void zenflow_optimizer::abandon()
{
    core_->abandon();
}
ADAMANT_DECL void zenflow_optimizer::set_device_arrays(shard_id param, device_arrays const& arrays)
{
    core_->set_device_arrays(param.index, arrays);
}
ADAMANT_DECL void zenflow_optimizer::place(std::shared_ptr<device> target)
{
    core_->place(std::move(target));
}
ADAMANT_DECL void zenflow_optimizer::flush()
{
    core_->flush();
}
ADAMANT_DECL std::uint64_t zenflow_optimizer::steps() const noexcept
{
    return core_->position().steps;
}
ADAMANT_DECL zenflow_position const& zenflow_optimizer::position() const noexcept
{
    return core_->position();
}
ADAMANT_DECL double zenflow_optimizer::loss_scale() const noexcept
{
    return core_->loss_scale();
}
ADAMANT_DECL std::vector<std::uint8_t> const& zenflow_optimizer::selected(shard_id param) const
{
    return core_->selected(param.index);
}
ADAMANT_DECL std::vector<std::uint64_t> const& zenflow_optimizer::updates(shard_id param) const
{
    return core_->counts(param.index);
}
ADAMANT_DECL executor const& zenflow_optimizer::cpu() const noexcept
{
    return core_->cpu();
}
ADAMANT_DECL zenflow_state zenflow_optimizer::state()
{
    return core_->state();
}
ADAMANT_DECL void zenflow_optimizer::load(zenflow_state const& state)
{
    core_->load({&state});
}
ADAMANT_DECL void zenflow_optimizer::load(std::span<zenflow_state const> states)
{
    std::vector<zenflow_state const*> pointers;
    for (zenflow_state const& state : states)
        pointers.push_back(&state);
    core_->load(pointers);
}

ADAMANT_END_NAMESPACE
