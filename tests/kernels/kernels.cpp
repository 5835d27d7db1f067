// SPDX-License-Identifier: Apache-2.0
// Every combination of element types, against the scalar reference implementation, bit for bit: on the tier that
// ADAMANT_ISA names, or on all that this CPU has. What takes most of the time, the reference, is then computed once.
#include <algorithm>
#include <cfenv>
#include <numeric>

#include <adamant/changes.hpp>
#include <adamant/detail/core/checksum.hpp>
#include <adamant/detail/kernels/dispatch.hpp>
#include <adamant/detail/kernels/guard.hpp>
#include <adamant/detail/step/column_scores.hpp>

#include "catch.hpp"
#include <adamant/formats.hpp>

using namespace adamant;

namespace {

// The arrays of one shard.
struct arrays {
    test::array param, grad, exp_avg, exp_avg_sq, weight_out;

    arrays(shard_format const& types, std::size_t n)
        : param(types.types[0], n), grad(types.types[1], n), exp_avg(types.types[2], n), exp_avg_sq(types.types[3], n),
          weight_out(types.types[4], n), is_split(has_split_param(types.types))
    {
    }
    // A copy whose arrays begin at these offsets.
    arrays(arrays const& other, std::size_t const (&offsets)[5])
        : param(other.param, offsets[0]), grad(other.grad, offsets[1]), exp_avg(other.exp_avg, offsets[2]),
          exp_avg_sq(other.exp_avg_sq, offsets[3]), weight_out(other.weight_out, offsets[4]), position(other.position),
          is_split(other.is_split)
    {
    }

    // The param itself, also where it is split in two.
    void set_param(std::size_t i, float x)
    {
        param.set(i, x);
        if (is_split)
            weight_out.set_bits(i, split_master(x).weight.bits);
    }
    [[nodiscard]] float get_param(std::size_t i) const
    {
        return is_split ? joined_master(load_unaligned<bfloat16>(weight_out.data() + 2 * i),
                                        load_unaligned<split_float32>(param.data() + 2 * i))
                        : param.get(i);
    }
    void fill(test::values kind, test::random_bits& random)
    {
        for (std::size_t i = 0; i < param.size(); ++i) {
            // Adversarial values meet ordinary ones, too.
            auto const pick = [&] { return random.below(4) == 0 ? test::values::ordinary : kind; };
            set_param(i, test::value_of(pick(), random, -9, -4));
            grad.set(i, test::value_of(pick(), random, -16, -2));
            exp_avg.set(i, test::value_of(pick(), random, -18, -4));
            float const v = test::value_of(pick(), random, -36, -8);
            exp_avg_sq.set(i, random.below(16) == 0 ? v : test::from_bits(test::bits(v) & float_abs_mask));
            if (kind == test::values::any_bits && random.below(2) == 0) {
                param.set_bits(i, random());
                if (is_split)
                    weight_out.set_bits(i, random());
                grad.set_bits(i, random());
            }
        }
    }
    std::uint64_t run(kernel::step_function step, coefficients const& c, std::size_t begin, std::size_t end,
                      bool stream = false)
    {
        return step({param.data(), grad.data(), exp_avg.data(), exp_avg_sq.data(), weight_out.data(), position}, begin,
                    end, c, stream);
    }
    param_position position = {7, 0};
    bool is_split;
    [[nodiscard]] std::string difference(arrays const& expected) const
    {
        for (auto const& [name, mine, theirs] :
             {std::tuple{"param", &param, &expected.param}, std::tuple{"grad", &grad, &expected.grad},
              std::tuple{"exp_avg", &exp_avg, &expected.exp_avg},
              std::tuple{"exp_avg_sq", &exp_avg_sq, &expected.exp_avg_sq},
              std::tuple{"weight_out", &weight_out, &expected.weight_out}})
            if (std::string const text = mine->difference(*theirs); !text.empty())
                return std::string(name) + ": " + text;
        return {};
    }
};

std::string text_of(shard_format const& types)
{
    std::string text;
    for (dtype const type : types.types)
        text += std::string(name(type)) + " ";
    return text;
}

coefficients ordinary_coefficients(bool l2 = false, bfloat16_rounding rounding = {})
{
    return make_coefficients(
        {.lr = 1e-3, .weight_decay = 0.1, .mode = l2 ? decay_mode::l2 : decay_mode::decoupled, .rounding = rounding},
        10);
}

// Both ways for both arrays, by an index from 0 to 3.
bfloat16_rounding rounding_of(std::size_t which)
{
    return {static_cast<rounding>(which % 2), static_cast<rounding>(which / 2 % 2), which};
}

// Compares the tiers with the reference implementation on copies of `start`; returns what differs.
std::string compare(shard_format const& types, arrays const& start, coefficients const& c, std::size_t begin,
                    std::size_t end, bool stream = false)
{
    std::size_t const aligned[5] = {};
    arrays expected(start, aligned);
    std::uint64_t const expected_count = expected.run(types.step_for(isa::scalar), c, begin, end);
    for (isa const tier : test::tiers()) {
        arrays found(start, aligned);
        std::uint64_t const found_count = found.run(types.step_for(tier), c, begin, end, stream);
        if (found_count != expected_count)
            return std::string(name(tier)) + " counts " + std::to_string(found_count) + " non-finite, expected " +
                   std::to_string(expected_count);
        if (std::string const text = found.difference(expected); !text.empty())
            return std::string(name(tier)) + ": " + text;
    }
    return {};
}

} // namespace

TEST_CASE("there are as many combinations as the header says")
{
    CHECK(all_formats().size() == 90);
}

// User reports: DeepSpeed #4687.
TEST_CASE(
    "every combination has the bits of the reference implementation, for every kind of value and both decay modes",
    "[bf16_avx2]")
{
    std::uint64_t seed = 0;
    for (shard_format const& types : all_formats())
        for (test::values const kind : test::all_values)
            for (bool const l2 : {false, true}) {
                test::random_bits random(++seed);
                arrays start(types, 1200);
                start.fill(kind, random);
                start.position.begin = random.below(2) * (rounding_line_elems - 600);
                INFO(text_of(types) << "values " << static_cast<int>(kind) << " l2 " << l2);
                for (std::size_t which = 0; which < 4; ++which)
                    REQUIRE(compare(types, start, ordinary_coefficients(l2, rounding_of(which)), 0, 1200) == "");
            }
}

