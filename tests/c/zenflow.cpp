// SPDX-License-Identifier: Apache-2.0
// The C interface: optimizers that defer gradients have the bits of those in C++.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <adamant/zenflow.hpp>

#include "c_test.hpp"
#include "failing_calls.hpp"

namespace {

// A matrix with float32 masters and bfloat16 weights, and a vector of float32.
struct arrays {
    static constexpr std::size_t rows = 24, columns = 20, elements = rows * columns, length = 10;
    std::vector<float> param = std::vector<float>(elements), exp_avg = param, exp_avg_sq = param;
    std::vector<adamant::bfloat16> grad = std::vector<adamant::bfloat16>(elements), weight_out = grad, weights = grad;
    std::vector<float> vector = std::vector<float>(length), vector_grad = vector, vector_m = vector, vector_v = vector;

    void draw(int step)
    {
        for (std::size_t i = 0; i < elements; ++i)
            grad[i] = adamant::narrow<adamant::bfloat16>(
                0.01f * static_cast<float>((i * 37 + static_cast<std::size_t>(step) * 11) % 101) - 0.4f);
        for (std::size_t i = 0; i < length; ++i)
            vector_grad[i] = 0.1f * static_cast<float>(i) - 0.2f;
    }
    friend bool operator==(arrays const&, arrays const&) = default;
};

adamant_shard describe(arrays& a)
{
    adamant_shard s = shard();
    s.elements = arrays::elements;
    s.param = a.param.data();
    s.grad = a.grad.data();
    s.grad_dtype = ADAMANT_BFLOAT16;
    s.exp_avg = a.exp_avg.data();
    s.exp_avg_sq = a.exp_avg_sq.data();
    s.weight_out = a.weight_out.data();
    s.weight_out_dtype = ADAMANT_BFLOAT16;
    return s;
}
adamant_zenflow_options zenflow_options()
{
    adamant_zenflow_options z = initialised(adamant_zenflow_options_init);
    z.topk_ratio = 0.2;
    z.select_interval = 4;
    z.update_interval = 3;
    return z;
}
zenflow make(arrays& a, adamant_zenflow_options const& z, adamant_optimizer_options const& o)
{
    adamant_zenflow* made = nullptr;
    ok(adamant_zenflow_create(make_executor().get(), &z, &o, &made));
    zenflow of(made);
    adamant_hyperparameters h = hyperparameters();
    h.decay = ADAMANT_DECAY_DECOUPLED;
    h.weight_decay = 0.1;
    ok(adamant_zenflow_add_group(made, "all", &h, 0, nullptr));
    adamant_shard const matrix = describe(a);
    ok(adamant_zenflow_add_param(made, 0, "matrix", &matrix, arrays::columns, a.weights.data(), nullptr));
    adamant_shard v =
        shard(arrays::length, a.vector.data(), a.vector_grad.data(), a.vector_m.data(), a.vector_v.data());
    std::size_t number = 0;
    ok(adamant_zenflow_add_param(made, 0, "vector", &v, 0, nullptr, &number));
    REQUIRE(number == 1);
    return of;
}
void step(adamant_zenflow* of, arrays& a, int number, adamant_zenflow_report* more = nullptr)
{
    a.draw(number);
    void const* const grads[] = {a.grad.data(), a.vector_grad.data()};
    ok(adamant_zenflow_step_gradients(of, grads, 2, nullptr, nullptr, more));
}

// An emulated device, and the gradients and weights of params in its memory.
struct place_on_device {
    device on;
    std::uint64_t grads[2] = {}, weights[2] = {};

    explicit place_on_device(adamant_zenflow* of, adamant_emulation_options const* options = nullptr)
    {
        adamant_device* made = nullptr;
        ok(adamant_emulated_device_create(options, &made));
        on.reset(made);
        constexpr std::size_t bytes[] = {arrays::elements * 2, arrays::length * 4};
        for (std::size_t i : {0u, 1u}) {
            ok(adamant_device_allocate(made, bytes[i], &grads[i]));
            ok(adamant_device_allocate(made, bytes[i], &weights[i]));
        }
        set_arrays(of);
        ok(adamant_zenflow_place(of, made));
    }
    void set_arrays(adamant_zenflow* of) const
    {
        for (std::size_t i : {0u, 1u})
            ok(adamant_zenflow_set_device_arrays(of, i, grads[i], weights[i]));
    }
    // Backward leaves gradients there.
    void take_gradients(arrays const& a) const
    {
        ok(adamant_device_copy_up(on.get(), grads[0], a.grad.data(), arrays::elements * 2));
        ok(adamant_device_copy_up(on.get(), grads[1], a.vector_grad.data(), arrays::length * 4));
    }
    // The weights in use are those of a run without device.
    void compare(arrays const& expected) const
    {
        arrays there;
        ok(adamant_device_copy_down(on.get(), there.weights.data(), weights[0], arrays::elements * 2));
        ok(adamant_device_copy_down(on.get(), there.vector.data(), weights[1], arrays::length * 4));
        REQUIRE(there.weights == expected.weights);
        REQUIRE(there.vector == expected.vector);
    }
};
adamant_zenflow_position position_of(zenflow const& of)
{
    adamant_zenflow_position at = initialised(adamant_zenflow_position_init);
    ok(adamant_zenflow_get_position(of.get(), &at));
    return at;
}
void submit_all(zenflow const& of)
{
    ok(adamant_zenflow_begin_step(of.get(), nullptr));
    ok(adamant_zenflow_submit(of.get(), 1));
    ok(adamant_zenflow_submit(of.get(), 0));
}

} // namespace

