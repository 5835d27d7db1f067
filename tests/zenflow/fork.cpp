// SPDX-License-Identifier: Apache-2.0
// Processes that are forked while an optimizer's or a device's threads are at work: in the child every call is refused
// by name, nothing hangs, and the parent goes on as if nothing had been.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/emulated_device.hpp>
#include <adamant/optimizer.hpp>
#include <adamant/split.hpp>
#include <adamant/zenflow.hpp>

#include "../engine/slow_optimizer.hpp"
#include "catch.hpp"
#include "emulated.hpp"
#include "forked.hpp"

using namespace adamant;
using test::in_child;
using test::is_destroyed_in_child;
using test::is_refused_in_child;

namespace {

// Keeps all threads of a team busy, so that what is submitted to it stays under way.
class held_team {
public:
    explicit held_team(std::shared_ptr<team> of) : of_(std::move(of)), holds_(of_->submit(wait{&released_})) {}
    ~held_team() { released_ = true; }

private:
    struct wait {
        std::atomic<bool> const* released;
        void operator()(unsigned) const
        {
            while (!*released)
                std::this_thread::yield();
        }
    };
    std::shared_ptr<team> of_;
    std::atomic<bool> released_{false};
    submission<wait> holds_;
};

struct named_call {
    char const* name;
    std::function<void()> make;
};
void all_are_refused(std::vector<named_call> const& calls)
{
    for (named_call const& each : calls)
        CHECK(is_refused_in_child(each.name, each.make));
}

executor on(std::shared_ptr<team> const& threads)
{
    return executor(threads);
}
std::shared_ptr<team> two_threads()
{
    return std::make_shared<team>(team_options{.threads = 2, .bind = binding::none});
}

// An optimizer over two shards, and what it is given.
struct plain {
    std::shared_ptr<team> threads = two_threads();
    slow::simple a{3 * norm_block_elems}, b{norm_block_elems + 1};
    std::vector<float> sum = std::vector<float>(a.n);
    std::unique_ptr<optimizer> steps;

    explicit plain(optimizer_options const& options = {.max_norm = 1})
    {
        a.spread();
        b.spread();
        steps = std::make_unique<optimizer>(on(threads), options);
        steps->add_group("all", slow::usual_adamw);
        steps->add_shard({.group = 0, .name = "a", .shard = a.view(), .accumulator = sum});
        steps->add_shard({.group = 0, .name = "b", .shard = b.view()});
        steps->prepare();
    }
    [[nodiscard]] std::vector<named_call> calls()
    {
        optimizer& o = *steps;
        return {{"add_group", [&] { o.add_group("more", slow::usual_adamw); }},
                {"set_hyperparameters", [&] { o.set_hyperparameters(0, slow::usual_adamw); }},
                {"set_gradient", [&] { o.set_gradient(0, a.grad.data()); }},
                {"prepare", [&] { o.prepare(); }},
                {"set_steps", [&] { o.set_steps(3); }},
                {"place", [&] { o.place(nullptr, split(o.shard_sizes(), {.ratio = 1})); }},
                {"step", [&] { o.step(); }},
                {"step_gradients",
                 [&] {
                     void const* const gradients[] = {a.grad.data(), nullptr};
                     o.step_gradients(gradients);
                 }},
                {"begin_step", [&] { o.begin_step(); }},
                {"submit", [&] { o.submit(0); }},
                {"submit with a gradient", [&] { o.submit(0, a.grad.data()); }},
                {"skip", [&] { o.skip(1); }},
                {"finish", [&] { o.finish(); }},
                {"abandon", [&] { o.abandon(); }},
                {"rollback", [&] { o.rollback(); }},
                {"accumulate", [&] { o.accumulate(0); }},
                {"clear_accumulators", [&] { o.clear_accumulators(); }},
                {"step_async", [&] { (void)o.step_async(); }},
                {"state", [&] { (void)o.state(); }},
                {"update_host_arrays", [&] { o.update_host_arrays(); }},
                {"load", [&] { o.load({}); }}};
    }
    void ticket_is_refused(optimizer::ticket const& ticket)
    {
        all_are_refused({{"done", [&] { (void)ticket.done(); }},
                         {"progress", [&] { (void)ticket.progress(); }},
                         {"wait_for", [&] { (void)ticket.wait_for(std::chrono::seconds(1)); }},
                         {"wait", [&] { (void)ticket.wait(); }}});
    }
};

bool same_bits(plain const& x, plain const& y)
{
    return x.a == y.a && x.b == y.b;
}

// A matrix and a vector, without a device or with one.
struct deferred {
    static constexpr std::size_t rows = 64, columns = 32, n = rows * columns;
    std::shared_ptr<team> threads = two_threads();
    std::vector<float> param = std::vector<float>(n, 0.5f), m = std::vector<float>(n), v = std::vector<float>(n);
    std::vector<float> grad = std::vector<float>(n), weights = param;
    std::vector<float> bias = std::vector<float>(rows, 0.5f), bias_grad = std::vector<float>(rows, 0.25f),
                       bias_m = std::vector<float>(rows), bias_v = std::vector<float>(rows);
    std::unique_ptr<zenflow_optimizer> steps;

