// SPDX-License-Identifier: Apache-2.0
// Reader of DeepSpeed's JSON configuration (ds_config.json). Opt-in: needs nlohmann-json.
//
// Keys have DeepSpeed's meanings and defaults. See its runtime/config.py, runtime/precision_config.py,
// runtime/zero/config.py, runtime/zero/offload_config.py, runtime/zenflow/zenflow_config.py and, for the two Adams,
// _configure_basic_optimizer() in runtime/engine.py.
#pragma once

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <adamant/offload_config.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/io/deepspeed_keys.hpp>
#include <adamant/detail/io/json_document.hpp>
#include <adamant/detail/io/number_rule.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Contents of a DeepSpeed configuration.
struct deepspeed_config {
    offload_config options; ///< Options; validate() accepts them.
    /// Warnings about ignored keys, by their paths, in order of appearance. Nothing is printed.
    ///
    /// An object whose keys are all ignored gives one warning. After a hundred warnings, one more counts the others.
    std::vector<std::string> warnings;
};

namespace detail {

// Translates a JSON document to options. A key is checked even if another key makes it irrelevant.
class deepspeed_reader {
public:
    deepspeed_reader(std::string_view text, std::string source)
        : document_(text, "the DeepSpeed configuration", std::move(source), deepspeed_keys, deepspeed_ignored)
    {
    }

    // Returns options that validate() accepts.
    deepspeed_config read()
    {
        optimizer();
        out_.max_norm = number("gradient_clipping", out_.max_norm, at_least_zero);
        accumulation();
        precision();
        zero();
        try {
            validate(out_); // the reader has checked each value, but not whether float can represent it
        } catch (invalid_argument const& error) {
            document_.fail(with_path(std::string(error.what()).substr(std::string_view("adamant: ").size())));
        }
        return {out_, document_.warnings()};
    }

private:
    using kind = json_value::kind;

    // A message that begins with the name of an option, with the path of its key.
    static std::string with_path(std::string const& message)
    {
        static constexpr std::pair<std::string_view, std::string_view> paths[] = {
            {"lr", "optimizer.params.lr"},
            {"eps", "optimizer.params.eps"},
            {"weight_decay", "optimizer.params.weight_decay"},
            {"max_norm", "gradient_clipping"},
            {"loss_scale", "fp16.loss_scale"},
            {"min_scale", "fp16.min_loss_scale"}};
        for (auto const& [name, path] : paths)
            if (message.substr(0, message.find(' ')) == name)
                return std::string(path) + message.substr(name.size());
        return message;
    }
    [[noreturn]] void refuse(std::string_view path, json_value const& found, std::string const& rule) const
    {
        if (found.type == kind::text && found.text == "auto")
            document_.fail(std::string(path) + " is \"auto\", which the Hugging Face integration replaces before "
                                               "DeepSpeed sees it. Replace it with a value.");
        document_.fail(text_of({path, " is ", found.to_message_text(), ", but must be ", rule}));
    }
    double number(std::string_view path, double otherwise, number_rule const& rule)
    {
        json_value const* const found = document_.find(path);
        return found == nullptr ? otherwise : number_in(path, *found, rule);
    }
    double number_in(std::string_view path, json_value const& found, number_rule const& rule)
    {
        if (found.type != kind::number || !rule.allows(found.number))
            refuse(path, found, rule.text);
        return found.number;
    }
    template <class Integer>
    Integer whole(std::string_view path, Integer otherwise, Integer low, Integer high)
    {
        json_value const* const found = document_.find(path);
        if (found == nullptr)
            return otherwise;
        if (found->type != kind::number || !found->whole || *found->whole < low || *found->whole > high)
            refuse(path, *found, text_of({"a whole number from ", low, " to ", high}));
        return static_cast<Integer>(*found->whole);
    }
    // Returns none for a missing key and for "auto", which DeepSpeed itself accepts here.
    std::optional<std::uint32_t> whole_or_auto(std::string_view path, std::uint32_t low)
    {
        json_value const* const found = document_.find(path);
        if (found == nullptr || (found->type == kind::text && found->text == "auto"))
            return std::nullopt;
        if (found->type != kind::number || !found->whole || *found->whole < low || *found->whole > most_u32)
            refuse(path, *found, text_of({"\"auto\" or a whole number from ", low, " to ", most_u32}));
        return static_cast<std::uint32_t>(*found->whole);
    }
    bool flag(std::string_view path, bool otherwise)
    {
        json_value const* const found = document_.find(path);
        if (found != nullptr && found->type != kind::boolean)
            refuse(path, *found, "true or false");
        return found == nullptr ? otherwise : found->flag;
    }
    // Returns whether the document has the object.
    bool object(std::string_view path, bool may_be_null = false)
    {
        json_value const* const found = document_.find(path);
        if (found == nullptr || (may_be_null && found->type == kind::null))
            return false;
        if (found->type != kind::object)
            refuse(path, *found, "an object");
        return true;
    }
    // Requires one of two texts, ignoring case, and returns whether it is the second.
    bool second_of(std::string_view path, std::string_view first, std::string_view second)
    {
        json_value const& found = *document_.find(path);
        std::string const text = found.type == kind::text ? to_lower(found.text) : "";
        if (text != to_lower(first) && text != to_lower(second))
            refuse(path, found, text_of({'"', first, "\" or \"", second, "\""}));
        return text == to_lower(second);
    }

