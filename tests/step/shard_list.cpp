// SPDX-License-Identifier: Apache-2.0
// Many shards stepped together: the same bits as one by one, whoever does it.
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include <adamant/adamant.hpp>

#include "catch.hpp"
#include "hyperparameters.hpp"

using namespace adamant;
using test::usual_adamw;

namespace {

// Mixed: float master weights, bfloat16 gradients and weights. Plain: float throughout.
struct mixed_tensor {
    std::vector<float> param, exp_avg, exp_avg_sq;
    std::vector<bfloat16> grad, weight_out;
    explicit mixed_tensor(std::size_t n) : param(n), exp_avg(n), exp_avg_sq(n), grad(n), weight_out(n)
    {
        test::random_bits random(n);
        for (std::size_t i = 0; i < n; ++i) {
            param[i] = test::with_exponent(random(), -6, -2);
            grad[i] = narrow<bfloat16>(test::with_exponent(random(), -12, -6));
        }
    }
    auto view() { return shard(param, grad, exp_avg, exp_avg_sq, weight_out); }
    bool operator==(mixed_tensor const&) const = default;
};
struct plain_tensor {
    std::vector<float> param, exp_avg, exp_avg_sq, grad;
    explicit plain_tensor(std::size_t n) : param(n), exp_avg(n), exp_avg_sq(n), grad(n)
    {
        test::random_bits random(n + 1);
        for (std::size_t i = 0; i < n; ++i) {
            param[i] = test::with_exponent(random(), -6, -2);
            grad[i] = test::with_exponent(random(), -12, -6);
        }
    }
    auto view() { return shard(param, grad, exp_avg, exp_avg_sq); }
    bool operator==(plain_tensor const&) const = default;
};

} // namespace

TEST_CASE("any range of the line of granules is cut into pieces that are each element once, in order")
{
    test::random_bits random(1);
    for (int round = 0; round < 50; ++round) {
        std::vector<mixed_tensor> tensors;
        std::vector<any_shard> views;
        std::size_t const count = random.below(20);
        tensors.reserve(count);
        for (std::size_t i = 0; i < count; ++i) {
            tensors.emplace_back(random.below(4) == 0 ? random.below(3) : random.below(700));
            views.push_back(tensors.back().view());
        }
        shard_list const list(views);
        REQUIRE(list.size() == count);
        std::vector<std::vector<int>> seen;
        std::size_t elements = 0;
        for (mixed_tensor const& t : tensors) {
            seen.emplace_back(t.param.size());
            elements += t.param.size();
        }
        REQUIRE(list.elements() == elements);
        REQUIRE(list.bytes_moved() == 28 * elements);
        for (std::size_t begin = 0; begin < list.granules();) {
            std::size_t const end = std::min(list.granules(), begin + 1 + random.below(9));
            list.for_each_piece(begin, end, [&](grouped_shard const& s, std::size_t first, std::size_t last) {
                auto const index = static_cast<std::size_t>(&s - &list[0]);
                REQUIRE(first < last);
                REQUIRE(first % granule_elems == 0);
                for (std::size_t i = first; i < last; ++i)
                    ++seen[index][i];
            });
            begin = end;
        }
        for (std::vector<int> const& one : seen)
            REQUIRE(one == std::vector<int>(one.size(), 1));
    }
    shard_list const none{std::vector<any_shard>{}};
    CHECK(none.granules() == 0);
    CHECK(step(executor({.threads = 1}), none, usual_adamw, 1).elements == 0);
}