TEST_CASE("C: zenflow has the bits of C++, and goes on from its state")
{
    arrays in_c_arrays, in_cpp;
    adamant_optimizer_options o = options();
    o.max_norm = 1;
    zenflow of = make(in_c_arrays, zenflow_options(), o);
    std::size_t bytes = 0;
    ok(adamant_zenflow_memory_bytes(of.get(), &bytes));
    REQUIRE(bytes == arrays::elements * 8);
    ok(adamant_zenflow_prepare(of.get()));

    adamant::zenflow_optimizer by(adamant::executor({.threads = 1}),
                                  {.topk_ratio = 0.2, .select_interval = 4, .update_interval = 3}, {.max_norm = 1});
    by.add_group("all", adamant::adamw({.lr = 1e-3, .weight_decay = 0.1}));
    by.add_param({0, "matrix",
                  adamant::shard(in_cpp.param, in_cpp.grad, in_cpp.exp_avg, in_cpp.exp_avg_sq, in_cpp.weight_out),
                  arrays::columns, in_cpp.weights.data()});
    by.add_param({0, "vector", adamant::shard(in_cpp.vector, in_cpp.vector_grad, in_cpp.vector_m, in_cpp.vector_v)});
    for (int i = 0; i < 12; ++i) {
        INFO("step " << i);
        adamant_zenflow_report more = initialised(adamant_zenflow_report_init);
        step(of.get(), in_c_arrays, i, &more);
        in_cpp.draw(i);
        adamant::zenflow_report const report = by.step();
        REQUIRE(more.selected == report.selected);
        REQUIRE(more.columns_moved == report.columns_moved);
        REQUIRE(more.window_ended == report.window_ended);
        REQUIRE(more.deferred == report.deferred);
        REQUIRE(more.deferred_stepped == report.deferred_stepped);
        (void)by.state();
        adamant_zenflow_position at = initialised(adamant_zenflow_position_init);
        ok(adamant_zenflow_get_position(of.get(), &at));
        REQUIRE(in_c_arrays == in_cpp);
        REQUIRE(at.steps == static_cast<std::uint64_t>(i) + 1);
        REQUIRE(at.in_window == by.position().in_window);

        // Another one, over the same arrays, takes over.
        adamant_zenflow_param params[2];
        for (std::size_t k = 0; k < 2; ++k) {
            params[k] = initialised(adamant_zenflow_param_init);
            ok(adamant_zenflow_get_param(of.get(), k, &params[k]));
        }
        REQUIRE(params[0].name == std::string("matrix"));
        REQUIRE(params[0].columns == arrays::columns);
        REQUIRE(params[0].param == in_c_arrays.param.data());
        REQUIRE(std::memcmp(params[0].counts, by.updates(0).data(), arrays::columns * sizeof(std::uint64_t)) == 0);
        zenflow next = make(in_c_arrays, zenflow_options(), o);
        ok(adamant_zenflow_load(next.get(), &at, params, 2));
        of = std::move(next);
        for (std::size_t k = 0; k < 2; ++k) // and from what it shows itself
            ok(adamant_zenflow_get_param(of.get(), k, &params[k]));
        ok(adamant_zenflow_load(of.get(), &at, params, 2));
    }
    double scale = 0;
    ok(adamant_zenflow_loss_scale(of.get(), &scale));
    REQUIRE(scale == 1);
    ok(adamant_zenflow_flush(of.get()));
    by.flush();
    REQUIRE(in_c_arrays == in_cpp);
}

