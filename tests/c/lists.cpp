// SPDX-License-Identifier: Apache-2.0
// The C interface: steps and sums over lists of tensors.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <adamant/dtype.hpp>

#include "c_test.hpp"

namespace {

// Tensors of several sizes and types, with their descriptions.
struct tensor_list {
    struct tensor {
        std::vector<float> param, grad, exp_avg, exp_avg_sq, copy;
        std::vector<std::uint16_t> short_grad, weight_out;
        bool operator==(tensor const&) const = default;
    };
    std::vector<tensor> tensors;
    std::vector<adamant_shard> shards;
    std::vector<adamant_step_item> items;

    explicit tensor_list(std::initializer_list<std::size_t> sizes)
    {
        test::random_bits random(3);
        for (std::size_t const n : sizes) {
            tensor t{std::vector<float>(n),        std::vector<float>(n), std::vector<float>(n),
                     std::vector<float>(n),        std::vector<float>(n), std::vector<std::uint16_t>(n),
                     std::vector<std::uint16_t>(n)};
            for (std::size_t i = 0; i < n; ++i) {
                t.param[i] = test::value_of(test::values::ordinary, random, -4, 0);
                t.grad[i] = test::value_of(test::values::ordinary, random, -8, -2);
                t.short_grad[i] = adamant::narrow<adamant::bfloat16>(t.grad[i]).bits;
            }
            tensors.push_back(t);
        }
    }
    tensor_list(tensor_list const& other) : tensors(other.tensors) {}

    // Every third tensor has a bfloat16 gradient and weight, every third a float32 copy of its params.
    void describe(adamant_hyperparameters const* hyper)
    {
        shards.clear();
        items.clear();
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            tensor& t = tensors[i];
            adamant_shard s =
                shard(t.param.size(), t.param.data(), t.grad.data(), t.exp_avg.data(), t.exp_avg_sq.data());
            s.rounding_stream = i;
            if (i % 3 == 1) {
                s.grad = t.short_grad.data();
                s.grad_dtype = ADAMANT_BFLOAT16;
                s.weight_out = t.weight_out.data();
                s.weight_out_dtype = ADAMANT_BFLOAT16;
            } else if (i % 3 == 2) {
                s.weight_out = t.copy.data();
                s.weight_out_dtype = ADAMANT_FLOAT32;
            }
            shards.push_back(s);
        }
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            adamant_step_item item = initialised(adamant_step_item_init);
            REQUIRE((item.step_number == 1 && item.grad_scale == 1));
            item.shard = &shards[i];
            item.hyper = hyper;
            items.push_back(item);
        }
    }
};

} // namespace

TEST_CASE("C: a list of tensors has the bits of each tensor stepped alone")
{
    adamant_hyperparameters kinds[] = {hyperparameters(), hyperparameters()};
    kinds[0].weight_decay = 0.1;
    kinds[0].decay = ADAMANT_DECAY_DECOUPLED;
    kinds[1].lr = 0.01;
    kinds[1].beta1 = 0.8;
    for (std::uint32_t const threads : {1u, 3u}) {
        executor const cpu = make_executor(threads);
        tensor_list together({0, 1, 1, 1, 63, 64, 65, 1000, 4096, 4097, 70001, 5, 3, 9000});
        together.tensors[8].grad[17] = std::numeric_limits<float>::infinity();
        tensor_list alone(together);
        for (std::uint64_t t = 1; t <= 3; ++t) {
            together.describe(kinds);
            alone.describe(kinds);
            std::uint64_t expected = 0;
            for (std::size_t i = 0; i < together.items.size(); ++i) {
                adamant_step_item& item = together.items[i];
                item.hyper = &kinds[i % 2];
                item.step_number = t + i % 5;
                item.grad_scale = i % 4 == 0 ? 0.5 : 1;
                std::uint64_t nonfinite = 0;
                ok(adamant_step_shard(cpu.get(), &alone.shards[i], item.hyper, item.step_number, 1, item.grad_scale,
                                      &nonfinite));
                expected += nonfinite;
            }
            std::uint64_t nonfinite = 77;
            ok(adamant_step_list(cpu.get(), together.items.data(), together.items.size(), &nonfinite));
            CHECK(nonfinite == expected);
            CHECK(expected == 1);
        }
        for (tensor_list* const list : {&together, &alone})
            for (std::vector<float>* const values :
                 {&list->tensors[8].param, &list->tensors[8].copy, &list->tensors[8].exp_avg_sq,
                  &list->tensors[8].exp_avg, &list->tensors[8].grad})
                for (float& value : *values) // infinities and NaNs, which are not equal to themselves
                    value = value - value == 0 ? value : 0;
        CHECK(together.tensors == alone.tensors);
        CHECK(together.tensors[11].copy == together.tensors[11].param);
        CHECK(together.tensors[2].copy == together.tensors[2].param);
        CHECK(together.tensors[0].param.empty());
    }
}

