// SPDX-License-Identifier: Apache-2.0
// A step on CPU and device at once, the device imitated in host memory: how far it is from the slowest of its parts
// alone, and from what the forecast says.
//
//   hybrid/link:.../ratio:...   bfloat16 gradients and weights on the device, float state, a norm that has to be known;
//   all
//                               gradients are there when the step begins. Against it: the CPU's part by itself, with
//                               gradients in host memory; the device's part by itself; and the link, with what crosses
//                               it, by itself.
//
// The forecast's rates are from one measurement of the parts alone at ratio 0.5, before the rows. The device's rates
// are set from the CPU's: its own to half of it, the links as they stand to a host's memory bandwidth, PCIe 5 a sixth,
// NVLink-C2C the same. One core is left to the threads that imitate.
//
//   adamant_benchmark_hybrid --benchmark_counters_tabular=true [--elems=33554432] [--iterations=15]
//       [--benchmark_filter='hybrid/link:pcie5.*']

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <benchmark/benchmark.h>

#include <adamant/adamant.hpp>

#include "race.hpp"
#include "random.hpp"

namespace {

using adamant::bfloat16;
using adamant::emulated_device;
using adamant::optimizer;
using benchmark::State;
using race::contender;
using race::median;
using race::part_in_race;

constexpr std::size_t shards = 16;
constexpr double never_reached = 1e9;

// An optimizer over n elements in 16 shards, a share of them with the CPU, gradients and weights on the device if there
// is one.
class side_by_side {
public:
    side_by_side(adamant::executor const& cpu, std::shared_ptr<emulated_device> gpu, std::size_t n, double ratio)
        : gpu_(std::move(gpu)), optimizer_(cpu, {.max_norm = never_reached, .speculate = adamant::speculation::always})
    {
        optimizer_.add_group("all", {.lr = 1e-4, .weight_decay = 0.1, .mode = adamant::decay_mode::decoupled});
        std::size_t const each =
            std::max<std::size_t>(n / shards / adamant::norm_block_elems, 1) * adamant::norm_block_elems;
        for (std::size_t i = 0; i < shards; ++i)
            tensors_.push_back(std::make_unique<tensor>(each, static_cast<std::uint32_t>(i)));
        for (std::size_t i = 0; i < shards; ++i) {
            tensor& t = *tensors_[i];
            optimizer_.add_shard(0, "shard " + std::to_string(i),
                                 adamant::shard(t.param, t.grad, t.exp_avg, t.exp_avg_sq, t.weight));
            if (gpu_ == nullptr)
                continue;
            t.there = {gpu_->allocate(2 * each), gpu_->allocate(2 * each)};
            std::memcpy(gpu_->real(t.there.grad, 2 * each), t.grad.data(), 2 * each);
            optimizer_.set_device_arrays(i, t.there);
        }
        if (gpu_ != nullptr)
            optimizer_.place(gpu_, adamant::split(optimizer_.shard_sizes(), {.ratio = ratio}));
        optimizer_.prepare();
        for (int i = 0; i < 30; ++i) // what records need settles
            step();
    }
    ~side_by_side()
    {
        if (gpu_ == nullptr)
            return;
        optimizer_.place(nullptr, adamant::split(optimizer_.shard_sizes(), {.ratio = 1}));
        for (auto const& t : tensors_) {
            gpu_->release(t->there.grad);
            gpu_->release(t->there.weight_out);
        }
    }
    adamant::optimizer_report step()
    {
        optimizer_.begin_step();
        for (std::size_t i = shards; i-- > 0;)
            optimizer_.submit(i);
        return optimizer_.finish();
    }

private:
    struct tensor {
        std::vector<float> param, exp_avg, exp_avg_sq;
        std::vector<bfloat16> grad, weight;
        adamant::device_arrays there;
        tensor(std::size_t n, std::uint32_t seed) : param(n), exp_avg(n), exp_avg_sq(n), grad(n), weight(n)
        {
            for (std::size_t i = 0; i < n; ++i) {
                param[i] = bell(random_bits(static_cast<std::uint32_t>(i) + seed)) * 0.02f;
                grad[i] =
                    adamant::narrow<bfloat16>(bell(random_bits(static_cast<std::uint32_t>(i) * 2 + seed)) * 1e-3f);
            }
        }
    };
    std::shared_ptr<emulated_device> gpu_;
    std::vector<std::unique_ptr<tensor>> tensors_;
    optimizer optimizer_;
};

// So many bytes down and up at once.
class crossing {
public:
    crossing(std::shared_ptr<emulated_device> gpu, std::size_t bytes)
        : gpu_(std::move(gpu)), host_(2 * bytes), there_(gpu_->allocate(2 * bytes)), bytes_(bytes)
    {
    }
    ~crossing() { gpu_->release(there_); }
    void run()
    {
        constexpr std::size_t at_once = 2 << 20;
        for (std::size_t at = 0; at < bytes_; at += at_once) {
            std::size_t const n = std::min(at_once, bytes_ - at);
            gpu_->copy_down(host_.data() + at, there_ + at, n);
            gpu_->copy_up(there_ + (bytes_ + at), host_.data() + bytes_ + at, n);
        }
        for (adamant::device_lane const lane : {adamant::device_lane::down, adamant::device_lane::up})
            if (!gpu_->wait_until(gpu_->mark(lane), adamant::device::clock::time_point::max()))
                throw std::runtime_error("the link does not answer");
    }

private:
    std::shared_ptr<emulated_device> gpu_;
    std::vector<std::byte> host_;
    adamant::device_ptr there_;
    std::size_t bytes_;
};

double seconds_of(std::function<void()> const& run)
{
    std::vector<double> all;
    for (int i = 0; i < 9; ++i) {
        auto const begin = std::chrono::steady_clock::now();
        run();
        all.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return median(all);
}

std::shared_ptr<emulated_device> device_with(double cpu_elems_per_s, double link_share)
{
    double const bytes_per_s = 28 * cpu_elems_per_s;
    return std::make_shared<emulated_device>(adamant::emulation_options{.work_bytes_per_s = bytes_per_s / 2,
                                                                        .up_bytes_per_s = bytes_per_s * link_share,
                                                                        .down_bytes_per_s = bytes_per_s * link_share,
                                                                        .latency_s = 10e-6});
}

struct setting {
    adamant::executor cpu;
    std::function<std::shared_ptr<emulated_device>()> gpu; // another one each time
    std::size_t n;
    adamant::step_rates rates;
};

adamant::step_rates measure(adamant::executor const& cpu, std::shared_ptr<emulated_device> const& gpu, std::size_t n)
{
    auto const half = static_cast<double>(n / 2);
    side_by_side alone(cpu, nullptr, n / 2, 1);
    side_by_side there(cpu, gpu, n / 2, 0);
    crossing link(gpu, n);
    double const link_bytes_per_s = 2 * half / seconds_of([&] { link.run(); });
    return {.elems = static_cast<double>(n),
            .cpu_elems_per_s = half / seconds_of([&] { (void)alone.step(); }),
            .device_elems_per_s = half / seconds_of([&] { (void)there.step(); }),
            .down_bytes_per_s = link_bytes_per_s,
            .up_bytes_per_s = link_bytes_per_s};
}

void hybrid(State& state, setting const& at, double ratio)
{
    auto const on_cpu = static_cast<std::size_t>(ratio * static_cast<double>(at.n));
    side_by_side both(at.cpu, at.gpu(), at.n, ratio);
    side_by_side alone(at.cpu, nullptr, on_cpu, 1);
    side_by_side there(at.cpu, at.gpu(), at.n - on_cpu, 0);
    crossing link(at.gpu(), 2 * on_cpu);
    std::vector<contender> all;
    all.push_back({part_in_race::subject, "hybrid", [&] { (void)both.step(); }});
    all.push_back({part_in_race::reference, "cpu", [&] { (void)alone.step(); }});
    all.push_back({part_in_race::reference, "device", [&] { (void)there.step(); }});
    all.push_back({part_in_race::reference, "link", [&] { link.run(); }});
    race::run(state, all, 1);
    double slowest = 0;
    for (contender const& each : all) {
        state.counters[each.name + "_ms"] = median(each.seconds) * 1e3;
        if (each.part == part_in_race::reference)
            slowest = std::max(slowest, median(each.seconds));
    }
    std::vector<double> over;
    for (double const seconds : all[0].seconds)
        over.push_back(seconds / slowest);
    double const predicted = adamant::forecast(at.rates, ratio).step_s;
    state.counters["of_slowest"] = median(over);
    state.counters["p10"] = race::quantile(over, 0.1);
    state.counters["p90"] = race::quantile(over, 0.9);
    state.counters["forecast_ms"] = predicted * 1e3;
    state.counters["of_forecast"] = median(all[0].seconds) / predicted;
}

bool skipped = false;

} // namespace

int main(int argc, char** argv)
{
    try {
        benchmark::Initialize(&argc, argv);
        double elems = 0x1p25;
        double iterations = 15;
        for (int i = 1; i < argc; ++i) {
            std::string_view const argument = argv[i];
            auto const take = [&](std::string_view key, double& to) {
                if (!argument.starts_with(key))
                    return false;
                to = std::strtod(argv[i] + key.size(), nullptr);
                return to >= 1 && to <= 0x1p31;
            };
            if (!take("--elems=", elems) && !take("--iterations=", iterations))
                throw std::invalid_argument(
                    std::string(argument) +
                    " is not understood; there are --elems= and "
                    "--iterations=, numbers from 1 to 2^31, and those that begin with --benchmark_");
        }
        adamant::executor const cpu(
            adamant::executor_options{.threads = std::max(2u, adamant::executor().threads()) - 1});
        auto const n = static_cast<std::size_t>(elems);
        double rate = 0;
        {
            side_by_side alone(cpu, nullptr, n / 2, 1);
            rate = static_cast<double>(n / 2) / seconds_of([&] { (void)alone.step(); });
        }
        benchmark::AddCustomContext("adamant_isa", std::string(adamant::name(cpu.tier())));
        benchmark::AddCustomContext("threads", std::to_string(cpu.threads()));
        benchmark::AddCustomContext("cpu_elems_per_s", std::to_string(rate));
        for (auto const& [name, share] : {std::pair{"pcie5", 1.0 / 6}, std::pair{"c2c", 1.0}}) {
            auto const gpu = [rate, share = share] { return device_with(rate, share); };
            setting const at{cpu, gpu, n, measure(cpu, gpu(), n)};
            for (double const ratio : {0.1, 0.25, 0.5, 0.75, 0.9})
                benchmark::RegisterBenchmark(
                    ("hybrid/link:" + std::string(name) + "/ratio:" + std::to_string(ratio).substr(0, 4)).c_str(),
                    [=](State& state) {
                        try {
                            hybrid(state, at, ratio);
                        } catch (std::exception const& error) {
                            skipped = true;
                            state.SkipWithError(error.what());
                        }
                    })
                    ->Iterations(static_cast<std::int64_t>(iterations))
                    ->UseManualTime()
                    ->Unit(benchmark::kMillisecond);
        }
        benchmark::RunSpecifiedBenchmarks();
        benchmark::Shutdown();
        return skipped ? 1 : 0;
    } catch (std::exception const& error) {
        std::fprintf(stderr, "adamant_benchmark_hybrid: %s\n", error.what());
        return 2;
    }
}
