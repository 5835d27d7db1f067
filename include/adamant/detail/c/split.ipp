// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: placements, splits and forecasts.
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

static std::optional<std::size_t> limit_of(std::size_t source)
{
    return source == ADAMANT_NO_LIMIT ? std::nullopt : std::optional(source);
}
static split_request from_c(adamant_split_options const& source)
{
    return {.ratio = source.ratio,
            .unit = to_enum(source.unit, split_unit::deepspeed, "unit"),
            .order = to_enum(source.order, split_order::back, "order"),
            .device_order = copy_of(source.device_order, source.device_order_count, "device_order"),
            .most_on_cpu = limit_of(source.most_on_cpu),
            .most_on_device = limit_of(source.most_on_device)};
}

static step_rates from_c(adamant_step_rates const& source)
{
    return {.elems = source.elems,
            .cpu_elems_per_s = source.cpu_elems_per_s,
            .device_elems_per_s = source.device_elems_per_s,
            .down_bytes_per_s = source.down_bytes_per_s,
            .up_bytes_per_s = source.up_bytes_per_s,
            .grad_bytes = source.grad_bytes,
            .weight_bytes = source.weight_bytes,
            .arrays_on_device = source.arrays_on_device != 0,
            .backward_s = source.backward_s,
            .forward_s = source.forward_s,
            .fixed_s = source.fixed_s,
            .overlaps_backward = source.overlaps_backward != 0,
            .overlaps_forward = source.overlaps_forward != 0};
}
adamant_step_rates struct_description<adamant_step_rates>::defaults()
{
    step_rates const r;
    adamant_step_rates result{};
    result.cpu_elems_per_s = r.cpu_elems_per_s;
    result.device_elems_per_s = r.device_elems_per_s;
    result.down_bytes_per_s = r.down_bytes_per_s;
    result.up_bytes_per_s = r.up_bytes_per_s;
    result.grad_bytes = r.grad_bytes;
    result.weight_bytes = r.weight_bytes;
    result.arrays_on_device = r.arrays_on_device;
    result.overlaps_backward = r.overlaps_backward;
    result.overlaps_forward = r.overlaps_forward;
    return result;
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
        std::vector<std::size_t> const copied_sizes = copy_of(sizes, count, "sizes");
        adamant::split_request const request = from_c(read(options));
        needed(made, "made");
        *made = new adamant_placement{adamant::split(copied_sizes, request)};
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
            auto const kind = p.on_device == 0 ? adamant::backend_kind::cpu : adamant::backend_kind::device;
            placement->placement.pieces.push_back({p.shard, p.begin, p.elements, kind});
            (p.on_device == 0 ? placement->placement.cpu_elems : placement->placement.device_elems) += p.elements;
        }
        placement->placement.ratio_asked = placement->placement.ratio();
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
        adamant::placement const& source = unwrap(placement);
        check_target(summary);
        adamant_placement_summary result{};
        result.pieces = source.pieces.size();
        result.cpu_elems = source.cpu_elems;
        result.device_elems = source.device_elems;
        result.ratio = source.ratio();
        result.ratio_asked = source.ratio_asked;
        result.limited = source.limited;
        result.nearest = source.nearest;
        write(result, summary);
    });
}
adamant_status adamant_placement_piece(const adamant_placement* placement, size_t index, adamant_piece* piece)
{
    return guarded([&] {
        adamant::placement const& source = unwrap(placement);
        if (index >= source.pieces.size())
            adamant::detail::throw_invalid_argument(
                {"there is no piece ", index, "; the placement has ", source.pieces.size()});
        adamant::shard_piece const& p = source.pieces[index];
        needed(piece, "piece") = {p.shard, p.begin, p.elems, p.backend == adamant::backend_kind::device ? 1u : 0u};
    });
}

adamant_status adamant_step_rates_init(adamant_step_rates* rates, size_t struct_bytes)
{
    return init(rates, struct_bytes);
}
adamant_status adamant_forecast(const adamant_step_rates* rates, double ratio, double* step_s, double* update_s)
{
    return guarded([&] {
        adamant::step_forecast const prediction = adamant::forecast(from_c(read(rates)), ratio);
        give(step_s, prediction.step_s);
        give(update_s, prediction.update_s);
    });
}
adamant_status adamant_best_ratio(const adamant_step_rates* rates, double least, double most, double* ratio,
                                  double* step_s)
{
    return guarded([&] {
        needed(ratio, "ratio");
        adamant::step_forecast const prediction = adamant::best_ratio(from_c(read(rates)), least, most);
        *ratio = prediction.ratio;
        give(step_s, prediction.step_s);
    });
}
