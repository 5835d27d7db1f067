// SPDX-License-Identifier: Apache-2.0
// How many cores are enough, on curves that are made up; and what is said about samples of times.
#include <cmath>
#include <random>
#include <set>

#include <adamant/tune.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;

namespace {

// Work that is divided perfectly until memory is full, with noise, and now and then somebody else on the machine.
class made_up_machine {
public:
    made_up_machine(double cores_to_fill_memory, double noise, unsigned seed)
        : full_(cores_to_fill_memory), noise_(noise), random_(seed)
    {
    }
    double operator()(unsigned cores)
    {
        asked.insert(cores);
        double const seconds = 1 / std::min(static_cast<double>(cores), full_);
        if (noise_ == 0)
            return seconds;
        double const neighbor = std::bernoulli_distribution(0.1)(random_) ? 1.5 : 1;
        return seconds * neighbor * std::exp(std::normal_distribution<double>(0, noise_)(random_));
    }
    std::set<unsigned> asked;

private:
    double full_;
    double noise_;
    std::mt19937 random_;
};

bool never()
{
    return false;
}

} // namespace

TEST_CASE("tune: the knee of a curve is found where it is, and all cores where there is none")
{
    for (unsigned const cores : {1u, 2u, 5u, 16u, 72u, 128u})
        for (unsigned knee = 1; knee <= cores; knee += 1 + knee / 8) {
            made_up_machine machine(knee, 0, 0);
            core_search_result const found = search_cores(cores, std::ref(machine), never);
            INFO("of " << cores << ", memory is full with " << knee);
            CHECK(found.cores == knee);
            CHECK(found.finished);
            CHECK((cores == 1 || !found.comparisons.empty()));
            CHECK(found.curve.size() == machine.asked.size());
        }
}

TEST_CASE("tune: noise of a shared machine moves the knee by little")
{
    int far_off = 0;
    for (unsigned const cores : {2u, 16u, 72u})
        for (unsigned const knee : {1u, 2u, 6u, 12u, 40u, 72u})
            for (unsigned seed = 0; knee <= cores && seed < 20; ++seed) {
                made_up_machine machine(knee, 0.05, seed);
                core_search_result const found = search_cores(cores, std::ref(machine), never);
                INFO("of " << cores << ", memory is full with " << knee << ", seed " << seed);
                unsigned const off = found.cores > knee ? found.cores - knee : knee - found.cores;
                CHECK(off <= 1 + knee / 4);
                far_off += off > knee / 8;
            }
    CHECK(far_off <= 3); // of 240
}

TEST_CASE("tune: a core that brings little is not taken, one that brings its share is")
{
    auto const rising = [](double share) { // each core brings this share of what the first one does
        return [share](unsigned cores) { return 1 / (1 + share * (cores - 1)); };
    };
    CHECK(search_cores(8, rising(0.9), never).cores == 8);
    CHECK(search_cores(8, rising(0.1), never, {.worth = 0.25}).cores == 1);
    CHECK(search_cores(8, rising(0.3), never, {.worth = 0.25}).cores == 8);
    CHECK(search_cores(8, rising(0.9), never, {.worth = 0.95}).cores == 1);
    // From there on each more is in the way of the others.
    auto const worse = [](unsigned cores) { return cores <= 5 ? 1.0 / cores : 0.2 + 0.01 * cores; };
    CHECK(search_cores(64, worse, never).cores == 5);
}

TEST_CASE("tune: an odd core that brings nothing does not end the search, nor does a node that is full")
{
    auto const by_pairs = [](unsigned cores) { return 1.0 / std::max(1u, cores / 2 * 2); };
    CHECK(search_cores(12, by_pairs, never).cores == 12);
    // Two nodes of 32 cores; each one's memory is full with 12.
    auto const two_nodes = [](unsigned cores) {
        double const first = std::min(cores, 12u);
        double const second = cores <= 32 ? 0 : std::min(cores - 32, 12u);
        return 1 / (first + second);
    };
    CHECK(search_cores(64, two_nodes, never).cores == 12);
    // Dies of eight cores with a cache, and a way to memory that three of them fill.
    auto const dies = [](unsigned cores) {
        double sum = 0;
        for (unsigned first = 0; first < cores; first += 8)
            sum += std::min(cores - first, 3u);
        return 1 / sum;
    };
    core_search_options by_die;
    for (unsigned count = 8; count < 96; count += 8)
        by_die.boundaries.push_back(count);
    unsigned const on_dies = search_cores(96, dies, never, by_die).cores;
    CHECK(on_dies >= 88 + 2);
    CHECK(on_dies <= 88 + 3);
    core_search_result const found = search_cores(64, two_nodes, never, {.boundaries = {32, 64}});
    CHECK(found.cores == 44);
}

