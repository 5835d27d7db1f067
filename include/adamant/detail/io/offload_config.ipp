// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/offload_config.hpp.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include <adamant/error.hpp>
#include <adamant/offload_config.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/io/number_rule.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL void validate(offload_config const& config)
{
    detail::default_mode_scope const mode;
    auto const number = [](char const* key, double value, detail::number_rule const& rule) {
        if (!rule.allows(value))
            detail::throw_invalid_argument({key, " is ", value, ", but must be ", rule.text});
    };
    validate(config.hyper);
    number("max_norm", config.max_norm, detail::at_least_zero);
    if (config.model_type == dtype::none || config.model_type > dtype::float16)
        detail::throw_invalid_argument({"model_type is not a type that a model computes in; set dtype::float32, "
                                        "dtype::bfloat16 or dtype::float16"});
    if (!detail::is_loss_scale(config.loss_scale))
        detail::throw_invalid_argument(
            {"loss_scale is ", config.loss_scale, ", but must be ", detail::loss_scale_rule});
    if (config.dynamic_loss_scaling)
        validate(*config.dynamic_loss_scaling);
    if (config.gradient_accumulation_steps && *config.gradient_accumulation_steps == 0)
        detail::throw_invalid_argument({"gradient_accumulation_steps is 0, but must be 1 or above"});
    if (config.zero_stage > 3)
        detail::throw_invalid_argument({"zero_stage is ", config.zero_stage, ", but must be from 0 to 3"});
    number("ratio", config.ratio, detail::zero_to_one);
    if (config.cpuadam_cores_perc)
        number("cpuadam_cores_perc", *config.cpuadam_cores_perc, detail::share_of_cores);
    if (config.pt_reserved_cores_perc)
        number("pt_reserved_cores_perc", *config.pt_reserved_cores_perc, detail::reserved_share);
    if (config.cpuadam_cores_perc && config.pt_reserved_cores_perc &&
        !detail::shares_agree(*config.cpuadam_cores_perc, *config.pt_reserved_cores_perc))
        detail::throw_invalid_argument({"cpuadam_cores_perc is ", *config.cpuadam_cores_perc,
                                        " and pt_reserved_cores_perc ", *config.pt_reserved_cores_perc,
                                        ", which do not add up to 1; set one of them"});
    if (config.zenflow) {
        zenflow_config const& zenflow = *config.zenflow;
        number("topk_ratio", zenflow.topk_ratio, detail::zero_to_one);
        auto const interval = [](char const* key, std::size_t steps) {
            if (steps == 0)
                detail::throw_invalid_argument({key, " is 0, but must be 1 or above"});
        };
        interval("select_interval", zenflow.select_interval);
        interval("update_interval", zenflow.update_interval.value_or(1));
    }
}

ADAMANT_DECL core_request core_request_of(offload_config const& config)
{
    validate(config);
    core_request request;
    if (config.cpuadam_cores_perc)
        request.cpuadam_cores_perc = config.cpuadam_cores_perc;
    else if (config.pt_reserved_cores_perc && *config.pt_reserved_cores_perc == 0)
        request.cpuadam_cores_perc = 1; // a request cannot reserve a share of 0
    else
        request.pt_reserved_cores_perc = config.pt_reserved_cores_perc;
    return request;
}

ADAMANT_END_NAMESPACE
