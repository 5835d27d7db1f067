// SPDX-License-Identifier: Apache-2.0
// The optimizer with a part of its shards on a device: the same bits, and what becomes of a step when the device fails.
#include <cmath>
#include <map>
#include <memory>

#include <adamant/emulated_device.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/split.hpp>

#include "../engine/slow_optimizer.hpp"
#include "catch.hpp"
#include "emulated.hpp"

using namespace adamant;
using namespace slow;

TEST_CASE("Any run of an optimizer with a device has the bits of the reference implementation applied the slow way",
          "[both]")
{
    for (std::uint64_t seed = 1; seed <= 20; ++seed)
        run_random(seed, test::make_device());
}

TEST_CASE("Any run of an optimizer with a device, many of them", "[slow][once]")
{
    for (std::uint64_t seed = 300; seed < 300 + test::repeats(10); ++seed)
        run_random(seed, test::make_device());
}

namespace {

// Three tensors of all kinds, of which the one in the middle has its gradients and weights on the device.
struct model {
    std::shared_ptr<emulated_device> gpu;
    std::vector<tensor> tensors;
    on_device there;
    std::unique_ptr<optimizer> steps; // before what it works on

    explicit model(optimizer_options options = {}, double ratio = 0.5, emulation_options emulated = {})
        : gpu(test::make_device(std::move(emulated)))
    {
        test::random_bits random(7);
        tensors.emplace_back(kinds[0], 3 * norm_block_elems + 11, random);
        tensors.emplace_back(kinds[0], 5 * norm_block_elems, random);
        tensors.emplace_back(kinds[1], 2 * norm_block_elems + 1, random);
        options.device_timeout_s = std::min(options.device_timeout_s, 20.0);
        steps = std::make_unique<optimizer>(executor_of(1), options);
        steps->add_group("all", usual_adamw);
        for (std::size_t k = 0; k < tensors.size(); ++k)
            add(*steps, tensors[k], "tensor " + std::to_string(k));
        there.device = gpu;
        there.at = {gpu->allocate(tensors[1].size() * 2), gpu->allocate(tensors[1].size() * 2)};
        there.put(there.at.weight_out, tensors[1].mine[weight_out], dtype::bfloat16);
        if (ratio >= 0) {
            steps->set_device_arrays(1, there.at);
            steps->place(gpu, split(steps->shard_sizes(), {.ratio = ratio}));
        }
    }
    // A device that hangs is asked to go on first.
    ~model() { gpu->resume(); }

    // Of a step, the same every time.
    void make_gradients(std::uint64_t step)
    {
        test::random_bits random(step);
        for (tensor& t : tensors)
            t.draw_gradient(random, -12, -6);
        there.put(there.at.grad, tensors[1].mine[grad], dtype::bfloat16);
    }
    // In one of the ways that a step can be taken; way 3 sums a micro-step first.
    optimizer_report step(std::uint64_t number, std::size_t way, step_values const& values = {})
    {
        make_gradients(number);
        if (way == 0)
            return steps->step(values);
        if (way == 1)
            return steps->step_async(values).wait();
        steps->begin_step(values);
        for (std::size_t k = tensors.size(); k-- > 0;)
            steps->submit(k);
        return steps->finish();
    }
    // All that an optimizer has changed, in host memory.
    [[nodiscard]] std::vector<test::array> all()
    {
        (void)steps->state();
        std::vector<test::array> result;
        for (std::size_t k = 0; k < tensors.size(); ++k)
            for (auto const which : {param, exp_avg, exp_avg_sq, weight_out})
                result.emplace_back(tensors[k].mine[which]);
        if (steps->shards() != 0 && placed)
            there.get(result[7], there.at.weight_out, dtype::bfloat16);
        return result;
    }
    bool placed = true;
};

std::string difference(std::vector<test::array> const& a, std::vector<test::array> const& b)
{
    for (std::size_t i = 0; i < a.size(); ++i)
        if (std::string const text = a[i].difference(b[i]); !text.empty())
            return "array " + std::to_string(i) + ": " + text;
    return {};
}

// What four steps come to without a device, and after each of them.
std::vector<std::vector<test::array>> const& expected(optimizer_options const& options, step_values const& values)
{
    static std::map<std::pair<double, bool>, std::vector<std::vector<test::array>>> known;
    auto& states = known[{values.max_norm.value_or(0), options.loss_scaling.has_value()}];
    if (states.empty()) {
        model alone(options, -1);
        alone.placed = false;
        states.push_back(alone.all());
        for (std::uint64_t i = 1; i <= 4; ++i) {
            (void)alone.step(i, 0, values);
            states.push_back(alone.all());
        }
    }
    return states;
}

} // namespace

