// SPDX-License-Identifier: Apache-2.0
// Calls of zenflow_optimizer and optimizer that must be refused, or that must leave everything as it was.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <adamant/emulated_device.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/zenflow.hpp>

#include "catch.hpp"
#include "emulated.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::mentions;
using test::refusal;

namespace {

constexpr std::size_t misuse_rows = 64, misuse_columns = 8, misuse_elems = misuse_rows * misuse_columns;

// A matrix of 64 x 8 and a vector of 64, in one process.
struct misused {
    std::vector<float> param, grad, exp_avg, exp_avg_sq, weights, vector, vector_grad, vector_avg, vector_avg_sq;
    zenflow_optimizer by;
    std::shared_ptr<emulated_device> on;
    std::vector<device_arrays> there;

    explicit misused(zenflow_options options = {.topk_ratio = 0.5, .select_interval = 4, .update_interval = 4},
                     optimizer_options step = {.on_nonfinite = nonfinite_policy::skip})
        : param(misuse_elems, 0.5f), grad(misuse_elems, 0.25f), exp_avg(misuse_elems), exp_avg_sq(misuse_elems),
          weights(misuse_elems, 0.5f), vector(64, 0.5f), vector_grad(64, 0.25f), vector_avg(64), vector_avg_sq(64),
          by(executor({.threads = 2}), options, std::move(step))
    {
        by.add_group("all", adamw());
        by.add_param({0, "matrix", shard(param, grad, exp_avg, exp_avg_sq), misuse_columns, weights.data()});
        by.add_param({0, "vector", shard(vector, vector_grad, vector_avg, vector_avg_sq)});
    }
    void set_arrays()
    {
        there = {{on->allocate(misuse_elems * 4), on->allocate(misuse_elems * 4)},
                 {on->allocate(256), on->allocate(256)}};
        for (std::size_t i = 0; i < there.size(); ++i)
            by.set_device_arrays(i, there[i]);
        std::memcpy(on->real(there[0].grad, misuse_elems * 4), grad.data(), misuse_elems * 4);
        std::memcpy(on->real(there[1].grad, 256), vector_grad.data(), 256);
    }
    void place(std::shared_ptr<emulated_device> target)
    {
        on = std::move(target);
        set_arrays();
        by.place(on);
    }
    [[nodiscard]] std::vector<float> values()
    {
        std::vector<float> all;
        (void)by.state();
        for (auto const* each : {&param, &exp_avg, &exp_avg_sq, &weights, &vector, &vector_avg, &vector_avg_sq})
            all.insert(all.end(), each->begin(), each->end());
        return all;
    }
};

// The state of rows [begin, end) of a misused's params.
zenflow_state rows_of(zenflow_state state, std::size_t begin, std::size_t end, std::vector<std::vector<float>>& memory)
{
    for (zenflow_state_param& p : state.params) {
        std::size_t const columns = std::max<std::size_t>(1, p.columns);
        auto const by_columns = [&](std::byte const* array) {
            auto const* source = reinterpret_cast<float const*>(array);
            memory.emplace_back();
            for (std::size_t c = 0; c < columns; ++c)
                memory.back().insert(memory.back().end(), source + c * p.rows + begin, source + c * p.rows + end);
            return reinterpret_cast<std::byte const*>(memory.back().data());
        };
        for (std::size_t const which : {0u, 2u, 3u})
            p.arrays[which] = by_columns(p.arrays[which]);
        if (p.weights != nullptr)
            p.weights += begin * columns * sizeof(float);
        if (p.sums != nullptr)
            p.sums += begin * columns;
        p.first_row = begin;
        p.rows = end - begin;
    }
    return state;
}

// A source that fails in the middle of a load.
struct failing_source final : state_source {
    void read(std::byte const*, std::size_t, std::byte*) const override
    {
        throw corrupted("adamant: the file is damaged");
    }
};

} // namespace

