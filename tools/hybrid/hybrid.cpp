// SPDX-License-Identifier: Apache-2.0
// A training loop whose optimizer steps on CPU and device concurrently. The device makes gradients layer by layer from
// the last. The CPU's part of them is downloaded and stepped and its weights are uploaded, while the device steps its
// part. The shapes are Qwen2.5-3B's, with as many layers as fit in memory. Forward and backward are waits.
//
//   hybrid [--ratio R|auto] [--layers N] [--steps N] [--state NAME] [--link pcie5|c2c|none] [--backward MS]
//          [--forward MS] [--digest] [--zenflow K [--update-interval N] [--select-interval N] [--no-overlap]]
//
// `hybrid` emulates the device in host memory; `hybrid_cuda` uses the first GPU, by hybrid_device.cu.

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/adamant.hpp>
#include <adamant/formats.hpp>
#include <adamant/split.hpp>
#include <adamant/tune.hpp>

#include "hybrid_device.hpp"
#include "hybrid_zenflow.hpp"

namespace {

using adamant::bfloat16;
using clock_type = std::chrono::steady_clock;

struct settings {
    double ratio = 0.75;
    bool adapts_ratio = true; // to the measured rates
    std::size_t layers = 0;
    std::size_t steps = 8;
    adamant::shard_dtypes types =
        *adamant::types_of_state("float32", adamant::dtype::bfloat16, adamant::dtype::bfloat16);
    std::string link = "pcie5";
    double backward_ms = 0; // 0: as long as the optimizer's step takes
    double forward_ms = 0;
    bool only_digest = false;
    std::optional<zenflow_settings> zenflow = {};
};

// ----------------------------------------------------------------------------------------------------------- model

// One tensor: state in host memory, gradient and weights on the device, and pinned memory to stage the CPU's part of
// those.
struct tensor {
    std::string name;
    std::size_t elems;
    adamant::shard_dtypes types;
    std::vector<std::byte> master, exp_avg, exp_avg_sq; // zero bytes are zeros in every type
    std::shared_ptr<std::byte> staging;
    adamant::device_arrays on_device;

    tensor(std::string tensor_name, std::size_t n, adamant::shard_dtypes const& dtypes, adamant::device& gpu)
        : name(std::move(tensor_name)), elems(n), types(dtypes), master(array_bytes(types[0], n)),
          exp_avg(array_bytes(types[2], n)), exp_avg_sq(array_bytes(types[3], n)),
          staging(gpu.pinned(4 * n)), on_device{gpu.allocate(2 * n), gpu.allocate(2 * n)}
    {
        for (std::size_t i = 0; i < n; ++i) {
            float const first = 0.01f * static_cast<float>(static_cast<int>(i % 401) - 200) / 200;
            if (has_split_param(types))
                adamant::split_masters(&first, 1, weight() + i, low() + i);
            else
                std::memcpy(&master[i * sizeof first], &first, sizeof first);
        }
    }
    [[nodiscard]] adamant::optimizer_shard shard()
    {
        adamant::kernel::step_pointers const arrays{master.data(), staging.get(), exp_avg.data(), exp_avg_sq.data(),
                                                    reinterpret_cast<std::byte*>(weight())};
        return adamant::optimizer_shard({*adamant::find_format(types), arrays, elems});
    }
    [[nodiscard]] float param(std::size_t i)
    {
        float value;
        if (has_split_param(types))
            adamant::join_masters(weight() + i, low() + i, 1, &value);
        else
            std::memcpy(&value, &master[i * sizeof value], sizeof value);
        return value;
    }

private:
    [[nodiscard]] bfloat16* weight() { return reinterpret_cast<bfloat16*>(staging.get()) + elems; }
    [[nodiscard]] adamant::split_float32* low() { return reinterpret_cast<adamant::split_float32*>(master.data()); }
};

// The tensors of Qwen2.5-3B's configuration (hidden 2048, 16 heads and 2 of keys of 128, feed-forward 11008), in the
// order of forward, with the embedding in the proportion of the layers.
std::vector<std::pair<std::string, std::size_t>> shapes(std::size_t layers)
{
    constexpr std::size_t hidden = 2048;
    constexpr std::size_t keys = 256;
    constexpr std::size_t feed_forward = 11008;
    constexpr std::size_t vocabulary = 151936;
    std::vector<std::pair<std::string, std::size_t>> all{{"embedding", vocabulary * layers / 36 * hidden}};
    for (std::size_t i = 0; i < layers; ++i) {
        std::string const prefix = "layer " + std::to_string(i) + " ";
        all.insert(all.end(), {{prefix + "norm 1", hidden},
                               {prefix + "q", hidden * hidden + hidden},
                               {prefix + "k", hidden * keys + keys},
                               {prefix + "v", hidden * keys + keys},
                               {prefix + "o", hidden * hidden},
                               {prefix + "norm 2", hidden},
                               {prefix + "gate", hidden * feed_forward},
                               {prefix + "up", hidden * feed_forward},
                               {prefix + "down", feed_forward * hidden}});
    }
    all.emplace_back("norm", hidden);
    return all;
}
constexpr std::size_t tensors_a_layer = 9;
constexpr std::size_t elems_a_layer = 85'700'000; // with its part of the embedding
constexpr std::size_t bytes_an_elem =
    12 + 4 + 3 + 4 + 24; // of float32 state, staging, journal; on the device, if that is here too

// -------------------------------------------------------------------------------------------------------- timeline

// The busy times of a step: polls the progress of CPU and device every half millisecond.
class timeline {
public:
    timeline(adamant::optimizer& cpu, adamant::device const& gpu) : cpu_(cpu), gpu_(gpu), thread_([this] { watch(); })
    {
    }
    ~timeline()
    {
        stop_ = true;
        if (thread_.joinable())
            thread_.join();
    }
    void draw(double backward_s, double forward_begin_s, double step_s)
    {
        stop_ = true;
        thread_.join();
        rows_[3].spans = {{0, backward_s}};
        rows_[5].spans = {{forward_begin_s, step_s}};
        for (row const& item : rows_) {
            std::string bar(width, ' ');
            double busy = 0;
            for (auto const& [begin, end] : item.spans) {
                busy += end - begin;
                auto const column = [&](double s) {
                    return std::min(width - 1, static_cast<std::size_t>(std::max(s, 0.0) / step_s * width));
                };
                for (std::size_t i = column(begin); i <= column(std::max(end - 1e-9, begin)); ++i)
                    bar[i] = '#';
            }
            std::printf("  %-14s|%s| %6.1f ms\n", item.name, bar.c_str(), busy * 1e3);
        }
        std::printf("  %-14s0%*s\n", "", static_cast<int>(width),
                    (std::to_string(std::lround(step_s * 1e3)) + " ms").c_str());
    }

private:
    static constexpr std::size_t width = 64;
    struct row {
        char const* name;
        std::vector<std::pair<double, double>> spans = {};
    };

