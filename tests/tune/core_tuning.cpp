// SPDX-License-Identifier: Apache-2.0
// Tuning by steps that are taken. No time is asserted: what is found depends on the machine.
#include <cmath>
#include <stdexcept>

#include <adamant/adamant.hpp>
#include <adamant/cores.hpp>
#include <adamant/tune.hpp>

#include "catch.hpp"
#include "refusal.hpp"

using namespace adamant;

namespace {

shard_format const& mixed = step_format<float, bfloat16, float, float, bfloat16>();

machine this_machine()
{
#if defined(ADAMANT_NO_HWLOC)
    machine on;
    on.cores.push_back({.pus = {0}});
    on.packages.push_back({{0}});
    on.nodes.push_back({.pus = {0}});
    on.allowed = {0};
    return on;
#else
    return live_machine();
#endif
}

} // namespace

TEST_CASE("tune: steps on this machine's cores give an answer that selection takes", "[once]")
{
    machine const on = this_machine();
    core_request const request;
    unsigned steps = 0;
    core_search_options const quick{.confidence = 0.5, .rounds = 2, .most_rounds = 3};
    tuned_cores const found =
        tune_cores(on, request, mixed, {.elements = 4096, .search = quick, .on_step = [&](unsigned, double seconds) {
                                            CHECK(seconds > 0);
                                            ++steps;
                                        }});
    CHECK(found.cores >= 1);
    CHECK(found.cores <= found.available_cores);
    CHECK(found.available_cores == detail::cores_in(on, on.allowed));
    CHECK(found.cpuadam_cores_perc == static_cast<double>(found.cores) / found.available_cores);
    CHECK(found.host_cores() == found.available_cores - found.cores);
    CHECK(found.finished);
    CHECK(found.elements == 4096);
    CHECK(found.step_s > 0);
    CHECK(found.tried.size() == 9);
    std::size_t measured = 0;
    for (core_time const& at : found.curve)
        measured += at.measurements;
    CHECK(steps >= measured + 9 * 2);
    std::vector<rank_cores> const cores = select_cores(on, found.request(request));
    CHECK(cores[0].adam_pus.size() ==
          std::max(1u, std::min(found.cores, found.available_cores - (found.available_cores > 1))));
    executor_options const options = found.options();
    CHECK(options.max_chunk_elems == found.max_chunk_elems);
    CHECK(options.prefetch_bytes == found.prefetch_bytes);
    CHECK(found.key == tuning_key_of(on, request, mixed));
}

TEST_CASE("tune: a deadline is kept, and what the caller throws ends it", "[once]")
{
    machine const on = this_machine();
    tuned_cores const found = tune_cores(on, {}, mixed, {.deadline_s = 1e-9, .elements = 4096});
    CHECK((found.available_cores == 1 || !found.finished));
    CHECK(found.cores == 1);
    CHECK(found.tried.empty());
    CHECK_THROWS_AS(
        (void)tune_cores(on, {}, mixed,
                         {.elements = 4096, .on_step = [](unsigned, double) { throw std::domain_error(""); }}),
        std::domain_error);
    CHECK(test::mentions(test::refusal([&] { (void)tune_cores(on, {}, mixed, {.deadline_s = 0}); }), "deadline is 0"));
    CHECK(test::mentions(test::refusal([&] { (void)tune_cores(on, {}, mixed, {.settings_worth = 1}); }),
                         "settings_worth is 1"));
}

TEST_CASE("tune: trial arrays are of training's kind, and a step is taken in all of them", "[once]")
{
    executor const cpu({.threads = 1});
    shard_format const& all_float = step_format<float, float, float, float, void>();
    for (shard_format const* format :
         {&mixed, &all_float, &step_format<bfloat16, bfloat16, bfloat16, bfloat16, void>()}) {
        trial_step step(cpu, *format, 5000);
        CHECK(step.seconds(cpu) > 0);
        CHECK((step.array(4) == nullptr) == (format->types[4] == dtype::none));
    }
    CHECK(step_bytes(mixed.types) == shard<float, bfloat16, float, float, bfloat16>::bytes_per_element());
    CHECK(memory_bytes(mixed.types) == 16);
    CHECK(to_text(mixed.types) == "float32/bfloat16/float32/float32/bfloat16");
    CHECK(to_text(all_float.types) == "float32/float32/float32/float32/-");
    trial_step step(cpu, all_float, 5000);
    float const before = reinterpret_cast<float const*>(step.array(0))[4999];
    step.seconds(cpu);
    CHECK(reinterpret_cast<float const*>(step.array(0))[4999] != before);
    for (std::size_t i = 0; i < 5000; ++i) {
        REQUIRE(std::isnormal(reinterpret_cast<float const*>(step.array(1))[i]));
        REQUIRE(reinterpret_cast<float const*>(step.array(3))[i] > 1e-8f);
    }
    if (available_memory().bytes < std::size_t{1} << 50)
        CHECK(test::mentions(test::refusal<unavailable>([&] { trial_step(cpu, mixed, std::size_t{1} << 46); }),
                             "cannot allocate"));
}
