// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: optimizers, groups and shards.
#include <adamant/adamant.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <adamant/optimizer.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>

namespace adamant::c {

adamant_loss_scaling struct_description<adamant_loss_scaling>::defaults()
{
    return to_c(loss_scaling_options{});
}
adamant_loss_scaling to_c(loss_scaling_options const& source)
{
    return {sizeof(adamant_loss_scaling), source.initial_scale, source.growth_factor,
            source.backoff_factor,        source.min_scale,     source.max_scale,
            source.growth_interval,       source.hysteresis};
}
loss_scaling_options from_c(adamant_loss_scaling const* source)
{
    adamant_loss_scaling const s = read(source);
    return {.initial_scale = s.initial_scale,
            .growth_factor = s.growth_factor,
            .backoff_factor = s.backoff_factor,
            .growth_interval = s.growth_interval,
            .hysteresis = s.hysteresis,
            .min_scale = s.min_scale,
            .max_scale = s.max_scale};
}

static void call_reduce(adamant_reduce reduce, void* user, std::span<std::int64_t> words)
{
    std::string const failed = "adamant: cannot sum gradients over all processes: the function reduce ";
    std::int32_t status = 0;
    try {
        status = reduce(user, words.data(), words.size());
    } catch (...) { // a C++ function that breaks the contract
        throw reduce_failed(failed + "threw an exception");
    }
    if (status != 0)
        throw reduce_failed(detail::text_of({failed, "returned ", status}));
}

optimizer_options from_c(adamant_optimizer_options const& source)
{
    optimizer_options result{.max_norm = source.max_norm,
                             .max_abs_grad = source.max_abs_grad,
                             .on_nonfinite = to_enum(source.on_nonfinite, nonfinite_policy::apply, "on_nonfinite"),
                             .speculate = to_enum(source.speculate, speculation::never, "speculate"),
                             .keep_last_step = source.keep_last_step != 0,
                             .device_timeout_s = source.device_timeout_s,
                             .device_records = source.device_records != 0};
    if (source.loss_scaling != nullptr)
        result.loss_scaling = from_c(source.loss_scaling);
    if (source.journal_budget_bytes != ADAMANT_AUTOMATIC_BYTES)
        result.journal_budget_bytes = source.journal_budget_bytes;
    if (source.reduce != nullptr)
        result.reduce = [reduce = source.reduce, user = source.reduce_user](std::span<std::int64_t> words) {
            call_reduce(reduce, user, words);
        };
    if (source.weights_ready != nullptr)
        result.weights_ready = [ready = source.weights_ready,
                                user = source.weights_ready_user](shard_id shard, std::size_t begin, std::size_t end) {
            ready(user, shard.index, begin, end);
        };
    return result;
}

shard_position position_of(adamant_shard const& source)
{
    if ((source.shape == nullptr) != (source.dims == 0))
        detail::throw_invalid_argument(
            {"dims is ", source.dims, ", but shape is ", source.shape == nullptr ? "a null pointer" : "given"});
    if (source.dims > max_dimensions)
        detail::throw_invalid_argument({"dims is ", source.dims, ", but a parameter has at most ", max_dimensions});
    return {{source.shape, source.shape + source.dims}, source.begin};
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_loss_scaling_init(adamant_loss_scaling* scaling, size_t struct_bytes)
{
    return init(scaling, struct_bytes);
}
adamant_status adamant_optimizer_options_init(adamant_optimizer_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_optimizer_create(const adamant_executor* executor, const adamant_optimizer_options* options,
                                        adamant_optimizer** made)
{
    return guarded([&] {
        needed(made, "made");
        adamant::executor const& cpu = cpu_of(executor);
        *made = new adamant_optimizer(cpu, from_c(read_or_defaults(options)));
    });
}
void adamant_optimizer_free(adamant_optimizer* optimizer)
{
    delete optimizer;
}

adamant_status adamant_add_group(adamant_optimizer* optimizer, const char* name, const adamant_hyperparameters* hyper,
                                 int32_t maximize, size_t* group)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        give(group, o.add_group(&needed(name, "the group's name"), from_c(hyper), maximize != 0).index);
    });
}
adamant_status adamant_group_count(const adamant_optimizer* optimizer, size_t* count)
{
    return guarded([&] { needed(count, "count") = unwrap(optimizer).groups().size(); });
}
adamant_status adamant_remove_group(adamant_optimizer* optimizer, size_t group)
{
    return guarded([&] { unwrap(optimizer).remove_group(group); });
}
adamant_status adamant_find_group(const adamant_optimizer* optimizer, const char* name, size_t* group, int32_t* found)
{
    return guarded([&] {
        auto const number = unwrap(optimizer).find_group(&needed(name, "the group's name"));
        needed(group, "group");
        needed(found, "found") = number.has_value();
        if (number)
            *group = number->index;
    });
}
adamant_status adamant_group_name(const adamant_optimizer* optimizer, size_t group, const char** name)
{
    return guarded([&] { needed(name, "name") = unwrap(optimizer).group(group).name.c_str(); });
}
adamant_status adamant_set_hyperparameters(adamant_optimizer* optimizer, size_t group,
                                           const adamant_hyperparameters* hyper)
{
    return guarded([&] { unwrap(optimizer).set_hyperparameters(group, from_c(hyper)); });
}
adamant_status adamant_get_hyperparameters(const adamant_optimizer* optimizer, size_t group,
                                           adamant_hyperparameters* hyper)
{
    return guarded([&] {
        adamant::parameter_group const& source = unwrap(optimizer).group(group);
        check_target(hyper);
        write(to_c(source.hyper), hyper);
    });
}