    void watch()
    {
        auto const begin = clock_type::now();
        std::uint64_t blocks = cpu_.cpu_blocks_done();
        adamant::device_usage usage = gpu_.usage();
        double last = 0;
        while (!stop_) {
            std::this_thread::sleep_for(std::chrono::microseconds(500));
            double const now = std::chrono::duration<double>(clock_type::now() - begin).count();
            if (std::uint64_t const stepped = cpu_.cpu_blocks_done(); stepped != blocks) {
                rows_[1].spans.emplace_back(last, now);
                blocks = stepped;
            }
            adamant::device_usage const used = gpu_.usage();
            for (auto const& [stream, index] :
                 {std::pair{adamant::device_stream::down, 0u}, std::pair{adamant::device_stream::up, 2u},
                  std::pair{adamant::device_stream::work, 4u}}) {
                auto const i = static_cast<std::size_t>(stream);
                if (used.busy_s[i] != usage.busy_s[i]) // changes when an operation ends
                    rows_[index].spans.emplace_back(now - (used.busy_s[i] - usage.busy_s[i]), now);
            }
            usage = used;
            last = now;
        }
    }

    adamant::optimizer& cpu_;
    adamant::device const& gpu_;
    row rows_[6] = {{"gradients down"}, {"CPU step"}, {"weights up"}, {"backward"}, {"device step"}, {"forward"}};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

// ------------------------------------------------------------------------------------------------------------ loop

// Elements a second that the CPU's threads step, from a short trial.
double cpu_rate(adamant::executor const& cpu, adamant::shard_dtypes const& types)
{
    adamant::trial_step step(cpu, *adamant::find_format(types), std::size_t{1} << 23);
    double best = 0;
    for (int i = 0; i < 5; ++i)
        best = std::max(best, static_cast<double>(step.size()) / step.seconds(cpu));
    return best;
}

// FNV-1a (Fowler, Noll, Vo) over the bits of all params.
std::uint64_t digest_of(std::vector<tensor>& model)
{
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (tensor& t : model)
        for (std::size_t i = 0; i < t.elems; ++i)
            hash = (hash ^ std::bit_cast<std::uint32_t>(t.param(i))) * 0x100000001b3u;
    return hash;
}

void run(settings chosen)
{
    unsigned const cores = adamant::executor().threads();
    adamant::executor const cpu(
        adamant::executor_options{.threads = std::max(cores, cores_needed() + 1) - cores_needed()});
    double const rate = cpu_rate(cpu, chosen.types);
    std::shared_ptr<adamant::device> const gpu = make_device(chosen.link, step_bytes(chosen.types) * rate);
    if (chosen.layers == 0) {
        std::size_t const room = adamant::available_memory().bytes / 4;
        chosen.layers = std::clamp<std::size_t>(room / (elems_a_layer * bytes_an_elem), 1, 36);
    }
    std::vector<tensor> model;
    for (auto const& [name, elems] : shapes(chosen.layers))
        model.emplace_back(name, elems, chosen.types, *gpu);
    std::size_t elems = 0;
    for (tensor const& t : model)
        elems += t.elems;

    adamant::optimizer optimizer(cpu, {.max_norm = 1});
    optimizer.add_group("all", {.lr = 1e-4, .weight_decay = 0.1, .mode = adamant::decay_mode::decoupled});
    for (std::size_t i = 0; i < model.size(); ++i) {
        optimizer.add_shard({.group = 0, .name = model[i].name, .shard = model[i].shard()});
        optimizer.set_device_arrays(i, model[i].on_device);
    }
    auto const ms_or = [](double ms, double otherwise_s) { return ms > 0 ? ms * 1e-3 : otherwise_s; };
    double const backward_s = ms_or(chosen.backward_ms, 0.5 * static_cast<double>(elems) / rate);
    double const forward_s = ms_or(chosen.forward_ms, 0.25 * static_cast<double>(elems) / rate);
    adamant::ratio_follower follower({.elems = static_cast<double>(elems),
                                      .cpu_elems_per_s = rate,
                                      .device_elems_per_s = rate,
                                      .backward_s = backward_s,
                                      .forward_s = forward_s},
                                     {.weight = 0.5, .worth = 0.05}); // moving takes longer than a step
    double ratio = chosen.ratio;
    optimizer.place(gpu, adamant::split(optimizer.shard_sizes(), {.ratio = ratio}));
    if (!chosen.only_digest)
        std::printf("%zu parameters: %zu layer%s of Qwen2.5-3B's shapes; CPU: %s, %u thread%s; device: %s\n", elems,
                    chosen.layers, chosen.layers == 1 ? "" : "s", name(cpu.tier()).data(), optimizer.cpu().threads(),
                    optimizer.cpu().threads() == 1 ? "" : "s", gpu->name().c_str());

    auto const wait_for = [](double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); };
    for (std::size_t step = 1; step <= chosen.steps; ++step) {
        // The gradients of backward, made in advance because an emulated device makes them slowly.
        for (std::size_t i = 0; i < model.size(); ++i)
            make_gradient(*gpu, model[i].on_device.grad, model[i].elems, static_cast<std::uint32_t>(step * 1000 + i));
        bool const last = step == chosen.steps && !chosen.only_digest;
        std::unique_ptr<timeline> drawing;
        if (last)
            drawing = std::make_unique<timeline>(optimizer, *gpu);
        auto const begin = clock_type::now();
        auto const elapsed = [&] { return std::chrono::duration<double>(clock_type::now() - begin).count(); };
        optimizer.begin_step();
        for (std::size_t i = model.size(); i-- > 0;) { // backward, from the last tensor
            wait_for(backward_s * static_cast<double>(model[i].elems) / static_cast<double>(elems));
            optimizer.submit(i);
        }
        double const backward_end = elapsed();
        adamant::optimizer_report const report = optimizer.finish();
        double const update_end = elapsed();
        wait_for(forward_s);
        double const step_s = elapsed();
        follower.observe(measured_step_of(report));
        follower.set_times(backward_end, step_s - update_end);
        if (!chosen.only_digest)
            std::printf("step %zu: ratio %.4f, norm %.4f%s; %6.1f ms, forecast %6.1f ms\n", std::size_t{report.step},
                        report.ratio, report.global_norm, report.rolled_back ? ", done again" : "", step_s * 1e3,
                        forecast(follower.rates(), report.ratio).step_s * 1e3);
        if (last) {
            std::printf("\n");
            drawing->draw(backward_end, update_end, step_s);
        } else if (std::optional<double> const better = chosen.adapts_ratio ? follower.proposal(ratio) : std::nullopt) {
            ratio = *better;
            optimizer.place(gpu, adamant::split(optimizer.shard_sizes(), {.ratio = ratio}));
        }
    }
    if (!chosen.only_digest)
        std::printf("\nbest ratio for the rates that were measured: %.4f\n", best_ratio(follower.rates()).ratio);
    (void)optimizer.state(); // copies the device's part to host memory
    std::printf("digest of the params %016llx: the same at every ratio\n",
                static_cast<unsigned long long>(digest_of(model)));
    optimizer.place(nullptr, adamant::split(optimizer.shard_sizes(), {.ratio = 1}));
    for (tensor const& t : model) {
        gpu->release(t.on_device.grad);
        gpu->release(t.on_device.weight_out);
    }
}

double number(std::string_view option, std::string const& text, double most)
{
    char* end = nullptr;
    double const value = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || !(value >= 0 && value <= most))
        throw std::invalid_argument("hybrid: " + std::string(option) + " is '" + text +
                                    "', but must be a number from 0 to " +
                                    std::to_string(static_cast<long long>(most)));
    return value;
}

