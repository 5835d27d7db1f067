// SPDX-License-Identifier: Apache-2.0
#include "plan_ways.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

struct selected_part {
    std::size_t of_matrices = 0;
    std::size_t vectors = 0;
    std::size_t matrices = 0; // whole, selected or not
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
        result.matrices += vector ? 0 : one.elems / gpus + (one.elems % gpus != 0);
    }
    return result;
}

// What goes up in a selection, and has come down before the next: masters, moments and weights of what is selected, and
// room for its gradients, one column after the other.
std::size_t image_bytes(plan_request const& r, selected_part const& part)
{
    std::size_t bytes = array_product(r.grad, part.of_matrices);
    for (dtype const type : {r.param, r.exp_avg, r.exp_avg_sq, r.weight_out})
        bytes += array_product(type, part.of_matrices + part.vectors);
    return bytes;
}

// Without a journal, for the host takes nothing back, but with records on the GPU; and of what the GPU has no pages are
// given back, for its columns lie between others.
memory_plan zenflow_memory(plan_request r, selected_part const& part, std::size_t deferred)
{
    std::size_t const selected = part.of_matrices + part.vectors;
    r.journal = 0;
    r.device_records = true;
    r.give_back = false;
    memory_plan result = memory_of(r, deferred, selected);
    auto const change = [](std::vector<memory_item>& items, std::string_view key, char const* name, std::size_t bytes,
                           char const* meaning) {
        for (memory_item& one : items)
            if (one.key == key) {
                one.name = name;
                one.bytes = bytes;
                one.meaning = meaning;
            }
    };
    std::size_t const gradients = array_product(r.grad, selected + deferred);
    change(result.gpu, "device_gradients", "gradients", gradients,
           "whole, for their norm, and until what is selected has been stepped");
    result.gpu.push_back({'D', "selected_columns", "selected columns",
                          array_product(r.grad, part.of_matrices) + array_product(r.weight_out, selected),
                          "gradients and new weights, one column after the other"});
    std::size_t const weights = array_product(r.weight(), part.matrices);
    result.gpu.push_back({'T', "publishing_weights", "new weights", weights,
                          "of matrices, once more: they come up beside those in use"});
    bool const twice = r.zenflow->overlap;
    (r.on.unified ? result.gpu : result.host)
        .push_back({'Z', "sums", "sums of gradients",
                    array_product(dtype::float32, product(twice ? 2 : 1, part.matrices)),
                    std::string("float32, of whole matrices") +
                        (twice ? ", twice: one is stepped while the other is accumulated" : "")});
    if (r.on.unified)
        return result;
    change(result.host, "gradients", "gradients", gradients, "pinned, whole: rows come down with all of their columns");
    change(result.host, "device_arrays", "arrays, GPU's part",
           image_bytes(r, part) - array_product(r.grad, part.of_matrices),
           "between those of the deferred gradients; state comes there in a selection, and for checkpoints");
    result.host.push_back({'H', "host_weights", "weights by rows", weights,
                           "of matrices, as the model has them, for checkpoints and where the GPU is left"});
    result.host.push_back({'I', "selected_image", "image of its part", image_bytes(r, part),
                           "pinned: what is selected passes through it, in a selection and for checkpoints", true});
    return result;
}

zenflow_rates zenflow_rates_of(plan_request const& r, step_rates const& from)
{
    zenflow_rates to;
    double const record_bytes = r.device_records ? r.state_bytes() : 0;
    to.device_bytes_per_s = from.device_elems_per_s * (r.step_bytes() + record_bytes);
    to.host_bytes_per_s = from.cpu_elems_per_s * r.step_bytes();
    to.down_bytes_per_s = from.down_bytes_per_s;
    to.up_bytes_per_s = from.up_bytes_per_s;
    to.grad_bytes = from.grad_bytes;
    to.weight_bytes = from.weight_bytes;
    to.backward_s = from.backward_s;
    to.forward_s = from.forward_s;
    return to;
}

// What the GPU waits for in a step: all but its own part.
double stall_of(step_forecast const& step, placement const& split, step_rates const& rates)
{
    double const stall_s = step.update_s - static_cast<double>(split.device_elems) / rates.device_elems_per_s;
    return stall_s > 1e-12 * step.step_s ? stall_s : 0; // a difference of rounded times
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
    result.deferred_elems = share - result.selected_elems;

    zenflow_rates deferred = zenflow_rates_of(r, rates.rates);
    deferred.selected_elems = static_cast<double>(result.selected_elems);
    deferred.deferred_elems = static_cast<double>(result.deferred_elems);
    deferred.all_elems = static_cast<double>(share);
    deferred.matrix_elems = static_cast<double>(part.matrices);
    deferred.update_interval = asked.update_interval;
    deferred.overlap = asked.overlap;
    // Gradients of columns are gathered, a step makes records, and weights go to their rows.
    deferred.device_step_bytes =
        r.step_bytes() + adamant::state_bytes(r.types()) + 2 * (deferred.grad_bytes + deferred.weight_bytes);
    deferred.publishing_bytes = 2 * deferred.weight_bytes;
    deferred.host_step_bytes = adamant::step_bytes({r.param, dtype::float32, r.exp_avg, r.exp_avg_sq, r.weight_out});
    deferred.first_sum_bytes = deferred.grad_bytes + 4;
    deferred.sum_bytes = deferred.grad_bytes + 8;
    if (asked.select_interval != 0) {
        deferred.moved_bytes = static_cast<double>(image_bytes(r, part));
        deferred.selection_interval = (asked.select_interval - 1) / asked.update_interval + 1;
    }

    std::string const ratio = ", ratio " + nearest_ratio(split.ratio());
    // Plain is the plan without a journal, and speculation the plan, or where it has no journal, with the default one.
    plan_request plain = r;
    plain.journal = 0;
    plain.device_records = false;
    bool const is_plain = r.speculative_share() <= 0;
    plan_request speculative = r;
    if (is_plain)
        speculative.journal.reset();
    result.ways = {{"plain", "plain" + ratio}, {"speculation", "speculation" + ratio}, {"zenflow", "ZenFlow"}};
    result.ways[0].memory = memory_of(plain, split.cpu_elems, split.device_elems);
    result.ways[1].memory = is_plain ? memory_of(speculative, split.cpu_elems, split.device_elems) : memory;
    result.ways[2].memory = zenflow_memory(r, part, result.deferred_elems);
    // Bytes are known without rates, and nothing crosses where there is no link.
    zenflow_forecast const of_zenflow = forecast_zenflow(deferred);
    for (offload_way& way : result.ways) {
        bool const zenflow = way.key == "zenflow";
        double const elems = static_cast<double>(split.cpu_elems);
        way.down_bytes = r.on.unified ? 0 : zenflow ? of_zenflow.down_bytes : deferred.grad_bytes * elems;
        way.up_bytes = r.on.unified ? 0 : zenflow ? of_zenflow.up_bytes : deferred.weight_bytes * elems;
        way.fits = fits(way.memory, r.on);
    }
    if (forecast) {
        auto const add = [&](offload_way& way, plan_request const& request) {
            step_forecast const step = forecast_step(speculation_of(request, rates.rates), split.ratio());
            way.step_s = step.step_s;
            way.stall_s = stall_of(step, split, rates.rates);
        };
        add(result.ways[0], plain);
        add(result.ways[1], speculative);
        result.forecast = of_zenflow;
        result.ways[2].step_s = of_zenflow.step_s;
        result.ways[2].stall_s = of_zenflow.stall_s;
    }
    return result;
}

} // namespace cli
