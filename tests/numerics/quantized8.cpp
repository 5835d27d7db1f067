// SPDX-License-Identifier: Apache-2.0
// Moments of 8 bits: what detail/numerics/quantized8.hpp promises of codes and scales.
#include <adamant/detail/numerics/quantized8.hpp>

#include <cmath>
#include <vector>

#include "catch.hpp"

using namespace adamant;

namespace {

struct group {
    std::byte bytes[sizeof(quantized8)];

    group(code_curve const& on, std::vector<float> const& x, bool stochastic = false,
          rounding_line const& line = {1, 3})
    {
        encode_group(on, x.data(), x.size(), stochastic, line, bytes);
    }
    [[nodiscard]] float scale() const { return load_unaligned<float>(bytes + quantized_group_elems); }
    [[nodiscard]] std::vector<float> decoded(code_curve const& on) const
    {
        std::vector<float> x(quantized_group_elems);
        on.least == 0 ? decode_exp_avg(bytes, x.data()) : decode_exp_avg_sq(bytes, x.data());
        return x;
    }
    [[nodiscard]] int code(code_curve const& on, std::size_t i) const
    {
        auto const own = static_cast<std::uint8_t>(bytes[i]);
        return on.least == 0 ? static_cast<std::int8_t>(own) : own;
    }
};

// 64 values that spread over some octaves below `largest`.
std::vector<float> spread(test::random_bits& random, bool with_signs, int octaves, float largest)
{
    std::vector<float> x(quantized_group_elems);
    for (float& each : x) {
        each = test::with_exponent(random() & (with_signs ? ~0ull : ~0x80000000ull), -octaves, -1) * largest;
        if (random.below(20) == 0)
            each = 0;
    }
    x[random.below(x.size())] = largest;
    return x;
}

bool same_bits(group const& a, group const& b)
{
    return std::memcmp(a.bytes, b.bytes, sizeof a.bytes) == 0;
}

} // namespace

TEST_CASE("8 bits: the curves are what powers of two are made of")
{
    // Whole powers, and what lies between them on straight lines: by arithmetic instead of bits.
    for (int q = 1; q <= 255; ++q) {
        auto const line = [&](unsigned by) { // of the logarithm to base 2, from octave to octave
            int const e = static_cast<int>(std::log2(q));
            double const pieces = (q / std::exp2(e) - 1) * (1 << by);
            double const whole = std::floor(pieces);
            return std::exp2((e << by) + whole) * (1 + pieces - whole);
        };
        if (q <= 127) {
            REQUIRE(decoded_exp_avg(static_cast<std::uint8_t>(q), 1.0f) == line(1) * 0x1p-14);
            REQUIRE(decoded_exp_avg(static_cast<std::uint8_t>(-q), 2.0f) == line(1) * -0x1p-13);
        }
        REQUIRE(decoded_exp_avg_sq(static_cast<std::uint8_t>(q), 1.0f) == line(2) * 0x1p-32);
    }
    CHECK(decoded_exp_avg(0, 1.0f) == 0);
    CHECK(decoded_exp_avg(127, 1.0f) == 63.0f / 64);
    CHECK(decoded_exp_avg_sq(255, 1.0f) == 63.0f / 64);
}

TEST_CASE("8 bits: codes are monotone, for a dense sweep, and stand still when they are stored again")
{
    for (code_curve const& on : {exp_avg_curve, exp_avg_sq_curve}) {
        int last = on.least;
        float const inverse = inverse_of_scale(1.0f);
        for (std::uint32_t bits = test::bits(0x1p-40f); bits <= test::bits(63.0f / 64); bits += 0x101) {
            int const code = encoded(on, test::from_bits(bits), inverse, false, 0);
            REQUIRE((code == last || code == last + 1));
            last = code;
        }
        CHECK(last == on.most);
    }
    test::random_bits random(1);
    for (int round = 0; round < 4000; ++round) {
        float const largest = test::with_exponent(random() & ~0x80000000ull, -60, 100);
        for (code_curve const& on : {exp_avg_curve, exp_avg_sq_curve}) {
            bool const is_signed = on.least == 0;
            group const once(on, spread(random, is_signed, 20, largest), round % 2 == 0);
            for (std::uint32_t const start : {0u, 0xffffffffu, static_cast<std::uint32_t>(random())})
                for (bool const stochastic : {false, true})
                    REQUIRE(same_bits(once, group(on, once.decoded(on), stochastic, {start, 0x10001})));
        }
    }
}