constexpr char const* help = R"(hybrid: a training loop whose optimizer steps on CPU and device concurrently

  --ratio R|auto         the share of the elements that the CPU steps; auto
                         (default): begins with 0.75, adapts to measured rates
  --layers N             of Qwen2.5-3B, up to 36 (default: what fits in memory)
  --steps N              (default 8)
  --state NAME           the format of masters and moments: float32
                         (default), split_float32, bfloat16, quantized8,
                         split_float32+bfloat16, split_float32+quantized8
  --link pcie5|c2c|none  the link to an emulated device (default pcie5)
  --backward MS          time of backward in ms (default: half the time of a
                         step of all elements on the CPU)
  --forward MS           time of forward in ms (default: half of backward's)
  --digest               print only a digest of the params
  --zenflow K            defers gradients: the share K of each matrix' columns
                         is updated every step, on the device, the others later;
                         compares with plain offloading and speculation
  --update-interval N    steps for which they are deferred (default 4)
  --select-interval N    steps from one selection to the next (default 16)
  --no-overlap           step the deferred gradients while the device waits
  --help                 this text; -h is the same
)";

settings parse(int argc, char** argv)
{
    settings chosen;
    zenflow_settings zenflow;
    for (int i = 1; i < argc; ++i) {
        std::string_view const option = argv[i];
        if (option == "--help" || option == "-h") {
            std::fputs(help, stdout);
            std::exit(0);
        }
        if (option == "--digest") {
            chosen.only_digest = true;
            continue;
        }
        if (option == "--no-overlap") {
            zenflow.options.overlap = false;
            continue;
        }
        if (i + 1 == argc)
            throw std::invalid_argument("hybrid: " + std::string(option) +
                                        " is not understood, or has no value; hybrid --help lists the options");
        std::string const value = argv[++i];
        if (option == "--ratio") {
            chosen.adapts_ratio = value == "auto";
            if (!chosen.adapts_ratio)
                chosen.ratio = number(option, value, 1);
        } else if (option == "--layers") {
            chosen.layers = static_cast<std::size_t>(number(option, value, 36));
        } else if (option == "--steps") {
            chosen.steps = zenflow.steps = static_cast<std::size_t>(number(option, value, 1e6));
        } else if (option == "--state") {
            auto const types = adamant::types_of_state(value, chosen.types[1], chosen.types[4]);
            if (!types)
                throw std::invalid_argument("hybrid: --state is '" + value +
                                            "', but must be float32, split_float32, bfloat16, quantized8, "
                                            "split_float32+bfloat16 or split_float32+quantized8");
            chosen.types = *types;
        } else if (option == "--backward") {
            chosen.backward_ms = number(option, value, 1e6);
        } else if (option == "--forward") {
            chosen.forward_ms = number(option, value, 1e6);
        } else if (option == "--zenflow") {
            zenflow.options.topk_ratio = number(option, value, 1);
            chosen.zenflow = zenflow;
        } else if (option == "--update-interval" || option == "--select-interval") {
            std::size_t const steps = static_cast<std::size_t>(number(option, value, 1000));
            if (option == "--update-interval")
                zenflow.options.update_interval = steps;
            else
                zenflow.options.select_interval = steps;
        } else if (option == "--link" && (value == "pcie5" || value == "c2c" || value == "none")) {
            chosen.link = value;
        } else {
            throw std::invalid_argument("hybrid: " + std::string(option) + " " + value +
                                        " is not understood; hybrid --help lists the options");
        }
    }
    if (chosen.zenflow) {
        chosen.zenflow = zenflow;
        chosen.zenflow->layers = std::max<std::size_t>(1, chosen.layers);
        chosen.zenflow->types = chosen.types;
        chosen.zenflow->link = chosen.link;
        chosen.zenflow->backward_ms = chosen.backward_ms;
        chosen.zenflow->forward_ms = chosen.forward_ms;
        chosen.zenflow->only_digest = chosen.only_digest;
    }
    return chosen;
}

} // namespace

int main(int argc, char** argv)
{
    try {
        settings const chosen = parse(argc, argv);
        if (chosen.zenflow)
            run_zenflow(*chosen.zenflow);
        else
            run(chosen);
    } catch (std::exception const& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