TEST_CASE("C: a float32 weight_out is a copy of a float32 param, in steps without an optimizer only")
{
    executor const cpu = make_executor();
    adamant_hyperparameters const h = hyperparameters();
    tensor_list list({100, 100, 10001});
    list.describe(&h);
    for (float const before : list.tensors[2].copy)
        REQUIRE(before == 0);
    ok(adamant_step_shard(cpu.get(), &list.shards[2], &h, 1, 1, 1, nullptr));
    CHECK(list.tensors[2].copy == list.tensors[2].param);
    optimizer const o = [&] {
        adamant_optimizer* made = nullptr;
        ok(adamant_optimizer_create(cpu.get(), nullptr, &made));
        return optimizer(made);
    }();
    ok(adamant_add_group(o.get(), "g", &h, 0, nullptr));
    refused(adamant_add_shard(o.get(), 0, "w", &list.shards[2], nullptr), "unsupported combination of types");
    adamant_shard bad = list.shards[2];
    bad.param_dtype = ADAMANT_BFLOAT16;
    refused(adamant_step_shard(cpu.get(), &bad, &h, 1, 1, 1, nullptr), "(or float32, without an optimizer)");
    bad = list.shards[2];
    bad.weight_out = list.tensors[2].param.data() + 5;
    refused(adamant_step_shard(cpu.get(), &bad, &h, 1, 1, 1, nullptr), "param and weight_out overlap");
}

TEST_CASE("C: a list with one invalid item changes nothing and names the item")
{
    executor const cpu = make_executor();
    adamant_hyperparameters const h = hyperparameters();
    adamant_hyperparameters bad_lr = h;
    bad_lr.lr = -1;
    tensor_list list({3000, 200, 500, 70000});
    list.describe(&h);
    std::vector<tensor_list::tensor> const before = list.tensors;
    std::uint64_t nonfinite = 77;
    auto const refuses = [&](auto const& change, std::string const& words) {
        list.describe(&h);
        change(list.items[3], list.shards[3]);
        refused(adamant_step_list(cpu.get(), list.items.data(), list.items.size(), &nonfinite), words);
        CHECK(list.tensors == before);
        CHECK(nonfinite == 77);
    };
    using item = adamant_step_item;
    using arrays = adamant_shard;
    std::string const third = "cannot step item 3 of the list: ";
    refuses([](item& i, arrays&) { i.step_number = 0; }, third + "cannot make the coefficients of step 0");
    refuses([](item& i, arrays&) { i.shard = nullptr; }, third + "adamant_shard is a null pointer");
    refuses([](item& i, arrays&) { i.hyper = nullptr; }, third + "adamant_hyperparameters is a null pointer");
    refuses([&](item& i, arrays&) { i.hyper = &bad_lr; }, third);
    refuses([](item& i, arrays&) { i.grad_scale = -1; }, third + "grad_scale is -1");
    refuses([](item& i, arrays&) { i.grad_scale = 1e-39; }, third + "grad_scale is 1e-39");
    refuses([](item& i, arrays&) { i.grad_scale = std::numeric_limits<double>::quiet_NaN(); }, "grad_scale is nan");
    refuses([](item& i, arrays&) { i.struct_bytes = 8; }, third + "struct_bytes of adamant_step_item is 8");
    refuses([](item&, arrays& s) { s.exp_avg = nullptr; }, third + "exp_avg is null");
    refuses([](item&, arrays& s) { s.grad_dtype = ADAMANT_QUANTIZED8; }, third + "unsupported combination of types");
    refuses(
        [&](item&, arrays& s) { s.accumulator = list.tensors[3].copy.data(), s.accumulator_dtype = ADAMANT_FLOAT32; },
        third + "cannot call adamant_step_list() with an accumulator");
    refuses([&](item&, arrays& s) { s.param = list.tensors[0].exp_avg.data() + 2999; },
            "exp_avg of item 0 and param of item 3 overlap");
    refuses([&](item&, arrays& s) { s.grad = list.tensors[2].copy.data(); }, // read beside a weight_out
            "weight_out of item 2 and grad of item 3 overlap");
    list.describe(&h);
    refused(adamant_step_list(nullptr, list.items.data(), 1, nullptr), "the executor is a null pointer");
    refused(adamant_step_list(cpu.get(), nullptr, 1, nullptr), "items is a null pointer");
    refused(adamant_step_item_init(nullptr, sizeof(item)), "null");
    ok(adamant_step_list(cpu.get(), nullptr, 0, &nonfinite));
    CHECK(nonfinite == 0);
    CHECK(list.tensors == before);
    list.shards[3].grad = list.tensors[2].grad.data(); // gradients may share memory
    list.shards[3].elements = 400;
    ok(adamant_step_list(cpu.get(), list.items.data(), list.items.size(), nullptr));
}

