// SPDX-License-Identifier: Apache-2.0
#include <cfenv>
#include <cmath>
#include <limits>

#include <adamant/hyperparameters.hpp>

#include "catch.hpp"

using namespace adamant;

static bool same(coefficients const& a, coefficients const& b)
{
    return std::memcmp(&a, &b, offsetof(coefficients, rounding)) == 0 && a.rounding == b.rounding;
}

TEST_CASE("coefficients are those of the formula, rounded once")
{
    hyperparameters const usual_adamw{
        .lr = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .mode = decay_mode::decoupled};
    for (std::uint64_t t : {1ul, 2ul, 3ul, 10ul, 1000ul, 123456ul, 10000000000ul}) {
        coefficients const c = make_coefficients(usual_adamw, t, {.loss_scale = 65536, .clip_coefficient = 0.5});
        auto const n = static_cast<long double>(t);
        CHECK(c.beta1 == 0.9f);
        CHECK(c.beta2 == 0.95f);
        CHECK(c.one_minus_beta1 == static_cast<float>(1 - 0.9));
        CHECK(c.one_minus_beta2 == static_cast<float>(1 - 0.95));
        // In long double, so off by less than a float's rounding but in the rarest cases; these t are none of them.
        CHECK(c.inv_sqrt_bias2 == static_cast<float>(1 / std::sqrt(1 - std::pow(0.95L + (0.95 - 0.95L), n))));
        CHECK(c.neg_step_size == static_cast<float>(-3e-4 / (1 - std::pow(0.9L + (0.9 - 0.9L), n))));
        CHECK(c.eps == 1e-8f);
        CHECK(c.decay == static_cast<float>(1 - 3e-4 * 0.1));
        CHECK(c.l2 == 0);
        CHECK(c.grad_scale == static_cast<float>(0.5 / 65536));
    }
}

TEST_CASE("the power is right to the last bits over the whole life of a run")
{
    // Against long double's pow, itself good to a few units of 2^-64. What is
    // below 1e-90 may come out as 0: it is only ever taken from 1.
    for (double const beta : {0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 1 - 0x1p-24})
        for (std::uint64_t t = 1; t < 5000000; t = t * 5 / 4 + 1) {
            auto const expected =
                static_cast<double>(std::pow(static_cast<long double>(beta), static_cast<long double>(t)));
            double found[2];
            detail::powers({beta, 0.9}, t, found);
            REQUIRE(std::fabs(found[0] - expected) <= std::fabs(expected) * 0x1p-51 + 1e-90);
            double turned[2];
            detail::powers({0.9, beta}, t, turned);
            REQUIRE((turned[0] == found[1] && turned[1] == found[0]));
        }
}

// User reports: DeepSpeed #7819, #1823, #1643.
TEST_CASE("coefficients depend on the step number alone, and match a product carried in long double", "[step_drift]")
{
    hyperparameters const hyper{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999};
    long double product1 = 1;
    long double product2 = 1;
    for (std::uint64_t t = 1; t <= 20000; ++t) {
        product1 *= static_cast<long double>(0.9);
        product2 *= static_cast<long double>(0.999);
        coefficients const c = make_coefficients(hyper, t);
        REQUIRE(same(c, make_coefficients(hyper, t)));
        auto const close = [](float x, long double y) {
            return std::fabs(static_cast<long double>(x) / y - 1) < 0x1p-23L;
        };
        REQUIRE(close(c.neg_step_size, -1e-3L / (1 - product1)));
        REQUIRE(close(c.inv_sqrt_bias2, 1 / std::sqrt(1 - product2)));
    }
}

TEST_CASE("without bias correction the step number does not matter")
{
    hyperparameters const hyper{.lr = 1e-3, .bias_correction = false};
    coefficients late = make_coefficients(hyper, 1000);
    CHECK(late.rounding.key != make_coefficients(hyper, 1).rounding.key);
    late.rounding = make_coefficients(hyper, 1).rounding;
    CHECK(same(make_coefficients(hyper, 1), late));
    CHECK(make_coefficients(hyper, 1).neg_step_size == -1e-3f);
    CHECK(make_coefficients(hyper, 1).inv_sqrt_bias2 == 1);
}

// User reports: DeepSpeed #5214, #493, bitsandbytes #2010.
TEST_CASE("L2 and decoupled decay go to different coefficients", "[decay_mode]")
{
    hyperparameters hyper{.lr = 0.5, .weight_decay = 0.25, .mode = decay_mode::l2};
    CHECK(make_coefficients(hyper, 1).l2 == 0.25f);
    CHECK(make_coefficients(hyper, 1).decay == 1);
    hyper.mode = decay_mode::decoupled;
    CHECK(make_coefficients(hyper, 1).l2 == 0);
    CHECK(make_coefficients(hyper, 1).decay == 0.875f);
    hyper.mode = decay_mode::unset;
    CHECK_THROWS_AS(make_coefficients(hyper, 1), invalid_argument);
    hyper.weight_decay = 0;
    CHECK_NOTHROW(make_coefficients(hyper, 1));
}

