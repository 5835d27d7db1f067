// SPDX-License-Identifier: Apache-2.0
// Storage formats against each other: what one promises in terms of another.
#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <adamant/checkpoint.hpp>
#include <adamant/formats.hpp>
#include <adamant/optimizer.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;

namespace {

std::uint32_t bits_of(bfloat16 weight, split_float32 low)
{
    return test::bits(joined_master(weight, low));
}

executor two_threads()
{
    return executor(std::make_shared<team>(team_options{.threads = 2, .bind = binding::none}));
}

// One parameter in either storage, with bfloat16 gradients and weights.
struct trained {
    std::vector<float> master;
    std::vector<split_float32> low;
    std::vector<bfloat16> weight, grad;
    std::vector<float> exp_avg, exp_avg_sq;
    optimizer by;

    trained(bool split, std::size_t n, std::uint64_t seed)
        : weight(n), grad(n), exp_avg(n), exp_avg_sq(n), by(two_threads(), {.max_norm = 1.0, .keep_last_step = true})
    {
        test::random_bits random(seed);
        master.resize(n);
        for (float& x : master)
            x = test::with_exponent(random(), -9, -4);
        if (split) {
            low.resize(n);
            split_masters(master.data(), n, weight.data(), low.data());
            master.clear();
        }
        by.add_group("all", adamw({.lr = 1e-3, .weight_decay = 0.1}));
        shard_dtypes const types = {split ? dtype::split_float32 : dtype::float32, dtype::bfloat16, dtype::float32,
                                    dtype::float32, dtype::bfloat16};
        auto const bytes = [](auto& of) { return reinterpret_cast<std::byte*>(of.data()); };
        by.add_shard({.group = 0,
                      .name = "w",
                      .shard = optimizer_shard(any_shard(*find_format(types),
                                                         {split ? bytes(low) : bytes(master), bytes(grad),
                                                          bytes(exp_avg), bytes(exp_avg_sq), bytes(weight)},
                                                         n))});
    }
    void draw(std::uint64_t seed)
    {
        test::random_bits random(seed);
        for (bfloat16& g : grad)
            g = narrow<bfloat16>(random.below(50) == 0 ? 0.0f : test::with_exponent(random(), -16, -2));
    }
    [[nodiscard]] std::uint32_t master_bits(std::size_t i) const
    {
        return low.empty() ? test::bits(master[i]) : bits_of(weight[i], low[i]);
    }
    [[nodiscard]] std::string difference(trained const& other) const
    {
        for (std::size_t i = 0; i < weight.size(); ++i) {
            if (master_bits(i) != other.master_bits(i))
                return "master " + std::to_string(i);
            if (test::bits(exp_avg[i]) != test::bits(other.exp_avg[i]) ||
                test::bits(exp_avg_sq[i]) != test::bits(other.exp_avg_sq[i]))
                return "moment " + std::to_string(i);
        }
        return {};
    }
};

} // namespace

TEST_CASE("split masters have the bits of float32 mode in every step, also rolled back")
{
    for (std::size_t const n : {std::size_t{1}, std::size_t{63}, std::size_t{5000}, std::size_t{70001}}) {
        trained whole(false, n, 5), split(true, n, 5);
        for (std::uint64_t step = 1; step <= 12; ++step) {
            whole.draw(step);
            split.draw(step);
            auto const first = whole.by.step();
            auto const second = split.by.step();
            CHECK(first.global_norm == second.global_norm);
            REQUIRE(whole.difference(split) == "");
            for (std::size_t i = 0; i < n; ++i)
                REQUIRE(split.weight[i].bits == split_master(test::from_bits(whole.master_bits(i))).weight.bits);
            if (step % 4 == 0) {
                whole.by.rollback();
                split.by.rollback();
                REQUIRE(whole.difference(split) == "");
                whole.by.step();
                split.by.step();
                REQUIRE(whole.difference(split) == "");
            }
        }
    }
}

TEST_CASE("split masters are saved as a float32 master, and either storage loads it")
{
    std::size_t const n = 70001;
    for (bool const from_split : {false, true})
        for (bool const to_split : {false, true}) {
            trained from(from_split, n, 1), to(to_split, n, 2);
            for (std::uint64_t step = 1; step <= 3; ++step) {
                from.draw(step);
                from.by.step();
            }
            state_dict const state = from.by.state();
            for (state_tensor const& t : state.tensors)
                CHECK(t.type == dtype::float32);
            to.by.load(state);
            REQUIRE(from.difference(to) == "");
            for (std::uint64_t step = 4; step <= 6; ++step) {
                from.draw(step);
                to.draw(step);
                from.by.step();
                to.by.step();
            }
            REQUIRE(from.difference(to) == "");
        }
}

