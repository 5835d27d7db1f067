// SPDX-License-Identifier: Apache-2.0
// Gradients that are spread over ranks, each an optimizer of its own: one norm, and the bits of a single process.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include <adamant/optimizer.hpp>
#include <adamant/step.hpp>

#include "catch.hpp"
#include "exact_sum.hpp"
#include "slow_optimizer.hpp"

using namespace adamant;
using namespace slow;

namespace {

#if defined(_OPENMP)
constexpr unsigned most_threads = 2;
#else
constexpr unsigned most_threads = 1;
#endif

// Adds the words of all ranks, in the order in which they come.
class all_reduce {
public:
    explicit all_reduce(std::size_t ranks) : arrived_(static_cast<std::ptrdiff_t>(ranks)) {}
    void operator()(std::span<std::int64_t> words)
    {
        {
            std::lock_guard const lock(mutex_);
            sums_.resize(words.size());
            for (std::size_t i = 0; i < words.size(); ++i)
                sums_[i] += words[i];
        }
        arrived_.arrive_and_wait();
        std::ranges::copy(sums_, words.begin());
        arrived_.arrive_and_wait();
        {
            std::lock_guard const lock(mutex_);
            sums_.clear();
        }
        arrived_.arrive_and_wait(); // or a quick rank's next words would be cleared
    }

private:
    std::mutex mutex_;
    std::vector<std::int64_t> sums_;
    std::barrier<> arrived_;
};

// 0: without a team. No rank waits for another's threads.
executor own_executor(unsigned threads)
{
    if (threads == 0)
        return executor({.threads = 1});
    return executor(std::make_shared<team>(team_options{.threads = threads, .bind = binding::none}));
}

// What a rank has of the parameter, as shards: [begin, end).
using cuts = std::vector<std::pair<std::size_t, std::size_t>>;

shard<float, bfloat16, float, float, bfloat16> part_of(simple& all, std::size_t begin, std::size_t end)
{
    return {all.param.data() + begin,      all.grad.data() + begin,       all.exp_avg.data() + begin,
            all.exp_avg_sq.data() + begin, all.weight_out.data() + begin, end - begin};
}

void draw(simple& all, test::random_bits& random)
{
    for (std::size_t i = 0; i < all.n; ++i)
        all.grad[i] = narrow<bfloat16>(test::with_exponent(random(), -14, i % 5000 < 3 ? 2 : -4));
}

} // namespace

TEST_CASE("Any cut, order of shards and number of ranks has the norm and the bits of one process", "[both]")
{
    std::size_t const n = 37 * norm_block_elems + 333;
    for (std::uint64_t seed = 1; seed <= 12; ++seed) {
        test::random_bits random(seed);
        simple one(n), many(n);
        one.spread();
        many.spread();
        optimizer alone(executor_of(1), {.max_norm = 0.5});
        alone.add_group("all", usual_adamw);
        alone.add_shard({.group = 0, .name = "w", .shard = one.view()});

        std::size_t const ranks = 1 + random.below(4);
        std::vector<cuts> parts(ranks);
        for (std::size_t begin = 0; begin < n;) {
            std::size_t const end = std::min(n, begin + (1 + random.below(9)) * norm_block_elems);
            parts[random.below(ranks)].emplace_back(begin, end);
            begin = end;
        }
        all_reduce reduce(ranks);
        std::vector<optimizer> optimizers;
        for (cuts& part : parts) {
            for (std::size_t k = part.size(); k > 1; --k)
                std::swap(part[k - 1], part[random.below(k)]);
            optimizer& rank = optimizers.emplace_back(
                own_executor(static_cast<unsigned>(random.below(most_threads + 1))),
                optimizer_options{.max_norm = 0.5, .reduce = [&](std::span<std::int64_t> words) { reduce(words); }});
            rank.add_group("all", usual_adamw);
            for (auto const& [begin, end] : part)
                rank.add_shard({.group = 0,
                                .name = "w",
                                .shard = part_of(many, begin, end),
                                .position = {.shape = {n}, .begin = begin}});
        }
        for (int t = 0; t < 3; ++t) {
            draw(one, random);
            many.grad = one.grad;
            double const norm = alone.step().global_norm;
            std::vector<double> norms(ranks);
            std::vector<std::thread> threads;
            for (std::size_t r = 0; r < ranks; ++r)
                threads.emplace_back([&, r, how = random.below(3)] {
                    optimizer& rank = optimizers[r];
                    if (how == 0) {
                        norms[r] = rank.step().global_norm;
                    } else if (how == 1) {
                        norms[r] = rank.step_async().wait().global_norm;
                    } else {
                        rank.begin_step();
                        for (std::size_t k = parts[r].size(); k-- > 0;)
                            rank.submit(k);
                        norms[r] = rank.finish().global_norm;
                    }
                });
            for (std::thread& each : threads)
                each.join();
            INFO("seed " << seed << ", " << ranks << " ranks, step " << t);
            REQUIRE(norms == std::vector<double>(ranks, norm));
            REQUIRE(one == many);
        }
    }
}

