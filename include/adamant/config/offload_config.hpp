// SPDX-License-Identifier: Apache-2.0
// What a training job is told about its offloaded optimizer, as plain data. deepspeed_json.hpp fills it from a file.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include <adamant/core/dtype.hpp>
#include <adamant/core/error.hpp>
#include <adamant/numerics/hyperparameters.hpp>
#include <adamant/step/loss_scaler.hpp>
#include <adamant/topology/core_request.hpp>

ADAMANT_BEGIN_NAMESPACE

// The defaults are those of DeepSpeed, but for hyper.mode, which is unset here as everywhere.
struct offload_config {
    hyperparameters hyper;
    bool maximize = false; // a step goes down: who wants up turns the sign of the loss
    double max_norm = 0;   // gradients of a larger norm are scaled down to it; 0: none are

    dtype model_type = dtype::float32; // what the model computes in: the type of its gradients and of weight_out
    double loss_scale = 1;             // where it is not dynamic
    std::optional<loss_scaling_options> dynamic_loss_scaling;

    // Micro-steps whose gradients are added up for a step. None where the configuration leaves it to be worked out
    // from its two batch sizes and the number of GPUs.
    std::optional<std::uint32_t> gradient_accumulation_steps = 1;

    std::uint32_t zero_stage = 0;                      // 0 to 3
    std::uint64_t sub_group_size_elems = 1000000000;   // stage 3 steps so many params at a time; 0: each tensor alone
    bool offload = false;                              // whether the CPU steps at all
    bool pin_memory = false;                           // the CPU's arrays in page-locked memory
    double ratio = 1;                                  // the share of the params that the CPU steps, in [0, 1]
    bool super_offload = false;                        // step while gradients still arrive
    std::optional<double> cpuadam_cores_perc = {};     // the optimizer's share of a rank's cores, in (0, 1]
    std::optional<double> pt_reserved_cores_perc = {}; // the host framework's, in [0, 1); only one of the two decides
};

namespace detail {

// Which numbers an option may have, and the words for it.
struct number_rule {
    double low;
    double high;
    bool low_itself;
    bool high_itself;
    char const* text;
    [[nodiscard]] bool allows(double x) const noexcept // a NaN never
    {
        return (low_itself ? x >= low : x > low) && (high_itself ? x <= high : x < high);
    }
};
inline constexpr double most_finite = std::numeric_limits<double>::max();
inline constexpr number_rule at_least_zero{0, most_finite, true, true, "a finite number, 0 or above"};
inline constexpr number_rule above_zero{0, most_finite, false, true, "a finite number above 0"};
inline constexpr number_rule zero_to_one{0, 1, true, true, "from 0 to 1"};
inline constexpr number_rule share_of_cores{0, 1, false, true, "above 0 and at most 1"};
inline constexpr number_rule reserved_share{0, 1, true, false, "0 or above and below 1"};

// Whether the two shares say the same. They are decimal fractions that need not add up to 1 to the last bit.
inline bool shares_agree(double optimizer, double host) noexcept
{
    return std::abs(optimizer + host - 1) <= 1e-6;
}

} // namespace detail

// Throws invalid_argument naming the first field that cannot be. Pure; thread-safe.
inline void check(offload_config const& config)
{
    auto const number = [](char const* key, double value, detail::number_rule const& rule) {
        if (!rule.allows(value))
            throw invalid_argument(std::string("adamant: ") + key + " is " + detail::text(value) + ", but must be " +
                                   rule.text);
    };
    check(config.hyper);
    number("max_norm", config.max_norm, detail::at_least_zero);
    if (config.model_type == dtype::none || config.model_type > dtype::float16)
        throw invalid_argument("adamant: model_type is no type that a model computes in; set dtype::float32, "
                               "dtype::bfloat16 or dtype::float16");
    if (!detail::is_loss_scale(config.loss_scale))
        throw invalid_argument("adamant: loss_scale is " + detail::text(config.loss_scale) + ", but must be " +
                               detail::loss_scale_rule);
    if (config.dynamic_loss_scaling)
        check(*config.dynamic_loss_scaling);
    if (config.gradient_accumulation_steps && *config.gradient_accumulation_steps == 0)
        throw invalid_argument("adamant: gradient_accumulation_steps is 0, but must be 1 or above");
    if (config.zero_stage > 3)
        throw invalid_argument("adamant: zero_stage is " + std::to_string(config.zero_stage) +
                               ", but must be from 0 to 3");
    number("ratio", config.ratio, detail::zero_to_one);
    if (config.cpuadam_cores_perc)
        number("cpuadam_cores_perc", *config.cpuadam_cores_perc, detail::share_of_cores);
    if (config.pt_reserved_cores_perc)
        number("pt_reserved_cores_perc", *config.pt_reserved_cores_perc, detail::reserved_share);
    if (config.cpuadam_cores_perc && config.pt_reserved_cores_perc &&
        !detail::shares_agree(*config.cpuadam_cores_perc, *config.pt_reserved_cores_perc))
        throw invalid_argument("adamant: cpuadam_cores_perc is " + detail::text(*config.cpuadam_cores_perc) +
                               " and pt_reserved_cores_perc " + detail::text(*config.pt_reserved_cores_perc) +
                               ", which do not add up to 1; set one of them");
}

// The part of a request for cores that a configuration can know: how they are shared. The caller adds the ranks and
// what else it knows, and gives it to select_cores(). Without either share none is set, and
// default_cpuadam_cores_perc holds. Throws invalid_argument as check() does. Pure; thread-safe.
[[nodiscard]] inline core_request cores(offload_config const& config)
{
    check(config);
    core_request request;
    if (config.cpuadam_cores_perc)
        request.cpuadam_cores_perc = config.cpuadam_cores_perc;
    else if (config.pt_reserved_cores_perc && *config.pt_reserved_cores_perc == 0)
        request.cpuadam_cores_perc = 1; // the request knows no share of 0
    else
        request.pt_reserved_cores_perc = config.pt_reserved_cores_perc;
    return request;
}

ADAMANT_END_NAMESPACE
