// SPDX-License-Identifier: Apache-2.0
// The typed calls: one step over a shard, and the sum of squares of a gradient.
#include <cfenv>
#include <cmath>
#include <limits>

#include <adamant/adamant.hpp>
#include <adamant/reference.hpp>

#include "catch.hpp"
#include "exact_sum.hpp"
#include "hyperparameters.hpp"

using namespace adamant;
using test::usual_adamw;

namespace {

struct training {
    std::vector<float> param, exp_avg, exp_avg_sq;
    std::vector<bfloat16> grad, weight_out;

    explicit training(std::size_t n) : param(n), exp_avg(n), exp_avg_sq(n), grad(n), weight_out(n)
    {
        test::random_bits random(n);
        for (std::size_t i = 0; i < n; ++i) {
            param[i] = test::with_exponent(random(), -6, -2);
            grad[i] = narrow<bfloat16>(test::with_exponent(random(), -12, -6));
        }
    }
    step_report run(executor const& cpu, std::uint64_t first, std::uint64_t last)
    {
        step_report report;
        for (std::uint64_t t = first; t <= last; ++t)
            report = step(cpu, shard(param, grad, exp_avg, exp_avg_sq, weight_out), usual_adamw, t);
        return report;
    }
    bool operator==(training const&) const = default;
};

} // namespace

TEST_CASE("a step is the reference implementation's, and its report says what was done and with what")
{
    executor const cpu({.threads = 1});
    training found(1000);
    training expected = found;
    found.grad[3] = expected.grad[3] = bfloat16{0x7f80};
    found.grad[999] = expected.grad[999] = bfloat16{0xffc1};
    step_report const report = found.run(cpu, 1, 1);
    expected.run(executor({.tier = isa::scalar, .threads = 1}), 1, 1);
    for (std::size_t i = 0; i < 1000; ++i) {
        REQUIRE(test::bits(found.param[i]) == test::bits(expected.param[i]));
        REQUIRE(test::bits(found.exp_avg[i]) == test::bits(expected.exp_avg[i]));
        REQUIRE(test::bits(found.exp_avg_sq[i]) == test::bits(expected.exp_avg_sq[i]));
        REQUIRE(found.weight_out[i] == expected.weight_out[i]);
        REQUIRE(found.weight_out[i] == narrow<bfloat16>(found.param[i]));
    }
    CHECK(report.elements == 1000);
    CHECK(report.bytes_moved == 28000);
    CHECK(report.nonfinite_grads == 2);
    CHECK(report.tier == test::tier());
    CHECK(report.threads == 1);
}

TEST_CASE("the number of threads changes no bit")
{
#if defined(_OPENMP)
    training expected(100003);
    expected.run(executor({.threads = 1}), 1, 3);
    for (unsigned const threads : {2u, 3u, 7u}) {
        training found(100003);
        step_report const report = found.run(executor({.threads = threads, .min_slice_elems = 1}), 1, 3);
        CHECK(report.threads == threads);
        CHECK(found == expected);
    }
#endif
}

TEST_CASE("how far ahead memory is asked for, and how much a thread takes in one piece, change no bit")
{
    training expected(100003);
    expected.run(executor({.threads = 1}), 1, 3);
    executor const cpu;
    for (std::uint32_t const ahead : {0u, 64u, 1000003u, 0xffffffffu})
        for (std::size_t const most : test::sizes{0, 5000, std::numeric_limits<std::size_t>::max()}) {
            executor_options const options{.min_slice_elems = 1, .max_chunk_elems = most, .prefetch_bytes = ahead};
            training found(100003);
            found.run(cpu.team() == nullptr ? executor(options) : executor(cpu.team(), options), 1, 3);
            CHECK(found == expected);
        }
}

TEST_CASE("bad_resume, step_drift: a run that is stopped and goes on has the bits of one that was not")
{
    executor const cpu;
    training whole(5000);
    whole.run(cpu, 1, 40);
    training halves(5000);
    halves.run(cpu, 1, 17);
    training resumed = halves;
    resumed.run(executor({.threads = 1}), 18, 40);
    CHECK(resumed == whole);
}

