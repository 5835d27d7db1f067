// SPDX-License-Identifier: Apache-2.0
// DeepSpeed configurations: what is read, refused with which words, and warned of; and anything else that is text.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>

#include <adamant/cores.hpp>
#include <adamant/deepspeed.hpp>

#include "catch.hpp"
#include "refusal.hpp"

#if !defined(ADAMANT_FUZZ_INPUTS)
#define ADAMANT_FUZZ_INPUTS 30000
#endif

using namespace adamant;
using test::refusal;

namespace {

using strings = std::vector<std::string>;
using std::string_literals::operator""s;

std::string refusal_of(std::string const& text)
{
    return refusal([&] { return parse_deepspeed_config(text); });
}
offload_config options_of(std::string const& text)
{
    return parse_deepspeed_config(text).options;
}
strings warnings_of(std::string const& text)
{
    return parse_deepspeed_config(text).warnings;
}

void check_same(offload_config const& a, offload_config const& b)
{
    CHECK(a.hyper.lr == b.hyper.lr);
    CHECK(a.hyper.beta1 == b.hyper.beta1);
    CHECK(a.hyper.beta2 == b.hyper.beta2);
    CHECK(a.hyper.eps == b.hyper.eps);
    CHECK(a.hyper.weight_decay == b.hyper.weight_decay);
    CHECK(a.hyper.mode == b.hyper.mode);
    CHECK(a.hyper.bias_correction == b.hyper.bias_correction);
    CHECK(a.maximize == b.maximize);
    CHECK(a.max_norm == b.max_norm);
    CHECK(a.model_type == b.model_type);
    CHECK(a.loss_scale == b.loss_scale);
    REQUIRE(a.dynamic_loss_scaling.has_value() == b.dynamic_loss_scaling.has_value());
    if (a.dynamic_loss_scaling) {
        loss_scaling_options const& x = *a.dynamic_loss_scaling;
        loss_scaling_options const& y = *b.dynamic_loss_scaling;
        CHECK(x.initial_scale == y.initial_scale);
        CHECK(x.growth_factor == y.growth_factor);
        CHECK(x.backoff_factor == y.backoff_factor);
        CHECK(x.growth_interval == y.growth_interval);
        CHECK(x.hysteresis == y.hysteresis);
        CHECK(x.min_scale == y.min_scale);
        CHECK(x.max_scale == y.max_scale);
    }
    CHECK(a.gradient_accumulation_steps == b.gradient_accumulation_steps);
    CHECK(a.zero_stage == b.zero_stage);
    CHECK(a.sub_group_size_elems == b.sub_group_size_elems);
    CHECK(a.offload == b.offload);
    CHECK(a.pin_memory == b.pin_memory);
    CHECK(a.ratio == b.ratio);
    CHECK(a.super_offload == b.super_offload);
    CHECK(a.cpuadam_cores_perc == b.cpuadam_cores_perc);
    CHECK(a.pt_reserved_cores_perc == b.pt_reserved_cores_perc);
    REQUIRE(a.zenflow.has_value() == b.zenflow.has_value());
    if (a.zenflow) {
        CHECK(a.zenflow->topk_ratio == b.zenflow->topk_ratio);
        CHECK(a.zenflow->select_interval == b.zenflow->select_interval);
        CHECK(a.zenflow->select_epochs == b.zenflow->select_epochs);
        CHECK(a.zenflow->update_interval == b.zenflow->update_interval);
        CHECK(a.zenflow->full_warm_up_rounds == b.zenflow->full_warm_up_rounds);
        CHECK(a.zenflow->overlap == b.zenflow->overlap);
    }
}

struct expected_refusal {
    std::string text;
    std::string words; // after "adamant: "
};
void check_refusals(std::vector<expected_refusal> const& all)
{
    for (auto const& [text, words] : all) {
        INFO(text);
        CHECK(refusal_of(text) == "adamant: " + words);
    }
}

// {"a":{"b":value}} for the path a.b.
std::string at_path(std::string path, std::string const& value)
{
    if (path.starts_with("optimizer.params"))
        return R"({"optimizer":{"type":"Adam","params":{")" + path.substr(17) + "\":" + value + "}}}";
    std::string ends = "}";
    for (std::size_t dot = 0; (dot = path.find('.', dot)) != path.npos; ends += '}')
        path.replace(dot, 1, "\":{\"");
    return "{\"" + path + "\":" + value + ends;
}

constexpr char superoffload[] = R"({
    "train_batch_size": 64,
    "bf16": {"enabled": true, "immediate_grad_update": true},
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": true,
        "sub_group_size": 1e8,
        "offload_optimizer": {
            "device": "cpu", "pin_memory": true, "ratio": 0.9, "super_offload": true, "cpuadam_cores_perc": 0.85
        }
    },
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-6, "weight_decay": 0.1}
    },
    "wall_clock_breakdown": false
})";

constexpr char fp16_offload[] = R"({
  "train_micro_batch_size_per_gpu": 8,
  "optimizer": {"type": "adam", "params": {"lr": 0.00015, "adam_w_mode": false, "weight_decay": 1e-4,
                "bias_correction": false, "torch_adam": false, "amsgrad": false, "maximize": true}},
  "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 4,
           "consecutive_hysteresis": false, "min_loss_scale": 0.25},
  "zero_optimization": {"stage": 2, "cpu_offload": true},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto", "lr": "auto"}}
})";

constexpr char zenflow[] = R"({
  "fp16": {"enabled": true, "loss_scale": 128},
  "zero_optimization": {
    "stage": 1,
    "offload_optimizer": {"device": "CPU"},
    "zenflow": {"topk_ratio": 0.05, "select_strategy": "auto", "pt_reserved_cores_perc": 0.25, "overlap_step": true}
  }
})";

} // namespace

TEST_CASE("configurations as people write them are read")
{
    offload_config expected;
    expected.hyper = {
        .lr = 2e-5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .mode = decay_mode::decoupled};
    expected.max_norm = 1;
    expected.model_type = dtype::bfloat16;
    expected.gradient_accumulation_steps = 4;
    expected.zero_stage = 3;
    expected.sub_group_size_elems = 100000000;
    expected.offload = expected.pin_memory = expected.super_offload = true;
    expected.ratio = 0.9;
    expected.cpuadam_cores_perc = 0.85;
    check_same(options_of(superoffload), expected);
    CHECK(warnings_of(superoffload) == strings{"train_batch_size is ignored", "bf16.immediate_grad_update is ignored",
                                               "zero_optimization.overlap_comm is ignored",
                                               "wall_clock_breakdown is ignored"});

    expected = {};
    expected.hyper = {.lr = 0.00015, .weight_decay = 1e-4, .mode = decay_mode::l2, .bias_correction = false};
    expected.maximize = true;
    expected.model_type = dtype::float16;
    expected.dynamic_loss_scaling = {.initial_scale = 4096, .growth_interval = 500, .hysteresis = 4, .min_scale = 0.25};
    expected.zero_stage = 2;
    expected.offload = true;
    check_same(options_of(fp16_offload), expected);
    CHECK(warnings_of(fp16_offload) == strings{"train_micro_batch_size_per_gpu is ignored", "scheduler is ignored"});

    expected = {};
    expected.model_type = dtype::float16;
    expected.loss_scale = 128;
    expected.zero_stage = 1;
    expected.offload = true;
    expected.pt_reserved_cores_perc = 0.25;
    expected.zenflow = {.topk_ratio = 0.05, .overlap = true};
    check_same(options_of(zenflow), expected);
    CHECK(warnings_of(zenflow).empty());
}

