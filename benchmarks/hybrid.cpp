// SPDX-License-Identifier: Apache-2.0
// A step on CPU and device concurrently, the device imitated in host memory: how far it is from the slowest of its
// parts alone, and from what the forecast says.
//
//   hybrid/link:LINK/ratio:R/elems:N/threads:T
//
// bfloat16 gradients and weights on the device, float state, a norm that has to be known; all gradients are there when
// the step begins. Against it: the CPU's part by itself, with gradients in host memory; the device's part by itself;
// and the link, with what crosses it, by itself.
//
// The forecast's rates are from one measurement of the parts alone at ratio 0.5, before the first row of a link. The
// device's rates are set from the CPU's: its own to half of it, the links as they stand to a host's memory bandwidth,
// PCIe 5 a sixth, NVLink-C2C the same. One core is left to the threads that imitate.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/emulated_device.hpp>
#include <adamant/split.hpp>
#include <adamant/tune.hpp>

#include "references.hpp"
#include "rows.hpp"
#include "training.hpp"

namespace bench {

namespace {

using adamant::emulated_device;
using benchmark::State;

constexpr std::size_t shards = 16;

// An optimizer over about n elements in 16 shards, a share of them with the CPU, gradients and weights on the device if
// there is one.
class side_by_side {
public:
    side_by_side(executor const& cpu, std::shared_ptr<emulated_device> gpu, std::size_t n, double ratio)
        : gpu_(std::move(gpu)), data_(cpu, shards * adamant::norm_block_elems * blocks_each(n), shards),
          optimizer_(cpu, {.max_norm = never_reached, .speculate = adamant::speculation::always})
    {
        data_.add_to(optimizer_);
        if (gpu_ != nullptr) {
            std::size_t const bytes = data_.shard_elems() * sizeof(bfloat16);
            for (std::size_t i = 0; i < shards; ++i) {
                there_.push_back({gpu_->allocate(bytes), gpu_->allocate(bytes)});
                std::memcpy(gpu_->real(there_[i].grad, bytes), data_.grad() + i * data_.shard_elems(), bytes);
                optimizer_.set_device_arrays(i, there_[i]);
            }
            optimizer_.place(gpu_, adamant::split(optimizer_.shard_sizes(), {.ratio = ratio}));
        }
        optimizer_.prepare();
        for (int i = 0; i < 30; ++i) // what records need settles
            step();
    }
    ~side_by_side()
    {
        if (gpu_ == nullptr)
            return;
        optimizer_.place(nullptr, adamant::split(optimizer_.shard_sizes(), {.ratio = 1}));
        for (adamant::device_arrays const& each : there_) {
            gpu_->release(each.grad);
            gpu_->release(each.weight_out);
        }
    }
    side_by_side(side_by_side const&) = delete;
    side_by_side& operator=(side_by_side const&) = delete;

    void step()
    {
        optimizer_.begin_step();
        for (std::size_t i = shards; i-- > 0;)
            optimizer_.submit(i);
        optimizer_.finish();
    }
    [[nodiscard]] std::size_t elems() const { return data_.elems(); }

private:
    static std::size_t blocks_each(std::size_t n)
    {
        return std::max<std::size_t>(n / shards / adamant::norm_block_elems, 1);
    }
    std::shared_ptr<emulated_device> gpu_;
    training data_;
    std::vector<adamant::device_arrays> there_;
    optimizer optimizer_;
};

// Copies bytes down and up concurrently.
class crossing {
public:
    crossing(std::shared_ptr<emulated_device> gpu, std::size_t bytes)
        : gpu_(std::move(gpu)), host_(2 * bytes), there_(gpu_->allocate(2 * bytes)), bytes_(bytes)
    {
    }
    ~crossing() { gpu_->release(there_); }
    crossing(crossing const&) = delete;
    crossing& operator=(crossing const&) = delete;
    void run()
    {
        constexpr std::size_t at_once = 2 << 20;
        for (std::size_t at = 0; at < bytes_; at += at_once) {
            std::size_t const n = std::min(at_once, bytes_ - at);
            gpu_->copy_down(host_.data() + at, there_ + at, n);
            gpu_->copy_up(there_ + (bytes_ + at), host_.data() + bytes_ + at, n);
        }
        for (adamant::device_stream const stream : {adamant::device_stream::down, adamant::device_stream::up})
            if (!gpu_->wait_until(gpu_->record_event(stream), adamant::device::clock::time_point::max()))
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
        auto const start = std::chrono::steady_clock::now();
        run();
        all.push_back(race::seconds_since(start));
    }
    return adamant::median(all);
}

// What the rows of one link have in common.
struct machine {
    executor cpu;
    double cpu_elems_per_s = 0;
    double link_share = 0; // of the CPU's bandwidth
    adamant::step_rates rates = {};

