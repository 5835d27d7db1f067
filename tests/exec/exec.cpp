// SPDX-License-Identifier: Apache-2.0
// Slices and the executor.
#include <atomic>
#include <cstdlib>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <adamant/executor.hpp>
#include <adamant/detail/exec/striped_total.hpp>
#include <adamant/detail/exec/useful_threads.hpp>
#include <adamant/detail/exec/work_stealing.hpp>
#include <adamant/detail/topology/allowed.hpp>

#include "catch.hpp"

using namespace adamant;

TEST_CASE("chunks are in order, disjoint, complete and fair, past 2^32 elements too; homes as well", "[slow]")
{
    test::random_bits random(1);
    std::vector<std::size_t> sizes = {0,
                                      1,
                                      63,
                                      64,
                                      65,
                                      1000,
                                      (std::size_t{1} << 31) + 7,
                                      (std::size_t{1} << 32) + 1,
                                      (std::size_t{1} << 40) + 12345,
                                      std::numeric_limits<std::size_t>::max() / 8};
    for (int i = 0; i < 200; ++i)
        sizes.push_back(random() >> (3 + random() % 61));
    for (std::size_t const n : sizes)
        for (unsigned const threads : {1u, 2u, 3u, 7u, 64u, 97u})
            for (std::size_t const least : test::sizes{1, 100, 16384}) {
                chunking const cut = chunks_of(n, threads, least);
                REQUIRE(cut.threads >= 1);
                REQUIRE(cut.threads <= threads);
                REQUIRE((cut.threads == 1 || n / cut.threads >= least));
                REQUIRE((cut.threads == threads || n / (cut.threads + 1) < least || n <= cut.threads * granule_elems));
                REQUIRE(cut.chunks >= cut.threads);
                REQUIRE(cut.chunks <= detail::work_stealing_queues::max_chunks);
                REQUIRE(cut.elements(0, cut.chunks).begin == 0);
                REQUIRE(cut.elements(0, cut.chunks).end == n);
                slice const last = cut.elements(cut.chunks - 1, cut.chunks);
                REQUIRE((last.size() > 0 || n == 0));
                // Sizes of chunks, and those of threads with equally many, differ by at most a granule.
                std::size_t const granules = n / granule_elems + (n % granule_elems != 0);
                std::size_t const shortest = granules / cut.chunks * granule_elems;
                REQUIRE(shortest <= std::max<std::size_t>(default_max_chunk_elems, n / 0xff000000 + granule_elems));
                std::size_t next = 0;
                for (std::size_t i = 0; i + 1 < std::min<std::size_t>(cut.chunks, 300); ++i) {
                    slice const chunk = cut.elements(i, i + 1);
                    REQUIRE(chunk.begin == next);
                    REQUIRE(chunk.end % granule_elems == 0);
                    REQUIRE(chunk.size() >= shortest);
                    REQUIRE(chunk.size() <= shortest + granule_elems);
                    next = chunk.end;
                }
                bool const is_even = cut.chunks % cut.threads == 0;
                REQUIRE((is_even || cut.chunks + cut.threads > granules));
                std::size_t const least_home = granules / cut.threads * granule_elems;
                std::size_t expected_begin = 0;
                for (unsigned t = 0; t < cut.threads; ++t) {
                    slice const home = cut.home(t);
                    REQUIRE(home.begin == expected_begin);
                    REQUIRE((!is_even || t + 1 == cut.threads || home.size() >= least_home));
                    REQUIRE((!is_even || home.size() <= least_home + granule_elems));
                    REQUIRE(home.size() + 2 * default_max_chunk_elems >= n / cut.threads);
                    expected_begin = home.end;
                }
                REQUIRE(expected_begin == n);
            }
}

TEST_CASE("an executor says what it uses")
{
    executor const cpu;
    CHECK(cpu.tier() == test::tier());
    CHECK(cpu.threads() >= 1);
    CHECK((cpu.team() == nullptr) == (cpu.threads() == 1));
    CHECK(executor({.tier = isa::scalar, .threads = 1}).tier() == isa::scalar);
    CHECK(executor({.threads = 1}).threads() == 1);
    CHECK(executor({.threads = 1}).team() == nullptr);
}

