// SPDX-License-Identifier: Apache-2.0
// The keys of a DeepSpeed configuration that the library reads.
#pragma once

#include <string_view>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline constexpr std::string_view deepspeed_keys[] = {
    "optimizer",
    "optimizer.type",
    "optimizer.params",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "optimizer.params.eps",
    "optimizer.params.weight_decay",
    "optimizer.params.bias_correction",
    "optimizer.params.adam_w_mode",
    "optimizer.params.torch_adam",
    "optimizer.params.amsgrad",
    "optimizer.params.maximize",
    "optimizer.params.max_grad_norm",
    "gradient_clipping",
    "gradient_accumulation_steps",
    "bf16",
    "bf16.enabled",
    "bfloat16",
    "bfloat16.enabled",
    "fp16",
    "fp16.enabled",
    "fp16.loss_scale",
    "fp16.initial_scale_power",
    "fp16.loss_scale_window",
    "fp16.hysteresis",
    "fp16.consecutive_hysteresis",
    "fp16.min_loss_scale",
    "zero_optimization",
    "zero_optimization.stage",
    "zero_optimization.sub_group_size",
    "zero_optimization.cpu_offload",
    "zero_optimization.offload_optimizer",
    "zero_optimization.offload_optimizer.device",
    "zero_optimization.offload_optimizer.pin_memory",
    "zero_optimization.offload_optimizer.ratio",
    "zero_optimization.offload_optimizer.super_offload",
    "zero_optimization.offload_optimizer.cpuadam_cores_perc",
    "zero_optimization.zenflow",
    "zero_optimization.zenflow.topk_ratio",
    "zero_optimization.zenflow.select_strategy",
    "zero_optimization.zenflow.select_interval",
    "zero_optimization.zenflow.update_interval",
    "zero_optimization.zenflow.overlap_step",
    "zero_optimization.zenflow.offload",
    "zero_optimization.zenflow.auto_ratio",
    "zero_optimization.zenflow.full_warm_up_rounds",
    "zero_optimization.zenflow.pt_reserved_cores_perc",
    "zero_optimization.zenflow.steps_per_epoch",
};
// Ignored, but kept for a warning: DeepSpeed derives gradient_accumulation_steps from them.
inline constexpr std::string_view deepspeed_ignored[] = {"train_batch_size", "train_micro_batch_size_per_gpu"};

} // namespace detail
ADAMANT_END_NAMESPACE
