// SPDX-License-Identifier: Apache-2.0
// The C interface: options, groups and shards that cannot be.
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "c_test.hpp"

TEST_CASE("C: options, groups and shards that cannot be")
{
    model m;
    executor const cpu = make_executor();
    optimizer const o = make_optimizer(m);
    adamant_executor* e = nullptr;
    adamant_optimizer* made = nullptr;

    adamant_executor_options eo = executor_options();
    eo.isa = "sse9";
    refused(adamant_executor_create(&eo, &e), "sse9");
    eo = executor_options();
    eo.pus = "0-";
    refused(adamant_executor_create(&eo, &e), "0-");
    eo.pus = "60000";
    fails(adamant_executor_create(&eo, &e), ADAMANT_UNAVAILABLE, "60000");
    eo.threads = 1;
    fails(adamant_executor_create(&eo, &e), ADAMANT_UNAVAILABLE, "60000");
    REQUIRE(e == nullptr);
    eo = executor_options();
    eo.isa = "scalar";
    eo.pus = "";
    eo.threads = 3;
    eo.bind = ADAMANT_BIND_NONE;
    ok(adamant_executor_create(&eo, &e));
    executor const three(e);
    char const* isa = nullptr;
    char const* pus = nullptr;
    std::uint32_t threads = 0;
    ok(adamant_executor_describe(e, &isa, &threads, &pus));
    REQUIRE((isa == std::string("scalar") && pus == std::string() && threads == 3));

    adamant_optimizer_options oo = options();
    oo.max_norm = -1;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "max_norm");
    oo.max_norm = oo.max_abs_grad = 1;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "max_abs_grad");
    adamant_loss_scaling ls = scaling();
    REQUIRE((ls.initial_scale == 65536 && ls.growth_factor == 2 && ls.backoff_factor == 0.5 && ls.min_scale == 1 &&
             ls.max_scale == 0x1p32 && ls.growth_interval == 2000 && ls.hysteresis == 1));
    oo = options();
    oo.loss_scaling = &ls;
    for (auto const& [field, name] : {std::pair{&adamant_loss_scaling::initial_scale, "initial_scale"},
                                      {&adamant_loss_scaling::growth_factor, "growth_factor"},
                                      {&adamant_loss_scaling::backoff_factor, "backoff_factor"},
                                      {&adamant_loss_scaling::min_scale, "min_scale"},
                                      {&adamant_loss_scaling::max_scale, "max_scale"}}) {
        ls = scaling();
        ls.*field = -3;
        refused(adamant_optimizer_create(cpu.get(), &oo, &made), name);
    }
    ls = scaling();
    ls.growth_interval = 0;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "growth_interval");
    ls = scaling();
    ls.hysteresis = 0;
    refused(adamant_optimizer_create(cpu.get(), &oo, &made), "hysteresis");
    REQUIRE(made == nullptr);

    adamant_hyperparameters h = hyperparameters();
    REQUIRE((h.lr == 1e-3 && h.beta1 == 0.9 && h.beta2 == 0.999 && h.eps == 1e-8 && h.weight_decay == 0 &&
             h.decay == ADAMANT_DECAY_UNSET && h.bias_correction == 1 &&
             h.exp_avg_sq_rounding == ADAMANT_ROUND_STOCHASTIC && h.param_rounding == ADAMANT_ROUND_NEAREST &&
             h.rounding_seed == 0));
    h.param_rounding = 2;
    refused(adamant_add_group(o.get(), "x", &h, 0, nullptr), "param_rounding");
    for (auto const& [field, name] : {std::pair{&adamant_hyperparameters::lr, "lr"},
                                      {&adamant_hyperparameters::beta1, "beta1"},
                                      {&adamant_hyperparameters::beta2, "beta2"},
                                      {&adamant_hyperparameters::eps, "eps"},
                                      {&adamant_hyperparameters::weight_decay, "weight_decay"}}) {
        h = hyperparameters();
        h.*field = -0.5;
        refused(adamant_add_group(o.get(), "x", &h, 0, nullptr), std::string(name) + " is -0.5");
    }
    h = hyperparameters();
    refused(adamant_add_group(o.get(), "all", &h, 0, nullptr), "'all'");
    h = {sizeof h, 0.25, 0.5, 0.75, 0.125, 0.0625, ADAMANT_DECAY_L2, 0, ADAMANT_ROUND_NEAREST, ADAMANT_ROUND_STOCHASTIC,
         77};
    refused(adamant_set_hyperparameters(o.get(), 1, &h), "group 1");
    ok(adamant_set_hyperparameters(o.get(), 0, &h));
    adamant_hyperparameters got = hyperparameters();
    ok(adamant_get_hyperparameters(o.get(), 0, &got));
    REQUIRE(std::memcmp(&got, &h, sizeof h) == 0);
    refused(adamant_get_hyperparameters(o.get(), 1, &got), "group 1");
    ok(adamant_add_group(o.get(), "b", &h, 1, nullptr));

    // A shard: each pointer, each mismatch of a pointer and a type, each kind of place.
    model other;
    auto const add = [&](adamant_shard const& s, char const* name = "x", std::size_t group = 0) {
        return adamant_add_shard(o.get(), group, name, &s, nullptr);
    };
    for (auto const& [field, name] : {std::pair{&adamant_shard::param, "param"},
                                      {&adamant_shard::exp_avg, "exp_avg"},
                                      {&adamant_shard::exp_avg_sq, "exp_avg_sq"},
                                      {&adamant_shard::weight_out, "weight_out"},
                                      {&adamant_shard::accumulator, "accumulator"}}) {
        adamant_shard s = other.describe(0);
        s.*field = nullptr;
        refused(add(s), std::string(name) + " is");
    }
    adamant_shard s = other.describe(0);
    s.grad = nullptr;
    refused(add(s), "grad is null");
    s = other.describe(0);
    s.weight_out_dtype = ADAMANT_NONE;
    refused(add(s), "weight_out_dtype is ADAMANT_NONE");
    s = other.describe(0);
    s.accumulator_dtype = ADAMANT_NONE;
    refused(add(s), "accumulator_dtype is ADAMANT_NONE");
    s.accumulator_dtype = ADAMANT_FLOAT16;
    refused(add(s), "accumulator_dtype is float16");
    s = other.describe(0);
    s.exp_avg = s.param;
    refused(add(s), "overlap");
    s = other.describe(0);
    s.elements = SIZE_MAX / 4;
    refused(add(s), "does not fit in memory");
    s = other.describe(0);
    refused(add(s, ""), "no name");
    refused(add(s, "x", 2), "group 2");
    std::size_t const shape[] = {100, 90};
    s.dims = 2;
    refused(add(s), "dims is 2, but shape is a null");
    s.shape = shape;
    s.dims = 0;
    refused(add(s), "dims is 0, but shape is given");
    s.dims = 2;
    s.begin = 1;
    refused(add(s), "9001, but the parameter has 9000");
    std::size_t const huge[] = {SIZE_MAX, 3};
    s.shape = huge;
    refused(add(s), "more elements than fit in memory");
    s.shape = shape;
    for (std::size_t const dims : {std::size_t{65}, SIZE_MAX / 4, SIZE_MAX}) {
        s.dims = dims;
        refused(add(s), "dims is " + std::to_string(dims));
    }
    s = other.describe(0);
    s.accumulator = const_cast<void*>(s.grad);
    refused(add(s), "grad and accumulator of shard 4 overlap");
    // Another shard's array is found before anything is written there.
    s = other.describe(0);
    s.accumulator = m.tensors[0].param.data();
    ok(add(s));
    refused(adamant_accumulate(o.get(), 4), "param of shard 0 and accumulator of shard 4 overlap");
    refused(adamant_prepare(o.get(), 0), "overlap");
}
