// SPDX-License-Identifier: Apache-2.0
// The optimizer against the reference implementation applied the slow way, bit for bit: any groups, shards, order,
// threads, budget, policy.
#include <array>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <thread>

#include <adamant/optimizer.hpp>
#include <adamant/step.hpp>

#include "catch.hpp"
#include "slow_optimizer.hpp"

using namespace adamant;
using namespace slow;

TEST_CASE("Any run of the optimizer has the bits of the reference implementation applied the slow way")
{
    for (std::uint64_t seed = 1; seed <= 25; ++seed)
        run_random(seed);
}

TEST_CASE("Any run of the optimizer, many of them", "[slow][once]")
{
    for (std::uint64_t seed = 200; seed < 200 + test::repeats(10); ++seed) // some steps have no elements
        run_random(seed);
}

// User reports: DeepSpeed superoffload_stage3.py, prime-rl #3234.
TEST_CASE("with clipping, shards are stepped as they arrive, with the bits of clipping first", "[clip_kills_overlap]")
{
    for (double const max_norm : {1e9, 1.0}) {
        simple early(50000), late(50000);
        early.spread();
        late.spread();
        optimizer a(executor_of(1), {.max_norm = max_norm, .speculate = speculation::always});
        optimizer b(executor_of(1), {.max_norm = max_norm});
        a.add_group("all", usual_adamw);
        b.add_group("all", usual_adamw);
        a.add_shard({.group = 0, .name = "w", .shard = early.view()});
        b.add_shard({.group = 0, .name = "w", .shard = late.view()});
        for (int t = 0; t < 3; ++t) {
            a.begin_step();
            a.submit(0);
            optimizer_report const report = a.finish();
            CHECK(report.speculated);
            CHECK(report.journal_bytes != 0);
            CHECK(report.rolled_back == (max_norm == 1.0));
            CHECK((report.clip_coefficient < 1.0) == (max_norm == 1.0));
            optimizer_report const plain = b.step();
            CHECK(!plain.speculated);
            CHECK(plain.global_norm == report.global_norm);
            CHECK(early == late);
        }
    }
}

TEST_CASE("Speculation that fails most of the time stops, and begins again when it would succeed")
{
    simple data(40000);
    optimizer o(executor_of(1));
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    auto const step = [&](double max_norm, int pause_ms) {
        o.begin_step({.max_norm = max_norm});
        o.submit(0);
        std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
        return o.finish().speculated;
    };
    auto const speculates = [&] { // if it is given time
        for (int pause_ms = 1; pause_ms < 5000; pause_ms *= 2)
            if (step(1e9, pause_ms))
                return true;
        return false;
    };
    CHECK(speculates());
    for (int t = 0; t < 5; ++t)
        step(1e-3, 0);
    for (int t = 0; t < 3; ++t)
        CHECK(!step(1e-3, 20));
    for (int t = 0; t < 8; ++t)
        step(1e9, 0);
    CHECK(speculates());

    // submit() itself steps a small model, so speculation would hide nothing.
    simple small(20000);
    optimizer few(executor_of(1));
    few.add_group("all", usual_adamw);
    few.add_shard({.group = 0, .name = "w", .shard = small.view()});
    few.begin_step({.max_norm = 1e9});
    few.submit(0);
    optimizer_report const report = few.finish();
    CHECK(!report.speculated);
    CHECK(report.journal_bytes == 0);
}

TEST_CASE(
    "slow_finite_check: a gradient that is not finite is found where it is, and the step is skipped, zeroed or applied")
{
    for (nonfinite_policy const policy : {nonfinite_policy::skip, nonfinite_policy::zero, nonfinite_policy::apply})
        for (bool const early : {false, true}) {
            simple data(20000), untouched(20000);
            simple const before = data;
            optimizer o(executor_of(1),
                        {.on_nonfinite = policy, .loss_scaling = loss_scaling_options{.initial_scale = 8}});
            o.add_group("all", usual_adamw);
            o.add_shard({.group = 0, .name = "first", .shard = untouched.view()});
            o.add_shard({.group = 0, .name = "second", .shard = data.view()});
            data.grad[12345] = narrow<bfloat16>(std::numeric_limits<float>::infinity());
            data.grad[12346] = narrow<bfloat16>(std::nanf(""));
            optimizer_report report;
            if (early) {
                o.begin_step();
                o.submit(0);
                o.submit(1);
                report = o.finish();
            } else {
                report = o.step();
            }
            CHECK(report.nonfinite_grads == 2);
            REQUIRE(report.first_nonfinite.has_value());
            CHECK(report.first_nonfinite->shard == 1);
            CHECK(report.first_nonfinite->index == 12345);
            CHECK(o.loss_scale() == 4);
            if (policy == nonfinite_policy::skip) {
                CHECK(report.outcome == step_outcome::skipped);
                CHECK(o.steps() == 0);
                CHECK(data == before);
                CHECK(untouched == before);
            } else {
                CHECK(report.outcome == step_outcome::applied);
                CHECK(o.steps() == 1);
                CHECK(is_nan(data.param[12345]) == (policy == nonfinite_policy::apply));
                CHECK(data.param[12344] != 1.0f);
            }
        }
}

TEST_CASE("A journal's budget from nothing to plenty changes who waits, never a bit")
{
    std::vector<simple> expected;
    for (std::size_t const budget : test::sizes{0, 60000, 120000, 300000, 10000000}) {
        std::vector<simple> shards(6, simple(20000));
        optimizer o(executor_of(1),
                    {.max_norm = 1e9, .speculate = speculation::always, .journal_budget_bytes = budget});
        o.add_group("all", usual_adamw);
        for (std::size_t k = 0; k < shards.size(); ++k) {
            shards[k].spread();
            o.add_shard({.group = 0, .name = std::to_string(k), .shard = shards[k].view()});
        }
        std::size_t waited = 0;
        for (int t = 0; t < 4; ++t) {
            o.begin_step();
            for (std::size_t k = 0; k < shards.size(); ++k)
                o.submit(shards.size() - 1 - k);
            optimizer_report const report = o.finish();
            waited += report.shards_waited;
            CHECK(report.journal_bytes <= budget);
            CHECK((report.journal_bytes != 0) == (budget != 0));
            CHECK(!report.rolled_back);
        }
        INFO("budget " << budget);
        CHECK((waited == 24) == (budget < 300000)); // each had a block for which there was no room
        CHECK((waited == 0) == (budget == 10000000));
        if (expected.empty())
            expected = shards;
        for (std::size_t k = 0; k < shards.size(); ++k)
            CHECK(shards[k] == expected[k]);
    }
}

