// SPDX-License-Identifier: Apache-2.0
// What may change about an optimizer between steps: shards and groups that go, gradients that move, the step count, the
// loss scaler. The bits are those of an optimizer that was made so in the first place.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <adamant/emulated_device.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/split.hpp>

#include "catch.hpp"
#include "emulated.hpp"
#include "slow_optimizer.hpp"

using namespace adamant;
using namespace slow;

namespace {

// Gradients of one step, other ones for each.
void draw(simple& of, std::uint64_t step, std::uint64_t seed)
{
    for (std::size_t i = 0; i < of.n; ++i)
        of.grad[i] = narrow<bfloat16>(0.001f * static_cast<float>((i * (seed + 3) + step * 17) % 101) - 0.05f);
}

bool same_bits(simple const& a, simple const& b)
{
    return a == b && a.weight_out == b.weight_out;
}

} // namespace

TEST_CASE("shards and groups go, and the others step on with the bits of an optimizer without them")
{
    std::size_t const sizes[] = {3 * norm_block_elems + 7, 100, norm_block_elems, 20000, 0};
    std::vector<simple> mine, expected;
    for (std::size_t const n : sizes) {
        mine.emplace_back(n);
        mine.back().spread();
        expected.push_back(mine.back());
    }
    optimizer o(executor_of(2), {.max_norm = 0.01});
    hyperparameters const second = adamw({.lr = 0.003});
    o.add_group("unused", usual_adamw);
    o.add_group("one", usual_adamw);
    o.add_group("two", second);
    CHECK(o.find_group("two") == group_id(2));
    CHECK(!o.find_group("three"));
    for (std::size_t i = 0; i < 5; ++i)
        o.add_shard({.group = 1 + i % 2, .name = "w" + std::to_string(i), .shard = mine[i].view()});
    auto const step = [](optimizer& of, std::vector<simple*> const& shards, std::uint64_t number) {
        of.begin_step();
        for (std::size_t k = shards.size(); k-- > 0;) {
            draw(*shards[k], number, shards[k]->n);
            of.submit(k);
        }
        return of.finish();
    };
    auto const pointers = [](std::vector<simple>& of, std::vector<std::size_t> const& which) {
        std::vector<simple*> result;
        for (std::size_t const i : which)
            result.push_back(&of[i]);
        return result;
    };
    (void)step(o, pointers(mine, {0, 1, 2, 3, 4}), 1);
    simple const left = mine[1];
    CHECK(message_of([&] { o.remove_group(2); }) ==
          "adamant: cannot remove parameter group 'two': 2 shards still belong to it (first: 1 ('w1')). "
          "Call remove_shard() for each of them first.");
    CHECK(message_of([&] { o.remove_shard(5); }) == "adamant: there is no shard 5; the optimizer has 5");
    o.remove_shard(1);
    o.remove_group(0);
    CHECK(o.groups().size() == 2);
    CHECK(o.group(1).hyper.lr == second.lr);
    CHECK(o.shards() == 4);
    CHECK(o.name(1) == "w2");
    CHECK(o.find_shard("w2") == shard_id(1));
    CHECK(!o.find_shard("w1"));
    CHECK(o.state().params.size() == 4);
    CHECK(o.state().params[2].group == 1);

    std::vector<std::size_t> const stay{0, 2, 3, 4};
    // The same from the beginning: the first step with all, the others without.
    optimizer all(executor_of(0), {.max_norm = 0.01}), rest(executor_of(0), {.max_norm = 0.01});
    for (optimizer* const each : {&all, &rest}) {
        each->add_group("one", usual_adamw);
        each->add_group("two", second);
    }
    for (std::size_t i = 0; i < 5; ++i)
        all.add_shard({.group = i % 2, .name = "w" + std::to_string(i), .shard = expected[i].view()});
    (void)step(all, pointers(expected, {0, 1, 2, 3, 4}), 1);
    for (std::size_t const i : stay)
        rest.add_shard({.group = i % 2, .name = "w" + std::to_string(i), .shard = expected[i].view()});
    rest.set_steps(1);
    for (std::uint64_t t = 2; t <= 4; ++t) {
        optimizer_report const a = step(o, pointers(mine, stay), t);
        optimizer_report const b = step(rest, pointers(expected, stay), t);
        CHECK(a.global_norm == b.global_norm);
        CHECK(a.step == t);
        CHECK(b.step == t);
        CHECK(a.elements == b.elements);
        for (std::size_t const i : stay)
            CHECK(same_bits(mine[i], expected[i]));
    }
    CHECK(same_bits(mine[1], left)); // nobody touches it any more

    // A shard may come back, anywhere.
    CHECK(o.add_shard({.group = 0, .name = "w1", .shard = mine[1].view()}) == shard_id(4));
    CHECK(o.find_shard("w1") == shard_id(4));
    while (o.shards() != 0)
        o.remove_shard(0);
    o.remove_group(1);
    o.remove_group(0);
    CHECK(o.step().elements == 0);
}