TEST_CASE("Training has the same bits at every ratio, and wherever it is moved to between steps", "[both]")
{
    for (double const max_norm : {0.0, 1e-3, 1e9}) {
        step_values const values{.max_norm = max_norm};
        auto const& states = expected({}, values);
        for (double const ratio : {0.0, 0.37, 0.9, 1.0})
            for (std::size_t way = 0; way < 3; ++way) {
                INFO("ratio " << ratio << ", way " << way << ", max_norm " << max_norm);
                model hybrid({}, ratio);
                for (std::uint64_t i = 1; i <= 4; ++i) {
                    optimizer_report const report = hybrid.step(i, way, values);
                    CHECK(std::fabs(report.ratio - ratio) <= 2048.0 / (10 * norm_block_elems + 12));
                    CHECK(report.elements == 10 * norm_block_elems + 12);
                    CHECK(report.device.elements ==
                          static_cast<std::size_t>(std::lround((1 - report.ratio) * (10 * norm_block_elems + 12))));
                    REQUIRE(difference(hybrid.all(), states[i]) == "");
                    if (i == 2) // moves
                        hybrid.steps->place(hybrid.gpu, split(hybrid.steps->shard_sizes(),
                                                              {.ratio = ratio, .order = split_order::back}));
                }
            }
    }
}

TEST_CASE("What fails on a device is named, and leaves everything as it was before the step", "[once]")
{
    for (auto const& [max_norm, text] : {std::pair{0.0, "no limit"}, std::pair{1e-3, "clipped"}}) {
        step_values const values{.max_norm = max_norm};
        for (std::size_t way = 0; way < 3; ++way)
            for (auto const kind : {device_operation::copy_up, device_operation::copy_down, device_operation::work}) {
                auto const& states = expected({}, values);
                std::size_t failures = 0;
                for (std::size_t after = 0;; ++after) {
                    INFO(text << ", way " << way << ", operation " << static_cast<int>(kind) << ", number " << after);
                    model hybrid;
                    (void)hybrid.step(1, way, values);
                    (void)hybrid.step(2, way, values);
                    hybrid.make_gradients(3);
                    hybrid.gpu->fail(kind, after);
                    std::string what;
                    try {
                        if (way == 0) {
                            (void)hybrid.steps->step(values);
                        } else if (way == 1) {
                            (void)hybrid.steps->step_async(values).wait();
                        } else {
                            hybrid.steps->begin_step(values);
                            for (std::size_t k = 3; k-- > 0;)
                                hybrid.steps->submit(k);
                            (void)hybrid.steps->finish();
                        }
                    } catch (device_error const& error) {
                        what = error.what();
                    }
                    hybrid.gpu->resume();
                    if (what.empty()) { // so many there are not
                        CHECK(hybrid.steps->steps() == 3);
                        REQUIRE(difference(hybrid.all(), states[3]) == "");
                        break;
                    }
                    ++failures;
                    CHECK(what.find("emulated device failed at ") != what.npos);
                    CHECK(hybrid.steps->steps() == 2);
                    REQUIRE(difference(hybrid.all(), states[2]) == "");
                    // And it goes on as if nothing had been.
                    (void)hybrid.step(3, way, values);
                    REQUIRE(difference(hybrid.all(), states[3]) == "");
                }
                CHECK((failures >= 2 || (test::shares_memory && kind != device_operation::work)));
            }
    }
}

