// SPDX-License-Identifier: Apache-2.0
// What the library computes on the caller's thread outside of steps has the same results in any floating-point mode of
// the caller's, and none of the caller's traps hits it.
#include <bit>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <adamant/cores.hpp>
#include <adamant/deepspeed.hpp>
#include <adamant/emulated_device.hpp>
#include <adamant/hyperparameters.hpp>
#include <adamant/merge.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/safetensors.hpp>
#include <adamant/split.hpp>
#include <adamant/tune.hpp>
#include <adamant/tuned_json.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/zenflow_safetensors.hpp>
#include <adamant/detail/exec/system_memory.hpp>
#include <adamant/detail/topology/hwloc.hpp>
#include <adamant/detail/zenflow/column_selection.hpp>

#include "catch.hpp"
#include "folder.hpp"

using namespace adamant;

namespace {

// To the bit, so without a comparison of doubles.
struct found {
    std::vector<std::uint64_t> numbers = {};
    std::string text = {};

    void add(double x) { numbers.push_back(std::bit_cast<std::uint64_t>(x)); }
    friend bool operator==(found const&, found const&) = default;
};

struct call {
    char const* name;
    std::function<found()> make;
};

// A call, and what it says where it throws.
found made(call const& of)
{
    try {
        return of.make();
    } catch (std::exception const& error) {
        return {{}, error.what()};
    }
}

void add(found& to, hyperparameters const& h)
{
    for (double const x : {h.lr, h.beta1, h.beta2, h.eps, h.weight_decay})
        to.add(x);
}
void add(found& to, step_forecast const& f)
{
    for (double const x : {f.ratio, f.step_s, f.update_s})
        to.add(x);
    for (forecast_span const& s : f.timeline) {
        to.add(s.begin_s);
        to.add(s.end_s);
    }
}
void add(found& to, placement const& p)
{
    for (shard_piece const& piece : p.pieces)
        for (std::size_t const n : {piece.shard, piece.begin, piece.elems})
            to.numbers.push_back(n);
    to.add(p.ratio());
}

float const data[64] = {};
std::byte const* const bytes = reinterpret_cast<std::byte const*>(data);

parameter_group group()
{
    return {.name = "all",
            .hyper = adamw({.lr = 0.1, .beta1 = 0.7, .beta2 = 0.9991, .eps = 3e-9, .weight_decay = 0.3})};
}
state_dict plain_state(std::size_t rank)
{
    state_dict state{
        .step = 3, .loss_scaler = loss_scaler_state{0.3, 5, 1}, .groups = {group()}, .params = {}, .tensors = {}};
    for (std::size_t p = 0; p < 40; ++p) { // so many that a hash table grows
        state.params.push_back({"param " + std::to_string(p), {64}, 0});
        state.tensors.push_back({p, state_array::param, dtype::float32, rank * 32, 32, bytes});
    }
    return state;
}
zenflow_state deferred_state()
{
    zenflow_state state{zenflow_position{}, 0.1, loss_scaler_state{0.3, 5, 1}, {group()}, {}};
    zenflow_state_param p;
    p.name = "vector";
    p.all_rows = p.rows = 32;
    p.types = {dtype::float32, dtype::float32, dtype::float32, dtype::float32, dtype::none};
    for (auto const which : {shard_array::param, shard_array::exp_avg, shard_array::exp_avg_sq})
        p.arrays[which] = bytes;
    p.counts = {1};
    state.params.push_back(p);
    return state;
}
template <class Read, class State>
found there_and_back(State const& state)
{
    std::size_t const size = safetensors_bytes(state);
    std::vector<std::uint64_t> room((size + 7) / 8);
    std::span<std::byte> const memory(reinterpret_cast<std::byte*>(room.data()), size);
    write_safetensors(memory, state);
    Read const read{std::span<std::byte const>(memory)};
    found f{room};
    add(f, read.state().groups.at(0).hyper);
    f.add(read.state().loss_scaler->scale);
    return f;
}

step_rates rates()
{
    return {.elems = 1e9,
            .cpu_elems_per_s = 3.3e9,
            .device_elems_per_s = 7.7e10,
            .down_bytes_per_s = 1.3e10,
            .up_bytes_per_s = 1.1e10,
            .backward_s = 0.3,
            .forward_s = 0.1,
            .fixed_s = 0.007,
            .overlaps_forward = true};
}

std::vector<call> calls(std::filesystem::path const& folder)
{
    double const nan = std::numeric_limits<double>::quiet_NaN();
    std::vector<call> all;
    auto const add_call = [&](char const* name, std::function<found()> make) {
        all.push_back({name, std::move(make)});
    };
    add_call("merge", [] {
        std::vector<state_dict> const states = {plain_state(0), plain_state(1)};
        state_dict const whole = merge(states);
        found f{{whole.params.size(), whole.tensors.size()}, whole.params.back().name};
        add(f, whole.groups[0].hyper);
        return f;
    });
    add_call("validate(state)", [] { return validate(plain_state(1)), found{}; });
    add_call("validate(zenflow_state)", [] { return validate(deferred_state()), found{}; });
    add_call("a state in memory", [] { return there_and_back<safetensors_state>(plain_state(0)); });
    add_call("a zenflow_state in memory", [] { return there_and_back<zenflow_safetensors_state>(deferred_state()); });
    add_call("validate(hyperparameters)", [] { return validate(group().hyper), found{}; });
    add_call("hyperparameters that are none", [=] { return validate(hyperparameters{.lr = nan}), found{}; });
    add_call("validate(grad_scaling)",
             [] { return validate(grad_scaling{.loss_scale = 3, .clip_coefficient = 0.1}), found{}; });
    add_call("the largest factor that float holds", [] { // which is beyond float where it is rounded up
        return validate(grad_scaling{.loss_scale = 3, .clip_coefficient = 0x1.fffffep127 * 3}), found{};
    });
    add_call("validate(optimizer_options)", [] { return validate(optimizer_options{.max_norm = 0.1}), found{}; });
    add_call("optimizer_options that are none", [=] { return validate(optimizer_options{.max_norm = nan}), found{}; });
    add_call("validate(loss_scaling_options)",
             [=] { return validate(loss_scaling_options{.growth_factor = nan}), found{}; });
    add_call("after_step", [] {
        loss_scaling_options const options{.growth_factor = 1.3, .backoff_factor = 0.7, .growth_interval = 1};
        loss_scaler_state state = initial_state(options);
        found f;
        for (bool const overflow : {true, false, true, true, false}) {
            state = after_step(state, options, overflow);
            f.add(state.scale);
        }
        return f;
    });
    add_call("validate(zenflow_options)", [=] { return validate(zenflow_options{.topk_ratio = nan}), found{}; });
    add_call("ends_window", [] {
        zenflow_options options;
        options.update_interval.reset();
        options.auto_ratio = 0.1;
        zenflow_position at;
        at.steps = 9;
        at.done_squares = 3;
        found f;
        for (double const squares : {0.3, 0.1 * 3, std::nextafter(0.3, 0.0)})
            f.numbers.push_back(ends_window(options, at, squares));
        return f;
    });
    add_call("selected_columns", [] {
        return found{{selected_columns(1001, 0.1), selected_columns(15, 0.1), selected_columns(7, 0.7)}};
    });
    for (split_unit const unit : {split_unit::element, split_unit::shard, split_unit::deepspeed})
        add_call("split", [=] {
            found f;
            for (double const ratio : {0.1, 0.37, 0.9})
                add(f, split({1'000'003, 77'777, 12, 500'001}, {.ratio = ratio, .unit = unit}));
            return f;
        });
    add_call("forecast", [] {
        found f;
        add(f, forecast(rates(), 0.3));
        return f;
    });
    add_call("best_ratio", [] {
        found f;
        add(f, best_ratio(rates(), 0.1, 0.9));
        return f;
    });
    add_call("a ratio that is none", [=] { return static_cast<void>(forecast(rates(), nan)), found{}; });
    add_call("ratio_follower", [] {
        ratio_follower follower(rates(), {.weight = 0.3});
        follower.observe({.cpu_elems = 1e8, .cpu_s = 0.07, .device_elems = 1e9, .device_s = 0.3});
        follower.observe({.cpu_elems = 3e8, .cpu_s = 0.07, .device_elems = 1e9, .device_s = 0.9});
        follower.set_times(0.2, 0.7);
        found f;
        f.add(follower.proposal(0.9).value_or(-1));
        return f;
    });
    add_call("an emulated device", [] { // whose thread computes how long an operation takes
        emulated_device device({.up_bytes_per_s = 3e9, .latency_s = 1e-7});
        device_ptr const at = device.allocate(100'000);
        std::vector<std::byte> const from(100'000);
        device.copy_up(at, from.data(), from.size());
        bool const done =
            device.wait_until(device.record_event(device_stream::up), device::clock::now() + std::chrono::minutes(1));
        device.release(at);
        return found{{done}};
    });
    add_call("quantile", [] {
        found f;
        for (double const q : {0.1, 0.5, 0.77})
            f.add(quantile({0.1, 0.2, 0.7, 0.9}, q));
        return f;
    });
    add_call("range_of_median", [] {
        std::vector<double> values;
        for (std::size_t i = 0; i < 30; ++i)
            values.push_back(static_cast<double>(i));
        median_range const range = range_of_median(values, 0.95);
        found f;
        for (double const x : {range.low, range.high, range.confidence})
            f.add(x);
        return f;
    });
    add_call("fewest_within", [] {
        return found{{fewest_within({{.cores = 1, .median_s = 0.11}, {.cores = 2, .median_s = 0.1}}, 0.1)}};
    });
    add_call("parse_deepspeed_config", [] {
        offload_config const config =
            parse_deepspeed_config(
                R"({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.7, 0.9991], "eps": 3e-9,
                   "weight_decay": 0.3}}, "gradient_clipping": 0.1, "fp16": {"enabled": true, "loss_scale": 1.1}})")
                .options;
        found f;
        add(f, config.hyper);
        f.add(config.max_norm);
        f.add(config.loss_scale);
        return f;
    });
    add_call("clip_coefficient", [] {
        found f;
        f.add(clip_coefficient(3.3, 1.1));
        return f;
    });
    add_call("a tuning result in a file", [path = folder / "tuned.json"] {
        tuned_cores result;
        result.key = {{{"processor", "one"}}};
        result.cores = 6;
        result.available_cores = 8;
        result.cpuadam_cores_perc = 0.7;
        result.step_s = 0.1;
        result.curve = {{1, 0.3, 0.123, 0.7, 9}};
        save_tuned(path, result);
        tuned_cores const read = read_tuned(path);
        found f;
        for (double const x : {read.cpuadam_cores_perc, read.step_s, read.curve[0].median_s, read.curve[0].p10_s})
            f.add(x);
        return f;
    });
    add_call("select_cores", [] {
        static machine const on = machine_from_synthetic("pack:2 [numa] core:13 pu:2");
        found f;
        for (double const share : {0.3, 0.5, 0.9})
            for (rank_cores const& r : select_cores(on, {.cpuadam_cores_perc = share, .ranks = 2}))
                f.numbers.push_back(r.adam_pus.size());
        return f;
    });
    add_call("bytes as a text", [] { return found{{}, detail::bytes_text(100'000'001)}; });
    return all;
}

} // namespace

