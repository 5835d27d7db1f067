// SPDX-License-Identifier: Apache-2.0
// The C interface: steps, in every way to take one, and what they refuse.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "c_test.hpp"

TEST_CASE("C: steps that cannot be, and an error for each thread")
{
    model m;
    optimizer const o = make_optimizer(m);
    adamant_step_values v = step_values();
    std::uint64_t const before = m.digest();
    double const lr[] = {0.1, 0.2};
    v.lr_count = 1;
    refused(adamant_step(o.get(), &v, nullptr), "lr is a null");
    v.lr = lr;
    v.lr_count = 2;
    refused(adamant_step(o.get(), &v, nullptr), "2 learning rates: the optimizer has 1");
    v = step_values();
    v.shard_step_count = 1;
    refused(adamant_step(o.get(), &v, nullptr), "shard_steps is a null");
    std::uint64_t const number = 1;
    v.shard_steps = &number;
    refused(adamant_step(o.get(), &v, nullptr), "1 step number: the optimizer has");
    v = step_values();
    v.has_loss_scale = 1;
    refused(adamant_step(o.get(), &v, nullptr), "loss_scale is 0");
    v = step_values();
    v.max_norm = -1;
    v.max_abs_grad = -1;
    v.loss_scale = -1; // not said, so not looked at
    ok(adamant_begin_step(o.get(), &v));
    ok(adamant_abandon(o.get()));
    v.has_max_norm = 1;
    refused(adamant_step(o.get(), &v, nullptr), "max_norm is -1");
    v.has_max_norm = 0;
    v.has_max_abs_grad = 1;
    refused(adamant_begin_step(o.get(), &v), "max_abs_grad is -1");
    refused(adamant_submit(o.get(), 0), "no step is open");
    refused(adamant_skip(o.get(), 0), "no step is open");
    refused(adamant_finish(o.get(), nullptr), "no step is open");
    refused(adamant_abandon(o.get()), "no step is open");
    refused(adamant_rollback(o.get()), "keep_last_step");
    refused(adamant_poll(o.get(), nullptr, nullptr), "no step is in progress");
    refused(adamant_wait(o.get(), 0, nullptr, nullptr), "no step is in progress");
    refused(adamant_accumulate(o.get(), 4), "shard 4");
    ok(adamant_begin_step(o.get(), nullptr));
    refused(adamant_begin_step(o.get(), nullptr), "in progress");
    refused(adamant_step(o.get(), nullptr, nullptr), "in progress");
    refused(adamant_submit(o.get(), 4), "shard 4");
    ok(adamant_submit(o.get(), 1));
    refused(adamant_submit(o.get(), 1), "shard 1");
    refused(adamant_skip(o.get(), 1), "shard 1");
    refused(adamant_finish(o.get(), nullptr), "not been submitted: 0");
    refused(adamant_save_safetensors(o.get(), "/nowhere"), "in progress");
    ok(adamant_abandon(o.get()));
    REQUIRE(m.digest() == before);
    REQUIRE(steps_of(o) == 0);

    // A text stays through calls that succeed, and other threads have their own.
    refused(adamant_submit(o.get(), 0), "no step is open");
    std::string const mine = last_error();
    std::thread([&] {
        REQUIRE(last_error().empty());
        refused(adamant_group_count(o.get(), nullptr), "count is a null");
    }).join();
    ok(adamant_step(o.get(), nullptr, nullptr));
    REQUIRE(last_error() == mine);
    // Names that no checkpoint could hold.
    adamant_hyperparameters const hyper = hyperparameters();
    refused(adamant_add_group(o.get(), "gr\xfc", &hyper, 0, nullptr), "'gr\\xfc', is not UTF-8");
    adamant_shard const added = m.describe(0);
    refused(adamant_add_shard(o.get(), 0, "\xff", &added, nullptr), "'\\xff', is not UTF-8");
    // Texts longer than there is room are cut, between characters.
    std::string name;
    while (name.size() < 6000)
        name += "\xe2\x82\xac";
    adamant_hyperparameters const h = hyperparameters();
    ok(adamant_add_group(o.get(), name.c_str(), &h, 0, nullptr));
    refused(adamant_add_group(o.get(), name.c_str(), &h, 0, nullptr), "parameter group");
    REQUIRE((last_error().size() <= 4095 && last_error().size() >= 4092));
    std::size_t const begin = last_error().find("\xe2\x82\xac");
    REQUIRE((last_error().size() - begin) % 3 == 0);
}

