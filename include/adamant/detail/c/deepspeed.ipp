// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: DeepSpeed's configuration.
#include <adamant/adamant.h>

#include <memory>

#include <adamant/deepspeed.hpp>
#include <adamant/detail/c/convert.hpp>

struct adamant_deepspeed {
    adamant::deepspeed_config config;
    adamant_loss_scaling scaling;
};

using namespace adamant::c;

static adamant_deepspeed const& unwrap(adamant_deepspeed const* config)
{
    return needed(config, "the configuration");
}

adamant_status adamant_deepspeed_parse(const char* text, size_t bytes, adamant_deepspeed** made)
{
    return guarded([&] {
        needed(made, "made");
        auto parsed = std::make_unique<adamant_deepspeed>();
        parsed->config = adamant::parse_deepspeed_config({&needed(text, "text"), bytes});
        if (auto const& dynamic = parsed->config.options.dynamic_loss_scaling)
            parsed->scaling = to_c(*dynamic);
        *made = parsed.release();
    });
}
void adamant_deepspeed_free(adamant_deepspeed* config)
{
    delete config;
}
adamant_status adamant_deepspeed_apply(const adamant_deepspeed* config, adamant_hyperparameters* hyper,
                                       int32_t* maximize, adamant_optimizer_options* options,
                                       adamant_step_values* values, adamant_core_options* cores)
{
    return guarded([&] {
        adamant::offload_config const& c = unwrap(config).config.options;
        adamant::core_request const request = core_request_of(c);
        check_target_or_null(hyper);
        check_target_or_null(options);
        check_target_or_null(values);
        check_target_or_null(cores);
        if (hyper != nullptr)
            write(to_c(c.hyper), hyper);
        give<int32_t>(maximize, c.maximize);
        if (options != nullptr) {
            options->max_norm = c.max_norm;
            options->loss_scaling = c.dynamic_loss_scaling ? &config->scaling : nullptr;
        }
        if (values != nullptr) {
            values->has_loss_scale = !c.dynamic_loss_scaling;
            values->loss_scale = c.loss_scale;
        }
        if (cores != nullptr && (request.cpuadam_cores_perc || request.pt_reserved_cores_perc)) {
            cores->cpuadam_cores_perc = request.cpuadam_cores_perc.value_or(0);
            cores->pt_reserved_cores_perc = request.pt_reserved_cores_perc.value_or(0);
        }
    });
}
adamant_status adamant_deepspeed_offload_init(adamant_deepspeed_offload* offload, size_t struct_bytes)
{
    return init(offload, struct_bytes);
}
adamant_status adamant_deepspeed_get_offload(const adamant_deepspeed* config, adamant_deepspeed_offload* offload)
{
    return guarded([&] {
        adamant::offload_config const& c = unwrap(config).config.options;
        check_target(offload);
        adamant_deepspeed_offload result{};
        result.zero_stage = c.zero_stage;
        result.offload = c.offload;
        result.sub_group_size_elems = c.sub_group_size_elems;
        result.ratio = c.ratio;
        result.pin_memory = c.pin_memory;
        result.super_offload = c.super_offload;
        result.cpuadam_cores_perc = c.cpuadam_cores_perc.value_or(0);
        result.pt_reserved_cores_perc = c.pt_reserved_cores_perc.value_or(0);
        write(result, offload);
    });
}
adamant_status adamant_deepspeed_model(const adamant_deepspeed* config, adamant_dtype* type,
                                       uint32_t* accumulation_steps)
{
    return guarded([&] {
        adamant::offload_config const& c = unwrap(config).config.options;
        give<adamant_dtype>(type, static_cast<adamant_dtype>(c.model_type));
        give<uint32_t>(accumulation_steps, c.gradient_accumulation_steps.value_or(0));
    });
}
adamant_status adamant_deepspeed_warning(const adamant_deepspeed* config, size_t index, const char** text)
{
    return guarded([&] {
        auto const& warnings = unwrap(config).config.warnings;
        needed(text, "text") = index < warnings.size() ? warnings[index].c_str() : nullptr;
    });
}
