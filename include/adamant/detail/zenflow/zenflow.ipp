// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/zenflow.hpp>: each function checks its preconditions and calls the parts.
#pragma once

#include <algorithm>
#include <utility>

#include <adamant/zenflow.hpp>
#include <adamant/detail/kernels/dispatch.hpp>
#include <adamant/detail/numerics/float_mode.hpp>
#include <adamant/detail/zenflow/zenflow_core.hpp>
#include <adamant/detail/zenflow/zenflow_loading.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

ADAMANT_DECL void delete_zenflow_core::operator()(zenflow_core* core) const noexcept
{
    if (!core->session.is_left_behind())
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
{
    validate(zenflow);
    validate(options);
    if (options.keep_last_step || options.weights_ready)
        detail::throw_invalid_argument(
            {"cannot create an optimizer with deferred gradients: it does not support ",
             options.keep_last_step ? "rollback(), so keep_last_step must not be set" : "weights_ready"});
    core_.reset(new detail::zenflow_core(cpu, std::move(zenflow), std::move(options)));
}
ADAMANT_DECL zenflow_optimizer::zenflow_optimizer(zenflow_optimizer&& other) noexcept = default;
ADAMANT_DECL zenflow_optimizer& zenflow_optimizer::operator=(zenflow_optimizer&& other) noexcept = default;
ADAMANT_DECL zenflow_optimizer::~zenflow_optimizer() = default;

// ---- Set-up

ADAMANT_DECL group_id zenflow_optimizer::add_group(parameter_group group)
{
    core_->between_steps("add_group()");
    return core_->model.registry.add_group(std::move(group));
}
ADAMANT_DECL group_id zenflow_optimizer::add_group(std::string name, hyperparameters const& hyper, bool maximize)
{
    return add_group({std::move(name), hyper, maximize});
}
ADAMANT_DECL std::vector<parameter_group> const& zenflow_optimizer::groups() const noexcept
{
    return core_->model.registry.groups();
}
ADAMANT_DECL void zenflow_optimizer::set_hyperparameters(group_id group, hyperparameters const& hyper)
{
    no_traps_scope const no_traps;
    core_->between_steps("set_hyperparameters()");
    core_->model.registry.set_hyperparameters(group.index, hyper);
}
ADAMANT_DECL shard_id zenflow_optimizer::add_param(zenflow_param added)
{
    no_traps_scope const no_traps;
    core_->between_steps("add_param()");
    core_->rules.no_device("add_param()", core_->device());
    if (steps() != 0)
        detail::throw_invalid_argument({"cannot add param '", added.name, "' after ", detail::counted(steps(), "step"),
                                        ". Add all params before the first step."});
    return core_->model.add_param(added.group.index, added.name, added.shard, added.columns, added.weights,
                                  std::move(added.position));
}
ADAMANT_DECL std::size_t zenflow_optimizer::params() const noexcept
{
    return core_->model.size();
}
ADAMANT_DECL std::string const& zenflow_optimizer::name(shard_id param) const
{
    core_->model.registry.require_shard(param.index);
    return core_->model.registry.name(param.index);
}
ADAMANT_DECL void zenflow_optimizer::set_gradient(shard_id param, void const* grad)
{
    detail::zenflow_model& model = core_->model;
    core_->background().check_at_rest();
    model.registry.require_shard(param.index);
    if (!core_->machine().is_between_steps())
        core_->rules.shard_awaited("set_gradient()", param.index);
    if (core_->device_state() != nullptr) {
        if (model.is_empty(param.index) || grad == model.matrices[param.index].shard().data(shard_array::grad))
            return;
        detail::throw_invalid_argument(
            {"cannot change the gradient of param ", model.registry.text(param.index),
             ": its gradients are on a device, which copies them to the array that the param "
             "had when place() was called. Use that array."});
    }
    model.set_gradient(param.index, grad);
}
ADAMANT_DECL std::size_t zenflow_optimizer::memory_bytes() const noexcept
{
    std::size_t elems = 0;
    for (detail::zenflow_matrix const& m : core_->model.matrices)
        elems += m.size();
    return elems * sizeof(float) * (core_->zenflow.overlap ? 2 : 1);
}
ADAMANT_DECL void zenflow_optimizer::prepare()
{
    no_traps_scope const no_traps;
    core_->between_steps("prepare()");
    core_->session.build_layout();
}

// ---- Steps

ADAMANT_DECL zenflow_report zenflow_optimizer::step(step_values const& values)
{
    return core_->whole_step(values, "step()", {});
}
ADAMANT_DECL zenflow_report zenflow_optimizer::step_gradients(std::span<void const* const> gradients,
                                                              step_values const& values)
{
    core_->between_steps("step_gradients()");
    core_->rules.gradient_for_each(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i)
        if (gradients[i] != nullptr)
            set_gradient(i, gradients[i]);
    return core_->whole_step(values, "step_gradients()", gradients);
}
ADAMANT_DECL void zenflow_optimizer::begin_step(step_values const& values)
{
    no_traps_scope const no_traps;
    core_->open(values, "begin_step()");
}
ADAMANT_DECL void zenflow_optimizer::submit(shard_id param)
{
    no_traps_scope const no_traps;
    core_->rules.shard_awaited("submit()", param.index);
    core_->session.submit(param.index);
}
ADAMANT_DECL void zenflow_optimizer::skip(shard_id param)
{
    core_->rules.shard_awaited("skip()", param.index);
    core_->session.skip(param.index);
}
ADAMANT_DECL zenflow_report zenflow_optimizer::finish()
{
    no_traps_scope const no_traps;
    core_->rules.step_open("finish()");
    core_->rules.all_submitted();
    return core_->session.finish();
}
ADAMANT_DECL void zenflow_optimizer::abandon()
{
    no_traps_scope const no_traps;
    core_->rules.step_open("abandon()");
    core_->session.abandon();
}
ADAMANT_DECL void zenflow_optimizer::flush()
{
    no_traps_scope const no_traps;
    core_->between_steps("flush()");
    core_->rules.known_state(core_->device());
    core_->team().check_process();
    core_->session.catch_up();
    zenflow_report unused;
    core_->background().finish_and_flush(unused);
    core_->background().require_published(steps());
}

// ---- A device

ADAMANT_DECL void zenflow_optimizer::set_device_arrays(shard_id param, device_arrays const& arrays)
{
    core_->between_steps("set_device_arrays()");
    core_->rules.no_device("set_device_arrays()", core_->device());
    core_->model.registry.set_device_arrays(param.index, arrays, true);
}
ADAMANT_DECL void zenflow_optimizer::place(std::shared_ptr<device> target)
{
    no_traps_scope const no_traps;
    detail::zenflow_core& core = *core_;
    detail::registry& registry = core.model.registry;
    core.between_steps("place()");
    core.team().check_process();
    auto const detach = [&] {
        core.background().detach_device();
        registry.forget_device_arrays();
        core.model.overlaps_are_checked = false; // gradients in host memory are only read now
    };
    if (target == nullptr && core.machine().is_inconsistent()) { // a device that does not answer cannot return its part
        core.background().settle();
        detach();
        return;
    }
    core.rules.known_state(core.device());
    core.session.catch_up();
    core.background().settle();
    core.rules.may_use_arrays_on(target.get(), core.device());
    if (target.get() == core.device())
        return;
    if (target == nullptr) {
        core.background().copy_to_host();
        detach();
        return;
    }
    for (std::size_t i = 0; i < params(); ++i) {
        if (core.model.is_empty(i))
            continue;
        if (!registry.has_device_arrays(i))
            detail::throw_invalid_argument({"cannot place param ", registry.text(i),
                                            ": it has no arrays on the device. Call set_device_arrays() before "
                                            "place()."});
        detail::zenflow_matrix const& m = core.model.matrices[i];
        if (target->shares_host_memory() && m.shard().changed() != nullptr &&
            registry.arrays_on_device(i).weight_out.address == reinterpret_cast<std::uintptr_t>(m.published()))
            detail::throw_invalid_argument(
                {"cannot place param ", registry.text(i),
                 ": its weight_out on the device is also its array of weights in host memory, and tracking compares "
                 "the "
                 "two. Pass another weight_out to set_device_arrays(), or do not track changes."});
    }
    core.model.check_overlaps(true);
    core.model.overlaps_are_checked = false; // if the device has too little memory, the next call checks again
    core.background().attach_device(std::move(target), core.options.device_timeout_s);
    core.model.overlaps_are_checked = true;
}

// ---- State

ADAMANT_DECL std::uint64_t zenflow_optimizer::steps() const noexcept
{
    return position().steps;
}
ADAMANT_DECL zenflow_position const& zenflow_optimizer::position() const noexcept
{
    return core_->session.position();
}
ADAMANT_DECL double zenflow_optimizer::loss_scale() const noexcept
{
    return core_->session.loss_scale();
}
ADAMANT_DECL std::vector<std::uint8_t> const& zenflow_optimizer::selected(shard_id param) const
{
    core_->model.registry.require_shard(param.index);
    return core_->model.params[param.index].selected;
}
ADAMANT_DECL std::vector<std::uint64_t> const& zenflow_optimizer::updates(shard_id param) const
{
    core_->model.registry.require_shard(param.index);
    return core_->model.params[param.index].counts;
}
ADAMANT_DECL executor const& zenflow_optimizer::cpu() const noexcept
{
    return core_->model.cpu;
}
ADAMANT_DECL zenflow_state zenflow_optimizer::state()
{
    no_traps_scope const no_traps;
    core_->between_steps("state()");
    core_->rules.known_state(core_->device());
    core_->session.catch_up();
    core_->background().settle();
    core_->background().copy_to_host();
    zenflow_state all{position(), core_->session.deferred_norm(), core_->session.scaler(), groups(), {}};
    for (std::size_t i = 0; i < params(); ++i)
        all.params.push_back(detail::view_of(core_->model, core_->background().current(), i));
    return all;
}
ADAMANT_DECL void zenflow_optimizer::load(zenflow_state const& state)
{
    load(std::span<zenflow_state const>(&state, 1));
}
ADAMANT_DECL void zenflow_optimizer::load(std::span<zenflow_state const> states)
{
    no_traps_scope const no_traps;
    detail::zenflow_core& core = *core_;
    core.between_steps("load()");
    core.team().check_process();
    core.team().check_caller();
    core.session.build_layout();
    detail::zenflow_loading const loading(core.model, states, core.session.scaler().has_value());
    zenflow_state const& first = states.front();
    std::vector<parameter_group> groups = first.groups;
    core.background().settle();
    core.session.begin_load();
    if (detail::device_columns* const device_state = core.device_state()) {
        if (!device_state->stop())
            detail::throw_device_error({device_state->device().name(),
                                        " does not answer, so load() cannot write to it. Call place(nullptr), then "
                                        "load()."});
        device_state->drop();
    }
    core.background().forget();
    core.model.use_first_sums();
    for (detail::zenflow_matrix const& m : core.model.matrices)
        m.shard().mark_all();
    bool any_publishing = false;
    for (std::size_t i = 0; i < params(); ++i)
        any_publishing = loading.load(i, core.background().current().parts[i].columns) || any_publishing;
    core.session.restore(first.position, first.deferred_norm, first.loss_scaler);
    core.model.registry.replace_groups(std::move(groups));
    if (any_publishing)
        core.background().current().begin_done();
    if (core.device_state() != nullptr)
        core.device_state()->copy_weights(detail::copy_direction::upload);
    core.session.end_load();
}

ADAMANT_END_NAMESPACE