TEST_CASE("C: sums over a list have the bits of adamant_accumulate()")
{
    executor const cpu = make_executor(3);
    test::random_bits random(8);
    for (adamant_dtype const sum_dtype : {ADAMANT_FLOAT32, ADAMANT_BFLOAT16}) {
        std::vector<std::size_t> const sizes{0, 1, 63, 64, 4097, 70001};
        std::vector<std::vector<std::uint16_t>> grads;
        std::vector<std::vector<float>> ours, expected; // or twice as many bfloat16
        std::vector<adamant_sum_item> items;
        for (std::size_t const n : sizes) {
            std::vector<std::uint16_t> grad(n);
            for (std::size_t i = 0; i < n; ++i)
                grad[i] = static_cast<std::uint16_t>(random()); // any bits: NaNs and subnormal numbers, too
            grads.push_back(grad);
            ours.emplace_back(n);
            expected.emplace_back(n);
        }
        for (int round = 0; round < 3; ++round) {
            items.clear();
            for (std::size_t i = 0; i < sizes.size(); ++i) {
                adamant_sum_item item = initialised(adamant_sum_item_init);
                REQUIRE(
                    (item.sum_dtype == ADAMANT_FLOAT32 && item.grad_dtype == ADAMANT_BFLOAT16 && item.replace == 0));
                item.elements = sizes[i];
                item.sum = ours[i].data();
                item.grad = grads[i].data();
                item.sum_dtype = sum_dtype;
                item.replace = round == 0;
                items.push_back(item);
            }
            ok(adamant_accumulate_list(cpu.get(), items.data(), items.size()));
        }
        std::vector<float> state(3 * 70001);
        for (std::size_t i = 0; i < sizes.size(); ++i) {
            adamant_optimizer* made = nullptr;
            ok(adamant_optimizer_create(cpu.get(), nullptr, &made));
            optimizer const o(made);
            adamant_hyperparameters const h = hyperparameters();
            ok(adamant_add_group(made, "g", &h, 0, nullptr));
            adamant_shard s = shard();
            s.elements = sizes[i];
            s.param = state.data();
            s.exp_avg = state.data() + sizes[i];
            s.exp_avg_sq = state.data() + 2 * sizes[i];
            s.grad = grads[i].data();
            s.grad_dtype = ADAMANT_BFLOAT16;
            s.accumulator = expected[i].data();
            s.accumulator_dtype = sum_dtype;
            ok(adamant_add_shard(made, 0, "w", &s, nullptr));
            for (int round = 0; round < 3; ++round)
                ok(adamant_accumulate(made, 0));
            CHECK((sizes[i] == 0 || std::memcmp(ours[i].data(), expected[i].data(), sizes[i] * sizeof(float)) == 0));
        }
    }
}

TEST_CASE("C: a list of sums with one invalid item changes nothing and names the item")
{
    executor const cpu = make_executor();
    std::vector<float> sums(300, 1.0f);
    std::vector<float> const before = sums;
    std::vector<std::uint16_t> const grads(300, 0x3f80);
    std::vector<adamant_sum_item> items(2, initialised(adamant_sum_item_init));
    auto const describe = [&] {
        for (std::size_t i = 0; i < 2; ++i) {
            items[i] = initialised(adamant_sum_item_init);
            items[i].elements = 100;
            items[i].sum = sums.data() + 100 * i;
            items[i].grad = grads.data();
        }
    };
    auto const refuses = [&](auto const& change, std::string const& words) {
        describe();
        change(items[1]);
        refused(adamant_accumulate_list(cpu.get(), items.data(), items.size()), words);
        CHECK(sums == before);
    };
    using item = adamant_sum_item;
    std::string const first = "cannot accumulate item 1 of the list: ";
    refuses([](item& i) { i.sum = nullptr; }, first + "sum is a null pointer");
    refuses([](item& i) { i.grad = nullptr; }, first + "grad is a null pointer");
    refuses([](item& i) { i.sum_dtype = ADAMANT_FLOAT16; }, first + "sum_dtype is 3");
    refuses([](item& i) { i.sum_dtype = ADAMANT_NONE; }, first + "sum_dtype is ADAMANT_NONE");
    refuses([](item& i) { i.grad_dtype = ADAMANT_SPLIT_FLOAT32; }, first + "grad_dtype is 4");
    refuses([](item& i) { i.grad_dtype = ADAMANT_NONE; }, first + "grad_dtype is ADAMANT_NONE");
    refuses([](item& i) { i.elements = SIZE_MAX; }, first + "an array of 18446744073709551615 elements does not fit");
    refuses([](item& i) { i.struct_bytes = 4; }, first + "struct_bytes of adamant_sum_item is 4");
    refuses([&](item& i) { i.sum = sums.data() + 99; }, "sum of item 0 and sum of item 1 overlap");
    refuses([&](item& i) { i.grad = sums.data(); }, "sum of item 0 and grad of item 1 overlap");
    describe();
    refused(adamant_accumulate_list(nullptr, items.data(), 2), "the executor is a null pointer");
    refused(adamant_accumulate_list(cpu.get(), nullptr, 2), "items is a null pointer");
    refused(adamant_sum_item_init(nullptr, sizeof(item)), "null");
    ok(adamant_accumulate_list(cpu.get(), nullptr, 0));
    CHECK(sums == before);
    ok(adamant_accumulate_list(cpu.get(), items.data(), 2));
    CHECK((sums[0] == 2 && sums[199] == 2 && sums[200] == 1));
}