    explicit deferred(executor const& cpu, optimizer_options const& options = {})
    {
        for (std::size_t i = 0; i < n; ++i)
            grad[i] = 0.001f * static_cast<float>(i % 97);
        steps = std::make_unique<zenflow_optimizer>(
            cpu, zenflow_options{.topk_ratio = 0.25, .select_interval = 8, .update_interval = 2}, options);
        steps->add_group("all", adamw({.lr = 1e-2}));
        steps->add_param({.group = 0,
                          .name = "matrix",
                          .shard = shard(param, grad, m, v),
                          .columns = columns,
                          .weights = weights.data()});
        steps->add_param({.group = 0, .name = "vector", .shard = shard(bias, bias_grad, bias_m, bias_v)});
        steps->prepare();
    }
    deferred() : deferred(on(two_threads())) {}
    void place(std::shared_ptr<device> const& gpu)
    {
        for (std::size_t i = 0; i < 2; ++i) {
            std::size_t const bytes = (i == 0 ? n : rows) * sizeof(float);
            device_arrays const at = {gpu->allocate(bytes), gpu->allocate(bytes)};
            gpu->copy_up(at.grad, i == 0 ? grad.data() : bias_grad.data(), bytes);
            steps->set_device_arrays(i, at);
        }
        steps->place(gpu);
    }
    [[nodiscard]] std::vector<named_call> calls()
    {
        zenflow_optimizer& o = *steps;
        return {{"step", [&] { o.step(); }},
                {"step_gradients",
                 [&] {
                     void const* const gradients[] = {grad.data(), nullptr};
                     o.step_gradients(gradients);
                 }},
                {"begin_step", [&] { o.begin_step(); }},
                {"submit", [&] { o.submit(0); }},
                {"skip", [&] { o.skip(0); }},
                {"finish", [&] { o.finish(); }},
                {"abandon", [&] { o.abandon(); }},
                {"publish", [&] { o.flush(); }},
                {"place", [&] { o.place(nullptr); }},
                {"load", [&] { o.load(zenflow_state{}); }}};
    }
    // What works at rest, too.
    [[nodiscard]] std::vector<named_call> more_calls()
    {
        zenflow_optimizer& o = *steps;
        return {{"state", [&] { (void)o.state(); }}, {"set_gradient", [&] { o.set_gradient(0, grad.data()); }}};
    }
};

bool same_bits(deferred const& x, deferred const& y)
{
    return x.param == y.param && x.m == y.m && x.v == y.v && x.weights == y.weights && x.bias == y.bias &&
           x.bias_m == y.bias_m && x.bias_v == y.bias_v;
}

std::vector<named_call> calls_of(emulated_device& gpu)
{
    static float host = 0;
    return {{"memory", [&] { (void)gpu.memory(); }},
            {"allocate", [&] { (void)gpu.allocate(64); }},
            {"copy_up", [&] { gpu.copy_up({1}, &host, 4); }},
            {"copy_down", [&] { gpu.copy_down(&host, {1}, 4); }},
            {"call", [&] { gpu.call(device_stream::work, [] {}); }},
            {"mark", [&] { (void)gpu.record_event(device_stream::work); }},
            {"follow", [&] { gpu.wait_event(device_stream::work, {}); }},
            {"wait_until", [&] { (void)gpu.wait_until({}, device::clock::time_point::max()); }},
            {"usage", [&] { (void)gpu.usage(); }},
            {"fail", [&] { gpu.fail(device_operation::work); }},
            {"resume", [&] { gpu.resume(); }}};
}

} // namespace

TEST_CASE("fork: in the midst of a step_async()", "[once]")
{
    plain m, alone;
    alone.steps->step();
    {
        std::optional<held_team> held(std::in_place, m.threads);
        optimizer::ticket const ticket = m.steps->step_async();
        all_are_refused(m.calls());
        m.ticket_is_refused(ticket);
        CHECK(is_destroyed_in_child(m.steps));
        held.reset();
        ticket.wait();
    }
    CHECK(same_bits(m, alone));
}

TEST_CASE("fork: while a member of the team waits for other ranks, and the others for it", "[once]")
{
    std::atomic<bool> is_there{false}, released{false};
    plain m({.max_norm = 1, .reduce = [&](auto) {
                 is_there = true;
                 while (!released)
                     std::this_thread::yield();
             }});
    plain alone;
    alone.steps->step();
    optimizer::ticket const ticket = m.steps->step_async();
    while (!is_there)
        std::this_thread::yield();
    all_are_refused(m.calls());
    m.ticket_is_refused(ticket);
    CHECK(is_destroyed_in_child(m.steps));
    released = true;
    ticket.wait();
    CHECK(same_bits(m, alone));
}

TEST_CASE("fork: in an open step", "[once]")
{
    plain m, alone;
    alone.steps->step();
    m.steps->begin_step();
    {
        held_team const held(m.threads);
        m.steps->submit(0);
        all_are_refused(m.calls());
        CHECK(is_destroyed_in_child(m.steps));
    }
    m.steps->submit(1);
    m.steps->finish();
    CHECK(same_bits(m, alone));
}