TEST_CASE("what cannot be is refused, by name")
{
    double const nan = std::numeric_limits<double>::quiet_NaN();
    double const inf = std::numeric_limits<double>::infinity();
    auto const refused = [](hyperparameters const& hyper, char const* key, grad_scaling const& scaling = {}) {
        try {
            (void)make_coefficients(hyper, 1, scaling);
        } catch (invalid_argument const& error) {
            INFO(error.what());
            CHECK(std::string(error.what()).find(key) != std::string::npos);
            return true;
        }
        return false;
    };
    for (double const bad : {nan, inf, -1e-9}) {
        CHECK(refused({.lr = bad}, "lr"));
        CHECK(refused({.eps = bad}, "eps"));
        CHECK(refused({.weight_decay = bad, .mode = decay_mode::l2}, "weight_decay"));
        CHECK(refused({}, "loss_scale", {.loss_scale = bad}));
        CHECK(refused({}, "clip_coefficient", {.clip_coefficient = bad}));
    }
    for (double const bad : {nan, inf, -0.1, 1.0, 1.5}) {
        CHECK(refused({.beta1 = bad}, "beta1"));
        CHECK(refused({.beta2 = bad}, "beta2"));
    }
    // Below 1, but 1 as a float: moments would never take a gradient up, or never forget one.
    for (double const one : {1 - 0x1p-25, 1 - 0x1p-53, 0.99999999}) {
        CHECK(static_cast<float>(one) == 1);
        CHECK(refused({.beta1 = one}, "beta1"));
        CHECK(refused({.beta2 = one}, "beta2"));
    }
    CHECK(make_coefficients({.beta2 = 1 - 0x1.000001p-25}, 1).beta2 == 1 - 0x1p-24f);
    CHECK(refused({}, "loss_scale", {.loss_scale = 0}));
    // Not zero, but zero or infinite as a float.
    CHECK(refused({.lr = 1e39}, "lr"));
    CHECK(refused({.lr = 1e38, .beta1 = 0.99}, "lr / (1 - beta1)"));
    CHECK(refused({.lr = 1e20, .weight_decay = 1e20, .mode = decay_mode::decoupled}, "lr * weight_decay"));
    for (double const tiny : {1e-300, 1e-42, 0x1p-126, 0x1.000001p-126}) {
        CHECK(refused({.beta1 = tiny}, "beta1"));
        CHECK(refused({.beta2 = tiny}, "beta2"));
        CHECK(refused({.eps = tiny}, "eps"));
        CHECK(refused({.weight_decay = tiny, .mode = decay_mode::l2}, "weight_decay"));
        CHECK(refused({}, "loss_scale", {.clip_coefficient = tiny}));
        CHECK(refused({}, "loss_scale", {.loss_scale = 1 / tiny}));
    }
    CHECK(refused({}, "loss_scale", {.loss_scale = 1e300}));
    CHECK(refused({}, "loss_scale", {.loss_scale = 1e-300}));
    CHECK(make_coefficients({}, 1, {.clip_coefficient = 0x1.000002p-126}).grad_scale == 0x1.000002p-126f);
    CHECK(refused({.mode = static_cast<decay_mode>(7)}, "mode"));
    CHECK_THROWS_AS(make_coefficients({}, 0), invalid_argument);
    CHECK_NOTHROW(make_coefficients({.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 0}, 1));
    CHECK_NOTHROW(make_coefficients({}, std::numeric_limits<std::uint64_t>::max()));
}

TEST_CASE("what passes at set-up is taken in every step, and a learning rate may decay to nothing")
{
    for (double lr = 1e-3; lr > 0; lr *= 1e-3)
        for (std::uint64_t const t : {1ul, 10ul, 100000ul}) {
            hyperparameters const hyper{.lr = lr, .weight_decay = 0.1, .mode = decay_mode::decoupled};
            validate(hyper);
            coefficients const c = make_coefficients(hyper, t);
            CHECK((lr < 1e-40 ? c.neg_step_size == 0 : lr < 1e-37 || c.neg_step_size < 0));
        }
    std::uint64_t seed = 5;
    auto const random = [&] { return seed = seed * 6364136223846793005u + 1442695040888963407u, seed >> 33; };
    auto const magnitude = [&] {
        return std::ldexp(1.0 + static_cast<double>(random() % 1024) / 1024, static_cast<int>(random() % 300) - 150);
    };
    for (int round = 0; round < 20000; ++round) {
        hyperparameters const hyper{.lr = magnitude(),
                                    .beta1 = std::min(magnitude(), 1 - 0x1p-24),
                                    .beta2 = std::min(magnitude(), 1 - 0x1p-24),
                                    .eps = magnitude(),
                                    .weight_decay = magnitude(),
                                    .mode = random() % 2 == 0 ? decay_mode::l2 : decay_mode::decoupled,
                                    .bias_correction = random() % 2 == 0};
        try {
            validate(hyper);
        } catch (invalid_argument const&) {
            continue;
        }
        coefficients const c = make_coefficients(hyper, 1 + random() % 50);
        for (float const each : {c.beta1, c.beta2, c.one_minus_beta1, c.one_minus_beta2, c.inv_sqrt_bias2, c.eps})
            REQUIRE((std::isfinite(each) && each > 0));
        REQUIRE((std::isfinite(c.neg_step_size) && std::isfinite(c.decay) && std::isfinite(c.l2)));
    }
}

TEST_CASE("the caller's rounding mode changes no coefficient")
{
    hyperparameters const hyper{.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1, .mode = decay_mode::decoupled};
    for (std::uint64_t t : {1ul, 7ul, 1000ul}) {
        coefficients const expected = make_coefficients(hyper, t, {.loss_scale = 3});
        for (int const mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
            std::fesetround(mode);
            coefficients const found = make_coefficients(hyper, t, {.loss_scale = 3});
            int const after = std::fegetround();
            std::fesetround(FE_TONEAREST);
            CHECK(same(found, expected));
            CHECK(after == mode);
        }
    }
}