TEST_CASE("a state of split masters is read by any bytes")
{
    trained of(true, 1000, 9);
    state_dict const state = of.by.state();
    auto const tensor = std::find_if(state.tensors.begin(), state.tensors.end(),
                                     [](state_tensor const& t) { return t.array == state_array::param; });
    std::vector<std::byte> all(4000);
    REQUIRE(tensor->data == nullptr); // there is no such array to be read
    tensor->source->read(tensor->data, all.size(), all.data());
    for (std::size_t i = 0; i < 1000; ++i)
        REQUIRE(test::bits(load_unaligned<float>(all.data() + 4 * i)) == of.master_bits(i));
    test::random_bits random(4);
    for (int round = 0; round < 2000; ++round) {
        std::size_t const begin = random.below(all.size());
        std::size_t const n = random.below(std::min<std::size_t>(all.size() - begin, 40) + 1);
        std::vector<std::byte> some(n);
        tensor->source->read(detail::bytes_behind(tensor->data, begin), n, some.data());
        REQUIRE(std::equal(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
    }
    std::vector<std::byte> some(40);
    read_elements(*tensor, 990, 10, some.data());
    REQUIRE(std::equal(some.begin(), some.end(), all.end() - 40));
    CHECK(test::mentions(test::refusal([&] { read_elements(*tensor, 990, 11, some.data()); }), "the tensor has 1000"));
    CHECK(test::mentions(test::refusal([&] { read_elements(*tensor, std::size_t(-1), 2, some.data()); }),
                         "the tensor has 1000"));
}

TEST_CASE("masters are split and joined in place")
{
    for (std::size_t const n : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{4097}}) {
        test::random_bits random(n);
        std::vector<float> master(n + 1);
        for (float& x : master)
            x = test::value_of(test::values::special, random, -9, 9);
        std::vector<float> const before = master;
        std::vector<bfloat16> weight(n);
        auto* const low = reinterpret_cast<split_float32*>(master.data());
        split_masters(master.data(), n, weight.data(), low);
        join_masters(weight.data(), low, n, master.data());
        for (std::size_t i = 0; i <= n; ++i)
            REQUIRE(test::bits(master[i]) == (i < n && is_nan(before[i]) ? canonical_nan_bits : test::bits(before[i])));
    }
}

TEST_CASE("stochastic rounding does not depend on how a param is cut, nor on the order of its shards")
{
    std::size_t const n = 150'001;
    std::vector<std::size_t> const whole = {0, n};
    std::vector<std::size_t> const cut = {0, 7 * norm_block_elems, 20 * norm_block_elems, n};
    auto const trained_with = [&](std::vector<std::size_t> const& bounds, bool backwards, std::uint64_t seed) {
        std::vector<bfloat16> param(n), grad(n), exp_avg(n), exp_avg_sq(n);
        test::random_bits random(8);
        for (bfloat16& x : param)
            x = narrow<bfloat16>(test::with_exponent(random(), -9, -4));
        optimizer by(two_threads());
        by.add_group("all", adamw({.lr = 1e-4, .rounding = {rounding::stochastic, rounding::stochastic, seed}}));
        for (std::size_t k = 0; k + 1 < bounds.size(); ++k) {
            std::size_t const i = backwards ? bounds.size() - 2 - k : k;
            auto const part = [&](std::vector<bfloat16>& of) {
                return std::span(of).subspan(bounds[i], bounds[i + 1] - bounds[i]);
            };
            by.add_shard({.group = 0,
                          .name = "w",
                          .shard = shard(part(param), part(grad), part(exp_avg), part(exp_avg_sq)),
                          .position = {.shape = {n}, .begin = bounds[i]}});
        }
        for (int step = 0; step < 3; ++step) {
            for (bfloat16& g : grad)
                g = narrow<bfloat16>(test::with_exponent(random(), -16, -2));
            by.step();
        }
        std::vector<bfloat16> all = param;
        all.insert(all.end(), exp_avg_sq.begin(), exp_avg_sq.end());
        return all;
    };
    std::vector<bfloat16> const expected = trained_with(whole, false, 3);
    CHECK((trained_with(cut, false, 3) == expected)); // in brackets, or a failure prints all of them
    CHECK((trained_with(cut, true, 3) == expected));
    CHECK((trained_with(whole, false, 4) != expected));
}

namespace {

// One parameter with moments of 8 bits, in shards that begin at these elements.
struct coded {
    std::vector<float> param, grad;
    std::vector<quantized8> exp_avg, exp_avg_sq;
    optimizer by;

    coded(std::size_t n, std::vector<std::size_t> const& begins, unsigned threads = 2)
        : param(n), grad(n), exp_avg((n + 63) / 64), exp_avg_sq((n + 63) / 64),
          by(executor(std::make_shared<team>(team_options{.threads = threads, .bind = binding::none})),
             {.keep_last_step = true})
    {
        test::random_bits random(n);
        for (float& x : param)
            x = test::with_exponent(random(), -9, -4);
        by.add_group("all", adamw({.lr = 1e-3, .weight_decay = 0.1}));
        for (std::size_t k = 0; k < begins.size(); ++k) {
            std::size_t const begin = begins[k];
            std::size_t const size = (k + 1 == begins.size() ? n : begins[k + 1]) - begin;
            by.add_shard({.group = 0,
                          .name = "w",
                          .shard = shard(param.data() + begin, grad.data() + begin, exp_avg.data() + begin / 64,
                                         exp_avg_sq.data() + begin / 64, size),
                          .position = {{n}, begin}});
        }
    }
    void draw(std::uint64_t seed)
    {
        test::random_bits random(seed);
        for (std::size_t i = 0; i < grad.size(); ++i) // some groups without gradients, some with a few
            grad[i] = random.below(10) == 0 || i / 64 % 7 == seed % 7 ? 0.0f : test::with_exponent(random(), -16, -2);
    }
    [[nodiscard]] bool same(coded const& other) const
    {
        auto const equal = [](auto const& a, auto const& b) {
            return std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
        };
        return equal(param, other.param) && equal(exp_avg, other.exp_avg) && equal(exp_avg_sq, other.exp_avg_sq);
    }
};

} // namespace

TEST_CASE("8 bits: shards that begin at multiples of 64 have the bits of the whole, resumed and rolled back, too")
{
    std::size_t const n = 140007; // with three lines of random numbers
    coded whole(n, {0}), cut(n, {0, 192, 4160, 65472, 131136}, 1), resumed(n, {0, 70016});
    for (std::uint64_t step = 1; step <= 10; ++step) {
        for (coded* each : {&whole, &cut}) {
            each->draw(step);
            each->by.step();
        }
        REQUIRE(whole.same(cut));
        if (step % 3 == 0) {
            whole.by.rollback();
            cut.by.rollback();
            REQUIRE(whole.same(cut));
            whole.by.step();
            cut.by.step();
            REQUIRE(whole.same(cut));
        }
    }
    resumed.by.load(cut.by.state());
    REQUIRE(resumed.same(whole));
    for (coded* each : {&whole, &resumed}) {
        each->draw(11);
        each->by.step();
    }
    REQUIRE(resumed.same(whole));
}

TEST_CASE("8 bits: what is refused says so")
{
    std::size_t const n = 200;
    std::vector<float> param(n), grad(n);
    std::vector<quantized8> exp_avg(4), exp_avg_sq(4);
    optimizer by(two_threads());
    by.add_group("all", adamw({.lr = 1e-3}));
    auto const add = [&](std::size_t begin, std::size_t size) {
        by.add_shard(
            {.group = 0,
             .name = "w",
             .shard = shard(param.data() + begin, grad.data() + begin, exp_avg.data(), exp_avg_sq.data(), size),
             .position = {{n}, begin}});
    };
    CHECK_THROWS_WITH(add(32, 64), Catch::Contains("elements 32 to 96 of 200, but its moments are in groups of 64"));
    CHECK_THROWS_WITH(add(64, 100), Catch::Contains("Begin at a multiple of 64"));
    CHECK_NOTHROW(add(64, 136));
    std::vector<quantized8> short_by_one(3);
    CHECK_THROWS_WITH(shard(param, grad, short_by_one, exp_avg_sq),
                      Catch::Contains("param has 200 elements but exp_avg has 3 groups of 64; it needs 4"));
    // A state of other moments is another state.
    trained other(false, n, 1);
    CHECK_THROWS_WITH(by.load(other.by.state()), Catch::Contains("float32 in the state, but quantized8"));
}

TEST_CASE("names of states")
{
    using enum dtype;
    auto const types = [](char const* name, dtype weight = bfloat16) { return types_of_state(name, float32, weight); };
    CHECK(types("float32", none) == shard_dtypes{float32, float32, float32, float32, none});
    CHECK(types("bfloat16") == shard_dtypes{float32, float32, bfloat16, bfloat16, bfloat16});
    CHECK(types("quantized8") == shard_dtypes{float32, float32, quantized8, quantized8, bfloat16});
    CHECK(types("split_float32+bfloat16") == shard_dtypes{split_float32, float32, bfloat16, bfloat16, bfloat16});
    CHECK(types("split_float32+quantized8") == shard_dtypes{split_float32, float32, quantized8, quantized8, bfloat16});
    for (char const* name : {"", "+", "quantized8+quantized8", "float32+", "+quantized8", "float32+float32", "int8"})
        CHECK(!types(name));
    CHECK(!types("split_float32+quantized8", float16));
}