TEST_CASE("what is not said has DeepSpeed's defaults")
{
    offload_config const plain;
    check_same(options_of("{}"), plain);
    CHECK(plain.hyper.mode == decay_mode::unset);
    CHECK(warnings_of("{}").empty());
    check_same(options_of("\xef\xbb\xbf {} \n"), plain);
    check_same(options_of(R"({"zero_optimization": {"offload_optimizer": null, "zenflow": null},
                              "fp16": {}, "bf16": {"enabled": false}})"),
               plain);
    CHECK(plain.sub_group_size_elems == 1000000000);
    CHECK(plain.ratio == 1);

    offload_config const adam = options_of(R"({"optimizer": {"type": "Adam"}})");
    CHECK(adam.hyper.lr == 1e-3);
    CHECK(adam.hyper.beta1 == 0.9);
    CHECK(adam.hyper.beta2 == 0.999);
    CHECK(adam.hyper.eps == 1e-8);
    CHECK(adam.hyper.weight_decay == 0);
    CHECK(adam.hyper.bias_correction);

    // Unlike a scaler of our own: a thousand steps, and the second overflow.
    check_same(options_of(R"({"fp16": {"enabled": true}})"), [] {
        offload_config made;
        made.model_type = dtype::float16;
        made.dynamic_loss_scaling = {
            .initial_scale = 65536, .growth_interval = 1000, .hysteresis = 2, .min_scale = 1, .max_scale = 0x1p32};
        return made;
    }());
}

TEST_CASE("the mode of the decay is explicit, as DeepSpeed means it (decay_mode)")
{
    struct known {
        char const* optimizer;
        decay_mode mode;
        double decay;
    };
    known const all[] = {
        {R"("type": "Adam")", decay_mode::decoupled, 0},
        {R"("type": "ADAMW", "params": {})", decay_mode::decoupled, 0},
        {R"("type": "adam", "params": {"adam_w_mode": true})", decay_mode::decoupled, 0},
        {R"("type": "Adam", "params": {"adam_w_mode": false})", decay_mode::l2, 0},
        {R"("params": {"adam_w_mode": false, "weight_decay": 0.5}, "type": "Adam")", decay_mode::l2, 0.5},
        {R"("type": "AdamW", "params": {"adam_w_mode": false, "weight_decay": 2})", decay_mode::decoupled, 2},
        {R"("type": "AdamW", "params": {"torch_adam": true})", decay_mode::decoupled, 0.01},
        {R"("type": "Adam", "params": {"torch_adam": true})", decay_mode::decoupled, 0.01},
        {R"("type": "Adam", "params": {"torch_adam": true, "adam_w_mode": false})", decay_mode::l2, 0},
        {R"("type": "AdamW", "params": {"torch_adam": true, "weight_decay": 0})", decay_mode::decoupled, 0},
    };
    for (auto const& [optimizer, mode, decay] : all) {
        INFO(optimizer);
        offload_config const config = options_of("{\"optimizer\": {"s + optimizer + "}}");
        CHECK(config.hyper.mode == mode);
        CHECK(config.hyper.weight_decay == decay);
    }
    CHECK(warnings_of(R"({"optimizer": {"x": 1, "type": "AdamW", "params": {"adam_w_mode": false}, "y": 1}})") ==
          strings{"optimizer.x is ignored",
                  "optimizer.params.adam_w_mode is ignored: optimizer.type is AdamW, whose decay is always "
                  "decoupled. For L2 decay set optimizer.type to Adam.",
                  "optimizer.y is ignored"});
    CHECK(warnings_of(R"({"optimizer": {"type": "AdamW", "params": {"adam_w_mode": true}}})").empty());
    CHECK(warnings_of(R"({"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}})").empty());
}

TEST_CASE("ZenFlow's intervals are those that DeepSpeed makes of them, in steps")
{
    auto const read = [](std::string const& inside) {
        offload_config const config = options_of(R"({"zero_optimization": {"zenflow": {)" + inside + "}}}");
        CHECK_FALSE(config.pt_reserved_cores_perc.has_value());
        return config.zenflow.value();
    };
    constexpr std::size_t never = zenflow_config::never;
    zenflow_config const plain = read("");
    CHECK(plain.topk_ratio == 0.1);
    CHECK(plain.select_interval == never);
    CHECK(plain.select_epochs == 1);
    CHECK_FALSE(plain.update_interval.has_value());
    CHECK(plain.full_warm_up_rounds == 0);
    CHECK_FALSE(plain.overlap);
    zenflow_config const all =
        read(R"("topk_ratio": 0.25, "select_strategy": "step", "select_interval": 16, "update_interval": 4,
                "overlap_step": true, "offload": false, "auto_ratio": 0.5, "full_warm_up_rounds": 3,
                "steps_per_epoch": 100)");
    CHECK(all.topk_ratio == 0.25);
    CHECK(all.select_interval == 16);
    CHECK(all.select_epochs == 0);
    CHECK(all.update_interval == std::size_t{4});
    CHECK(all.full_warm_up_rounds == 3);
    CHECK(all.overlap);

    struct known {
        char const* text;
        std::size_t interval;
        std::size_t epochs;
    };
    known const intervals[] = {
        {R"("select_strategy": "auto", "select_interval": "auto")", never, 1},
        {R"("steps_per_epoch": 100)", 100, 1},
        {R"("steps_per_epoch": null)", never, 1},
        {R"("select_strategy": "epoch", "select_interval": 3)", never, 3},
        {R"("select_strategy": "epoch", "select_interval": 3, "steps_per_epoch": 100)", 300, 3},
        {R"("select_strategy": "epoch", "select_interval": 4294967295, "steps_per_epoch": 4294967295)",
         18446744065119617025u, 4294967295},
        {R"("select_strategy": "epoch", "select_interval": 0, "steps_per_epoch": 100)", never, 0},
        {R"("select_strategy": "step", "select_interval": 0)", never, 0},
        {R"("select_strategy": "step", "select_interval": 1)", 1, 0},
        {R"("select_strategy": "step", "select_interval": 4, "update_interval": 4)", 4, 0},
        {R"("select_strategy": "epoch", "select_interval": 2, "update_interval": 4)", never, 2},
        {R"("update_interval": "auto", "steps_per_epoch": 1)", 1, 1},
    };
    for (auto const& [text, interval, epochs] : intervals) {
        INFO(text);
        CHECK(read(text).select_interval == interval);
        CHECK(read(text).select_epochs == epochs);
    }
    CHECK(read(R"("update_interval": 4294967295)").update_interval == std::size_t{4294967295});
    CHECK(read(R"("topk_ratio": 0)").topk_ratio == 0);
    CHECK(read(R"("topk_ratio": 1)").topk_ratio == 1);

    auto const refused = [](std::string const& inside) {
        return refusal_of(R"({"zero_optimization": {"zenflow": {)" + inside + "}}}");
    };
    std::string const at = "adamant: zero_optimization.zenflow.";
    CHECK(refused(R"("select_strategy": "steps")") ==
          at + R"(select_strategy is "steps", but must be "auto", "step" or "epoch")");
    CHECK(refused(R"("select_strategy": 1)") == at + R"(select_strategy is 1, but must be "auto", "step" or "epoch")");
    CHECK(
        refused(R"("select_interval": 4)") ==
        at +
            R"(select_interval is 4, but select_strategy is "auto", which determines it. Set select_strategy to "step" or "epoch".)");
    CHECK(refused(R"("select_strategy": "step")") ==
          at + R"(select_interval is missing, but select_strategy is "step". Set it to a whole number.)");
    CHECK(refused(R"("select_strategy": "epoch", "select_interval": "auto")") ==
          at + R"(select_interval is "auto", but select_strategy is "epoch". Set it to a whole number.)");
    CHECK(refused(R"("select_strategy": "step", "select_interval": 3, "update_interval": 4)") ==
          at + "update_interval is 4, but select_interval is 3 steps. DeepSpeed requires at least update_interval.");
    CHECK(refused(R"("steps_per_epoch": 3, "update_interval": 4)") ==
          at + "update_interval is 4, but select_interval is 3 steps. DeepSpeed requires at least update_interval.");
    CHECK(warnings_of(R"({"zero_optimization": {"zenflow": {"x": 1, "offload": true, "topk_ration": 1}}})") ==
          strings{"zero_optimization.zenflow.x is ignored",
                  "zero_optimization.zenflow.offload is ignored: the state of selected columns is "
                  "kept where they are stepped.",
                  "zero_optimization.zenflow.topk_ration is ignored: did you mean topk_ratio?"});
    // DeepSpeed's auto_ratio differs from zenflow_options::auto_ratio.
    CHECK(
        warnings_of(R"({"zero_optimization": {"zenflow": {"auto_ratio": 0.5}}})") ==
        strings{"zero_optimization.zenflow.auto_ratio is ignored: DeepSpeed compares it with a share of the matrices, "
                "but adamant ends an automatic window by squared gradient norms. Set update_interval, or "
                "auto_ratio in the options of the ZenFlow optimizer."});
    CHECK(warnings_of(R"({"zero_optimization": {"zenflow": {"update_interval": 4, "auto_ratio": 0.5}}})").empty());
}