TEST_CASE("fork: an optimizer that is idle is read in the child, and takes no step there", "[once]")
{
    plain m;
    m.steps->step();
    CHECK(in_child([&] { return m.steps->state().step == 1 ? 5 : 6; }) == 5);
    for (named_call const& each : m.calls())
        if (std::string(each.name).find("step") == 0 && std::string(each.name) != "set_steps")
            CHECK(is_refused_in_child(each.name, each.make));
    CHECK(is_refused_in_child("load", [&] {
        state_dict const same = m.steps->state();
        m.steps->load(same);
    }));
    CHECK(is_destroyed_in_child(m.steps));
    m.steps->step();
    // One without a team works in any process.
    slow::simple own(100);
    optimizer alone(executor({.threads = 1}));
    alone.add_group("all", slow::usual_adamw);
    alone.add_shard({.group = 0, .name = "own", .shard = own.view()});
    CHECK(in_child([&] { return alone.step().step == 1 ? 5 : 6; }) == 5);
}

TEST_CASE("fork: while a device works on a step, or hangs", "[once]")
{
    for (auto const kind : {device_operation::copy_up, device_operation::work, device_operation::copy_down}) {
        INFO("operation " << static_cast<int>(kind));
        plain m, alone;
        alone.steps->step();
        auto gpu = test::make_device();
        m.steps->place(gpu, split(m.steps->shard_sizes(), {.ratio = 0.5}));
        CHECK(is_destroyed_in_child(m.steps)); // idle
        CHECK(is_refused_in_child("state of an idle device", [&] { (void)m.steps->state(); }));
        CHECK(is_refused_in_child("step with an idle device", [&] { m.steps->step(); }));
        gpu->hang(kind);
        optimizer::ticket const ticket = m.steps->step_async();
        all_are_refused(m.calls());
        m.ticket_is_refused(ticket);
        CHECK(is_destroyed_in_child(m.steps));
        CHECK(is_destroyed_in_child(gpu));
        gpu->resume();
        ticket.wait();
        m.steps->update_host_arrays();
        CHECK(same_bits(m, alone));
    }
}

TEST_CASE("fork: a device by itself, idle and at work", "[once]")
{
    auto gpu = std::make_unique<emulated_device>();
    device_ptr const there = gpu->allocate(64);
    float host[16] = {};
    for (bool const works : {false, true}) {
        INFO("works: " << works);
        if (works) {
            gpu->hang(device_operation::copy_up);
            gpu->copy_up(there, host, sizeof host);
        }
        all_are_refused(calls_of(*gpu));
        CHECK(in_child([&] {
                  gpu->release(there);
                  return gpu->reset(device::clock::time_point::max()) ? 6 : 5;
              }) == 5);
        CHECK(is_destroyed_in_child(gpu));
    }
    gpu->resume();
    CHECK(gpu->wait_until(gpu->record_event(device_stream::up), device::clock::time_point::max()));
}

TEST_CASE("fork: during zenflow's deferred update in the background", "[once]")
{
    auto const threads = two_threads();
    // Only the deferred update has enough elements for the team, and no norm is measured: a step with the team held
    // does everything else itself.
    deferred m(executor(threads, {.min_slice_elems = deferred::n / 2}), {.on_nonfinite = nonfinite_policy::apply});
    deferred alone;
    for (int i = 0; i < 4; ++i)
        alone.steps->step();
    m.steps->step();
    CHECK(in_child([&] { return m.steps->state().position.steps == 1 ? 5 : 6; }) == 5); // at rest
    CHECK(is_refused_in_child("step at rest", [&] { m.steps->step(); }));
    CHECK(is_destroyed_in_child(m.steps));
    {
        held_team const held(threads);
        m.steps->step(); // ends a window
        all_are_refused(m.calls());
        all_are_refused(m.more_calls());
        CHECK(is_destroyed_in_child(m.steps));
    }
    m.steps->step();
    m.steps->step();
    (void)m.steps->state();
    (void)alone.steps->state();
    CHECK(same_bits(m, alone));
}

TEST_CASE("fork: in an open step of zenflow", "[once]")
{
    for (bool const has_device : {false, true}) {
        INFO("device: " << has_device);
        deferred m, alone;
        auto gpu = test::make_device();
        if (has_device)
            m.place(gpu);
        m.steps->begin_step();
        if (has_device)
            gpu->hang(device_operation::copy_down);
        m.steps->submit(0);
        all_are_refused(m.calls());
        all_are_refused({m.more_calls()[0]});
        CHECK(is_destroyed_in_child(m.steps));
        gpu->resume();
        m.steps->submit(1);
        m.steps->finish();
        if (has_device) {
            CHECK(is_refused_in_child("state with a device", [&] { (void)m.steps->state(); }));
            CHECK(is_destroyed_in_child(m.steps));
        }
        alone.steps->step();
        (void)m.steps->state();
        (void)alone.steps->state();
        CHECK(same_bits(m, alone));
    }
}
