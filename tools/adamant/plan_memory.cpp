// SPDX-License-Identifier: Apache-2.0
// The memory model of `adamant plan`: ZeRO-3 with the optimizer offloaded, as ZeRO-Offload and SuperOffload do it, and
// the arrays of adamant::optimizer. Each item's text says what it counts.

#include "plan_memory.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

std::string bytes_text(double bytes, std::size_t elems)
{
    return shortest(bytes) + " B for each of " + grouped(elems);
}
// Bytes of the state of `elems` elements.
std::size_t state_of(plan_request const& r, std::size_t elems)
{
    std::size_t bytes = 0;
    for (dtype const type : {r.param, r.exp_avg, r.exp_avg_sq})
        bytes += array_product(type, elems);
    return bytes;
}
std::string type_text(dtype type)
{
    return std::string(name(type));
}

// Of split master weights only the residuals are extra: the bfloat16 part is the weights.
std::string masters_text(plan_request const& r)
{
    return r.is_split() ? "residuals of masters" : "master weights";
}

// Elements that the operations of a recomputed layer keep for one token. With the layer's width: its input, both norms'
// outputs, the attention's output, the sum after it, the MLP's output. Also queries and the attention's result; keys
// and values; gate, its activation, up and their product.
std::size_t kept_elems(model const& network)
{
    return 6 * network.hidden + 2 * network.query + network.key_value + 4 * network.feed_forward;
}

void add_weights(plan_request const& r, std::size_t share, memory_plan& plan)
{
    plan.gpu.push_back({'W', "weights", "weights", array_product(r.weight(), share),
                        type_text(r.weight()) + ", this GPU's share of the model"});
}

void add_gradients(plan_request const& r, std::size_t share, std::size_t device_elems, memory_plan& plan)
{
    std::size_t const grad_bytes = size_bytes(r.grad);
    if (r.machine.unified) {
        plan.gpu.push_back({'g', "gradients", "gradients", product(share, grad_bytes),
                            type_text(r.grad) + ", the whole share: the CPU reads them where they are made"});
        return;
    }
    // Backward computes the gradients of all ranks, which then divide them: so a bucket has whole tensors.
    std::size_t const bucket = std::min(r.network.params, std::max(r.bucket_elems, r.network.largest_tensor));
    plan.gpu.push_back({'g', "gradient_buckets", "gradient buckets", product(2 * bucket, grad_bytes),
                        "two of " + grouped(bucket) + " elements" +
                            (bucket == r.network.largest_tensor ? " (the largest tensor)" : "") +
                            ", one filled while the other goes down; the CPU's gradients do not stay here"});
    plan.gpu.push_back({'d', "device_gradients", "gradients of its part", product(device_elems, grad_bytes),
                        device_elems == 0 ? "" : "those that the GPU steps itself stay until backward is through"});
}

void add_device_state(plan_request const& r, std::size_t device_elems, memory_plan& plan)
{
    std::size_t const bytes = state_of(r, device_elems);
    std::string state;
    std::string records;
    if (device_elems != 0) {
        state = masters_text(r) + " and moments, " + bytes_text(r.state_bytes(), device_elems);
        records = r.device_records
                      ? "to take a step back there: room for the longest, " + bytes_text(r.state_bytes(), device_elems)
                      : "none: its part is stepped when the norm is known (--device-records has room for them)";
    }
    plan.gpu.push_back({'O', "device_state", "optimizer, its part", bytes, state});
    plan.gpu.push_back({'R', "device_records", "records, its part", r.device_records ? bytes : 0, records});
    if (r.track_changes)
        plan.gpu.push_back({'c', "device_changed", "changed weights, its part", (device_elems + 3) / 4,
                            "a quarter of a byte for each element"});
}

