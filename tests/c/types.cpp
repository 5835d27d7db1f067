// SPDX-License-Identifier: Apache-2.0
// The C interface: every combination of types.
#include <cstddef>
#include <string>
#include <vector>

#include <adamant/dtype.hpp>
#include <adamant/formats.hpp>
#include <adamant/hyperparameters.hpp>

#include "c_test.hpp"

TEST_CASE("C: every combination of types has the bits of its kernel, and no other is taken")
{
    executor const cpu = make_executor(1);
    test::random_bits random(5);
    std::size_t taken = 0;
    constexpr unsigned dtypes = 5;
    for (unsigned code = 0; code < dtypes * dtypes * dtypes * dtypes * dtypes; ++code) {
        adamant::shard_dtypes types;
        unsigned rest = code;
        for (adamant::dtype& type : types) {
            type = static_cast<adamant::dtype>(rest % dtypes);
            rest /= dtypes;
        }
        adamant::shard_format const* const format = adamant::find_format(types);
        std::size_t const n = format == nullptr ? 3 : 5003;
        std::vector<test::array> arrays;
        for (std::size_t i = 0; i < 5; ++i) {
            arrays.emplace_back(types[i], n, i); // misaligned
            for (std::size_t j = 0; j < arrays[i].size(); ++j)
                arrays[i].set(j, i < 2 ? test::value_of(test::values::ordinary, random, -6, -1) : 0.0f);
        }
        adamant_optimizer* made = nullptr;
        ok(adamant_optimizer_create(cpu.get(), nullptr, &made));
        optimizer const o(made);
        adamant_hyperparameters const h = hyperparameters();
        ok(adamant_add_group(made, "g", &h, 0, nullptr));
        adamant_shard s = shard(n, arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data());
        s.weight_out = arrays[4].data();
        s.param_dtype = static_cast<adamant_dtype>(types[0]);
        s.grad_dtype = static_cast<adamant_dtype>(types[1]);
        s.exp_avg_dtype = static_cast<adamant_dtype>(types[2]);
        s.exp_avg_sq_dtype = static_cast<adamant_dtype>(types[3]);
        s.weight_out_dtype = static_cast<adamant_dtype>(types[4]);
        INFO(name(types[0]) << ' ' << name(types[1]) << ' ' << name(types[2]) << ' ' << name(types[3]) << ' '
                            << name(types[4]));
        if (format == nullptr) {
            refused(adamant_add_shard(made, 0, "x", &s, nullptr), "unsupported combination of types: param");
            continue;
        }
        ++taken;
        // The sum of two gradients, in turns: the step that reads a gradient of floats.
        test::array sum(taken % 2 == 0 ? adamant::dtype::float32 : adamant::dtype::bfloat16, n);
        bool const summed = taken % 3 == 0;
        if (summed) {
            s.accumulator = sum.data();
            s.accumulator_dtype = taken % 2 == 0 ? ADAMANT_FLOAT32 : ADAMANT_BFLOAT16;
        }
        std::vector<test::array> expected(arrays.begin(), arrays.end());
        test::array gradient(adamant::dtype::float32, n);
        ok(adamant_add_shard(made, 0, "x", &s, nullptr));
        if (summed) {
            ok(adamant_accumulate(made, 0));
            for (std::size_t j = 0; j < n; ++j)
                gradient.set(j, sum.get(j) + arrays[1].get(j));
        }
        ok(adamant_step(made, nullptr, nullptr));
        adamant::shard_dtypes const with_floats = {types[0], adamant::dtype::float32, types[2], types[3], types[4]};
        (summed ? adamant::find_format(with_floats) : format)
            ->step_for(adamant::isa::scalar)({expected[0].data(),
                                              summed ? gradient.data() : expected[1].data(),
                                              expected[2].data(),
                                              expected[3].data(),
                                              expected[4].data(),
                                              {adamant::param_number_of("x"), 0}},
                                             0, n, adamant::make_coefficients({}, 1, {}), false);
        for (std::size_t i = 0; i < 5; ++i) {
            INFO(adamant::shard_array::names[i]);
            REQUIRE(arrays[i].difference(expected[i]) == "");
        }
    }
    REQUIRE(taken == 72);
}
