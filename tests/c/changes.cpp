// SPDX-License-Identifier: Apache-2.0
// The C interface: what changes between steps. Groups and shards are found and removed, gradients move, counts are set.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "c_test.hpp"

namespace {

adamant_loss_scaler scaler_of(optimizer const& o)
{
    adamant_loss_scaler s = initialised(adamant_loss_scaler_init);
    std::int32_t found = 9;
    ok(adamant_get_loss_scaler(o.get(), &s, &found));
    REQUIRE(found == 1);
    return s;
}

} // namespace

TEST_CASE("C: groups and shards are found by name, and removed")
{
    model m;
    optimizer const o = make_optimizer(m);
    adamant_hyperparameters const h = hyperparameters();
    ok(adamant_add_group(o.get(), "empty", &h, 0, nullptr));
    ok(adamant_add_group(o.get(), "last", &h, 0, nullptr));
    std::vector<float> arrays(4 * 8);
    for (std::size_t part = 0; part < 2; ++part) {
        adamant_shard s = shard();
        std::size_t const all = 8;
        s.shape = &all;
        s.dims = 1;
        s.begin = 4 * part;
        s.elements = 4;
        s.param = arrays.data() + 4 * part;
        s.grad = arrays.data() + 8 + 4 * part;
        s.exp_avg = arrays.data() + 16 + 4 * part;
        s.exp_avg_sq = arrays.data() + 24 + 4 * part;
        ok(adamant_add_shard(o.get(), 2, "cut", &s, nullptr));
    }
    std::size_t number = 77;
    std::int32_t found = 9;
    auto const group = [&](char const* name) {
        ok(adamant_find_group(o.get(), name, &number, &found));
        return found != 0;
    };
    auto const shard_at = [&](char const* name, std::size_t begin) {
        ok(adamant_find_shard(o.get(), name, begin, &number, &found));
        return found != 0;
    };
    CHECK((group("empty") && number == 1));
    CHECK((group("last") && number == 2 && found == 1));
    CHECK((!group("none") && number == 2 && found == 0));
    CHECK((shard_at("tensor3", 0) && number == 3));
    CHECK((shard_at("cut", 4) && number == 5));
    CHECK((shard_at("cut", 0) && number == 4));
    CHECK((!shard_at("cut", 1) && !shard_at("tensor4", 0) && number == 4));
    char const* name = nullptr;
    ok(adamant_group_name(o.get(), 1, &name));
    CHECK(name == std::string("empty"));
    ok(adamant_shard_name(o.get(), 5, &name));
    CHECK(name == std::string("cut"));
    refused(adamant_group_name(o.get(), 3, &name), "no parameter group 3");
    refused(adamant_shard_name(o.get(), 6, &name), "no shard 6; the optimizer has 6");

    refused(adamant_remove_group(o.get(), 3), "no parameter group 3");
    refused(adamant_remove_group(o.get(), 2), "last");
    refused(adamant_remove_shard(o.get(), 6), "no shard 6");
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_remove_group(o.get(), 1), "cannot call adamant_remove_group(): a step is in progress");
    refused(adamant_remove_shard(o.get(), 1), "cannot call adamant_remove_shard(): a step is in progress");
    ok(adamant_abandon(o.get()));
    ok(adamant_remove_group(o.get(), 1));
    CHECK((group("last") && number == 1 && !group("empty")));
    std::vector<float> const before = m.tensors[0].param;
    ok(adamant_remove_shard(o.get(), 0));
    CHECK(m.tensors[0].param == before);
    CHECK((shard_at("cut", 4) && number == 4 && !shard_at("tensor0", 0)));
    std::size_t count = 0;
    ok(adamant_group_count(o.get(), &count));
    CHECK(count == 2);
    ok(adamant_shard_count(o.get(), &count));
    CHECK(count == 5);
    m.tensors[0] = {}; // its arrays may go
    adamant_report r = report();
    ok(adamant_step(o.get(), nullptr, &r));
    CHECK(r.elements == 4096 + 1 + 5000 + 8);
    // With shards on a device, all have to come home first.
    adamant_device* on = nullptr;
    ok(adamant_emulated_device_create(nullptr, &on));
    device const owned(on);
    adamant_split_options so = split_options();
    so.ratio = 0;
    std::size_t sizes[5];
    ok(adamant_shard_sizes(o.get(), sizes, 5));
    adamant_placement* made = nullptr;
    ok(adamant_split(sizes, 5, &so, &made));
    placement const where(made);
    ok(adamant_place(o.get(), on, made));
    refused(adamant_remove_shard(o.get(), 0), "adamant_place() without a device");
    ok(adamant_place(o.get(), nullptr, nullptr));
    ok(adamant_remove_shard(o.get(), 0));
}