TEST_CASE("step_gradients() that lacks a gradient says what failed on the device, and leaves no step open", "[once]")
{
    std::size_t lost = 0;
    for (bool const records : {true, false})
        for (double const max_norm : {0.0, 1e-3})
            for (auto const kind : {device_operation::copy_up, device_operation::copy_down, device_operation::work}) {
                step_values const values{.max_norm = max_norm};
                auto const& states = expected({}, values);
                optimizer_options options;
                options.device_records = records;
                std::size_t failures = 0;
                for (std::size_t after = 0;; ++after) {
                    INFO("records " << records << ", max_norm " << max_norm << ", operation " << static_cast<int>(kind)
                                    << ", number " << after);
                    model hybrid(options, -1); // all gradients are in host memory
                    hybrid.placed = false;
                    hybrid.steps->place(hybrid.gpu, split(hybrid.steps->shard_sizes(), {.ratio = 0.5}));
                    (void)hybrid.step(1, 0, values);
                    hybrid.make_gradients(2);
                    void const* const gradients[] = {hybrid.tensors[0].mine[grad].data(),
                                                     hybrid.tensors[1].mine[grad].data(), nullptr};
                    hybrid.gpu->fail(kind, after);
                    std::string what;
                    try {
                        (void)hybrid.steps->step_gradients(gradients, values);
                    } catch (device_error const& error) {
                        what = error.what();
                    }
                    hybrid.gpu->resume();
                    if (what.empty())
                        break; // so many there are not
                    ++failures;
                    CHECK(what.find("emulated device failed at ") != what.npos);
                    if (what.find("Call load() with a") != what.npos) {
                        ++lost;
                        CHECK(!records);
                        CHECK_THROWS_AS(hybrid.steps->step(), device_error);
                        continue;
                    }
                    CHECK(hybrid.steps->steps() == 1);
                    REQUIRE(difference(hybrid.all(), states[1]) == "");
                    hybrid.steps->begin_step(); // none is open
                    hybrid.steps->abandon();
                }
                CHECK((failures >= 2 || (test::shares_memory && kind != device_operation::work)));
            }
    CHECK(lost >= 2);
}

TEST_CASE("A device that stops answering is named; the CPU's part is as before the step, and so is the device's later",
          "[once]")
{
    step_values const values{.max_norm = 1e-3};
    auto const& states = expected({}, values);
    for (auto const kind : {device_operation::copy_up, device_operation::copy_down, device_operation::work})
        for (bool const async : {false, true}) {
            if (test::shares_memory && kind != device_operation::work)
                continue; // too few copies
            INFO("operation " << static_cast<int>(kind) << ", async " << async);
            optimizer_options options;
            options.device_timeout_s = 0.5; // a loaded machine under a sanitizer needs more than 0.2 s to roll back
            model hybrid(options);
            (void)hybrid.step(1, 0, values);
            hybrid.make_gradients(2);
            hybrid.gpu->hang(kind, 1);
            try {
                (void)(async ? hybrid.steps->step_async(values).wait() : hybrid.steps->step(values));
                FAIL("it went on");
            } catch (device_error const& error) {
                CHECK(std::string(error.what()).find("did not finish within 0.5 s") != std::string::npos);
            }
            CHECK(hybrid.steps->steps() == 1);
            if (!async) { // nothing can be done with it meanwhile
                CHECK_THROWS_AS(hybrid.steps->state(), device_error);
                CHECK_THROWS_AS(hybrid.steps->step(), device_error);
            }
            hybrid.gpu->resume();
            REQUIRE(difference(hybrid.all(), states[1]) == "");
            (void)hybrid.step(2, async ? 2 : 1, values);
            REQUIRE(difference(hybrid.all(), states[2]) == "");
        }
}

TEST_CASE("A device without records has the same bits, and says where it cannot go back", "[both]")
{
    for (double const max_norm : {0.0, 1e-3}) {
        step_values const values{.max_norm = max_norm};
        auto const& states = expected({}, values);
        optimizer_options options;
        options.device_records = false;
        for (std::size_t way = 0; way < 3; ++way) {
            INFO("way " << way << ", max_norm " << max_norm);
            model hybrid(options, 0.3);
            std::size_t const free = hybrid.gpu->memory().free_bytes;
            CHECK(free > model({}, 0.3).gpu->memory().free_bytes);
            for (std::uint64_t i = 1; i <= 3; ++i) {
                (void)hybrid.step(i, way, values);
                REQUIRE(difference(hybrid.all(), states[i]) == "");
            }
            hybrid.make_gradients(4);
            if (test::shares_memory) // before anything is stepped
                hybrid.gpu->fail(device_operation::work, 0);
            else
                hybrid.gpu->fail(device_operation::copy_up, 1);
            CHECK_THROWS_AS(hybrid.step(4, way, values), device_error);
            hybrid.gpu->resume();
            REQUIRE(difference(hybrid.all(), states[3]) == "");
            model from({}, 1.0);
            for (std::uint64_t i = 1; i <= 3; ++i)
                (void)from.step(i, 0, values);
            hybrid.gpu->fail(device_operation::work, way == 2 ? 2 : 1); // the update
            CHECK(message_of([&] { (void)hybrid.step(4, way, values); }).find("inconsistent now. Call load()") !=
                  std::string::npos);
            CHECK_THROWS_AS(hybrid.steps->step(), device_error);
            CHECK_THROWS_AS(hybrid.steps->state(), device_error);
            hybrid.steps->load(from.steps->state());
            (void)hybrid.step(4, way, values);
            REQUIRE(difference(hybrid.all(), states[4]) == "");
        }
    }
    optimizer_options both;
    both.device_records = false;
    both.keep_last_step = true;
    CHECK_THROWS_AS(model(both, 0.5), invalid_argument);
}