TEST_CASE("a shard large enough for streamed stores has the same bits", "[sweep]")
{
    std::size_t const n = stream_weight_out_from_elems + 77;
    std::vector<float> param(n, 0.25f), exp_avg(n), exp_avg_sq(n);
    std::vector<bfloat16> grad(n, narrow<bfloat16>(0.125f)), weight_out(n + 8);
    for (std::size_t const offset : test::sizes{0, 1, 5}) {
        std::fill(param.begin(), param.end(), 0.25f);
        std::fill(exp_avg.begin(), exp_avg.end(), 0.0f);
        std::fill(exp_avg_sq.begin(), exp_avg_sq.end(), 0.0f);
        std::fill(weight_out.begin(), weight_out.end(), bfloat16{1});
        step(executor(),
             shard(param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), weight_out.data() + offset, n),
             usual_adamw, 1);
        float const expected = reference::update({0.25f, 0, 0}, 0.125f, make_coefficients(usual_adamw, 1)).param;
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < n; ++i)
            wrong +=
                test::bits(param[i]) != test::bits(expected) || !(weight_out[i + offset] == narrow<bfloat16>(expected));
        CHECK(wrong == 0);
        CHECK(weight_out[n + offset].bits == 1);
    }
}

TEST_CASE("bad hyperparameters leave every array as it was")
{
    training data(100);
    training const before = data;
    shard const view(data.param, data.grad, data.exp_avg, data.exp_avg_sq, data.weight_out);
    executor const cpu;
    CHECK_THROWS_AS(step(cpu, view, {.lr = std::nan("")}, 1), invalid_argument);
    CHECK_THROWS_AS(step(cpu, view, {.beta2 = 1}, 1), invalid_argument);
    CHECK_THROWS_AS(step(cpu, view, {}, 0), invalid_argument);
    CHECK_THROWS_AS(step(cpu, view, {}, 1, {.loss_scale = 0}), invalid_argument);
    CHECK(data == before);
}

TEST_CASE("an empty shard is a step over nothing")
{
    training nothing(0);
    CHECK(nothing.run(executor(), 1, 1).elements == 0);
}

// User reports: DeepSpeed #4561, #8325, #8415, #8035.
TEST_CASE("sum and count have the same bits for every tier and number of threads", "[slow_finite_check]")
{
    test::random_bits random(2);
    for (std::size_t const n : test::sizes{0, 1, 4096, 4097, 100000, 4200000}) {
        std::vector<bfloat16> grad(n);
        std::uint64_t nonfinite = 0;
        for (bfloat16& g : grad) {
            g = narrow<bfloat16>(test::with_exponent(random(), -20, 3));
            if (random.below(100000) == 0) {
                g = bfloat16{0x7f80};
                ++nonfinite;
            }
        }
        grad_squares const expected = sum_of_squares(executor({.tier = isa::scalar, .threads = 1}), grad);
        CHECK(expected.nonfinite == nonfinite);
        test::exact_sum sum;
        for (std::size_t at = 0; at < n; at += norm_block_elems)
            sum.add(reference::block_squares<bfloat16>(reinterpret_cast<std::byte const*>(grad.data() + at),
                                                       std::min(norm_block_elems, n - at))
                        .sum);
        CHECK(expected.sum == sum.rounded());
#if defined(_OPENMP)
        for (unsigned const threads : {1u, 2u, 7u}) {
#else
        for (unsigned const threads : {1u}) {
#endif
            std::fesetround(FE_UPWARD);
            grad_squares const found = sum_of_squares(executor({.threads = threads, .min_slice_elems = 1}), grad);
            std::fesetround(FE_TONEAREST);
            CHECK(found.sum == expected.sum);
            CHECK(found.nonfinite == expected.nonfinite);
        }
    }
    CHECK_THROWS_AS(sum_of_squares(executor(), static_cast<float const*>(nullptr), 1), invalid_argument);
}