    machine(unsigned threads, std::size_t n, double share)
        : cpu(adamant::executor_options{.threads = threads}), link_share(share)
    {
        side_by_side alone(cpu, nullptr, n / 2, 1);
        cpu_elems_per_s = static_cast<double>(alone.elems()) / seconds_of([&] { alone.step(); });
        std::shared_ptr<emulated_device> const device = gpu();
        side_by_side there(cpu, device, n / 2, 0);
        crossing link(device, n);
        double const link_bytes_per_s = static_cast<double>(n) / seconds_of([&] { link.run(); });
        rates = {.elems = static_cast<double>(n),
                 .cpu_elems_per_s = static_cast<double>(alone.elems()) / seconds_of([&] { alone.step(); }),
                 .device_elems_per_s = static_cast<double>(there.elems()) / seconds_of([&] { there.step(); }),
                 .down_bytes_per_s = link_bytes_per_s,
                 .up_bytes_per_s = link_bytes_per_s};
    }
    // Another one each time.
    [[nodiscard]] std::shared_ptr<emulated_device> gpu() const
    {
        double const bytes_per_s = 28 * cpu_elems_per_s;
        return std::make_shared<emulated_device>(
            adamant::emulation_options{.work_bytes_per_s = bytes_per_s / 2,
                                       .up_bytes_per_s = bytes_per_s * link_share,
                                       .down_bytes_per_s = bytes_per_s * link_share,
                                       .latency_s = 10e-6});
    }
};

void hybrid(State& state, machine const& at, std::size_t n, double ratio)
{
    auto const on_cpu = static_cast<std::size_t>(ratio * static_cast<double>(n));
    side_by_side both(at.cpu, at.gpu(), n, ratio);
    side_by_side alone(at.cpu, nullptr, on_cpu, 1);
    side_by_side there(at.cpu, at.gpu(), n - on_cpu, 0);
    crossing link(at.gpu(), 2 * on_cpu);
    std::vector<contender> all;
    all.push_back({part_in_race::subject, "hybrid", "", [&] { both.step(); }});
    all.push_back({part_in_race::limit, "the CPU's part alone", "", [&] { alone.step(); }});
    all.push_back({part_in_race::limit, "the device's part alone", "", [&] { there.step(); }});
    all.push_back({part_in_race::limit, "the link alone", "", [&] { link.run(); }});
    race::run(state, all);
    report(state, all, moving(n, mixed::bytes_per_element()));
    state.counters["over_forecast"] = adamant::median(all[0].seconds) / adamant::forecast(at.rates, ratio).step_s;
}

} // namespace

void add_hybrid(setup const& given)
{
    unsigned const threads = std::max(2u, given.all().threads()) - 1;
    std::size_t const n = elements_for(given.chosen.bytes / 4, memory_bytes(mixed::dtypes));
    for (auto const& [link, share] : {std::pair{"pcie5", 1.0 / 6}, std::pair{"c2c", 1.0}}) {
        auto const common = std::make_shared<std::optional<machine>>(); // measured by the first row that is run
        for (double const ratio : {0.1, 0.25, 0.5, 0.75, 0.9}) {
            if (given.chosen.quick && ratio != 0.25 && ratio != 0.75)
                continue;
            add_row("hybrid/link:" + std::string(link) + "/ratio:" + std::to_string(ratio).substr(0, 4) +
                        "/elems:" + std::to_string(n) + "/threads:" + std::to_string(threads),
                    given.chosen.rounds, [=, share = share](State& state) {
                        if (!*common)
                            common->emplace(threads, n, share);
                        hybrid(state, **common, n, ratio);
                    });
        }
    }
}

} // namespace bench