TEST_CASE("coefficients of any kind, ordinary for the fast path or not")
{
    std::vector<hyperparameters> const choices = test::odd_hyperparameters();
    std::uint64_t seed = 1000;
    for (std::size_t const at : test::sizes{0, 6, 16, 17, 35, 51, 58, 73, 80, 83, 24, 84}) {
        shard_format const& types = all_formats()[at];
        for (hyperparameters const& hyper : choices)
            for (test::values const kind : {test::values::ordinary, test::values::boundary, test::values::special})
                for (grad_scaling const scaling :
                     {grad_scaling{}, grad_scaling{0x1p-70, 1}, grad_scaling{3e30, 1}, grad_scaling{1, 0}}) {
                    test::random_bits random(++seed);
                    arrays start(types, 200);
                    start.fill(kind, random);
                    INFO(text_of(types) << "lr " << hyper.lr << " beta1 " << hyper.beta1 << " eps " << hyper.eps);
                    REQUIRE(compare(types, start, make_coefficients(hyper, 3, scaling), 0, 200) == "");
                }
    }
}

TEST_CASE("every length to 300, in arrays that go on")
{
    for (std::size_t const at : test::sizes{0, 7, 17, 53, 72, 80, 83, 24, 84}) {
        shard_format const& types = all_formats()[at];
        test::random_bits random(at);
        arrays start(types, 310);
        start.fill(test::values::ordinary, random);
        coefficients const c = ordinary_coefficients();
        for (std::size_t n = 0; n <= 300; ++n) {
            INFO(text_of(types) << "length " << n);
            REQUIRE(compare(types, start, c, 0, n) == "");
            std::size_t const begin = elems_together(types.types) == 1 ? 5 : 0;
            REQUIRE(compare(types, start, c, begin, begin + n) == "");
        }
    }
}

TEST_CASE("alignment: every byte offset to 64 of each array by itself, with and without streamed stores")
{
    for (std::size_t const at : test::sizes{1, 7, 17, 53, 72, 80, 83, 24, 84}) {
        shard_format const& types = all_formats()[at];
        test::random_bits random(at);
        std::size_t const n = 150;
        arrays start(types, n);
        start.fill(test::values::special, random);
        coefficients const c = ordinary_coefficients();
        std::size_t const aligned[5] = {};
        arrays expected(start, aligned);
        expected.run(types.step_for(isa::scalar), c, 0, n);
        for (std::size_t array = 0; array < 5; ++array)
            for (std::size_t offset = 0; offset <= 64; ++offset) {
                std::size_t offsets[5] = {};
                offsets[array] = offset;
                for (isa const tier : test::tiers()) {
                    arrays found(start, offsets);
                    found.run(types.step_for(tier), c, 0, n, offset % 2 == 0);
                    INFO(name(tier) << " " << text_of(types) << "array " << array << " offset " << offset);
                    REQUIRE(found.difference(expected) == "");
                }
            }
    }
}

// The first elements are stepped separately then, so that whole vectors begin where cache lines do.
TEST_CASE("alignment: arrays that begin some elements before a cache line", "[sweep]")
{
    test::random_bits random(43);
    for (shard_format const& types : all_formats())
        for (std::size_t const before_line : test::sizes{1, 12, 15, 31})
            for (test::values const kind : {test::values::ordinary, test::values::special}) {
                std::size_t const n = 1100 + random.below(200);
                arrays start(types, n);
                start.fill(kind, random);
                start.position = {3, rounding_line_elems - random.below(1200)};
                coefficients const c = ordinary_coefficients(random.below(2) == 0, rounding_of(random.below(4)));
                std::size_t const aligned[5] = {};
                std::size_t offsets[5] = {};
                for (std::size_t array = 0; array < 5; ++array) {
                    bool const is_moment = array == shard_array::exp_avg || array == shard_array::exp_avg_sq;
                    std::size_t const bytes = size_bytes(types.types[array]);
                    if (bytes != 0 && (is_moment || random.below(4) != 0))
                        offsets[array] = (64 - before_line * bytes % 64) % 64;
                }
                for (std::size_t const begin : {std::size_t{0}, std::size_t{64}}) {
                    arrays expected(start, aligned);
                    std::uint64_t const count = expected.run(types.step_for(isa::scalar), c, begin, n);
                    for (isa const tier : test::tiers())
                        for (bool const stream : {false, true}) {
                            arrays found(start, offsets);
                            INFO(name(tier) << " " << text_of(types) << "n " << n << " from " << begin << ", "
                                            << before_line << " before a line, stream " << stream);
                            REQUIRE(found.run(types.step_for(tier), c, begin, n, stream) == count);
                            REQUIRE(found.difference(expected) == "");
                        }
                }
            }
}

TEST_CASE("random shapes: any combination, cut, offset, kind of value and hyperparameters")
{
    test::random_bits random(42);
    for (int round = 0; round < 1500; ++round) {
        shard_format const& types = all_formats()[random.below(all_formats().size())];
        std::size_t const n = random.below(700);
        arrays start(types, n);
        start.fill(test::all_values[random.below(5)], random);
        start.position = {random(), random.below(3 * rounding_line_elems)};
        hyperparameters const hyper{.lr = static_cast<double>(test::with_exponent(random(), -20, 0)) < 0 ? 1e-3 : 1e-4,
                                    .beta1 = random.below(2) == 0 ? 0.9 : 0.95,
                                    .beta2 = random.below(2) == 0 ? 0.999 : 0.95,
                                    .eps = random.below(2) == 0 ? 1e-8 : 1e-6,
                                    .weight_decay = random.below(2) == 0 ? 0.0 : 0.1,
                                    .mode = random.below(2) == 0 ? decay_mode::l2 : decay_mode::decoupled,
                                    .bias_correction = random.below(4) != 0,
                                    .rounding = rounding_of(random.below(4))};
        coefficients const c = make_coefficients(hyper, 1 + random.below(100));
        std::size_t offsets[5];
        for (std::size_t& offset : offsets)
            offset = random.below(65);
        std::size_t const aligned[5] = {};
        arrays expected(start, aligned);
        std::uint64_t const expected_count = expected.run(types.step_for(isa::scalar), c, 0, n);
        std::size_t const cut = random.below(n + 1) / elems_together(types.types) * elems_together(types.types);
        bool const stream = random.below(2) == 0;
        for (isa const tier : test::tiers()) {
            arrays found(start, offsets);
            std::uint64_t const found_count =
                found.run(types.step_for(tier), c, 0, cut, stream) + found.run(types.step_for(tier), c, cut, n, stream);
            INFO(name(tier) << " " << text_of(types) << "round " << round << " length " << n << " cut " << cut);
            REQUIRE(found_count == expected_count);
            REQUIRE(found.difference(expected) == "");
        }
    }
}

