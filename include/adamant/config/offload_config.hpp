// SPDX-License-Identifier: Apache-2.0
// A training job's options for its offloaded optimizer, as plain data. deepspeed_json.hpp fills it from a file.
#pragma once

#include <cstdint>
#include <optional>

#include <adamant/core/dtype.hpp>
#include <adamant/numerics/hyperparameters.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/topology/core_request.hpp>

ADAMANT_BEGIN_NAMESPACE

// The defaults are DeepSpeed's, except for hyper.mode, which is unset here as everywhere.
struct offload_config {
    hyperparameters hyper;
    bool maximize = false; // whether steps go up the gradient
    double max_norm = 0;   // gradients of a larger norm are scaled down to it; 0: not clipped

    dtype model_type = dtype::float32; // what the model computes in: the type of its gradients and of weight_out
    double loss_scale = 1;             // where it is not dynamic
    std::optional<loss_scaling_options> dynamic_loss_scaling;

    // The number of micro-steps whose gradients are added up for a step. None where it follows from the configuration's
    // two batch sizes and the number of GPUs.
    std::optional<std::uint32_t> gradient_accumulation_steps = 1;

    std::uint32_t zero_stage = 0;                      // 0 to 3
    std::uint64_t sub_group_size_elems = 1000000000;   // stage 3 steps this many params at a time; 0: each tensor alone
    bool offload = false;                              // whether the CPU takes steps at all
    bool pin_memory = false;                           // the CPU's arrays in page-locked memory
    double ratio = 1;                                  // the share of the params that the CPU steps, in [0, 1]
    bool super_offload = false;                        // step while gradients still arrive
    std::optional<double> cpuadam_cores_perc = {};     // the optimizer's share of a rank's cores, in (0, 1]
    std::optional<double> pt_reserved_cores_perc = {}; // the host framework's, in [0, 1); only one of the two decides
};

// Throws invalid_argument naming the first impossible field. Pure; thread-safe.
void validate(offload_config const& config);

// The part of a request for cores that is in a configuration: how cores are shared. The caller adds the ranks and the
// rest, and gives it to select_cores(). Without either share none is set, and default_cpuadam_cores_perc holds. Throws
// invalid_argument as validate() does. Pure; thread-safe.
[[nodiscard]] core_request core_request_of(offload_config const& config);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/config/offload_config.ipp>
#endif