TEST_CASE("shards of several types and groups stepped together have the bits of each stepped alone")
{
    for (unsigned const threads : {1u, 2u, 5u}) {
#if !defined(_OPENMP)
        if (threads > 1)
            break;
#endif
        executor const cpu({.threads = threads, .min_slice_elems = 64});
        std::vector<mixed_tensor> mixed, mixed_alone;
        std::vector<plain_tensor> plain, plain_alone;
        for (std::size_t const n : test::sizes{0, 1, 63, 64, 65, 1000, 4096, 70001}) {
            mixed.emplace_back(n);
            plain.emplace_back(n);
        }
        mixed.back().grad[5] = bfloat16{0x7f80};
        plain[3].grad[0] = std::numeric_limits<float>::quiet_NaN();
        mixed_alone = mixed;
        plain_alone = plain;
        hyperparameters const decays[] = {usual_adamw, {.lr = 1e-2}};
        std::vector<grouped_shard> views;
        for (std::size_t i = 0; i < mixed.size(); ++i) {
            views.push_back({mixed[i].view(), i % 2});
            views.push_back({plain[i].view(), 1 - i % 2});
        }
        shard_list const list(views);
        CHECK(list.groups() == 2);
        for (std::uint64_t t = 1; t <= 3; ++t) {
            coefficients const c[] = {make_coefficients(decays[0], t), make_coefficients(decays[1], t)};
            step_report const report = step(cpu, list, c);
            CHECK(report.elements == 2 * (1 + 63 + 64 + 65 + 1000 + 4096 + 70001));
            CHECK(report.bytes_moved == report.elements / 2 * (28 + 28));
            CHECK(report.nonfinite_grads == 2);
            CHECK(report.threads == threads);
            for (std::size_t i = 0; i < mixed.size(); ++i) {
                step(executor({.tier = isa::scalar, .threads = 1}), mixed_alone[i].view(), c[i % 2]);
                step(executor({.tier = isa::scalar, .threads = 1}), plain_alone[i].view(), c[1 - i % 2]);
            }
        }
        plain[3].param[0] = plain_alone[3].param[0] = 0; // NaNs, which are not equal to themselves
        plain[3].exp_avg[0] = plain_alone[3].exp_avg[0] = 0;
        plain[3].exp_avg_sq[0] = plain_alone[3].exp_avg_sq[0] = 0;
        plain[3].grad[0] = plain_alone[3].grad[0] = 0;
        mixed.back().param[5] = mixed_alone.back().param[5] = 0;
        CHECK(mixed.back().exp_avg[5] == mixed_alone.back().exp_avg[5]);
        CHECK(mixed == mixed_alone);
        CHECK(plain == plain_alone);
    }
}

TEST_CASE("thousands of shards of a few elements have the bits of each stepped alone, whatever is beside them")
{
    std::vector<mixed_tensor> mixed, mixed_alone;
    std::vector<plain_tensor> plain, plain_alone;
    test::random_bits random(3);
    for (std::size_t i = 0; i < 600; ++i) {
        mixed.emplace_back(random.below(i % 3 == 0 ? 4 : 70));
        plain.emplace_back(random.below(i % 5 == 0 ? 4 : 70));
        if (!plain.back().grad.empty()) { // values that the fast paths leave to the slow one
            plain.back().grad[0] = test::value_of(test::values::boundary, random, -20, 0);
            plain.back().exp_avg_sq.back() = std::abs(test::value_of(test::values::boundary, random, -20, 0));
        }
    }
    mixed_alone = mixed;
    plain_alone = plain;
    std::vector<coefficients> c; // and so six kinds of what goes together
    for (double const lr : {1e-2, 1e-3, 1e-4})
        c.push_back(make_coefficients({.lr = lr, .weight_decay = lr, .mode = decay_mode::l2}, 2));
    std::vector<grouped_shard> views;
    for (std::size_t i = 0; i < mixed.size(); ++i) {
        views.push_back({mixed[i].view(), random.below(3)});
        views.push_back({plain[i].view(), i < 300 ? 1 : random.below(3)}); // many of a kind, and then all kinds
    }
    shard_list const list(views);
    executor const cpu({.threads = 2, .min_slice_elems = 64});
    executor const alone({.tier = isa::scalar, .threads = 1});
    auto const same = [](auto const& a, auto const& b) { // NaNs, too
        return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0);
    };
    for (int t = 0; t < 2; ++t) {
        std::uint64_t nonfinite = 0;
        for (std::size_t i = 0; i < mixed.size(); ++i) {
            nonfinite += step(alone, mixed_alone[i].view(), c[list[2 * i].group]).nonfinite_grads;
            nonfinite += step(alone, plain_alone[i].view(), c[list[2 * i + 1].group]).nonfinite_grads;
        }
        CHECK(nonfinite > 0);
        CHECK(step(cpu, list, c).nonfinite_grads == nonfinite);
        std::size_t differ = 0;
        for (std::size_t i = 0; i < mixed.size(); ++i) {
            differ += !same(mixed[i].param, mixed_alone[i].param) || !same(mixed[i].exp_avg, mixed_alone[i].exp_avg) ||
                      !same(mixed[i].exp_avg_sq, mixed_alone[i].exp_avg_sq) ||
                      !same(mixed[i].weight_out, mixed_alone[i].weight_out);
            differ += !same(plain[i].param, plain_alone[i].param) || !same(plain[i].exp_avg, plain_alone[i].exp_avg) ||
                      !same(plain[i].exp_avg_sq, plain_alone[i].exp_avg_sq);
        }
        CHECK(differ == 0);
    }
}

