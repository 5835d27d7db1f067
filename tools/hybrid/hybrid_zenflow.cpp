// SPDX-License-Identifier: Apache-2.0
// Definitions of hybrid_zenflow.hpp.
#include "hybrid_zenflow.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/adamant.hpp>
#include <adamant/formats.hpp>
#include <adamant/split.hpp>
#include <adamant/tune.hpp>
#include <adamant/zenflow.hpp>

#include "../adamant/plan_zenflow.hpp"
#include "hybrid_device.hpp"

namespace {

using adamant::bfloat16;
using clock_type = std::chrono::steady_clock;

double seconds(clock_type::duration time)
{
    return std::chrono::duration<double>(time).count();
}

// A matrix with state by columns, or a vector (columns 0). Gradients and weights are on the device.
struct tensor {
    std::string name;
    std::size_t rows, columns;
    adamant::shard_dtypes types;
    std::vector<std::byte> master, exp_avg, exp_avg_sq; // zero bytes are zeros in every type
    std::shared_ptr<std::byte> grad;
    std::vector<bfloat16> weight_out, weights;
    adamant::device_arrays on_device;

    tensor(std::string tensor_name, std::size_t row_count, std::size_t column_count,
           adamant::shard_dtypes const& dtypes, adamant::device& gpu)
        : name(std::move(tensor_name)), rows(row_count), columns(column_count), types(dtypes),
          master(array_bytes(types[0], elems())), exp_avg(array_bytes(types[2], elems())),
          exp_avg_sq(array_bytes(types[3], elems())), grad(gpu.pinned(2 * elems())), weight_out(elems()),
          weights(columns == 0 ? 0 : elems()), on_device{gpu.allocate(2 * elems()), gpu.allocate(2 * elems())}
    {
        for (std::size_t i = 0; i < elems(); ++i) {
            float const first = 0.01f * static_cast<float>(static_cast<int>(i % 401) - 200) / 200;
            if (has_split_param(types)) {
                adamant::split_masters(&first, 1, &weight_out[i],
                                       reinterpret_cast<adamant::split_float32*>(master.data()) + i);
            } else {
                std::memcpy(&master[i * sizeof first], &first, sizeof first);
                weight_out[i] = adamant::narrow<bfloat16>(first);
            }
            if (columns != 0) // i counts by columns
                weights[i % rows * columns + i / rows] = weight_out[i];
        }
    }
    [[nodiscard]] std::size_t elems() const { return rows * std::max<std::size_t>(1, columns); }
    [[nodiscard]] adamant::optimizer_shard shard()
    {
        adamant::kernel::step_pointers const arrays{master.data(), grad.get(), exp_avg.data(), exp_avg_sq.data(),
                                                    reinterpret_cast<std::byte*>(weight_out.data())};
        return adamant::optimizer_shard({*adamant::find_format(types), arrays, elems()});
    }
};

// Qwen2.5-3B's layers and a proportional embedding, as in hybrid.cpp, with separate tensors for vectors.
std::vector<tensor> make_model(zenflow_settings const& chosen, adamant::device& gpu)
{
    constexpr std::size_t hidden = 2048, keys = 256, feed_forward = 11008, vocabulary = 151936;
    std::vector<tensor> all;
    all.emplace_back("embedding", vocabulary * chosen.layers / 36 / 64 * 64, hidden, chosen.types, gpu);
    for (std::size_t i = 0; i < chosen.layers; ++i) {
        std::string const prefix = "layer " + std::to_string(i) + " ";
        struct shape {
            char const* name;
            std::size_t rows, columns;
        };
        for (shape const& s :
             {shape{"norm 1", hidden, 0}, shape{"q", hidden, hidden}, shape{"k", keys, hidden},
              shape{"v", keys, hidden}, shape{"biases", hidden + 2 * keys, 0}, shape{"o", hidden, hidden},
              shape{"norm 2", hidden, 0}, shape{"gate", feed_forward, hidden}, shape{"up", feed_forward, hidden},
              shape{"down", hidden, feed_forward}})
            all.emplace_back(prefix + s.name, s.rows, s.columns, chosen.types, gpu);
    }
    return all;
}

// FNV-1a (Fowler, Noll, Vo) over the bytes of masters.
std::uint64_t digest_of(std::vector<tensor> const& model)
{
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (tensor const& t : model)
        for (std::byte const b : t.master)
            hash = (hash ^ static_cast<std::uint64_t>(b)) * 0x100000001b3u;
    return hash;
}

// The times of one step.
struct measured_step {
    double step_s = 0, backward_s = 0;
    adamant::zenflow_report report = {};
};
using step_list = std::vector<measured_step>;

// The training loop, which the three ways have in common.
struct loop {
    adamant::device& gpu;
    std::vector<tensor>& model;
    std::size_t elems;
    double backward_s, forward_s;