TEST_CASE("nothing goes while a step is under way, or while a device has shards", "[once]")
{
    simple data(9000);
    optimizer o(executor_of(1), {.keep_last_step = true});
    o.add_group("all", usual_adamw);
    o.add_group("none", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    o.begin_step();
    for (auto const& call :
         {std::function<void()>([&] { o.remove_shard(0); }), std::function<void()>([&] { o.remove_group(1); }),
          std::function<void()>([&] { o.set_steps(3); })})
        CHECK(message_of(call).find("a step is in progress. Call finish() or abandon() first.") != std::string::npos);
    o.abandon();
    auto const gpu = test::make_device();
    o.place(gpu, split(o.shard_sizes(), {.ratio = 0.5}));
    CHECK(message_of([&] { o.remove_shard(0); }) ==
          "adamant: cannot call remove_shard() after place(). Call place() without a device first.");
    CHECK(message_of([&] { o.remove_group(1); }).find("cannot call remove_group() after place()") != std::string::npos);
    CHECK(o.groups().size() == 2);
    (void)o.step();
    CHECK(message_of([&] { o.remove_shard(0); }).find("after place()") != std::string::npos);
    o.rollback(); // what is refused takes nothing away
    o.place(nullptr, split(o.shard_sizes(), {.ratio = 1}));
    (void)o.step();
    CHECK(message_of([&] { o.remove_group(0); }).find("1 shard still belongs") != std::string::npos);
    o.rollback();
    (void)o.step();
    o.remove_group(1);
    CHECK(message_of([&] { o.rollback(); }).find("removed") != std::string::npos);
    (void)o.step();
    o.remove_shard(0);
    CHECK(message_of([&] { o.rollback(); }).find("there is no step to roll back") != std::string::npos);
}

TEST_CASE("gradients rotate through buffers: where they lie changes no bit", "[both]")
{
    std::size_t const sizes[] = {2 * norm_block_elems + 77, 50, 30000};
    for (bool const with_device : {false, true}) {
        std::vector<simple> mine, expected;
        for (std::size_t const n : sizes) {
            mine.emplace_back(n);
            mine.back().spread();
            expected.push_back(mine.back());
        }
        std::vector<std::vector<bfloat16>> buffers(4, std::vector<bfloat16>(30000));
        optimizer o(executor_of(1), {.max_norm = 0.01}), same(executor_of(0), {.max_norm = 0.01});
        for (optimizer* const each : {&o, &same}) {
            each->add_group("all", usual_adamw);
            for (std::size_t i = 0; i < 3; ++i)
                each->add_shard(
                    {.group = 0, .name = std::to_string(i), .shard = (each == &o ? mine : expected)[i].view()});
        }
        if (with_device)
            o.place(test::make_device(), split(o.shard_sizes(), {.ratio = 0.4}));
        std::size_t turn = 0;
        for (std::uint64_t t = 1; t <= 6; ++t) {
            for (std::size_t i = 0; i < 3; ++i)
                draw(expected[i], t, i);
            optimizer_report const b = same.step();
            // A buffer for each shard, another one every time; their own arrays hold something else.
            auto const fill = [&](std::size_t i) {
                std::vector<bfloat16>& buffer = buffers[turn++ % buffers.size()];
                std::copy(expected[i].grad.begin(), expected[i].grad.end(), buffer.begin());
                return buffer.data();
            };
            optimizer_report a;
            if (t % 3 == 0) {
                for (std::size_t i = 0; i < 3; ++i)
                    o.set_gradient(i, fill(i));
                a = t == 3 ? o.step() : o.step_async().wait();
            } else {
                o.begin_step();
                std::vector<std::thread> threads;
                for (std::size_t i = 0; i < 3; ++i)
                    threads.emplace_back([&, i, at = fill(i)] {
                        if (i == 1) {
                            o.set_gradient(i, at);
                            o.submit(i);
                        } else {
                            o.submit(i, at);
                        }
                    });
                for (std::thread& each : threads)
                    each.join();
                a = o.finish();
            }
            CHECK(a.global_norm == b.global_norm);
            o.update_host_arrays();
            for (std::size_t i = 0; i < 3; ++i) {
                INFO("step " << t << ", shard " << i << ", device " << with_device);
                CHECK(same_bits(mine[i], expected[i]));
            }
        }
    }
}

TEST_CASE("a gradient that cannot be is refused when it is set, and the old one stays")
{
    simple data(5000), other(5000);
    data.spread();
    std::vector<float> sum(5000);
    std::vector<bfloat16> buffer(5000, narrow<bfloat16>(0.25f));
    optimizer o(executor_of(1), {.max_norm = 1, .keep_last_step = true});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "a", .shard = data.view(), .accumulator = sum});
    o.add_shard({.group = 0, .name = "b", .shard = other.view()});
    CHECK(message_of([&] { o.set_gradient(2, buffer.data()); }) == "adamant: there is no shard 2; the optimizer has 2");
    auto const all_are_refused = [&](auto const& set) {
        CHECK(message_of([&] { set(nullptr); }) ==
              "adamant: cannot set the gradient of shard 0 ('a') with 5000 elements: the pointer is null");
        CHECK(message_of([&] { set(data.param.data()); }).find("overlap in memory, and a step writes there") !=
              std::string::npos);
        CHECK(message_of([&] { set(reinterpret_cast<bfloat16*>(sum.data()) + 9999); }).find("overlap") !=
              std::string::npos);
    };
    all_are_refused([&](void const* to) { o.set_gradient(0, to); });
    o.prepare();
    all_are_refused([&](void const* to) { o.set_gradient(0, to); });
    // Another shard's memory is known then, too.
    CHECK(message_of([&] { o.set_gradient(0, other.weight_out.data() + 4999); }) ==
          "adamant: grad of shard 0 and weight_out of shard 1 overlap in memory, and a step writes there. Give "
          "each array separate memory.");
    simple const before = data;
    o.begin_step();
    all_are_refused([&](void const* to) { o.submit(0, to); });
    o.set_gradient(0, buffer.data());
    o.submit(0, data.grad.data());
    CHECK(message_of([&] { o.set_gradient(0, buffer.data()); }).find("has been submitted in this step already") !=
          std::string::npos);
    CHECK(message_of([&] { o.submit(0, buffer.data()); }).find("has been submitted in this step already") !=
          std::string::npos);
    o.skip(1);
    (void)o.finish();
    simple const stepped = data;
    // rollback() wants the gradients of the step where it looks for them.
    o.set_gradient(0, buffer.data());
    CHECK(message_of([&] { o.rollback(); }).find("have changed since") != std::string::npos);
    CHECK(data == stepped);
    o.set_gradient(0, data.grad.data());
    o.rollback();
    CHECK(data == before);
    CHECK(message_of([&] { o.submit(0, buffer.data()); }).find("no step is open") != std::string::npos);
    // A micro-step's gradient is where it is set, too.
    o.set_gradient(0, buffer.data());
    o.accumulate(0);
    CHECK(sum[4999] == 0.25f);
}