TEST_CASE("C: a gradient that moves from step to step has the bits of one that stays")
{
    auto const run = [](int how, bool speculates) {
        model m;
        adamant_optimizer_options p = options();
        p.max_norm = 3;
        p.speculate = speculates ? ADAMANT_SPECULATE_ALWAYS : ADAMANT_SPECULATE_NEVER;
        optimizer const o = make_optimizer(m, p);
        std::vector<std::vector<float>> buffers[2];
        for (auto& buffer : buffers)
            for (model::tensor const& t : m.tensors)
                buffer.emplace_back(t.grad.size());
        for (std::uint64_t step = 1; step <= 5; ++step) {
            m.new_gradients(step);
            auto& buffer = buffers[step % 2];
            for (std::size_t i = 0; how != 0 && i < m.tensors.size(); ++i) {
                buffer[i] = m.tensors[i].grad;
                std::fill(m.tensors[i].grad.begin(), m.tensors[i].grad.end(), 1e30f);
                std::fill(buffers[1 - step % 2][i].begin(), buffers[1 - step % 2][i].end(), 1e30f);
            }
            if (how == 1)
                for (std::size_t i = 0; i < m.tensors.size(); ++i)
                    ok(adamant_set_gradient(o.get(), i, buffer[i].data()));
            if (how == 1 && step % 2 == 0) {
                ok(adamant_step(o.get(), nullptr, nullptr));
                continue;
            }
            if (how == 3) {
                std::vector<void const*> grads;
                for (auto const& each : buffer)
                    grads.push_back(each.data());
                ok(adamant_step_gradients(o.get(), grads.data(), grads.size(), nullptr, nullptr));
                continue;
            }
            ok(adamant_begin_step(o.get(), nullptr));
            std::atomic<int> bad{0};
            std::vector<std::thread> threads;
            for (std::size_t i = 0; i < m.tensors.size(); ++i)
                threads.emplace_back([&, i] {
                    bad += (how == 2 ? adamant_submit_gradient(o.get(), i, buffer[i].data())
                                     : adamant_submit(o.get(), i)) != ADAMANT_OK;
                });
            for (std::thread& t : threads)
                t.join();
            REQUIRE(bad == 0);
            if (how != 0) {
                refused(adamant_set_gradient(o.get(), 0, buffer[0].data()), "shard 0");
                refused(adamant_submit_gradient(o.get(), 0, buffer[0].data()), "shard 0");
            }
            ok(adamant_finish(o.get(), nullptr));
        }
        return m.digest();
    };
    std::uint64_t const expected = run(0, true);
    for (int const how : {1, 2, 3})
        for (bool const speculates : {true, false}) {
            INFO("way " << how << ", speculates " << speculates);
            CHECK(run(how, speculates) == expected);
        }

    model m;
    optimizer const o = make_optimizer(m);
    std::uint64_t const before = m.digest();
    refused(adamant_set_gradient(o.get(), 0, nullptr), "null");
    refused(adamant_set_gradient(o.get(), 4, m.tensors[0].grad.data()), "shard 4");
    refused(adamant_submit_gradient(o.get(), 0, m.tensors[0].grad.data()), "no step is open");
    ok(adamant_prepare(o.get(), 1));
    refused(adamant_set_gradient(o.get(), 0, m.tensors[0].param.data()), "overlap");
    refused(adamant_set_gradient(o.get(), 2, &m.tensors[3].exp_avg[4999]), "overlap");
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_submit_gradient(o.get(), 0, nullptr), "null");
    refused(adamant_submit_gradient(o.get(), 0, m.tensors[1].exp_avg_sq.data()), "overlap");
    for (std::size_t i = 0; i < m.tensors.size(); ++i)
        ok(adamant_submit(o.get(), i)); // the gradients are where they were
    ok(adamant_abandon(o.get()));
    CHECK(m.digest() == before);
}