TEST_CASE("The norm is what all ranks say it is, and a rank's failure loses nothing")
{
    simple data(20000), expected(20000);
    bool fail = true;
    optimizer_options options{.max_norm = 1, .speculate = speculation::always};
    options.reduce = [&](std::span<std::int64_t> words) { // four ranks that are alike
        if (fail)
            throw std::runtime_error("rank 3 is gone");
        for (std::int64_t& word : words)
            word *= 4;
    };
    optimizer o(executor_of(1), options);
    optimizer same(executor_of(1), {.max_norm = 0.5});
    o.add_group("all", usual_adamw);
    same.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    same.add_shard({.group = 0, .name = "w", .shard = expected.view()});
    simple const before = data;

    o.begin_step();
    o.submit(0);
    CHECK_THROWS_WITH(o.finish(), "rank 3 is gone");
    fail = false;
    optimizer_report const report = o.finish(); // again
    CHECK(report.global_norm == 2 * same.step().global_norm);
    CHECK(report.rolled_back);

    fail = true;
    simple const after = data;
    o.begin_step();
    o.submit(0);
    CHECK_THROWS_WITH(o.finish(), "rank 3 is gone");
    o.abandon();
    CHECK(data == after);
    CHECK(o.steps() == 1);

    optimizer::ticket const ticket = o.step_async();
    CHECK_THROWS_WITH(ticket.wait(), "rank 3 is gone");
    CHECK(data == after);
    CHECK_THROWS_WITH(o.step(), "rank 3 is gone");
    CHECK(data == after);
    fail = false;
    CHECK(o.step().step == 2);
    CHECK(!(data == before));
}

TEST_CASE("A sum over ranks that cannot be refuses the step, whichever way it is taken")
{
    using words_of = std::span<std::int64_t, squares_total::word_count>;
    std::vector<std::pair<void (*)(words_of), char const*>> const impossible{
        {[](words_of words) { words[3] = -1; }, "a word is negative or too large"},
        {[](words_of words) { words[20] = -1; }, "a word is negative or too large"},
        {[](words_of words) { words[19] = std::int64_t{1} << 32; }, "a word is negative or too large"},
        {[](words_of words) { std::fill(words.begin(), words.end(), std::numeric_limits<std::int64_t>::max()); },
         "a word is negative or too large"},
        {[](words_of words) { words[20] = 0; }, "is less than this process's own part"},
        {[](words_of words) { std::fill(words.begin(), words.end() - 1, 0); }, "is less than this process's own part"},
        {[](words_of words) { --*std::find_if(words.begin(), words.end(), [](std::int64_t w) { return w != 0; }); },
         "is less than this process's own part"}};
    for (auto const policy : {nonfinite_policy::skip, nonfinite_policy::apply})
        for (auto const& [spoil, text] : impossible) {
            simple data(10000);
            data.spread();
            data.grad[5] = narrow<bfloat16>(std::nanf(""));
            bool is_bad = true;
            optimizer_options options{.max_norm = 1, .on_nonfinite = policy, .speculate = speculation::always};
            options.reduce = [&, spoil = spoil](words_of words) {
                if (is_bad)
                    spoil(words);
            };
            optimizer o(executor_of(1), options);
            o.add_group("all", usual_adamw);
            o.add_shard({.group = 0, .name = "w", .shard = data.view()});
            simple const before = data;
            std::string const why = message_of([&] { o.step(); });
            CHECK(why.find("adamant: cannot use the result of reduce: ") == 0);
            CHECK(why.find(text) != std::string::npos);
            CHECK(data == before);
            CHECK(message_of([&] { o.step_async().wait(); }) == why);
            CHECK(data == before);
            o.begin_step();
            o.submit(0);
            CHECK(message_of([&] { o.finish(); }) == why);
            is_bad = false;
            CHECK(o.finish().step == 1);
        }
}

TEST_CASE("An open step that is abandoned, or whose optimizer is destroyed, leaves every bit as it was")
{
    simple data(30000);
    data.spread();
    simple const before = data;
    {
        optimizer o(executor_of(1), {.max_norm = 1, .speculate = speculation::always});
        o.add_group("all", usual_adamw);
        o.add_shard({.group = 0, .name = "w", .shard = data.view()});
        o.begin_step();
        o.submit(0);
        o.abandon();
        CHECK(data == before);
        o.begin_step();
        o.submit(0);
    }
    CHECK(data == before);
}

TEST_CASE("A step that needs no norm is abandoned where it was recorded, else it stays open")
{
    for (nonfinite_policy const policy : {nonfinite_policy::apply, nonfinite_policy::zero})
        for (bool const kept : {false, true}) {
            simple data(30000);
            data.spread();
            simple const before = data;
            simple other = data;
            optimizer o(executor_of(1), {.on_nonfinite = policy, .keep_last_step = kept});
            o.add_group("all", usual_adamw);
            o.add_shard({.group = 0, .name = "w", .shard = data.view()});
            o.add_shard({.group = 0, .name = "x", .shard = other.view()});
            o.begin_step();
            o.abandon(); // nothing was submitted
            o.begin_step();
            o.submit(0);
            if (kept) {
                o.abandon();
                CHECK(data == before);
                CHECK(o.steps() == 0);
            } else {
                CHECK(message_of([&] {
                          o.abandon();
                      }).find("8 of their blocks have no record to roll back from. Call finish()") !=
                      std::string::npos);
                o.submit(1);
                CHECK(o.finish().step == 1);
                CHECK(data == other);
            }
        }
}

TEST_CASE("What is asked in a task of the optimizer's own team is an error before anything happens")
{
    simple data(30000), expected(30000);
    data.spread();
    expected.spread();
    executor const cpu = executor_of(1);
    optimizer o(cpu, {.max_norm = 1});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    o.begin_step();
    std::atomic<int> refused{0};
    cpu.team()->run([&](unsigned member) {
        for (int i = 0; i < 5 && member == 0; ++i) {
            refused += message_of([&] { o.submit(0); }).find("would wait for itself") != std::string::npos;
            refused += message_of([&] { o.finish(); }).find("would wait for itself") != std::string::npos;
            refused += message_of([&] { o.abandon(); }).find("would wait for itself") != std::string::npos;
        }
    });
    CHECK(refused == 15);
    o.submit(0);
    o.finish();
    optimizer same(cpu, {.max_norm = 1});
    same.add_group("all", usual_adamw);
    same.add_shard({.group = 0, .name = "w", .shard = expected.view()});
    same.step();
    CHECK(data == expected);
}