TEST_CASE("C: zenflow's state in files")
{
    folder const dir;
    std::string const file = dir.file("zenflow.safetensors");
    char const* const path = file.c_str();
    adamant_optimizer_options o = options();
    o.max_norm = 1;
    arrays whole;
    zenflow of = make(whole, zenflow_options(), o);
    for (int i = 0; i < 10; ++i) {
        INFO("step " << i);
        ok(adamant_zenflow_save_safetensors(of.get(), path));
        arrays other;
        zenflow next = make(other, zenflow_options(), o);
        ok(adamant_zenflow_load_safetensors(next.get(), &path, 1));
        step(of.get(), whole, i);
        step(next.get(), other, i);
        (void)position_of(of), (void)position_of(next); // nothing goes on in the background
        REQUIRE(other == whole);
    }
    fails(adamant_zenflow_save_safetensors(of.get(), dir.file("no/such/folder").c_str()), ADAMANT_UNAVAILABLE,
          "no/such/folder");
    refused(adamant_zenflow_save_safetensors(nullptr, path), "optimizer is a null");
    refused(adamant_zenflow_save_safetensors(of.get(), nullptr), "path is a null");
    refused(adamant_zenflow_load_safetensors(nullptr, &path, 1), "optimizer is a null");
    refused(adamant_zenflow_load_safetensors(of.get(), nullptr, 1), "paths is a null");
    char const* const none = nullptr;
    refused(adamant_zenflow_load_safetensors(of.get(), &none, 1), "a path is a null");
    refused(adamant_zenflow_load_safetensors(of.get(), &path, 0), "no files");
    char const* const twice[] = {path, path};
    refused(adamant_zenflow_load_safetensors(of.get(), twice, 2), "exactly once");
    std::string const plain = dir.file("plain.safetensors");
    model m;
    optimizer const without = make_optimizer(m);
    ok(adamant_save_safetensors(without.get(), plain.c_str()));
    char const* const plain_path = plain.c_str();
    refused(adamant_zenflow_load_safetensors(of.get(), &plain_path, 1), "");
    ok(adamant_zenflow_begin_step(of.get(), nullptr));
    refused(adamant_zenflow_save_safetensors(of.get(), path), "adamant_zenflow_finish()");
    refused(adamant_zenflow_load_safetensors(of.get(), &path, 1), "adamant_zenflow_finish()");
    ok(adamant_zenflow_abandon(of.get()));
    arrays const before = whole;
    ok(adamant_zenflow_load_safetensors(of.get(), &path, 1));
    REQUIRE(whole != before);
}

TEST_CASE("C: zenflow on a device has the bits of the host, gradient by gradient")
{
    arrays host, a;
    adamant_optimizer_options o = options();
    o.max_norm = 1;
    zenflow const expected = make(host, zenflow_options(), o);
    zenflow const of = make(a, zenflow_options(), o);
    std::unique_ptr<place_on_device> there;
    std::vector<float> elsewhere(arrays::length); // for gradients
    double sums_seconds = 0, deferred_seconds = 0, publish_seconds = 0;
    std::size_t moved = 0;
    for (int i = 0; i < 20; ++i) {
        INFO("step " << i);
        if (i == 2 || i == 11)
            there = std::make_unique<place_on_device>(of.get());
        if (i == 8) { // in the middle of a window
            ok(adamant_zenflow_place(of.get(), nullptr));
            there.reset();
        }
        host.draw(i);
        if (i == 13)
            host.grad[5] = adamant::narrow<adamant::bfloat16>(std::numeric_limits<float>::infinity());
        if (there != nullptr) { // and a.grad is the optimizer's
            there->take_gradients(host);
        } else {
            a.grad = host.grad;
            elsewhere = host.vector_grad;
            ok(adamant_zenflow_set_gradient(of.get(), 1, elsewhere.data()));
        }
        bool const without_vector = i % 5 == 4;
        void const* const grads[] = {host.grad.data(), without_vector ? nullptr : host.vector_grad.data()};
        adamant_report report_of_host = report(), r = report();
        adamant_zenflow_report expected_more = initialised(adamant_zenflow_report_init), more = expected_more;
        ok(adamant_zenflow_step_gradients(expected.get(), grads, 2, nullptr, &report_of_host, &expected_more));
        submit_all(of);
        if (i % 4 == 1 || without_vector) {
            ok(adamant_zenflow_abandon(of.get()));
            ok(adamant_zenflow_begin_step(of.get(), nullptr));
            ok(adamant_zenflow_submit(of.get(), 0));
            ok(without_vector ? adamant_zenflow_skip(of.get(), 1) : adamant_zenflow_submit(of.get(), 1));
        }
        ok(adamant_zenflow_finish(of.get(), &r, &more));
        REQUIRE(r.step == report_of_host.step);
        REQUIRE(r.outcome == (i == 13 ? ADAMANT_SKIPPED : ADAMANT_APPLIED));
        REQUIRE(r.global_norm == report_of_host.global_norm);
        REQUIRE(r.elements == report_of_host.elements);
        REQUIRE(r.device_elements == (there != nullptr ? r.elements : 0));
        REQUIRE(r.ratio == (there != nullptr && i != 13 ? 0 : 1));
        REQUIRE((r.device_down_bytes != 0) == (there != nullptr));
        REQUIRE(more.selected == expected_more.selected);
        REQUIRE(more.columns_moved == expected_more.columns_moved);
        REQUIRE(more.deferred == expected_more.deferred);
        REQUIRE(more.window_ended == expected_more.window_ended);
        REQUIRE(more.deferred_stepped == expected_more.deferred_stepped);
        REQUIRE((std::isfinite(more.sums_seconds) && more.sums_seconds >= 0));
        moved += more.columns_moved;
        sums_seconds += there != nullptr ? more.sums_seconds : 0;
        deferred_seconds += more.deferred_seconds;
        publish_seconds += more.publish_seconds;
        REQUIRE((more.window_ended != 0 || more.publish_seconds + more.deferred_seconds == 0));
        if (there != nullptr)
            there->compare(host);
        if (i % 3 != 2 && there != nullptr)
            continue; // masters and moments stay there
        REQUIRE(position_of(of).in_window == position_of(expected).in_window);
        REQUIRE(elsewhere == host.vector_grad); // where it was downloaded to
        a.vector_grad = host.vector_grad;
        REQUIRE(a == host);
    }
    REQUIRE(moved > arrays::columns * 2 / 5);
    REQUIRE(sums_seconds > 0);
    REQUIRE(deferred_seconds > 0);
    REQUIRE(publish_seconds > 0);
    ok(adamant_zenflow_flush(of.get()));
    ok(adamant_zenflow_flush(expected.get()));
    there->compare(host);
    there->on.reset(); // the optimizer keeps it
    ok(adamant_zenflow_place(of.get(), nullptr));
    REQUIRE(a == host);
}