    void optimizer()
    {
        if (!object("optimizer"))
            return;
        if (document_.find("optimizer.type") == nullptr)
            document_.fail("optimizer.type is missing. Set it to \"Adam\" or \"AdamW\".");
        bool const adamw = second_of("optimizer.type", "Adam", "AdamW");
        // DeepSpeed's Adam is an AdamW unless adam_w_mode is false. Its AdamW ignores adam_w_mode.
        bool const w_mode = flag("optimizer.params.adam_w_mode", true);
        if (adamw && !w_mode)
            document_.warn(document_.find("optimizer.params.adam_w_mode")->order,
                           "optimizer.params.adam_w_mode is ignored: optimizer.type is AdamW, whose decay is "
                           "always decoupled. For L2 decay set optimizer.type to Adam.");
        out_.hyper.mode = adamw || w_mode ? decay_mode::decoupled : decay_mode::l2;
        object("optimizer.params");
        out_.hyper.lr = number("optimizer.params.lr", out_.hyper.lr, at_least_zero);
        out_.hyper.eps = number("optimizer.params.eps", out_.hyper.eps, at_least_zero);
        betas();
        // Of the four possible optimizers, only PyTorch's AdamW has a default decay other than 0.
        bool const torch_adam = flag("optimizer.params.torch_adam", false);
        double const decay = torch_adam && out_.hyper.mode == decay_mode::decoupled ? 0.01 : 0;
        out_.hyper.weight_decay = number("optimizer.params.weight_decay", decay, at_least_zero);
        out_.hyper.bias_correction = flag("optimizer.params.bias_correction", true);
        out_.maximize = flag("optimizer.params.maximize", false);
        if (flag("optimizer.params.amsgrad", false))
            document_.fail("optimizer.params.amsgrad is true, but AMSGrad is not supported. Set it to false.");
        if (document_.find("optimizer.params.max_grad_norm") != nullptr)
            document_.fail("optimizer.params.max_grad_norm is not a parameter of the optimizer. Use the top-level key "
                           "gradient_clipping instead.");
    }

    void betas()
    {
        static constexpr number_rule beta{0, 1 - 0x1p-25, true, false,
                                          "in [0, 1), and below 1 - 2^-25, because float rounds larger values to 1"};
        json_value const* const found = document_.find("optimizer.params.betas");
        if (found == nullptr)
            return;
        if (found->type != kind::array || found->size != 2)
            refuse("optimizer.params.betas", *found, "an array of two numbers");
        out_.hyper.beta1 = number_in("optimizer.params.betas[0]", found->items[0], beta);
        out_.hyper.beta2 = number_in("optimizer.params.betas[1]", found->items[1], beta);
    }

    void accumulation()
    {
        if (document_.find("gradient_accumulation_steps") != nullptr)
            out_.gradient_accumulation_steps = whole<std::uint32_t>("gradient_accumulation_steps", 1, 1, most_u32);
        else if (document_.find("train_batch_size") != nullptr &&
                 document_.find("train_micro_batch_size_per_gpu") != nullptr)
            out_.gradient_accumulation_steps.reset();
    }

    void precision()
    {
        bool const bf16 = object("bf16");
        bool const bfloat16 = object("bfloat16");
        if (bf16 && bfloat16)
            document_.fail("bf16 and bfloat16 are two names of one object. Keep bf16.");
        std::string const name = bfloat16 ? "bfloat16" : "bf16";
        bool const in_bf16 = flag(name + ".enabled", false);
        object("fp16");
        bool const in_fp16 = flag("fp16.enabled", false);
        if (in_bf16 && in_fp16)
            document_.fail(
                name + ".enabled and fp16.enabled are both true, but a model computes in one type. Keep one of them.");
        out_.model_type = in_bf16 ? dtype::bfloat16 : in_fp16 ? dtype::float16 : dtype::float32;
        loss_scaling(in_fp16);
    }