TEST_CASE("C: a step has the same bits in every way to take it")
{
    auto const run = [](adamant_speculation speculate, int how, std::uint32_t threads) {
        model m;
        adamant_optimizer_options p = options();
        p.max_norm = 3;
        p.speculate = speculate;
        p.keep_last_step = 1;
        optimizer const o = make_optimizer(m, p, threads);
        std::size_t bytes = 0;
        ok(adamant_memory_bytes(o.get(), 1, &bytes));
        REQUIRE(bytes > 0);
        ok(adamant_prepare(o.get(), 1));
        for (std::uint64_t step = 1; step <= 6; ++step) {
            m.new_gradients(step);
            adamant_report r = report();
            double const lr = 0.01 / static_cast<double>(step);
            adamant_step_values v = step_values();
            v.lr = &lr;
            v.lr_count = 1;
            if (step == 4) {
                v.has_max_norm = 1; // not clipped
                v.has_loss_scale = 1;
                v.loss_scale = 2;
            }
            if (how == 0) {
                ok(adamant_step(o.get(), &v, &r));
            } else if (how == 1) {
                ok(adamant_begin_step(o.get(), &v));
                for (std::size_t i = m.tensors.size(); i-- > 0;)
                    ok(adamant_submit(o.get(), i));
                ok(adamant_finish(o.get(), &r));
            } else if (how == 2) { // every shard from a thread of its own
                ok(adamant_begin_step(o.get(), &v));
                std::vector<std::thread> threads_of_shards;
                std::atomic<int> bad{0};
                for (std::size_t i = 0; i < m.tensors.size(); ++i)
                    threads_of_shards.emplace_back([&, i] {
                        if (adamant_submit(o.get(), i) != ADAMANT_OK)
                            ++bad;
                        if (adamant_submit(o.get(), i) != ADAMANT_INVALID_ARGUMENT ||
                            last_error().find("shard " + std::to_string(i)) == std::string::npos)
                            ++bad;
                    });
                for (std::thread& t : threads_of_shards)
                    t.join();
                REQUIRE(bad == 0);
                ok(adamant_finish(o.get(), &r));
            } else {
                ok(adamant_step_async(o.get(), &v));
                std::size_t n = 0;
                refused(adamant_step(o.get(), nullptr, nullptr), "in progress");
                refused(adamant_step_async(o.get(), nullptr), "in progress");
                refused(adamant_prepare(o.get(), 0), "in progress");
                ok(adamant_shard_count(o.get(), &n));
                double progress = -1;
                std::int32_t over = 7;
                ok(adamant_poll(o.get(), &over, &progress));
                REQUIRE((over == 0 || over == 1));
                REQUIRE((progress >= 0 && progress <= 1));
                refused(adamant_wait(o.get(), 0, nullptr, nullptr), "over is a null");
                ok(adamant_wait(o.get(), 0, &over, nullptr));
                for (std::uint64_t const time : {std::uint64_t{1000}, UINT64_MAX - 1, UINT64_MAX})
                    if (over == 0) {
                        r.step = 0;
                        ok(adamant_wait(o.get(), time, &over, &r));
                    }
                REQUIRE(over == 1);
                refused(adamant_wait(o.get(), 0, &over, nullptr), "no step is in progress");
            }
            if (how != 3) {
                REQUIRE(r.step == step);
                REQUIRE(r.outcome == ADAMANT_APPLIED);
                REQUIRE(r.elements == 9000 + 4096 + 1 + 5000);
                REQUIRE(r.loss_scale == (step == 4 ? 2 : 1));
                REQUIRE((step == 4) == (r.clip_coefficient == 1));
                REQUIRE(r.threads == std::max(threads, 1u));
                REQUIRE(r.isa != nullptr);
                REQUIRE(r.pus != nullptr);
                REQUIRE((r.gradients_bytes > 0 && r.gradients_seconds > 0 && r.seconds > r.gradients_seconds));
                REQUIRE((r.update_bytes > 0 || (step == 4 && r.speculated == 1)));
            }
            if (step == 5) { // back and again
                std::uint64_t const now = m.digest();
                ok(adamant_rollback(o.get()));
                REQUIRE(steps_of(o) == 4);
                REQUIRE(m.digest() != now);
                refused(adamant_rollback(o.get()), "no step to roll back");
                ok(adamant_step(o.get(), &v, nullptr));
                REQUIRE(m.digest() == now);
            }
        }
        REQUIRE(steps_of(o) == 6);
        return m.digest();
    };
    std::uint64_t const expected = run(ADAMANT_SPECULATE_AUTOMATIC, 0, 1);
    for (adamant_speculation const s : {ADAMANT_SPECULATE_AUTOMATIC, ADAMANT_SPECULATE_ALWAYS, ADAMANT_SPECULATE_NEVER})
        for (int how = 0; how < 4; ++how)
            for (std::uint32_t const threads : {1u, 3u}) {
                INFO("speculation " << s << ", way " << how << ", threads " << threads);
                REQUIRE(run(s, how, threads) == expected);
            }
}

