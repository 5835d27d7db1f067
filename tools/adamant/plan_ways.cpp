// SPDX-License-Identifier: Apache-2.0
// Definitions of plan_ways.hpp.
#include "plan_ways.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

struct selected_part {
    std::size_t of_matrices = 0; // elements of selected columns
    std::size_t vectors = 0;     // elements of vectors
    std::size_t matrices = 0;    // elements of all columns
};

// The selected part of a GPU's share. Selects the nearest whole number of columns, the last dimension of a matrix, but
// at least one, and whole vectors. Without shapes every element counts as a column.
selected_part select_part(model const& network, std::size_t gpus, double ratio)
{
    selected_part result;
    for (model_tensor const& tensor : network.tensors) {
        bool const vector = network.has_shapes && tensor.dims.size() < 2;
        std::size_t const columns = tensor.dims.size() < 2 ? tensor.elems : tensor.dims.back();
        auto const nearest = static_cast<std::size_t>(std::floor(ratio * static_cast<double>(columns) + 0.5));
        std::size_t const chosen = ratio > 0 ? std::clamp<std::size_t>(nearest, 1, columns) : 0;
        std::size_t const elems = vector ? tensor.elems : tensor.elems / columns * chosen;
        (vector ? result.vectors : result.of_matrices) += elems / gpus + (elems % gpus != 0);
        result.matrices += vector ? 0 : tensor.elems / gpus + (tensor.elems % gpus != 0);
    }
    return result;
}

// Bytes that a selection uploads, and downloads before the next one: masters, moments and weights of the selected part,
// and room for its gradients, column by column.
std::size_t image_bytes(plan_request const& r, selected_part const& part)
{
    std::size_t bytes = array_product(r.grad, part.of_matrices);
    for (dtype const type : {r.param, r.exp_avg, r.exp_avg_sq, r.weight_out})
        bytes += array_product(type, part.of_matrices + part.vectors);
    return bytes;
}