TEST_CASE("one thread is the caller's, unless it is said where it is to be: then it is one of its own, there")
{
    CHECK(executor({.threads = 1, .bind = binding::none}).team() == nullptr);
#if !defined(ADAMANT_NO_HWLOC)
    unsigned const last = detail::select_pus(0).members().back();
    for (executor_options const& options : {executor_options{.threads = 1, .pus = {last}},
                                            executor_options{.pus = {last}, .bind = binding::if_possible}}) {
        executor const cpu(options);
        CHECK(cpu.threads() == 1);
        REQUIRE(cpu.team() != nullptr);
        CHECK(cpu.team()->bound_to() == pu_set{last});
    }
    for (binding const bind : {binding::required, binding::if_possible}) {
        executor const cpu({.threads = 1, .bind = bind});
        REQUIRE(cpu.team() != nullptr);
        CHECK(cpu.team()->bound());
    }
    CHECK_THROWS_AS(executor({.threads = 1, .pus = {60000}}), unavailable);
#else
    CHECK_THROWS_AS(executor({.threads = 1, .pus = {0}, .bind = binding::required}), unavailable);
#endif
    executor const unbound({.threads = 1, .pus = {0}, .bind = binding::none}); // of its own all the same
    REQUIRE(unbound.team() != nullptr);
    CHECK_FALSE(unbound.team()->bound());
}

TEST_CASE("an executor on a team refuses options that say otherwise of its threads, and names both")
{
    pu_set const one = {detail::select_pus(1).front()};
    auto const free = std::make_shared<team>(team_options{.pus = one, .threads = 1, .bind = binding::none});
    auto const refusal = [](std::shared_ptr<team> const& on, executor_options const& options) -> std::string {
        try {
            executor const cpu(on, options);
        } catch (invalid_argument const& e) {
            return e.what();
        }
        return "taken";
    };
    auto const says = [](std::string const& text, std::initializer_list<std::string> words) {
        return std::all_of(words.begin(), words.end(), [&](auto& word) { return text.find(word) != text.npos; });
    };
    CHECK(refusal(free, {}) == "taken");
    CHECK(refusal(free, {.threads = 1, .pus = one, .bind = binding::none}) == "taken");
    CHECK(says(refusal(free, {.threads = 3}), {"3 threads", "the team has 1"}));
    CHECK(says(refusal(free, {.pus = {4, 5, 6}}), {"4-6", to_list(one)}));
    CHECK(says(refusal(free, {.bind = binding::required}), {"unbound threads"}));
    CHECK(says(refusal(free, {.bind = binding::if_possible}), {"unbound threads"}));
#if !defined(ADAMANT_NO_HWLOC)
    auto const bound = std::make_shared<team>(team_options{.pus = one});
    CHECK(refusal(bound, {.threads = 1, .pus = one, .bind = binding::required}) == "taken");
    CHECK(refusal(bound, {.bind = binding::if_possible}) == "taken");
    CHECK(says(refusal(bound, {.bind = binding::none}), {"bound to PUs " + to_list(one)}));
#endif
}