TEST_CASE("C: a step without an optimizer has an optimizer's bits, and so has the norm's sum")
{
    executor const cpu = make_executor(2);
    test::random_bits random(7);
    constexpr std::size_t n = 9001;
    std::vector<float> param(n), grad(n), exp_avg(n), exp_avg_sq(n);
    for (std::size_t i = 0; i < n; ++i) {
        param[i] = test::value_of(test::values::ordinary, random, -6, -1);
        grad[i] = test::value_of(test::values::ordinary, random, -8, -2);
    }
    std::vector<float> same_param = param, same_avg = exp_avg, same_sq = exp_avg_sq;
    adamant_shard s = shard(n, param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data());
    adamant_hyperparameters h = hyperparameters();
    h.weight_decay = 0.1;
    h.decay = ADAMANT_DECAY_DECOUPLED;
    adamant_optimizer* made = nullptr;
    ok(adamant_optimizer_create(cpu.get(), nullptr, &made));
    optimizer const o(made);
    ok(adamant_add_group(made, "g", &h, 0, nullptr));
    ok(adamant_add_shard(made, 0, "w", &s, nullptr));
    adamant_step_values values{};
    ok(adamant_step_values_init(&values, sizeof values));
    values.has_loss_scale = 1;
    values.loss_scale = 8;
    adamant_report report{};
    report.struct_bytes = sizeof report;
    adamant_shard mine = s;
    mine.param = same_param.data();
    mine.exp_avg = same_avg.data();
    mine.exp_avg_sq = same_sq.data();
    for (std::uint64_t t = 1; t <= 3; ++t) {
        ok(adamant_step(made, &values, &report));
        std::uint64_t nonfinite = 9;
        ok(adamant_step_shard(cpu.get(), &mine, &h, t, 8, 1, &nonfinite));
        CHECK(nonfinite == 0);
        double sum = 0;
        ok(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, n, &sum, nullptr));
        CHECK(std::sqrt(sum) / 8 == report.global_norm);
    }
    CHECK(param == same_param);
    CHECK(exp_avg == same_avg);
    CHECK(exp_avg_sq == same_sq);

    grad[5] = std::numeric_limits<float>::infinity();
    std::uint64_t nonfinite = 0;
    ok(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, n, nullptr, &nonfinite));
    CHECK(nonfinite == 1);
    same_param = param;
    refused(adamant_step_shard(cpu.get(), &s, &h, 0, 1, 1, nullptr), "step");
    refused(adamant_step_shard(cpu.get(), &s, &h, 1, 0, 1, nullptr), "loss_scale is 0");
    for (std::size_t const begin : {SIZE_MAX, SIZE_MAX - s.elements + 1}) { // elements that no number has
        adamant_shard behind = s;
        behind.begin = begin;
        refused(adamant_step_shard(cpu.get(), &behind, &h, 1, 1, 1, nullptr), "their indexes exceed 64 bits");
    }
    std::vector<std::byte> codes(4 * 68 * 2);
    for (std::size_t const begin : {std::size_t{1}, std::size_t{63}, std::size_t{65}}) { // groups of 64
        adamant_shard inside = s;
        inside.exp_avg_dtype = inside.exp_avg_sq_dtype = ADAMANT_QUANTIZED8;
        inside.exp_avg = codes.data();
        inside.exp_avg_sq = codes.data() + codes.size() / 2;
        inside.elements = 1;
        inside.begin = begin;
        refused(adamant_step_shard(cpu.get(), &inside, &h, 1, 1, 1, nullptr), "8-bit moments are in groups of 64");
    }
    refused(adamant_step_shard(nullptr, &s, &h, 1, 1, 1, nullptr), "the executor is a null pointer");
    refused(adamant_step_shard(cpu.get(), nullptr, &h, 1, 1, 1, nullptr), "adamant_shard is a null pointer");
    std::int64_t words[ADAMANT_SQUARES_WORDS] = {};
    ok(adamant_add_squares(cpu.get(), grad.data() + 4096, ADAMANT_FLOAT32, n - 4096, words));
    ok(adamant_add_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, 4096, words));
    double in_parts = 0, in_one = 0;
    ok(adamant_round_squares(words, &in_parts, nullptr));
    ok(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, n, &in_one, nullptr));
    CHECK(in_parts == in_one);
    nonfinite = 0;
    ok(adamant_round_squares(words, nullptr, &nonfinite));
    CHECK((nonfinite == 1 && words[20] == 1));
    refused(adamant_add_squares(cpu.get(), grad.data(), ADAMANT_NONE, n, words), "of type none");
    refused(adamant_add_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, n, nullptr), "words is a null pointer");
    refused(adamant_round_squares(nullptr, &in_one, nullptr), "words is a null pointer");
    words[3] = -1;
    refused(adamant_add_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, n, words),
            "words are not a valid sum of squares");
    refused(adamant_round_squares(words, &in_one, nullptr), "words are not a valid sum of squares");
    CHECK(words[3] == -1);
    refused(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_NONE, n, nullptr, nullptr), "of type none");
    refused(adamant_sum_of_squares(cpu.get(), grad.data(), ADAMANT_FLOAT32, SIZE_MAX, nullptr, nullptr),
            "Was a negative size converted?");
    std::vector<float> master(n);
    refused(adamant_split_masters(master.data(), SIZE_MAX, master.data(), master.data()), "negative size");
    refused(adamant_join_masters(master.data(), master.data(), SIZE_MAX, master.data()), "negative size");
    refused(adamant_sum_of_squares(cpu.get(), grad.data(), 4, n, nullptr, nullptr), "dtype is 4");
    refused(adamant_sum_of_squares(cpu.get(), nullptr, ADAMANT_BFLOAT16, n, nullptr, nullptr), "grad is null");
    mine.accumulator = same_avg.data();
    mine.accumulator_dtype = ADAMANT_FLOAT32;
    refused(adamant_step_shard(cpu.get(), &mine, &h, 1, 1, 1, nullptr), "with an accumulator");
    CHECK(param == same_param);
}