TEST_CASE("micro-steps that the batch sizes decide are not guessed")
{
    using count = std::optional<std::uint32_t>;
    CHECK(options_of(R"({"train_batch_size": 8})").gradient_accumulation_steps == count(1));
    CHECK(options_of(R"({"train_micro_batch_size_per_gpu": 8})").gradient_accumulation_steps == count(1));
    std::string const both = R"("train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto")";
    CHECK(options_of("{" + both + "}").gradient_accumulation_steps == count());
    CHECK(options_of("{" + both + ", \"gradient_accumulation_steps\": 2.0}").gradient_accumulation_steps == count(2));
    CHECK(warnings_of("{" + both + "}") ==
          strings{"train_batch_size is ignored", "train_micro_batch_size_per_gpu is ignored"});
}

TEST_CASE("numbers are read as they are written, up to the edges of their range")
{
    auto const zero = [](std::string const& inside) { return options_of("{\"zero_optimization\": {" + inside + "}}"); };
    auto const group = [&](std::string const& n) { return zero("\"sub_group_size\": " + n).sub_group_size_elems; };
    CHECK(group("5e8") == 500000000);
    CHECK(group("1000000000000") == 1000000000000);
    CHECK(group("0") == 0);
    CHECK(group("-0") == 0);
    CHECK(group("-0.0") == 0);
    CHECK(group("9007199254740993") == 9007199254740993u); // no double has it
    CHECK(group("18446744073709551615") == 18446744073709551615u);
    CHECK(group("18446744073709549568.0") == 18446744073709549568u);
    for (int stage = 0; stage < 4; ++stage)
        CHECK(zero("\"stage\": " + std::to_string(stage)).zero_stage == static_cast<unsigned>(stage));
    auto const in_optimizer = [&](std::string const& inside) {
        return zero("\"offload_optimizer\": {" + inside + "}");
    };
    CHECK(in_optimizer(R"("ratio": 0)").ratio == 0);
    CHECK(in_optimizer(R"("ratio": 1)").ratio == 1);
    CHECK(in_optimizer(R"("cpuadam_cores_perc": 1)").cpuadam_cores_perc == 1.0);
    CHECK(zero(R"("zenflow": {"pt_reserved_cores_perc": 0})").pt_reserved_cores_perc == 0.0);
    CHECK(in_optimizer(R"("device": "cpu")").offload);
    CHECK_FALSE(in_optimizer(R"("device": "None", "pin_memory": true)").offload);
    CHECK_FALSE(in_optimizer("").offload);
    CHECK_FALSE(zero(R"("cpu_offload": false)").offload);
    CHECK(zero(R"("cpu_offload": true, "offload_optimizer": null)").offload);
    auto const fp16 = [](std::string const& inside) {
        return options_of("{\"fp16\": {\"enabled\": true, " + inside + "}}");
    };
    CHECK(fp16(R"("initial_scale_power": 0)").dynamic_loss_scaling->initial_scale == 1);
    CHECK(fp16(R"("initial_scale_power": 32)").dynamic_loss_scaling->initial_scale == 0x1p32);
    CHECK(fp16(R"("min_loss_scale": 65536)").dynamic_loss_scaling->min_scale == 65536);
    CHECK(fp16(R"("loss_scale_window": 4294967295)").dynamic_loss_scaling->growth_interval == 4294967295u);
    CHECK(fp16(R"("consecutive_hysteresis": true, "hysteresis": 1)").dynamic_loss_scaling->hysteresis == 1);
    CHECK_FALSE(fp16(R"("consecutive_hysteresis": true, "loss_scale": 2)").dynamic_loss_scaling.has_value());
    CHECK(options_of(R"({"gradient_accumulation_steps": 4294967295})").gradient_accumulation_steps == 4294967295u);
    CHECK(options_of(R"({"gradient_clipping": 0})").max_norm == 0);
    CHECK(options_of(at_path("optimizer.params.betas", "[0, 0.0]")).hyper.beta1 == 0);
    CHECK(options_of(at_path("optimizer.params.lr", "0")).hyper.lr == 0);
    // What is switched off is read, and changes nothing.
    offload_config const off = options_of(R"({"fp16": {"loss_scale": 8, "consecutive_hysteresis": true,
                                              "min_loss_scale": 1e9}, "bfloat16": {"enabled": true}})");
    CHECK(off.loss_scale == 1);
    CHECK(off.model_type == dtype::bfloat16);
    CHECK_FALSE(off.dynamic_loss_scaling.has_value());
}

TEST_CASE("a number that no float holds is refused with the path of its key")
{
    std::pair<char const*, char const*> const texts[] = {
        {"optimizer.params.lr", R"({"optimizer": {"type": "Adam", "params": {"lr": 1e39}}})"},
        {"optimizer.params.eps", R"({"optimizer": {"type": "Adam", "params": {"eps": 1e-50}}})"},
        {"optimizer.params.weight_decay", R"({"optimizer": {"type": "Adam", "params": {"weight_decay": 1e39}}})"},
        {"fp16.loss_scale", R"({"fp16": {"enabled": true, "loss_scale": 1e300}})"},
        {"fp16.min_loss_scale", R"({"fp16": {"enabled": true, "min_loss_scale": 1e-300}})"}};
    for (auto const& [path, text] : texts)
        CHECK(test::mentions(refusal_of(text), {std::string(path) + " is 1e"}));
}

