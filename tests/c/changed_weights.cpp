// SPDX-License-Identifier: Apache-2.0
// The C interface: bits of changed weights, and what is read from them.
#include <cstdint>
#include <utility>
#include <vector>

#include "c_test.hpp"

TEST_CASE("C: changed weights are marked, counted, collected and cleared")
{
    model m;
    executor const cpu = make_executor();
    optimizer const o = make_optimizer(m);
    std::size_t const n = 9000;
    std::vector<float> param(n), grad(n), exp_avg(n), exp_avg_sq(n);
    std::vector<std::uint16_t> weight(n);
    for (std::size_t i = 0; i < n; ++i) {
        param[i] = 0.5f + 1e-4f * static_cast<float>(i);
        weight[i] = adamant::narrow<adamant::bfloat16>(param[i]).bits;
        grad[i] = static_cast<float>(i % 3) - 1;
    }
    std::vector<std::uint64_t> bits((n + 63) / 64);
    adamant_shard s = shard(n, param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data());
    s.weight_out = weight.data();
    s.weight_out_dtype = ADAMANT_BFLOAT16;
    s.changed = bits.data();
    std::size_t number = 0;
    ok(adamant_add_shard(o.get(), 0, "tracked", &s, &number));
    std::vector<std::uint16_t> const before = weight;
    adamant_report r = report();
    ok(adamant_step(o.get(), nullptr, &r));
    std::vector<std::uint32_t> expected;
    for (std::size_t i = 0; i < n; ++i)
        if (weight[i] != before[i])
            expected.push_back(static_cast<std::uint32_t>(i));
    REQUIRE(!expected.empty());

    adamant_tracked_weights w = initialised(adamant_tracked_weights_init);
    CHECK(w.dtype == ADAMANT_BFLOAT16);
    w.changed = bits.data();
    w.elements = n;
    w.weights = weight.data();
    std::size_t count = 77;
    ok(adamant_count_changed(cpu.get(), &w, &count));
    CHECK(count == expected.size());
    ok(adamant_changed_weights(cpu.get(), &w, 0, 0, nullptr, nullptr, nullptr, 1, &count)); // no room: clears nothing
    CHECK(count == expected.size());
    std::vector<std::uint8_t> mask(n);
    ok(adamant_changed_mask(cpu.get(), &w, mask.data(), 0));
    for (std::size_t i = 0; i < n; ++i)
        REQUIRE(mask[i] == (weight[i] != before[i]));
    std::vector<std::uint64_t> wide(count);
    std::vector<std::uint16_t> values(count);
    ok(adamant_changed_weights(cpu.get(), &w, std::uint64_t{1} << 40, count, nullptr, wide.data(), values.data(), 0,
                               &count));
    std::vector<std::uint32_t> indices(count);
    ok(adamant_changed_weights(cpu.get(), &w, 0, count, indices.data(), nullptr, nullptr, 1, &count));
    CHECK(indices == expected);
    for (std::size_t k = 0; k < count; ++k) {
        REQUIRE(wide[k] == (std::uint64_t{1} << 40) + indices[k]);
        REQUIRE(values[k] == weight[indices[k]]);
    }
    ok(adamant_count_changed(cpu.get(), &w, &count));
    CHECK(count == 0);
    ok(adamant_mark_changed(&w, 10, 75));
    ok(adamant_count_changed(cpu.get(), &w, &count));
    CHECK(count == 65);
}

TEST_CASE("C: changed weights that cannot be read are refused")
{
    executor const cpu = make_executor();
    adamant_tracked_weights w = initialised(adamant_tracked_weights_init);
    std::size_t count = 77;
    std::uint64_t words[2] = {};
    std::uint32_t index = 0;
    refused(adamant_tracked_weights_init(nullptr, 1000), "null");
    refused(adamant_count_changed(nullptr, &w, &count), "null");
    std::size_t const elements = std::exchange(w.elements, SIZE_MAX);
    refused(adamant_count_changed(cpu.get(), &w, &count), "Was a negative size converted?");
    w.elements = elements;
    refused(adamant_count_changed(cpu.get(), nullptr, &count), "null");
    refused(adamant_count_changed(cpu.get(), &w, nullptr), "null");
    refused(adamant_changed_weights(cpu.get(), &w, 0, 0, nullptr, nullptr, nullptr, 0, nullptr), "null");
    refused(adamant_changed_mask(nullptr, &w, nullptr, 0), "null");
    refused(adamant_mark_changed(nullptr, 0, 0), "null");
    w.elements = 100;
    refused(adamant_count_changed(cpu.get(), &w, &count), "changed is a null pointer");
    w.changed = words;
    refused(adamant_changed_mask(cpu.get(), &w, nullptr, 0), "mask is a null pointer");
    refused(adamant_changed_weights(cpu.get(), &w, 0, 1, nullptr, nullptr, nullptr, 0, &count), "both null");
    refused(adamant_changed_weights(cpu.get(), &w, 0, 1, &index, words, nullptr, 0, &count), "both set");
    refused(adamant_changed_weights(cpu.get(), &w, 0xffffffffu, 1, &index, nullptr, nullptr, 0, &count), "64-bit");
    refused(adamant_changed_weights(cpu.get(), &w, 0, 1, &index, nullptr, words, 0, &count), "weights is null");
    refused(adamant_mark_changed(&w, 3, 101), "cannot mark elements 3 to 101");
    w.dtype = ADAMANT_QUANTIZED8;
    refused(adamant_count_changed(cpu.get(), &w, &count), "of type quantized8");
    CHECK(count == 77);
}