TEST_CASE("C: zenflow on a device that fails is of the step before, and goes on")
{
    for (adamant_device_operation const operation :
         {ADAMANT_DEVICE_COPY_UP, ADAMANT_DEVICE_COPY_DOWN, ADAMANT_DEVICE_WORK}) {
        INFO("operation " << operation);
        arrays host, a;
        adamant_optimizer_options o = options();
        o.device_timeout_s = 0.2;
        zenflow const expected = make(host, zenflow_options(), o);
        zenflow const of = make(a, zenflow_options(), o);
        place_on_device const there(of.get());
        for (int i = 0; i < 9; ++i) {
            INFO("step " << i);
            host.draw(i);
            there.take_gradients(host);
            std::uint64_t const before = position_of(of).steps;
            bool const fails_now = operation != ADAMANT_DEVICE_COPY_UP || i % 6 == 0; // up go those that are selected
            if (fails_now && i % 4 == 0) {
                ok(adamant_emulated_device_fail(there.on.get(), operation, 0));
                submit_all(of);
                fails(adamant_zenflow_finish(of.get(), nullptr, nullptr), ADAMANT_DEVICE_FAILED, "emulated device");
                ok(adamant_emulated_device_resume(there.on.get()));
            } else if (fails_now && i % 4 == 2) {
                ok(adamant_emulated_device_hang(there.on.get(), operation, 0));
                submit_all(of);
                fails(adamant_zenflow_finish(of.get(), nullptr, nullptr), ADAMANT_DEVICE_FAILED,
                      "the device does not recover, so params and moments are inconsistent. Call "
                      "adamant_zenflow_load() with a state.");
                REQUIRE(last_error().find("within 0.2 s") != std::string::npos);
                fails(adamant_zenflow_begin_step(of.get(), nullptr), ADAMANT_DEVICE_FAILED,
                      "adamant_zenflow_load() with a complete state");
                ok(adamant_emulated_device_resume(there.on.get()));
                adamant_zenflow_position const at = position_of(expected);
                adamant_zenflow_param params[2];
                for (std::size_t k : {0u, 1u}) {
                    params[k] = initialised(adamant_zenflow_param_init);
                    ok(adamant_zenflow_get_param(expected.get(), k, &params[k]));
                }
                ok(adamant_zenflow_load(of.get(), &at, params, 2));
            }
            REQUIRE(position_of(of).steps == before);
            submit_all(of);
            ok(adamant_zenflow_finish(of.get(), nullptr, nullptr));
            step(expected.get(), host, i);
            there.compare(host);
        }
        ok(adamant_zenflow_place(of.get(), nullptr));
        REQUIRE(position_of(of).steps == 9);
        (void)position_of(expected);
        REQUIRE(a == host);
    }
}