// What a kernel could get wrong without its guard: one value placed so that an operand or a result is 2^-126 to the
// last bit, or nearly, or NaN. Which one it is: `kind`.
constexpr unsigned hostile_kinds = 20;

void place_hostile(arrays& start, std::size_t at, unsigned kind, coefficients const& c, test::random_bits& random)
{
    auto const sign = [&] { return random.below(2) == 0 ? 1.0f : -1.0f; };
    auto const near = [&](double target) { // the float nearest, or one of its neighbors
        auto const b =
            test::bits(static_cast<float>(std::fabs(target))) + static_cast<std::uint32_t>(random.below(3)) - 1;
        return sign() * test::from_bits(b);
    };
    auto const size = [](float x) { return static_cast<double>(std::fabs(x)); };
    float const p = start.get_param(at);
    float const m = start.exp_avg.get(at);
    float const v = start.exp_avg_sq.get(at);
    float const g = start.grad.get(at) * c.grad_scale;
    auto const denominator = [&](float old_v, float grad) {
        return std::fma(std::sqrt(reference::update({0, 0, old_v}, grad, c).exp_avg_sq), c.inv_sqrt_bias2, c.eps);
    };
    switch (kind) {
    case 0: // beside an update that is as small as the ordinary path allows
        start.exp_avg.set(at, 0);
        start.grad.set(at, sign() * 0x1.8p-63f / c.one_minus_beta1);
        start.set_param(at, near(0x1p-126));
        break;
    case 1: start.set_param(at, near(0x1p-126 / size(c.decay))); break;
    case 2: start.grad.set(at, near(0x1p-126 / size(c.grad_scale))); break;
    case 3: start.grad.set(at, near(0x1p-126)); break;
    case 4: start.grad.set(at, near(0x1p-126 / size(c.grad_scale) / size(c.one_minus_beta1))); break;
    case 5: // g * g, which a v of zero or almost lets be seen
        start.grad.set(
            at, near((c.beta2 != 0 && random.below(2) == 0 ? 0x1p-63 : 0x1p-63 / std::sqrt(size(c.one_minus_beta2))) /
                     size(c.grad_scale)));
        if (c.beta2 != 0)
            start.exp_avg_sq.set(at, random.below(2) == 0 ? 0 : 0x1.8p-124f);
        break;
    case 6: // b * m where there is no gradient
        start.grad.set(at, 0);
        start.exp_avg.set(at, near(0x1p-126 / size(c.beta1)));
        break;
    case 7: start.exp_avg.set(at, near(0x1p-126)); break;
    case 8: start.exp_avg_sq.set(at, std::fabs(near(0x1p-126))); break;
    case 9: // beta2 * v, which a gradient of zero lets be seen
        start.grad.set(at, 0);
        start.exp_avg_sq.set(at, std::fabs(near(0x1p-126 / size(c.beta2))));
        break;
    case 10: // a negative v beside the smallest g * g that the ordinary path allows
        start.grad.set(at, sign() * 0x1.8p-62f / c.grad_scale);
        start.exp_avg_sq.set(at, near(random.below(2) == 0 ? 0x1p-126 / size(c.beta2) : 0x1p-126));
        break;
    case 11: { // m' / d with an ordinary d
        start.grad.set(at, 0);
        float const d = denominator(v, 0);
        start.exp_avg.set(at, near(0x1p-126 * size(d) / size(c.beta1)));
        break;
    }
    case 12: { // m' / d with a huge d
        float const huge = test::with_exponent(random() & 0x7fffffffu, 100, 127);
        float const d = denominator(huge, 0);
        start.exp_avg_sq.set(at, huge);
        start.grad.set(at, 0);
        start.exp_avg.set(at, near(0x1p-126 * size(d) / size(c.beta1)));
        break;
    }
    case 13: { // neg_step_size * q, which a param or a decay of zero lets be seen
        float const q = reference::update({0, m, v}, start.grad.get(at), c).param;
        double const factor = q == 0 ? 1 : 0x1p-126 / size(q);
        start.grad.set(at, random.below(2) == 0 ? 0 : near(static_cast<double>(start.grad.get(at)) * factor));
        start.exp_avg.set(at, random.below(2) == 0 ? 0 : near(static_cast<double>(m) * factor));
        if (random.below(2) == 0)
            start.set_param(at, 0);
        break;
    }
    case 14: start.exp_avg.set(at, near(size(c.one_minus_beta1 * g) / size(c.beta1))); break; // may leave nothing of m'
    case 15: {                                                                                // may leave nothing of p'
        float const step = reference::update({0, m, v}, start.grad.get(at), c).param;
        start.set_param(at, near(size(step) / size(c.decay)));
        break;
    }
    case 16: // l2 * p halfway between two floats, where a gradient of almost nothing decides
        start.set_param(at, test::from_bits(test::bits(p) | 1u));
        start.grad.set(at, near(0x1p-126 / size(c.grad_scale)));
        break;
    case 17: {
        constexpr float odd[] = {INFINITY, -INFINITY, 0x1p127f};
        test::array* const array[] = {&start.param, &start.grad, &start.exp_avg, &start.exp_avg_sq};
        array[random.below(4)]->set(at, odd[random.below(3)]);
        break;
    }
    case 18: // a negative v
        start.exp_avg_sq.set(at, test::with_exponent(random() | float_sign_bit, -126, 0));
        break;
    default: {
        test::array* const array[] = {&start.param, &start.grad, &start.exp_avg, &start.exp_avg_sq};
        array[random.below(4)]->set(at, test::from_bits(0x7fc12345u | (random.below(2) == 0 ? 0 : float_sign_bit)));
        break;
    }
    }
}