TEST_CASE("a gradient that is made on a device has no other place in host memory", "[once]")
{
    simple data(9000);
    std::vector<bfloat16> buffer(9000);
    auto const gpu = test::make_device();
    optimizer o(executor_of(1));
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    o.set_device_arrays(0, {gpu->allocate(18000), gpu->allocate(18000)});
    CHECK(message_of([&] { o.set_gradient(0, buffer.data()); }).find("its gradients are on a device") !=
          std::string::npos);
    o.place(gpu, split(o.shard_sizes(), {.ratio = 0.5}));
    CHECK(message_of([&] { o.set_gradient(0, buffer.data()); }).find("its gradients are on a device") !=
          std::string::npos);
    o.place(nullptr, split(o.shard_sizes(), {.ratio = 1}));
    o.set_gradient(0, buffer.data());
}

TEST_CASE("an engine restores its own step count and loss scaler")
{
    simple data(3000), expected(3000);
    data.spread();
    expected.spread();
    optimizer_options const options{.loss_scaling = loss_scaling_options{.growth_interval = 3, .hysteresis = 2},
                                    .keep_last_step = true};
    optimizer o(executor_of(1), options), run(executor_of(1), options);
    for (optimizer* const each : {&o, &run}) {
        each->add_group("all", usual_adamw);
        each->add_shard({.group = 0, .name = "w", .shard = (each == &o ? data : expected).view()});
    }
    CHECK(run.loss_scaler() == initial_state(*options.loss_scaling));
    for (int t = 0; t < 4; ++t)
        (void)run.step();
    CHECK(run.loss_scaler()->good_steps == 1);
    CHECK(run.loss_scaler()->scale == 131072);
    // The state by hand, as an engine would that has its own checkpoints.
    data.param = expected.param;
    data.exp_avg = expected.exp_avg;
    data.exp_avg_sq = expected.exp_avg_sq;
    data.weight_out = expected.weight_out;
    o.set_steps(run.steps());
    o.set_loss_scaler(*run.loss_scaler());
    for (std::uint64_t t = 5; t <= 8; ++t) {
        CHECK(o.step().step == t);
        CHECK(run.step().step == t);
        CHECK(same_bits(data, expected));
        CHECK(o.loss_scaler() == run.loss_scaler());
        CHECK(o.loss_scale() == run.loss_scale());
    }
    CHECK(o.loss_scaler()->good_steps == 2);

    // A rollback gives back what was before the step, but not what was set since.
    o.set_steps(20);
    CHECK(message_of([&] { o.rollback(); }).find("there is no step to roll back") != std::string::npos);
    (void)o.step();
    o.rollback();
    CHECK(o.steps() == 20);
    CHECK(o.loss_scaler()->good_steps == 2);
    (void)o.step();
    o.set_loss_scaler({.scale = 8});
    CHECK(message_of([&] { o.rollback(); }).find("there is no step to roll back") != std::string::npos);
    CHECK(o.steps() == 21);
    CHECK(o.step().loss_scale == 8);

    for (double const bad : {0.0, -1.0, 1e300, 1e-300, std::nan("")})
        CHECK(message_of([&] {
                  o.set_loss_scaler({.scale = bad});
              }).find("it must be from 2.4e-38 to 4.2e37, so that float holds its inverse") != std::string::npos);
    CHECK(o.loss_scale() == 8);
    o.begin_step();
    CHECK(message_of([&] { o.set_loss_scaler({.scale = 2}); }).find("a step is in progress") != std::string::npos);
    o.abandon();
    optimizer without(executor_of(1));
    CHECK(!without.loss_scaler());
    CHECK(message_of([&] { without.set_loss_scaler({.scale = 2}); }) ==
          "adamant: cannot call set_loss_scaler(): this optimizer has no dynamic loss scale. Set loss_scaling in the "
          "options.");
}

