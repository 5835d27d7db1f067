// SPDX-License-Identifier: Apache-2.0
// The C interface: DeepSpeed's configuration.
#include <cstdint>
#include <string>

#include "c_test.hpp"

TEST_CASE("C: DeepSpeed's configuration")
{
    std::string const text = R"({"optimizer": {"type": "AdamW", "params": {"lr": 0.25, "betas": [0.5, 0.75],
        "weight_decay": 0.125, "maximize": true}}, "gradient_clipping": 2, "fp16": {"enabled": true,
        "initial_scale_power": 4}, "gradient_accumulation_steps": 3, "wall_clock_breakdown": false,
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "cpuadam_cores_perc": 0.75}}})";
    adamant_deepspeed* made = nullptr;
    refused(adamant_deepspeed_parse("{", 1, &made), "JSON");
    REQUIRE(made == nullptr);
    ok(adamant_deepspeed_parse(text.data(), text.size(), &made));
    deepspeed const config(made);
    adamant_hyperparameters h = hyperparameters();
    adamant_optimizer_options o = options();
    adamant_step_values v = step_values();
    adamant_core_options c = core_options();
    std::int32_t maximize = 9;
    o.keep_last_step = 1;
    o.struct_bytes = 3;
    refused(adamant_deepspeed_apply(made, &h, &maximize, &o, &v, &c), "struct_bytes of adamant_optimizer_options");
    REQUIRE((h.lr == 1e-3 && maximize == 9));
    o.struct_bytes = sizeof o;
    ok(adamant_deepspeed_apply(made, nullptr, nullptr, nullptr, nullptr, nullptr));
    ok(adamant_deepspeed_apply(made, &h, &maximize, &o, &v, &c));
    REQUIRE((h.lr == 0.25 && h.beta1 == 0.5 && h.beta2 == 0.75 && h.weight_decay == 0.125 &&
             h.decay == ADAMANT_DECAY_DECOUPLED && h.bias_correction == 1 && maximize == 1));
    REQUIRE((o.max_norm == 2 && o.loss_scaling != nullptr && o.keep_last_step == 1));
    REQUIRE((o.loss_scaling->initial_scale == 16 && o.loss_scaling->hysteresis == 2 &&
             o.loss_scaling->growth_interval == 1000));
    REQUIRE((v.has_loss_scale == 0 && c.cpuadam_cores_perc == 0.75 && c.pt_reserved_cores_perc == 0));
    adamant_dtype type = 0;
    std::uint32_t accumulation = 0;
    ok(adamant_deepspeed_model(made, nullptr, nullptr));
    ok(adamant_deepspeed_model(made, &type, &accumulation));
    REQUIRE((type == ADAMANT_FLOAT16 && accumulation == 3));
    char const* warning = nullptr;
    ok(adamant_deepspeed_warning(made, 0, &warning));
    REQUIRE(std::string(warning).find("wall_clock_breakdown") != std::string::npos);
    ok(adamant_deepspeed_warning(made, 1, &warning));
    REQUIRE(warning == nullptr);
    model m;
    ok(adamant_set_hyperparameters(make_optimizer(m, o).get(), 0, &h));

    std::string const fixed = R"({"fp16": {"enabled": true, "loss_scale": 32}})";
    ok(adamant_deepspeed_parse(fixed.data(), fixed.size(), &made));
    deepspeed const second(made);
    ok(adamant_deepspeed_apply(made, nullptr, nullptr, &o, &v, nullptr));
    c.cpuadam_cores_perc = 0.5;
    ok(adamant_deepspeed_apply(made, nullptr, nullptr, &o, &v, &c));
    REQUIRE((o.loss_scaling == nullptr && v.has_loss_scale == 1 && v.loss_scale == 32));
    REQUIRE(c.cpuadam_cores_perc == 0.5); // of which it says nothing
    ok(adamant_deepspeed_apply(config.get(), nullptr, nullptr, nullptr, &v, nullptr));
    REQUIRE(v.has_loss_scale == 0);

    std::string const offload = R"({"zero_optimization": {"stage": 3, "sub_group_size": 1234, "offload_optimizer":
        {"device": "cpu", "ratio": 0.25, "pin_memory": true, "super_offload": true}}})";
    ok(adamant_deepspeed_parse(offload.data(), offload.size(), &made));
    deepspeed const third(made);
    adamant_deepspeed_offload to;
    refused(adamant_deepspeed_offload_init(&to, 8), "struct_bytes of adamant_deepspeed_offload is 8");
    ok(adamant_deepspeed_offload_init(&to, sizeof to));
    ok(adamant_deepspeed_get_offload(made, &to));
    REQUIRE((to.zero_stage == 3 && to.sub_group_size_elems == 1234 && to.ratio == 0.25 && to.offload == 1 &&
             to.pin_memory == 1 && to.super_offload == 1 && to.cpuadam_cores_perc == 0));
    ok(adamant_deepspeed_get_offload(config.get(), &to));
    REQUIRE((to.zero_stage == 2 && to.ratio == 1 && to.pin_memory == 0 && to.cpuadam_cores_perc == 0.75));
}