TEST_CASE("C: zenflow's calls in an order that cannot be, in C's words")
{
    arrays a;
    zenflow const of = make(a, zenflow_options(), options());
    adamant_zenflow* const z = of.get();
    std::string const opens = "(): no step is open. Call adamant_zenflow_begin_step() first.";
    refused(adamant_zenflow_submit(z, 0), "cannot call adamant_zenflow_submit" + opens);
    refused(adamant_zenflow_skip(z, 0), "cannot call adamant_zenflow_skip" + opens);
    refused(adamant_zenflow_finish(z, nullptr, nullptr), "cannot call adamant_zenflow_finish" + opens);
    refused(adamant_zenflow_abandon(z), "cannot call adamant_zenflow_abandon" + opens);
    adamant_step_values wrong = step_values();
    wrong.has_max_norm = 1;
    wrong.max_norm = -1;
    refused(adamant_zenflow_begin_step(z, &wrong), "max_norm is -1");

    ok(adamant_zenflow_begin_step(z, nullptr));
    std::string const under_way = "(): a step is in progress. Call adamant_zenflow_finish() or "
                                  "adamant_zenflow_abandon() first.";
    refused(adamant_zenflow_begin_step(z, nullptr), "adamant_zenflow_begin_step" + under_way);
    refused(adamant_zenflow_flush(z), "adamant_zenflow_flush" + under_way);
    refused(adamant_zenflow_prepare(z), "adamant_zenflow_prepare" + under_way);
    adamant_hyperparameters const h = hyperparameters();
    refused(adamant_zenflow_add_group(z, "late", &h, 0, nullptr), "adamant_zenflow_add_group" + under_way);
    refused(adamant_zenflow_set_hyperparameters(z, 0, &h), "adamant_zenflow_set_hyperparameters" + under_way);
    refused(adamant_zenflow_set_device_arrays(z, 0, 256, 512), "adamant_zenflow_set_device_arrays" + under_way);
    adamant_shard const late = describe(a);
    refused(adamant_zenflow_add_param(z, 0, "late", &late, arrays::columns, a.weights.data(), nullptr),
            "adamant_zenflow_add_param" + under_way);
    arrays other;
    void const* const others[] = {other.grad.data(), other.vector_grad.data()};
    refused(adamant_zenflow_step_gradients(z, others, 2, nullptr, nullptr, nullptr),
            "adamant_zenflow_step_gradients" + under_way);
    refused(adamant_zenflow_place(z, nullptr), "adamant_zenflow_place" + under_way);
    adamant_zenflow_position at = initialised(adamant_zenflow_position_init);
    refused(adamant_zenflow_get_position(z, &at),
            "adamant_zenflow_get_...() or adamant_zenflow_save_safetensors" + under_way);
    refused(adamant_zenflow_submit(z, 2), "no shard 2");
    refused(adamant_zenflow_skip(z, 2), "no shard 2");
    ok(adamant_zenflow_submit(z, 0));
    refused(adamant_zenflow_submit(z, 0), "has been submitted in this step already");
    refused(adamant_zenflow_set_gradient(z, 0, a.grad.data()), "has been submitted in this step already");
    ok(adamant_zenflow_set_gradient(z, 1, a.vector_grad.data()));
    adamant_report too_small = report();
    too_small.struct_bytes = 8;
    refused(adamant_zenflow_finish(z, &too_small, nullptr), "struct_bytes of adamant_report is 8");
    refused(adamant_zenflow_finish(z, nullptr, nullptr),
            "Call adamant_zenflow_submit() for each, or adamant_zenflow_skip() for those without a gradient.");
    ok(adamant_zenflow_skip(z, 1));
    refused(adamant_zenflow_submit(z, 1), "has been skipped in this step already");
    ok(adamant_zenflow_finish(z, nullptr, nullptr));
    REQUIRE(position_of(of).steps == 1);

    adamant_device* made = nullptr;
    ok(adamant_emulated_device_create(nullptr, &made));
    device const on(made);
    refused(adamant_zenflow_place(z, made),
            "has no arrays on the device. Call adamant_zenflow_set_device_arrays() before "
            "adamant_zenflow_place().");
    refused(adamant_zenflow_set_device_arrays(z, 0, 8, 256), "an address is not a multiple of 16 bytes");
    refused(adamant_zenflow_set_device_arrays(z, 0, 256, 0), "needs two arrays, of gradients and of weights");
    refused(adamant_zenflow_set_device_arrays(z, 2, 256, 256), "no shard 2");
    place_on_device const there(z);
    refused(adamant_zenflow_set_device_arrays(z, 0, 256, 256),
            "cannot call adamant_zenflow_set_device_arrays() after adamant_zenflow_place(). Call "
            "adamant_zenflow_place() without a device first.");
    refused(adamant_zenflow_set_gradient(z, 0, other.grad.data()), "when adamant_zenflow_place() was called");
    ok(adamant_zenflow_set_gradient(z, 0, a.grad.data()));
    zenflow const second = make(other, zenflow_options(), options());
    for (std::size_t i : {0u, 1u})
        ok(adamant_zenflow_set_device_arrays(second.get(), i, there.grads[i], there.weights[i]));
    refused(adamant_zenflow_place(second.get(), there.on.get()), "emulated device");

    adamant_emulation_options e = emulation_options();
    e.memory_bytes = 1000;
    adamant_device* made_small = nullptr;
    ok(adamant_emulated_device_create(&e, &made_small));
    device const small(made_small);
    fails(adamant_zenflow_place(second.get(), made_small), ADAMANT_UNAVAILABLE, "bytes");
    step(second.get(), other, 1); // with everything where it was
}

