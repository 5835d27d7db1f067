// SPDX-License-Identifier: Apache-2.0
#include "plan_ways.hpp"

#include <algorithm>
#include <cmath>

#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

struct selected_part {
    std::size_t of_matrices = 0;
    std::size_t vectors = 0;
};

// Of a GPU's share. Of columns, the last dimension of a matrix, the nearest whole number is selected, but at least one;
// vectors are selected whole. Where shapes are not known all is columns of one element.
selected_part selected(model const& of, std::size_t gpus, double ratio)
{
    selected_part result;
    for (model_tensor const& one : of.tensors) {
        bool const vector = of.has_shapes && one.dims.size() < 2;
        std::size_t const columns = one.dims.size() < 2 ? one.elems : one.dims.back();
        auto const nearest = static_cast<std::size_t>(std::floor(ratio * static_cast<double>(columns) + 0.5));
        std::size_t const chosen = ratio > 0 ? std::clamp<std::size_t>(nearest, 1, columns) : 0;
        std::size_t const elems = vector ? one.elems : one.elems / columns * chosen;
        (vector ? result.vectors : result.of_matrices) += elems / gpus + (elems % gpus != 0);
    }
    return result;
}

// Without a journal, for nothing is taken back; and of what the GPU has no pages are given back, for its columns lie
// between others.
memory_plan zenflow_memory(plan_request r, std::size_t selected, std::size_t put_off)
{
    r.journal = 0;
    r.device_records = false;
    r.give_back = false;
    memory_plan result = memory_of(r, put_off, selected);
    bool const twice = r.zenflow->overlap;
    (r.on.unified ? result.gpu : result.host)
        .push_back({'Z', "sums", "sums of gradients", array_product(dtype::float32, product(twice ? 2 : 1, put_off)),
                    std::string("float32, of what is put off") +
                        (twice ? ", twice: one is stepped while the other is added up" : "")});
    return result;
}

zenflow_rates zenflow_rates_of(plan_request const& r, step_rates const& from)
{
    zenflow_rates to;
    double const record_bytes = r.device_records ? r.state_bytes() : 0;
    to.device_bytes_per_s = from.device_elems_per_s * (r.step_bytes() + record_bytes);
    to.host_bytes_per_s = from.cpu_elems_per_s * (r.step_bytes() + r.record_bytes());
    to.down_bytes_per_s = from.down_bytes_per_s;
    to.up_bytes_per_s = from.up_bytes_per_s;
    to.grad_bytes = from.grad_bytes;
    to.weight_bytes = from.weight_bytes;
    to.device_step_bytes = r.step_bytes();
    to.backward_s = from.backward_s;
    to.forward_s = from.forward_s;
    return to;
}

} // namespace

zenflow_plan plan_zenflow(plan_request const& r, plan_rates const& rates, placement const& split,
                          memory_plan const& memory, std::optional<step_forecast> const& forecast)
{
    zenflow_request const& asked = *r.zenflow;
    std::size_t const share = split.cpu_elems + split.device_elems;
    selected_part const part = selected(r.of, r.gpus, asked.topk_ratio);
    zenflow_plan result;
    result.selected_elems = std::min(part.of_matrices + part.vectors, share);
    result.put_off_elems = share - result.selected_elems;

    // A plain step is a window of one step in which nothing is added up.
    zenflow_rates plain = zenflow_rates_of(r, rates.rates);
    zenflow_rates put_off = plain;
    plain.selected_elems = static_cast<double>(split.device_elems);
    plain.put_off_elems = static_cast<double>(split.cpu_elems);
    plain.update_interval = 1;
    plain.overlap = false;
    plain.first_sum_bytes = 0;
    plain.host_step_bytes = r.step_bytes();

    put_off.selected_elems = static_cast<double>(result.selected_elems);
    put_off.put_off_elems = static_cast<double>(result.put_off_elems);
    put_off.update_interval = asked.update_interval;
    put_off.overlap = asked.overlap;
    put_off.host_step_bytes = adamant::step_bytes({r.param, dtype::float32, r.exp_avg, r.exp_avg_sq, r.weight_out});
    put_off.first_sum_bytes = put_off.grad_bytes + 4;
    put_off.sum_bytes = put_off.grad_bytes + 8;
    if (asked.select_interval != 0) { // the worst: it changes as many columns as it can
        put_off.moved_bytes = r.state_bytes() * static_cast<double>(std::min(part.of_matrices, result.put_off_elems));
        put_off.selection_interval = (asked.select_interval - 1) / asked.update_interval + 1;
    }

    std::string const ratio = ", ratio " + nearest_ratio(split.ratio());
    plan_request without = r;
    without.journal = 0;
    without.device_records = false;
    result.ways = {{"plain", "plain" + ratio}, {"speculation", "speculation" + ratio}, {"zenflow", "ZenFlow"}};
    result.ways[0].memory = memory_of(without, split.cpu_elems, split.device_elems);
    result.ways[1].memory = memory;
    result.ways[2].memory = zenflow_memory(r, result.selected_elems, result.put_off_elems);
    // Bytes are known without rates, and nothing crosses where there is no link.
    zenflow_forecast const of_plain = forecast_zenflow(plain);
    zenflow_forecast const of_zenflow = forecast_zenflow(put_off);
    for (offload_way& way : result.ways) {
        zenflow_forecast const& one = way.key == "zenflow" ? of_zenflow : of_plain;
        way.down_bytes = r.on.unified ? 0 : one.down_bytes;
        way.up_bytes = r.on.unified ? 0 : one.up_bytes;
        way.fits = fits(way.memory, r.on);
        if (forecast && way.key != "speculation") {
            way.step_s = one.step_s;
            way.stall_s = one.stall_s;
        }
    }
    if (forecast) {
        result.forecast = of_zenflow;
        double const device_s = static_cast<double>(split.device_elems) / rates.rates.device_elems_per_s;
        result.ways[1].step_s = forecast->step_s;
        double const stall_s = forecast->update_s - device_s;
        result.ways[1].stall_s = stall_s > 1e-12 * forecast->step_s ? stall_s : 0; // a difference of rounded times
    }
    return result;
}

} // namespace cli
