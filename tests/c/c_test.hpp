// SPDX-License-Identifier: Apache-2.0
// What the tests of the C interface share: checks of a status and its text, structs that are initialised, handles that
// free themselves, a model.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <adamant/adamant.h>
#include <adamant/dtype.hpp>

#include "catch.hpp"

namespace c_test {

inline std::string last_error()
{
    return adamant_last_error();
}
inline void ok(adamant_status status)
{
    INFO(adamant_last_error());
    REQUIRE(status == ADAMANT_OK);
}
// The call fails in this way, with a text of the library's kind that holds these words.
inline void fails(adamant_status status, adamant_status expected, std::string const& words)
{
    INFO(adamant_last_error());
    REQUIRE(adamant_status_name(status) == std::string(adamant_status_name(expected)));
    REQUIRE(last_error().starts_with("adamant: "));
    REQUIRE(last_error().find(words) != std::string::npos);
}
inline void refused(adamant_status status, std::string const& words)
{
    fails(status, ADAMANT_INVALID_ARGUMENT, words);
}

template <class Struct>
Struct initialised(adamant_status (*init)(Struct*, std::size_t))
{
    Struct it;
    std::memset(&it, 0xa5, sizeof it);
    ok(init(&it, sizeof it));
    return it;
}
inline adamant_executor_options executor_options()
{
    return initialised(adamant_executor_options_init);
}
inline adamant_team_options team_options()
{
    return initialised(adamant_team_options_init);
}
inline adamant_buffer_options buffer_options()
{
    return initialised(adamant_buffer_options_init);
}
inline adamant_optimizer_options options()
{
    return initialised(adamant_optimizer_options_init);
}
inline adamant_split_options split_options()
{
    return initialised(adamant_split_options_init);
}
inline adamant_emulation_options emulation_options()
{
    return initialised(adamant_emulation_options_init);
}
inline adamant_tuning_options tuning_options()
{
    return initialised(adamant_tuning_options_init);
}
inline adamant_loss_scaling scaling()
{
    return initialised(adamant_loss_scaling_init);
}
inline adamant_hyperparameters hyperparameters()
{
    return initialised(adamant_hyperparameters_init);
}
inline adamant_shard shard()
{
    return initialised(adamant_shard_init);
}
inline adamant_shard shard(std::size_t elements, void* param, void* grad, void* exp_avg, void* exp_avg_sq)
{
    adamant_shard s = shard();
    s.elements = elements;
    s.param = param;
    s.grad = grad;
    s.exp_avg = exp_avg;
    s.exp_avg_sq = exp_avg_sq;
    return s;
}
inline adamant_step_values step_values()
{
    return initialised(adamant_step_values_init);
}
inline adamant_report report()
{
    return initialised(adamant_report_init);
}
inline adamant_core_options core_options()
{
    return initialised(adamant_core_options_init);
}

// Frees what the library has made.
struct freed {
    void operator()(adamant_team* t) const { adamant_team_free(t); }
    void operator()(adamant_buffer* b) const { adamant_buffer_free(b); }
    void operator()(adamant_executor* e) const { adamant_executor_free(e); }
    void operator()(adamant_optimizer* o) const { adamant_optimizer_free(o); }
    void operator()(adamant_state* s) const { adamant_state_free(s); }
    void operator()(adamant_device* d) const { adamant_device_free(d); }
    void operator()(adamant_placement* p) const { adamant_placement_free(p); }
    void operator()(adamant_tuned* t) const { adamant_tuned_free(t); }
    void operator()(adamant_deepspeed* d) const { adamant_deepspeed_free(d); }
    void operator()(adamant_zenflow* z) const { adamant_zenflow_free(z); }
};
using team = std::unique_ptr<adamant_team, freed>;
using buffer = std::unique_ptr<adamant_buffer, freed>;
using executor = std::unique_ptr<adamant_executor, freed>;
using optimizer = std::unique_ptr<adamant_optimizer, freed>;
using state = std::unique_ptr<adamant_state, freed>;
using device = std::unique_ptr<adamant_device, freed>;
using placement = std::unique_ptr<adamant_placement, freed>;
using tuned = std::unique_ptr<adamant_tuned, freed>;
using deepspeed = std::unique_ptr<adamant_deepspeed, freed>;
using zenflow = std::unique_ptr<adamant_zenflow, freed>;

inline executor make_executor(std::uint32_t threads = 2)
{
    adamant_executor_options o = executor_options();
    o.threads = threads;
    o.bind = ADAMANT_BIND_NONE;
    adamant_executor* made = nullptr;
    ok(adamant_executor_create(&o, &made));
    return executor(made);
}

// Shards of several blocks, with arrays that begin as they always do.
struct model {
    static constexpr std::size_t sizes[] = {9000, 4096, 1, 5000};
    struct tensor {
        std::vector<float> param, grad, exp_avg, exp_avg_sq, sum;
        std::vector<std::uint16_t> weight_out;
    };
    std::vector<tensor> tensors;