TEST_CASE("An optimizer whose device hangs, or has an open step, can be dropped", "[once]")
{
    {
        model hybrid({.device_timeout_s = 0.02});
        hybrid.make_gradients(1);
        hybrid.gpu->hang(device_operation::work);
        hybrid.steps->begin_step();
        hybrid.steps->submit(0);
    }
    model hybrid;
    hybrid.make_gradients(1);
    hybrid.steps->begin_step();
    hybrid.steps->submit(1);
    hybrid.steps->abandon();
    CHECK(difference(hybrid.all(), expected({}, {.max_norm = 0.0})[0]) == "");
    hybrid.steps->begin_step();
    hybrid.steps->submit(1);
}

TEST_CASE("A device without the memory says so, and everything stays where it was")
{
    model hybrid({}, 0.9);
    auto const& states = expected({}, {.max_norm = 0.0});
    (void)hybrid.step(1, 0, {.max_norm = 0.0});
    std::size_t const before = hybrid.gpu->memory().free_bytes;
    placement const all = split(hybrid.steps->shard_sizes(), {.ratio = 0});
    auto const small = test::make_device(emulation_options{.name = "small", .memory_bytes = 200000});
    CHECK(hybrid.steps->device_bytes(*small, all) > 200000);
    std::vector<std::uint64_t> const numbers(hybrid.steps->shards(), 1);
    CHECK(message_of([&] { hybrid.steps->step({.shard_steps = numbers}); }).find("a device has shards") !=
          std::string::npos);
    CHECK(message_of([&] { hybrid.steps->place(small, all); }).find("Call place() without a device first") !=
          std::string::npos);
    model other({}, 1.0);
    other.steps->place(nullptr, split(other.steps->shard_sizes(), {.ratio = 1}));
    CHECK(message_of([&] { other.steps->place(small, all); }).find("bytes on small: only ") != std::string::npos);
    CHECK(small->memory().free_bytes == 200000);
    CHECK(message_of([&] { other.steps->place(hybrid.gpu, all); }).find("of another optimizer already") !=
          std::string::npos);
    for (std::size_t after = 0; after < (test::shares_memory ? 1 : 3); ++after) {
        hybrid.gpu->fail(device_operation::allocate, after);
        CHECK(message_of([&] { hybrid.steps->place(hybrid.gpu, all); }).find("failed to allocate") !=
              std::string::npos);
        if (!test::shares_memory) {
            hybrid.gpu->fail(device_operation::copy_up, after);
            CHECK(message_of([&] { hybrid.steps->place(hybrid.gpu, all); }).find("bytes up") != std::string::npos);
            hybrid.gpu->fail(device_operation::copy_down, after);
            CHECK(message_of([&] { hybrid.steps->place(hybrid.gpu, all); }).find("bytes down") != std::string::npos);
        }
        CHECK(hybrid.gpu->memory().free_bytes == before);
        CHECK(difference(hybrid.all(), states[1]) == "");
    }
    (void)hybrid.step(2, 0, {.max_norm = 0.0});
    CHECK(difference(hybrid.all(), states[2]) == "");
    // What is given back is given back.
    hybrid.steps->place(nullptr, split(hybrid.steps->shard_sizes(), {.ratio = 1}));
    CHECK(hybrid.gpu->memory().free_bytes == hybrid.gpu->memory().total_bytes - 2 * 40960);
    hybrid.steps->set_gradient(1, hybrid.tensors[1].mine[grad].data()); // no device writes it any more
}

TEST_CASE("If a placement and its rollback fail, the CPU has all shards and reads their gradients")
{
    auto const& states = expected({}, {.max_norm = 0.0});
    std::size_t both_failed = 0;
    for (std::size_t after = 1; after < 4; ++after) { // the first allocations are the new placement's
        model m({}, 0.5, {.memory_bytes = 900000});
        (void)m.step(1, 0, {.max_norm = 0.0});
        m.gpu->fail(device_operation::allocate, after);
        std::string const text =
            message_of([&] { m.steps->place(m.gpu, split(m.steps->shard_sizes(), {.ratio = 0})); });
        REQUIRE((text != "no error" || test::shares_memory));
        m.gpu->resume();
        if (text.find("restoring the previous placement failed, too") == text.npos)
            continue;
        ++both_failed;
        m.placed = false;
        REQUIRE(difference(m.all(), states[1]) == "");
        m.steps->set_gradient(1, m.tensors[1].mine[grad].data());
        (void)m.step(2, 0, {.max_norm = 0.0});
        REQUIRE(difference(m.all(), states[2]) == "");
    }
    CHECK((both_failed == 1 || test::shares_memory));
}

