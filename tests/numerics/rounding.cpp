// SPDX-License-Identifier: Apache-2.0
// Stochastic rounding: that it rounds stochastically as it should, and that its chance is random enough.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <adamant/hyperparameters.hpp>
#include <adamant/detail/numerics/rounding.hpp>

#include "catch.hpp"

using namespace adamant;
using test::bits;
using test::from_bits;

namespace {

enum class array { exp_avg_sq, param };

// The random number of an element, from 0 to 65535.
unsigned number(std::uint64_t seed, std::uint64_t step, std::uint64_t param, std::size_t element,
                array of = array::exp_avg_sq)
{
    rounding_lines const lines = rounding_lines_at(rounding_key(seed, step), {param, 0}, element);
    return random_half(of == array::param ? lines.param : lines.exp_avg_sq, element);
}
// From -1/2 to 1/2, uniform: mean 0, variance 1/12.
double centred(unsigned random)
{
    return (random + 0.5) / 65536 - 0.5;
}
// How many standard deviations the mean of n products of two independent such numbers is from zero.
double deviations_of_products(double sum, std::size_t n)
{
    return sum / std::sqrt(static_cast<double>(n)) * 12;
}

} // namespace

TEST_CASE("stochastic rounding: exact values stay, others go to a neighbor, as often as they lie near it")
{
    for (std::uint32_t const upper : {0x3f80u, 0x3f81u, 0xbf80u, 0x0081u, 0x7f7fu, 0xff7fu, 0x4000u})
        for (std::uint32_t const lower : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
            float const x = from_bits(upper << 16 | lower);
            std::size_t up = 0;
            for (std::uint32_t random = 0; random < 0x10000; ++random) {
                bfloat16 const found = stochastically_rounded(x, static_cast<std::uint16_t>(random));
                REQUIRE((found.bits == upper || found.bits == upper + 1));
                up += found.bits != upper;
            }
            // Never to infinity.
            CHECK(up == ((upper & 0x7fff) == 0x7f7f ? 0 : lower));
        }
}

TEST_CASE("stochastic rounding: infinities, NaNs, zeros, and what is flushed")
{
    for (std::uint16_t const random : {std::uint16_t{0}, std::uint16_t{0xffff}, std::uint16_t{0x8000}}) {
        CHECK(stochastically_rounded(INFINITY, random).bits == 0x7f80);
        CHECK(stochastically_rounded(-INFINITY, random).bits == 0xff80);
        CHECK(stochastically_rounded(from_bits(0xffc12345u), random).bits == 0x7fc0);
        CHECK(stochastically_rounded(from_bits(0x7f800001u), random).bits == 0x7fc0);
        CHECK(stochastically_rounded(0.0f, random).bits == 0);
        CHECK(stochastically_rounded(-0.0f, random).bits == 0x8000);
        CHECK(stochastically_rounded(0x1p-126f, random).bits == 0);
        CHECK(stochastically_rounded(from_bits(0x80800000u), random).bits == 0x8000);
    }
    CHECK(stochastically_rounded(from_bits(0x00801234u), 0).bits == 0);
    CHECK(stochastically_rounded(from_bits(0x00801234u), 0xffff).bits == 0x0081);
}

TEST_CASE("random numbers are a contract: these never change")
{
    CHECK(rounding_key(0, 1) == 0x2a98f501af37e97fu);
    CHECK(param_number_of("layers.0.weight") == 0x718a5d75ec8bf0d9u);
    CHECK(number(0, 1, 0, 0) == 26369u);
    CHECK(number(1, 2, 3, 4) == 11656u);
    CHECK(number(1, 2, 3, 65535, array::param) == 37542u);
    CHECK(number(1, 2, 3, 65536, array::param) == 700u);
}

TEST_CASE("an element's random number does not depend on where its shard was cut")
{
    test::random_bits random(3);
    for (int round = 0; round < 20000; ++round) {
        std::uint64_t const key = random();
        std::uint64_t const param = random();
        std::size_t const element = random.below(5 * rounding_line_elems);
        std::size_t const begin = random.below(element + 1);
        rounding_lines const whole = rounding_lines_at(key, {param, 0}, element);
        rounding_lines const cut = rounding_lines_at(key, {param, begin}, element - begin);
        REQUIRE(random_half(whole.param, element) == random_half(cut.param, element - begin));
        REQUIRE(random_half(whole.exp_avg_sq, element) == random_half(cut.exp_avg_sq, element - begin));
        std::size_t const end = rounding_line_end({param, begin}, element - begin) + begin;
        REQUIRE(end % rounding_line_elems == 0);
        REQUIRE((end > element && end - element <= rounding_line_elems));
    }
}