TEST_CASE("zenflow: the state of a rank that is passed twice in place of another is refused")
{
    misused a;
    a.by.step();
    std::vector<std::vector<float>> memory;
    zenflow_state const all = a.by.state();
    zenflow_state const first = rows_of(all, 0, 32, memory);
    zenflow_state const last = rows_of(all, 32, 64, memory);
    misused b;
    b.by.load(std::vector{last, first});
    CHECK(b.values() == a.values());
    std::vector<float> const before = b.values();
    for (auto const& states : {std::vector{first, first}, std::vector{last, last}, std::vector{first, last, last}})
        CHECK(mentions(refusal<invalid_argument>([&] { b.by.load(states); }),
                       {"cannot load 'matrix': row", "Pass the state of every rank exactly once."}));
    CHECK(mentions(refusal<invalid_argument>([&] { b.by.load(first); }), {"row 32 is missing (needed: 0 to 63)"}));
    CHECK(b.values() == before);
}

TEST_CASE("zenflow: a state that no optimizer can have is not loaded")
{
    misused a;
    a.by.step();
    std::vector<float> const before = a.values();
    auto const refused = [&](auto const& spoil, char const* text) {
        zenflow_state state = a.by.state();
        spoil(state);
        CHECK(mentions(refusal<invalid_argument>([&] { a.by.load(state); }), {text}));
    };
    refused([](zenflow_state& s) { s.params[0].selected[3] = 255; }, "neither 0 nor 1");
    refused([](zenflow_state& s) { s.params[0].publishing[3] = 2; }, "neither 0 nor 1");
    refused([](zenflow_state& s) { s.params[0].counts.pop_back(); }, "count");
    refused([](zenflow_state& s) { s.params[1].arrays[2] = nullptr; }, "exp_avg");
    refused([](zenflow_state& s) { s.groups[0].hyper.lr = std::nan(""); }, "lr");
    CHECK(a.values() == before);
    misused scaled({}, {.loss_scaling = loss_scaling_options{}});
    zenflow_state state = scaled.by.state();
    state.loss_scaler->scale = 0;
    CHECK(mentions(refusal<invalid_argument>([&] { scaled.by.load(state); }), {"scale"}));
    scaled.by.step();
}

TEST_CASE("zenflow: a state that was loaded in part can be neither read nor published")
{
    misused a;
    a.by.step();
    std::vector<std::vector<float>> memory;
    zenflow_state good = rows_of(a.by.state(), 0, 64, memory);
    zenflow_state bad = good;
    failing_source const source;
    bad.params[1].source = &source;
    CHECK(refusal<corrupted>([&] { a.by.load(bad); }) != "no exception");
    CHECK(mentions(refusal<invalid_argument>([&] { (void)a.by.state(); }), {"inconsistent", "load()"}));
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.flush(); }), {"inconsistent"}));
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.step(); }), {"inconsistent"}));
    a.by.load(good);
    a.by.step();
}

TEST_CASE("zenflow: values that no step can have are refused before the step is open")
{
    misused a;
    double const nan = std::nan("");
    std::vector<double> const lr{nan};
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.begin_step({.loss_scale = 0.0}); }), {"loss"}));
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.begin_step({.lr = lr}); }), {"lr"}));
    std::vector<std::uint64_t> const numbers{1, 2};
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.begin_step({.shard_steps = numbers}); }), {"step numbers"}));
    a.by.step(); // no step is open
}