TEST_CASE("shards all over memory have the bits of each stepped alone, in large lists")
{
    // Each list is just large enough for its shards to prefetch the next: shards of 1024 elements in the first list, of
    // 256 in the second, which also writes weights past the caches.
    for (std::size_t const elements : {(std::size_t{1} << 18) + 1, stream_weight_out_from_elems + 1}) {
        test::random_bits random(elements);
        std::vector<mixed_tensor> mixed, mixed_alone;
        std::vector<plain_tensor> plain, plain_alone;
        for (std::size_t total = 0; total < elements;) {
            mixed.emplace_back(random.below(random.below(3) == 0 ? 600 : 9000));
            plain.emplace_back(random.below(random.below(3) == 0 ? 600 : 9000));
            total += mixed.back().param.size() + plain.back().param.size();
        }
        mixed_alone = mixed;
        plain_alone = plain;
        std::vector<grouped_shard> views;
        for (std::size_t i = 0; i < mixed.size(); ++i) {
            views.push_back({mixed[i].view(), random.below(2)});
            views.push_back({plain[i].view(), random.below(2)});
            // Adjacent shards need no other prefetches, so some shards are split in two.
            if (std::size_t const n = mixed[i].param.size(); n > 2048) {
                auto const part = [&](std::size_t begin, std::size_t end) {
                    mixed_tensor& t = mixed[i];
                    return shard(t.param.data() + begin, t.grad.data() + begin, t.exp_avg.data() + begin,
                                 t.exp_avg_sq.data() + begin, t.weight_out.data() + begin, end - begin);
                };
                std::size_t const group = views[views.size() - 2].group;
                views[views.size() - 2] = {part(0, 1088), group};
                views.insert(views.end() - 1, {part(1088, n), group});
            }
        }
        shard_list const list(views);
        std::vector<coefficients> const c = {make_coefficients(usual_adamw, 1),
                                             make_coefficients({.lr = 1e-2, .mode = decay_mode::l2}, 1)};
        executor const cpu({.threads = 3});
        executor const alone({.threads = 1});
        CHECK(step(cpu, list, c).nonfinite_grads == 0);
        std::size_t next = 0;
        std::size_t differ = 0;
        for (std::size_t i = 0; i < mixed.size(); ++i) {
            std::size_t const group = list[next].group;
            next += mixed[i].param.size() > 2048 ? 2 : 1;
            step(alone, mixed_alone[i].view(), c[group]);
            step(alone, plain_alone[i].view(), c[list[next++].group]);
            differ += !(mixed[i] == mixed_alone[i]) + !(plain[i] == plain_alone[i]);
        }
        CHECK(differ == 0);
    }
}

TEST_CASE("a list of shards of any format has the bits of each stepped alone")
{
    executor const cpu({.threads = 1});
    test::random_bits random(12);
    std::vector<std::size_t> const small{1, 3, 17, 63, 64, 200};
    std::vector<std::size_t> const large{1024, 120000, 1500, 64, 5, 140000, 4097}; // shards prefetch the next
    std::vector<std::pair<shard_format, std::vector<std::size_t>>> lists;
    for (shard_format const& format : all_formats()) {
        lists.emplace_back(format, small);
        if (random.below(4) == 0) // of every format they would take seconds
            lists.emplace_back(format, large);
    }
    for (auto const& list : lists) {
        shard_format const& format = list.first; // Clang 14 refuses a lambda that uses a structured binding
        std::vector<std::vector<test::array>> together, alone;
        for (std::size_t const n : list.second) {
            std::vector<test::array> arrays;
            for (std::size_t a = 0; a < shard_arrays; ++a) {
                arrays.emplace_back(format.types[a], n, a); // misaligned
                for (std::size_t i = 0; i < arrays[a].size(); ++i)
                    arrays[a].set(i, a < 2 || (a == shard_array::weight_out && has_split_param(format.types))
                                         ? test::value_of(test::values::ordinary, random, -6, -1)
                                         : 0.0f);
            }
            together.push_back(arrays);
            alone.push_back(arrays);
        }
        auto const view = [&](std::vector<test::array>& arrays) {
            return any_shard(format,
                             {arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data(), arrays[4].data()},
                             arrays[1].size());
        };
        std::vector<any_shard> shards;
        for (std::vector<test::array>& arrays : together)
            shards.push_back(view(arrays));
        hyperparameters nearest = usual_adamw;
        nearest.rounding.exp_avg_sq = rounding::nearest;
        step(cpu, shard_list(shards), nearest, 3);
        INFO(to_text(format.types));
        for (std::size_t t = 0; t < together.size(); ++t) {
            step(cpu, view(alone[t]), nearest, 3);
            for (std::size_t a = 0; a < shard_arrays; ++a) {
                INFO(shard_array::names[a]);
                REQUIRE(together[t][a].difference(alone[t][a]) == "");
            }
        }
    }
}