TEST_CASE("the bounds of the guard: one hostile value in a group that is in range without it", "[sweep]")
{
    test::random_bits random(99);
    for (std::size_t const type : test::sizes{0, 7, 58, 80, 24, 84})
        for (unsigned kind = 0; kind < hostile_kinds; ++kind)
            for (int round = 0; round < (kind == 5 || kind == 13 ? 700 : 150) * static_cast<int>(test::scale());
                 ++round) {
                shard_format const& types = all_formats()[type];
                bool const l2 = random.below(4) == 0;
                // Mostly what training uses, else what the fast paths just allow or just refuse.
                auto const choose = [&](double usual, std::initializer_list<double> others) {
                    return random.below(2) == 0 ? usual : others.begin()[random.below(others.size())];
                };
                hyperparameters hyper{.lr = choose(1e-3, {0x1p-37, 0x1p-70, 0x1p-95, 0x1p110}),
                                      .beta1 = choose(0.9, {0.5001, 0, 0x1p-20}),
                                      .beta2 = choose(0.999, {0.5001, 0.125, 1 - 0x1p-24, 0, -0.0}),
                                      .eps = choose(1e-8, {0x1p-59, 0x1p19, 0x1p40, 0}),
                                      .weight_decay = l2 ? choose(0.1, {1.5}) : 0.1,
                                      .mode = l2 ? decay_mode::l2 : decay_mode::decoupled};
                if (!l2 && random.below(8) == 0)
                    hyper.weight_decay = 1 / hyper.lr; // a decay of zero
                coefficients c = make_coefficients(hyper, 1 + random.below(3), {1, random.below(2) == 0 ? 1.0 : 0.3});
                if (random.below(4) == 0) // as a caller may who makes coefficients by himself
                    c.grad_scale = -c.grad_scale;
                if (random.below(4) == 0)
                    c.one_minus_beta2 = 0x1p-24f;
                // Whole groups, or any length, whose end is stepped as part of a group that overlaps.
                std::size_t const n = random.below(2) == 0 ? 64 : 1 + random.below(130);
                arrays start(types, n);
                start.fill(test::values::ordinary, random);
                enum row_kind { busy, partly_idle, idle };
                auto const rows = static_cast<row_kind>(random.below(3));
                for (std::size_t i = 0; i < n; ++i) {
                    start.exp_avg_sq.set(i, std::fabs(start.exp_avg_sq.get(i)));
                    if (rows == idle || (rows == partly_idle && random.below(2) == 0)) {
                        auto const nothing = [&] { // a zero or a subnormal
                            std::uint32_t const r = static_cast<std::uint32_t>(random());
                            return test::from_bits(random.below(2) == 0 ? r & float_sign_bit : r & ~0x7f800000u);
                        };
                        start.grad.set(i, rows == idle ? nothing() : 0);
                        start.exp_avg.set(i, rows == idle ? nothing() : 0);
                        if (random.below(2) == 0)
                            start.set_param(i, 0);
                    }
                }
                place_hostile(start, random.below(n), kind, c, random);
                INFO(text_of(types) << "kind " << kind << " round " << round << " l2 " << l2);
                REQUIRE(compare(types, start, c, 0, n) == "");
            }
}

TEST_CASE("the bounds of the guard: first moments that fade, and move their params just so or just not", "[range]")
{
    test::random_bits random(7);
    for (std::size_t const type : test::sizes{0, 7, 37, 58, 24, 84})
        for (int round = 0; round < 1500; ++round) {
            shard_format const& types = all_formats()[type];
            hyperparameters hyper{.lr = 1e-3, .weight_decay = 0.1, .mode = decay_mode::decoupled};
            if (random.below(3) == 0)
                hyper.eps = random.below(2) == 0 ? 0x1p-50 : 4.0;
            if (random.below(6) == 0)
                hyper.lr = random.below(2) == 0 ? 0 : 0x1p-90;
            if (random.below(6) == 0)
                hyper.beta1 = random.below(2) == 0 ? 0 : 1 - 0x1p-24;
            coefficients c = make_coefficients(hyper, 1 + random.below(1000));
            if (random.below(4) == 0)
                c.grad_scale = -c.grad_scale;
            std::size_t const n = random.below(2) == 0 ? 64 : 1 + random.below(130);
            arrays start(types, n);
            start.fill(test::values::ordinary, random);
            // Where |m| / eps times the step is 2^-26 of the param.
            int const exponent = std::ilogb(hyper.eps < 1 ? hyper.eps : 1) -
                                 std::ilogb(c.neg_step_size == 0 ? 0x1p-60f : c.neg_step_size);
            std::size_t const how = random.below(3);
            for (std::size_t i = 0; i < n; ++i) {
                start.grad.set(i, random.below(2) == 0 ? 0.0f : -0.0f);
                float const v = std::fabs(start.exp_avg_sq.get(i));
                start.exp_avg_sq.set(i, random.below(8) == 0 ? 0.0f : how == 2 ? v * 0x1p-80f : v);
                float const p = std::max(std::fabs(start.get_param(i)), 0x1p-126f);
                int const low = how == 0 ? -128 : std::ilogb(p) + exponent - 26;
                start.exp_avg.set(i, std::ldexp(test::with_exponent(random(), 0, how == 0 ? 4 : 1), low - (how == 2)));
                if (random.below(40) == 0)
                    start.exp_avg.set(i, test::from_bits(0x00800000u | (random.below(2) == 0 ? 0u : float_sign_bit)));
            }
            if (random.below(2) == 0)
                start.set_param(random.below(n), random.below(2) == 0 ? 0.0f : -0.0f);
            INFO(text_of(types) << "round " << round << " how " << how);
            REQUIRE(compare(types, start, c, 0, n) == "");
        }
}

TEST_CASE("rounding to bfloat16 by two operations is right for all that the ordinary path stores", "[once][slow]")
{
    float_mode_scope const mode(subnormals::flushed);
    std::size_t wrong = 0;
    for (int const exponent : {-121, -1, 0, 111})
        for (std::uint32_t mantissa = 0; mantissa < 1u << 23; mantissa += test::sampling())
            for (std::uint32_t const sign : {0u, float_sign_bit}) {
                float const x = test::from_bits(sign | static_cast<std::uint32_t>(127 + exponent) << 23 | mantissa);
                float const product = x * -65535.0f;
                wrong += test::bits(std::fma(x, 65536.0f, product)) != std::uint32_t{narrow<bfloat16>(x).bits} << 16;
            }
    CHECK(wrong == 0);
    CHECK(test::bits(std::fma(0.0f, 65536.0f, 0.0f * -65535.0f)) == 0);
}