TEST_CASE("zenflow: params on a device stay on it, with their arrays, until they are returned", "[both]")
{
    misused a;
    a.place(test::make_device());
    a.by.step();
    std::vector<float> extra(64, 0.5f), extra_grad(64), extra_avg(64), extra_avg_sq(64);
    CHECK(mentions(refusal<invalid_argument>([&] {
                       misused fresh;
                       fresh.place(test::make_device());
                       fresh.by.add_param({0, "late", shard(extra, extra_grad, extra_avg, extra_avg_sq)});
                   }),
                   {"cannot call add_param() after place()"}));
    auto const other = test::make_device();
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.place(other); }),
                   {"they have arrays on", "without a device first"}));
    a.by.place(a.on); // it is there already
    a.by.step();
    a.by.place(nullptr);
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.place(a.on); }), {"no arrays on the device"}));
    misused b; // the same steps without a device
    b.by.step();
    b.by.step();
    CHECK(a.values() == b.values());
    auto const small = test::make_device(emulation_options{.memory_bytes = 6000});
    CHECK(mentions(refusal<unavailable>([&] { a.place(small); }), {"bytes"}));
    a.by.step(); // on the CPU
    b.by.step();
    CHECK(a.values() == b.values());
}

TEST_CASE("zenflow: gradients of two params cannot be downloaded to the same memory", "[both]")
{
    misused a;
    std::vector<float> param(64, 0.5f), exp_avg(64), exp_avg_sq(64);
    a.by.add_param({0, "twin", shard(param, a.vector_grad, exp_avg, exp_avg_sq)});
    a.by.step(); // the CPU only reads it
    a.on = test::make_device();
    a.set_arrays();
    a.by.set_device_arrays(2, {a.on->allocate(256), a.on->allocate(256)});
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.place(a.on); }), {"grad", "overlap in memory"}));
    a.by.step();
    misused b;
    b.place(test::make_device());
    b.by.step();
    b.by.place(nullptr);
    b.by.set_gradient(1, b.vector_grad.data()); // only read again
    b.by.step();
}

TEST_CASE("zenflow: a param whose weights overlap its other arrays is not added, and another can be")
{
    misused a;
    std::vector<float> param(misuse_elems, 0.5f), grad(misuse_elems), avg(misuse_elems), avg_sq(misuse_elems);
    std::vector<float> weights(misuse_elems, 0.5f);
    auto const add = [&](float* published) {
        a.by.add_param({0, "other", shard(param, grad, avg, avg_sq), misuse_columns, published});
    };
    CHECK(mentions(refusal<invalid_argument>([&] { add(param.data()); }), {"weights", "overlap"}));
    CHECK(mentions(refusal<invalid_argument>([&] { add(avg.data() + 1); }), {"weights", "overlap"}));
    add(weights.data());
    a.by.step();
}

TEST_CASE("zenflow: the weights that a step writes are no gradient of another param")
{
    misused a;
    a.by.step();
    CHECK(mentions(refusal<invalid_argument>([&] { a.by.set_gradient(1, a.weights.data()); }),
                   {"weights", "overlap in memory"}));
    a.by.step();
}

TEST_CASE("zenflow: after a device has died, place(nullptr) and load() go on without it", "[both]")
{
    misused a({.topk_ratio = 0.5, .select_interval = 4, .update_interval = 4},
              {.on_nonfinite = nonfinite_policy::skip, .device_timeout_s = 0.2});
    a.by.step();
    std::vector<std::vector<float>> memory;
    zenflow_state const kept = rows_of(a.by.state(), 0, 64, memory);
    std::vector<float> const before = a.values();
    a.place(test::make_device());
    a.on->hang(device_operation::work, 1);
    CHECK(refusal<device_error>([&] { a.by.step(); }) != "no exception");
    CHECK(mentions(refusal<device_error>([&] { (void)a.by.state(); }), {"inconsistent"}));
    CHECK(mentions(refusal<device_error>([&] { a.by.load(kept); }), {"place(nullptr)"}));
    a.by.place(nullptr);
    CHECK(mentions(refusal<invalid_argument>([&] { (void)a.by.state(); }), {"inconsistent"}));
    a.by.load(kept);
    CHECK(a.values() == before);
    a.on->resume();
    a.by.step();
}

