// SPDX-License-Identifier: Apache-2.0
// A job's offload options as plain data.
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

/// DeepSpeed's ZenFlow: which columns of a matrix are updated every step, and when the others are. The defaults are
/// DeepSpeed's, its "auto" among them. The share of the cores that its object has is offload_config's.
struct zenflow_config {
    /// DeepSpeed's interval for "never".
    static constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

    double topk_ratio = 0.1; ///< the share of the columns that is updated every step, in [0, 1]
    /// Steps between selections, at least 1. By epoch, and "auto" means one epoch, it is select_epochs times the steps
    /// of an epoch; `never` where the configuration does not have those. Multiply by the number of steps of an epoch.
    std::size_t select_interval = never;
    std::size_t select_epochs = 1;                   ///< 0: select_interval does not follow from epochs
    std::optional<std::size_t> update_interval = {}; ///< steps between those of the other columns; none: "auto"
    /// For "auto": DeepSpeed ends a window when in this share of the matrices, in [0, 1], the other columns' gradients
    /// outweigh those that were stepped at once. It is not the factor that zenflow_options has.
    double auto_ratio = 0.99;
    std::size_t full_warm_up_rounds = 0; ///< number of steps over all columns before ZenFlow begins
    bool overlap = false;                ///< overlap_step: step the other columns while training goes on
};

/// The defaults are DeepSpeed's, except for hyper.mode, which is unset here as everywhere.
struct offload_config {
    hyperparameters hyper; ///< hyperparameters
    bool maximize = false; ///< whether steps go up the gradient
    double max_norm = 0;   ///< gradients of a larger norm are scaled down to it; 0: not clipped

    dtype model_type = dtype::float32; ///< what the model computes in: the type of its gradients and of weight_out
    double loss_scale = 1;             ///< where it is not dynamic
    /// Options of dynamic loss scaling; absent: a static scale.
    std::optional<loss_scaling_options> dynamic_loss_scaling;

    /// The number of micro-steps whose gradients are accumulated for a step. None where it follows from the
    /// configuration's two batch sizes and the number of GPUs.
    std::optional<std::uint32_t> gradient_accumulation_steps = 1;

    std::uint32_t zero_stage = 0;                    ///< 0 to 3
    std::uint64_t sub_group_size_elems = 1000000000; ///< stage 3 steps this many params at a time; 0: each tensor alone
    bool offload = false;                            ///< whether the CPU takes steps at all
    bool pin_memory = false;                         ///< the CPU's arrays in page-locked memory
    double ratio = 1;                                ///< the share of the params that the CPU steps, in [0, 1]
    bool super_offload = false;                      ///< step while gradients still arrive
    std::optional<double> cpuadam_cores_perc = {};   ///< the optimizer's share of a rank's cores, in (0, 1]
    std::optional<double> pt_reserved_cores_perc = {}; ///< the host framework's, in [0, 1); only one of the two decides
    std::optional<zenflow_config> zenflow = {};        ///< options of ZenFlow; absent: plain steps
};

/// Throws invalid_argument naming the first impossible field. Pure; thread-safe.
void validate(offload_config const& config);

/// The part of a request for cores that is in a configuration: how cores are shared. The caller adds the ranks and the
/// rest, and gives it to select_cores(). Without either share none is set, and default_cpuadam_cores_perc holds. Throws
/// invalid_argument as validate() does. Pure; thread-safe.
[[nodiscard]] core_request core_request_of(offload_config const& config);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/io/offload_config.ipp>
#endif