TEST_CASE("step_async() with a device changes nothing and calls reduce once if reduce throws", "[both]")
{
    step_values const values{.max_norm = 1e-3};
    auto const& states = expected({}, values);
    int calls = 0;
    optimizer_options options;
    options.reduce = [&](auto) {
        if (++calls == 1)
            throw std::runtime_error("a rank is gone");
    };
    model m(options);
    CHECK_THROWS_AS(m.step(1, 1, values), std::runtime_error);
    CHECK(calls == 1);
    CHECK(m.steps->steps() == 0);
    REQUIRE(difference(m.all(), states[0]) == "");
    (void)m.step(1, 1, values);
    CHECK(calls == 2);
    REQUIRE(difference(m.all(), states[1]) == "");
}

TEST_CASE("A checkpoint of one ratio loads under another")
{
    auto const& states = expected({}, {.max_norm = 0.0});
    model from({}, 0.25);
    (void)from.step(1, 0, {.max_norm = 0.0});
    (void)from.step(2, 2, {.max_norm = 0.0});
    for (double const ratio : {0.0, 0.6, 1.0}) {
        model to({}, ratio);
        (void)to.step(9, 0); // something else
        state_dict const state = from.steps->state();
        to.steps->load(state);
        CHECK(to.steps->steps() == 2);
        CHECK(difference(to.all(), states[2]) == "");
        (void)to.step(3, 1, {.max_norm = 0.0});
        CHECK(difference(to.all(), states[3]) == "");
        // Where the device fails, it is neither the one nor the other, and says so until it is loaded again.
        if (test::shares_memory)
            to.gpu->fail(device_operation::work, 0);
        else
            to.gpu->fail(device_operation::copy_up, 1);
        if (ratio != 1) {
            CHECK_THROWS_AS(to.steps->load(state), device_error);
            CHECK(message_of([&] { to.steps->step(); }).find("Call load() with a") != std::string::npos);
            to.steps->load(state);
            CHECK(difference(to.all(), states[2]) == "");
        }
        to.gpu->resume();
    }
}

TEST_CASE("Gradients that are accumulated move with their shards, and survive a step that fails", "[both]")
{
    auto const run = [](double ratio, bool moves, bool fails) {
        model m({}, ratio);
        m.placed = ratio >= 0;
        for (std::uint64_t i = 1; i <= 3; ++i) {
            m.make_gradients(100 + i);
            for (std::size_t k = 0; k < 3; ++k)
                m.steps->accumulate(k);
            m.make_gradients(200 + i);
            m.steps->accumulate(0);
            if (moves)
                m.steps->place(m.gpu, split(m.steps->shard_sizes(), {.ratio = 0.3 * static_cast<double>(i)}));
            if (fails) {
                m.gpu->fail(device_operation::work, 1);
                CHECK_THROWS_AS(m.step(i, 0), device_error);
            }
            (void)m.step(i, i % 3, {.max_norm = 1e-2});
        }
        return m.all();
    };
    auto const alone = run(-1, false, false);
    CHECK(difference(run(0.5, false, false), alone) == "");
    CHECK(difference(run(0.0, true, false), alone) == "");
    CHECK(difference(run(0.5, false, true), alone) == "");
    CHECK(difference(run(0.8, true, true), alone) == "");
}