TEST_CASE("zenflow: after a device has died with weights unpublished, another one can be used", "[both]")
{
    misused a({.topk_ratio = 0.5, .select_interval = 4, .update_interval = 1, .overlap = false},
              {.on_nonfinite = nonfinite_policy::skip, .device_timeout_s = 0.5});
    a.by.step();
    std::vector<std::vector<float>> memory;
    zenflow_state kept = rows_of(a.by.state(), 0, 64, memory);
    std::vector<float> const before = a.values();
    std::vector<float> const weights = a.weights;
    kept.params[0].weights = reinterpret_cast<std::byte const*>(weights.data());
    std::size_t unpublished = 0;
    for (std::size_t after = 0; after < 30 && unpublished == 0; ++after) {
        a.place(test::make_device());
        a.by.step();
        a.on->hang(device_operation::copy_up, after);
        std::string const text = refusal<device_error>([&] { a.by.step(); });
        if (text != "no exception") {
            unpublished += text.find("is complete nevertheless") != text.npos;
            CHECK(mentions(refusal<device_error>([&] { a.by.load(kept); }), {"place(nullptr)"}));
        }
        a.by.place(nullptr);
        std::shared_ptr<emulated_device> const old = a.on;
        a.on = test::make_device();
        a.set_arrays();
        if (text != "no exception") // as an optimizer without deferred gradients says
            CHECK(mentions(refusal<invalid_argument>([&] { a.by.place(a.on); }), {"inconsistent", "load()"}));
        a.by.load(kept);
        a.by.place(a.on);
        old->resume();
        CHECK(a.values() == before);
        a.by.step();
        a.by.place(nullptr);
        a.by.load(kept);
        if (text == "no exception")
            break;
    }
    CHECK((unpublished != 0 || test::shares_memory));
}

TEST_CASE("zenflow: a reduction that fails leaves the step open, whatever it throws", "[both]")
{
    for (bool const on_device : {false, true}) {
        int calls = 0, failing = -1;
        auto const reduce = [&](auto&&...) {
            if (++calls == failing)
                throw device_error("adamant: the reduction's own device has failed");
        };
        misused a({.topk_ratio = 0.5, .select_interval = 1, .update_interval = 1, .reduce_columns = reduce},
                  {.on_nonfinite = nonfinite_policy::skip, .reduce = reduce});
        if (on_device)
            a.place(test::make_device());
        a.by.begin_step();
        for (std::size_t i = 0; i < 2; ++i)
            a.by.submit(i);
        for (failing = 1; failing < 4; ++failing) { // the norm, the largest gradients, the scores
            calls = 0;
            CHECK(mentions(refusal<device_error>([&] { a.by.finish(); }), {"the reduction's own device"}));
        }
        failing = -1;
        a.by.finish();
        misused b({.topk_ratio = 0.5, .select_interval = 1, .update_interval = 1});
        b.by.step();
        CHECK(a.by.steps() == 1);
        CHECK(a.values() == b.values());
    }
}

TEST_CASE("zenflow: a sum in place of the maximum over ranks is refused", "[both]")
{
    for (bool const on_device : {false, true})
        for (std::int64_t const ranks : {2, 4, 5, 1024}) {
            misused a({.topk_ratio = 0.5, .select_interval = 1, .reduce_columns = [&](auto numbers, column_reduction) {
                           for (std::int64_t& each : numbers)
                               each *= ranks;
                       }});
            a.grad.assign(misuse_elems, 0.01f); // the sum of two is a number, too
            if (on_device)
                a.place(test::make_device());
            CHECK(mentions(refusal<invalid_argument>([&] { a.by.step(); }),
                           {"cannot use the result", "of reduce_columns", "Return the maximum"}));
        }
}