TEST_CASE("A ticket is polled and waited for with a deadline while the other ranks take their time")
{
    simple data(30000);
    std::atomic<bool> answered{false};
    optimizer o(executor_of(1), {.reduce = [&](std::span<std::int64_t>) {
                    while (!answered)
                        std::this_thread::yield();
                }});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    optimizer::ticket const ticket = o.step_async();
    CHECK(!ticket.wait_for(std::chrono::milliseconds(1)));
    CHECK(!ticket.done());
    CHECK(ticket.progress() <= 1);
    answered = true;
    CHECK(ticket.wait_for(std::chrono::nanoseconds::max()));
    CHECK(ticket.done());
    CHECK(ticket.wait().step == 1);
    o.begin_step();
    CHECK(ticket.done()); // of a step that is over
    o.abandon();
    answered = false;
    optimizer::ticket const next = o.step_async();
    CHECK(ticket.done()); // though the next step is not
    CHECK(message_of([&] { static_cast<void>(ticket.wait()); }) == "adamant: wait() was already called on this ticket");
    CHECK(!next.done());
    answered = true;
    CHECK(next.wait().step == 2);
}

TEST_CASE("The caller's rounding changes no bit of norm, clip coefficient, loss scale and step")
{
    std::vector<std::pair<simple, std::array<double, 3>>> runs;
    for (int const mode : {FE_TONEAREST, FE_UPWARD, FE_TOWARDZERO}) {
        simple data(30000);
        data.spread();
        optimizer o(executor_of(1), {.max_norm = 0.1,
                                     .loss_scaling = loss_scaling_options{.growth_factor = 1.1, .growth_interval = 1}});
        o.add_group("all", usual_adamw);
        o.add_shard({.group = 0, .name = "w", .shard = data.view()});
        std::fesetround(mode);
        optimizer_report const r = o.step({});
        o.step({.max_abs_grad = 0.1});
        std::fesetround(FE_TONEAREST);
        runs.push_back({data, {r.global_norm, r.clip_coefficient, o.loss_scale()}});
    }
    for (auto const& [data, numbers] : runs) {
        CHECK(data == runs[0].first);
        CHECK((numbers == runs[0].second));
    }
}

TEST_CASE("A team that waits for the next shard does other work first, and ends when there is none")
{
    // For ever, if it is not told.
    auto const team = std::make_shared<adamant::team>(
        team_options{.threads = 2, .bind = binding::none, .spin = std::chrono::hours(1)});
    executor const cpu(team, executor_options{.tier = test::tier()});
    simple data(100), large(200000);
    std::vector<float> sum(large.n);
    optimizer o(cpu, {.max_norm = 1});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "small", .shard = data.view()});
    o.add_shard({.group = 0, .name = "large", .shard = large.view(), .accumulator = sum.data()});
    o.begin_step();
    o.submit(0);
    o.accumulate(1); // by the same team
    CHECK(sum[large.n - 1] == 0.5f);
    o.submit(1);
    simple other(200000);
    step(cpu, other.view(), usual_adamw, 1);
    CHECK(o.finish().step == 1);
    o.begin_step();
    o.submit(0);
    o.abandon();
}

TEST_CASE("The caller's traps hit nothing of a step, and are there afterwards")
{
    simple data(30000);
    data.spread();
    simple expected = data;
    auto const steps = [](simple& on, int traps) {
        feenableexcept(traps);
        optimizer o(executor_of(2), {.max_norm = 0.1, .loss_scaling = loss_scaling_options{}, .keep_last_step = true});
        o.add_group("all", usual_adamw);
        o.add_shard({.group = 0, .name = "w", .shard = on.view()});
        o.step();
        o.begin_step();
        o.submit(0);
        o.finish();
        o.rollback();
        optimizer::ticket const ticket = o.step_async();
        while (!ticket.done()) // with quotients that are inexact
            static_cast<void>(ticket.progress());
        ticket.wait();
        int const after = fegetexcept();
        int const flags = std::fetestexcept(FE_INEXACT);
        fedisableexcept(FE_ALL_EXCEPT);
        CHECK(after == traps);
        CHECK((traps == 0 || flags == 0));
    };
    steps(expected, 0);
    std::feclearexcept(FE_ALL_EXCEPT);      // what is raised already traps as soon as traps are there
    if (feenableexcept(FE_INEXACT) == -1) { // some processors of AArch64 have none
        WARN("skipped: this CPU has no traps");
        return;
    }
    fedisableexcept(FE_ALL_EXCEPT);
    steps(data, FE_INEXACT | FE_UNDERFLOW | FE_OVERFLOW | FE_INVALID | FE_DIVBYZERO);
    CHECK(data == expected);
}

TEST_CASE("The report counts records where they are written, and counts no shard as waiting that was not stepped")
{
    simple data(30000);
    data.spread();
    optimizer o(executor_of(1), {.max_norm = 1, .speculate = speculation::always, .keep_last_step = true});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    optimizer_report const whole = o.step(); // the norm, then the step
    CHECK(whole.journal_bytes >= 2 * data.n);
    CHECK(whole.gradients.bytes_moved == 2 * data.n);
    CHECK(whole.update.bytes_moved == 28 * data.n + whole.journal_bytes);
    auto const submitted = [&] {
        o.begin_step();
        o.submit(0);
        return o.finish();
    };
    optimizer_report const redone = submitted(); // stepped, back, and stepped with records once more
    CHECK(redone.rolled_back);
    std::size_t const first = redone.gradients.bytes_moved - 28 * data.n;
    CHECK(first >= 2 * data.n);
    CHECK(redone.journal_bytes >= first + 2 * data.n);
    CHECK(redone.update.bytes_moved == (28 + 26) * data.n + redone.journal_bytes);
    data.grad[29999] = narrow<bfloat16>(std::nanf(""));
    optimizer_report const skipped = submitted();
    CHECK(skipped.outcome == step_outcome::skipped);
    CHECK(skipped.shards_waited == 0);
    CHECK((skipped.update.bytes_moved != 0) == skipped.rolled_back);
}