// Each failure says what it is and changes nothing, so the bits are the same.
TEST_CASE("C: memory that ends at any allocation of zenflow's calls")
{
    adamant_optimizer_options o = options();
    o.max_norm = 1;
    for (bool const overlap : {true, false}) {
        adamant_zenflow_options z = zenflow_options();
        z.overlap = overlap;
        z.select_interval = 3;
        z.update_interval = overlap ? 3 : 0;
        arrays whole;
        {
            zenflow const of = make(whole, z, o);
            for (int i = 0; i < 8; ++i)
                step(of.get(), whole, i);
            ok(adamant_zenflow_flush(of.get()));
        }
        std::size_t const failed = fail_at_each_allocation([&](auto const& with_failure) {
            arrays a;
            zenflow const of = make(a, z, o);
            with_failure([&] { return adamant_zenflow_prepare(of.get()); });
            void const* const grads[] = {a.grad.data(), a.vector_grad.data()};
            for (int i = 0; i < 8; ++i) {
                a.draw(i);
                with_failure(
                    [&] { return adamant_zenflow_step_gradients(of.get(), grads, 2, nullptr, nullptr, nullptr); });
                REQUIRE(position_of(of).steps == static_cast<std::uint64_t>(i) + 1);
            }
            with_failure([&] { return adamant_zenflow_flush(of.get()); });
            REQUIRE(a == whole);
        });
        REQUIRE(failed > 50);
    }
}

TEST_CASE("C: memory that ends at any allocation of zenflow's calls, on a device")
{
    adamant_optimizer_options o = options();
    o.max_norm = 1;
    adamant_zenflow_options z = zenflow_options();
    z.select_interval = 3;
    arrays whole;
    {
        zenflow const of = make(whole, z, o);
        for (int i = 0; i < 8; ++i)
            step(of.get(), whole, i);
        (void)position_of(of);
    }
    std::size_t const failed = fail_at_each_allocation([&](auto const& with_failure) {
        arrays a, drawn; // a's gradients are the optimizer's
        zenflow const of = make(a, z, o);
        place_on_device const there(of.get());
        with_failure([&] { return adamant_zenflow_place(of.get(), nullptr); });
        there.set_arrays(of.get());
        with_failure([&] { return adamant_zenflow_place(of.get(), there.on.get()); });
        for (int i = 0; i < 8; ++i) {
            INFO("step " << i);
            drawn.draw(i);
            there.take_gradients(drawn);
            with_failure([&] { return adamant_zenflow_begin_step(of.get(), nullptr); });
            for (std::size_t const param : {1u, 0u})
                with_failure([&] { return adamant_zenflow_submit(of.get(), param); });
            with_failure([&] { return adamant_zenflow_finish(of.get(), nullptr, nullptr); });
            if (i % 2 == 1) {
                adamant_zenflow_position at = initialised(adamant_zenflow_position_init);
                with_failure([&] { return adamant_zenflow_get_position(of.get(), &at); });
                REQUIRE(at.steps == static_cast<std::uint64_t>(i) + 1);
            }
        }
        there.compare(whole);
        with_failure([&] { return adamant_zenflow_place(of.get(), nullptr); });
        a.grad = whole.grad;
        a.vector_grad = whole.vector_grad;
        REQUIRE(a == whole);
    });
    REQUIRE(failed > 50);
}