TEST_CASE("a value that cannot be is an error with its path")
{
    struct rule {
        char const* path;
        char const* words;
        strings wrong; // numbers
    };
    rule const numbers[] = {
        {"optimizer.params.lr", "a finite number, 0 or above", {"-1e-300", "-1"}},
        {"optimizer.params.eps", "a finite number, 0 or above", {"-1e-8"}},
        {"optimizer.params.weight_decay", "a finite number, 0 or above", {"-0.1"}},
        {"gradient_clipping", "a finite number, 0 or above", {"-1"}},
        {"fp16.loss_scale", "a finite number, 0 or above", {"-1"}},
        {"fp16.min_loss_scale", "a finite number above 0", {"0", "-1", "0.0"}},
        {"zero_optimization.offload_optimizer.ratio", "from 0 to 1", {"1.5", "-0.1", "1.0000001"}},
        {"zero_optimization.offload_optimizer.cpuadam_cores_perc", "above 0 and at most 1", {"0", "1.1", "-1"}},
        {"zero_optimization.zenflow.pt_reserved_cores_perc", "0 or above and below 1", {"1", "-0.5", "80"}},
        {"zero_optimization.zenflow.topk_ratio", "from 0 to 1", {"1.5", "-0.1"}},
        {"zero_optimization.zenflow.auto_ratio", "from 0 to 1", {"1.5", "-0.1"}},
        {"zero_optimization.zenflow.update_interval",
         "\"auto\" or a whole number from 1 to 4294967295",
         {"0", "-1", "1.5", "4294967296"}},
        {"zero_optimization.zenflow.select_interval",
         "\"auto\" or a whole number from 0 to 4294967295",
         {"-1", "1.5", "4294967296"}},
        {"zero_optimization.zenflow.full_warm_up_rounds", "a whole number from 0 to 4294967295", {"-1", "0.5"}},
        {"gradient_accumulation_steps", "a whole number from 1 to 4294967295", {"0", "-1", "1.5", "4294967296"}},
        {"zero_optimization.stage", "a whole number from 0 to 3", {"4", "-1", "2.5", "1e3"}},
        {"zero_optimization.sub_group_size",
         "a whole number from 0 to 18446744073709551615",
         {"18446744073709551616", "-1", "0.5", "1e20", "-5e8", "99999999999999999999999999"}},
        {"fp16.initial_scale_power", "a whole number from 0 to 32", {"33", "-1", "16.5", "4294967312"}},
        {"fp16.loss_scale_window", "a whole number from 1 to 4294967295", {"0", "4294967296"}},
        {"fp16.hysteresis", "a whole number from 1 to 4294967295", {"0", "-2"}},
    };
    std::vector<expected_refusal> all;
    auto const wrong = [&](std::string const& path, std::string const& value, std::string const& shown,
                           std::string const& words) {
        all.push_back({at_path(path, value), path + " is " + shown + ", but must be " + words});
    };
    for (auto const& [path, words, values] : numbers) {
        for (std::string const& value : values)
            wrong(path, value, value, words);
        wrong(path, "\"0.5\"", "\"0.5\"", words);
        wrong(path, "true", "true", words);
        wrong(path, "null", "null", words);
        wrong(path, "[1]", "an array of 1", words);
        wrong(path, "{\"x\": 1}", "an object", words);
        for (char const* const big : {"1e999", "-1e400", "1e+309"})
            wrong(path, big, big, "a finite number");
    }
    for (char const* const path :
         {"optimizer.params.bias_correction", "optimizer.params.adam_w_mode", "optimizer.params.torch_adam",
          "optimizer.params.amsgrad", "optimizer.params.maximize", "bf16.enabled", "bfloat16.enabled", "fp16.enabled",
          "fp16.consecutive_hysteresis", "zero_optimization.cpu_offload",
          "zero_optimization.offload_optimizer.pin_memory", "zero_optimization.offload_optimizer.super_offload",
          "zero_optimization.zenflow.overlap_step", "zero_optimization.zenflow.offload"})
        for (auto const& [value, shown] : {std::pair{"1", "1"},
                                           {"\"true\"", "\"true\""},
                                           {"null", "null"},
                                           {"[]", "an array of 0"},
                                           {"{}", "an object"},
                                           {"0.0", "0.0"}})
            wrong(path, value, shown, "true or false");
    for (char const* const path : {"optimizer", "bf16", "bfloat16", "fp16", "zero_optimization",
                                   "zero_optimization.offload_optimizer", "zero_optimization.zenflow"})
        for (auto const& [value, shown] :
             {std::pair{"true", "true"}, {"[1, [2, 3], {}, 4, 5]", "an array of 5"}, {"3", "3"}, {"\"x\"", "\"x\""}})
            wrong(path, value, shown, "an object");
    for (char const* const path : {"optimizer", "optimizer.params", "bf16", "fp16", "zero_optimization"})
        all.push_back(
            {path == "optimizer.params"s ? R"({"optimizer": {"type": "Adam", "params": null}})" : at_path(path, "null"),
             path + " is null, but must be an object"s});
    for (char const* const value : {"0", "-1", "1.5", "true", "4294967296"}) // which may be null
        wrong("zero_optimization.zenflow.steps_per_epoch", value, value, "a whole number from 1 to 4294967295");
    for (auto const& [value, shown] : {std::pair{"[0.9]", "an array of 1"},
                                       {"[0.9, 0.9, 0.9]", "an array of 3"},
                                       {"0.9", "0.9"},
                                       {"[]", "an array of 0"},
                                       {"{}", "an object"}})
        wrong("optimizer.params.betas", value, shown, "an array of two numbers");
    check_refusals(all);
    std::string const beta_range = "in [0, 1), and below 1 - 2^-25, because float rounds larger values to 1";
    check_refusals({
        {at_path("optimizer.params.betas", "[1, 0.9]"), "optimizer.params.betas[0] is 1, but must be " + beta_range},
        {at_path("optimizer.params.betas", "[0.9, 0.99999999]"),
         "optimizer.params.betas[1] is 0.99999999, but must be " + beta_range},
        {at_path("optimizer.params.betas", "[0.9, -1]"), "optimizer.params.betas[1] is -1, but must be " + beta_range},
        {at_path("optimizer.params.betas", "[0.9, [1, 2]]"),
         "optimizer.params.betas[1] is an array of 0, but must be " + beta_range},
        {at_path("optimizer.params.betas", "[0.9, 1e999]"),
         "optimizer.params.betas[1] is 1e999, but must be a finite number"},
        {R"({"any": [0, {"x": [[1, 2, 1e999]]}]})", "any[1].x[0][2] is 1e999, but must be a finite number"},
        {R"({"optimizer": {}})", R"(optimizer.type is missing. Set it to "Adam" or "AdamW".)"},
        {R"({"optimizer": {"type": "Lamb"}})", R"(optimizer.type is "Lamb", but must be "Adam" or "AdamW")"},
        {R"({"optimizer": {"type": 3}})", R"(optimizer.type is 3, but must be "Adam" or "AdamW")"},
        {R"({"optimizer": {"type": ""}})", R"(optimizer.type is "", but must be "Adam" or "AdamW")"},
        {R"({"optimizer": {"type": null}})", R"(optimizer.type is null, but must be "Adam" or "AdamW")"},
        {R"({"optimizer": {"type": "\u0001\u00e9)" + std::string(60, 'x') + "\"}}",
         "optimizer.type is \"??" + std::string(38, 'x') + "...\", but must be \"Adam\" or \"AdamW\""},
        {R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})",
         "optimizer.params.amsgrad is true, but AMSGrad is not supported. Set it to false."},
        {R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}})",
         "optimizer.params.max_grad_norm is not a parameter of the optimizer. Use the top-level key "
         "gradient_clipping instead."},
        {R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})",
         "bf16.enabled and fp16.enabled are both true, but a model computes in one type. Keep one of them."},
        {R"({"fp16": {"enabled": true}, "bfloat16": {"enabled": true}})",
         "bfloat16.enabled and fp16.enabled are both true, but a model computes in one type. Keep one of them."},
        {R"({"bf16": {}, "bfloat16": {}})", "bf16 and bfloat16 are two names of one object. Keep bf16."},
        {R"({"fp16": {"enabled": true, "consecutive_hysteresis": true}})",
         "fp16.consecutive_hysteresis is true, but adamant refills hysteresis only when the scale grows. Set it to "
         "false, or fp16.hysteresis to 1."},
        {R"({"fp16": {"enabled": true, "initial_scale_power": 3, "min_loss_scale": 8.5}})",
         "fp16.min_loss_scale is 8.5, but the first scale is 8, which is 2 to the power of fp16.initial_scale_power "
         "(3). Lower fp16.min_loss_scale or raise fp16.initial_scale_power."},
        {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})",
         "zero_optimization.offload_optimizer.device is \"nvme\", but adamant keeps the optimizer's state in memory. "
         "Set it to \"cpu\"."},
        {R"({"zero_optimization": {"offload_optimizer": {"device": "gpu"}}})",
         R"(zero_optimization.offload_optimizer.device is "gpu", but must be "cpu" or "none")"},
        {R"({"zero_optimization": {"offload_optimizer": {"device": null}}})",
         R"(zero_optimization.offload_optimizer.device is null, but must be "cpu" or "none")"},
        {R"({"zero_optimization": {"cpu_offload": false, "offload_optimizer": {}}})",
         "zero_optimization.cpu_offload is the old form of zero_optimization.offload_optimizer, which is also set. "
         "Keep the new one."},
        {R"({"zero_optimization": {"offload_optimizer": {"cpuadam_cores_perc": 0.8},
                                   "zenflow": {"pt_reserved_cores_perc": 0.3}}})",
         "zero_optimization.offload_optimizer.cpuadam_cores_perc is 0.8 and "
         "zero_optimization.zenflow.pt_reserved_cores_perc is 0.3, which do not add up to 1; keep one of them"},
        {"[]", "the DeepSpeed configuration is an array, but must be an object"},
        {"3", "the DeepSpeed configuration is 3, but must be an object"},
        {"\"auto\"", "the DeepSpeed configuration is \"auto\", but must be an object"},
        {"1e999", "the DeepSpeed configuration is 1e999, but must be a finite number"},
    });
}