TEST_CASE("the bounds of the guard: values and coefficients on its edges, inside and outside", "[range]")
{
    test::random_bits random(77);
    shard_format const& types = all_formats().front();
    std::size_t const n = 64;
    for (int round = 0; round < 4000; ++round) {
        hyperparameters const hyper{.lr = random.below(2) == 0 ? 0x1p-40 : 1e-3,
                                    .beta1 = random.below(2) == 0 ? 0.9 : 1 - 0x1p-24,
                                    .beta2 = random.below(2) == 0 ? 1 - 0x1p-24 : 0.5,
                                    .eps = random.below(2) == 0 ? 0x1p40 : 0x1p-60,
                                    .weight_decay = 0.1,
                                    .mode = random.below(4) == 0 ? decay_mode::l2 : decay_mode::decoupled};
        coefficients const c = make_coefficients(hyper, 1 + random.below(3));
        // All of a round's values lie within two units of the bounds of one path, or all inside them.
        enum path_kind { ordinary, lenient, idle };
        auto const path = static_cast<path_kind>(random.below(3));
        bool const outside = random.below(2) == 0;
        auto const at = [&](float low, float high) {
            bool const is_low = random.below(2) == 0;
            std::uint32_t const ulps = static_cast<std::uint32_t>(random.below(3));
            std::uint32_t const edge = test::bits(is_low ? low : high);
            float const x = test::from_bits(is_low != outside ? edge + 1 + ulps : edge - 1 - ulps);
            return random.below(2) == 0 ? x : -x;
        };
        auto const nothing = [&] { // of the outside, 2^-126
            float const x = test::from_bits(float_min_normal_bits - (outside ? 0 : 1));
            return random.below(2) == 0 ? x : random.below(2) == 0 ? -x : 0;
        };
        arrays start(types, n);
        for (std::size_t i = 0; i < n; ++i) {
            if (path == ordinary) {
                start.set_param(i, at(0x1p-63f, 2));
                start.grad.set(i, at(0x1p-63f, 2) / c.one_minus_beta1);
                start.exp_avg.set(i, random.below(4) == 0 ? 0.0f : at(0x1p-63f, 2));
                start.exp_avg_sq.set(i, std::fabs(at(0x1p-124f, 2)));
            } else if (path == lenient) {
                start.set_param(i, at(0x1p-40f, 0x1p16f));
                start.grad.set(i, random.below(8) == 0 ? 0 : at(0x1p-40f, 0x1p8f));
                start.exp_avg.set(i, at(0x1p-121f, 0x1p8f));
                start.exp_avg_sq.set(i, std::fabs(at(0x1p-124f, 0x1p16f)));
            } else {
                start.set_param(i, at(0x1p-115f, 2));
                start.grad.set(i, nothing());
                start.exp_avg.set(i, nothing());
                start.exp_avg_sq.set(i, std::fabs(at(0x1p-115f, 2)));
            }
        }
        INFO("round " << round << " path " << path << " outside " << outside);
        REQUIRE(compare(types, start, c, 0, n) == "");
    }
}

TEST_CASE("new moments at and around every threshold of their formats have the reference's bits", "[sweep]")
{
    // With betas of 0, a gradient is the new first moment, and its square the second one.
    std::vector<std::uint32_t> edges;
    for (float const edge :
         {0x1p-126f,                                // flushed from here down
          0x1.81p-120f,                             // bfloat16, between two of its numbers
          0x1.f8p-81f,   0x1.fcp-81f, 0x1p-80f,     // scale 0: z(127), where codes would be 128, the end
          0x1p-63f,      0x1p-40f,    0x1.fap-41f,  // squares: flushed, the least scale of second moments
          0x1p-33f,      0x1p-24f,    0x1.fffp-15f, // half of float16's least, its least, its least normal number
          1.0f,          65504.0f,    65520.0f,     // float16: the largest, and where it becomes infinite
          0x1p62f,       0x1.fp62f,   0x1.fcp62f,   0x1p63f,  // squares: the largest divisor, and beyond
          0x1.fcp63f,    0x1p64f,                             // squares that spoil a group, and that overflow
          0x1p124f,      0x1p125f,    0x1.f8p125f,  0x1p126f, // the largest divisor
          0x1.f7ffp127f, 0x1.f8p127f, 0x1.fep127f})           // the scale overflows; bfloat16 does
        for (std::uint32_t ulps : {0u, 1u, 2u, 0x40u, 0x4000u})
            for (std::uint32_t const bits : {test::bits(edge) - ulps, test::bits(edge) + ulps})
                edges.push_back(bits);
    std::size_t const n = 2 * quantized_group_elems + 7;
    for (shard_format const& types : all_formats()) {
        test::random_bits random(5);
        arrays start(types, n);
        for (std::size_t const which : {0u, 3u})
            for (std::uint32_t const edge : edges) {
                float const x = test::from_bits(edge);
                for (std::size_t i = 0; i < n; ++i) {
                    start.set_param(i, 0.5f + 0x1p-9f * static_cast<float>(i % 3)); // ties among them
                    start.exp_avg.set(i, 0);
                    start.exp_avg_sq.set(i, 0);
                    float const part = test::with_exponent(random() & ~0x80000000ull, -10, -1) / 2;
                    start.grad.set(i, i % 64 == 3 ? x : i % 64 == 5 ? -x : x * part);
                }
                INFO(text_of(types) << "edge " << x << " rounding " << which);
                // A loss scale brings what float16 does not hold to where float does.
                double const loss_scale = types.types[1] == dtype::float16 ? 0x1p-70 : 1;
                REQUIRE(compare(types, start,
                                make_coefficients({.lr = 1e-3, .beta1 = 0, .beta2 = 0, .rounding = rounding_of(which)},
                                                  1, {.loss_scale = loss_scale}),
                                0, n) == "");
            }
    }
}