TEST_CASE("A step is rolled back on both sides, if its gradients are still there on both")
{
    auto const& states = expected({}, {.max_norm = 0.0});
    for (double const ratio : {0.0, 0.5, 1.0}) {
        model m({.keep_last_step = true}, ratio);
        (void)m.step(1, 0, {.max_norm = 0.0});
        (void)m.step(2, 2, {.max_norm = 0.0});
        // One element of a gradient on the device is another.
        std::vector<bfloat16> gradient(m.tensors[1].size());
        std::byte* const real = m.gpu->real(m.there.at.grad, gradient.size() * 2);
        std::byte const kept = real[1];
        if (ratio != 1)                              // where the CPU has it all, it has its own copy
            for (unsigned const bit : {1u, 0x80u}) { // of the exponent; the sign
                real[1] = static_cast<std::byte>(static_cast<unsigned>(kept) ^ bit);
                CHECK(message_of([&] { m.steps->rollback(); }).find("have changed since") != std::string::npos);
                real[1] = kept;
            }
        m.gpu->fail(device_operation::work);
        if (ratio != 1) // while the gradients are compared: nothing has been rolled back yet
            CHECK_THROWS_AS(m.steps->rollback(), device_error);
        m.gpu->resume();
        CHECK(difference(m.all(), states[2]) == "");
        m.steps->rollback();
        CHECK(m.steps->steps() == 1);
        CHECK(difference(m.all(), states[1]) == "");
        (void)m.step(2, 1, {.max_norm = 0.0});
        m.gpu->fail(device_operation::work, 1);
        if (ratio != 1) // while it is rolled back: that is completed as soon as the device answers
            CHECK_NOTHROW(m.steps->rollback());
        m.gpu->resume();
        if (ratio == 1)
            m.steps->rollback();
        CHECK(m.steps->steps() == 1);
        CHECK(difference(m.all(), states[1]) == "");
    }
}

TEST_CASE("Gradients that are downloaded during step_async() are stepped as they arrive, and none is forgotten",
          "[once]")
{
    auto const& states = expected({}, {.max_norm = 0.0});
    for (int i = 0; i < 200; ++i) { // a race, if there is one
        model m({}, i % 2 == 0 ? 1.0 : 0.5);
        optimizer_report const report = m.step(1, 1, {.max_norm = 0.0});
        REQUIRE(report.elements == 10 * norm_block_elems + 12);
        REQUIRE(m.steps->steps() == 1);
        if (i % 50 == 0)
            REQUIRE(difference(m.all(), states[1]) == "");
    }
}

TEST_CASE("Weights that cannot be sent when nothing else is left to do are sent later: the step has been taken")
{
    step_values const values{.max_norm = 1e9};
    optimizer_options options;
    options.journal_budget_bytes = 0; // the CPU steps last
    auto const& states = expected({}, values);
    model m(options, 0.5);
    (void)m.step(1, 0, values);
    std::string what;
    for (std::size_t after = 0; what.find("is complete nevertheless") == what.npos && after < 10; ++after) {
        m.make_gradients(2);
        m.gpu->fail(device_operation::copy_up, after);
        what = message_of([&] { (void)m.steps->step(values); });
        m.gpu->resume();
        if (what.find("is complete nevertheless") == what.npos && m.steps->steps() != 1)
            FAIL("the step was taken, but what is wrong with the weights was not said: " << what);
    }
    CHECK(m.steps->steps() == 2);
    CHECK(difference(m.all(), states[2]) == "");
    (void)m.step(3, 0, values);
    CHECK(difference(m.all(), states[3]) == "");
}

TEST_CASE("A device without pieces that cannot take the last weights is left, with nothing lost", "[once]")
{
    model m({}, 1.0);
    m.gpu->release(m.there.at.weight_out); // too early
    m.make_gradients(1);
    CHECK(message_of([&] { (void)m.steps->step({.max_norm = 0.0}); }).find("is complete nevertheless") !=
          std::string::npos);
    CHECK(message_of([&] { (void)m.steps->state(); }).find("fails again or does not answer yet") != std::string::npos);
    CHECK_THROWS_AS(m.steps->place(nullptr, split({1}, {.ratio = 1})), invalid_argument);
    CHECK_THROWS_AS(m.steps->state(), device_error);
    m.steps->place(nullptr, split(m.steps->shard_sizes(), {.ratio = 1}));
    m.placed = false;
    CHECK(difference(m.all(), expected({}, {.max_norm = 0.0})[1]) == "");
}

TEST_CASE("A placement takes the bytes that device_bytes() names, and no more")
{
    test::random_bits random(3);
    for (int i = 0; i < 40; ++i) {
        model m({}, -1);
        placement const where =
            split(m.steps->shard_sizes(), {.ratio = static_cast<double>(random.below(1000)) / 1000});
        emulated_device plenty;
        std::size_t const bytes = m.steps->device_bytes(plenty, where);
        auto const exact = std::make_shared<emulated_device>(emulation_options{.memory_bytes = bytes});
        m.steps->place(exact, where);
        CHECK(exact->memory().free_bytes == 0);
        m.steps->place(nullptr, split(m.steps->shard_sizes(), {.ratio = 1}));
    }
}