TEST_CASE("auto is a placeholder that somebody has to fill in")
{
    for (char const* const path :
         {"optimizer", "optimizer.params.lr", "optimizer.params.betas", "optimizer.params.bias_correction",
          "optimizer.params.weight_decay", "gradient_clipping", "gradient_accumulation_steps", "bf16.enabled",
          "fp16.enabled", "fp16.loss_scale", "zero_optimization", "zero_optimization.stage",
          "zero_optimization.sub_group_size", "zero_optimization.offload_optimizer",
          "zero_optimization.offload_optimizer.device", "zero_optimization.offload_optimizer.ratio",
          "zero_optimization.zenflow.pt_reserved_cores_perc", "zero_optimization.zenflow.topk_ratio",
          "zero_optimization.zenflow.steps_per_epoch"}) {
        INFO(path);
        CHECK(refusal_of(at_path(path, "\"auto\"")) ==
              "adamant: "s + path +
                  " is \"auto\", which the Hugging Face integration replaces before DeepSpeed sees it. Replace it with "
                  "a value.");
    }
    CHECK(refusal_of(R"({"optimizer": {"type": "auto"}})") ==
          "adamant: optimizer.type is \"auto\", which the Hugging Face integration replaces before DeepSpeed sees it. "
          "Replace it with a value.");
}

TEST_CASE("a key that means nothing is warned of once, with what may have been meant")
{
    CHECK(warnings_of(R"({"zz": [{"a": 1}, {"a": 1}], "optimizer": {"params": {"LR": 1, "beta1": 0.9, "beta2": 0.9,
          "ep": 1, "adamw_mode": true, "fused": true, "xy": {"lr": 2}}, "type": "Adam", "tpye": 1}, "amp": {"enabled": 1},
          "zero_optimization": {"offload_optimizer": {"ratoi": 0.5, "cpuadam_core_perc": 1, "devices": 1, "dev": 1,
          "pin_memroy": 1, "nvme_path": "/x"}, "stge": 2, "stack": 2, "offload_param": {"device": "cpu"}, "ratio": 1},
          "fp16": {"loss_scale_windows": 1, "fused_mode": true}, "bfloat16": {"enable": false}, "bf61": {}, "f16": 1,
          "train_batch_size": 1, "gradient_cliping": 1, "": 0, "a.b": 1})") ==
          strings{"zz is ignored",
                  "optimizer.params.LR is ignored: did you mean lr?",
                  "optimizer.params.beta1 is ignored: did you mean betas?",
                  "optimizer.params.beta2 is ignored: did you mean betas?",
                  "optimizer.params.ep is ignored: did you mean eps?",
                  "optimizer.params.adamw_mode is ignored: did you mean adam_w_mode?",
                  "optimizer.params.fused is ignored",
                  "optimizer.params.xy is ignored",
                  "optimizer.tpye is ignored: did you mean type?",
                  "amp is ignored",
                  "zero_optimization.offload_optimizer.ratoi is ignored: did you mean ratio?",
                  "zero_optimization.offload_optimizer.cpuadam_core_perc is ignored: did you mean "
                  "cpuadam_cores_perc?",
                  "zero_optimization.offload_optimizer.devices is ignored: did you mean device?",
                  "zero_optimization.offload_optimizer.dev is ignored",
                  "zero_optimization.offload_optimizer.pin_memroy is ignored: did you mean pin_memory?",
                  "zero_optimization.offload_optimizer.nvme_path is ignored",
                  "zero_optimization.stge is ignored: did you mean stage?",
                  "zero_optimization.stack is ignored", // two letters of five are too many
                  "zero_optimization.offload_param is ignored",
                  "zero_optimization.ratio is ignored",
                  "fp16.loss_scale_windows is ignored: did you mean loss_scale_window?",
                  "fp16.fused_mode is ignored",
                  "bfloat16.enable is ignored: did you mean enabled?",
                  "bf61 is ignored: did you mean bf16?",
                  "f16 is ignored: did you mean bf16?", // the first of two
                  "train_batch_size is ignored",
                  "gradient_cliping is ignored: did you mean gradient_clipping?",
                  "\"\" is ignored",
                  "\"a.b\" is ignored"});
    CHECK(warnings_of("{\"\\u0000\\n\xc3\xa9" + std::string(100, 'k') + "\": 1}") ==
          strings{"???" + std::string(57, 'k') + "... is ignored"});
    // A key that looks like a path is none.
    std::string const path =
        R"({"zero_optimization": {"stage": 1}, "zero_optimization.stage": 2, "train_batch_size.x": 1,
                                 "optimizer": {"type": "Adam", "params.lr": -1}})";
    CHECK(options_of(path).zero_stage == 1);
    CHECK(warnings_of(path) == strings{"\"zero_optimization.stage\" is ignored", "\"train_batch_size.x\" is ignored",
                                       "optimizer.\"params.lr\" is ignored"});
    using detail::typing_errors;
    CHECK(typing_errors("", "") == 0);
    CHECK(typing_errors("abc", "") == 3);
    CHECK(typing_errors("", "ab") == 2);
    CHECK(typing_errors("ratio", "ratio") == 0);
    CHECK(typing_errors("kitten", "sitting") == 3);
    CHECK(typing_errors("ab", "ba") == 1);
    CHECK(typing_errors("abcd", "badc") == 2);
}

TEST_CASE("a key that is there twice is an error")
{
    check_refusals({
        {R"({"fp16": {}, "bf16": {}, "fp16": {}})", "fp16 appears twice; keep one of them"},
        {R"({"optimizer": {"params": {"lr": 1, "eps": 1, "lr": 1}}})",
         "optimizer.params.lr appears twice; keep one of them"},
        {R"({"x": [1, {"y": 1}, {"y": [[], {"z": 1, "z": 2}]}]})", "x[2].y[1].z appears twice; keep one of them"},
        {R"({"l\u0072": 1, "lr": 1})", "lr appears twice; keep one of them"}, // the same letters, written otherwise
        {R"({"": 1, "": 2})", "\"\" appears twice; keep one of them"},
    });
    CHECK(refusal_of(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 1}]})") == "no exception");
}

