// SPDX-License-Identifier: Apache-2.0
// The command line of `adamant plan`, which predicts the memory and step time of training a model with its optimizer
// offloaded.
#include "plan.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include <adamant/formats.hpp>

#include "plan_machines.hpp"
#include "plan_models.hpp"
#include "plan_numbers.hpp"
#include "plan_result.hpp"

namespace cli {

namespace {

constexpr std::string_view state_names =
    "float32, split_float32, bfloat16, quantized8, split_float32+bfloat16 or split_float32+quantized8";

using namespace adamant;

dtype type(arguments& options, std::string_view option, dtype default_type)
{
    std::optional<std::string> const text = options.value(option);
    if (!text)
        return default_type;
    constexpr std::pair<std::string_view, dtype> names[] = {
        {"float32", dtype::float32}, {"fp32", dtype::float32},         {"bfloat16", dtype::bfloat16},
        {"bf16", dtype::bfloat16},   {"float16", dtype::float16},      {"fp16", dtype::float16},
        {"none", dtype::none},       {"quantized8", dtype::quantized8}};
    bool const is_moment = option.starts_with("--exp-avg");
    for (auto const& [name, value] : names)
        if (name == *text && (value != dtype::none || option == "--weight-out") &&
            (value != dtype::quantized8 || is_moment) && (value != dtype::float16 || !is_moment))
            return value;
    throw usage_error(std::string(option) + " is '" + *text + "', but must be float32, bfloat16 or " +
                      (is_moment ? "quantized8" : "float16") + (option == "--weight-out" ? ", or none" : ""));
}

void read_types(arguments& options, plan_request& r)
{
    if (std::optional<std::string> const state = options.value("--state")) {
        std::optional<adamant::shard_dtypes> const types = adamant::types_of_state(*state, r.grad, r.weight_out);
        if (!types)
            throw usage_error("--state is '" + *state + "', but must be " + std::string(state_names));
        r.param = (*types)[adamant::shard_array::param];
        r.exp_avg = (*types)[adamant::shard_array::exp_avg];
        r.exp_avg_sq = (*types)[adamant::shard_array::exp_avg_sq];
    }
    r.param = type(options, "--param", r.param);
    r.grad = type(options, "--grad", r.grad);
    r.exp_avg = type(options, "--exp-avg", r.exp_avg);
    r.exp_avg_sq = type(options, "--exp-avg-sq", r.exp_avg_sq);
    r.weight_out =
        type(options, "--weight-out", r.param == dtype::float32 || r.is_split() ? r.weight_out : dtype::none);
    if (adamant::find_format({r.param, r.grad, r.exp_avg, r.exp_avg_sq, r.weight_out}) == nullptr)
        throw usage_error("adamant has no step for these types; params and gradients are float32, bfloat16 or float16, "
                          "moments float32 or bfloat16, or both quantized8, and --weight-out, bfloat16 or float16, is "
                          "for float32 params; with "
                          "--state split_float32 it is bfloat16");
}

struct model_options {
    described_model described;
    std::string given_options; // the options that described is from
    std::optional<std::string> shapes;
};

model_options read_model_options(arguments& options)
{
    model_options read;
    described_model& described = read.described;
    auto const note = [&](char const* option) {
        read.given_options += (read.given_options.empty() ? "" : ", ") + std::string(option);
    };
    for (auto const& [option, field] :
         {std::pair("--params", &described.params), std::pair("--active-params", &described.active_params)})
        if (std::optional<std::string> const text = options.value(option)) {
            *field = element_count(option, *text);
            note(option);
        }
    struct size_option {
        char const* name;
        std::size_t* field;
        unsigned most;
    };
    // A plan has a tensor for each layer.
    for (auto const& [option, field, most] :
         {size_option{"--layers", &described.layers, 100'000}, size_option{"--hidden", &described.hidden, 100'000'000},
          size_option{"--vocab", &described.vocab, 100'000'000}})
        if (std::optional<unsigned> const value = options.number(option, 1, most)) {
            *field = *value;
            note(option);
        }
    read.shapes = options.value("--shapes");
    return read;
}

model model_of(model_options const& read, std::optional<std::string> const& name)
{
    if (name) {
        if (!read.given_options.empty() || read.shapes)
            throw usage_error("cannot plan for two models: '" + *name + "' and " +
                              (read.shapes ? "--shapes" : read.given_options) + ". Remove one.");
        return known_model(*name);
    }
    if (read.shapes) {
        if (read.described.params != 0)
            throw usage_error("--shapes and --params are both given, but the file says how many parameters there are");
        return cli::read_model(*read.shapes, read.described);
    }
    if (read.given_options.empty())
        throw usage_error(
            "cannot plan: no model is given. Name one (adamant plan --list shows them), or use --params N "
            "--layers N --hidden N, or --shapes FILE.");
    return make_model(read.described);
}

void read_machine_options(arguments& options, plan_request& r)
{
    std::optional<std::string> const gpus = options.value("--gpus");
    if (!gpus)
        throw usage_error(
            "cannot plan: no machine is given. Use --gpus with a number and a machine, as in 4xGH200; adamant "
            "plan --list shows them.");
    auto const count = parse_gpus(*gpus);
    r.gpus = count.gpus;
    r.machine = count.machine;
    auto const read_figure = [&](char const* option, figure& result, auto const& read) {
        if (std::optional<std::string> const text = options.value(option)) {
            if (r.machine.unified && &result != &r.machine.gpu_bytes && &result != &r.machine.flops)
                throw usage_error(
                    std::string(option) + " is given, but " + r.machine.name +
                    " has one memory for CPU and GPU, and no link between them; --gpu-memory is its size");
            result = {static_cast<double>(read(option, *text)), option};
        }
    };
    auto const link = [](char const* option, std::string const& text) {
        static constexpr number_ending endings[] = {{"GB/s", 1}};
        return 1e9 * number_with_ending(option, text, endings, 1e-3, 1e6, "a rate in GB/s each way, such as 55");
    };
    auto const flops = [](char const* option, std::string const& text) {
        return plain_number(option, text, 1e9, 1e20,
                            "operations a second of dense 16-bit matrix products, from 1e9 to 1e20, such as 989e12");
    };
    read_figure("--gpu-memory", r.machine.gpu_bytes, byte_count);
    read_figure("--host-memory", r.machine.host_bytes, byte_count);
    if (std::optional<std::string> const rate = options.value("--link")) {
        if (r.machine.unified)
            throw usage_error("--link is given, but in " + r.machine.name + " nothing crosses a link");
        r.machine.down_bytes_per_s = r.machine.up_bytes_per_s = {link("--link", *rate), "--link"};
    }
    read_figure("--link-down", r.machine.down_bytes_per_s, link);
    read_figure("--link-up", r.machine.up_bytes_per_s, link);
    read_figure("--flops", r.machine.flops, flops);
    if (r.machine.name.empty())
        for (auto const& [option, size] :
             {std::pair("--gpu-memory", &r.machine.gpu_bytes), std::pair("--host-memory", &r.machine.host_bytes)})
            if (size->value <= 0)
                throw usage_error(std::string(option) + " is missing: --gpus is '" + *gpus +
                                  "', which names no machine, so the memory of each GPU, and of the host for each GPU, "
                                  "must be said; or name one, as in 4xGH200");
}

void read_memory_options(arguments& options, plan_request& r)
{
    if (std::optional<std::string> const text = options.value("--ratio"))
        r.ratio = share("--ratio", *text);
    r.batch = options.number("--batch", 1, 1, 1'000'000);
    r.sequence = options.number("--seq", 4096, 1, 100'000'000);
    if (std::optional<std::string> const text = options.value("--bucket"))
        r.bucket_elems = element_count("--bucket", *text);
    if (std::optional<std::string> const text = options.value("--journal")) {
        r.journal = plain_number("--journal", *text, 0, 64, "bytes for each element, from 0 to 64, such as 3");
    }
    r.device_records = options.flag("--device-records");
    r.give_back = options.flag("--give-back");
    r.track_changes = options.flag("--track-changes");
    auto const reserve = [&](char const* option, std::size_t& bytes) {
        if (std::optional<std::string> const text = options.value(option))
            bytes = byte_count_or_0(option, *text);
    };
    reserve("--gpu-reserve", r.gpu_reserve);
    reserve("--host-reserve", r.host_reserve);
}

void read_zenflow(arguments& options, plan_request& r)
{
    std::optional<std::string> const ratio = options.value("--zenflow");
    std::optional<unsigned> const update = options.number("--update-interval", 1, 1000);
    std::optional<unsigned> const select = options.number("--select-interval", 1, 1'000'000'000);
    bool const no_overlap = options.flag("--no-overlap");
    if (!ratio) {
        if (update || select || no_overlap)
            throw usage_error(std::string(update   ? "--update-interval"
                                          : select ? "--select-interval"
                                                   : "--no-overlap") +
                              " is given, but says something of ZenFlow only; --zenflow 0.1 asks for that");
        return;
    }
    zenflow_request& zenflow = r.zenflow.emplace();
    zenflow.topk_ratio = share("--zenflow", *ratio);
    zenflow.update_interval = update.value_or(static_cast<unsigned>(zenflow.update_interval));
    zenflow.select_interval = select.value_or(0);
    zenflow.overlap = !no_overlap;
}

given_rates read_rates(arguments& options)
{
    given_rates rates;
    auto const number = [&](char const* option, std::optional<double>& value, double least, double most,
                            char const* must_be) {
        if (std::optional<std::string> const text = options.value(option))
            value = plain_number(option, *text, least, most, must_be);
    };
    char const* const rate = "elements a second, from 1e3 to 1e15, such as 12e9";
    char const* const time = "seconds, from 0 to 1e6, such as 3.5";
    number("--cpu-rate", rates.cpu_elems_per_s, 1e3, 1e15, rate);
    number("--gpu-rate", rates.gpu_elems_per_s, 1e3, 1e15, rate);
    number("--backward", rates.backward_s, 0, 1e6, time);
    number("--forward", rates.forward_s, 0, 1e6, time);
    if (std::optional<std::string> const text = options.value("--utilisation"))
        rates.utilisation = share("--utilisation", *text, 1e-6, "a share from 1e-6 to 1, such as 0.4 or 40%");
    rates.overlap_forward = options.flag("--overlap-forward");
    rates.measure = options.flag("--measure");
    if (rates.measure && rates.cpu_elems_per_s)
        throw usage_error("--measure and --cpu-rate are both given, but each decides the CPU's rate; give one");
    return rates;
}

} // namespace

int plan(arguments& options)
{
    if (options.flag("--list")) {
        options.check_empty();
        std::fputs((list_of_models() + "\n" + list_of_machines()).c_str(), stdout);
        return 0;
    }
    bool const json = options.flag("--json");
    plan_request request;
    read_types(options, request);
    read_memory_options(options, request);
    read_zenflow(options, request);
    given_rates const rates = read_rates(options);
    model_options const described = read_model_options(options);
    read_machine_options(options, request);
    std::optional<std::string> const name = options.word();
    if (std::optional<std::string> const other = options.word())
        throw usage_error("two models are named, '" + *name + "' and '" + *other + "'; a plan is for one");
    options.check_empty();
    request.network = model_of(described, name);

    plan_result const result = make_plan(request, rates);
    std::fputs((json ? plan_json(result) : plan_text(result)).c_str(), stdout);
    return result.fits ? 0 : 1;
}

} // namespace cli