TEST_CASE("tune: when time is up what is known so far is the answer, and it says so")
{
    made_up_machine machine(64, 0, 0);
    int rounds = 0;
    core_search_result const found = search_cores(64, std::ref(machine), [&] { return ++rounds > 20; });
    CHECK_FALSE(found.finished);
    CHECK(found.cores == 3); // nine rounds each
    core_search_result const nothing = search_cores(64, std::ref(machine), [] { return true; });
    CHECK_FALSE(nothing.finished);
    CHECK(nothing.cores == 1);
    CHECK(nothing.curve.empty());
}

TEST_CASE("tune: two counts are not told apart for sure by fewer rounds than that takes")
{
    auto const luck = [turn = 0](unsigned cores) mutable { return ++turn <= 2 ? 1.0 / cores : 1.0; };
    core_search_result const found = search_cores(2, luck, never, {.rounds = 1, .most_rounds = 20});
    CHECK(found.cores == 1);
    CHECK(found.comparisons.front().sure);
    CHECK(found.comparisons.front().fewer == 1);
}

TEST_CASE("tune: how flat a curve is")
{
    std::vector<core_time> const curve = {{.cores = 1, .median_s = 4},
                                          {.cores = 2, .median_s = 2.1},
                                          {.cores = 3, .median_s = 2.0},
                                          {.cores = 4, .median_s = 2.02}};
    CHECK(fewest_within(curve, 0) == 3);
    CHECK(fewest_within(curve, 0.06) == 2);
    CHECK(fewest_within(curve, 1) == 1);
    CHECK(fewest_within({}, 1) == 0);
}

TEST_CASE("tune: options that cannot be are refused")
{
    auto const one = [](unsigned) { return 1.0; };
    CHECK(test::mentions(test::refusal([&] { (void)search_cores(0, one, never); }), {"0 cores"}));
    CHECK(test::mentions(test::refusal([&] { (void)search_cores(2, one, never, {.worth = 0}); }), {"worth is 0"}));
    CHECK(test::mentions(test::refusal([&] { (void)search_cores(2, one, never, {.confidence = 1}); }),
                         {"confidence is 1"}));
    CHECK(test::mentions(test::refusal([&] { (void)search_cores(2, one, never, {.rounds = 9, .most_rounds = 8}); }),
                         {"rounds is 9 and most_rounds is 8"}));
}

TEST_CASE("the range of a median is as sure as it says")
{
    CHECK(quantile({3, 1, 2}, 0.5) == 2);
    CHECK(quantile({4, 1, 2, 3}, 0.5) == 2.5);
    CHECK(quantile({1, 2}, 0.1) == 1.1);
    CHECK(quantile({7}, 0.9) == 7);
    CHECK(test::mentions(test::refusal([] { (void)median({}); }), {"no values"}));
    CHECK(test::mentions(test::refusal([] { (void)quantile({1}, 1.5); }), {"1.5"}));
    CHECK(test::mentions(test::refusal([] { (void)range_of_median({}, 0.5); }), {"no values"}));
    CHECK(test::mentions(test::refusal([] { (void)range_of_median({1}, 1); }), {"between 0 and 1"}));
    // The table of the sign test: of 9 values, from the second to the eighth, 1 - 20 / 512.
    median_range const nine = range_of_median({1, 2, 3, 4, 5, 6, 7, 8, 9}, 0.95);
    CHECK(nine.low == 2);
    CHECK(nine.high == 8);
    CHECK(std::abs(nine.confidence - (1 - 20.0 / 512)) < 1e-12);
    CHECK(range_of_median({1, 2, 3}, 0.95).low == 1);
    CHECK(std::abs(range_of_median({1, 2, 3}, 0.95).confidence - 0.75) < 1e-12);
    CHECK(std::abs(range_of_median({5}, 0.95).confidence) < 1e-12);
    // Of many: by the normal approximation 2.576 * sqrt(10000) / 2 = 129 from the middle.
    std::vector<double> many(10000);
    for (std::size_t i = 0; i < many.size(); ++i)
        many[i] = static_cast<double>(i);
    CHECK(std::abs(range_of_median(many, 0.99).low - (5000 - 129)) <= 2);
    CHECK(std::abs(range_of_median(many, 0.99).high - (4999 + 129)) <= 2);
    // Of skewed samples, as often as promised; and no wider than it has to be.
    std::mt19937 random(1);
    for (std::size_t const n : test::sizes{6, 7, 15, 40, 101}) {
        int inside = 0;
        for (int i = 0; i < 2000; ++i) {
            std::vector<double> sample(n);
            for (double& x : sample)
                x = std::exponential_distribution<double>(1)(random);
            median_range const range = range_of_median(sample, 0.9);
            CHECK(range.confidence >= 0.9);
            inside += range.low <= std::log(2) && std::log(2) <= range.high;
        }
        CHECK(inside >= 2000 * 0.88);
        CHECK((n < 15 || inside <= 2000 * 0.97));
    }
}