TEST_CASE("what a rolled-back step had accumulated counts again, and a step that is refused harms no rollback")
{
    simple data(7000), expected(7000);
    data.spread();
    expected.spread();
    std::vector<float> sum(7000), other_sum(7000);
    optimizer o(executor_of(1), {.keep_last_step = true}), same(executor_of(0));
    for (optimizer* const each : {&o, &same}) {
        each->add_group("all", usual_adamw);
        each->add_group("none", usual_adamw);
        each->add_shard({.group = 0,
                         .name = "w",
                         .shard = (each == &o ? data : expected).view(),
                         .accumulator = each == &o ? sum : other_sum});
        each->accumulate(0);
    }
    (void)same.step();
    simple const before = data;
    std::vector<float> const kept = sum;
    (void)o.step();
    CHECK(same_bits(data, expected));
    // Refused for the second group, after the first one's coefficients have been computed.
    std::vector<double> const rates{0.5, -1};
    CHECK(message_of([&] { o.step({.lr = rates}); }).find("lr is -1") != std::string::npos);
    CHECK(message_of([&] { o.step({.lr = std::span(rates).first(1)}); }).find("with 1 learning rate:") !=
          std::string::npos);
    o.rollback();
    CHECK(data == before);
    CHECK(sum == kept);
    (void)o.step(); // the micro-step is in it again
    CHECK(same_bits(data, expected));
    o.rollback();
    // What the accumulator holds is part of what the step is rolled back with.
    (void)o.step();
    sum[6999] += 1;
    CHECK(message_of([&] { o.rollback(); }).find("have changed since") != std::string::npos);
    CHECK(same_bits(data, expected));
    sum[6999] = kept[6999];
    o.rollback();
    CHECK(data == before);
    o.clear_accumulators();
    (void)o.step();
    CHECK(!same_bits(data, expected));
}