    model()
    {
        test::random_bits random(1);
        for (std::size_t const n : sizes) {
            tensor t{std::vector<float>(n), std::vector<float>(n), std::vector<float>(n),
                     std::vector<float>(n), std::vector<float>(n), std::vector<std::uint16_t>(n)};
            for (std::size_t i = 0; i < n; ++i) {
                t.param[i] = test::value_of(test::values::ordinary, random, -4, 0);
                t.weight_out[i] = adamant::narrow<adamant::bfloat16>(t.param[i]).bits;
            }
            tensors.push_back(t);
        }
        new_gradients(0);
    }
    void new_gradients(std::uint64_t step)
    {
        test::random_bits random(100 + step);
        for (tensor& t : tensors)
            for (float& g : t.grad)
                g = test::value_of(test::values::ordinary, random, -8, -2);
    }
    adamant_shard describe(std::size_t i)
    {
        adamant_shard s = shard();
        tensor& t = tensors[i];
        s.elements = t.param.size();
        s.param = t.param.data();
        s.grad = t.grad.data();
        s.exp_avg = t.exp_avg.data();
        s.exp_avg_sq = t.exp_avg_sq.data();
        s.weight_out = t.weight_out.data();
        s.weight_out_dtype = ADAMANT_BFLOAT16;
        s.accumulator = t.sum.data();
        s.accumulator_dtype = ADAMANT_FLOAT32;
        return s;
    }
    void add_to(adamant_optimizer* o)
    {
        adamant_hyperparameters h = hyperparameters();
        h.weight_decay = 0.01;
        h.decay = ADAMANT_DECAY_DECOUPLED;
        std::size_t group = 99;
        ok(adamant_add_group(o, "all", &h, 0, &group));
        REQUIRE(group == 0);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            adamant_shard const s = describe(i);
            std::size_t number = 99;
            ok(adamant_add_shard(o, 0, ("tensor" + std::to_string(i)).c_str(), &s, &number));
            REQUIRE(number == i);
        }
    }
    [[nodiscard]] std::uint64_t digest() const
    {
        std::uint64_t hash = 0xcbf29ce484222325u;
        auto const add = [&](void const* data, std::size_t bytes) {
            for (std::size_t i = 0; i < bytes; ++i)
                hash = (hash ^ static_cast<unsigned char const*>(data)[i]) * 0x100000001b3u;
        };
        for (tensor const& t : tensors) {
            for (std::vector<float> const* a : {&t.param, &t.exp_avg, &t.exp_avg_sq})
                add(a->data(), a->size() * sizeof(float));
            add(t.weight_out.data(), t.weight_out.size() * 2);
        }
        return hash;
    }
};

inline optimizer make_optimizer(model& m, adamant_optimizer_options const& o, std::uint32_t threads = 2)
{
    adamant_optimizer* made = nullptr;
    ok(adamant_optimizer_create(make_executor(threads).get(), &o, &made));
    m.add_to(made);
    return optimizer(made);
}
inline optimizer make_optimizer(model& m, std::uint32_t threads = 2)
{
    return make_optimizer(m, options(), threads);
}
inline std::uint64_t steps_of(optimizer const& o)
{
    std::uint64_t steps = 0;
    ok(adamant_steps(o.get(), &steps));
    return steps;
}

// A folder for one test.
struct folder {
    std::filesystem::path path;
    folder() : path(std::filesystem::temp_directory_path() / ("adamant_c_" + std::to_string(getpid())))
    {
        std::filesystem::create_directories(path);
    }
    ~folder() { std::filesystem::remove_all(path); }
    [[nodiscard]] std::string file(char const* name) const { return (path / name).string(); }
};

} // namespace c_test

using namespace c_test;
