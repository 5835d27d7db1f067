// SPDX-License-Identifier: Apache-2.0
// What lies where in a step with offload: bytes of each GPU and of the host's memory for it. Pure functions.
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

// What is asked about ZenFlow.
struct zenflow_request {
    double topk_ratio = 0.1;
    std::size_t update_interval = 4; // steps of a window
    std::size_t select_interval = 0; // steps; 0: selections are not counted
    bool overlap = true;
};

struct plan_request {
    model of;
    std::size_t gpus = 1;
    gpu_host on;
    std::optional<double> ratio; // none: the best that fits
    adamant::dtype param = adamant::dtype::float32;
    adamant::dtype grad = adamant::dtype::bfloat16;
    adamant::dtype exp_avg = adamant::dtype::float32;
    adamant::dtype exp_avg_sq = adamant::dtype::float32;
    adamant::dtype weight_out = adamant::dtype::bfloat16;
    std::size_t batch = 1;
    std::size_t sequence = 4096;
    std::size_t bucket_elems = 800'000'000;
    std::optional<double> journal; // bytes of an element; none: the optimizer's own budget
    bool device_records = false;
    bool give_back = false; // the pages of what the device has
    std::optional<zenflow_request> zenflow;
    std::size_t gpu_reserve = 4'000'000'000;
    std::size_t host_reserve = 24'000'000'000;

    [[nodiscard]] adamant::shard_dtypes types() const { return {param, grad, exp_avg, exp_avg_sq, weight_out}; }
    // Whether the new weights are the upper half of the masters.
    [[nodiscard]] bool is_split() const { return has_split_param(types()); }
    // Without the weights, which are counted by themselves; of an element on average, where some share a scale.
    [[nodiscard]] double state_bytes() const
    {
        return bytes_each(param) + bytes_each(exp_avg) + bytes_each(exp_avg_sq);
    }
    [[nodiscard]] bool has_float_state() const
    {
        return (is_split() || param == adamant::dtype::float32) && exp_avg == adamant::dtype::float32 &&
               exp_avg_sq == adamant::dtype::float32;
    }
    // What a record that is a copy has.
    [[nodiscard]] double copied_bytes() const { return adamant::state_bytes(types()); }
    // As adamant::optimizer_options has it.
    [[nodiscard]] double journal_bytes() const { return journal.value_or(has_float_state() ? 3.0 : copied_bytes()); }
    // What backward and forward compute with.
    [[nodiscard]] adamant::dtype weight() const { return weight_out == adamant::dtype::none ? param : weight_out; }
    // Read and written by a step, without records.
    [[nodiscard]] double step_bytes() const { return adamant::step_bytes(types()); }
    // Of the records that a step makes while it does not know the norm: 16 bits and a little where all state is floats.
    [[nodiscard]] double record_bytes() const { return has_float_state() ? 2.1 : copied_bytes(); }
    // Of the CPU's elements, those for whose records the journal has room.
    [[nodiscard]] double speculative_share() const { return std::min(1.0, journal_bytes() / record_bytes()); }
    // What a record costs of the time of a step: its bytes are read and written, and it is measured to be from a tenth
    // to a third.
    [[nodiscard]] double record_cost() const { return std::clamp(2 * record_bytes() / step_bytes(), 0.1, 1.0 / 3); }
    [[nodiscard]] std::size_t tokens() const { return batch * sequence; }
};

// One line of a plan.
struct memory_item {
    char letter;      // in the drawing
    std::string key;  // in JSON
    std::string name; // for people
    std::size_t bytes;
    std::string meaning; // empty: there is nothing to say of 0 bytes
    bool pinned = false;
};

struct memory_plan {
    std::vector<memory_item> gpu;
    std::vector<memory_item> host; // empty where the memory is one
    [[nodiscard]] static std::size_t total(std::vector<memory_item> const& items);
    [[nodiscard]] std::size_t pinned() const;
};

// Each tensor divided among the GPUs, rounded up, as ZeRO-3 does it.
std::vector<std::size_t> shares(model const& of, std::size_t gpus);
std::size_t sum(std::vector<std::size_t> const& sizes);

// With these numbers of elements on the CPU and on the device.
memory_plan memory_of(plan_request const& request, std::size_t cpu_elems, std::size_t device_elems);

bool fits(memory_plan const& plan, gpu_host const& on);

// Of each memory, what advice leaves free: allocators round up, and what is assumed may turn out to be more.
inline constexpr double headroom = 0.03;

// Elements on the CPU with which all fits.
struct fitting_range {
    std::size_t least = 0;
    std::size_t most = 0;
    std::size_t share = 0; // of all elements
    bool empty = false;
    bool gpu_short = false; // does not fit whatever the ratio
    bool host_short = false;

    // As shares, in text that is still within them when it is typed in again.
    [[nodiscard]] std::string least_text() const;
    [[nodiscard]] std::string most_text() const;
    // Of a ratio within them.
    [[nodiscard]] std::string text_within(double ratio) const;
};
// free: the share of each memory that is to stay so.
fitting_range fitting(plan_request const& request, std::size_t share_elems, double free = 0);

} // namespace cli