TEST_CASE("8-bit first moments that cancel to just below 2^-80 have the reference's bits on the fast path")
{
    shard_format const* types = nullptr;
    for (shard_format const& each : all_formats())
        if (each.types ==
            shard_dtypes{dtype::float32, dtype::float32, dtype::quantized8, dtype::quantized8, dtype::none})
            types = &each;
    REQUIRE(types != nullptr);
    unsigned found = 0;
    for (double const beta1 : {0.9, 0.8, 0.7, 0.6, 0.55}) {
        coefficients const c = make_coefficients({.lr = 1e-3, .beta1 = beta1}, 10);
        for (float const scale : {0x1p-61f, 0x1.2p-61f, 0x1.8p-61f}) {
            float const old = decoded_exp_avg(127, scale);
            float const grad = -old * c.beta1 / c.one_minus_beta1;
            for (std::uint32_t ulps = 0; ulps < 4000; ++ulps) {
                float const g = test::from_bits(test::bits(grad) - 2000 + ulps);
                float const m = std::fabs(std::fma(c.beta1, old, c.one_minus_beta1 * g));
                if (!(m > 0x1.fcp-81f && m < 0x1p-80f))
                    continue;
                ++found;
                arrays start(*types, 64);
                for (std::size_t i = 0; i < 64; ++i) {
                    start.set_param(i, 0.5f);
                    start.grad.set(i, g);
                    start.exp_avg.set(i, old);
                    start.exp_avg_sq.set(i, 0x1p-100f);
                }
                std::byte* const codes = start.exp_avg.data();
                std::memset(codes, 127, quantized_group_elems);
                store_unaligned(codes + quantized_group_elems, scale);
                std::byte* const squares = start.exp_avg_sq.data();
                std::memset(squares, 255, quantized_group_elems);
                store_unaligned(squares + quantized_group_elems, 0x1p-70f);
                INFO("beta1 " << beta1 << " gradient " << g << " gives " << m);
                REQUIRE(compare(*types, start, c, 0, 64) == "");
            }
        }
    }
    CHECK(found > 0);
}

TEST_CASE("idle rows have the bits of the reference implementation while their moments decay, and end at zero",
          "[subnormal_cliff]")
{
    for (std::size_t const at : test::sizes{0, 7, 16, 58, 24, 84}) {
        shard_format const& types = all_formats()[at];
        std::size_t const n = 130;
        arrays start(types, n);
        test::random_bits random(at);
        start.fill(test::values::ordinary, random);
        for (std::size_t i = 0; i < n; ++i) {
            start.grad.set(i, 0);
            start.exp_avg.set(i, test::with_exponent(random(), -126, -100));
            start.exp_avg_sq.set(i, test::with_exponent(random() & ~0x80000000u, -126, -121));
        }
        std::size_t const aligned[5] = {};
        for (isa const tier : test::tiers()) {
            arrays expected(start, aligned);
            arrays found(start, aligned);
            for (std::uint64_t t = 1; t <= 300; ++t) {
                coefficients const c = make_coefficients({.lr = 1e-3, .beta2 = 0.97}, t);
                expected.run(types.step_for(isa::scalar), c, 0, n);
                found.run(types.step_for(tier), c, 0, n);
                INFO(name(tier) << " " << text_of(types) << "step " << t);
                REQUIRE(found.difference(expected) == "");
            }
            for (std::size_t i = 0; i < n; ++i)
                REQUIRE((test::bits(found.exp_avg.get(i)) & float_abs_mask) == 0);
        }
    }
}

TEST_CASE("the caller's floating-point mode changes nothing and is not changed")
{
    shard_format const& types = all_formats()[6];
    test::random_bits random(5);
    arrays start(types, 500);
    start.fill(test::values::boundary, random);
    coefficients const c = ordinary_coefficients();
    std::size_t const aligned[5] = {};
    arrays expected(start, aligned);
    expected.run(types.step_for(isa::scalar), c, 0, 500);
    std::vector<isa> tiers = test::tiers();
    tiers.push_back(isa::scalar);
    for (isa const tier : tiers)
        for (int const rounding : {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO})
            for (bool const flushing : {false, true}) {
                arrays found(start, aligned);
                std::feclearexcept(FE_ALL_EXCEPT);
                std::fesetround(rounding);
                int flags = 0;
                int after = 0;
                std::uint32_t mode_before = 0;
                std::uint32_t mode_after = 0;
#if defined(__x86_64__)
                __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | (flushing ? 0x8040u : 0));
                mode_before = __builtin_ia32_stmxcsr();
                found.run(types.step_for(tier), c, 0, 500);
                mode_after = __builtin_ia32_stmxcsr();
                __builtin_ia32_ldmxcsr(mode_before & ~0x8040u);
#else
                std::uint64_t control = 0;
                asm volatile("mrs %0, fpcr" : "=r"(control));
                control |= flushing ? std::uint64_t{1} << 24 : 0;
                asm volatile("msr fpcr, %0" : : "r"(control));
                mode_before = static_cast<std::uint32_t>(control);
                found.run(types.step_for(tier), c, 0, 500);
                asm volatile("mrs %0, fpcr" : "=r"(control));
                mode_after = static_cast<std::uint32_t>(control);
                asm volatile("msr fpcr, %0" : : "r"(control & ~(std::uint64_t{1} << 24)));
#endif
                flags = std::fetestexcept(FE_ALL_EXCEPT);
                after = std::fegetround();
                std::fesetround(FE_TONEAREST);
                INFO(name(tier) << " rounding " << rounding << " flushing " << flushing);
                CHECK(mode_after == mode_before);
                CHECK(after == rounding);
                CHECK(flags == 0);
                REQUIRE(found.difference(expected) == "");
            }
}

#if defined(__aarch64__)
TEST_CASE("the largest gradient is the same where the caller widens float16 in the alternative format")
{
    std::vector<float16> const grad = {{0x3c00}, {0x7c00}, {0xfe01}, {0xc000}}; // 1, infinity, NaN, -2
    std::uint64_t before = 0;
    asm volatile("mrs %0, fpcr" : "=r"(before));
    asm volatile("msr fpcr, %0" : : "r"(before | std::uint64_t{1} << 26)); // AHP
    float const largest = largest_magnitude(executor({.threads = 1}), grad.data(), dtype::float16, grad.size());
    asm volatile("msr fpcr, %0" : : "r"(before));
    CHECK(largest == 2);
}
#endif