TEST_CASE("8 bits: every code comes back from what it stands for")
{
    for (code_curve const& on : {exp_avg_curve, exp_avg_sq_curve})
        for (int q = on.least == 0 ? -on.most : on.least; q <= on.most; ++q) {
            std::vector<float> x(2, on.least == 0 ? decoded_exp_avg(127, 1.0f) : decoded_exp_avg_sq(255, 1.0f));
            auto const code = static_cast<std::uint8_t>(q);
            x[1] = on.least == 0 ? decoded_exp_avg(code, 1.0f) : decoded_exp_avg_sq(code, 1.0f);
            for (int stochastic = 0; stochastic < 2; ++stochastic) {
                group const stored(on, x, stochastic != 0, {0xffffffffu, 1});
                CHECK(stored.scale() == 1);
                CHECK(stored.code(on, 0) == on.most);
                CHECK(stored.code(on, 1) == q);
            }
        }
}

TEST_CASE("8 bits: a code is next to its number, and the mean of those stochastically is the number")
{
    test::random_bits random(2);
    for (code_curve const& on : {exp_avg_curve, exp_avg_sq_curve}) {
        bool const is_signed = on.least == 0;
        auto const value = [&](int code) {
            auto const own = static_cast<std::uint8_t>(code);
            return static_cast<double>(is_signed ? decoded_exp_avg(own, 1) : decoded_exp_avg_sq(own, 1));
        };
        float const inverse = inverse_of_scale(1);
        for (int round = 0; round < 20000; ++round) {
            float const x = test::with_exponent(random() & ~0x80000000ull, is_signed ? -16 : -34, -2);
            auto const exact = static_cast<double>(x);
            int const nearest = encoded(on, x, inverse, false, 0);
            REQUIRE((nearest == on.least || value(nearest - 1) < exact));
            REQUIRE(value(nearest + 1) > exact);
            double mean = 0;
            int least = on.most, most = 0;
            for (unsigned byte = 0; byte < 256; ++byte) {
                int const code = encoded(on, x, inverse, true, static_cast<std::uint16_t>(byte * 0x101));
                least = std::min(least, code);
                most = std::max(most, code);
                mean += value(code) / 256;
            }
            REQUIRE(most - least <= 1);
            REQUIRE((nearest == least || nearest == most || most == 0)); // stochastically, below code 1 is zero
            if (least >= 4) // from where on all codes lie on straight lines; 1/512 of their distance is lost
                REQUIRE(std::fabs(mean - exact) <= (value(least + 1) - value(least)) / 500);
        }
    }
}

TEST_CASE("8 bits: the largest of a group comes back, but for what its scale is rounded by")
{
    test::random_bits random(4);
    for (int round = 0; round < 20000; ++round) {
        float const largest = test::with_exponent(random() & ~0x80000000ull, -79, 126);
        for (code_curve const& on : {exp_avg_curve, exp_avg_sq_curve}) {
            group const stored(on, {0.0f, largest}, true, {static_cast<std::uint32_t>(random()), 1});
            if (largest <= 0x1p125f)
                REQUIRE(stored.code(on, 1) == on.most);
            REQUIRE(std::fabs(stored.decoded(on)[1] / largest - 1) <= 0x1p-18f);
        }
    }
}

TEST_CASE("8 bits: zeros, small numbers, infinities and NaNs")
{
    for (code_curve const& on : {exp_avg_curve, exp_avg_sq_curve}) {
        group const zeros(on, std::vector<float>(64), true);
        CHECK(test::bits(zeros.scale()) == 0);
        for (float const x : zeros.decoded(on))
            REQUIRE(test::bits(x) == 0);
        for (float const bad : {INFINITY, NAN, -NAN, std::numeric_limits<float>::max()}) {
            std::vector<float> x(64, 1.0f);
            x[63] = bad;
            group const spoilt(on, x, true);
            CHECK(test::bits(spoilt.scale()) == canonical_nan_bits);
            for (float const each : spoilt.decoded(on))
                REQUIRE(std::isnan(each));
        }
    }
    // A first moment of almost nothing is nothing.
    CHECK(test::bits(group(exp_avg_curve, std::vector<float>(64, 0x1p-81f)).scale()) == 0);
    std::vector<float> x(64, 0x1.ffp-15f * 63 / 64);
    x[0] = 63.0f / 64;
    for (std::uint32_t start = 0; start < 1000; ++start)
        REQUIRE(group(exp_avg_curve, x, true, {start, 0x1003}).code(exp_avg_curve, 1) == 0);
    CHECK(group(exp_avg_curve, x).code(exp_avg_curve, 1) == 1); // to nearest
}