TEST_CASE("an error of syntax says where it is and what is wrong")
{
    struct known {
        std::string text;
        std::string words; // after "is not JSON "
    };
    std::string const no_value =
        " is not a value of JSON, which has numbers like -1.5e3, texts in double quotes, true, "
        "false and null";
    known const all[] = {
        {"", "in line 1, column 1: it is empty\n  \n  ^"},
        {" \n ", "in line 2, column 2: it is empty\n   \n   ^"},
        {"{", "in line 1, column 2: it ends before all brackets are closed\n  {\n   ^"},
        {"{\"a\": [1,\n 2", "in line 2, column 3: it ends before all brackets are closed\n   2\n    ^"},
        {"{\"a\": \"bc", "in line 1, column 7: this text has no closing quote\n  {\"a\": \"bc\n        ^"},
        {"{\n  // lr\n}", "in line 2, column 3: JSON has no comments; take it out\n    // lr\n    ^"},
        {"{\"a\": 1 /* x */}",
         "in line 1, column 9: JSON has no comments; take it out\n  {\"a\": 1 /* x */}\n          ^"},
        {"{\"a\": 1 # x\n}", "in line 1, column 9: JSON has no comments; take it out\n  {\"a\": 1 # x\n          ^"},
        {"{\"a\": 1,\n}",
         "in line 1, column 8: JSON has no comma after the last of a list; take it out\n  {\"a\": 1,\n         ^"},
        {"{\"a\": [1, ]}",
         "in line 1, column 9: JSON has no comma after the last of a list; take it out\n  {\"a\": [1, ]}\n          ^"},
        {"{\n\t'a': 1}", "in line 2, column 2: texts must be in double quotes\n  ?'a': 1}\n   ^"},
        {"{\"a\": True}", "in line 1, column 7: \"True\"" + no_value + "\n  {\"a\": True}\n        ^"},
        {"{\"a\": nul}", "in line 1, column 7: \"nul\"" + no_value + "\n  {\"a\": nul}\n        ^"},
        {"{\"a\": -Infinity}", "in line 1, column 7: \"-Infinity\"" + no_value + "\n  {\"a\": -Infinity}\n        ^"},
        {"{\"a\": NaN}", "in line 1, column 7: \"NaN\"" + no_value + "\n  {\"a\": NaN}\n        ^"},
        {"{\"a\": 01}", "in line 1, column 7: \"01\"" + no_value + "\n  {\"a\": 01}\n        ^"},
        {"{\"a\": 1.}", "in line 1, column 7: \"1.\"" + no_value + "\n  {\"a\": 1.}\n        ^"},
        {"{\"a\": .5}", "in line 1, column 7: \".5\"" + no_value + "\n  {\"a\": .5}\n        ^"},
        {"{\"a\": +1}", "in line 1, column 7: \"+1\"" + no_value + "\n  {\"a\": +1}\n        ^"},
        {"{lr: 1}", "in line 1, column 2: \"lr\"" + no_value + "\n  {lr: 1}\n   ^"},
        {"{\"a\": 1 25}", "in line 1, column 9: unexpected value\n  {\"a\": 1 25}\n          ^"},
        {"{\"a\" true}", "in line 1, column 6: unexpected value\n  {\"a\" true}\n       ^"},
        {"{\"a\": \"b\" \"cd\"}",
         "in line 1, column 11: unexpected text in quotes\n  {\"a\": \"b\" \"cd\"}\n            ^"},
        {"{\"a\": 1}}", "in line 1, column 9: this character does not belong here\n  {\"a\": 1}}\n          ^"},
        {"{\"a\": 1]", "in line 1, column 8: this character does not belong here\n  {\"a\": 1]\n         ^"},
        {"{\"a\", 1}", "in line 1, column 5: this character does not belong here\n  {\"a\", 1}\n      ^"},
        {"{,}", "in line 1, column 2: this character does not belong here\n  {,}\n   ^"},
        {"]", "in line 1, column 1: this character does not belong here\n  ]\n  ^"},
        {"{} x", "in line 1, column 4: \"x\"" + no_value + "\n  {} x\n     ^"},
        {"{\"a\": \"x\\q\"}", "in line 1, column 10: JSON has no such escape\n  {\"a\": \"x\\q\"}\n           ^"},
        {"{\"a\": \"\\u12\"}", "in line 1, column 12: JSON has no such escape\n  {\"a\": \"\\u12\"}\n             ^"},
        {"{\"a\": \"x y\n\"}",
         "in line 1, column 11: a line ends or a control character stands inside a text: close it, "
         "or write an escape\n  {\"a\": \"x y\n            ^"},
        {"{\"a\": \"\xc3\xa9\xff\"}", "in line 1, column 9: bytes that are not UTF-8\n  {\"a\": \"??\"}\n          ^"},
        {"{\"a\": \"\xc3x\"}", "in line 1, column 9: bytes that are not UTF-8\n  {\"a\": \"?x\"}\n          ^"},
        {"{\"\xc3\xa9\": \xe2\x80\x9c}",
         "in line 1, column 7: this character does not belong here\n  {\"?\": ?}\n        ^"},
        {"\xef\xbb\xbf{,}", "in line 1, column 2: this character does not belong here\n  {,}\n   ^"},
        {"{}\0"s, "in line 1, column 3: a byte that is 0\n  {}?\n    ^"},
        {"{\"a\": \"\0\"}"s, "in line 1, column 8: a byte that is 0\n  {\"a\": \"?\"}\n         ^"},
        {"{\"a\": \"\\\"\\\\\", x}",
         "in line 1, column 15: \"x\"" + no_value + "\n  {\"a\": \"\\\"\\\\\", x}\n                ^"},
        {"{\"" + std::string(200, 'k') + "\": x" + std::string(200, ' ') + "}",
         "in line 1, column 206: \"x\"" + no_value + "\n  " + std::string(57, 'k') + "\": x" + std::string(39, ' ') +
             "...\n  " + std::string(60, ' ') + "^"},
    };
    for (auto const& [text, words] : all) {
        INFO(text);
        CHECK(refusal_of(text) == "adamant: the DeepSpeed configuration is not JSON " + words);
    }
}

TEST_CASE("texts that mean harm are read or refused like any other", "[fuzz]")
{
    auto const repeat = [](std::string const& part, std::size_t times) {
        std::string all;
        for (std::size_t i = 0; i < times; ++i)
            all += part;
        return all;
    };
    auto const nested = [&](std::size_t depth) {
        return "{\"a\":" + repeat("[", depth - 1) + repeat("]", depth - 1) + "}";
    };
    CHECK(refusal_of(nested(64)) == "no exception");
    CHECK(refusal_of(nested(65)) ==
          "adamant: the DeepSpeed configuration is nested more than 64 levels deep, at a" + repeat("[0]", 33) + "...");
    CHECK(refusal_of("{\"a\":" + std::string(4000000, '[')).find("nested more than 64 levels") != std::string::npos);
    CHECK(refusal_of(repeat("{\"a\":", 1000000)).find("nested more than 64 levels") != std::string::npos);
    CHECK(refusal_of(std::string(4000000, '[')) ==
          "adamant: the DeepSpeed configuration is an array, but must be an object");

    constexpr std::size_t most = std::size_t{16} << 20;
    CHECK(refusal_of("{}" + std::string(most - 2, ' ')) == "no exception");
    CHECK(refusal_of("{}" + std::string(most - 1, ' ')) ==
          "adamant: the DeepSpeed configuration has more than 16777216 bytes, the most that is read");
    CHECK(refusal_of("{\"" + std::string(1000000, 'a') + "\":{\"b\":1,\"b\":1}}") ==
          "adamant: " + std::string(60, 'a') + "....b appears twice; keep one of them");
    CHECK(refusal_of(at_path("optimizer.params.lr", std::string(100000, '9'))) ==
          "adamant: optimizer.params.lr is " + std::string(40, '9') + "..., but must be a finite number");
    CHECK(refusal_of(at_path("zero_optimization.stage", std::string(300, '9'))) ==
          "adamant: zero_optimization.stage is " + std::string(40, '9') +
              "..., but must be a whole number from 0 to 3");
    CHECK(refusal_of(at_path("optimizer.params.betas", "[" + repeat("0,", 1000000) + "0]")) ==
          "adamant: optimizer.params.betas is an array of 1000001, but must be an array of two numbers");

    std::string many = "{";
    for (int i = 0; i < 200000; ++i)
        many += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
    many.back() = '}';
    strings const warnings = warnings_of(many);
    REQUIRE(warnings.size() == 101);
    CHECK(warnings[99] == "key99 is ignored");
    CHECK(warnings[100] == "199900 more keys are ignored");
    strings const hundred = warnings_of(many.substr(0, many.find(",\"key100")) + "}");
    CHECK(hundred.size() == 100);
}

TEST_CASE("the plain options are checked without JSON")
{
    offload_config good = options_of(superoffload);
    CHECK_NOTHROW(validate(good));
    CHECK_NOTHROW(validate(offload_config{}));
    double const nan = std::numeric_limits<double>::quiet_NaN();
    double const inf = std::numeric_limits<double>::infinity();
    auto const wrong = [&](auto change) {
        offload_config config;
        change(config);
        return refusal([&] { return validate(config), 0; });
    };
    using config = offload_config&;
    CHECK(wrong([](config c) { c.hyper.lr = -1; }) == "adamant: lr is -1, but must be a finite number, 0 or above");
    CHECK(wrong([&](config c) { c.max_norm = nan; }) ==
          "adamant: max_norm is nan, but must be a finite number, 0 or above");
    CHECK(wrong([&](config c) { c.max_norm = inf; }) ==
          "adamant: max_norm is inf, but must be a finite number, 0 or above");
    CHECK(wrong([](config c) { c.model_type = dtype::none; }) ==
          "adamant: model_type is not a type that a model computes in; set dtype::float32, dtype::bfloat16 or "
          "dtype::float16");
    CHECK(wrong([](config c) { c.model_type = static_cast<dtype>(4); }) != "no exception");
    CHECK(wrong([](config c) { c.loss_scale = 0; }) ==
          "adamant: loss_scale is 0, but must be from 2.4e-38 to 4.2e37, so that float holds its inverse");
    CHECK(wrong([](config c) { c.dynamic_loss_scaling = {.hysteresis = 0}; }) ==
          "adamant: hysteresis is 0, but must be 1 or above");
    CHECK(wrong([](config c) { c.gradient_accumulation_steps = 0; }) ==
          "adamant: gradient_accumulation_steps is 0, but must be 1 or above");
    CHECK(wrong([](config c) { c.gradient_accumulation_steps.reset(); }) == "no exception");
    CHECK(wrong([](config c) { c.zero_stage = 4; }) == "adamant: zero_stage is 4, but must be from 0 to 3");
    CHECK(wrong([&](config c) { c.ratio = nan; }) == "adamant: ratio is nan, but must be from 0 to 1");
    CHECK(wrong([](config c) { c.cpuadam_cores_perc = 0; }) ==
          "adamant: cpuadam_cores_perc is 0, but must be above 0 and at most 1");
    CHECK(wrong([](config c) { c.pt_reserved_cores_perc = 1; }) ==
          "adamant: pt_reserved_cores_perc is 1, but must be 0 or above and below 1");
    CHECK(wrong([](config c) { c.cpuadam_cores_perc = 0.5, c.pt_reserved_cores_perc = 0.4; }) ==
          "adamant: cpuadam_cores_perc is 0.5 and pt_reserved_cores_perc 0.4, which do not add up to 1; set one of "
          "them");
    auto const wrong_zenflow = [&](zenflow_config const& of) { return wrong([&](config c) { c.zenflow = of; }); };
    CHECK(wrong_zenflow({}) == "no exception");
    CHECK(wrong_zenflow({.topk_ratio = nan}) == "adamant: topk_ratio is nan, but must be from 0 to 1");
    CHECK(wrong_zenflow({.select_interval = 0}) == "adamant: select_interval is 0, but must be 1 or above");
    CHECK(wrong_zenflow({.update_interval = 0}) == "adamant: update_interval is 0, but must be 1 or above");
    CHECK(wrong([](config c) { c.cpuadam_cores_perc = 0.3333333, c.pt_reserved_cores_perc = 0.6666666; }) ==
          "no exception");
    CHECK(wrong([](config c) { c.cpuadam_cores_perc = 0.9, c.pt_reserved_cores_perc = 0.1; }) == "no exception");
}

