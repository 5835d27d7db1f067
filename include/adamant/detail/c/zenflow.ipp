// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: ZenFlow optimizers and their state.
#include <adamant/adamant.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <adamant/zenflow.hpp>
#include <adamant/zenflow_safetensors.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>

struct adamant_zenflow {
    adamant::zenflow_optimizer optimizer;
    std::optional<adamant::zenflow_state> state = {}; // cached by state_of() until the next change
};

namespace adamant::c {

// guarded() with error texts that name the functions of ZenFlow.
template <class Work>
static adamant_status called(Work const& work) noexcept
{
    return guarded(work, c_zenflow_names);
}

adamant_zenflow_options struct_description<adamant_zenflow_options>::defaults()
{
    zenflow_options const source;
    return {sizeof(adamant_zenflow_options),
            source.topk_ratio,
            source.select_interval,
            source.update_interval.value_or(0),
            source.auto_ratio,
            source.max_deferred,
            source.full_warm_up_rounds,
            static_cast<adamant_column_score>(source.score),
            static_cast<adamant_selection_scope>(source.scope),
            source.overlap,
            nullptr,
            nullptr};
}

static void call_reduce_columns(adamant_reduce_columns reduce, void* user, std::span<std::int64_t> numbers,
                                column_reduction reduction)
{
    std::string const failed = "adamant: cannot select columns: the function reduce_columns ";
    std::int32_t status = 0;
    try {
        status = reduce(user, numbers.data(), numbers.size(), static_cast<adamant_column_reduction>(reduction));
    } catch (...) { // a C++ function that breaks the contract
        throw reduce_failed(failed + "threw an exception");
    }
    if (status != 0)
        throw reduce_failed(detail::text_of({failed, "returned ", status}));
}

static zenflow_options from_c(adamant_zenflow_options const& source)
{
    zenflow_options result{.topk_ratio = source.topk_ratio,
                           .score = to_enum(source.score, column_score::square, "score"),
                           .scope = to_enum(source.scope, selection_scope::all_params, "scope"),
                           .select_interval = source.select_interval,
                           .update_interval = unless_zero(source.update_interval),
                           .auto_ratio = source.auto_ratio,
                           .max_deferred = source.max_deferred,
                           .full_warm_up_rounds = source.full_warm_up_rounds,
                           .overlap = source.overlap != 0};
    if (source.reduce_columns != nullptr)
        result.reduce_columns = [reduce = source.reduce_columns, user = source.reduce_columns_user](
                                    std::span<std::int64_t> numbers, column_reduction reduction) {
            call_reduce_columns(reduce, user, numbers, reduction);
        };
    return result;
}

static zenflow_optimizer const& unwrap(adamant_zenflow const* handle)
{
    return needed(handle, "the optimizer").optimizer;
}
// The optimizer, for a call that changes its state.
static zenflow_optimizer& changing(adamant_zenflow* handle)
{
    needed(handle, "the optimizer").state.reset();
    return handle->optimizer;
}
static zenflow_state const& state_of(adamant_zenflow* handle)
{
    needed(handle, "the optimizer");
    if (!handle->state)
        handle->state = handle->optimizer.state();
    return *handle->state;
}

static void give_reports(zenflow_report const& source, adamant_report* report, adamant_zenflow_report* more) noexcept
{
    give_report(source, report);
    if (more != nullptr)
        write(adamant_zenflow_report{sizeof(adamant_zenflow_report), source.warm_up, source.selected,
                                     source.columns_moved, source.deferred, source.window_ended,
                                     source.deferred_skipped, source.deferred_stepped, source.waited_s,
                                     source.publish_s, source.sums_s, source.deferred_s},
              more);
}

static zenflow_state from_c(adamant_zenflow_position const& current, zenflow_optimizer const& optimizer)
{
    zenflow_state result;
    result.position = {current.steps, current.since_selection, current.in_window, current.has_selection != 0,
                       current.done_squares};
    result.deferred_norm = current.deferred_norm;
    if (current.has_loss_scaler != 0)
        result.loss_scaler = loss_scaler_state{current.loss_scale, current.good_steps, current.hysteresis_left};
    result.groups = optimizer.groups();
    return result;
}
static zenflow_state_param from_c(adamant_zenflow_param const& source)
{
    auto const bytes = [](void const* array) { return static_cast<std::byte const*>(array); };
    auto const type = [](adamant_dtype value, char const* argument) { return to_enum(value, last_dtype, argument); };
    zenflow_state_param result;
    result.name = &needed(source.name, "the name of a param");
    result.columns = source.columns;
    result.all_rows = source.all_rows;
    result.first_row = source.first_row;
    result.rows = source.rows;
    result.types = {type(source.param_dtype, "param_dtype"), dtype::float32,
                    type(source.exp_avg_dtype, "exp_avg_dtype"), type(source.exp_avg_sq_dtype, "exp_avg_sq_dtype"),
                    type(source.weight_out_dtype, "weight_out_dtype")};
    result.arrays[shard_array::param] = bytes(source.param);
    result.arrays[shard_array::exp_avg] = bytes(source.exp_avg);
    result.arrays[shard_array::exp_avg_sq] = bytes(source.exp_avg_sq);
    result.arrays[shard_array::weight_out] = bytes(source.weight_out);
    result.weights = bytes(source.weights);
    std::size_t const counts = source.columns == 0 ? 1 : source.columns;
    result.counts = copy_of(source.counts, counts, "counts");
    result.selected = copy_of(source.selected, source.columns, "selected");
    result.publishing = copy_of(source.publishing, source.columns, "publishing");
    result.sums = source.sums;
    result.summed = source.summed;
    return result;
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_zenflow_options_init(adamant_zenflow_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_zenflow_report_init(adamant_zenflow_report* report, size_t struct_bytes)
{
    return init(report, struct_bytes);
}
adamant_status adamant_zenflow_position_init(adamant_zenflow_position* position, size_t struct_bytes)
{
    return init(position, struct_bytes);
}
adamant_status adamant_zenflow_param_init(adamant_zenflow_param* param, size_t struct_bytes)
{
    return init(param, struct_bytes);
}

adamant_status adamant_zenflow_create(const adamant_executor* executor, const adamant_zenflow_options* zenflow,
                                      const adamant_optimizer_options* options, adamant_zenflow** made)
{
    return called([&] {
        needed(made, "made");
        *made = new adamant_zenflow{adamant::zenflow_optimizer(cpu_of(executor), from_c(read_or_defaults(zenflow)),
                                                               from_c(read_or_defaults(options)))};
    });
}
void adamant_zenflow_free(adamant_zenflow* zenflow)
{
    delete zenflow;
}
adamant_status adamant_zenflow_add_group(adamant_zenflow* zenflow, const char* name,
                                         const adamant_hyperparameters* hyper, int32_t maximize, size_t* group)
{
    return called([&] {
        adamant::zenflow_optimizer& o = changing(zenflow);
        give(group, o.add_group(&needed(name, "the group's name"), from_c(hyper), maximize != 0).index);
    });
}
adamant_status adamant_zenflow_set_hyperparameters(adamant_zenflow* zenflow, size_t group,
                                                   const adamant_hyperparameters* hyper)
{
    return called([&] { changing(zenflow).set_hyperparameters(group, from_c(hyper)); });
}
adamant_status adamant_zenflow_add_param(adamant_zenflow* zenflow, size_t group, const char* name,
                                         const adamant_shard* shard, size_t columns, void* weights, size_t* number)
{
    return called([&] {
        adamant::zenflow_optimizer& o = changing(zenflow);
        std::string param = &needed(name, "the param's name");
        adamant_shard const s = read(shard);
        adamant::shard_position position = position_of(s);
        shard_of_c const made = shard_of(s);
        if (made.accumulator.type() != adamant::dtype::none)
            adamant::detail::throw_invalid_argument({"cannot add param '", param,
                                                     "' with an accumulator: the optimizer has its own sums. Set "
                                                     "accumulator_dtype to ADAMANT_NONE."});
        give(number, o.add_param({.group = group,
                                  .name = std::move(param),
                                  .shard = adamant::optimizer_shard(made.view),
                                  .columns = columns,
                                  .weights = weights,
                                  .position = std::move(position)})
                         .index);
    });
}
adamant_status adamant_zenflow_memory_bytes(const adamant_zenflow* zenflow, size_t* bytes)
{
    return called([&] { needed(bytes, "bytes") = unwrap(zenflow).memory_bytes(); });
}
adamant_status adamant_zenflow_prepare(adamant_zenflow* zenflow)
{
    return called([&] { changing(zenflow).prepare(); });
}
adamant_status adamant_zenflow_set_gradient(adamant_zenflow* zenflow, size_t param, const void* grad)
{
    return called([&] { changing(zenflow).set_gradient(param, grad); });
}
adamant_status adamant_zenflow_step_gradients(adamant_zenflow* zenflow, const void* const* grads, size_t count,
                                              const adamant_step_values* values, adamant_report* report,
                                              adamant_zenflow_report* more)
{
    return called([&] {
        adamant::zenflow_optimizer& o = changing(zenflow);
        check_target_or_null(report);
        check_target_or_null(more);
        if (count != 0)
            needed(grads, "grads");
        give_reports(o.step_gradients({grads, count}, from_c(values)), report, more);
    });
}
adamant_status adamant_zenflow_begin_step(adamant_zenflow* zenflow, const adamant_step_values* values)
{
    return called([&] { changing(zenflow).begin_step(from_c(values)); });
}
adamant_status adamant_zenflow_submit(adamant_zenflow* zenflow, size_t param)
{
    return called([&] { changing(zenflow).submit(param); });
}
adamant_status adamant_zenflow_skip(adamant_zenflow* zenflow, size_t param)
{
    return called([&] { changing(zenflow).skip(param); });
}
adamant_status adamant_zenflow_finish(adamant_zenflow* zenflow, adamant_report* report, adamant_zenflow_report* more)
{
    return called([&] {
        adamant::zenflow_optimizer& o = changing(zenflow);
        check_target_or_null(report);
        check_target_or_null(more);
        give_reports(o.finish(), report, more);
    });
}
adamant_status adamant_zenflow_abandon(adamant_zenflow* zenflow)
{
    return called([&] { changing(zenflow).abandon(); });
}
adamant_status adamant_zenflow_flush(adamant_zenflow* zenflow)
{
    return called([&] { changing(zenflow).flush(); });
}
adamant_status adamant_zenflow_loss_scale(const adamant_zenflow* zenflow, double* scale)
{
    return called([&] { needed(scale, "scale") = unwrap(zenflow).loss_scale(); });
}

adamant_status adamant_zenflow_set_device_arrays(adamant_zenflow* zenflow, size_t param, uint64_t grad,
                                                 uint64_t weight_out)
{
    return called([&] { changing(zenflow).set_device_arrays(param, {{grad}, {weight_out}}); });
}
adamant_status adamant_zenflow_place(adamant_zenflow* zenflow, const adamant_device* device)
{
    return called([&] {
        adamant::zenflow_optimizer& o = changing(zenflow);
        o.place(device == nullptr ? nullptr : device->device);
    });
}

adamant_status adamant_zenflow_get_position(adamant_zenflow* zenflow, adamant_zenflow_position* position)
{
    return called([&] {
        changing(zenflow);
        adamant::zenflow_state const& state = state_of(zenflow);
        check_target(position);
        adamant_zenflow_position current{};
        current.steps = state.position.steps;
        current.since_selection = state.position.since_selection;
        current.in_window = state.position.in_window;
        current.has_selection = state.position.has_selection;
        current.has_loss_scaler = state.loss_scaler.has_value();
        if (state.loss_scaler) {
            current.loss_scale = state.loss_scaler->scale;
            current.good_steps = state.loss_scaler->good_steps;
            current.hysteresis_left = state.loss_scaler->hysteresis_left;
        }
        current.done_squares = state.position.done_squares;
        current.deferred_norm = state.deferred_norm;
        write(current, position);
    });
}
adamant_status adamant_zenflow_get_param(adamant_zenflow* zenflow, size_t number, adamant_zenflow_param* param)
{
    return called([&] {
        adamant::zenflow_state const& state = state_of(zenflow);
        check_target(param);
        if (number >= state.params.size())
            adamant::detail::throw_invalid_argument(
                {"there is no param ", number, "; the optimizer has ", state.params.size()});
        adamant::zenflow_state_param const& p = state.params[number];
        namespace arrays = adamant::shard_array;
        auto const type = [&](std::size_t which) { return static_cast<adamant_dtype>(p.types[which]); };
        write(adamant_zenflow_param{sizeof(adamant_zenflow_param),
                                    p.name.c_str(),
                                    p.columns,
                                    p.all_rows,
                                    p.first_row,
                                    p.rows,
                                    p.arrays[arrays::param],
                                    p.arrays[arrays::exp_avg],
                                    p.arrays[arrays::exp_avg_sq],
                                    p.arrays[arrays::weight_out],
                                    p.weights,
                                    p.counts.data(),
                                    p.selected.data(),
                                    p.publishing.data(),
                                    p.sums,
                                    p.summed,
                                    type(arrays::param),
                                    type(arrays::exp_avg),
                                    type(arrays::exp_avg_sq),
                                    type(arrays::weight_out)},
              param);
    });
}
adamant_status adamant_zenflow_load(adamant_zenflow* zenflow, const adamant_zenflow_position* position,
                                    const adamant_zenflow_param* params, size_t count)
{
    return called([&] {
        adamant::zenflow_optimizer& o = needed(zenflow, "the optimizer").optimizer;
        adamant::zenflow_state state = from_c(read(position), o);
        if (count != 0)
            needed(params, "params");
        std::size_t const stride = count == 0 ? 0 : params->struct_bytes; // size of the caller's version of the struct
        for (std::size_t i = 0; i < count; ++i)
            state.params.push_back(from_c(read(reinterpret_cast<adamant_zenflow_param const*>(
                reinterpret_cast<unsigned char const*>(params) + i * stride))));
        zenflow->state.reset(); // not earlier: params may point into the cached state
        o.load(state);
    });
}
adamant_status adamant_zenflow_save_safetensors(adamant_zenflow* zenflow, const char* path)
{
    return called([&] {
        changing(zenflow);
        note_of_save(adamant::save_safetensors(&needed(path, "path"), state_of(zenflow)).reason);
    });
}
adamant_status adamant_zenflow_load_safetensors(adamant_zenflow* zenflow, const char* const* paths, size_t count)
{
    return called([&] {
        adamant::zenflow_optimizer& o = changing(zenflow);
        if (count == 0)
            adamant::detail::throw_invalid_argument({"cannot load a state from no files. Pass one or more."});
        needed(paths, "paths");
        std::vector<adamant::zenflow_safetensors_state> files;
        std::vector<adamant::zenflow_state> states;
        for (std::size_t i = 0; i < count; ++i)
            states.push_back(files.emplace_back(&needed(paths[i], "a path")).state());
        o.load(states);
    });
}
