// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: steps, reports and tickets.
#include <adamant/adamant.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include <adamant/optimizer.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>

namespace adamant::c {

step_values from_c(adamant_step_values const* values)
{
    if (values == nullptr)
        return {};
    adamant_step_values const v = read(values);
    if (v.lr == nullptr && v.lr_count != 0)
        detail::throw_invalid_argument({"lr_count is ", v.lr_count, ", but lr is a null pointer"});
    if (v.shard_steps == nullptr && v.shard_step_count != 0)
        detail::throw_invalid_argument(
            {"shard_step_count is ", v.shard_step_count, ", but shard_steps is a null pointer"});
    step_values result{.lr = std::span(v.lr, v.lr_count), .shard_steps = std::span(v.shard_steps, v.shard_step_count)};
    if (v.has_loss_scale != 0)
        result.loss_scale = v.loss_scale;
    if (v.has_max_norm != 0)
        result.max_norm = v.max_norm;
    if (v.has_max_abs_grad != 0)
        result.max_abs_grad = v.max_abs_grad;
    return result;
}

void give_report(optimizer_report const& source, adamant_report* target) noexcept
{
    if (target == nullptr)
        return;
    adamant_report report{};
    report.step = source.step;
    report.outcome = static_cast<adamant_outcome>(source.outcome);
    report.speculated = source.speculated;
    report.rolled_back = source.rolled_back;
    report.has_first_nonfinite = source.first_nonfinite.has_value();
    if (source.first_nonfinite) {
        report.first_nonfinite_shard = source.first_nonfinite->shard;
        report.first_nonfinite_index = source.first_nonfinite->index;
    }
    report.nonfinite_grads = source.nonfinite_grads;
    report.loss_scale = source.loss_scale;
    report.global_norm = source.global_norm;
    report.clip_coefficient = source.clip_coefficient;
    report.elements = source.elements;
    report.shards_waited = source.shards_waited;
    report.journal_bytes = source.journal_bytes;
    report.seconds = source.seconds;
    report.gradients_seconds = source.gradients.seconds;
    report.update_seconds = source.update.seconds;
    report.gradients_bytes = source.gradients.bytes_moved;
    report.update_bytes = source.update.bytes_moved;
    report.threads = source.threads;
    report.cpu_quota = source.cpu_quota;
    report.isa = name(source.tier).data();
    report.pus = source.pus.data(); // views a whole std::string, so it is null-terminated
    report.ratio = source.ratio;
    report.cpu_busy_seconds = source.cpu_busy_s;
    report.device_work_seconds = source.device.work_s;
    report.device_up_seconds = source.device.up_s;
    report.device_down_seconds = source.device.down_s;
    report.device_elements = source.device.elements;
    report.device_work_bytes = source.device.work_bytes;
    report.device_up_bytes = source.device.up_bytes;
    report.device_down_bytes = source.device.down_bytes;
    report.measured = source.measured;
    write(report, target);
}

static optimizer::ticket& ticket_of(adamant_optimizer& handle)
{
    if (!handle.ticket)
        detail::throw_invalid_argument({"no step is in progress. Call adamant_step_async() first."});
    return *handle.ticket;
}

// Returns false on timeout.
static bool wait_for(optimizer::ticket const& ticket, std::uint64_t timeout_ns)
{
    using clock = std::chrono::steady_clock;
    auto const now = clock::now();
    auto const left = static_cast<std::uint64_t>(std::chrono::nanoseconds(clock::time_point::max() - now).count());
    return ticket.wait_until(now + std::chrono::nanoseconds(std::min(timeout_ns, left)));
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_step_values_init(adamant_step_values* values, size_t struct_bytes)
{
    return init(values, struct_bytes);
}
adamant_status adamant_report_init(adamant_report* report, size_t struct_bytes)
{
    return init(report, struct_bytes);
}
adamant_status adamant_steps(const adamant_optimizer* optimizer, uint64_t* steps)
{
    return guarded([&] { needed(steps, "steps") = unwrap(optimizer).steps(); });
}
adamant_status adamant_loss_scale(const adamant_optimizer* optimizer, double* scale)
{
    return guarded([&] { needed(scale, "scale") = unwrap(optimizer).loss_scale(); });
}

adamant_status adamant_step(adamant_optimizer* optimizer, const adamant_step_values* values, adamant_report* report)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        check_target_or_null(report);
        give_report(o.step(from_c(values)), report);
    });
}
adamant_status adamant_step_gradients(adamant_optimizer* optimizer, const void* const* grads, size_t count,
                                      const adamant_step_values* values, adamant_report* report)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        check_target_or_null(report);
        if (count != 0)
            needed(grads, "grads");
        give_report(o.step_gradients({grads, count}, from_c(values)), report);
    });
}
adamant_status adamant_begin_step(adamant_optimizer* optimizer, const adamant_step_values* values)
{
    return guarded([&] { unwrap(optimizer).begin_step(from_c(values)); });
}
adamant_status adamant_submit(adamant_optimizer* optimizer, size_t shard)
{
    return guarded([&] { unwrap(optimizer).submit(shard); });
}
adamant_status adamant_submit_gradient(adamant_optimizer* optimizer, size_t shard, const void* grad)
{
    return guarded([&] { unwrap(optimizer).submit(shard, grad); });
}
adamant_status adamant_skip(adamant_optimizer* optimizer, size_t shard)
{
    return guarded([&] { unwrap(optimizer).skip(shard); });
}
adamant_status adamant_finish(adamant_optimizer* optimizer, adamant_report* report)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        check_target_or_null(report);
        give_report(o.finish(), report);
    });
}
adamant_status adamant_abandon(adamant_optimizer* optimizer)
{
    return guarded([&] { unwrap(optimizer).abandon(); });
}
adamant_status adamant_rollback(adamant_optimizer* optimizer)
{
    return guarded([&] { unwrap(optimizer).rollback(); });
}
adamant_status adamant_accumulate(adamant_optimizer* optimizer, size_t shard)
{
    return guarded([&] { unwrap(optimizer).accumulate(shard); });
}
adamant_status adamant_clear_accumulators(adamant_optimizer* optimizer)
{
    return guarded([&] { unwrap(optimizer).clear_accumulators(); });
}

adamant_status adamant_step_async(adamant_optimizer* optimizer, const adamant_step_values* values)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        optimizer->ticket = o.step_async(from_c(values));
    });
}
adamant_status adamant_poll(const adamant_optimizer* optimizer, int32_t* over, double* progress)
{
    return guarded([&] {
        static_cast<void>(unwrap(optimizer));
        adamant::optimizer::ticket const& ticket = ticket_of(const_cast<adamant_optimizer&>(*optimizer));
        bool const done = ticket.done();
        give(progress, done ? 1.0 : ticket.progress());
        give<int32_t>(over, done);
    });
}
adamant_status adamant_wait(adamant_optimizer* optimizer, uint64_t timeout_ns, int32_t* over, adamant_report* report)
{
    return guarded([&] {
        adamant::optimizer::ticket const ticket = ticket_of(needed(optimizer, "the optimizer"));
        check_target_or_null(report);
        if (timeout_ns != ADAMANT_FOR_EVER) {
            needed(over, "over");
            if (!wait_for(ticket, timeout_ns)) {
                *over = 0;
                return;
            }
        }
        optimizer->ticket.reset(); // the step is over, even if its ticket throws
        give<int32_t>(over, 1);
        give_report(ticket.wait(), report);
    });
}