TEST_CASE("rollback() wants the last step's gradients, and says so where it cannot")
{
    simple data(30000);
    data.spread();
    optimizer o(executor_of(1), {.max_norm = 1, .keep_last_step = true});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    CHECK(message_of([&] { o.rollback(); }).find("there is no step to roll back") != std::string::npos);
    simple const before = data;
    o.step();
    bfloat16 const kept = std::exchange(data.grad[7], narrow<bfloat16>(3.0f));
    simple const stepped = data;
    CHECK(message_of([&] { o.rollback(); }).find("have changed since") != std::string::npos);
    CHECK(data == stepped);
    data.grad[7] = kept;
    // Nor of any other sign or order, which the sum of squares does not tell.
    data.grad[8] = narrow<bfloat16>(-widen(data.grad[8]));
    CHECK(message_of([&] { o.rollback(); }).find("have changed since") != std::string::npos);
    data.grad[8] = narrow<bfloat16>(-widen(data.grad[8]));
    std::swap(data.grad[29000], data.grad[29016]);
    REQUIRE(widen(data.grad[29000]) != widen(data.grad[29016]));
    CHECK(message_of([&] { o.rollback(); }).find("have changed since") != std::string::npos);
    CHECK(data == stepped);
    std::swap(data.grad[29000], data.grad[29016]);
    o.rollback();
    CHECK(data == before);
    CHECK(o.steps() == 0);
    CHECK(message_of([&] { o.rollback(); }).find("there is no step to roll back") != std::string::npos);
    data.grad[7] = narrow<bfloat16>(std::nanf(""));
    CHECK(o.step().outcome == step_outcome::skipped);
    CHECK(message_of([&] { o.rollback(); }).find("there is no step to roll back") != std::string::npos);

    optimizer never(executor_of(1));
    CHECK(message_of([&] { never.rollback(); }).find("Set keep_last_step") != std::string::npos);
    optimizer poor(executor_of(1), {.journal_budget_bytes = 100, .keep_last_step = true});
    poor.add_group("all", usual_adamw);
    poor.add_shard({.group = 0, .name = "w", .shard = data.view()});
    data.grad[7] = kept;
    poor.step();
    CHECK(message_of([&] { poor.rollback(); }).find("Set journal_budget_bytes to") != std::string::npos);
    poor.begin_step();
    poor.submit(0);
    poor.finish();
    CHECK(message_of([&] { poor.rollback(); }).find("for 8 of 8 blocks") != std::string::npos);

    // What was added since has no record.
    o.step({.max_norm = 0});
    simple more(50000);
    o.add_shard({.group = 0, .name = "more", .shard = more.view()});
    CHECK(message_of([&] { o.rollback(); }).find("there is no step to roll back") != std::string::npos);
    CHECK(o.step({.max_norm = 0}).step == 2);
    o.rollback();
    CHECK(o.steps() == 1);
}

TEST_CASE("What an optimizer is asked wrongly is an error, and nothing is lost")
{
    simple data(100), other(100);
    optimizer o(executor_of(1));
    CHECK(message_of([&] { o.add_shard({.group = 0, .name = "w", .shard = data.view()}); }) ==
          "adamant: there is no parameter group 0; the optimizer has 0");
    o.add_group("all", usual_adamw);
    CHECK(message_of([&] { o.add_group("all", usual_adamw); }) ==
          "adamant: cannot add parameter group 'all': a group has this name already");
    CHECK(message_of([&] { o.add_group("bad", {.lr = -1}); }) ==
          "adamant: lr is -1, but must be a finite number, 0 or above");
    CHECK(message_of([&] { o.add_group("", usual_adamw); }).find("has no name") != std::string::npos);
    CHECK(message_of([&] { o.add_group(std::string(500, 'a') + '\xff', usual_adamw); }) ==
          "adamant: the name of a parameter group, '" + std::string(200, 'a') +
              "...', is not UTF-8: see its byte 500. Checkpoints store only UTF-8. Convert it.");
    CHECK(o.groups().size() == 1);
    CHECK(message_of([&] { static_cast<void>(o.group(1)); }) ==
          "adamant: there is no parameter group 1; the optimizer has 1");
    CHECK(message_of([&] { o.add_shard({.group = 0, .name = "", .shard = data.view()}); }).find("has no name") !=
          std::string::npos);
    CHECK(message_of([&] {
              o.add_group("a\xff", usual_adamw);
          }).find("the name of a parameter group, 'a\\xff', is not UTF-8: see its byte 1") != std::string::npos);
    CHECK(message_of([&] {
              o.add_shard({.group = 0, .name = "\xc3", .shard = data.view()});
          }).find("the name of a shard, '\\xc3', is not UTF-8: see its byte 0") != std::string::npos);
    CHECK(
        message_of([&] {
            o.add_shard({.group = 0, .name = "w", .shard = data.view(), .position = {{10, 9}}});
        }) ==
        "adamant: cannot add a shard of 'w': it has elements 0 to 100, but the parameter has 90. Pass the shape of the "
        "whole parameter.");
    CHECK(message_of([&] {
              o.add_shard({.group = 0, .name = "w", .shard = data.view(), .position = {{SIZE_MAX, 2}}});
          }).find("more elements than fit in memory") != std::string::npos);
    o.add_shard({.group = 0, .name = "w", .shard = data.view(), .position = {{2, 100}}});
    CHECK(message_of([&] {
              o.add_shard({.group = 0, .name = "w", .shard = other.view()});
          }).find("without a position: the parameter has another shard") != std::string::npos);
    CHECK(message_of([&] {
              o.add_shard({.group = 0, .name = "w", .shard = other.view(), .position = {{2, 100}, 99}});
          }) ==
          "adamant: cannot add a shard of 'w' with elements 99 to 199: shard 0 has elements 0 to 100. Shards must not "
          "overlap.");
    std::vector<bfloat16> narrow_exp_avg(100);
    CHECK(message_of([&] {
              o.add_shard({.group = 0,
                           .name = "w",
                           .shard = shard(other.param.data(), other.grad.data(), narrow_exp_avg.data(),
                                          other.exp_avg_sq.data(), std::size_t{100}),
                           .position = {{2, 100}, 100}});
          }) == "adamant: cannot add a shard of 'w': its exp_avg is bfloat16, but that of shard 0 is float32. Use the "
                "same types for all shards of a parameter.");
    o.add_shard({.group = 0, .name = "w", .shard = other.view(), .position = {{2, 100}, 100}});
    CHECK(message_of([&] { o.set_steps(~std::uint64_t{0}); }).find("less than 2^64 - 1") != std::string::npos);
    CHECK(message_of([&] {
              static_cast<void>(any_shard(data.view()).track({static_cast<std::uint64_t*>(nullptr), 2}));
          }) == "adamant: changed is a null pointer");
    CHECK(message_of([&] { o.step({.max_norm = -1}); }) ==
          "adamant: max_norm is -1, but must be a finite number, 0 or above");
    CHECK(message_of([&] { o.step({.max_norm = 1, .max_abs_grad = 1}); }).find("set the other to 0") !=
          std::string::npos);
    CHECK(message_of([&] { o.step({.loss_scale = 0}); }).find("loss_scale is 0") != std::string::npos);
    std::vector<double> const lr{1, 2};
    CHECK(message_of([&] { o.step({.lr = lr}); }) ==
          "adamant: cannot step with 2 learning rates: the optimizer has 1 group");
    CHECK(message_of([&] { static_cast<void>(o.name(9)); }) == "adamant: there is no shard 9; the optimizer has 2");
    std::vector<std::uint64_t> const numbers{3, 0, 1};
    CHECK(message_of([&] { o.step({.shard_steps = numbers}); }) ==
          "adamant: cannot step with 3 step numbers: the optimizer has 2 shards. Pass one for each shard.");
    CHECK(message_of([&] { o.begin_step({.shard_steps = std::span(numbers).first(2)}); }) ==
          "adamant: cannot step shard 1 ('w') with step number 0: steps are counted from 1. Pass 1 more than the steps "
          "that it has taken.");
    CHECK(message_of([&] { o.submit(0); }).find("no step is open") != std::string::npos);
    CHECK(message_of([&] { o.skip(0); }).find("cannot call skip(): no step is open") != std::string::npos);
    CHECK(message_of([&] { o.finish(); }).find("no step is open") != std::string::npos);
    CHECK(message_of([&] { o.accumulate(0); }).find("it has no accumulator") != std::string::npos);
    o.begin_step();
    CHECK(message_of([&] { o.step(); }).find("a step is in progress. Call finish() or abandon() first.") !=
          std::string::npos);
    CHECK(message_of([&] { o.submit(2); }) == "adamant: there is no shard 2; the optimizer has 2");
    o.submit(1);
    CHECK(message_of([&] { o.submit(1); }).find("has been submitted in this step already") != std::string::npos);
    CHECK(message_of([&] { o.finish(); }) == "adamant: cannot finish the step: 1 of 2 shards has not been submitted: "
                                             "0 ('w'). Call submit() for each, or skip() "
                                             "for those without a gradient.");
    o.submit(0);
    CHECK(o.finish().step == 1);

    optimizer overlapping(executor_of(1));
    overlapping.add_group("all", usual_adamw);
    overlapping.add_shard({.group = 0, .name = "a", .shard = data.view()});
    overlapping.add_shard({.group = 0, .name = "b", .shard = data.view()});
    std::string const overlap = message_of([&] { overlapping.step(); });
    CHECK(overlap.find(" of shard 0 and ") != std::string::npos);
    CHECK(overlap.find(" of shard 1 overlap in memory") != std::string::npos);
    std::vector<float> own(100), own_grad(100);
    optimizer into_grad(executor_of(1));
    into_grad.add_group("all", usual_adamw);
    shard const mine(own.data(), own_grad.data(), other.exp_avg.data(), other.exp_avg_sq.data(), std::size_t{100});
    CHECK(message_of([&] {
              into_grad.add_shard({.group = 0, .name = "a", .shard = mine, .accumulator = own_grad.data()});
          }).find("adamant: grad and accumulator of shard 0 overlap") == 0);
    CHECK(message_of([&] {
              into_grad.add_shard({.group = 0, .name = "a", .shard = mine, .accumulator = own.data()});
          }).find("adamant: param and accumulator of shard 0 overlap") == 0);
    CHECK(message_of([&] {
              into_grad.add_shard(
                  {.group = 0, .name = "a", .shard = mine, .accumulator = other.exp_avg_sq.data() + 99});
          }).find("adamant: exp_avg_sq and accumulator of shard 0 overlap") == 0);
    CHECK(into_grad.shards() == 0);
    std::vector<float> sum(100);
    into_grad.add_shard({.group = 0, .name = "a", .shard = mine, .accumulator = sum.data()});
    std::vector<float> const untouched = data.param;
    into_grad.add_shard({.group = 0,
                         .name = "b",
                         .shard = data.view(),
                         .accumulator = own.data()}); // another's param, which no shard sees by itself
    CHECK(message_of([&] {
              into_grad.accumulate(1);
          }).find("adamant: param of shard 0 and accumulator of shard 1 overlap") == 0);
    CHECK(own == std::vector<float>(100));
    CHECK(data.param == untouched);
    CHECK(message_of([&] {
              optimizer(executor_of(1), {.max_norm = 1, .max_abs_grad = 1});
          }).find("set the other to 0") != std::string::npos);
    CHECK(message_of([&] {
              optimizer(executor_of(1), {.loss_scaling = loss_scaling_options{.growth_interval = 0}});
          }).find("growth_interval is 0") != std::string::npos);
}

