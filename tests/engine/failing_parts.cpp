// SPDX-License-Identifier: Apache-2.0
// Every operation of a device and every start of a thread fails once, for optimizers with and without deferred
// gradients: the call says so, and what it was to change is as before or complete.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include "both_optimizers.hpp"
#include "catch.hpp"
#include "emulated.hpp"
#include "forked.hpp"

using namespace both;

namespace {

constexpr std::size_t life_steps = 5;

std::vector<param_arrays> small_arrays(std::size_t rows)
{
    test::random_bits random(5);
    std::vector<param_arrays> all;
    all.emplace_back(rows, 12, random);
    all.emplace_back(40, 0, random);
    return all;
}
// Of a step, the same every time.
std::vector<std::vector<float>> gradients_of(std::vector<param_arrays> const& arrays, std::size_t step)
{
    test::random_bits random(100 + step);
    std::vector<std::vector<float>> all;
    for (param_arrays const& each : arrays) {
        all.emplace_back(each.grad.size());
        for (float& x : all.back())
            x = test::with_exponent(random(), -12, -3);
    }
    return all;
}
subject_options options_of(unsigned threads)
{
    subject_options options;
    options.threads = threads;
    options.step.max_norm = 0.01;
    options.step.device_timeout_s = 20;
    options.zenflow = {.topk_ratio = 0.2, .select_interval = 3, .update_interval = 2};
    return options;
}
template <class Subject>
void begin_step_submit_and_finish(Subject& subject)
{
    subject.by.begin_step();
    for (std::size_t i = 0; i < subject.arrays.size(); ++i)
        subject.by.submit(i);
    subject.by.finish();
}

// The state after each step, without a device.
template <class Subject>
std::vector<std::vector<std::vector<float>>> const& expected_states(std::size_t rows)
{
    static std::vector<std::vector<std::vector<float>>> states;
    if (states.empty()) {
        std::vector<param_arrays> arrays = small_arrays(rows);
        Subject subject(arrays, options_of(0));
        states.push_back(contents(subject));
        for (std::size_t step = 1; step <= life_steps; ++step) {
            subject.set_gradients(gradients_of(arrays, step));
            subject.by.step();
            states.push_back(contents(subject));
        }
    }
    return states;
}

// A life on a device whose operation number `after` fails. Returns the number of calls that failed.
template <class Subject>
std::size_t live_with_fault(device_operation kind, std::size_t after, bool whole_steps)
{
    auto const& expected = expected_states<Subject>(16);
    auto const on = test::make_device();
    std::vector<param_arrays> arrays = small_arrays(16);
    Subject subject(arrays, options_of(2));
    subject.prepare_place(on);
    std::size_t failures = 0, step = 0;
    on->fail(kind, after);
    // Makes a call until it succeeds. After a failure the state is that of before the call.
    auto const make = [&](auto const& call) {
        for (;;) {
            try {
                return call();
            } catch (invalid_argument const&) {
                throw;
            } catch (error const& failure) {
                INFO(failure.what());
                ++failures;
                REQUIRE(failures < 4); // there is one fault
                on->resume();
                if (std::string(failure.what()).find("is complete nevertheless") != std::string::npos)
                    return;
                try {
                    subject.by.abandon();
                } catch (error const&) { // no step is open, or it has failed
                }
            }
        }
    };
    auto const compare = [&] {
        std::vector<std::vector<float>> now;
        make([&] { now = contents(subject); });
        REQUIRE(difference(now, expected[step]) == "");
        REQUIRE(subject.by.steps() == step);
    };
    make([&] { subject.place(on); });
    for (step = 1; step <= life_steps; ++step) {
        subject.set_gradients(gradients_of(arrays, step));
        std::size_t const before = failures;
        make([&] {
            if (failures != before) { // it has failed
                auto const now = contents(subject);
                REQUIRE(subject.by.steps() == step - 1);
                REQUIRE(difference(now, expected[step - 1]) == "");
            }
            if (whole_steps)
                subject.by.step();
            else
                begin_step_submit_and_finish(subject);
        });
        if (step % 2 == 0 || failures != before)
            compare();
        if (step == 3) {
            decltype(subject.by.state()) state;
            make([&] { state = subject.by.state(); });
            make([&] { subject.by.load(state); });
        }
    }
    step = life_steps;
    make([&] { subject.place(nullptr); });
    compare();
    return failures;
}

template <class Subject>
void fail_every_operation(char const* name)
{
    for (auto const kind :
         {device_operation::copy_up, device_operation::copy_down, device_operation::work, device_operation::allocate}) {
        std::size_t failures = 0, in_a_row = 0, after = 0;
        // A failure in the background may be made good without a word.
        for (; in_a_row < 6; ++after) {
            INFO("operation " << static_cast<int>(kind) << ", number " << after);
            std::size_t const now = live_with_fault<Subject>(kind, after, after % 2 == 0);
            failures += now;
            in_a_row = now != 0 ? 0 : in_a_row + 1;
        }
        std::printf("%s: of %zu operations of kind %d, %zu failures were told\n", name, after - in_a_row,
                    static_cast<int>(kind), failures);
        CHECK((failures != 0 || test::shares_memory));
    }
}

// In a child process that may start no thread, then one, and so on: a call that needs more is refused and changes
// nothing, until there are enough. Returns 0, or the number of what went wrong.
template <class Subject, class Call>
int live_without_threads(Call const& call)
{
    auto const& expected = expected_states<Subject>(16);
    return test::in_child([&] {
        std::vector<param_arrays> arrays = small_arrays(16);
        Subject subject(arrays, options_of(0));
        subject.set_gradients(gradients_of(arrays, 1));
        rlimit limit{};
        if (getrlimit(RLIMIT_NPROC, &limit) != 0 ||
            (geteuid() == 0 && setuid(54321) != 0)) // who has no other processes
            return 1;
        for (limit.rlim_cur = 1;; ++limit.rlim_cur) {
            if (setrlimit(RLIMIT_NPROC, &limit) != 0)
                return 2;
            try {
                call(subject);
                break;
            } catch (unavailable const& error) {
                if (std::string(error.what()).find("cannot start ") == std::string::npos)
                    return 3;
            }
            if (subject.by.steps() != 0 || arrays[0].param != small_arrays(16)[0].param)
                return 4;
        }
        for (std::size_t step = 1; step <= life_steps; ++step) {
            subject.set_gradients(gradients_of(arrays, step));
            if (subject.by.steps() != step)
                subject.by.step();
        }
        return limit.rlim_cur == 1 ? 5 : difference(contents(subject), expected[life_steps]) != "" ? 6 : 0;
    });
}

} // namespace

TEST_CASE("every operation of a device fails once: the optimizer", "[once]")
{
    fail_every_operation<plain_subject>("optimizer");
}

TEST_CASE("every operation of a device fails once: the optimizer with deferred gradients", "[once]")
{
    fail_every_operation<zenflow_subject>("zenflow");
}

TEST_CASE("fork: a thread that cannot be started is an error that changes nothing, for both optimizers", "[once]")
{
    CHECK(live_without_threads<plain_subject>([](plain_subject& s) { s.by.step_async().wait(); }) == 0);
    CHECK(live_without_threads<plain_subject>([](plain_subject& s) { s.by.prepare(); }) == 0);
    CHECK(live_without_threads<zenflow_subject>([](zenflow_subject& s) { s.by.step(); }) == 0);
    CHECK(live_without_threads<zenflow_subject>([](zenflow_subject& s) { s.by.prepare(); }) == 0);
}
