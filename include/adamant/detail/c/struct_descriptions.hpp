// SPDX-License-Identifier: Apache-2.0
// Internal to the C library: name, minimum size and defaults of each struct of the interface.
#pragma once

#include <cstddef>
#include <cstdint>

#include <adamant/adamant.h>
#include <adamant/executor.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/c/structs.hpp>

namespace adamant::c {

template <>
struct struct_description<adamant_core_options> {
    static constexpr char const* name = "adamant_core_options";
    static constexpr std::size_t first_bytes = 64;
    static adamant_core_options defaults() { return {}; }
};

template <>
struct struct_description<adamant_team_options> {
    static constexpr char const* name = "adamant_team_options";
    static constexpr std::size_t first_bytes = 32;
    static adamant_team_options defaults()
    {
        adamant_team_options options{};
        options.spin_ns = static_cast<std::uint64_t>(team_options{}.spin.count());
        return options;
    }
};

template <>
struct struct_description<adamant_executor_options> {
    static constexpr char const* name = "adamant_executor_options";
    static constexpr std::size_t first_bytes = 40;
    static adamant_executor_options defaults()
    {
        adamant_executor_options options{};
        options.prefetch_bytes = ADAMANT_AUTOMATIC_BYTES;
        return options;
    }
};

template <>
struct struct_description<adamant_buffer_options> {
    static constexpr char const* name = "adamant_buffer_options";
    static constexpr std::size_t first_bytes = 32;
    static adamant_buffer_options defaults()
    {
        adamant_buffer_options options{};
        options.check_available = 1;
        return options;
    }
};

template <>
struct struct_description<adamant_buffer_report> {
    static constexpr char const* name = "adamant_buffer_report";
    static constexpr std::size_t first_bytes = 48;
    static adamant_buffer_report defaults() { return {}; }
};

template <>
struct struct_description<adamant_loss_scaling> {
    static constexpr char const* name = "adamant_loss_scaling";
    static constexpr std::size_t first_bytes = 56;
    static adamant_loss_scaling defaults();
};

template <>
struct struct_description<adamant_optimizer_options> {
    static constexpr char const* name = "adamant_optimizer_options";
    static constexpr std::size_t first_bytes = 72;
    static adamant_optimizer_options defaults()
    {
        adamant_optimizer_options options{};
        options.journal_budget_bytes = ADAMANT_AUTOMATIC_BYTES;
        options.device_timeout_s = optimizer_options{}.device_timeout_s;
        options.device_records = optimizer_options{}.device_records;
        return options;
    }
};

template <>
struct struct_description<adamant_hyperparameters> {
    static constexpr char const* name = "adamant_hyperparameters";
    static constexpr std::size_t first_bytes = 56;
    static adamant_hyperparameters defaults();
};

template <>
struct struct_description<adamant_shard> {
    static constexpr char const* name = "adamant_shard";
    static constexpr std::size_t first_bytes = 112;
    static adamant_shard defaults()
    {
        adamant_shard shard{};
        shard.param_dtype = shard.grad_dtype = shard.exp_avg_dtype = shard.exp_avg_sq_dtype = ADAMANT_FLOAT32;
        return shard;
    }
};

template <>
struct struct_description<adamant_tracked_weights> {
    static constexpr char const* name = "adamant_tracked_weights";
    static constexpr std::size_t first_bytes = 40;
    static adamant_tracked_weights defaults()
    {
        adamant_tracked_weights weights{};
        weights.dtype = ADAMANT_BFLOAT16;
        return weights;
    }
};

template <>
struct struct_description<adamant_step_item> {
    static constexpr char const* name = "adamant_step_item";
    static constexpr std::size_t first_bytes = 40;
    static adamant_step_item defaults()
    {
        adamant_step_item item{};
        item.step_number = 1;
        item.grad_scale = 1;
        return item;
    }
};

template <>
struct struct_description<adamant_sum_item> {
    static constexpr char const* name = "adamant_sum_item";
    static constexpr std::size_t first_bytes = 48;
    static adamant_sum_item defaults()
    {
        adamant_sum_item item{};
        item.sum_dtype = ADAMANT_FLOAT32;
        item.grad_dtype = ADAMANT_BFLOAT16;
        return item;
    }
};

template <>
struct struct_description<adamant_step_values> {
    static constexpr char const* name = "adamant_step_values";
    static constexpr std::size_t first_bytes = 64;
    static adamant_step_values defaults() { return {}; }
};

template <>
struct struct_description<adamant_report> {
    static constexpr char const* name = "adamant_report";
    static constexpr std::size_t first_bytes = 168;
    static adamant_report defaults() { return {}; }
};

template <>
struct struct_description<adamant_loss_scaler> {
    static constexpr char const* name = "adamant_loss_scaler";
    static constexpr std::size_t first_bytes = 24;
    static adamant_loss_scaler defaults();
};

template <>
struct struct_description<adamant_state_tensor> {
    static constexpr char const* name = "adamant_state_tensor";
    static constexpr std::size_t first_bytes = 72;
    static adamant_state_tensor defaults() { return {}; }
};

template <>
struct struct_description<adamant_split_options> {
    static constexpr char const* name = "adamant_split_options";
    static constexpr std::size_t first_bytes = 56;
    static adamant_split_options defaults()
    {
        adamant_split_options options{};
        options.ratio = 1;
        options.most_on_cpu = options.most_on_device = ADAMANT_NO_LIMIT;
        return options;
    }
};

template <>
struct struct_description<adamant_placement_summary> {
    static constexpr char const* name = "adamant_placement_summary";
    static constexpr std::size_t first_bytes = 56;
    static adamant_placement_summary defaults() { return {}; }
};

template <>
struct struct_description<adamant_step_rates> {
    static constexpr char const* name = "adamant_step_rates";
    static constexpr std::size_t first_bytes = 104;
    static adamant_step_rates defaults();
};

template <>
struct struct_description<adamant_emulation_options> {
    static constexpr char const* name = "adamant_emulation_options";
    static constexpr std::size_t first_bytes = 56;
    static adamant_emulation_options defaults();
};

template <>
struct struct_description<adamant_tuned_summary> {
    static constexpr char const* name = "adamant_tuned_summary";
    static constexpr std::size_t first_bytes = 64;
    static adamant_tuned_summary defaults() { return {}; }
};

template <>
struct struct_description<adamant_tuning_options> {
    static constexpr char const* name = "adamant_tuning_options";
    static constexpr std::size_t first_bytes = 96;
    static adamant_tuning_options defaults();
};

template <>
struct struct_description<adamant_deepspeed_offload> {
    static constexpr char const* name = "adamant_deepspeed_offload";
    static constexpr std::size_t first_bytes = 56;
    static adamant_deepspeed_offload defaults() { return {}; }
};

template <>
struct struct_description<adamant_zenflow_options> {
    static constexpr char const* name = "adamant_zenflow_options";
    static constexpr std::size_t first_bytes = 88;
    static adamant_zenflow_options defaults();
};

template <>
struct struct_description<adamant_zenflow_report> {
    static constexpr char const* name = "adamant_zenflow_report";
    static constexpr std::size_t first_bytes = 56;
    static adamant_zenflow_report defaults() { return {}; }
};

template <>
struct struct_description<adamant_zenflow_position> {
    static constexpr char const* name = "adamant_zenflow_position";
    static constexpr std::size_t first_bytes = 72;
    static adamant_zenflow_position defaults() { return {}; }
};

template <>
struct struct_description<adamant_zenflow_param> {
    static constexpr char const* name = "adamant_zenflow_param";
    static constexpr std::size_t first_bytes = 144;
    static adamant_zenflow_param defaults() { return {}; }
};

} // namespace adamant::c