TEST_CASE("a configuration asks for its share of the cores")
{
    machine eight;
    for (unsigned pu = 0; pu < 8; ++pu)
        eight.cores.push_back({.pus = {pu}});
    eight.packages = {{index_set::range(0, 7)}};
    eight.nodes = {{.os_index = 0, .bytes = 0, .pus = index_set::range(0, 7)}};
    eight.allowed = eight.pus();
    auto const pus = [&](std::optional<double> optimizer, std::optional<double> host) {
        offload_config config;
        config.cpuadam_cores_perc = optimizer;
        config.pt_reserved_cores_perc = host;
        return select_cores(eight, core_request_of(config))[0].adam_pus.size();
    };
    CHECK(pus({}, {}) == 6);
    CHECK(pus(0.5, {}) == 4);
    CHECK(pus({}, 0.5) == 4);
    CHECK(pus({}, 0.75) == 2);
    CHECK(pus(0.25, 0.75) == 2);
    CHECK(pus(1, {}) == 7); // the host keeps one
    CHECK(pus({}, 0) == 7);
    CHECK(pus(1, 0) == 7);
    offload_config contradiction;
    contradiction.cpuadam_cores_perc = contradiction.pt_reserved_cores_perc = 0.75;
    CHECK_THROWS_AS(core_request_of(contradiction), invalid_argument);
    CHECK_FALSE(core_request_of({}).cpuadam_cores_perc.has_value());
    CHECK_FALSE(core_request_of({}).pt_reserved_cores_perc.has_value());
}

TEST_CASE("a configuration is read from a file, whose name is in the errors")
{
    namespace fs = std::filesystem;
    fs::path const folder = fs::temp_directory_path() / ("adamant_deepspeed_" + std::to_string(::getpid()));
    fs::create_directory(folder);
    std::string const path = (folder / "ds_config.json").string();
    auto const write = [&](std::string const& text) { std::ofstream(path, std::ios::binary) << text; };
    auto const read = [&] { return read_deepspeed_config(path); };
    write(superoffload);
    check_same(read().options, options_of(superoffload));
    CHECK(read().warnings == warnings_of(superoffload));
    write(R"({"gradient_clipping": -1})");
    CHECK(refusal(read) == "adamant: " + path + ": gradient_clipping is -1, but must be a finite number, 0 or above");
    write("{");
    CHECK(refusal(read) == "adamant: " + path +
                               ": the DeepSpeed configuration is not JSON in line 1, column 2: it ends before all "
                               "brackets are closed\n  {\n   ^");
    write("");
    CHECK(refusal(read).find("it is empty") != std::string::npos);
    write("{}" + std::string((std::size_t{16} << 20) - 2, ' '));
    CHECK(refusal(read) == "no exception");
    write("{}" + std::string((std::size_t{16} << 20) - 1, ' '));
    CHECK(refusal(read).find("has more than 16777216 bytes") != std::string::npos);
    fs::remove(path);
    CHECK(refusal<unavailable>(read) ==
          "adamant: cannot read the DeepSpeed configuration \"" + path + "\": No such file or directory");
    CHECK(refusal<unavailable>([&] { return read_deepspeed_config(folder.string()); }) ==
          "adamant: cannot read the DeepSpeed configuration \"" + folder.string() + "\": Is a directory");
    CHECK(refusal([&] { return read_deepspeed_config("/dev/zero"); }).find("has more than") != std::string::npos);
    fs::remove_all(folder);
}

namespace {

// A configuration, and the text of it.
struct written {
    std::string text;
    offload_config meaning;
};

class writer {
public:
    explicit writer(std::uint64_t seed) : random_(seed) {}

    written some_config()
    {
        offload_config c;
        strings top, zero;
        if (maybe()) {
            strings params;
            bool const adamw = maybe();
            bool w_mode = true;
            bool torch = false;
            number(params, "lr", c.hyper.lr, 10);
            number(params, "eps", c.hyper.eps, 1);
            flag(params, "bias_correction", c.hyper.bias_correction);
            flag(params, "adam_w_mode", w_mode);
            flag(params, "torch_adam", torch);
            flag(params, "maximize", c.maximize);
            c.hyper.mode = adamw || w_mode ? decay_mode::decoupled : decay_mode::l2;
            c.hyper.weight_decay = torch && c.hyper.mode == decay_mode::decoupled ? 0.01 : 0;
            number(params, "weight_decay", c.hyper.weight_decay, 1);
            if (maybe()) {
                c.hyper.beta1 = unit();
                c.hyper.beta2 = unit();
                params.push_back("\"betas\":" + space() + "[" + decimal(c.hyper.beta1) + "," + space() +
                                 decimal(c.hyper.beta2) + "]");
            }
            strings optimizer{std::string("\"type\":\"") + (adamw ? "AdamW\"" : "aDAM\"")};
            if (!params.empty() || maybe())
                optimizer.push_back("\"params\":" + object(params));
            else
                c.hyper.weight_decay = 0;
            top.push_back("\"optimizer\":" + object(optimizer));
        }
        number(top, "gradient_clipping", c.max_norm, 100);
        if (maybe())
            top.push_back("\"gradient_accumulation_steps\":" +
                          std::to_string(*(c.gradient_accumulation_steps = some_count(1000))));
        if (bool const bf16 = maybe(), fp16 = !bf16 && maybe(); bf16 || fp16 || maybe()) {
            strings scaling;
            loss_scaling_options dynamic{.growth_interval = 1000, .hysteresis = 2};
            double fixed = 0;
            if (maybe()) {
                std::size_t const power = random_.below(33);
                dynamic.initial_scale = std::ldexp(1.0, static_cast<int>(power));
                scaling.push_back("\"initial_scale_power\":" + std::to_string(power));
            }
            if (maybe())
                scaling.push_back("\"hysteresis\":" + std::to_string(dynamic.hysteresis = some_count(9)));
            if (maybe())
                scaling.push_back("\"loss_scale_window\":" +
                                  std::to_string(dynamic.growth_interval = some_count(5000)));
            if (maybe())
                scaling.push_back("\"loss_scale\":" + decimal(fixed = static_cast<double>(random_.below(3) * 512)));
            scaling.push_back(std::string("\"enabled\":") + (fp16 ? "true" : "false"));
            top.push_back("\"fp16\":" + object(scaling));
            top.push_back(std::string(maybe() ? "\"bf16\"" : "\"bfloat16\"") +
                          ":{\"enabled\":" + (bf16 ? "true}" : "false}"));
            c.model_type = bf16 ? dtype::bfloat16 : fp16 ? dtype::float16 : dtype::float32;
            if (fp16 && fixed == 0)
                c.dynamic_loss_scaling = dynamic;
            else if (fp16)
                c.loss_scale = fixed;
        }
        if (maybe())
            zero.push_back("\"stage\":" + std::to_string(c.zero_stage = static_cast<std::uint32_t>(random_.below(4))));
        if (maybe())
            zero.push_back("\"sub_group_size\":" +
                           std::to_string(c.sub_group_size_elems = random_() >> random_.below(64)));
        if (maybe()) {
            strings offload;
            if (maybe())
                offload.push_back(std::string("\"device\":\"") + ((c.offload = maybe()) ? "cpu\"" : "none\""));
            flag(offload, "pin_memory", c.pin_memory);
            flag(offload, "super_offload", c.super_offload);
            number(offload, "ratio", c.ratio, 1);
            if (maybe())
                offload.push_back("\"cpuadam_cores_perc\":" + decimal(*(c.cpuadam_cores_perc = 1 - unit())));
            zero.push_back("\"offload_optimizer\":" + object(offload));
        }
        if (maybe())
            zero.push_back("\"zenflow\":" + some_zenflow(c));
        if (!zero.empty())
            top.push_back("\"zero_optimization\":" + object(zero));
        if (maybe())
            top.push_back("\"scheduler\":{\"type\":[\"auto\",null,{\"lr\":-1}]}");
        return {space() + object(top) + space(), c};
    }