TEST_CASE("The norm is the exact sum of the blocks' sums, rounded once, by calls as by an optimizer")
{
    test::random_bits random(5);
    simple data(20 * norm_block_elems + 17);
    draw(data, random);
    test::exact_sum exact;
    for (std::size_t at = 0; at < data.n; at += norm_block_elems)
        exact.add(reference::block_squares<bfloat16>(reinterpret_cast<std::byte const*>(data.grad.data() + at),
                                                     std::min(norm_block_elems, data.n - at))
                      .sum);
    executor const cpu = executor_of(1);
    CHECK(sum_of_squares(cpu, data.grad).sum == exact.rounded());
    squares_total backwards;
    for (std::size_t at = data.n - 17; at > 0; at -= 4 * norm_block_elems)
        add_squares(cpu, std::span(data.grad).subspan(at - 4 * norm_block_elems, 4 * norm_block_elems), backwards);
    add_squares(cpu, std::span(data.grad).last(17), backwards);
    CHECK(backwards.rounded().sum == exact.rounded());
    squares_total const before = backwards;
    CHECK_THROWS_AS(add_squares(cpu, static_cast<float const*>(nullptr), 5, backwards), invalid_argument);
    CHECK_THROWS_AS(add_squares(cpu, data.grad.data(), dtype::none, 5, backwards), invalid_argument);
    CHECK(backwards == before);
    optimizer o(cpu, {.max_norm = 1});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    CHECK(o.step().global_norm == std::sqrt(exact.rounded()));
}

TEST_CASE("Without a use for the norm, gradients are read once, and the report says so")
{
    auto const report_of = [](optimizer_options const& options, step_values const& values = {}) {
        simple data(3 * norm_block_elems + 5), expected(data.n);
        data.spread();
        expected.spread();
        optimizer o(executor_of(1), options);
        o.add_group("all", usual_adamw);
        o.add_shard({.group = 0, .name = "w", .shard = data.view()});
        optimizer_report const report = o.step(values);
        std::size_t const bytes = any_shard(data.view()).bytes_moved();
        CHECK(report.bytes_moved() == bytes + (report.measured && (options.on_nonfinite == nonfinite_policy::skip ||
                                                                   values.max_norm || options.reduce)
                                                   ? data.n * sizeof(bfloat16)
                                                   : 0));
        CHECK(std::isnan(report.global_norm) == !report.measured);
        if (!report.measured) {
            step(executor_of(1), any_shard(expected.view()), usual_adamw, 1);
            CHECK(data == expected);
        }
        return report;
    };
    CHECK(report_of({}).measured); // skip
    CHECK(!report_of({.on_nonfinite = nonfinite_policy::apply}).measured);
    CHECK(report_of({.on_nonfinite = nonfinite_policy::zero}).measured);
    CHECK(report_of({.on_nonfinite = nonfinite_policy::apply}, {.max_norm = 1e300}).measured);
    CHECK(!report_of({.on_nonfinite = nonfinite_policy::apply}, {.max_abs_grad = 1e9}).measured);
    CHECK(!report_of({.on_nonfinite = nonfinite_policy::apply, .keep_last_step = false}, {.lr = {}}).measured);
    optimizer_options scaled{.on_nonfinite = nonfinite_policy::apply};
    scaled.loss_scaling = loss_scaling_options{.initial_scale = 1};
    CHECK(report_of(scaled).measured);
    CHECK(!report_of(scaled, {.loss_scale = 1}).measured); // the step's own, which does not move the scaler
    optimizer_options reduces{.on_nonfinite = nonfinite_policy::apply};
    reduces.reduce = [](std::span<std::int64_t>) {};
    CHECK(report_of(reduces).measured);

    simple data(norm_block_elems);
    data.grad[7] = narrow<bfloat16>(std::nanf(""));
    optimizer o(executor_of(1), {.on_nonfinite = nonfinite_policy::apply});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    optimizer_report const report = o.step();
    CHECK((!report.measured && report.nonfinite_grads == 0 && !report.first_nonfinite));
    CHECK(report.outcome == step_outcome::applied);
    CHECK(std::isnan(data.param[7]));
}

TEST_CASE("With one thread the caller steps by itself; only what goes on without it needs a thread", "[once]")
{
    auto const threads = [] {
        std::size_t n = 0;
        for ([[maybe_unused]] auto const& task : std::filesystem::directory_iterator("/proc/self/task"))
            ++n;
        return n;
    };
    std::size_t const before = threads();
    simple data(300000);
    optimizer o(executor({.threads = 1}), {.max_norm = 0.1, .keep_last_step = true});
    o.add_group("all", usual_adamw);
    o.add_shard({.group = 0, .name = "w", .shard = data.view()});
    o.prepare(false);
    std::uint64_t const blocks = o.cpu_blocks_done();
    o.step();
    CHECK(o.cpu_blocks_done() - blocks == 2 * (data.n / norm_block_elems + 1));
    o.rollback();
    o.step();
    CHECK(threads() == before);
    o.begin_step();
    CHECK(threads() > before);
    o.submit(0);
    o.finish();
    o.step();
    CHECK(o.step_async().wait().step == 4);
    // A small model is stepped in submit(), without a thread.
    std::size_t const with_one = threads();
    simple little(5000);
    optimizer small(executor({.threads = 1}), {.max_norm = 0.1});
    small.add_group("all", usual_adamw);
    small.add_shard({.group = 0, .name = "w", .shard = little.view()});
    small.begin_step();
    small.submit(0);
    CHECK(threads() == with_one);
    CHECK(small.finish().step == 1);
}
