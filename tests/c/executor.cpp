// SPDX-License-Identifier: Apache-2.0
// The C interface: teams and the executors on them, and buffers.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "c_test.hpp"

namespace {

std::string allowed_pus()
{
    char pus[4096];
    ok(adamant_allowed_pus(pus, sizeof pus));
    return pus;
}
std::string first_pu()
{
    std::string const all = allowed_pus();
    return all.substr(0, all.find_first_of("-,"));
}
team make_team(std::uint32_t threads)
{
    adamant_team_options o = team_options();
    o.threads = threads;
    o.bind = ADAMANT_BIND_NONE;
    adamant_team* made = nullptr;
    ok(adamant_team_create(&o, &made));
    return team(made);
}

} // namespace

TEST_CASE("C: a team's threads are bound, and say where")
{
    adamant_team_options o = team_options();
    REQUIRE((o.pus == nullptr && o.threads == 0 && o.bind == ADAMANT_BIND_DEFAULT && o.spin_ns == 50000));
    std::string const pu = first_pu();
    o.pus = pu.c_str();
    o.threads = 3; // that share it
    adamant_team* made = nullptr;
    ok(adamant_team_create(&o, &made));
    team const owned(made);
    std::uint32_t threads = 0;
    char const* pus = nullptr;
    ok(adamant_team_describe(made, &threads, &pus));
    CHECK((threads == 3 && pus == pu));
    std::vector<std::int64_t> seen;
    for (std::uint32_t i = 0; i < threads; ++i) {
        std::int64_t id = 0;
        char const* asked = nullptr;
        char const* bound_to = nullptr;
        char const* problem = nullptr;
        ok(adamant_team_thread(made, i, &id, &asked, &bound_to, &problem));
        CHECK((id > 0 && asked == pu && bound_to == pu && problem == std::string()));
        CHECK(std::count(seen.begin(), seen.end(), id) == 0);
        seen.push_back(id);
    }
    refused(adamant_team_thread(made, 3, nullptr, nullptr, nullptr, nullptr), "no thread 3 in the team; it has 3");
    ok(adamant_team_thread(made, 2, nullptr, nullptr, nullptr, nullptr));
    ok(adamant_team_describe(made, nullptr, nullptr));

    // Each thread on its own, if there are two.
    std::string const all = allowed_pus();
    o = team_options();
    o.pus = all.c_str();
    ok(adamant_team_create(&o, &made));
    team const on_all(made);
    ok(adamant_team_describe(made, &threads, &pus));
    CHECK(pus == all);
    std::vector<std::string> places;
    for (std::uint32_t i = 0; i < threads; ++i) {
        char const* asked = nullptr;
        char const* bound_to = nullptr;
        ok(adamant_team_thread(made, i, nullptr, &asked, &bound_to, nullptr));
        CHECK(asked == std::string(bound_to));
        CHECK(std::count(places.begin(), places.end(), asked) == 0);
        places.emplace_back(asked);
    }

    adamant_team* none = nullptr;
    o = team_options();
    refused(adamant_team_create(&o, &none), "Name PUs, or request ADAMANT_BIND_NONE");
    o.pus = "0-";
    refused(adamant_team_create(&o, &none), "0-");
    o.pus = "60000";
    fails(adamant_team_create(&o, &none), ADAMANT_UNAVAILABLE, "60000");
    o.bind = ADAMANT_BIND_IF_POSSIBLE;
    ok(adamant_team_create(&o, &none));
    team const unbound(none);
    char const* problem = nullptr;
    ok(adamant_team_thread(none, 0, nullptr, nullptr, &pus, &problem));
    CHECK((pus == std::string() && problem != std::string()));
    ok(adamant_team_describe(none, nullptr, &pus));
    CHECK(pus == std::string());
    o = team_options();
    o.bind = ADAMANT_BIND_NONE;
    o.threads = 2;
    o.spin_ns = UINT64_MAX;
    ok(adamant_team_create(&o, &none));
    adamant_team_free(none);
}