TEST_CASE("While a device has yet to roll back its part, nothing that it needs for that can be changed", "[once]")
{
    optimizer_options options;
    options.device_timeout_s = 0.3;
    model m(options, 0.5);
    auto const& states = expected({}, {.max_norm = 1e9});
    m.make_gradients(1);
    m.gpu->hang(device_operation::copy_down, 0);
    CHECK_THROWS_AS(m.steps->step({.max_norm = 1e9}), device_error);
    CHECK_THROWS_AS(m.steps->accumulate(0), device_error);
    CHECK_THROWS_AS(m.steps->clear_accumulators(), device_error);
    m.gpu->resume();
    CHECK(difference(m.all(), states[0]) == "");
}

TEST_CASE("Weights come home with what is rolled back, and a device that has nothing to do is let go")
{
    model m({}, 0.0);
    (void)m.step(1, 0, {.max_norm = 0.0});
    for (bfloat16 *w = reinterpret_cast<bfloat16*>(m.tensors[1].mine[weight_out].data()),
                  *end = w + m.tensors[1].size();
         w != end; ++w)
        *w = {};
    m.steps->place(nullptr, split(m.steps->shard_sizes(), {.ratio = 1}));
    CHECK(m.tensors[1].mine[weight_out].difference(expected({}, {.max_norm = 0.0})[1][7]) == "");
    model other({}, 1.0);
    other.steps->place(nullptr, split(other.steps->shard_sizes(), {.ratio = 1}));
    other.steps->place(m.gpu, split(other.steps->shard_sizes(), {.ratio = 1}));
    m.steps->place(m.gpu, split(m.steps->shard_sizes(), {.ratio = 0})); // nobody else has it
    CHECK(m.steps->step().ratio == 0);
}

TEST_CASE("What cannot be placed is refused")
{
    model hybrid;
    auto const& states = expected({}, {.max_norm = 0.0});
    std::vector<std::size_t> const sizes = hybrid.steps->shard_sizes();
    CHECK(message_of([&] {
              hybrid.steps->place(nullptr, split(sizes, {.ratio = 0.5}));
          }).find("the device is a null pointer") != std::string::npos);
    CHECK(message_of([&] {
              hybrid.steps->place(hybrid.gpu, split({4096, 1}, {.ratio = 0.5}));
          }).find("Call split()") != std::string::npos);
    CHECK(message_of([&] { hybrid.steps->set_device_arrays(0, hybrid.there.at); }).find("after place()") !=
          std::string::npos);
    hybrid.steps->begin_step();
    CHECK(message_of([&] {
              hybrid.steps->place(hybrid.gpu, split(sizes, {.ratio = 1}));
          }).find("a step is in progress") != std::string::npos);
    hybrid.steps->abandon();
    hybrid.steps->place(nullptr, split(sizes, {.ratio = 1}));
    CHECK(message_of([&] { hybrid.steps->set_device_arrays(2, hybrid.there.at); }).find("has no weights") !=
          std::string::npos);
    CHECK(message_of([&] {
              hybrid.steps->set_device_arrays(0, {hybrid.there.at.grad, {}});
          }).find("two arrays") != std::string::npos);
    CHECK(difference(hybrid.all(), states[0]) == "");
    CHECK_THROWS_AS(optimizer(executor_of(1), {.device_timeout_s = 0}), invalid_argument);
}

TEST_CASE("A shard that is added to a placed optimizer is the CPU's until the next placement")
{
    model hybrid({}, 0.0);
    test::random_bits random(3);
    tensor more(kinds[0], 5000, random);
    more.draw_gradient(random, -12, -6);
    tensor const before = more;
    add(*hybrid.steps, more, "more");
    optimizer_report const report = hybrid.step(1, 0);
    CHECK(report.elements - report.device.elements == 5000);
    CHECK(more.mine[param].difference(before.mine[param]) != "");
    hybrid.steps->place(hybrid.gpu, split(hybrid.steps->shard_sizes(), {.ratio = 0}));
    CHECK(hybrid.step(2, 0).ratio == 0);
}

namespace {

// A shard with 16-bit gradients and weights, an accumulator, and a second gradient array.
struct plain_shard {
    static constexpr std::size_t n = 3 * norm_block_elems + 7;
    std::vector<float> param = std::vector<float>(n), exp_avg = param, exp_avg_sq = param, sum = param;
    std::vector<bfloat16> grad = std::vector<bfloat16>(n), weight_out = grad, other_grad = grad;

