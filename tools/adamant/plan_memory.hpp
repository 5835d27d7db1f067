// SPDX-License-Identifier: Apache-2.0
// The memory model of a step with offload: bytes of each GPU and of the host's memory for it. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <adamant/formats.hpp>

#include "plan_machines.hpp"
#include "plan_models.hpp"

namespace cli {

// The options of ZenFlow.
struct zenflow_request {
    double topk_ratio = 0.1;
    std::size_t update_interval = 4; // steps of a window
    std::size_t select_interval = 0; // steps; 0: selections are not counted
    bool overlap = true;
};

struct plan_request {
    model network;
    std::size_t gpus = 1;
    gpu_host machine;
    std::optional<double> ratio; // empty: the best that fits
    adamant::dtype param = adamant::dtype::float32;
    adamant::dtype grad = adamant::dtype::bfloat16;
    adamant::dtype exp_avg = adamant::dtype::float32;
    adamant::dtype exp_avg_sq = adamant::dtype::float32;
    adamant::dtype weight_out = adamant::dtype::bfloat16;
    std::size_t batch = 1;
    std::size_t sequence = 4096;
    std::size_t bucket_elems = 800'000'000;
    std::optional<double> journal; // bytes of an element; empty: the optimizer's default budget
    bool device_records = false;
    bool give_back = false; // the host pages of the device's part
    bool track_changes = false;
    std::optional<zenflow_request> zenflow;
    std::size_t gpu_reserve = 4'000'000'000;
    std::size_t host_reserve = 24'000'000'000;

    [[nodiscard]] adamant::shard_dtypes types() const { return {param, grad, exp_avg, exp_avg_sq, weight_out}; }
    // Whether master weights are split: the bfloat16 weights are a part of them.
    [[nodiscard]] bool is_split() const { return has_split_param(types()); }
    // Bytes of an element's state on average, without the weights, which have their own item.
    [[nodiscard]] double state_bytes() const
    {
        return bytes_each(param) + bytes_each(exp_avg) + bytes_each(exp_avg_sq);
    }
    [[nodiscard]] bool has_float_moments() const
    {
        return exp_avg == adamant::dtype::float32 && exp_avg_sq == adamant::dtype::float32;
    }
    [[nodiscard]] bool has_float_state() const
    {
        return (is_split() || param == adamant::dtype::float32) && has_float_moments();
    }
    // Bytes of a record that copies the state.
    [[nodiscard]] double copied_bytes() const { return adamant::state_bytes(types()); }
    // The journal's budget, by the rule of adamant::optimizer_options.
    [[nodiscard]] double journal_bytes() const { return journal.value_or(has_float_state() ? 3.0 : copied_bytes()); }
    // The type that backward and forward compute with.
    [[nodiscard]] adamant::dtype weight() const { return weight_out == adamant::dtype::none ? param : weight_out; }
    // Bytes that a step reads and writes for an element, without records.
    [[nodiscard]] double step_bytes() const { return adamant::step_bytes(types()); }
    // Bytes of the record that a speculative step writes for an element: slightly more than 16 bits for float moments
    // and masters, and a copy of 16-bit params.
    [[nodiscard]] double record_bytes() const
    {
        return !has_float_moments() ? copied_bytes() : has_float_state() ? 2.1 : 2.1 + bytes_each(param);
    }
    // The share of the CPU's elements whose records fit in the journal.
    [[nodiscard]] double speculative_share() const { return std::min(1.0, journal_bytes() / record_bytes()); }
    // The time of records as a share of the time of a step. Measurements range from a tenth to four tenths.
    [[nodiscard]] double record_cost() const { return std::clamp(2 * record_bytes() / step_bytes(), 0.1, 1.0 / 3); }
    [[nodiscard]] std::size_t tokens() const { return batch * sequence; }
};

// One line of a plan.
struct memory_item {
    char letter;      // in the drawing
    std::string key;  // in JSON
    std::string name; // in text
    std::size_t bytes;
    std::string meaning; // empty: an item of 0 bytes that is not shown
    bool pinned = false;
};

struct memory_plan {
    std::vector<memory_item> gpu;
    std::vector<memory_item> host; // empty for unified memory
    // What a device that did not share the host's memory would need besides: staging copies of gradients and weights,
    // and the device's part a second time. 0 without unified memory.
    std::size_t saved_by_sharing = 0;
    [[nodiscard]] static std::size_t total(std::vector<memory_item> const& items);
    [[nodiscard]] std::size_t pinned() const;
};

// Elements of each tensor on one GPU: divided among the GPUs and rounded up, as ZeRO-3 does it.
std::vector<std::size_t> shares(model const& network, std::size_t gpus);
std::size_t sum(std::vector<std::size_t> const& sizes);

// The memory for these numbers of elements on the CPU and on the device.
memory_plan memory_of(plan_request const& request, std::size_t cpu_elems, std::size_t device_elems);

bool fits(memory_plan const& plan, gpu_host const& machine);

// The share of each memory that advice leaves free: allocators round up, and assumed sizes may be exceeded.
inline constexpr double headroom = 0.03;

// The range of elements on the CPU for which a plan fits.
struct fitting_range {
    std::size_t least = 0;
    std::size_t most = 0;
    std::size_t share = 0; // of all elements
    bool empty = false;
    bool gpu_short = false; // fits at no ratio
    bool host_short = false;

    // The bounds as ratios, rounded into the range.
    [[nodiscard]] std::string least_text() const;
    [[nodiscard]] std::string most_text() const;
    // The text of a ratio, clamped to the range.
    [[nodiscard]] std::string text_within(double ratio) const;
};
// free: the share of each memory that stays free.
fitting_range fitting(plan_request const& request, std::size_t share_elems, double free = 0);

} // namespace cli