// The memory of ZenFlow. The host needs no journal because it rolls nothing back; the GPU has records. Host pages of
// the GPU's part stay allocated because its columns lie between others.
memory_plan zenflow_memory(plan_request r, selected_part const& part, std::size_t deferred)
{
    std::size_t const selected = part.of_matrices + part.vectors;
    r.journal = 0;
    r.device_records = true;
    r.give_back = false;
    memory_plan result = memory_of(r, deferred, selected);
    auto const change = [](std::vector<memory_item>& items, std::string_view key, char const* name, std::size_t bytes,
                           char const* meaning) {
        for (memory_item& item : items)
            if (item.key == key) {
                item.name = name;
                item.bytes = bytes;
                item.meaning = meaning;
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
    (r.machine.unified ? result.gpu : result.host)
        .push_back({'Z', "sums", "sums of gradients",
                    array_product(dtype::float32, product(twice ? 2 : 1, part.matrices)),
                    std::string("float32, of whole matrices") +
                        (twice ? ", twice: one is stepped while the other is accumulated" : "")});
    if (r.machine.unified)
        return result;
    change(result.host, "gradients", "gradients", gradients, "pinned, whole: rows are downloaded with all columns");
    change(result.host, "device_arrays", "arrays, GPU's part",
           image_bytes(r, part) - array_product(r.grad, part.of_matrices),
           "between those of the deferred gradients; state is downloaded there in a selection, and for checkpoints");
    result.host.push_back({'H', "host_weights", "weights by rows", weights,
                           "of matrices, as the model has them, for checkpoints and where the GPU is left"});
    result.host.push_back({'I', "selected_image", "image of its part", image_bytes(r, part),
                           "pinned: what is selected passes through it, in a selection and for checkpoints", true});
    return result;
}

zenflow_rates zenflow_rates_of(plan_request const& r, step_rates const& rates)
{
    zenflow_rates result;
    double const record_bytes = r.device_records ? r.state_bytes() : 0;
    result.device_bytes_per_s = rates.device_elems_per_s * (r.step_bytes() + record_bytes);
    result.host_bytes_per_s = rates.cpu_elems_per_s * r.step_bytes();
    result.down_bytes_per_s = rates.down_bytes_per_s;
    result.up_bytes_per_s = rates.up_bytes_per_s;
    result.grad_bytes = rates.grad_bytes;
    result.weight_bytes = rates.weight_bytes;
    result.backward_s = rates.backward_s;
    result.forward_s = rates.forward_s;
    return result;
}

// The time of a step in which the GPU waits: the update except for its own part.
double stall_of(step_forecast const& step, placement const& split, step_rates const& rates)
{
    double const stall_s = step.update_s - static_cast<double>(split.device_elems) / rates.device_elems_per_s;
    return stall_s > 1e-12 * step.step_s ? stall_s : 0; // ignores differences by rounding
}

} // namespace

zenflow_plan plan_zenflow(plan_request const& r, plan_rates const& rates, placement const& split,
                          memory_plan const& memory, std::optional<step_forecast> const& forecast)
{
    zenflow_request const& options = *r.zenflow;
    std::size_t const share = split.cpu_elems + split.device_elems;
    selected_part const part = select_part(r.network, r.gpus, options.topk_ratio);
    zenflow_plan result;
    result.selected_elems = std::min(part.of_matrices + part.vectors, share);
    result.deferred_elems = share - result.selected_elems;

    zenflow_rates deferred = zenflow_rates_of(r, rates.rates);
    deferred.selected_elems = static_cast<double>(result.selected_elems);
    deferred.deferred_elems = static_cast<double>(result.deferred_elems);
    deferred.all_elems = static_cast<double>(share);
    deferred.matrix_elems = static_cast<double>(part.matrices);
    deferred.update_interval = options.update_interval;
    deferred.overlap = options.overlap;
    // Gradients of columns are gathered, a step makes records, and weights go to their rows.
    deferred.device_step_bytes =
        r.step_bytes() + adamant::state_bytes(r.types()) + 2 * (deferred.grad_bytes + deferred.weight_bytes);
    deferred.publishing_bytes = 2 * deferred.weight_bytes;
    deferred.host_step_bytes = adamant::step_bytes({r.param, dtype::float32, r.exp_avg, r.exp_avg_sq, r.weight_out});
    deferred.first_sum_bytes = deferred.grad_bytes + 4;
    deferred.sum_bytes = deferred.grad_bytes + 8;
    if (options.select_interval != 0) {
        deferred.moved_bytes = static_cast<double>(image_bytes(r, part));
        deferred.selection_interval = (options.select_interval - 1) / options.update_interval + 1;
    }

    std::string const ratio = ", ratio " + nearest_ratio(split.ratio());
    // Plain is the plan without a journal. Speculation is the plan, with the default journal if it has none.
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
    // Bytes are known without rates, and are 0 without a link.
    zenflow_forecast const window_forecast = forecast_zenflow(deferred);
    for (offload_way& way : result.ways) {
        bool const zenflow = way.key == "zenflow";
        double const elems = static_cast<double>(split.cpu_elems);
        way.down_bytes = r.machine.unified ? 0 : zenflow ? window_forecast.down_bytes : deferred.grad_bytes * elems;
        way.up_bytes = r.machine.unified ? 0 : zenflow ? window_forecast.up_bytes : deferred.weight_bytes * elems;
        way.fits = fits(way.memory, r.machine);
    }
    if (forecast) {
        auto const add = [&](offload_way& way, plan_request const& request) {
            step_forecast const step = forecast_step(speculation_of(request, rates.rates), split.ratio());
            way.step_s = step.step_s;
            way.stall_s = stall_of(step, split, rates.rates);
        };
        add(result.ways[0], plain);
        add(result.ways[1], speculative);
        result.forecast = window_forecast;
        result.ways[2].step_s = window_forecast.step_s;
        result.ways[2].stall_s = window_forecast.stall_s;
    }
    return result;
}

} // namespace cli