TEST_CASE("Nothing that is computed on the caller's thread follows its rounding mode")
{
    std::filesystem::path const folder = test::new_folder("rounding_modes");
    for (call const& each : calls(folder)) {
        INFO(each.name);
        found const expected = made(each);
        for (int const mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
            INFO("rounding mode " << mode);
            std::fesetround(mode);
            found const now = made(each);
            int const after = std::fegetround();
            std::fesetround(FE_TONEAREST);
            CHECK(after == mode);
            CHECK(now.text == expected.text);
            CHECK(now == expected);
        }
#if defined(__x86_64__)
        unsigned const usual = _mm_getcsr();
        _mm_setcsr(usual | 0x8040); // subnormals are flushed
        found const now = made(each);
        unsigned const after = _mm_getcsr();
        _mm_setcsr(usual);
        CHECK((after & 0x8040) == 0x8040);
        CHECK(now == expected);
#endif
    }
}

TEST_CASE("No trap of the caller's hits what is computed on its thread")
{
    std::feclearexcept(FE_ALL_EXCEPT);
    if (feenableexcept(FE_INEXACT) == -1) { // some processors of AArch64 have none
        WARN("skipped: this CPU has no traps");
        return;
    }
    fedisableexcept(FE_ALL_EXCEPT);
    std::filesystem::path const folder = test::new_folder("traps");
    for (call const& each : calls(folder)) {
        INFO(each.name);
        found const expected = made(each);
        pid_t const child = fork(); // which a trap ends
        if (child == 0) {
            std::feclearexcept(FE_ALL_EXCEPT);
            feenableexcept(FE_ALL_EXCEPT);
            found const now = made(each);
            bool const kept = fegetexcept() == FE_ALL_EXCEPT && std::fetestexcept(FE_ALL_EXCEPT) == 0;
            _exit(now == expected && kept ? 0 : 1);
        }
        int status = 0;
        REQUIRE(waitpid(child, &status, 0) == child);
        CHECK_FALSE(WIFSIGNALED(status));
        CHECK(status == 0);
    }
}
