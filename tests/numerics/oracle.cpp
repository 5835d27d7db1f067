// SPDX-License-Identifier: Apache-2.0
// The oracle against the formula in double, and against what PyTorch's float32 formula loses on the same data.
#include <cmath>

#include <adamant/numerics/oracle.hpp>

#include "catch.hpp"

using namespace adamant;
using test::bits;
using test::from_bits;

namespace {

struct exact_element {
    double p, m, v;
};

// Adam and AdamW in double, written from the papers.
void exact_step(exact_element& e, double g, hyperparameters const& h, std::uint64_t t)
{
    if (h.mode == decay_mode::l2)
        g += h.weight_decay * e.p;
    if (h.mode == decay_mode::decoupled)
        e.p -= h.lr * h.weight_decay * e.p;
    e.m = h.beta1 * e.m + (1 - h.beta1) * g;
    e.v = h.beta2 * e.v + (1 - h.beta2) * g * g;
    double const n = static_cast<double>(t);
    double const m_hat = e.m / (1 - std::pow(h.beta1, n));
    double const v_hat = e.v / (1 - std::pow(h.beta2, n));
    e.p -= h.lr * m_hat / (std::sqrt(v_hat) + h.eps);
}

// The same as torch.optim.AdamW does it in float32: lerp for m, addcmul for v, sqrt(v) / sqrt(bias2) + eps, addcdiv.
void torch_step(oracle::element& e, float g, hyperparameters const& h, std::uint64_t t)
{
    if (h.mode == decay_mode::l2)
        g = g + static_cast<float>(h.weight_decay) * e.param;
    if (h.mode == decay_mode::decoupled)
        e.param = e.param * static_cast<float>(1 - h.lr * h.weight_decay);
    e.exp_avg = e.exp_avg + static_cast<float>(1 - h.beta1) * (g - e.exp_avg);
    e.exp_avg_sq = e.exp_avg_sq * static_cast<float>(h.beta2) + static_cast<float>(1 - h.beta2) * g * g;
    double const n = static_cast<double>(t);
    double const bias1 = 1 - std::pow(h.beta1, n);
    double const bias2 = 1 - std::pow(h.beta2, n);
    float const denominator = std::sqrt(e.exp_avg_sq) / static_cast<float>(std::sqrt(bias2)) + static_cast<float>(h.eps);
    e.param = e.param + static_cast<float>(-(h.lr / bias1)) * (e.exp_avg / denominator);
}

} // namespace

namespace {

struct errors {
    double ours = 0;
    double torchs = 0;
};

// Root mean squares of the error in param after 100 steps, over many elements.
errors measure(hyperparameters const& h)
{
    test::random_bits random(7);
    errors sum;
    int const elements = 3000;
    std::vector<coefficients> coefficients_of;
    for (std::uint64_t t = 1; t <= 100; ++t)
        coefficients_of.push_back(make_coefficients(h, t));
    for (int element = 0; element < elements; ++element) {
        float const start = test::with_exponent(random(), -8, -2);
        exact_element exact{static_cast<double>(start), 0, 0};
        oracle::element found{start, 0, 0};
        oracle::element torch = found;
        for (std::uint64_t t = 1; t <= 100; ++t) {
            float const g = test::with_exponent(random(), -14, -7);
            exact_step(exact, static_cast<double>(g), h, t);
            found = oracle::update(found, g, coefficients_of[t - 1]);
            torch_step(torch, g, h, t);
        }
        auto const square = [](double x) { return x * x; };
        sum.ours += square(static_cast<double>(found.param) - exact.p);
        sum.torchs += square(static_cast<double>(torch.param) - exact.p);
    }
    return {std::sqrt(sum.ours / elements), std::sqrt(sum.torchs / elements)};
}

} // namespace

// Both are some roundings of the same size, so the one is below the other by chance; 1 % covers the chance.
TEST_CASE("decay_mode: the oracle is no further from exact Adam and AdamW than PyTorch's formula, with large decay too", "[slow]")
{
    for (decay_mode const mode : {decay_mode::decoupled, decay_mode::l2})
        for (double const weight_decay : {0.0, 0.01, 0.5})
            for (double const lr : {1e-4, 1e-2}) {
                // Betas that are floats: what is compared is the arithmetic, not the rounding of the betas.
                errors const e = measure({.lr = lr, .beta1 = 0.9f, .beta2 = 0.999f, .weight_decay = weight_decay, .mode = mode});
                INFO("mode " << static_cast<int>(mode) << " decay " << weight_decay << " lr " << lr << " ours " << e.ours
                             << " torch's " << e.torchs);
                CHECK(e.ours <= e.torchs * 1.01);
                CHECK(e.ours > 0);
            }
}