void add_working_set(plan_request const& r, memory_plan& plan)
{
    std::size_t const tokens = product(r.batch, r.sequence);
    std::size_t const weight = size_bytes(r.weight());
    std::size_t const two_layers = r.network.layer_params + std::max(r.network.layer_params, r.network.ends_params);
    plan.gpu.push_back({'G', "gathered", "gathered weights", r.gpus == 1 ? 0 : product(two_layers, weight),
                        r.gpus == 1 ? "none: one GPU has all weights"
                                    : "a whole layer in use, and the next or the embedding on its way"});
    std::size_t const inputs = product(product(product(r.network.layers, tokens), r.network.hidden), 2);
    std::size_t const layer = product(product(kept_elems(r.network), tokens), 4);
    plan.gpu.push_back({'A', "activations", "activations", inputs + layer,
                        r.network.hidden == 0
                            ? "not known: give --hidden and --layers"
                            : "checkpointed: every layer's input, 2 B x layers x tokens x hidden; one layer's "
                              "own and their gradients, 4 B x tokens x (6 hidden + 2 q + kv + 4 ffn); no "
                              "matrix of attention scores"});
    plan.gpu.push_back({'L', "logits", "logits", product(product(tokens, r.network.vocab), 12),
                        r.network.vocab == 0
                            ? "not known: give --vocab"
                            : "12 B x tokens x vocabulary: 16-bit and float32, and the gradients of both"});
}

void add_host(plan_request const& r, std::size_t cpu, std::size_t device, memory_plan& plan)
{
    std::vector<memory_item>& items = r.machine.unified ? plan.gpu : plan.host;
    items.push_back({'M', "state", "optimizer, CPU's part", state_of(r, cpu),
                     masters_text(r) + " and moments, " + bytes_text(r.state_bytes(), cpu)});
    if (!r.machine.unified) {
        items.push_back({'g', "gradients", "gradients, CPU's part", array_product(r.grad, cpu),
                         "pinned, whole: a step that is repeated after a rollback reads them again", true});
        items.push_back({'w', "weights_out", "new weights, CPU's part", array_product(r.weight_out, cpu),
                         r.weight_out == dtype::none ? "none: the params themselves are uploaded"
                         : r.is_split()              ? "pinned, whole, the bfloat16 weights of split masters, uploaded"
                                                     : "pinned, whole, written by the step and uploaded",
                         true});
    }
    items.push_back({'J', "journal", "journal",
                     static_cast<std::size_t>(std::ceil(r.journal_bytes() * static_cast<double>(cpu))),
                     r.journal_bytes() <= 0
                         ? "none: every update waits for the norm"
                         : "budget of " + shortest(r.journal_bytes()) +
                               " B an element, to roll back updates made before the norm is known" +
                               (r.speculative_share() < 1 ? "; room for " + fixed(100 * r.speculative_share(), 0) +
                                                                "% of the blocks, the others wait for the norm"
                                                          : "")});
    if (r.track_changes) // for the device's part: the shard's bits, those of the step, and a copy for its rollback
        items.push_back({'C', "changed", "changed weights", (cpu + 7) / 8 + (device + 1) / 2,
                         "an eighth of a byte for each element; half a byte for each of the GPU's part", false});
    if (r.machine.unified)
        return;
    std::size_t const arrays =
        state_of(r, device) + array_product(r.grad, device) + array_product(r.weight_out, device);
    std::string meaning;
    if (arrays != 0)
        meaning = r.give_back ? "given back, as --give-back says; checkpoints need " + gb(arrays) + " GB again"
                              : "the shards' host arrays, which checkpoints are written from; their pages can be given "
                                "back between checkpoints (--give-back)";
    plan.host.push_back({'B', "device_arrays", "arrays, GPU's part", r.give_back ? 0 : arrays, meaning});
}

} // namespace

std::size_t memory_plan::total(std::vector<memory_item> const& items)
{
    std::size_t all = 0;
    for (memory_item const& item : items)
        all += item.bytes;
    return all;
}

std::size_t memory_plan::pinned() const
{
    std::size_t all = 0;
    for (memory_item const& item : host)
        all += item.pinned ? item.bytes : 0;
    return all;
}

std::vector<std::size_t> shares(model const& network, std::size_t gpus)
{
    std::vector<std::size_t> sizes;
    sizes.reserve(network.tensors.size());
    for (model_tensor const& tensor : network.tensors)
        sizes.push_back(tensor.elems / gpus + (tensor.elems % gpus != 0));
    return sizes;
}

