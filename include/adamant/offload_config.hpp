// SPDX-License-Identifier: Apache-2.0
// Offload options of a training job as plain data, with DeepSpeed's names and defaults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include <adamant/dtype.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/topology/core_request.hpp>

ADAMANT_BEGIN_NAMESPACE

/// ZenFlow options of a DeepSpeed configuration. The defaults are DeepSpeed's, including "auto".
///
/// DeepSpeed's auto_ratio has no member: it limits a share of matrices, while zenflow_options::auto_ratio compares
/// squared norms.
/// The share of the cores that DeepSpeed configures in the same JSON object is offload_config::pt_reserved_cores_perc.
struct zenflow_config {
    /// Interval that never ends.
    static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

    double topk_ratio = 0.1; ///< Share of the columns that is selected, in [0, 1].
    /// Steps between selections, at least 1.
    ///
    /// With the strategies "epoch" and "auto" (one epoch) it is select_epochs times the steps of an epoch, or `never`
    /// if the configuration does not contain that number. Callers who know the number set select_interval themselves.
    std::size_t select_interval = never;
    std::size_t select_epochs = 1; ///< Epochs between selections; 0: select_interval is given in steps.
    std::optional<std::size_t> update_interval = {}; ///< Steps between updates of the other columns; unset: "auto".
    std::size_t full_warm_up_rounds = 0;             ///< Number of initial steps that update all columns.
    bool overlap = false;                            ///< overlap_step: step the other columns while training continues.
};

/// Offload options of a training job.
///
/// The defaults are DeepSpeed's, with two exceptions: hyper.mode is unset as in hyperparameters, and
/// pt_reserved_cores_perc is unset where DeepSpeed's ZenFlow has 0.5.
struct offload_config {
    hyperparameters hyper; ///< Hyperparameters of all params.
    bool maximize = false; ///< Step up the gradient instead of down.
    double max_norm = 0;   ///< Limit of the gradient norm; 0: no clipping.

    dtype model_type = dtype::float32; ///< Compute type of the model: the type of its gradients and of weight_out.
    double loss_scale = 1;             ///< Static loss scale.
    std::optional<loss_scaling_options> dynamic_loss_scaling; ///< Dynamic loss scaling; unset: static.

    /// Micro-steps whose gradients are accumulated for a step.
    ///
    /// Unset if it follows from the configuration's two batch sizes and the number of GPUs.
    std::optional<std::uint32_t> gradient_accumulation_steps = 1;

    std::uint32_t zero_stage = 0;                    ///< ZeRO stage, 0 to 3.
    std::uint64_t sub_group_size_elems = 1000000000; ///< Params that stage 3 steps at a time; 0: each tensor alone.
    bool offload = false;                            ///< Whether the CPU takes steps.
    bool pin_memory = false;                         ///< Whether the CPU's arrays are in page-locked memory.
    double ratio = 1;                                ///< Share of the params that the CPU steps, in [0, 1].
    bool super_offload = false;                      ///< Step while gradients still arrive.
    std::optional<double> cpuadam_cores_perc = {};   ///< Optimizer's share of a rank's cores, in (0, 1].
    /// Host framework's share of a rank's cores, in [0, 1). Only one of the two shares is used.
    std::optional<double> pt_reserved_cores_perc = {};
    std::optional<zenflow_config> zenflow = {}; ///< ZenFlow options; unset: no deferred updates.
};

/// Checks a configuration. Pure; thread-safe.
/// @throws invalid_argument naming the first invalid field.
void validate(offload_config const& config);

/// Returns the part of a core request that the configuration determines: how cores are shared.
///
/// Pure; thread-safe. The caller adds the ranks and the other fields, and passes the request to select_cores(). If the
/// configuration has neither share, the request has none, and default_cpuadam_cores_perc applies.
/// @throws invalid_argument if validate() does.
[[nodiscard]] core_request core_request_of(offload_config const& config);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/io/offload_config.ipp>
#endif