TEST_CASE("random numbers are uniform: every value as often as chance has it")
{
    // Pearson's test over all 65536 values: chi squared has that many degrees of freedom, a variance of twice that.
    std::vector<unsigned> count(65536);
    std::size_t const lines = 512;
    for (std::size_t line = 0; line < lines; ++line) {
        rounding_lines const of = rounding_lines_at(rounding_key(5, line + 1), {line * 17, 0}, 0);
        for (std::size_t i = 0; i < rounding_line_elems; ++i)
            ++count[random_half(of.exp_avg_sq, i)];
    }
    double mean = 0;
    double chi_squared = 0;
    for (std::size_t value = 0; value < count.size(); ++value) {
        mean += centred(static_cast<unsigned>(value)) * count[value];
        double const off = count[value] - static_cast<double>(lines);
        chi_squared += off * off / static_cast<double>(lines);
    }
    CHECK(std::fabs(chi_squared - 65535) < 5 * std::sqrt(2 * 65535.0));
    CHECK(std::fabs(mean) < 5 * std::sqrt(static_cast<double>(lines * rounding_line_elems) / 12));
}

TEST_CASE("random numbers do not correlate: neighbors, distances, steps, params, arrays, seeds")
{
    // Products of centred numbers, over lines that are independent: their sum is within five standard deviations.
    std::size_t const lines = 400;
    std::size_t const each = 1000;
    auto const check = [&](char const* what, auto const& first, auto const& second) {
        double sum = 0;
        for (std::size_t line = 0; line < lines; ++line)
            for (std::size_t i = 0; i < each; ++i)
                sum += centred(first(line, i)) * centred(second(line, i));
        INFO(what);
        CHECK(std::fabs(deviations_of_products(sum, lines * each)) < 5);
    };
    auto const usual = [](std::size_t line, std::size_t i) { return number(1, line + 1, 9, i); };
    for (std::size_t const apart : test::sizes{1, 2, 3, 4, 7, 8, 16, 32, 64, 128, 1024, 4096, 32768})
        check("distance", usual, [&](std::size_t line, std::size_t i) { return usual(line, i + apart); });
    check("step", usual, [](std::size_t line, std::size_t i) { return number(1, line + 2, 9, i); });
    check("param", usual, [](std::size_t line, std::size_t i) { return number(1, line + 1, 10, i); });
    check("seed", usual, [](std::size_t line, std::size_t i) { return number(2, line + 1, 9, i); });
    check("array", usual, [](std::size_t line, std::size_t i) { return number(1, line + 1, 9, i, array::param); });
    check("line", usual,
          [](std::size_t line, std::size_t i) { return number(1, line + 1, 9, i + rounding_line_elems); });
    // A seed and a step do not make up for each other.
    check("seed and step", usual, [](std::size_t line, std::size_t i) { return number(0, line + 2, 9, i); });
}

TEST_CASE("sums of roundings: as large as those of independent ones, over elements and over steps")
{
    // The variance of the sum of 64 neighbors' errors, and of one element's over 64 steps, relative to 64 / 12.
    double over_elements = 0;
    double over_steps = 0;
    std::size_t const rounds = 20000;
    for (std::size_t round = 0; round < rounds; ++round) {
        double elements = 0;
        double steps = 0;
        for (std::size_t i = 0; i < 64; ++i) {
            elements += centred(number(4, round + 1, 2, round * 64 + i));
            steps += centred(number(4, round * 64 + i + 1, 2, 11));
        }
        over_elements += elements * elements;
        over_steps += steps * steps;
    }
    double const expected = 64.0 / 12 * rounds;
    // The estimate's own standard deviation is sqrt(2 / rounds), one percent.
    CHECK(std::fabs(over_elements / expected - 1) < 0.05);
    CHECK(std::fabs(over_steps / expected - 1) < 0.05);
}

// User reports: TransformerEngine #1465, pytorch #146542.
TEST_CASE("a bfloat16 second moment decreases with stochastic rounding, and not by rounding to nearest", "[stuck_bf16]")
{
    auto const decayed = [](bool stochastic) {
        double sum = 0;
        std::size_t const elements = 256;
        for (std::size_t i = 0; i < elements; ++i) {
            float v = 1;
            for (std::uint64_t step = 1; step <= 1000; ++step) {
                float const next = v * 0.999f;
                v = widen(stochastic ? stochastically_rounded(next, static_cast<std::uint16_t>(number(0, step, 1, i)))
                                     : narrow<bfloat16>(next));
            }
            sum += static_cast<double>(v);
        }
        return sum / elements;
    };
    CHECK(decayed(false) > 0.999);
    CHECK(std::fabs(decayed(true) / std::pow(0.999, 1000) - 1) < 0.02);
}