std::size_t sum(std::vector<std::size_t> const& sizes)
{
    return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
}

memory_plan memory_of(plan_request const& r, std::size_t cpu_elems, std::size_t device_elems)
{
    memory_plan result;
    add_weights(r, cpu_elems + device_elems, result);
    add_gradients(r, cpu_elems + device_elems, device_elems, result);
    add_device_state(r, device_elems, result);
    add_working_set(r, result);
    add_host(r, cpu_elems, device_elems, result);
    std::string const assumed = " (assumed; ";
    result.gpu.push_back({'C', "reserve", "context", r.gpu_reserve,
                          "of the driver and libraries, and gaps in the allocator" + assumed + "--gpu-reserve)"});
    (r.machine.unified ? result.gpu : result.host)
        .push_back({'S', "system", "system", r.host_reserve,
                    "operating system, framework, data loader" + assumed + "--host-reserve)"});
    if (r.machine.unified)
        result.saved_by_sharing = state_of(r, device_elems) + array_product(r.grad, cpu_elems + device_elems) +
                                  array_product(r.weight_out, cpu_elems + device_elems);
    return result;
}

bool fits(memory_plan const& plan, gpu_host const& machine)
{
    auto const is_within = [](std::vector<memory_item> const& items, figure const& limit) {
        return static_cast<double>(memory_plan::total(items)) <= limit.value;
    };
    return is_within(plan.gpu, machine.gpu_bytes) && (machine.unified || is_within(plan.host, machine.host_bytes));
}

namespace {

// Three digits, or more if the bounds differ only in later ones.
int digits_of(fitting_range const& range)
{
    if (range.least >= range.most)
        return range.empty ? 3 : 9;
    double const width = static_cast<double>(range.most - range.least) / static_cast<double>(range.share);
    int digits = 3;
    while (digits < 9 && width * std::pow(10.0, digits) < 1)
        ++digits;
    return digits;
}

} // namespace

std::string fitting_range::least_text() const
{
    return ratio_text(static_cast<double>(least) / static_cast<double>(share), true, digits_of(*this));
}
std::string fitting_range::most_text() const
{
    return ratio_text(static_cast<double>(most) / static_cast<double>(share), false, digits_of(*this));
}
std::string fitting_range::text_within(double ratio) const
{
    double const elems = std::stod(nearest_ratio(ratio)) * static_cast<double>(share);
    if (elems < static_cast<double>(least))
        return least_text();
    return elems > static_cast<double>(most) ? most_text() : nearest_ratio(ratio);
}

fitting_range fitting(plan_request const& r, std::size_t share, double free)
{
    // Every total is linear in the elements on the CPU, except for rounding.
    auto const is_within = [&](std::vector<memory_item> const& items, figure const& limit) {
        return static_cast<double>(memory_plan::total(items)) <= (1 - free) * limit.value;
    };
    auto const gpu = [&](std::size_t cpu) {
        return is_within(memory_of(r, cpu, share - cpu).gpu, r.machine.gpu_bytes);
    };
    auto const host = [&](std::size_t cpu) {
        return r.machine.unified || is_within(memory_of(r, cpu, share - cpu).host, r.machine.host_bytes);
    };
    fitting_range result{0, share, share};
    auto const narrow = [&](auto const& fits, bool& short_of) {
        bool const low = fits(0);
        bool const high = fits(share);
        if (!low && !high)
            short_of = true;
        if (low == high)
            return;
        std::size_t good = low ? 0 : share;
        std::size_t bad = low ? share : 0;
        while ((good > bad ? good - bad : bad - good) > 1) {
            std::size_t const middle = good / 2 + bad / 2 + (good % 2 + bad % 2) / 2;
            (fits(middle) ? good : bad) = middle;
        }
        (low ? result.most : result.least) = low ? std::min(result.most, good) : std::max(result.least, good);
    };
    narrow(gpu, result.gpu_short);
    narrow(host, result.host_short);
    result.empty = result.gpu_short || result.host_short || result.least > result.most;
    return result;
}

} // namespace cli