    void loss_scaling(bool in_use)
    {
        double const fixed = number("fp16.loss_scale", 0, at_least_zero);
        loss_scaling_options dynamic;
        auto const power = static_cast<int>(whole<std::uint32_t>("fp16.initial_scale_power", 16, 0, 32));
        dynamic.initial_scale = std::ldexp(1.0, power);
        dynamic.growth_interval = whole<std::uint32_t>("fp16.loss_scale_window", 1000, 1, most_u32);
        dynamic.hysteresis = whole<std::uint32_t>("fp16.hysteresis", 2, 1, most_u32);
        dynamic.min_scale = number("fp16.min_loss_scale", 1, above_zero);
        bool const refills = flag("fp16.consecutive_hysteresis", false);
        if (!in_use)
            return;
        if (fixed != 0) {
            out_.loss_scale = fixed;
            return;
        }
        if (refills && dynamic.hysteresis > 1)
            document_.fail("fp16.consecutive_hysteresis is true, but adamant refills hysteresis only when the scale "
                           "grows. Set it to false, or fp16.hysteresis to 1.");
        if (dynamic.min_scale > dynamic.initial_scale)
            document_.fail(text_of({"fp16.min_loss_scale is ", dynamic.min_scale, ", but the first scale is ",
                                    dynamic.initial_scale, ", which is 2 to the power of fp16.initial_scale_power (",
                                    power, "). Lower fp16.min_loss_scale or raise fp16.initial_scale_power."}));
        out_.dynamic_loss_scaling = dynamic;
    }

    void zero()
    {
        static constexpr std::string_view old = "zero_optimization.cpu_offload";
        static constexpr std::string_view device = "zero_optimization.offload_optimizer.device";
        static constexpr std::string_view optimizer_cores = "zero_optimization.offload_optimizer.cpuadam_cores_perc";
        static constexpr std::string_view host_cores = "zero_optimization.zenflow.pt_reserved_cores_perc";
        object("zero_optimization");
        out_.zero_stage = whole<std::uint32_t>("zero_optimization.stage", 0, 0, 3);
        out_.sub_group_size_elems = whole<std::uint64_t>("zero_optimization.sub_group_size", out_.sub_group_size_elems,
                                                         0, std::numeric_limits<std::uint64_t>::max());
        out_.offload = flag(old, false);
        if (object("zero_optimization.offload_optimizer", true)) {
            if (document_.find(old) != nullptr)
                document_.fail(std::string(old) + " is the old form of zero_optimization.offload_optimizer, which is "
                                                  "also set. Keep the new one.");
            if (json_value const* const found = document_.find(device); found != nullptr) {
                if (found->type == kind::text && to_lower(found->text) == "nvme")
                    document_.fail(std::string(device) + " is \"nvme\", but adamant keeps the optimizer's state in "
                                                         "memory. Set it to \"cpu\".");
                out_.offload = !second_of(device, "cpu", "none");
            }
            out_.pin_memory = flag("zero_optimization.offload_optimizer.pin_memory", false);
            out_.ratio = number("zero_optimization.offload_optimizer.ratio", out_.ratio, zero_to_one);
            out_.super_offload = flag("zero_optimization.offload_optimizer.super_offload", false);
            if (document_.find(optimizer_cores) != nullptr)
                out_.cpuadam_cores_perc = number(optimizer_cores, 1, share_of_cores);
        }
        if (object("zero_optimization.zenflow", true)) {
            if (document_.find(host_cores) != nullptr)
                out_.pt_reserved_cores_perc = number(host_cores, 0, reserved_share);
            zenflow(out_.zenflow.emplace());
        }
        if (out_.cpuadam_cores_perc && out_.pt_reserved_cores_perc &&
            !shares_agree(*out_.cpuadam_cores_perc, *out_.pt_reserved_cores_perc))
            document_.fail(text_of({optimizer_cores, " is ", *out_.cpuadam_cores_perc, " and ", host_cores, " is ",
                                    *out_.pt_reserved_cores_perc, ", which do not add up to 1; keep one of them"}));
    }