TEST_CASE("zenflow: rounding that becomes stochastic while columns are on a device has the same bits", "[both]")
{
    auto const run = [](bool on_device) {
        constexpr std::size_t rows = 64, columns = 8, n = rows * columns;
        std::vector<float> param(n, 0.5f), grad(n), exp_avg(n), weights(n, 0.5f);
        std::vector<bfloat16> exp_avg_sq(n);
        for (std::size_t i = 0; i < n; ++i)
            grad[i] = static_cast<float>(1 + i % 97) * 1e-3f * (i % columns % 3 == 0 ? 10.0f : 1.0f);
        zenflow_optimizer by(executor({.threads = 2}), {.topk_ratio = 0.4, .select_interval = 100});
        hyperparameters nearest = adamw();
        nearest.rounding.exp_avg_sq = rounding::nearest;
        by.add_group("all", nearest);
        by.add_param({0, "matrix", shard(param, grad, exp_avg, exp_avg_sq), columns, weights.data()});
        std::shared_ptr<emulated_device> on;
        if (on_device) {
            on = test::make_device();
            device_arrays const there = {on->allocate(n * 4), on->allocate(n * 4)};
            by.set_device_arrays(0, there);
            std::memcpy(on->real(there.grad, n * 4), grad.data(), n * 4);
            by.place(on);
        }
        by.step();
        by.set_hyperparameters(0, adamw());
        for (int step = 0; step < 3; ++step)
            by.step();
        (void)by.state();
        by.place(nullptr);
        return std::pair(exp_avg_sq, weights);
    };
    auto const [on_cpu, weights_of_cpu] = run(false);
    auto const [on_device, weights_of_device] = run(true);
    CHECK(std::memcmp(on_cpu.data(), on_device.data(), on_cpu.size() * sizeof(bfloat16)) == 0);
    CHECK((weights_of_cpu == weights_of_device));
}

TEST_CASE("zenflow: the report of a window does not count deferred updates that flush() has waited for", "[both]")
{
    misused a({.topk_ratio = 0.5, .select_interval = 100, .update_interval = 1});
    a.by.step();
    a.by.flush();
    std::vector<void const*> const none(2);
    double deferred_s = 0;
    for (int step = 0; step < 4; ++step)
        deferred_s += a.by.step_gradients(none).deferred_s;
    CHECK(deferred_s == 0);
}

TEST_CASE("zenflow: no task of the team loads a state or accumulates a gradient, and nothing has changed")
{
    std::size_t const n = 400'000;
    std::vector<float> param(n, 0.5f), grad(n, 0.25f), exp_avg(n), exp_avg_sq(n), sum(n);
    executor const cpu({.threads = 2});
    optimizer o(cpu);
    o.add_group("all", adamw());
    o.add_shard({.group = 0, .name = "w", .shard = shard(param, grad, exp_avg, exp_avg_sq), .accumulator = sum});
    o.step();
    state_dict const state = o.state();
    std::vector<std::string> texts(2);
    cpu.team()->run([&](unsigned member) noexcept {
        if (member == 0) {
            texts[0] = refusal<invalid_argument>([&] { o.load(state); });
            texts[1] = refusal<invalid_argument>([&] { o.accumulate(0); });
        }
    });
    CHECK(mentions(texts[0], {"from its own task"}));
    CHECK(mentions(texts[1], {"from its own task"}));
    o.step(); // the state is consistent
    CHECK(std::all_of(sum.begin(), sum.end(), [](float x) { return x == 0; }));
}

TEST_CASE("the CPU is not busy for longer than the step lasts, with weights_ready, too")
{
    std::size_t const n = 2'000'000;
    std::vector<float> param(n, 0.5f), grad(n, 0.25f), exp_avg(n), exp_avg_sq(n);
    optimizer o(executor({.threads = 2}), {.weights_ready = [](shard_id, std::size_t, std::size_t) {}});
    o.add_group("all", adamw());
    o.add_shard({.group = 0, .name = "w", .shard = shard(param, grad, exp_avg, exp_avg_sq)});
    for (int step = 0; step < 3; ++step) {
        optimizer_report const r = o.step();
        CHECK(r.cpu_busy_s <= r.seconds * 1.001);
        CHECK(r.cpu_busy_s > 0);
    }
}
