// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant.h: split.
#include <adamant/adamant.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <adamant/split.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>

namespace adamant::c {

static std::optional<std::size_t> limit_of(std::size_t from)
{
    return from == ADAMANT_NO_LIMIT ? std::nullopt : std::optional(from);
}
static split_request from_c(adamant_split_options const& from)
{
    if (from.device_order == nullptr && from.device_order_count != 0)
        detail::throw_invalid_argument(
            {"device_order_count is ", from.device_order_count, ", but device_order is a null pointer"});
    return {.ratio = from.ratio,
            .unit = to_enum(from.unit, split_unit::deepspeed, "unit"),
            .order = to_enum(from.order, split_order::back, "order"),
            .device_order = {from.device_order, from.device_order + from.device_order_count},
            .most_on_cpu = limit_of(from.most_on_cpu),
            .most_on_device = limit_of(from.most_on_device)};
}

static step_rates from_c(adamant_step_rates const& from)
{
    return {.elems = from.elems,
            .cpu_elems_per_s = from.cpu_elems_per_s,
            .device_elems_per_s = from.device_elems_per_s,
            .down_bytes_per_s = from.down_bytes_per_s,
            .up_bytes_per_s = from.up_bytes_per_s,
            .grad_bytes = from.grad_bytes,
            .weight_bytes = from.weight_bytes,
            .arrays_on_device = from.arrays_on_device != 0,
            .backward_s = from.backward_s,
            .forward_s = from.forward_s,
            .fixed_s = from.fixed_s,
            .overlaps_backward = from.overlaps_backward != 0,
            .overlaps_forward = from.overlaps_forward != 0};
}
adamant_step_rates about<adamant_step_rates>::defaults()
{
    step_rates const r;
    adamant_step_rates to{};
    to.cpu_elems_per_s = r.cpu_elems_per_s;
    to.device_elems_per_s = r.device_elems_per_s;
    to.down_bytes_per_s = r.down_bytes_per_s;
    to.up_bytes_per_s = r.up_bytes_per_s;
    to.grad_bytes = r.grad_bytes;
    to.weight_bytes = r.weight_bytes;
    to.arrays_on_device = r.arrays_on_device;
    to.overlaps_backward = r.overlaps_backward;
    to.overlaps_forward = r.overlaps_forward;
    return to;
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_split_options_init(adamant_split_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_split(const size_t* sizes, size_t count, const adamant_split_options* options,
                             adamant_placement** made)
{
    return guarded([&] {
        if (count != 0)
            needed(sizes, "sizes");
        adamant::split_request const request = from_c(read(options));
        needed(made, "made");
        *made = new adamant_placement{adamant::split({sizes, sizes + count}, request)};
    });
}
adamant_status adamant_placement_create(const adamant_piece* pieces, size_t count, adamant_placement** made)
{
    return guarded([&] {
        if (count != 0)
            needed(pieces, "pieces");
        needed(made, "made");
        auto placement = std::make_unique<adamant_placement>();
        for (std::size_t i = 0; i < count; ++i) {
            adamant_piece const& p = pieces[i];
            if (p.on_device > 1)
                adamant::detail::throw_invalid_argument(
                    {"on_device of piece ", i, " is ", p.on_device, ", but must be 0 or 1"});
            auto const on = p.on_device == 0 ? adamant::backend_kind::cpu : adamant::backend_kind::device;
            placement->of.pieces.push_back({p.shard, p.begin, p.elements, on});
            (p.on_device == 0 ? placement->of.cpu_elems : placement->of.device_elems) += p.elements;
        }
        placement->of.ratio_asked = placement->of.ratio();
        *made = placement.release();
    });
}
void adamant_placement_free(adamant_placement* placement)
{
    delete placement;
}
adamant_status adamant_placement_summary_init(adamant_placement_summary* summary, size_t struct_bytes)
{
    return init(summary, struct_bytes);
}
adamant_status adamant_placement_describe(const adamant_placement* placement, adamant_placement_summary* summary)
{
    return guarded([&] {
        adamant::placement const& from = of(placement);
        check_target(summary);
        adamant_placement_summary to{};
        to.pieces = from.pieces.size();
        to.cpu_elems = from.cpu_elems;
        to.device_elems = from.device_elems;
        to.ratio = from.ratio();
        to.ratio_asked = from.ratio_asked;
        to.limited = from.limited;
        to.nearest = from.nearest;
        write(to, summary);
    });
}
adamant_status adamant_placement_piece(const adamant_placement* placement, size_t index, adamant_piece* piece)
{
    return guarded([&] {
        adamant::placement const& from = of(placement);
        if (index >= from.pieces.size())
            adamant::detail::throw_invalid_argument(
                {"there is no piece ", index, " in the placement; there are ", from.pieces.size()});
        adamant::shard_piece const& p = from.pieces[index];
        needed(piece, "piece") = {p.shard, p.begin, p.elems, p.on == adamant::backend_kind::device ? 1u : 0u};
    });
}

adamant_status adamant_step_rates_init(adamant_step_rates* rates, size_t struct_bytes)
{
    return init(rates, struct_bytes);
}
adamant_status adamant_forecast(const adamant_step_rates* rates, double ratio, double* step_s, double* update_s)
{
    return guarded([&] {
        adamant::step_forecast const found = adamant::forecast(from_c(read(rates)), ratio);
        give(step_s, found.step_s);
        give(update_s, found.update_s);
    });
}
adamant_status adamant_best_ratio(const adamant_step_rates* rates, double least, double most, double* ratio,
                                  double* step_s)
{
    return guarded([&] {
        needed(ratio, "ratio");
        adamant::step_forecast const found = adamant::best_ratio(from_c(read(rates)), least, most);
        *ratio = found.ratio;
        give(step_s, found.step_s);
    });
}