TEST_CASE("a floating-point mode inside another is the inner one, and gives the outer one back")
{
    float volatile subnormal = 0x1p-130f;
    auto const is_kept = [&] { return std::bit_cast<std::uint32_t>(subnormal * 0.5f) != 0; };
    std::feclearexcept(FE_ALL_EXCEPT);
    for (subnormals const outer : {subnormals::kept, subnormals::flushed})
        for (subnormals const inner : {subnormals::kept, subnormals::flushed}) {
            bool before = false;
            bool within = false;
            bool innermost = false;
            bool after = false;
            {
                float_mode_scope const first(outer);
                before = is_kept();
                {
                    float_mode_scope const second(inner);
                    within = is_kept();
                    float_mode_scope const third(inner);
                    innermost = is_kept();
                }
                after = is_kept();
            }
            INFO("outer " << static_cast<int>(outer) << " inner " << static_cast<int>(inner));
            CHECK(before == (outer == subnormals::kept));
            CHECK(within == (inner == subnormals::kept));
            CHECK(innermost == within);
            CHECK(after == before);
            CHECK(std::fetestexcept(FE_ALL_EXCEPT) == 0);
        }
}

TEST_CASE("one block's sum of squares and count have the bits of the reference implementation")
{
    auto const check = [](auto element, dtype type) {
        using grad_type = decltype(element);
        test::random_bits random(11);
        for (test::values const kind : test::all_values)
            for (std::size_t const n : test::sizes{0, 1, 2, 38, 78, 80, 81, 125, 158, 161, 375, 5118, 5120, 24, 84})
                for (std::size_t const offset : test::sizes{0, 1, 2, 8, 24, 84}) {
                    test::array grad(type, n, offset);
                    for (std::size_t i = 0; i < n; ++i) {
                        grad.set(i, test::value_of(kind, random, -20, 5));
                        if (kind == test::values::any_bits)
                            grad.set_bits(i, random());
                    }
                    grad_squares const expected = kernel::block_squares_for<grad_type>(isa::scalar)(grad.data(), n);
                    for (isa const tier : test::tiers()) {
                        grad_squares const found = kernel::block_squares_for<grad_type>(tier)(grad.data(), n);
                        INFO(name(tier) << " values " << static_cast<int>(kind) << " length " << n);
                        REQUIRE(std::bit_cast<std::uint64_t>(found.sum) == std::bit_cast<std::uint64_t>(expected.sum));
                        REQUIRE(found.nonfinite == expected.nonfinite);
                    }
                }
    };
    check(float{}, dtype::float32);
    check(bfloat16{}, dtype::bfloat16);
    check(float16{}, dtype::float16);
}

TEST_CASE("sums of squares that leave the safe range have the bits of the reference implementation, and so have those "
          "that just do not",
          "[range]")
{
    auto const check = [](auto element, dtype type) {
        using grad_type = decltype(element);
        test::random_bits random(12);
        for (int low = -135; low <= 127; low += low > -70 && low < -40 ? 1 : 9)
            for (std::size_t const n : test::sizes{1, 80, 162, 5120, 24, 84})
                for (unsigned const zeros : {0u, 2u, 50u}) // of so many elements one is none
                    for (int const others : {0, 1, 2}) {
                        test::array grad(type, n);
                        for (std::size_t i = 0; i < n; ++i) {
                            float g = std::ldexp(test::with_exponent(random(), 0, 1), low);
                            if (zeros != 0 && random.below(zeros) != 0)
                                g = random.below(2) == 0 ? 0.0f : -0.0f;
                            else if (others == 1 && random.below(200) == 0)
                                g = 0x1p100f;
                            else if (others == 2 && random.below(500) == 0)
                                g = test::from_bits(0x7f800000u | (random.below(2) == 0 ? 0u : 0x80400001u));
                            grad.set(i, g);
                        }
                        grad_squares const expected = kernel::block_squares_for<grad_type>(isa::scalar)(grad.data(), n);
                        for (isa const tier : test::tiers()) {
                            grad_squares const found = kernel::block_squares_for<grad_type>(tier)(grad.data(), n);
                            INFO(name(tier)
                                 << " from 2^" << low << " length " << n << " zeros " << zeros << " others " << others);
                            REQUIRE(std::bit_cast<std::uint64_t>(found.sum) ==
                                    std::bit_cast<std::uint64_t>(expected.sum));
                            REQUIRE(found.nonfinite == expected.nonfinite);
                        }
                    }
    };
    check(float{}, dtype::float32);
    check(bfloat16{}, dtype::bfloat16);
    check(float16{}, dtype::float16);
}

TEST_CASE("conversions of the kernels: every float16 and bfloat16 in and out")
{
    // lr = 0 and no decay: the param goes through a step as it is, widened and narrowed.
    coefficients const c = make_coefficients({.lr = 0}, 1);
    for (shard_format const& types : all_formats()) {
        if (types.types[0] == dtype::float32 || types.types[1] != dtype::float32)
            continue;
        arrays start(types, 0x10000);
        for (std::size_t i = 0; i < 0x10000; ++i) {
            start.param.set_bits(i, i);
            start.grad.set(i, 0.5f);
            start.exp_avg.set(i, 0.25f);
            start.exp_avg_sq.set(i, 0.25f);
        }
        INFO(text_of(types));
        REQUIRE(compare(types, start, c, 0, 0x10000) == "");
    }
}

TEST_CASE("conversions of the kernels: floats around every number and every tie of the 16-bit formats", "[sweep][slow]")
{
    // The upper 16 bits are those of every bfloat16; the lower ones lie at and around ties of bfloat16, float16 and
    // split masters. A float16's subnormals have their ties among the upper bits.
    constexpr std::uint32_t low[] = {0, 1, 0x0fff, 0x1000, 0x1001, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff};
    std::uint32_t const stride = test::scale() == 1 ? 5 : 1; // of the numbers
    std::size_t const n = 0x10000 / stride * std::size(low);
    auto const value = [&](std::size_t i) {
        return test::from_bits(static_cast<std::uint32_t>(i / std::size(low)) * stride << 16 | low[i % std::size(low)]);
    };
    for (shard_format const& types : all_formats()) {
        bool const has_float_moments = types.types[2] == dtype::float32 && types.types[3] == dtype::float32;
        bool const has_bfloat16_moments = types.types[2] == dtype::bfloat16 && types.types[3] == dtype::bfloat16;
        if (types.types[1] != dtype::float32 || !(has_float_moments || has_bfloat16_moments))
            continue;
        // lr = 0 and no decay: the param goes through a step as it is. Betas of 0: the gradient becomes the first
        // moment.
        for (std::size_t const which : {0u, 3u}) {
            arrays start(types, n);
            for (std::size_t i = 0; i < n; ++i) {
                start.set_param(i, has_float_moments ? value(i) : 0.5f);
                start.grad.set(i, has_float_moments ? 0.5f : value(i));
                start.exp_avg.set(i, 0);
                start.exp_avg_sq.set(i, 0.25f);
            }
            INFO(text_of(types) << "rounding " << which);
            coefficients const c =
                make_coefficients({.lr = 0, .beta1 = 0, .beta2 = 0, .rounding = rounding_of(which)}, 1);
            REQUIRE(compare(types, start, c, 0, n) == "");
        }
    }
}

