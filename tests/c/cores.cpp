// SPDX-License-Identifier: Apache-2.0
// The C interface: the choice of cores.
#include <cstdlib>
#include <limits>
#include <string>

#include "c_test.hpp"

TEST_CASE("C: the choice of cores")
{
    char adam[64];
    char host[64];
    adamant_core_options c = core_options();
    c.machine = "pack:2 [numa] core:8 pu:2";
    c.ranks = 2;
    c.cpuadam_cores_perc = 0.75;
    auto const choose = [&] { return adamant_select_cores(&c, adam, sizeof adam, host, sizeof host); };
    ok(choose());
    REQUIRE(std::string(adam) == "4,6,8,10,12,14");
    REQUIRE(std::string(host) == "0,2");
    c.rank = 1;
    ok(choose());
    REQUIRE((adam == std::string("20,22,24,26,28,30") && host == std::string("16,18")));
    std::string const was = adam;
    refused(adamant_select_cores(&c, adam, was.size(), host, sizeof host), "needs " + std::to_string(was.size() + 1));
    refused(adamant_select_cores(&c, adam, 0, host, sizeof host), "has 0 bytes");
    refused(adamant_select_cores(&c, adam, sizeof adam, host, 1), "host_pus has 1 bytes");
    REQUIRE(adam == was);
    ok(adamant_select_cores(&c, adam, was.size() + 1, nullptr, 0));
    c.every_pu_of_cores = 1;
    ok(choose());
    REQUIRE((adam == std::string("20-31") && host == std::string("16-19")));
    c.rank = 2;
    refused(choose(), "rank is 2");
    c.rank = 1;
    c.cpuadam_cores = 3;
    refused(choose(), "more than one of cpuadam_cores_perc");
    c.cpuadam_cores_perc = 0;
    ok(choose());
    REQUIRE(adam == std::string("26-31"));
    c.cpuadam_cores = 0;
    c.pt_reserved_cores = 8;
    fails(choose(), ADAMANT_UNAVAILABLE, "8 cores");
    c.pt_reserved_cores = 0;
    c.pt_reserved_cores_perc = 0.5;
    c.pus = "16-31";
    c.ranks = 1;
    c.rank = 0;
    ok(choose());
    REQUIRE((adam == std::string("24-31") && host == std::string("16-23")));
    c.pus = "x";
    refused(choose(), "x");
    c.pus = nullptr;
    c.ranks = 0;
    c.rank = 1;
    refused(choose(), "ranks is 0");
    c.rank = 0;
    setenv("LOCAL_RANK", "1", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    ok(choose());
    REQUIRE(adam == std::string("24-31"));
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    c.machine = "no machine";
    refused(choose(), "no machine");
    c = core_options(); // this one: what is chosen can be used
    c.ranks = 1;
    ok(choose());
    adamant_executor_options e = executor_options();
    e.pus = adam;
    adamant_executor* made = nullptr;
    ok(adamant_executor_create(&e, &made));
    executor const owned(made);
    char const* pus = nullptr;
    ok(adamant_executor_describe(made, nullptr, nullptr, &pus));
    REQUIRE(pus == std::string(adam));
}

TEST_CASE("C: NUMA nodes, masks and GPUs of ranks")
{
    char nodes[64];
    char why[1000];
    char adam[64];
    adamant_core_options c = core_options();
    c.machine = "pack:2 [numa] core:8 pu:2";
    c.ranks = 2;
    c.rank = 1;
    ok(adamant_select_nodes(&c, nodes, sizeof nodes, why, sizeof why));
    REQUIRE(nodes == std::string("1"));
    REQUIRE(why != std::string());
    ok(adamant_select_nodes(&c, nodes, 2, nullptr, 0));
    refused(adamant_select_nodes(&c, nodes, 1, nullptr, 0), "nodes has 1 bytes, but needs 2");
    refused(adamant_select_nodes(&c, nodes, sizeof nodes, why, 3), "why has 3 bytes");
    // What the ranks may use, and what each was started with.
    c.allowed = "0-7";
    ok(adamant_select_cores(&c, adam, sizeof adam, nullptr, 0));
    REQUIRE(adam == std::string("6"));
    c.allowed = "0-31";
    char const* const masks[] = {"0-3", "8-15"};
    c.masks = masks;
    c.mask_count = 2;
    ok(adamant_select_cores(&c, adam, sizeof adam, nullptr, 0));
    REQUIRE(adam == std::string("10,12,14"));
    c.mask_count = 1;
    ok(adamant_select_cores(&c, adam, sizeof adam, nullptr, 0));
    REQUIRE(adam == std::string("2"));
    c.ranks = 3;
    c.mask_count = 2;
    refused(adamant_select_cores(&c, adam, sizeof adam, nullptr, 0), "2");
    c = core_options();
    c.machine = "pack:2 [numa] core:8 pu:2";
    c.ranks = 2;
    char const* const gpus[] = {"no:such.gpu", ""};
    c.gpus = gpus;
    c.gpu_count = 2;
    adamant_status const status = adamant_select_cores(&c, adam, sizeof adam, nullptr, 0);
    REQUIRE(status != ADAMANT_OK);
    REQUIRE(last_error().find("no:such.gpu") != std::string::npos);
    char pus[2];
    refused(adamant_allowed_pus(pus, 0), "pus has 0 bytes");
}

TEST_CASE("C: cpu_quota: a quota limits the optimizer's share, and what is asked for in numbers is had")
{
    char adam[64];
    char why[512];
    adamant_core_options c = core_options();
    c.machine = "pack:1 [numa] core:16 pu:1";
    c.ranks = 2;
    c.cpu_quota = 5;
    ok(adamant_select_cores(&c, adam, sizeof adam, nullptr, 0));
    REQUIRE(adam == std::string("6-7"));
    char nodes[8];
    ok(adamant_select_nodes(&c, nodes, sizeof nodes, why, sizeof why));
    REQUIRE(std::string(why).find("the CPU quota is 5 of 16 CPUs, 2.5 for each rank") != std::string::npos);
    c.cpuadam_cores = 4;
    ok(adamant_select_cores(&c, adam, sizeof adam, nullptr, 0));
    REQUIRE(adam == std::string("4-7"));
    for (double const wrong : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
        c.cpu_quota = wrong;
        refused(adamant_select_cores(&c, adam, sizeof adam, nullptr, 0), "must be a number of CPUs");
    }

    // This process's, and the same in a report.
    double cpus = -1;
    char source[4096] = "none";
    ok(adamant_cpu_quota(&cpus, source, sizeof source));
    REQUIRE(cpus >= 0);
    REQUIRE((cpus == 0) == (*source == '\0'));
    ok(adamant_cpu_quota(&cpus, nullptr, 0));
    refused(adamant_cpu_quota(&cpus, source, 0), "source has 0 bytes");
    model m;
    adamant_report r = report();
    r.cpu_quota = -1;
    ok(adamant_step(make_optimizer(m, 2).get(), nullptr, &r));
    REQUIRE(r.cpu_quota == cpus);
}