TEST_CASE("C: executors on one team share its threads, and have the bits of others")
{
    std::uint64_t expected = 0;
    {
        model m;
        ok(adamant_step(make_optimizer(m, 2).get(), nullptr, nullptr));
        expected = m.digest();
    }
    adamant_executor_options o = executor_options();
    team shared = make_team(3);
    o.team = shared.get();
    std::vector<executor> executors;
    for (char const* const isa : {"scalar", "automatic"}) {
        o.isa = isa;
        adamant_executor* made = nullptr;
        ok(adamant_executor_create(&o, &made));
        executors.emplace_back(made);
        std::uint32_t threads = 0;
        ok(adamant_executor_describe(made, nullptr, &threads, nullptr));
        CHECK(threads == 3);
    }
    adamant_executor* none = nullptr;
    o.threads = 3;
    ok(adamant_executor_create(&o, &none));
    adamant_executor_free(none);
    o.threads = 2;
    refused(adamant_executor_create(&o, &none), "2 threads: the team has 3");
    o.threads = 0;
    o.pus = "0";
    refused(adamant_executor_create(&o, &none), "the team has no PUs");
    o.pus = nullptr;
    o.bind = ADAMANT_BIND_REQUIRED;
    refused(adamant_executor_create(&o, &none), "ADAMANT_BIND_REQUIRED");

    shared.reset(); // the executors have it
    std::vector<model> models(2);
    std::vector<optimizer> optimizers;
    for (std::size_t i = 0; i < 2; ++i) {
        adamant_optimizer* made = nullptr;
        ok(adamant_optimizer_create(executors[i].get(), nullptr, &made));
        models[i].add_to(made);
        optimizers.emplace_back(made);
    }
    executors.clear(); // the optimizers have them
    std::vector<adamant_status> statuses(2, ADAMANT_INTERNAL);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 2; ++i)
        threads.emplace_back([&, i] { statuses[i] = adamant_step(optimizers[i].get(), nullptr, nullptr); });
    for (std::thread& t : threads)
        t.join();
    for (std::size_t i = 0; i < 2; ++i) {
        CHECK(statuses[i] == ADAMANT_OK);
        CHECK(models[i].digest() == expected);
    }
}

TEST_CASE("C: buffers are zero, touched where they are told, and say what they are")
{
    adamant_buffer_options o = buffer_options();
    REQUIRE((o.nodes == nullptr && o.pages == ADAMANT_PAGES_TRANSPARENT && o.pages_required == 0 &&
             o.nodes_required == 0 && o.check_available == 1));
    executor const cpu = make_executor(3);
    constexpr std::size_t elements = 300'001;
    for (bool const touched : {true, false}) {
        o.pages = touched ? ADAMANT_PAGES_TRANSPARENT : ADAMANT_PAGES_NORMAL;
        adamant_buffer* made = nullptr;
        ok(adamant_buffer_create(touched ? cpu.get() : nullptr, elements, sizeof(float), &o, &made));
        buffer const owned(made);
        std::size_t resident = 0;
        std::size_t huge = 1;
        std::size_t nodes[64] = {};
        ok(adamant_buffer_measure(made, &resident, &huge, nodes, 64));
        CHECK(resident >= (touched ? elements * sizeof(float) : 0));
        CHECK((touched || (resident == 0 && huge == 0)));
        CHECK(huge <= resident);
        void* data = nullptr;
        std::size_t bytes = 0;
        ok(adamant_buffer_data(made, &data, &bytes));
        CHECK((bytes == elements * sizeof(float) && reinterpret_cast<std::uintptr_t>(data) % 4096 == 0));
        float const* const begin = static_cast<float*>(data);
        CHECK(std::all_of(begin, begin + elements, [](float x) { return test::bits(x) == 0; }));
        adamant_buffer_report r = initialised(adamant_buffer_report_init);
        ok(adamant_buffer_describe(made, &r));
        CHECK((r.bytes == bytes && r.mapped_bytes >= bytes && r.mapped_bytes % 4096 == 0));
        CHECK((r.nodes == std::string() && r.binding == ADAMANT_MEMORY_UNBOUND));
        CHECK((touched || r.pages == ADAMANT_PAGES_NORMAL));
    }
    adamant_buffer* made = nullptr;
    refused(adamant_buffer_create(nullptr, 1, 0, nullptr, &made), "elements of 0 bytes");
    refused(adamant_buffer_create(nullptr, SIZE_MAX / 2, 4, nullptr, &made), "do not fit in memory");
    refused(adamant_buffer_create(nullptr, SIZE_MAX / 4, 4, nullptr, &made), "do not fit in memory");
    fails(adamant_buffer_create(nullptr, std::size_t{1} << 42, 4, nullptr, &made), ADAMANT_UNAVAILABLE, "");
    o.nodes = "x";
    refused(adamant_buffer_create(nullptr, 1, 4, &o, &made), "x");
    o.nodes = "999";
    ok(adamant_buffer_create(nullptr, 1, 4, &o, &made));
    buffer const elsewhere(made);
    adamant_buffer_report r = initialised(adamant_buffer_report_init);
    ok(adamant_buffer_describe(made, &r));
    CHECK(std::string(r.notes).find("999") != std::string::npos);
    made = nullptr;
    o.nodes_required = 1;
    fails(adamant_buffer_create(nullptr, 1, 4, &o, &made), ADAMANT_UNAVAILABLE, "999");
    REQUIRE(made == nullptr);
}