// User reports: DeepSpeed #6666, bitsandbytes #1402, torchao #959.
TEST_CASE("what an optimizer will allocate is known before it does", "[host_oom]")
{
    std::size_t const n = 500000;
    std::vector<simple> shards(3, simple(n));
    optimizer o(executor_of(1), {.max_norm = 1, .speculate = speculation::always});
    o.add_group("all", usual_adamw);
    for (simple& each : shards)
        o.add_shard({.group = 0, .name = std::to_string(&each - shards.data()), .shard = each.view()});
    // Of each block, of each pass over a shard, and of each shard: its range and at most seven arrays that are written.
    CHECK(o.memory_bytes(false) == 3 * 123 * 24 + 4 * 5 * (32 + 8) + 3 * (24 + 7 * 40 + 4 + 1) + 4 * 8);
    CHECK(o.memory_bytes() > 3 * n * 3);
    if (test::tier() != isa::scalar) // whose records are copies
        CHECK(o.memory_bytes() < 3 * n * 6);
    // The budget is a bound: no more is allocated than the records of a step can take, whatever it says.
    std::size_t const at_most = o.memory_bytes(false) + 3 * n * 16 + (std::size_t{4} << 20);
    for (std::size_t const budget : {std::size_t{1'000'000'000'000}, SIZE_MAX - 1}) {
        optimizer rich(executor_of(1), {.max_norm = 1, .journal_budget_bytes = budget});
        rich.add_group("all", usual_adamw);
        for (simple& each : shards)
            rich.add_shard({.group = 0, .name = std::to_string(&each - shards.data()), .shard = each.view()});
        CHECK(rich.memory_bytes() > rich.memory_bytes(false));
        CHECK(rich.memory_bytes() < at_most);
        rich.begin_step();
        rich.abandon();
    }
    o.prepare();
    optimizer_report const report = [&] {
        o.begin_step();
        for (std::size_t k = 0; k < 3; ++k)
            o.submit(k);
        return o.finish();
    }();
    CHECK(report.shards_waited == 0); // enough for what is ordinary
    CHECK(report.elements == 3 * n);
    CHECK(report.threads == 2);
    // Gradients, and the params and moments each way, the weights, and the records; then back and again, as it clips.
    CHECK(report.gradients.bytes_moved == 3 * n * 28 + report.journal_bytes);
    CHECK(report.update.bytes_moved == 3 * n * (28 + 26) + report.journal_bytes);
    optimizer_report const plain = o.step();
    CHECK(plain.gradients.bytes_moved == 3 * n * 2);
    CHECK(plain.update.bytes_moved == 3 * n * 28);
    CHECK(plain.seconds > 0);
}