TEST_CASE("a float weight_out is a copy of the params, and everything else has the bits of a step without one")
{
    executor const cpu({.threads = 3, .min_slice_elems = 64});
    for (std::size_t const n : test::sizes{0, 1, 63, 64, 4095, 4097, 70001}) {
        mixed_tensor copied(n);
        mixed_tensor without = copied, listed = copied;
        std::vector<float> copy(n, 7.0f), listed_copy(n, 7.0f);
        auto const view = [](mixed_tensor& t, std::vector<float>& to) {
            return shard(t.param, t.grad, t.exp_avg, t.exp_avg_sq, to);
        };
        CHECK(any_shard(view(copied, copy)).bytes_per_element() == 30);
        for (unsigned t = 1; t <= 2; ++t) {
            step(cpu, view(copied, copy), usual_adamw, t);
            step(cpu, shard(without.param, without.grad, without.exp_avg, without.exp_avg_sq), usual_adamw, t);
            step(cpu, shard_list(std::vector<any_shard>{view(listed, listed_copy)}), usual_adamw, t);
        }
        CHECK(copied == without);
        CHECK(listed == without);
        CHECK(copy == without.param);
        CHECK(listed_copy == without.param);
    }
}

TEST_CASE(
    "shards that overlap in what a step writes, and coefficients that are missing, are errors before anything happens")
{
    plain_tensor a(100), b(100);
    auto const between = [](plain_tensor& t, std::size_t begin, std::size_t n) {
        return shard(t.param.data() + begin, t.grad.data() + begin, t.exp_avg.data() + begin,
                     t.exp_avg_sq.data() + begin, n);
    };
    CHECK_NOTHROW(shard_list(std::vector<any_shard>{between(a, 0, 50), b.view(), between(a, 50, 50)}));
    try {
        shard_list const bad(std::vector<any_shard>{b.view(), between(a, 0, 51), between(a, 50, 50)});
        FAIL("overlapping shards were taken");
    } catch (invalid_argument const& e) {
        CHECK(std::string(e.what()).find(" of shard 1 and ") != std::string::npos);
        CHECK(std::string(e.what()).find(" of shard 2 overlap in memory") != std::string::npos);
    }
    // Of gradients two shards may share one; where one is written elsewhere they may not.
    shard const shares_grad(b.param.data(), a.grad.data(), b.exp_avg.data(), b.exp_avg_sq.data(), 100);
    CHECK_NOTHROW(shard_list(std::vector<any_shard>{a.view(), shares_grad}));
    plain_tensor c(100);
    shard const reads_param(b.param.data(), a.param.data(), b.exp_avg.data(), b.exp_avg_sq.data(), 100);
    CHECK_THROWS_AS(shard_list(std::vector<any_shard>{a.view(), reads_param}), invalid_argument);
    CHECK_THROWS_AS(shard_list(std::vector<any_shard>{c.view(), reads_param, a.view()}), invalid_argument);

    for (std::size_t const group : {SIZE_MAX, SIZE_MAX - 1}) // SIZE_MAX + 1 is 0
        CHECK_THROWS_AS(step(executor({.threads = 1}), shard_list(std::vector<grouped_shard>{{a.view(), group}}),
                             std::vector{make_coefficients(usual_adamw, 1)}),
                        invalid_argument);

    plain_tensor const before = a;
    shard_list const two(std::vector<grouped_shard>{{a.view(), 0}, {b.view(), 1}});
    executor const cpu({.threads = 1});
    coefficients const one = make_coefficients(usual_adamw, 1);
    CHECK_THROWS_AS(step(cpu, two, std::span(&one, 1)), invalid_argument);
    CHECK_THROWS_AS(step(cpu, two, usual_adamw, 1), invalid_argument);
    CHECK_THROWS_AS(step(cpu, two, {.lr = -1}, 1), invalid_argument);
    CHECK(a == before);
}