TEST_CASE("8 bits: thresholds of scales, one number above and below each")
{
    auto const scale = [](code_curve const& on, std::uint32_t largest) {
        return test::bits(scale_of_group(on, largest));
    };
    std::uint32_t const least = test::bits(0x1p-80f);
    // First moments below 2^-80 are zeros.
    CHECK(scale(exp_avg_curve, least - 1) == 0);
    CHECK(scale(exp_avg_curve, least) == test::bits(0x1.04108p-80f)); // 64/63 of 2^-80, to 18 bits
    // Second moments are zeros only where a step flushes them. Scales are 2^-80 up to 63/64 of that.
    CHECK(scale(exp_avg_sq_curve, float_min_normal_bits) == 0);
    CHECK(scale(exp_avg_sq_curve, float_min_normal_bits + 1) == least);
    CHECK(scale(exp_avg_sq_curve, test::bits(0x1.f8p-81f)) == least);
    CHECK(scale(exp_avg_sq_curve, test::bits(0x1.f8p-81f) + 0x40) > least);
    for (code_curve const& on : {exp_avg_curve, exp_avg_sq_curve}) {
        CHECK(scale(on, 0) == 0);
        // The first scale of 2^128 or above, and so the first that is none, is that of 63/64 of 2^128 but for rounding.
        std::uint32_t last = test::bits(0x1.f7p127f);
        while (scale(on, last + 1) != canonical_nan_bits)
            ++last;
        CHECK(scale(on, last) == test::bits(0x1.ffff8p127f));
        CHECK(std::fabs(test::from_bits(last) / 0x1.f8p127f - 1) < 0x1p-18f);
        for (std::uint32_t const bad : {0x7f7fffffu, float_infinity_bits, float_abs_mask})
            CHECK(scale(on, bad) == canonical_nan_bits);
    }
    for (float const s : {0.0f, 0x1p-81f, 0x1p-80f})
        CHECK(inverse_of_scale(s) == 0x1p80f);
    for (float const s : {0x1p125f, 0x1.00008p125f, 0x1p127f})
        CHECK(inverse_of_scale(s) == 0x1p-125f);
}

TEST_CASE("8 bits: codes go to +-127 where the scale is zero and a first moment is just below 2^-80")
{
    for (std::uint32_t largest = test::bits(0x1.f8p-81f); largest < test::bits(0x1p-80f); largest += 0x101)
        for (bool const stochastic : {false, true})
            for (std::uint32_t const start : {0u, 0xffffffffu, 0x12345678u}) {
                float const x = test::from_bits(largest);
                group const stored(exp_avg_curve, {x, -x, x / 2, -x / 2}, stochastic, {start, 0x10001});
                REQUIRE(test::bits(stored.scale()) == 0);
                REQUIRE(stored.code(exp_avg_curve, 0) == 127);
                REQUIRE(stored.code(exp_avg_curve, 1) == -127);
                for (float const each : stored.decoded(exp_avg_curve))
                    REQUIRE(each == 0);
            }
}

TEST_CASE("a second moment that lives is never zero, and never too small for a fast path", "[v_rounds_to_zero]")
{
    for (float const v : {0x1p-125f, 0x1p-112f, 0x1p-90f, 0x1p-80f, 1.0f, 0x1p126f}) {
        std::vector<float> x(64);
        x[5] = v;
        for (bool const stochastic : {false, true})
            for (float const each : group(exp_avg_sq_curve, x, stochastic).decoded(exp_avg_sq_curve))
                REQUIRE(each >= 0x1p-112f); // the smallest
    }
}

TEST_CASE("8 bits: signs do not count")
{
    test::random_bits random(3);
    for (int round = 0; round < 500; ++round) {
        std::vector<float> x = spread(random, true, 20, 3.0f);
        group const plus(exp_avg_curve, x);
        for (float& each : x)
            each = -each;
        group const minus(exp_avg_curve, x);
        for (std::size_t i = 0; i < x.size(); ++i)
            REQUIRE(plus.code(exp_avg_curve, i) == -minus.code(exp_avg_curve, i));
    }
}