    measured_step step(std::size_t number, std::function<void()> const& begin,
                       std::function<void(std::size_t)> const& submit,
                       std::function<adamant::zenflow_report()> const& finish) const
    {
        auto const wait_until = [](clock_type::time_point end) { std::this_thread::sleep_until(end); };
        auto const to_duration = [](double s) {
            return std::chrono::duration_cast<clock_type::duration>(std::chrono::duration<double>(s));
        };
        for (std::size_t i = 0; i < model.size(); ++i) // made before backward
            make_gradient(gpu, model[i].on_device.grad, model[i].elems(),
                          static_cast<std::uint32_t>(number * 1000 + i));
        auto const start = clock_type::now();
        begin();
        double completed = 0;
        for (std::size_t i = model.size(); i-- > 0;) { // backward, from the last tensor
            completed += static_cast<double>(model[i].elems()) / static_cast<double>(elems);
            wait_until(start + to_duration(backward_s * completed));
            submit(i);
        }
        measured_step result;
        result.backward_s = seconds(clock_type::now() - start);
        result.report = finish();
        wait_until(clock_type::now() + to_duration(forward_s));
        result.step_s = seconds(clock_type::now() - start);
        return result;
    }
};

template <class Value>
double median(step_list const& steps, Value const& value)
{
    std::vector<double> all;
    for (measured_step const& step : steps)
        all.push_back(value(step));
    std::sort(all.begin(), all.end());
    return all.empty() ? 0 : all[all.size() / 2];
}
template <class Value>
double mean(step_list const& steps, Value const& value)
{
    double sum = 0;
    for (measured_step const& step : steps)
        sum += value(step);
    return steps.empty() ? 0 : sum / static_cast<double>(steps.size());
}

void print_row(char const* name, double step_s, double forecast_s, double stall_s, double forecast_stall_s, double down,
               double up)
{
    std::printf("  %-12s %7.1f %8.1f  %7.1f %8.1f  %7.1f %7.1f\n", name, step_s * 1e3, forecast_s * 1e3, stall_s * 1e3,
                forecast_stall_s * 1e3, down / 1e6, up / 1e6);
}

adamant::optimizer_options const common{.max_norm = 1};
adamant::hyperparameters const adamw{.lr = 1e-4, .weight_decay = 0.1, .mode = adamant::decay_mode::decoupled};

// Runs ZenFlow. Returns the steps after the first two windows that do not select.
step_list steps_with_zenflow(zenflow_settings const& chosen, adamant::executor const& cpu,
                             std::shared_ptr<adamant::device> const& gpu, std::vector<tensor>& model,
                             loop const& training)
{
    adamant::zenflow_optimizer optimizer(cpu, chosen.options, common);
    optimizer.add_group("all", adamw);
    for (std::size_t i = 0; i < model.size(); ++i) {
        optimizer.add_param({0, model[i].name, model[i].shard(), model[i].columns,
                             model[i].columns == 0 ? nullptr : model[i].weights.data()});
        optimizer.set_device_arrays(i, model[i].on_device);
    }
    optimizer.place(gpu);
    std::size_t const window_steps = chosen.options.update_interval.value();
    std::size_t const steps =
        chosen.steps != 0 ? chosen.steps : std::max(5 * window_steps, chosen.options.select_interval + 1);
    step_list counted;
    for (std::size_t step = 1; step <= steps; ++step) {
        measured_step const result = training.step(
            step, [&] { optimizer.begin_step(); }, [&](std::size_t i) { optimizer.submit(i); },
            [&] { return optimizer.finish(); });
        if (!chosen.only_digest)
            std::printf("step %zu: norm %.4f, %6.1f ms%s%s\n", std::size_t{result.report.step},
                        result.report.global_norm, result.step_s * 1e3, result.report.selected ? ", selects" : "",
                        result.report.window_ended ? ", ends a window" : "");
        if (!result.report.selected && step > 2 * window_steps)
            counted.push_back(result);
    }
    (void)optimizer.state(); // copies the device's part to host memory
    std::printf("digest of the masters %016llx\n", static_cast<unsigned long long>(digest_of(model)));
    optimizer.place(nullptr);
    return counted;
}

step_list steps_without(adamant::speculation speculate, adamant::executor const& cpu,
                        std::shared_ptr<adamant::device> const& gpu, std::vector<tensor>& model, loop const& training)
{
    adamant::optimizer_options options = common;
    options.speculate = speculate;
    options.max_norm = 1e9; // so that speculative steps are committed
    adamant::optimizer optimizer(cpu, options);
    optimizer.add_group("all", adamw);
    for (std::size_t i = 0; i < model.size(); ++i) {
        optimizer.add_shard({.group = 0, .name = model[i].name, .shard = model[i].shard()});
        optimizer.set_device_arrays(i, model[i].on_device);
    }
    optimizer.place(gpu, adamant::split(optimizer.shard_sizes(), {.ratio = 1}));
    step_list counted;
    for (std::size_t step = 1; step <= 8; ++step) {
        measured_step const result = training.step(
            step, [&] { optimizer.begin_step(); }, [&](std::size_t i) { optimizer.submit(i); },
            [&] {
                adamant::zenflow_report report;
                static_cast<adamant::optimizer_report&>(report) = optimizer.finish();
                return report;
            });
        if (step > 2)
            counted.push_back(result);
    }
    optimizer.place(nullptr, adamant::split(optimizer.shard_sizes(), {.ratio = 1}));
    return counted;
}

// The end of a pipeline that tensors pass through whole, one stage after the other, in the order of backward. stages:
// seconds of each stage for an element.
double pipeline_s(std::vector<tensor> const& model, std::initializer_list<double> stages)
{
    std::vector<double> free(stages.size());
    double end = 0;
    for (std::size_t i = model.size(); i-- > 0;) {
        end = 0;
        for (std::size_t stage = 0; stage < stages.size(); ++stage) {
            end = std::max(end, free[stage]) + static_cast<double>(model[i].elems()) * stages.begin()[stage];
            free[stage] = end;
        }
    }
    return end;
}

} // namespace