TEST_CASE("C: a device writes no gradient of a zenflow step that has failed or was given up")
{
    adamant_emulation_options slow = initialised(adamant_emulation_options_init);
    slow.down_bytes_per_s = 3e5; // the vector's gradient is downloaded some ms after the matrix's
    arrays a, drawn;
    zenflow const of = make(a, zenflow_options(), options());
    place_on_device const there(of.get(), &slow);
    void const* const grads[] = {a.grad.data(), a.vector_grad.data()};
    // What the caller has in its arrays now, stays there.
    auto const nothing_is_written = [&] {
        std::fill(a.grad.begin(), a.grad.end(), adamant::narrow<adamant::bfloat16>(77));
        std::fill(a.vector_grad.begin(), a.vector_grad.end(), 77.0f);
        float last = 0;
        ok(adamant_device_copy_down(there.on.get(), &last, there.weights[1], sizeof last)); // waits
        for (adamant::bfloat16 const g : a.grad)
            REQUIRE(adamant::widen(g) == 77);
        for (float const g : a.vector_grad)
            REQUIRE(g == 77);
    };
    std::size_t failed = 0;
    std::size_t now = 1;
    int number = 0;
    for (long n = 0; now != 0; ++n) {
        now = 0;
        for (int i = 0; i < 4; ++i) { // of these one selects, and one ends a window
            INFO("step " << number << ", allocation " << n);
            drawn.draw(++number);
            there.take_gradients(drawn);
            auto const take = [&] {
                return adamant_zenflow_step_gradients(of.get(), grads, 2, nullptr, nullptr, nullptr);
            };
            allocations_left = n;
            adamant_status const status = take();
            allocations_left = -1;
            if (status == ADAMANT_OK)
                continue;
            fails(status, ADAMANT_OUT_OF_MEMORY, "memory");
            ++now;
            nothing_is_written();
            ok(take());
        }
        failed += now;
    }
    REQUIRE(failed > 50);
    for (long left = 0; left < 8; ++left) {
        INFO("abandon(), allocation " << left);
        submit_all(of);
        allocations_left = left;
        adamant_status const status = adamant_zenflow_abandon(of.get());
        allocations_left = -1;
        ok(status);
        nothing_is_written();
    }
}

TEST_CASE("C: zenflow's report of a program that knows less of it")
{
    arrays a;
    zenflow const of = make(a, zenflow_options(), options());
    adamant_zenflow_report more = initialised(adamant_zenflow_report_init);
    std::memset(&more, 0x77, sizeof more);
    more.struct_bytes = offsetof(adamant_zenflow_report, publish_seconds);
    step(of.get(), a, 1, &more);
    REQUIRE(more.selected == 1);
    REQUIRE(more.struct_bytes == offsetof(adamant_zenflow_report, publish_seconds));
    double untouched = 0;
    std::memset(&untouched, 0x77, sizeof untouched);
    REQUIRE(more.publish_seconds == untouched);
}

TEST_CASE("C: zenflow's reductions, and their failure")
{
    struct seen {
        int sums = 0, largest = 0, fail_at = -1;
    } all;
    adamant_zenflow_options z = zenflow_options();
    z.reduce_columns_user = &all;
    z.reduce_columns = [](void* user, std::int64_t*, std::size_t count, adamant_column_reduction how) -> std::int32_t {
        auto& to = *static_cast<seen*>(user);
        (how == ADAMANT_COLUMNS_SUM ? to.sums : to.largest) += 1;
        return count == 0 || to.sums + to.largest == to.fail_at ? 7 : 0;
    };
    arrays a;
    zenflow const of = make(a, z, options());
    all.fail_at = 2;
    a.draw(1);
    arrays const before = a;
    void const* const grads[] = {a.grad.data(), a.vector_grad.data()};
    fails(adamant_zenflow_step_gradients(of.get(), grads, 2, nullptr, nullptr, nullptr), ADAMANT_REDUCE_FAILED,
          "reduce_columns returned 7");
    REQUIRE(a == before);
    all.fail_at = -1;
    step(of.get(), a, 1);
    REQUIRE(all.sums == 2);
    REQUIRE(all.largest == 2);
}