TEST_CASE("the default journal holds the records of small shards, in every format")
{
    test::random_bits random(31);
    for (shard_format const& format : all_formats()) {
        optimizer o(executor_of(1), {.max_norm = 1e9, .speculate = speculation::always});
        o.add_group("all", usual_adamw);
        std::vector<std::vector<test::array>> shards;
        for (std::size_t k = 0; k < 300; ++k) {
            std::size_t const n = random.below(3) == 0 ? 1 + random.below(70) : 1;
            std::vector<test::array>& arrays = shards.emplace_back();
            arrays.reserve(format.types.size());
            for (std::size_t which = 0; which < format.types.size(); ++which) {
                arrays.emplace_back(format.types[which], n);
                for (std::size_t i = 0; i < n && format.types[which] != dtype::none; ++i)
                    arrays[which].set(i, which == shard_array::exp_avg_sq ? 1e-6f : 1e-2f);
            }
            any_shard const shard(
                format, {arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data(), arrays[4].data()}, n);
            o.add_shard({.group = 0, .name = std::to_string(k), .shard = optimizer_shard(shard)});
        }
        o.begin_step();
        for (std::size_t k = 0; k < shards.size(); ++k)
            o.submit(k);
        INFO(to_text(format.types));
        CHECK(o.finish().shards_waited == 0);
    }
}

// User reports: NeMo #14243, SkyRL #1403, prime-rl #3561, verl #4870.
TEST_CASE("a run that is resumed, cut otherwise, is the run that was not stopped", "[bad_resume]")
{
    std::size_t const n = 3 * norm_block_elems + 100;
    auto const gradients = [&](simple& of, std::uint64_t t, std::size_t begin) {
        for (std::size_t i = 0; i < of.n; ++i)
            of.grad[i] = narrow<bfloat16>(0.01f * static_cast<float>((i + begin) * t % 91) - 0.4f);
    };
    optimizer_options const options{.max_norm = 1, .loss_scaling = loss_scaling_options{.growth_interval = 3}};
    simple whole(n);
    whole.spread();
    optimizer first(executor_of(1), options);
    first.add_group("all", usual_adamw);
    first.add_shard({.group = 0, .name = "w", .shard = whole.view()});
    for (std::uint64_t t = 1; t <= 5; ++t) {
        gradients(whole, t, 0);
        if (t == 2)
            first.set_hyperparameters(0, {.lr = 0.02, .weight_decay = 0.3, .mode = decay_mode::l2});
        first.step();
    }
    simple const stopped = whole;
    state_dict state = first.state();
    CHECK(state.step == 5);
    REQUIRE(state.tensors.size() == 3);
    // A copy, as a file would hold it.
    std::vector<std::vector<std::byte>> held;
    for (state_tensor& t : state.tensors) {
        held.emplace_back(t.data, t.data + array_bytes(t.type, t.elements));
        t.data = held.back().data();
    }
    std::vector<double> scales;
    for (std::uint64_t t = 6; t <= 9; ++t) {
        gradients(whole, t, 0);
        first.step();
        scales.push_back(first.loss_scale());
    }

    simple left(norm_block_elems), right(n - norm_block_elems);
    optimizer second(executor_of(0), options);
    second.add_group("all", usual_adamw);
    second.add_shard({.group = 0, .name = "w", .shard = left.view(), .position = {{n}, 0}});
    second.add_shard({.group = 0, .name = "w", .shard = right.view(), .position = {{n}, norm_block_elems}});
    second.load(state);
    CHECK(second.steps() == 5);
    CHECK(second.groups()[0].hyper.weight_decay == 0.3);
    CHECK(std::memcmp(left.weight_out.data(), stopped.weight_out.data(), left.n * 2) == 0);
    for (std::uint64_t t = 6; t <= 9; ++t) {
        gradients(left, t, 0);
        gradients(right, t, norm_block_elems);
        second.step();
        CHECK(second.loss_scale() == scales[t - 6]);
    }
    CHECK(std::memcmp(left.param.data(), whole.param.data(), left.n * sizeof(float)) == 0);
    CHECK(std::memcmp(right.exp_avg_sq.data(), whole.exp_avg_sq.data() + left.n, right.n * sizeof(float)) == 0);
    CHECK(std::memcmp(right.param.data(), whole.param.data() + left.n, right.n * sizeof(float)) == 0);
    CHECK(std::memcmp(right.weight_out.data(), whole.weight_out.data() + left.n, right.n * 2) == 0);

    // What does not fit is refused before anything is touched.
    simple const before = right;
    auto const refused = [&](state_dict const& bad, char const* what) {
        std::string const text = message_of([&] { second.load(bad); });
        INFO(text);
        CHECK(text.find(what) != std::string::npos);
        CHECK(right == before);
        CHECK(second.steps() == 9);
    };
    state_dict bad = state;
    bad.params[0].name = "v";
    refused(bad, "cannot load 'w': the state has no such parameter. Pass the files of all ranks of the same model.");
    bad = state;
    bad.params[0].shape = {n + 1};
    refused(bad, "cannot load 'w': its shape is [12389] in the state, but [12388] in this optimizer");
    bad = state;
    bad.tensors[1].type = dtype::bfloat16;
    refused(bad, "cannot load 'w.exp_avg': its type is bfloat16 in the state, but float32 in this optimizer");
    bad = state;
    bad.tensors[2].elements -= 1;
    refused(bad, "cannot load 'w.exp_avg_sq': element 12387 is missing (needed: 4096 to 12387)");
    bad = state;
    bad.groups[0].name = "none";
    refused(bad, "has no parameter group 'all'");
    bad = state;
    bad.groups[0].hyper.beta1 = 2;
    refused(bad, "beta1 is 2");
    bad = state;
    bad.loss_scaler.reset();
    refused(bad, "it has no dynamic loss scale, but this optimizer does");
}

namespace {

// A file that ends after so many reads.
struct failing_source final : state_source {
    mutable int reads_left = 0;
    void read(std::byte const* from, std::size_t bytes, std::byte* to) const override
    {
        if (reads_left-- == 0)
            throw corrupted("adamant: FILE is truncated");
        std::memcpy(to, from, bytes);
    }
};

} // namespace

TEST_CASE("a file that fails while it is loaded leaves no state to go on from, until one is loaded", "[once]")
{
    simple data(1000), other(1000);
    optimizer o(executor_of(1)), saved(executor_of(1));
    for (optimizer* each : {&o, &saved}) {
        each->add_group("all", usual_adamw);
        each->add_shard({.group = 0, .name = "w", .shard = (each == &o ? data : other).view()});
    }
    other.spread();
    saved.step();
    state_dict state = saved.state();
    failing_source source;
    for (state_tensor& tensor : state.tensors)
        tensor.source = &source;
    source.reads_left = 1;
    CHECK_THROWS_AS(o.load(state), corrupted);
    CHECK(o.steps() == 0);
    for (auto const& call : {std::function<void()>([&] { o.step(); }), std::function<void()>([&] { o.begin_step(); }),
                             std::function<void()>([&] { static_cast<void>(o.state()); })})
        CHECK(message_of(call).find("inconsistent. Call load() with a complete state") != std::string::npos);
    source.reads_left = 3;
    o.load(state);
    CHECK(o.steps() == 1);
    CHECK(data.param == other.param);
    CHECK(data.exp_avg_sq == other.exp_avg_sq);
    o.step();
    CHECK(o.steps() == 2);
}