void run_zenflow(zenflow_settings const& chosen)
{
    unsigned const cores = adamant::executor().threads();
    adamant::executor const cpu(
        adamant::executor_options{.threads = std::max(cores, cores_needed() + 1) - cores_needed()});
    adamant::trial_step trial(cpu, *adamant::find_format(chosen.types), std::size_t{1} << 23);
    double rate = 0;
    for (int i = 0; i < 5; ++i)
        rate = std::max(rate, static_cast<double>(trial.size()) / trial.seconds(cpu));
    double const work_bytes_per_s = step_bytes(chosen.types) * rate;
    std::shared_ptr<adamant::device> const gpu = make_device(chosen.link, work_bytes_per_s);
    std::vector<tensor> model = make_model(chosen, *gpu);
    std::size_t elems = 0, matrices = 0;
    for (tensor const& t : model) {
        elems += t.elems();
        matrices += t.columns == 0 ? 0 : t.elems();
    }
    auto const ms_or = [](double ms, double otherwise_s) { return ms > 0 ? ms * 1e-3 : otherwise_s; };
    loop const training{*gpu, model, elems, ms_or(chosen.backward_ms, 0.5 * static_cast<double>(elems) / rate),
                        ms_or(chosen.forward_ms, 0.25 * static_cast<double>(elems) / rate)};
    if (!chosen.only_digest)
        std::printf("%zu parameters: %zu layer%s of Qwen2.5-3B's shapes; CPU: %s, %u thread%s; device: %s\n", elems,
                    chosen.layers, chosen.layers == 1 ? "" : "s", name(cpu.tier()).data(), cpu.threads(),
                    cpu.threads() == 1 ? "" : "s", gpu->name().c_str());
    step_list const zenflow = steps_with_zenflow(chosen, cpu, gpu, model, training);
    if (!chosen.only_digest && !zenflow.empty()) {
        step_list const plain = steps_without(adamant::speculation::never, cpu, gpu, model, training);
        step_list const speculation = steps_without(adamant::speculation::always, cpu, gpu, model, training);
        auto const down_bytes = [](measured_step const& m) { return static_cast<double>(m.report.device.down_bytes); };
        auto const up_bytes = [](measured_step const& m) { return static_cast<double>(m.report.device.up_bytes); };
        auto const step_s = [](measured_step const& m) { return m.step_s; };

        // The rates of each part, as they were measured.
        cli::zenflow_rates rates;
        double const down_rate =
            median(plain, [&](measured_step const& m) { return down_bytes(m) / m.report.device.down_s; });
        double const up_rate =
            median(plain, [&](measured_step const& m) { return up_bytes(m) / m.report.device.up_s; });
        rates.down_bytes_per_s = down_rate;
        rates.up_bytes_per_s = up_rate;
        rates.backward_s = training.backward_s;
        rates.forward_s = training.forward_s;
        cli::zenflow_rates plain_rates = rates;
        plain_rates.deferred_elems = plain_rates.all_elems = plain_rates.matrix_elems = static_cast<double>(elems);
        plain_rates.update_interval = 1;
        plain_rates.overlap = false;
        plain_rates.first_sum_bytes = plain_rates.publishing_bytes = 0;
        plain_rates.host_bytes_per_s = 1; // so that bytes are seconds
        plain_rates.host_step_bytes =
            median(plain, [](measured_step const& m) { return m.report.update.seconds; }) / static_cast<double>(elems);
        rates.all_elems = static_cast<double>(elems);
        rates.matrix_elems = static_cast<double>(matrices);
        rates.selected_elems =
            median(zenflow, [](measured_step const& m) { return static_cast<double>(m.report.elements); });
        rates.deferred_elems = static_cast<double>(elems) - rates.selected_elems;
        rates.update_interval = chosen.options.update_interval.value();
        rates.overlap = chosen.options.overlap;
        step_list ending, others;
        for (measured_step const& m : zenflow)
            (m.report.window_ended ? ending : others).push_back(m);
        // The measured time: columns in host memory take longer than the device's rates predict.
        double const device_s = median(others, [](measured_step const& m) { return m.report.update.seconds; });
        rates.device_bytes_per_s = 1e18; // counts all of the device's work as its step
        rates.device_step_bytes = device_s * rates.device_bytes_per_s / std::max(1.0, rates.selected_elems);
        rates.publishing_bytes = median(ending, [](measured_step const& m) { return m.report.publish_s; }) *
                                 rates.device_bytes_per_s / rates.deferred_elems;
        rates.host_bytes_per_s = 1;
        rates.sum_bytes = rates.first_sum_bytes =
            median(zenflow, [](measured_step const& m) { return m.report.sums_s; }) / rates.matrix_elems;
        rates.host_step_bytes =
            median(ending, [](measured_step const& m) { return m.report.deferred_s; }) / rates.deferred_elems;

        // Speculation steps the tensors in the order of their gradients and writes records.
        namespace shard_array = adamant::shard_array;
        bool is_float = true; // as in plan_request::has_float_state()
        for (auto const array : {shard_array::param, shard_array::exp_avg, shard_array::exp_avg_sq})
            is_float = is_float && chosen.types[array] == adamant::dtype::float32;
        double const record = (is_float ? 2.1 : adamant::state_bytes(chosen.types)) / adamant::step_bytes(chosen.types);
        double const speculation_step_s =
            pipeline_s(model, {training.backward_s / static_cast<double>(elems), 2 / down_rate,
                               plain_rates.host_step_bytes * (1 + record), 2 / up_rate}) +
            training.forward_s;
        cli::zenflow_forecast const plain_forecast = forecast_zenflow(plain_rates);
        cli::zenflow_forecast const forecast = forecast_zenflow(rates);
        double const waits = training.backward_s + training.forward_s;
        std::printf("\n  ms, MB         step forecast    stall forecast     down      up\n");
        print_row("plain", median(plain, step_s), plain_forecast.step_s, median(plain, step_s) - waits,
                  plain_forecast.stall_s, median(plain, down_bytes), median(plain, up_bytes));
        print_row("speculation", median(speculation, step_s), speculation_step_s, median(speculation, step_s) - waits,
                  speculation_step_s - waits, median(speculation, down_bytes), median(speculation, up_bytes));
        double const publish_s = median(ending, [](measured_step const& m) { return m.report.publish_s; });
        double const works_s = device_s + publish_s / static_cast<double>(rates.update_interval);
        print_row("ZenFlow", mean(zenflow, step_s), forecast.step_s, mean(zenflow, step_s) - waits - works_s,
                  std::max(0.0, forecast.stall_s - publish_s / static_cast<double>(rates.update_interval)),
                  mean(zenflow, down_bytes), mean(zenflow, up_bytes));
        double const deferred_s = median(ending, [](measured_step const& m) { return m.report.deferred_s; });
        double const waited_s = mean(ending, [](measured_step const& m) { return m.report.waited_s; });
        std::printf("  the deferred update of a window took the host %.1f of %.1f ms, and the device waited %.1f for "
                    "it: %.1f%% "
                    "hidden; publishing took %.1f\n",
                    1e3 * deferred_s, 1e3 * forecast.window_s, 1e3 * waited_s, 100 * (1 - waited_s / deferred_s),
                    1e3 * publish_s);
    }
    for (tensor const& t : model) {
        gpu->release(t.on_device.grad);
        gpu->release(t.on_device.weight_out);
    }
}