TEST_CASE("C: zenflow's errors")
{
    arrays a;
    adamant_zenflow* made = nullptr;
    adamant_zenflow_options z = zenflow_options();
    auto const cpu = make_executor();
    z.topk_ratio = 2;
    refused(adamant_zenflow_create(cpu.get(), &z, nullptr, &made), "topk_ratio is 2");
    z = zenflow_options();
    z.score = 2;
    refused(adamant_zenflow_create(cpu.get(), &z, nullptr, &made), "score is 2");
    z = zenflow_options();
    z.scope = -1;
    refused(adamant_zenflow_create(cpu.get(), &z, nullptr, &made), "scope is -1");
    adamant_optimizer_options o = options();
    o.keep_last_step = 1;
    refused(adamant_zenflow_create(cpu.get(), nullptr, &o, &made), "keep_last_step");
    REQUIRE(made == nullptr);

    refused(adamant_zenflow_options_init(nullptr, 1000), "null");
    refused(adamant_zenflow_report_init(nullptr, 1000), "null");
    refused(adamant_zenflow_position_init(nullptr, 1000), "null");
    refused(adamant_zenflow_param_init(nullptr, 1000), "null");
    refused(adamant_zenflow_create(nullptr, nullptr, nullptr, &made), "executor is a null");
    refused(adamant_zenflow_create(cpu.get(), nullptr, nullptr, nullptr), "made is a null");
    adamant_zenflow_free(nullptr);
    adamant_hyperparameters h = hyperparameters();
    adamant_zenflow_position at = initialised(adamant_zenflow_position_init);
    adamant_zenflow_param p = initialised(adamant_zenflow_param_init);
    adamant_shard s = describe(a);
    refused(adamant_zenflow_add_group(nullptr, "x", &h, 0, nullptr), "optimizer is a null");
    refused(adamant_zenflow_set_hyperparameters(nullptr, 0, &h), "optimizer is a null");
    refused(adamant_zenflow_add_param(nullptr, 0, "x", &s, 1, a.weights.data(), nullptr), "optimizer is a null");
    refused(adamant_zenflow_memory_bytes(nullptr, nullptr), "null");
    refused(adamant_zenflow_prepare(nullptr), "optimizer is a null");
    refused(adamant_zenflow_step_gradients(nullptr, nullptr, 0, nullptr, nullptr, nullptr), "optimizer is a null");
    refused(adamant_zenflow_begin_step(nullptr, nullptr), "optimizer is a null");
    refused(adamant_zenflow_submit(nullptr, 0), "optimizer is a null");
    refused(adamant_zenflow_skip(nullptr, 0), "optimizer is a null");
    refused(adamant_zenflow_finish(nullptr, nullptr, nullptr), "optimizer is a null");
    refused(adamant_zenflow_abandon(nullptr), "optimizer is a null");
    refused(adamant_zenflow_set_gradient(nullptr, 0, a.grad.data()), "optimizer is a null");
    refused(adamant_zenflow_set_device_arrays(nullptr, 0, 256, 256), "optimizer is a null");
    refused(adamant_zenflow_place(nullptr, nullptr), "optimizer is a null");
    refused(adamant_zenflow_flush(nullptr), "optimizer is a null");
    refused(adamant_zenflow_loss_scale(nullptr, nullptr), "null");
    refused(adamant_zenflow_get_position(nullptr, &at), "optimizer is a null");
    refused(adamant_zenflow_get_param(nullptr, 0, &p), "optimizer is a null");
    refused(adamant_zenflow_load(nullptr, &at, nullptr, 0), "optimizer is a null");

    zenflow const of = make(a, zenflow_options(), options());
    refused(adamant_zenflow_add_group(of.get(), nullptr, &h, 0, nullptr), "group's name is a null");
    refused(adamant_zenflow_add_group(of.get(), "x", nullptr, 0, nullptr), "null");
    refused(adamant_zenflow_set_hyperparameters(of.get(), 3, &h), "3");
    h.decay = ADAMANT_DECAY_DECOUPLED;
    ok(adamant_zenflow_set_hyperparameters(of.get(), 0, &h));
    refused(adamant_zenflow_add_param(of.get(), 0, nullptr, &s, 1, a.weights.data(), nullptr), "name is a null");
    refused(adamant_zenflow_add_param(of.get(), 0, "x", nullptr, 1, a.weights.data(), nullptr), "null");
    refused(adamant_zenflow_add_param(of.get(), 0, "x", &s, 7, a.weights.data(), nullptr), "7 columns");
    s.accumulator = a.param.data();
    s.accumulator_dtype = ADAMANT_FLOAT32;
    refused(adamant_zenflow_add_param(of.get(), 0, "x", &s, 20, a.weights.data(), nullptr), "accumulator");
    refused(adamant_zenflow_memory_bytes(of.get(), nullptr), "bytes is a null");
    refused(adamant_zenflow_loss_scale(of.get(), nullptr), "scale is a null");
    refused(adamant_zenflow_step_gradients(of.get(), nullptr, 2, nullptr, nullptr, nullptr), "grads is a null");
    void const* const one[] = {a.grad.data()};
    refused(adamant_zenflow_step_gradients(of.get(), one, 1, nullptr, nullptr, nullptr),
            "cannot step with 1 gradient:");
    refused(adamant_zenflow_get_position(of.get(), nullptr), "null");
    refused(adamant_zenflow_get_param(of.get(), 0, nullptr), "null");
    refused(adamant_zenflow_get_param(of.get(), 2, &p), "no param 2");
    refused(adamant_zenflow_load(of.get(), nullptr, &p, 1), "null");
    refused(adamant_zenflow_load(of.get(), &at, nullptr, 1), "params is a null");
    refused(adamant_zenflow_load(of.get(), &at, &p, 1), "name of a param is a null");
    ok(adamant_zenflow_get_param(of.get(), 0, &p));
    refused(adamant_zenflow_load(of.get(), &at, &p, 1), "'vector'");
}