TEST_CASE("C: moments of 8 bits")
{
    constexpr std::size_t n = 1000, groups = (n + 63) / 64, group_bytes = 68;
    executor const cpu = make_executor();
    std::vector<float> param(n, 0.5f), grad(n);
    for (std::size_t i = 0; i < n; ++i)
        grad[i] = 0.01f * static_cast<float>(i % 91) - 0.4f;
    std::vector<unsigned char> exp_avg(groups * group_bytes), exp_avg_sq(exp_avg);
    auto same_param = param;
    auto same_avg = exp_avg, same_sq = exp_avg_sq;
    adamant_shard s{};
    ok(adamant_shard_init(&s, sizeof s));
    s.elements = n;
    s.param = param.data();
    s.grad = grad.data();
    s.exp_avg = exp_avg.data();
    s.exp_avg_sq = exp_avg_sq.data();
    s.exp_avg_dtype = ADAMANT_QUANTIZED8;
    adamant_hyperparameters h = hyperparameters();
    h.exp_avg_sq_rounding = ADAMANT_ROUND_NEAREST;
    adamant_optimizer* made = nullptr;
    ok(adamant_optimizer_create(cpu.get(), nullptr, &made));
    optimizer const o(made);
    ok(adamant_add_group(made, "g", &h, 0, nullptr));
    refused(adamant_add_shard(made, 0, "w", &s, nullptr), "or both quantized8");
    s.exp_avg_sq_dtype = ADAMANT_QUANTIZED8;
    ok(adamant_add_shard(made, 0, "w", &s, nullptr));
    adamant_shard mine = s;
    mine.param = same_param.data();
    mine.exp_avg = same_avg.data();
    mine.exp_avg_sq = same_sq.data();
    for (std::uint64_t t = 1; t <= 5; ++t) {
        ok(adamant_step(made, nullptr, nullptr));
        ok(adamant_step_shard(cpu.get(), &mine, &h, t, 1, 1, nullptr));
    }
    CHECK(param == same_param);
    CHECK(exp_avg == same_avg);
    CHECK(exp_avg_sq == same_sq);
    CHECK(param[0] > 0.5f);
    s.accumulator = same_avg.data();
    s.accumulator_dtype = ADAMANT_QUANTIZED8;
    refused(adamant_add_shard(made, 0, "v", &s, nullptr), "accumulator_dtype is quantized8");
    s.accumulator = nullptr;
    s.accumulator_dtype = ADAMANT_NONE;
    s.grad_dtype = ADAMANT_QUANTIZED8;
    refused(adamant_add_shard(made, 0, "v", &s, nullptr), "unsupported combination of types");
}