TEST_CASE("as many threads as finish a call soonest, by the cost of a hand-over")
{
    using std::chrono::nanoseconds;
    CHECK(detail::worthwhile_slice_elems({}) == 16384); // no team
    CHECK(detail::worthwhile_slice_elems({.two = nanoseconds(1)}) == 4096);
    CHECK(detail::worthwhile_slice_elems({.two = nanoseconds(400)}) == 8000);
    CHECK(detail::worthwhile_slice_elems({.two = nanoseconds::max()}) == 16384);
    CHECK(detail::work_time(std::size_t{1} << 20, step_elem_bytes) == nanoseconds(209715));
    CHECK(detail::elems_of_equal_work(4096, step_elem_bytes) == 4096);
    CHECK(detail::elems_of_equal_work(4096, 2) == 57344);
    CHECK(detail::elems_of_equal_work(4096, 0) == 4096);
    CHECK(detail::elems_of_equal_work(~std::size_t{0}, 2) == ~std::size_t{0});
    std::mt19937_64 random(3);
    for (int i = 0; i < 100000; ++i) {
        std::size_t const elems = random() >> random() % 64;
        std::size_t const elem_bytes = i % 2 == 0 ? random() % 33 : random() >> random() % 64;
        std::size_t const edge = detail::elems_of_equal_work(elems, elem_bytes); // and around it
        std::size_t const n = i % 3 == 0 ? random() >> random() % 64 : 2 * edge + random() % 5 - 2;
        INFO(n << " elements of " << elem_bytes << " bytes, " << elems);
        REQUIRE(detail::is_small_work(n, elem_bytes, elems) == (n / 2 < edge));
    }
    CHECK(detail::work_time(~std::size_t{0}, ~std::size_t{0}) > std::chrono::minutes(10));
    for (std::int64_t const each : {0, 1, 70, 210, 300})
        for (unsigned const threads : {1u, 2u, 3u, 72u, 192u, 8192u})
            for (std::int64_t work = 0; work < 1'000'000'000; work = 3 * work + 1) {
                auto const takes = [&](unsigned k) {
                    return static_cast<double>(work) / k + static_cast<double>(each * k);
                };
                unsigned const chosen = detail::fastest_threads(nanoseconds(work), {{}, nanoseconds(each)}, threads);
                INFO("each " << each << ", threads " << threads << ", work " << work << ": " << chosen);
                REQUIRE((chosen >= std::min(2u, threads) && chosen <= threads));
                // Neighbours are no better, but for the rounding of the root, where one thread more is as good.
                REQUIRE((chosen == threads || takes(chosen) <= takes(chosen + 1) + static_cast<double>(each)));
                REQUIRE((chosen <= 2 || takes(chosen) <= takes(chosen - 1)));
            }
    // Threads that share PUs take long to start together. That many threads were the caller's choice.
    CHECK(detail::fastest_threads(nanoseconds(15'000), {{}, std::chrono::milliseconds(1)}, 16) == 7);
#if defined(_OPENMP)
    CHECK(team({.pus = {}, .threads = 1, .bind = binding::none}).hand_over().two.count() == 0);
    for (unsigned const threads : {2u, 5u}) {
        executor const cpu({.threads = threads});
        hand_over_cost const cost = cpu.team()->hand_over();
        CHECK((cost.two.count() > 0 && cost.each.count() >= 0 && (threads > 2 || cost.each.count() == 0)));
        for (std::size_t n = 1; n < std::size_t{1} << 40; n = 3 * n + 1) {
            unsigned most = detail::fastest_threads(detail::work_time(n, step_elem_bytes), cost, threads);
            if (n / 2 < detail::worthwhile_slice_elems(cost))
                most = 1;
            chunking const expected = chunks_of(n, most, min_chunk_elems);
            CHECK((cpu.chunks(n).threads == expected.threads && cpu.chunks(n).chunks == expected.chunks));
        }
        CHECK(cpu.chunks(2 * 4096 - 1).threads == 1);
        // Chunks of work that moves few bytes have more elements, so that taking one costs as little.
        CHECK(cpu.chunks(std::size_t{1} << 20, sizeof(float)).elements(0, 1).size() >= std::size_t{7} * 4096 / 2);
        CHECK(cpu.chunks(std::size_t{1} << 20).elements(0, 1).size() < std::size_t{1} << 16);
        CHECK(cpu.chunks(2 * 16384).threads >= 2);
        CHECK(cpu.chunks(std::size_t{1} << 40).threads == threads);
        unsigned before = 1;
        for (std::size_t n = 1; n < std::size_t{1} << 40; n *= 2) {
            CHECK(cpu.chunks(n).threads >= before);
            before = cpu.chunks(n).threads;
        }
    }
#endif
}

TEST_CASE("striped_total: the sum is exact, and add() does not wait for another thread in add()")
{
    struct total {
        long value = 0;
        void add(total const& other) noexcept { value += other.value; }
    };
    for (unsigned const threads : {1u, 3u, 40u}) { // more than stripes
        detail::striped_total<total> sum;
        std::vector<std::thread> adding;
        for (unsigned t = 0; t < threads; ++t)
            adding.emplace_back([&, t] {
                for (long i = 0; i < 1000; ++i)
                    sum.add(t, {i});
            });
        for (std::thread& t : adding)
            t.join();
        CHECK(sum.sum().value == 499'500L * threads);
    }
    struct slow {
        long value = 0;
        void add(slow const& other) noexcept
        {
            if (other.value == 1) // the other thread adds meanwhile, with the same hint
                while (!second_has_added().load())
                    std::this_thread::yield();
            value += other.value;
        }
        static std::atomic<bool>& second_has_added()
        {
            static std::atomic<bool> has{false};
            return has;
        }
    };
    detail::striped_total<slow> sum;
    std::thread first([&] { sum.add(3, {1}); });
    std::thread second([&] {
        sum.add(3, {2});
        slow::second_has_added() = true;
    });
    first.join();
    second.join();
    CHECK(sum.sum().value == 3);
}

TEST_CASE("every element is worked on once, by as many threads as were asked for; homes are where work begins")
{
#if defined(_OPENMP)
    for (unsigned const threads : {1u, 2u, 3u, 7u}) {
        executor const cpu({.threads = threads, .min_slice_elems = 1});
        CHECK(cpu.threads() == threads);
        for (std::size_t const n : test::sizes{0, 1, 100, 1000, 100000}) {
            std::vector<std::atomic<int>> worked(n);
            auto const count = [&](slice part) {
                for (std::size_t i = part.begin; i < part.end; ++i)
                    ++worked[i];
            };
            CHECK(cpu.for_each_slice(n, count) == cpu.chunks(n).threads);
            cpu.for_each_owned_slice(n, count);
            for (std::atomic<int> const& times : worked)
                REQUIRE(times == 2);
        }
        CHECK(cpu.chunks(100000).threads == threads);
    }
    CHECK(executor({.threads = 8, .min_slice_elems = 1000}).chunks(3500).threads == 3);
    CHECK(executor({.threads = 8, .min_slice_elems = 1}).chunks(3500).threads == 8);
    auto const longest = [](executor const& cpu) { return cpu.chunks(1 << 24).elements(0, 1).size(); };
    CHECK(longest(executor({.threads = 2})) == default_max_chunk_elems);
    CHECK(longest(executor({.threads = 2, .max_chunk_elems = 10000})) == 9920); // 1682 chunks, as many for each thread
    CHECK(executor({.threads = 2, .max_chunk_elems = 1}).max_chunk_elems() == min_chunk_elems);
    CHECK(longest(executor({.threads = 2, .max_chunk_elems = 1})) == min_chunk_elems);
#else
    CHECK_THROWS_AS(executor({.threads = 2}), unavailable);
#endif
}

#if defined(_OPENMP)
TEST_CASE("inside the caller's own parallel region all the work is done, by the executor's threads")
{
    executor const cpu({.threads = 4, .min_slice_elems = 1});
    std::size_t totals[2] = {1000, 1000}; // OpenMP may grant one thread
    unsigned used[2] = {4, 4};
#pragma omp parallel num_threads(2)
    {
        std::atomic<std::size_t> total{0};
        int const me = omp_get_thread_num();
        used[me] = cpu.for_each_slice(1000, [&](slice part) { total += part.size(); });
        totals[me] = total;
    }
    for (int const me : {0, 1}) {
        CHECK(totals[me] == 1000);
        CHECK(used[me] == 4);
    }
}

// User reports: prime-rl #3248, Megatron-LM fork #188, DeepSpeed #4687.
TEST_CASE("the thread count does not come from OpenMP's settings, and they are left alone", "[omp_env]")
{
    int const before = omp_get_max_threads();
    int const dynamic = omp_get_dynamic();
    omp_set_num_threads(1);
    executor const cpu({.threads = 3, .min_slice_elems = 1});
    CHECK(cpu.for_each_slice(1000, [](slice) {}) == 3);
    CHECK(omp_get_max_threads() == 1);
    CHECK(omp_get_dynamic() == dynamic);
    omp_set_num_threads(before);
    CHECK(executor().threads() == detail::select_pus(0).size());
}

TEST_CASE("an exception in the work reaches the caller")
{
    executor const cpu({.threads = 2, .min_slice_elems = 1});
    CHECK_THROWS_AS(cpu.for_each_slice(1000, [](slice) { throw 1; }), int);
}
#endif