#if defined(__x86_64__) && !defined(ADAMANT_EMULATED_AVX512)
namespace {

// Clears the upper bits of all vector registers and calls a function. Returns whether it leaves any of them set.
template <class Call>
bool leaves_upper_bits(Call const& call)
{
    alignas(32) std::uint64_t registers[16][4];
    asm volatile("vzeroupper");
    call();
#define ADAMANT_TEST_STORE(n) "vmovdqu %%ymm" #n ", 32*" #n "(%0)\n\t"
    asm volatile(ADAMANT_TEST_STORE(0) ADAMANT_TEST_STORE(1) ADAMANT_TEST_STORE(2) ADAMANT_TEST_STORE(3)
                     ADAMANT_TEST_STORE(4) ADAMANT_TEST_STORE(5) ADAMANT_TEST_STORE(6) ADAMANT_TEST_STORE(7)
                         ADAMANT_TEST_STORE(8) ADAMANT_TEST_STORE(9) ADAMANT_TEST_STORE(10) ADAMANT_TEST_STORE(11)
                             ADAMANT_TEST_STORE(12) ADAMANT_TEST_STORE(13) ADAMANT_TEST_STORE(14) ADAMANT_TEST_STORE(15)
                 :
                 : "r"(registers)
                 : "memory");
#undef ADAMANT_TEST_STORE
    return std::any_of(std::begin(registers), std::end(registers),
                       [](auto const& bits) { return (bits[2] | bits[3]) != 0; });
}

} // namespace

// While they are set, SSE code is slow.
TEST_CASE("kernels clear the upper bits of vector registers")
{
    constexpr std::size_t n = 1200;
    for (isa const tier : test::tiers()) {
        if (tier == isa::scalar)
            continue;
        auto const clears = [tier](std::string const& kernel, auto const& call) {
            INFO(name(tier) << " " << kernel);
            bool const leaves = leaves_upper_bits(call);
            CHECK_FALSE(leaves);
        };
        coefficients const c = ordinary_coefficients(true, rounding_of(3));
        std::vector<std::uint64_t> changed(changed_words(n));
        std::vector<std::byte> record(kernel::record_bytes_at_most(n, false) + 64), floats(n * sizeof(float));
        for (shard_format const& format : all_formats())
            for (test::values const kind : {test::values::ordinary, test::values::any_bits}) {
                test::random_bits random(n);
                arrays a(format, n);
                a.fill(kind, random);
                kernel::step_pointers const pointers{a.param.data(),      a.grad.data(),       a.exp_avg.data(),
                                                     a.exp_avg_sq.data(), a.weight_out.data(), a.position,
                                                     changed.data()};
                kernel::block_kernels const& k = format.block_kernels_for(tier);
                std::string const text = text_of(format);
                clears("step " + text, [&] { k.step(pointers, 0, n, c, false); });
                clears("squares " + text, [&] { k.squares(a.grad.data(), n); });
                clears("to_scratch " + text, [&] { k.to_scratch(a.grad.data(), nullptr, n, floats.data()); });
                clears("clamp_gradient", [&] { k.clamp_gradient(floats.data(), n, true, 0.5f, 1.0f); });
                if (k.recorded != nullptr && k.join == nullptr) {
                    std::byte* const aligned =
                        record.data() + (64 - reinterpret_cast<std::uintptr_t>(record.data()) % 64) % 64;
                    clears("recorded " + text, [&] { k.recorded(pointers, n, c, false, aligned); });
                    if (format.types[0] == dtype::float32 && format.types[1] == dtype::float32)
                        clears("rollback " + text, [&] { k.rollback_scratch(pointers, n, c, false, aligned); });
                }
                if (k.join != nullptr) {
                    clears("join", [&] { k.join(a.weight_out.data(), a.param.data(), n, floats.data()); });
                    clears("split", [&] { k.split(floats.data(), n, a.weight_out.data(), a.param.data()); });
                }
                if (k.round_weights != nullptr)
                    clears("round_weights", [&] { k.round_weights(a.param.data(), n, a.weight_out.data()); });
                arrays before(format, n);
                clears("mark_changes " + text, [&] {
                    kernel::mark_changes_for(format.types, tier)(before.param.data(), a.param.data(), n,
                                                                 changed.data());
                });
            }

        std::vector<float> const weights(n, 0.5f);
        kernel::sum_kernels const& sums = kernel::sum_kernels_for<bfloat16>(tier);
        clears("add", [&] {
            sums.add(reinterpret_cast<std::byte const*>(weights.data()), floats.data(), n / 2, floats.data());
        });
        executor const cpu({.tier = tier, .threads = 1});
        std::vector<std::int64_t> scores(40);
        clears("add_column_scores", [&] {
            add_column_scores(cpu, weights.data(), dtype::float32, n / 40, 40, 1.0f, column_score::magnitude, scores);
        });
        std::fill(changed.begin(), changed.end(), 0x123456789abcdefu);
        tracked_weights const tracked{changed, n, weights.data(), dtype::float32};
        clears("count_changed_weights", [&] { (void)count_changed_weights(cpu, tracked); });
        std::vector<std::uint32_t> indices(n);
        std::vector<float> values(n);
        clears("changed_weights", [&] { (void)changed_weights(cpu, tracked, indices, values.data()); });
        clears("checksum", [&] { (void)detail::checksum(floats.data(), n); });
    }
}
#endif