    void zenflow(zenflow_config& config)
    {
        static constexpr std::string_view update = "zero_optimization.zenflow.update_interval";
        static constexpr std::string_view offload = "zero_optimization.zenflow.offload";
        static constexpr std::string_view auto_ratio = "zero_optimization.zenflow.auto_ratio";
        config.topk_ratio = number("zero_optimization.zenflow.topk_ratio", config.topk_ratio, zero_to_one);
        json_value const* const found = document_.find(auto_ratio);
        if (found != nullptr)
            (void)number_in(auto_ratio, *found, zero_to_one);
        config.full_warm_up_rounds =
            whole<std::uint32_t>("zero_optimization.zenflow.full_warm_up_rounds", 0, 0, most_u32);
        config.overlap = flag("zero_optimization.zenflow.overlap_step", config.overlap);
        if (flag(offload, false))
            document_.warn(document_.find(offload)->order,
                           text_of({offload, " is ignored: the state of selected columns is kept where they "
                                             "are stepped."}));
        select_interval(config);
        config.update_interval = whole_or_auto(update, 1);
        if (found != nullptr && !config.update_interval)
            document_.warn(
                found->order,
                text_of({auto_ratio, " is ignored: DeepSpeed compares it with a share of the matrices, but "
                                     "adamant ends an automatic window by squared gradient norms. Set "
                                     "update_interval, or auto_ratio in the options of the ZenFlow optimizer."}));
        if (config.update_interval > config.select_interval)
            document_.fail(text_of({update, " is ", *config.update_interval, ", but select_interval is ",
                                    detail::counted(config.select_interval, "step"),
                                    ". DeepSpeed requires at least update_interval."}));
    }

    // Does what configure_zenflow() in DeepSpeed's runtime/zenflow/engine.py does.
    void select_interval(zenflow_config& config)
    {
        static constexpr std::string_view strategy_path = "zero_optimization.zenflow.select_strategy";
        static constexpr std::string_view interval_path = "zero_optimization.zenflow.select_interval";
        static constexpr std::string_view epoch_path = "zero_optimization.zenflow.steps_per_epoch";
        std::string strategy = "auto";
        if (json_value const* const found = document_.find(strategy_path); found != nullptr) {
            strategy = found->type == kind::text ? found->text : "";
            if (strategy != "auto" && strategy != "step" && strategy != "epoch")
                refuse(strategy_path, *found, "\"auto\", \"step\" or \"epoch\"");
        }
        std::optional<std::uint32_t> const given = whole_or_auto(interval_path, 0); // 0: never again
        if (given && strategy == "auto")
            document_.fail(
                text_of({interval_path, " is ", *given, ", but select_strategy is \"auto\", which determines it. Set ",
                         "select_strategy to \"step\" or \"epoch\"."}));
        if (!given && strategy != "auto")
            document_.fail(
                text_of({interval_path, document_.find(interval_path) == nullptr ? " is missing" : " is \"auto\"",
                         ", but select_strategy is \"", strategy, "\". Set it to a whole number."}));
        json_value const* const epoch = document_.find(epoch_path);
        bool const known = epoch != nullptr && epoch->type != kind::null;
        std::size_t const factor = known ? whole<std::uint32_t>(epoch_path, 1, 1, most_u32) : 0;
        config.select_epochs = strategy == "step" ? 0 : given.value_or(1);
        std::size_t const steps = strategy == "step" ? *given : config.select_epochs * factor;
        config.select_interval = steps == 0 ? zenflow_config::never : steps;
    }

    static constexpr std::uint32_t most_u32 = std::numeric_limits<std::uint32_t>::max();

    json_document document_;
    offload_config out_;
};

} // namespace detail

/// Reads a configuration from its text. Pure; thread-safe.
///
/// The text is at most 16 MiB of JSON in UTF-8, nested at most 64 levels deep. Missing keys have DeepSpeed's defaults;
/// without an optimizer, hyper.mode stays unset.
/// @throws invalid_argument if the text is not JSON (with line, column and the line itself), if a key is duplicated,
/// and, with the path of the key, if a key that is not ignored has an invalid value. "auto" is invalid except in
/// ZenFlow's object, where DeepSpeed itself accepts it.
[[nodiscard]] inline deepspeed_config parse_deepspeed_config(std::string_view text)
{
    detail::default_mode_scope const mode;
    return detail::deepspeed_reader(text, {}).read();
}

/// Reads a configuration from a file. Errors name the file. Thread-safe.
/// @throws unavailable if the file cannot be read, and what parse_deepspeed_config() throws.
[[nodiscard]] inline deepspeed_config read_deepspeed_config(std::string const& path)
{
    detail::default_mode_scope const mode;
    auto const refuse = [&](int error) {
        detail::throw_unavailable({"cannot read the DeepSpeed configuration \"", path, "\": ", std::strerror(error)});
    };
    auto const close = [](std::FILE* file) { std::fclose(file); };
    std::unique_ptr<std::FILE, decltype(close)> const file(std::fopen(path.c_str(), "rbe"), close);
    if (file == nullptr)
        refuse(errno);
    std::string text;
    char piece[1 << 14];
    while (text.size() <= detail::json_document::max_bytes) {
        std::size_t const read = std::fread(piece, 1, sizeof piece, file.get());
        text.append(piece, read);
        if (read < sizeof piece) {
            if (int const error = errno; std::ferror(file.get()) != 0)
                refuse(error);
            break;
        }
    }
    return detail::deepspeed_reader(text, path).read();
}

ADAMANT_END_NAMESPACE
