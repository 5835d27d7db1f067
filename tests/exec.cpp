// SPDX-License-Identifier: Apache-2.0
// Slices and the executor.
#include <atomic>
#include <cstdlib>
#include <limits>
#include <thread>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <adamant/exec/executor.hpp>

#include "catch.hpp"

using namespace adamant;

TEST_CASE("slices are in order, disjoint, complete and fair, past 2^32 elements too")
{
    test::random_bits random(1);
    std::vector<std::size_t> sizes = {0, 1, 63, 64, 65, 1000, (std::size_t{1} << 31) + 7, (std::size_t{1} << 32) + 1,
                                      (std::size_t{1} << 40) + 12345, std::numeric_limits<std::size_t>::max()};
    for (int i = 0; i < 200; ++i)
        sizes.push_back(random() >> (random() % 64));
    for (std::size_t const n : sizes)
        for (std::size_t const parts : test::sizes{1, 2, 3, 7, 64, 97}) {
            std::size_t expected_begin = 0;
            std::size_t smallest = std::numeric_limits<std::size_t>::max();
            std::size_t largest = 0;
            for (std::size_t i = 0; i < parts; ++i) {
                slice const part = slice_of(n, parts, i);
                REQUIRE(part.begin <= part.end);
                if (part.size() != 0) {
                    REQUIRE(part.begin == expected_begin);
                    REQUIRE(part.begin % slice_granule_elems == 0);
                    expected_begin = part.end;
                }
                smallest = std::min(smallest, part.size());
                largest = std::max(largest, part.size());
            }
            REQUIRE(expected_begin == n);
            REQUIRE(largest - smallest <= 2 * slice_granule_elems);
        }
}

TEST_CASE("an executor says what it uses")
{
    executor const cpu;
    CHECK(cpu.tier() == test::tier());
    CHECK(cpu.threads() >= 1);
    CHECK(executor({.tier = isa::scalar, .threads = 1}).tier() == isa::scalar);
    CHECK(executor({.threads = 1}).threads() == 1);
}

TEST_CASE("every slice is worked on once, by as many threads as were asked for")
{
#if defined(_OPENMP)
    for (unsigned const threads : {1u, 2u, 3u, 7u}) {
        executor const cpu({.threads = threads, .min_slice_elems = 1});
        for (std::size_t const n : test::sizes{0, 1, 100, 1000, 100000}) {
            std::atomic<std::size_t> total{0};
            std::atomic<unsigned> calls{0};
            unsigned const used = cpu.for_each_slice(n, [&](slice part) {
                total += part.size();
                ++calls;
            });
            CHECK(total == n);
            CHECK(calls == cpu.slices(n));
            CHECK(used == cpu.slices(n));
        }
        CHECK(cpu.slices(100000) == threads);
    }
    CHECK(executor({.threads = 8, .min_slice_elems = 1000}).slices(3500) == 3);
    CHECK(executor({.threads = 8, .min_slice_elems = 0}).slices(3500) == 8);
#else
    CHECK_THROWS_AS(executor({.threads = 2}), unavailable);
#endif
}

#if defined(_OPENMP)
TEST_CASE("inside the caller's own parallel region all the work is done, and the report says by how many")
{
    executor const cpu({.threads = 4, .min_slice_elems = 1});
#pragma omp parallel num_threads(2)
    {
        std::atomic<std::size_t> total{0};
        unsigned const used = cpu.for_each_slice(1000, [&](slice part) { total += part.size(); });
#pragma omp critical
        {
            CHECK(total == 1000);
            CHECK(used >= 1);
        }
    }
}

TEST_CASE("omp_env: the thread count does not come from OpenMP's settings, and they are left alone")
{
    int const before = omp_get_max_threads();
    omp_set_num_threads(1);
    executor const cpu({.threads = 3, .min_slice_elems = 1});
    CHECK(cpu.for_each_slice(1000, [](slice) {}) == 3);
    CHECK(omp_get_max_threads() == 1);
    omp_set_num_threads(before);
    CHECK(executor().threads() == static_cast<unsigned>(omp_get_num_procs()));
}

TEST_CASE("more threads than OpenMP allows is an error that says so")
{
    auto const limit = static_cast<unsigned>(omp_get_thread_limit());
    if (limit < std::numeric_limits<unsigned>::max())
        CHECK_THROWS_AS(executor({.threads = limit + 1}), unavailable);
}
#endif