    std::string some_zenflow(offload_config& c)
    {
        strings members;
        zenflow_config& z = c.zenflow.emplace();
        number(members, "topk_ratio", z.topk_ratio, 1);
        double ignored_ratio = 0;
        number(members, "auto_ratio", ignored_ratio, 1);
        flag(members, "overlap_step", z.overlap);
        if (maybe() && !c.cpuadam_cores_perc)
            members.push_back("\"pt_reserved_cores_perc\":" + decimal(*(c.pt_reserved_cores_perc = unit())));
        if (maybe())
            members.push_back("\"full_warm_up_rounds\":" + std::to_string(z.full_warm_up_rounds = random_.below(99)));
        if (maybe()) {
            bool const by_step = maybe();
            std::size_t const interval = some_count(100);
            z.select_epochs = by_step ? 0 : interval;
            z.select_interval = by_step ? interval : zenflow_config::never;
            members.push_back(std::string("\"select_strategy\":\"") + (by_step ? "step\"" : "epoch\""));
            members.push_back("\"select_interval\":" + std::to_string(interval));
        }
        if (std::size_t const epoch = some_count(100); z.select_epochs != 0 && maybe()) {
            z.select_interval = z.select_epochs * epoch;
            members.push_back("\"steps_per_epoch\":" + std::to_string(epoch));
        }
        if (maybe())
            members.push_back(
                "\"update_interval\":" +
                std::to_string(*(z.update_interval = some_count(std::min<std::size_t>(z.select_interval, 64)))));
        else
            members.emplace_back("\"update_interval\":\"auto\"");
        return object(members);
    }

    // Another text, which may be anything.
    std::string some_mutant(std::string text)
    {
        static constexpr char bytes[] = "{}[]:,\"\\/-+.eE0123456789 \n\ttrufalsn\0\x01\x7f\x80\xc3\xa9\xff";
        static char const* const parts[] = {"1e999",  "-1",           "0",        "1.5",      "true",
                                            "null",   "\"auto\"",     "{}",       "[]",       "\"lr\":0",
                                            "[0,1]",  "1e20",         "\"nvme\"", "\"x\":1,", "18446744073709551616",
                                            "// x\n", "\"\\ud800\"",  "NaN",      "\"cpu\"",  "-0.0",
                                            "5e-324", "\xed\xa0\x80", "\\u0000",  "[[[[[[[[", "\"ratoi\":1,"};
        switch (random_.below(16)) {
        case 0: // bytes
            text.resize(random_.below(40));
            for (char& c : text)
                c = static_cast<char>(random_());
            return text;
        case 1: text.resize(random_.below(text.size() + 1)); return text;
        default: break;
        }
        for (std::size_t n = 1 + random_.below(3); n > 0; --n) {
            std::size_t const at = random_.below(text.size() + 1);
            switch (random_.below(8)) {
            case 0: text.erase(at, 1); break;
            case 1: text.insert(at, 1, bytes[random_.below(sizeof bytes - 1)]); break;
            case 2: text.insert(at, text.substr(random_.below(text.size() + 1), random_.below(60))); break;
            case 3: text.erase(at, random_.below(12)); break;
            case 4: text.insert(at, parts[random_.below(std::size(parts))]); break;
            case 5:
                if (at < text.size())
                    text[at] = bytes[random_.below(sizeof bytes - 1)];
                break;
            default: // another value for a key
                if (std::size_t const colon = text.find(':', at); colon != text.npos)
                    text.replace(colon + 1, text.find_first_of(",}", colon) - colon - 1,
                                 parts[random_.below(std::size(parts))]);
            }
        }
        return text;
    }

private:
    bool maybe() { return random_.below(2) == 0; }
    double unit() { return static_cast<double>(random_.below(1000)) / 1000; }
    std::uint32_t some_count(std::size_t most) { return static_cast<std::uint32_t>(1 + random_.below(most)); }
    static std::string decimal(double x)
    {
        char text[40];
        std::snprintf(text, sizeof text, "%.17g", x);
        return text;
    }
    std::string space()
    {
        static char const* const some[] = {"", "", "", " ", "\n\t", "\r\n"};
        return some[random_.below(std::size(some))];
    }
    void number(strings& members, char const* key, double& value, double most)
    {
        if (maybe())
            members.push_back("\"" + std::string(key) + "\":" + decimal(value = unit() * most));
    }
    void flag(strings& members, char const* key, bool& value)
    {
        if (maybe())
            members.push_back("\"" + std::string(key) + "\":" + ((value = maybe()) ? "true" : "false"));
    }
    std::string object(strings members) // in any order
    {
        std::string text = "{" + space();
        for (std::size_t n = members.size(); n > 0; --n) {
            std::swap(members[n - 1], members[random_.below(n)]);
            text += members[n - 1] + space() + (n > 1 ? "," : "") + space();
        }
        return text + "}";
    }

    test::random_bits random_;
};

bool is_printable(std::string const& text)
{
    return text.find_first_not_of("\n") != text.npos &&
           std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); });
}

// Whether it was read; then the options are fit to be used. Else the error is one of ours, and a place it shows is one.
// Another exception ends the test.
bool read_or_refused(std::string const& text)
{
    deepspeed_config config;
    try {
        config = parse_deepspeed_config(text);
    } catch (invalid_argument const& error) {
        std::string const what = error.what();
        bool fine = what.starts_with("adamant: ") && is_printable(what) && what.size() < 1000;
        if (what.find(" is not JSON in line ") != what.npos) {
            std::size_t const last = what.rfind('\n');
            std::size_t const before = what.rfind('\n', last - 1);
            fine = fine && what.back() == '^' && what.size() - last <= last - before + 1;
        } else {
            fine = fine && what.find('\n') == what.npos;
        }
        if (!fine)
            FAIL("\"" << text << "\" was refused with \"" << what << "\"");
        return false;
    }
    validate(config.options);
    (void)core_request_of(config.options);
    bool fine = nlohmann::json::accept(text) && config.warnings.size() <= 101;
    for (std::string const& warning : config.warnings)
        fine = fine && is_printable(warning) && warning.size() < 300;
    if (!fine)
        FAIL("\"" << text << "\" was read, and is no configuration");
    return true;
}

} // namespace

TEST_CASE("any text is read as what it says or refused", "[fuzz]")
{
    writer write(20240607);
    std::size_t read = 0;
    std::size_t tried = 0;
    for (std::size_t i = 0; i < ADAMANT_FUZZ_INPUTS / 10; ++i) {
        written const right = write.some_config();
        INFO(right.text);
        if (i % 4 == 0)
            check_same(options_of(right.text), right.meaning);
        for (int n = 0; n < 10; ++n, ++tried)
            read += read_or_refused(write.some_mutant(right.text));
    }
    CHECK(read > tried / 20);
    CHECK(read < tried - tried / 5);
}