// 0.9f + 0.1f is not 1, and a first moment made of the two carries 2.2e-7 of that. PyTorch's lerp does not. It shows where
// a parameter moves by its own size in 100 steps, and stays a matter of units in the last place.
TEST_CASE("decay_mode: with betas that no float holds the oracle is as close at usual learning rates, and near at large ones", "[slow]")
{
    for (decay_mode const mode : {decay_mode::decoupled, decay_mode::l2})
        for (double const lr : {1e-4, 1e-2}) {
            errors const e = measure({.lr = lr, .weight_decay = 0.01, .mode = mode});
            INFO("mode " << static_cast<int>(mode) << " lr " << lr << " ours " << e.ours << " torch's " << e.torchs);
            CHECK(e.ours <= e.torchs * (lr < 1e-3 ? 1.01 : 2.0));
        }
}

TEST_CASE("a hand-computed step")
{
    // beta1 = beta2 = 0.5, step 1: m' = 0.5, v' = 0.5, bias corrections 0.5: m_hat = 1, v_hat = 1, p' = 1 - lr.
    hyperparameters const h{.lr = 0.25, .beta1 = 0.5, .beta2 = 0.5, .eps = 0};
    oracle::element const e = oracle::update({1, 0, 0}, 1, make_coefficients(h, 1));
    CHECK(e.exp_avg == 0.5f);
    CHECK(e.exp_avg_sq == 0.5f);
    CHECK(std::fabs(e.param - 0.75f) <= 0x1p-24f);
}

TEST_CASE("every NaN result is the canonical one, and infinities pass")
{
    coefficients const c = make_coefficients({}, 1);
    for (std::uint32_t const g : {0x7fc00001u, 0xffc00000u, 0x7f800001u}) {
        oracle::element const e = oracle::update({1, 0, 0}, from_bits(g), c);
        CHECK(bits(e.param) == canonical_nan_bits);
        CHECK(bits(e.exp_avg) == canonical_nan_bits);
        CHECK(bits(e.exp_avg_sq) == canonical_nan_bits);
    }
    oracle::element const e = oracle::update({1, 0, 0}, from_bits(0xff800000u), c);
    CHECK(bits(e.param) == canonical_nan_bits); // -inf / inf
    CHECK(bits(e.exp_avg) == 0xff800000u);
    CHECK(bits(e.exp_avg_sq) == 0x7f800000u);
}

TEST_CASE("subnormal_cliff: an idle moment reaches zero instead of staying at a subnormal")
{
    hyperparameters const h{};
    oracle::element e{0.5f, 1e-30f, 1e-30f};
    for (std::uint64_t t = 1; t <= 500; ++t)
        e = oracle::update(e, 0, make_coefficients(h, t));
    CHECK(bits(e.exp_avg) == 0);
}

TEST_CASE("rounding to bfloat16 is flushed like everything else")
{
    CHECK(oracle::stored<bfloat16>(from_bits(0x00808000)).bits == 0); // a tie, to 2^-126, which is flushed
    CHECK(oracle::stored<bfloat16>(from_bits(0x80808000)).bits == 0x8000);
    CHECK(oracle::stored<bfloat16>(from_bits(0x00808001)).bits == 0x0081);
    CHECK(oracle::stored<float16>(from_bits(0x33800000)).bits == 0x0001); // 2^-24, float16's smallest: kept
}

TEST_CASE("the sum of squares is that of the written order")
{
    test::random_bits random(3);
    for (std::size_t const n : test::sizes{0, 1, 15, 16, 17, 100, 4096}) {
        std::vector<float> grad(n);
        double partial[16] = {};
        for (std::size_t i = 0; i < n; ++i) {
            grad[i] = test::with_exponent(random(), -10, 10);
            partial[i % 16] += static_cast<double>(grad[i]) * static_cast<double>(grad[i]);
        }
        auto const add = [&](int a, int b) { return partial[a] + partial[b]; };
        double const expected = ((add(0, 8) + add(4, 12)) + (add(2, 10) + add(6, 14))) +
                                ((add(1, 9) + add(5, 13)) + (add(3, 11) + add(7, 15)));
        grad_squares const found = oracle::block_squares<float>(reinterpret_cast<std::byte const*>(grad.data()), n);
        CHECK(found.sum == expected);
        CHECK(found.nonfinite == 0);
    }
}