TEST_CASE("C: gradients for a whole step, with shards left out, have the bits of a step by submits")
{
    for (double const max_norm : {0.0, 1.0}) {
        auto const run = [&](bool at_once) {
            model m;
            adamant_optimizer_options limited = options();
            limited.max_norm = max_norm;
            optimizer const o = make_optimizer(m, limited);
            for (std::uint64_t step = 1; step <= 5; ++step) {
                m.new_gradients(step);
                std::vector<void const*> grads;
                for (std::size_t i = 0; i < m.tensors.size(); ++i)
                    grads.push_back((i + step) % 3 == 0 ? nullptr : m.tensors[i].grad.data());
                adamant_report report = initialised(adamant_report_init);
                if (at_once) {
                    ok(adamant_step_gradients(o.get(), grads.data(), grads.size(), nullptr, &report));
                    CHECK(report.step == step);
                    continue;
                }
                ok(adamant_begin_step(o.get(), nullptr));
                for (std::size_t i = 0; i < grads.size(); ++i)
                    ok(grads[i] != nullptr ? adamant_submit_gradient(o.get(), i, grads[i]) : adamant_skip(o.get(), i));
                ok(adamant_finish(o.get(), nullptr));
            }
            return m.digest();
        };
        CHECK(run(true) == run(false));
    }
    model m;
    optimizer const o = make_optimizer(m);
    std::uint64_t const before = m.digest();
    std::vector<void const*> grads(m.tensors.size(), m.tensors[0].param.data());
    ok(adamant_prepare(o.get(), 1));
    refused(adamant_step_gradients(o.get(), grads.data(), 1, nullptr, nullptr),
            "1 gradient: the optimizer has 4 shards");
    refused(adamant_step_gradients(o.get(), nullptr, 4, nullptr, nullptr), "grads is a null");
    refused(adamant_step_gradients(nullptr, grads.data(), 4, nullptr, nullptr), "optimizer is a null");
    refused(adamant_step_gradients(o.get(), grads.data(), 4, nullptr, nullptr), "overlap");
    CHECK(m.digest() == before);
}

TEST_CASE("C: weights are said to be ready while a step goes on, the last time when they stay")
{
    struct carried {
        model const* of = nullptr;
        std::vector<std::vector<float>> param;
        std::atomic<int> calls = 0;
        static void ready(void* user, std::size_t shard, std::size_t begin, std::size_t end)
        {
            auto& me = *static_cast<carried*>(user);
            auto const& from = me.of->tensors[shard].param;
            std::copy(from.data() + begin, from.data() + end, me.param[shard].data() + begin);
            ++me.calls;
        }
    };
    for (double const max_norm : {0.0, 1e-3, 1e9}) {
        model m;
        carried there;
        there.of = &m;
        adamant_optimizer_options limited = options();
        limited.max_norm = max_norm;
        limited.speculate = ADAMANT_SPECULATE_ALWAYS;
        limited.weights_ready = &carried::ready;
        limited.weights_ready_user = &there;
        optimizer const o = make_optimizer(m, limited);
        for (auto const& each : m.tensors)
            there.param.emplace_back(each.param.begin(), each.param.end());
        auto const same = [&] {
            for (std::size_t i = 0; i < m.tensors.size(); ++i)
                CHECK(std::equal(there.param[i].begin(), there.param[i].end(), m.tensors[i].param.begin()));
        };
        for (std::uint64_t step = 1; step <= 4; ++step) {
            m.new_gradients(step);
            if (step % 2 == 0) {
                ok(adamant_step(o.get(), nullptr, nullptr));
            } else {
                ok(adamant_begin_step(o.get(), nullptr));
                for (std::size_t i = 0; i < m.tensors.size(); ++i)
                    ok(adamant_submit(o.get(), i));
                ok(adamant_finish(o.get(), nullptr));
            }
            same();
        }
        CHECK(there.calls >= 4 * static_cast<int>(m.tensors.size()));
        if (max_norm != 0) {
            ok(adamant_begin_step(o.get(), nullptr));
            ok(adamant_submit(o.get(), 0));
            ok(adamant_abandon(o.get()));
            same();
        }
    }
}

