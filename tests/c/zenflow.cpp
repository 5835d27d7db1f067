// SPDX-License-Identifier: Apache-2.0
// The C interface: optimizers that put gradients off have the bits of those in C++.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <adamant/zenflow.hpp>

#include "c_test.hpp"

namespace {

struct freed_zenflow {
    void operator()(adamant_zenflow* of) const { adamant_zenflow_free(of); }
};
using zenflow = std::unique_ptr<adamant_zenflow, freed_zenflow>;

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
    adamant_shard v = shard();
    v.elements = arrays::length;
    v.param = a.vector.data();
    v.grad = a.vector_grad.data();
    v.exp_avg = a.vector_m.data();
    v.exp_avg_sq = a.vector_v.data();
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
        REQUIRE(more.put_off == report.put_off);
        REQUIRE(more.put_off_stepped == report.put_off_stepped);
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
    ok(adamant_zenflow_land(of.get()));
    by.land();
    REQUIRE(in_c_arrays == in_cpp);
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
    refused(adamant_zenflow_land(nullptr), "optimizer is a null");
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
    refused(adamant_zenflow_step_gradients(of.get(), one, 1, nullptr, nullptr, nullptr), "1 gradients");
    refused(adamant_zenflow_get_position(of.get(), nullptr), "null");
    refused(adamant_zenflow_get_param(of.get(), 0, nullptr), "null");
    refused(adamant_zenflow_get_param(of.get(), 2, &p), "no param 2");
    refused(adamant_zenflow_load(of.get(), nullptr, &p, 1), "null");
    refused(adamant_zenflow_load(of.get(), &at, nullptr, 1), "params is a null");
    refused(adamant_zenflow_load(of.get(), &at, &p, 1), "name of a param is a null");
    ok(adamant_zenflow_get_param(of.get(), 0, &p));
    refused(adamant_zenflow_load(of.get(), &at, &p, 1), "'vector'");
}