adamant_status adamant_add_shard(adamant_optimizer* optimizer, size_t group, const char* name,
                                 const adamant_shard* shard, size_t* number)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        std::string param = &needed(name, "the shard's name");
        adamant_shard const s = read(shard);
        adamant::shard_position position = position_of(s);
        shard_of_c const made = shard_of(s);
        adamant::shard_id const added = o.add_shard({.group = group,
                                                     .name = std::move(param),
                                                     .shard = adamant::optimizer_shard(made.view),
                                                     .accumulator = made.accumulator,
                                                     .position = std::move(position)});
        give(number, added.index);
    });
}
adamant_status adamant_remove_shard(adamant_optimizer* optimizer, size_t shard)
{
    return guarded([&] { unwrap(optimizer).remove_shard(shard); });
}
adamant_status adamant_shard_count(const adamant_optimizer* optimizer, size_t* count)
{
    return guarded([&] { needed(count, "count") = unwrap(optimizer).shards(); });
}
adamant_status adamant_find_shard(const adamant_optimizer* optimizer, const char* name, size_t begin, size_t* shard,
                                  int32_t* found)
{
    return guarded([&] {
        auto const number = unwrap(optimizer).find_shard(&needed(name, "the shard's name"), begin);
        needed(shard, "shard");
        needed(found, "found") = number.has_value();
        if (number)
            *shard = number->index;
    });
}
adamant_status adamant_shard_name(const adamant_optimizer* optimizer, size_t shard, const char** name)
{
    return guarded([&] {
        adamant::optimizer const& o = unwrap(optimizer);
        if (shard >= o.shards())
            adamant::detail::throw_invalid_argument({"there is no shard ", shard, "; the optimizer has ", o.shards()});
        needed(name, "name") = o.name(shard).c_str();
    });
}
adamant_status adamant_set_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad)
{
    return guarded([&] { unwrap(optimizer).set_gradient(shard, grad); });
}

adamant_status adamant_memory_bytes(const adamant_optimizer* optimizer, int32_t with_journal, size_t* bytes)
{
    return guarded([&] { needed(bytes, "bytes") = unwrap(optimizer).memory_bytes(with_journal != 0); });
}
adamant_status adamant_prepare(adamant_optimizer* optimizer, int32_t with_journal)
{
    return guarded([&] { unwrap(optimizer).prepare(with_journal != 0); });
}