TEST_CASE("C: step count and loss scaler are set, for an engine that keeps state in a form of its own")
{
    adamant_loss_scaling ls = scaling();
    ls.initial_scale = 8;
    ls.growth_interval = 3;
    ls.hysteresis = 2;
    adamant_optimizer_options p = options();
    p.loss_scaling = &ls;
    p.keep_last_step = 1;
    model m;
    optimizer const o = make_optimizer(m, p);
    adamant_loss_scaler s = scaler_of(o);
    CHECK((s.scale == 8 && s.good_steps == 0 && s.hysteresis_left == 2));
    for (std::uint64_t step = 1; step <= 4; ++step) {
        m.new_gradients(step);
        if (step == 2)
            m.tensors[0].grad[0] = INFINITY; // skipped
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
    CHECK(steps_of(o) == 3);
    s = scaler_of(o);
    CHECK((s.scale == 8 && s.good_steps == 2 && s.hysteresis_left == 1));

    // Another optimizer, over the same bits, by way of the list of tensors.
    model n;
    optimizer const resumed = make_optimizer(n, p);
    adamant_state* made[2] = {};
    ok(adamant_state_create(o.get(), &made[0]));
    ok(adamant_state_create(resumed.get(), &made[1]));
    state const from(made[0]);
    state const to(made[1]);
    std::size_t count = 0;
    ok(adamant_state_tensor_count(made[0], &count));
    for (std::size_t i = 0; i < count; ++i) {
        adamant_state_tensor a = initialised(adamant_state_tensor_init);
        adamant_state_tensor b = initialised(adamant_state_tensor_init);
        ok(adamant_state_get_tensor(made[0], i, &a));
        ok(adamant_state_get_tensor(made[1], i, &b));
        std::memcpy(const_cast<void*>(b.data), a.data, a.elements * sizeof(float));
    }
    for (std::size_t i = 0; i < m.tensors.size(); ++i)
        n.tensors[i].weight_out = m.tensors[i].weight_out;
    ok(adamant_set_steps(resumed.get(), steps_of(o)));
    ok(adamant_set_loss_scaler(resumed.get(), &s));
    for (std::uint64_t step = 5; step <= 8; ++step) {
        m.new_gradients(step);
        n.new_gradients(step);
        ok(adamant_step(o.get(), nullptr, nullptr));
        ok(adamant_step(resumed.get(), nullptr, nullptr));
    }
    CHECK((n.digest() == m.digest() && steps_of(resumed) == 7));
    adamant_loss_scaler const mine = scaler_of(o);
    adamant_loss_scaler const theirs = scaler_of(resumed);
    CHECK(std::memcmp(&mine, &theirs, sizeof mine) == 0);
    CHECK(mine.scale > 8);

    ok(adamant_set_steps(o.get(), 5));
    refused(adamant_rollback(o.get()), "no step to roll back");
    CHECK(steps_of(o) == 5);
    s.scale = 0;
    refused(adamant_set_loss_scaler(o.get(), &s), "scale");
    s.scale = 4;
    ok(adamant_step(o.get(), nullptr, nullptr));
    ok(adamant_set_loss_scaler(o.get(), &s));
    refused(adamant_rollback(o.get()), "no step to roll back");
    double scale = 0;
    ok(adamant_loss_scale(o.get(), &scale));
    CHECK(scale == 4);
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_set_steps(o.get(), 1), "cannot call adamant_set_steps(): a step is in progress");
    refused(adamant_set_loss_scaler(o.get(), &s), "cannot call adamant_set_loss_scaler(): a step is in progress");
    ok(adamant_abandon(o.get()));

    model k;
    optimizer const fixed = make_optimizer(k);
    std::int32_t found = 9;
    s.scale = 77;
    ok(adamant_get_loss_scaler(fixed.get(), &s, &found));
    CHECK((found == 0 && s.scale == 77));
    s.scale = 4;
    refused(adamant_set_loss_scaler(fixed.get(), &s), "dynamic");
}

TEST_CASE("C: after a rollback accumulators count again")
{
    auto const run = [](bool rolls_back, bool begins_anew) {
        model m;
        adamant_optimizer_options p = options();
        p.keep_last_step = 1;
        p.max_norm = 1;
        optimizer const o = make_optimizer(m, p);
        auto const accumulate = [&] {
            m.new_gradients(1);
            for (std::size_t i = 0; i < m.tensors.size(); ++i)
                ok(adamant_accumulate(o.get(), i));
            m.new_gradients(2);
        };
        accumulate();
        ok(adamant_step(o.get(), nullptr, nullptr));
        if (rolls_back) {
            ok(adamant_rollback(o.get()));
            if (begins_anew) {
                ok(adamant_clear_accumulators(o.get()));
                accumulate();
            }
            ok(adamant_step(o.get(), nullptr, nullptr));
        }
        return m.digest();
    };
    std::uint64_t const expected = run(false, false);
    CHECK(run(true, false) == expected);
    CHECK(run(true, true) == expected);
}