TEST_CASE("a param in many pieces is loaded from pieces that are cut otherwise", "[once]")
{
    std::size_t const n = 1000;
    for (std::size_t const piece : {std::size_t{1}, std::size_t{7}, std::size_t{333}, n})
        for (std::size_t const cut : {std::size_t{1}, std::size_t{10}, std::size_t{333}, n - 1}) {
            simple from(n), to(n);
            from.spread();
            optimizer saved(executor_of(1)), o(executor_of(1));
            auto const add = [&](optimizer& each, simple& data, std::size_t size) {
                each.add_group("all", usual_adamw);
                for (std::size_t at = 0; at < n; at += size) {
                    std::size_t const some = std::min(size, n - at);
                    each.add_shard(
                        {.group = 0,
                         .name = "w",
                         .shard = shard(data.param.data() + at, data.grad.data() + at, data.exp_avg.data() + at,
                                        data.exp_avg_sq.data() + at, data.weight_out.data() + at, some),
                         .position = {{n}, at}});
                }
            };
            add(saved, from, piece);
            add(o, to, cut);
            o.load(saved.state());
            CHECK(to.param == from.param);
            CHECK(to.exp_avg == from.exp_avg);
            CHECK(to.exp_avg_sq == from.exp_avg_sq);
        }
}

TEST_CASE("Finite gradients of any size are clipped to max_norm, whatever the factor that this takes")
{
    for (float const g : {3e38f, 0x1p120f, 0x1p64f})
        for (double const max_norm : {1e3, 1.0, 1e-3, 1e-30})
            for (int const way : {0, 1, 2}) { // whole, as they arrive by a wrong assumption, and that again
                std::vector<float> param(100, 1.0f), grad(100, g), exp_avg(100), exp_avg_sq(100);
                optimizer o(executor_of(1),
                            {.max_norm = max_norm, .speculate = speculation::always, .keep_last_step = way == 2});
                o.add_group("all", usual_adamw);
                o.add_shard({.group = 0, .name = "w", .shard = shard(param, grad, exp_avg, exp_avg_sq)});
                optimizer_report report;
                for (int round = 0; round < (way == 2 ? 2 : 1); ++round) {
                    if (round == 1)
                        o.rollback();
                    if (way != 0) {
                        o.begin_step();
                        o.submit(0);
                    }
                    report = way == 0 ? o.step() : o.finish();
                }
                double const norm = 10 * double{g};
                INFO("gradients " << g << " max_norm " << max_norm << " way " << way);
                CHECK(report.outcome == step_outcome::applied);
                CHECK(std::fabs(report.global_norm / norm - 1) < 1e-5);
                CHECK(report.clip_coefficient == clip_coefficient(report.global_norm, max_norm));
                // Rounded twice: the factor, and the product, which is 1/10 of max_norm.
                CHECK(std::fabs(double{exp_avg[0]} / (0.1 * max_norm / 10) - 1) < 1e-5);
                CHECK((exp_avg_sq[0] > 0) == (max_norm > 1e-10)); // else its square is below 2^-126
            }
    // What the report says is what was applied, where no factor is left.
    std::vector<float> param(100, 1.0f), grad(100, 3e38f), exp_avg(100), exp_avg_sq(100);
    optimizer o(executor_of(1), {.max_norm = 1e-300});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = shard(param, grad, exp_avg, exp_avg_sq)});
    for (double const loss_scale : {1.0, 1e30}) {
        optimizer_report const report = o.step({.loss_scale = loss_scale});
        CHECK(report.clip_coefficient == 0);
        CHECK(exp_avg[0] == 0.0f);
    }
}

TEST_CASE("What passes at set-up is not refused at a step, and what a step would refuse does not pass")
{
    simple data(100);
    optimizer o(executor_of(1));
    for (hyperparameters const& bad : {hyperparameters{.beta1 = 1e-300}, {.beta2 = 1e-300}, {.eps = 1e-50}})
        CHECK(message_of([&] { o.add_group("bad", bad); }).find("which float holds") != std::string::npos);
    CHECK(message_of([&] {
              optimizer(executor_of(1), {.max_abs_grad = 1e-300});
          }).find("max_abs_grad is 1e-300, but must be") != std::string::npos);
    CHECK(message_of([&] {
              optimizer(executor_of(1), {.loss_scaling = loss_scaling_options{.max_scale = 1e300}});
          }).find("max_scale is 1e+300, but must be") != std::string::npos);
    o.add_group("all", {.lr = 1e-40});
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    simple const before = data;
    CHECK(message_of([&] { o.step({.loss_scale = 1e300}); }).find("Use a smaller loss_scale") != std::string::npos);
    CHECK(message_of([&] { o.step({.loss_scale = 1e-300}); }).find("Use a larger loss_scale") != std::string::npos);
    CHECK(data == before);
    for (double lr = 1e-3; lr > 0; lr *= 1e-6) // a schedule that ends at nothing
        o.step({.lr = std::span<double const>(&lr, 1)});
    std::vector<float> const last = data.param;
    o.step();
    CHECK(data.param == last);
}

// User reports: DeepSpeed #7905, #7627, #7906.
TEST_CASE("learning rate, weight decay and loss scale are those of the step, not of the one before", "[stale_hyper]")
{
    float const grad = 0.5f;
    std::vector<float> param(10, 1.0f), gradient(10), exp_avg(10), exp_avg_sq(10);
    optimizer o(executor_of(1));
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = shard(param, gradient, exp_avg, exp_avg_sq)});
    reference::element expected{1.0f, 0.0f, 0.0f};
    struct {
        double lr, decay, scale;
    } const steps[] = {{0.01, 0.1, 1}, {0.5, 0.1, 8}, {0.01, 0.7, 1024}, {0.0, 0.0, 2}};
    std::uint64_t t = 0;
    for (auto const& s : steps) {
        hyperparameters const hyper{.lr = s.lr, .weight_decay = s.decay, .mode = decay_mode::decoupled};
        if (t % 2 == 0) {
            o.set_hyperparameters(0, hyper);
        } else { // the learning rate by the step
            hyperparameters other = hyper;
            other.lr = 77;
            o.set_hyperparameters(0, other);
        }
        gradient.assign(10, grad * static_cast<float>(s.scale));
        std::vector<double> const lr{s.lr};
        o.step({.loss_scale = s.scale, .lr = t % 2 == 0 ? std::span<double const>() : lr});
        float_mode_scope const mode(subnormals::kept);
        expected = reference::update(expected, gradient[0], make_coefficients(hyper, ++t, {.loss_scale = s.scale}));
        CHECK(test::bits(param[9]) == test::bits(expected.param));
        CHECK(test::bits(exp_avg[9]) == test::bits(expected.exp_avg));
    }
}