    plain_shard()
    {
        for (std::size_t i = 0; i < n; ++i)
            param[i] = 0.01f * static_cast<float>(i % 89);
    }
    void make_gradients(std::uint64_t seed)
    {
        test::random_bits random(seed);
        for (std::vector<bfloat16>* to : {&grad, &other_grad})
            for (bfloat16& g : *to)
                g = narrow<bfloat16>(test::with_exponent(random(), -9, -4));
    }
    std::unique_ptr<optimizer> make(optimizer_options const& options)
    {
        auto made = std::make_unique<optimizer>(executor_of(1), options);
        made->add_group("all", usual_adamw);
        made->add_shard({.group = 0,
                         .name = "w",
                         .shard = shard(param, grad, exp_avg, exp_avg_sq, weight_out),
                         .accumulator = sum});
        return made;
    }
    bool operator==(plain_shard const&) const = default;
};

} // namespace

TEST_CASE("A device that shares the host's memory has no second copy of arrays, and copies none", "[once]")
{
    for (bool const given : {false, true}) // whether the arrays on the device are named: the same ones
        for (bool const records : {true, false}) {
            INFO("given " << given << ", records " << records);
            optimizer_options const options{.max_norm = 1e-2, .keep_last_step = records, .device_records = records};
            plain_shard alone, both;
            auto const cpu = alone.make(options), hybrid = both.make(options);
            auto const gpu = std::make_shared<emulated_device>(emulation_options{.shares_host_memory = true});
            auto const apart = std::make_shared<emulated_device>();
            placement const where = split(hybrid->shard_sizes(), {.ratio = 0.4});
            auto const address = [](auto const& of) { return device_ptr{reinterpret_cast<std::uintptr_t>(of.data())}; };
            std::size_t const records_only = hybrid->device_bytes(*gpu, where);
            CHECK((records_only == 0) == !records);
            // 4 arrays of 4 bytes and 2 of 2, each of a whole number of blocks
            CHECK(hybrid->device_bytes(*apart, where) == records_only + where.device_elems * 20);
            if (given)
                hybrid->set_device_arrays(0, {address(both.grad), address(both.weight_out)});
            hybrid->place(gpu, where);
            CHECK(gpu->memory().total_bytes - gpu->memory().free_bytes == (records_only + 255) / 256 * 256);
            std::size_t const blocks = (where.device_elems + norm_block_elems - 1) / norm_block_elems;
            for (std::uint64_t i = 0; i < 4; ++i) {
                alone.make_gradients(i);
                both.make_gradients(i);
                std::uint64_t const down = gpu->usage().bytes[static_cast<std::size_t>(device_stream::down)];
                if (i == 1) {
                    cpu->accumulate(0);
                    hybrid->accumulate(0);
                }
                if (i == 2 && !given) { // the device reads the gradient that is there now
                    cpu->set_gradient(0, alone.other_grad.data());
                    hybrid->set_gradient(0, both.other_grad.data());
                    CHECK(message_of([&] {
                              hybrid->set_gradient(0, reinterpret_cast<std::byte*>(both.grad.data()) + 2);
                          }).find("must be a multiple of 16 bytes") != std::string::npos);
                }
                (void)cpu->step();
                optimizer_report const report = hybrid->step();
                CHECK(report.device.elements == where.device_elems);
                REQUIRE(both == alone); // without update_host_arrays()
                // Results of the passes only.
                CHECK(gpu->usage().bytes[static_cast<std::size_t>(device_stream::down)] - down <=
                      3 * blocks * (sizeof(grad_squares) + 1));
                CHECK(gpu->usage().bytes[static_cast<std::size_t>(device_stream::up)] == 0);
            }
            if (records) { // exact rollback of a step that is complete
                (void)cpu->rollback();
                (void)hybrid->rollback();
                REQUIRE(both == alone);
            }
            state_dict const state = hybrid->state();
            plain_shard restored;
            auto const next = restored.make(options);
            next->place(std::make_shared<emulated_device>(emulation_options{.shares_host_memory = true}),
                        split(next->shard_sizes(), {.ratio = 0}));
            next->load(state);
            CHECK(restored.param == alone.param);
            CHECK(restored.weight_out == alone.weight_out);
            hybrid->place(gpu, split(hybrid->shard_sizes(), {.ratio = 0}));
            hybrid->update_host_arrays();
            hybrid->place(nullptr, split(hybrid->shard_sizes(), {.ratio = 1}));
            CHECK(gpu->memory().free_bytes == gpu->memory().total_bytes);
            CHECK(gpu->usage().bytes[static_cast<std::size_t>(device_stream::up)] == 0);
            REQUIRE(both == alone);
        }
}
