// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "catch.hpp"

using namespace adamant;
using test::bits;
using test::from_bits;

TEST_CASE("widening float16 is exact for each of its values")
{
    for (std::uint32_t h = 0; h < 0x10000; ++h) {
        float16 const x{static_cast<std::uint16_t>(h)};
        int const exponent = static_cast<int>(h >> 10 & 31);
        double const mantissa = static_cast<double>(h & 0x3ff);
        double const sign = h & 0x8000 ? -1 : 1;
        if (exponent == 31) {
            REQUIRE(std::isnan(widen(x)) == (mantissa != 0));
            REQUIRE(std::signbit(widen(x)) == (sign < 0));
        } else {
            double const value =
                exponent == 0 ? mantissa * 0x1p-24 : (1024 + mantissa) * std::ldexp(1.0, exponent - 25);
            REQUIRE(static_cast<double>(widen(x)) == sign * value);
            REQUIRE(std::signbit(widen(x)) == (sign < 0));
        }
    }
}

TEST_CASE("widening bfloat16 is its bits in the upper half of a float")
{
    for (std::uint32_t h = 0; h < 0x10000; ++h)
        REQUIRE(bits(widen(bfloat16{static_cast<std::uint16_t>(h)})) == h << 16);
}

// The nearest value of the 16-bit type by search over its neighbors in double, ties to the even one.
template <class T>
static std::uint16_t nearest(float x, std::uint16_t infinity)
{
    if (std::isnan(x))
        return infinity == 0x7c00 ? 0x7e00 : 0x7fc0;
    auto const sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
    double const abs = std::fabs(static_cast<double>(x));
    std::uint32_t low = 0;
    std::uint32_t high = infinity;
    // An infinity stands for the value that would follow the largest finite one.
    auto const value = [&](std::uint32_t h) {
        if (h < infinity)
            return static_cast<double>(widen(T{static_cast<std::uint16_t>(h)}));
        return infinity == 0x7c00 ? 0x1p16 : 0x1p128;
    };
    if (abs >= value(infinity))
        return static_cast<std::uint16_t>(sign | infinity);
    while (high - low > 1) {
        std::uint32_t const middle = (low + high) / 2;
        (value(middle) <= abs ? low : high) = middle;
    }
    double const below = abs - value(low);
    double const above = value(high) - abs;
    bool const up = above < below || (above == below && low % 2 == 1);
    return static_cast<std::uint16_t>(sign | (up ? high : low));
}

TEST_CASE("narrowing rounds to nearest even, to infinity and to a quiet NaN")
{
    test::random_bits random(1);
    for (test::values const kind : test::all_values)
        for (int i = 0; i < 20000; ++i) {
            float const x = test::value_of(kind, random, -30, 20);
            REQUIRE(narrow<float16>(x).bits == nearest<float16>(x, 0x7c00));
            REQUIRE(narrow<bfloat16>(x).bits == nearest<bfloat16>(x, 0x7f80));
        }
    // Every tie and its neighbors.
    for (std::uint32_t h = 0; h < 0x7f80; ++h)
        for (std::uint32_t near : {0x7fffu, 0x8000u, 0x8001u}) {
            float const x = from_bits(h << 16 | near);
            REQUIRE(narrow<bfloat16>(x).bits == nearest<bfloat16>(x, 0x7f80));
        }
    for (std::uint32_t h = 0; h < 0x7c00; ++h) {
        auto const tie = static_cast<float>(
            (static_cast<double>(widen(float16{static_cast<std::uint16_t>(h)})) +
             (h == 0x7bff ? 0x1p16 : static_cast<double>(widen(float16{static_cast<std::uint16_t>(h + 1)})))) /
            2);
        for (std::uint32_t const near : {bits(tie) - 1, bits(tie), bits(tie) + 1})
            REQUIRE(narrow<float16>(from_bits(near)).bits == nearest<float16>(from_bits(near), 0x7c00));
    }
}

TEST_CASE("flush makes signed zeros of everything up to the smallest normal number")
{
    CHECK(bits(flush(from_bits(0x00800000))) == 0);
    CHECK(bits(flush(from_bits(0x80800000))) == 0x80000000);
    CHECK(bits(flush(from_bits(0x00800001))) == 0x00800001);
    CHECK(bits(flush(from_bits(1))) == 0);
    CHECK(bits(flush(from_bits(0x80000001))) == 0x80000000);
    CHECK(bits(flush(from_bits(0xffc12345))) == 0xffc12345);
    CHECK(flush(bfloat16{0x0080}).bits == 0);
    CHECK(flush(bfloat16{0x8080}).bits == 0x8000);
    CHECK(flush(bfloat16{0x0081}).bits == 0x0081);
    CHECK(flush(float16{0x8001}).bits == 0x8001); // float16's own subnormals are kept
}

namespace {
// The master's bits, weight and low half by the definition; and that they come back.
bool splits_rightly(std::uint32_t own)
{
    std::uint32_t const master = (own & float_abs_mask) > float_infinity_bits ? canonical_nan_bits : own;
    split_parts const parts = split_master(from_bits(own));
    auto const low = static_cast<std::int16_t>(parts.low.bits);
    std::int64_t const sum = (std::int64_t{parts.weight.bits} << 16) + low;
    return sum == std::int64_t{master} && bits(joined_master(parts.weight, parts.low)) == master;
}
} // namespace

// User reports: apex #1842, AReno #498.
TEST_CASE("a master's halves add up to it, and its weight is the nearest bfloat16, ties away from zero", "[split_ties]")
{
    test::random_bits random(12);
    for (std::uint32_t upper = 0; upper < 0x10000; ++upper)
        for (std::uint32_t const lower :
             {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, static_cast<std::uint32_t>(random.below(0x10000))})
            REQUIRE(splits_rightly(upper << 16 | lower));
    CHECK(split_master(from_bits(0x3f808000)).weight.bits == 0x3f81); // a tie, which is even below
    CHECK(split_master(from_bits(0x3f818000)).weight.bits == 0x3f82);
    CHECK(split_master(from_bits(0xbf808000)).weight.bits == 0xbf81);
    CHECK(split_master(from_bits(0x7f7fffff)).weight.bits == 0x7f80);
    CHECK(bits(joined_master({0x7f80}, {0xffff})) == 0x7f7fffff);
}

// User reports: apex #1842, AReno #498.
TEST_CASE("splitting is one to one for every master", "[split_ties][big][once]")
{
    std::uint32_t wrong = 0;
    for (std::uint64_t own = 0; own < std::uint64_t{1} << 32; own += test::sampling())
        wrong += !splits_rightly(static_cast<std::uint32_t>(own));
    CHECK(wrong == 0);
}