TEST_CASE("a state that exchanges an optimizer's own arrays is refused, and its copy is loaded", "[once]")
{
    for (bool const split : {false, true}) {
        std::vector<float> low(2 * 64), master(2 * 64), grad(64), exp_avg(2 * 64), exp_avg_sq(2 * 64);
        std::vector<bfloat16> weights(2 * 64);
        std::vector<split_float32> residuals(2 * 64);
        for (std::size_t i = 0; i < 128; ++i) {
            master[i] = i < 64 ? 1.0f : 2.0f;
            weights[i] = narrow<bfloat16>(master[i]);
        }
        optimizer o(executor_of(1));
        o.add_group("all", usual_adamw);
        for (std::size_t k = 0; k < 2; ++k) {
            std::size_t const at = k * 64;
            std::string const name(1, static_cast<char>('a' + k));
            if (split)
                o.add_shard({.group = 0,
                             .name = name,
                             .shard = shard(residuals.data() + at, grad.data(), exp_avg.data() + at,
                                            exp_avg_sq.data() + at, weights.data() + at, std::size_t{64})});
            else
                o.add_shard({.group = 0,
                             .name = name,
                             .shard = shard(master.data() + at, grad.data(), exp_avg.data() + at,
                                            exp_avg_sq.data() + at, std::size_t{64})});
        }
        state_dict state = o.state();
        o.load(state);
        std::swap(state.params[0].name, state.params[1].name);
        CHECK(
            message_of([&] { o.load(state); }) ==
            "adamant: cannot load 'a': its source is an array of this optimizer, which loading overwrites. Pass a copy "
            "of the state.");
        std::vector<std::vector<std::byte>> memory;
        for (state_tensor& t : state.tensors) {
            memory.emplace_back(array_bytes(t.type, t.elements));
            read_elements(t, 0, t.elements, memory.back().data());
            t.data = memory.back().data();
            t.source = nullptr;
            t.target = nullptr;
        }
        o.load(state);
        CHECK((split ? widen(weights[0]) : master[0]) == 2.0f);
        CHECK((split ? widen(weights[64]) : master[64]) == 1.0f);

        // What state() returned outlives the optimizer.
        state_dict views;
        {
            optimizer const gone = std::move(o);
            views = const_cast<optimizer&>(gone).state();
        }
        std::vector<float> read(64);
        read_elements(views.tensors[0], 0, 64, reinterpret_cast<std::byte*>(read.data()));
        CHECK(read[63] == 2.0f);
    }
}

TEST_CASE("ids of groups and shards are not each other's, and the decay's mode is in a name", "[once]")
{
    STATIC_REQUIRE(!std::is_convertible_v<group_id, shard_id>);
    STATIC_REQUIRE(!std::is_convertible_v<shard_id, group_id>);
    STATIC_REQUIRE(!std::is_convertible_v<shard_id, std::size_t>);
    STATIC_REQUIRE(std::is_convertible_v<std::size_t, shard_id>);
    STATIC_REQUIRE(std::is_nothrow_move_constructible_v<optimizer>);
    STATIC_REQUIRE(!std::is_copy_constructible_v<optimizer>);
    hyperparameters const w = adamw({.lr = 0.5, .weight_decay = 0.25, .bias_correction = false});
    CHECK(w.mode == decay_mode::decoupled);
    CHECK(w.lr == 0.5);
    CHECK(w.weight_decay == 0.25);
    CHECK(!w.bias_correction);
    CHECK(adam({.beta1 = 0.5, .beta2 = 0.75, .eps = 1}).mode == decay_mode::l2);
    CHECK(adam({.beta1 = 0.5, .beta2 = 0.75, .eps = 1}).beta2 == 0.75);
}

TEST_CASE("an optimizer may be moved, in the middle of a step and under a ticket")
{
    std::vector<float> param(5000, 1.0f), grad(5000, 0.5f), exp_avg(5000), exp_avg_sq(5000);
    std::vector<float> same_param = param, same_avg = exp_avg, same_sq = exp_avg_sq;
    executor const cpu({.tier = test::tier(), .threads = 2});
    auto const make = [&](std::vector<float>& p, std::vector<float>& m, std::vector<float>& v) {
        optimizer made(cpu, {.max_norm = 1});
        group_id const group = made.add_group("g", adamw({.lr = 0.1}));
        CHECK(made.add_shard({.group = group, .name = "w", .shard = shard(p, grad, m, v)}) == shard_id(0));
        return made;
    };
    optimizer one = make(param, exp_avg, exp_avg_sq);
    optimizer two = make(same_param, same_avg, same_sq);
    one.begin_step();
    one.submit(0);
    optimizer moved(std::move(one));
    optimizer_report const report = moved.finish();
    CHECK(report.global_norm == two.step().global_norm);
    CHECK(param == same_param);
    optimizer::ticket const ticket = moved.step_async();
    optimizer again = make(same_param, same_avg, same_sq); // whose place is taken
    again = std::move(moved);
    CHECK(ticket.wait().step == 2);
    CHECK(again.steps() == 2);
    two.step();
    CHECK(param == same_param);
}

TEST_CASE("accumulators of another size, of float16 or without memory are refused by name", "[once]")
{
    std::vector<float> param(100), grad(100), exp_avg(100), exp_avg_sq(100), sum(100), shorter(99);
    optimizer o{executor()};
    group_id const g = o.add_group("g", {});
    auto const add = [&](accumulator_array const& to) {
        return message_of([&] {
            o.add_shard({.group = g, .name = "w", .shard = shard(param, grad, exp_avg, exp_avg_sq), .accumulator = to});
        });
    };
    CHECK(add(shorter) == "adamant: cannot add a shard of 'w': its accumulator has 99 elements, but the shard has 100");
    CHECK(add({sum.data(), dtype::float16}).find("is float16") != std::string::npos);
    CHECK(add(static_cast<float*>(nullptr)).find("is null, but the shard has 100 elements") != std::string::npos);
    CHECK(o.shards() == 0);
    o.add_shard({.group = g, .name = "w", .shard = shard(param, grad, exp_avg, exp_avg_sq), .accumulator = sum});
    o.accumulate(0);
}