TEST_CASE("C: infinities, dynamic loss scale, shards left out, accumulation")
{
    model m;
    adamant_loss_scaling ls = scaling();
    ls.initial_scale = 8;
    ls.growth_interval = 1;
    ls.growth_factor = 4;
    ls.backoff_factor = 0.25;
    ls.hysteresis = 2;
    ls.max_scale = 16;
    ls.min_scale = 2;
    adamant_optimizer_options p = options();
    p.loss_scaling = &ls;
    p.reduce_user = &m; // without reduce it is nothing
    optimizer const o = make_optimizer(m, p);
    ls.initial_scale = 0; // was copied
    double scale = 0;
    ok(adamant_loss_scale(o.get(), &scale));
    REQUIRE(scale == 8);
    std::uint64_t const before = m.digest();
    m.tensors[3].grad[4321] = INFINITY;
    adamant_report r = report();
    ok(adamant_step(o.get(), nullptr, &r));
    REQUIRE((r.outcome == ADAMANT_SKIPPED && r.nonfinite_grads == 1 && r.has_first_nonfinite == 1));
    REQUIRE((r.first_nonfinite_shard == 3 && r.first_nonfinite_index == 4321));
    REQUIRE(m.digest() == before);
    for (double const expected : {8.0, 2.0, 2.0}) { // one is let pass; then down, to the least
        ok(adamant_loss_scale(o.get(), &scale));
        REQUIRE(scale == expected);
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
    REQUIRE((m.digest() == before && steps_of(o) == 0));
    m.new_gradients(1);
    ok(adamant_accumulate(o.get(), 0));
    REQUIRE(m.tensors[0].sum == m.tensors[0].grad);
    ok(adamant_clear_accumulators(o.get()));
    std::vector<float> const param = m.tensors[2].param;
    ok(adamant_begin_step(o.get(), nullptr));
    ok(adamant_skip(o.get(), 2));
    for (std::size_t const i : test::sizes{0, 1, 3})
        ok(adamant_submit(o.get(), i));
    refused(adamant_accumulate(o.get(), 0), "shard 0");
    ok(adamant_finish(o.get(), &r));
    REQUIRE((r.elements == 9000 + 4096 + 5000 && r.has_first_nonfinite == 0 && r.loss_scale == 2));
    REQUIRE(m.tensors[2].param == param);
    for (double const expected : {8.0, 16.0, 16.0}) { // up to the most
        ok(adamant_loss_scale(o.get(), &scale));
        REQUIRE(scale == expected);
        ok(adamant_step(o.get(), nullptr, nullptr));
    }
}

TEST_CASE("C: a budget for records is a bound, and rollback sees gradients of another sign")
{
    model m;
    adamant_optimizer_options p = options();
    p.journal_budget_bytes = SIZE_MAX - 1;
    p.keep_last_step = 1;
    optimizer const o = make_optimizer(m, p);
    std::size_t bytes = 0;
    ok(adamant_memory_bytes(o.get(), 1, &bytes));
    REQUIRE(bytes < 10'000'000);
    std::uint64_t const before = m.digest();
    ok(adamant_step(o.get(), nullptr, nullptr));
    std::uint64_t const stepped = m.digest();
    m.tensors[0].grad[8999] *= -1;
    refused(adamant_rollback(o.get()), "have changed since");
    REQUIRE(m.digest() == stepped);
    m.tensors[0].grad[8999] *= -1;
    ok(adamant_rollback(o.get()));
    REQUIRE(m.digest() == before);
}
