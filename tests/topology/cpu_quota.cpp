// SPDX-License-Identifier: Apache-2.0
// CPU quotas of cgroups: where they are read, and how many threads follow from them.
#include <cstdlib>
#include <string>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/topology/allowed.hpp>
#include <adamant/detail/topology/cpu_quota.hpp>

#include "catch.hpp"
#include "child.hpp"
#include "fake_root.hpp"
#include "refusal.hpp"

using namespace adamant;
using test::fake_root;
using test::mentions;

namespace {

// Cores of one PU in one NUMA node.
machine machine_of(unsigned cores, double quota, unsigned pus_of_core = 1)
{
    machine m;
    m.source = "a test";
    for (unsigned c = 0; c < cores; ++c) {
        topology::core core;
        for (unsigned p = 0; p < pus_of_core; ++p)
            core.pus.insert(c * pus_of_core + p);
        core.node = 0;
        m.allowed |= core.pus;
        m.cores.push_back(core);
    }
    m.packages = {{m.allowed}};
    m.nodes = {{0, std::size_t{1} << 30, m.allowed}};
    m.quota = {quota, "cpu.max"};
    return m;
}

} // namespace

// User reports: llvm #225493, Megatron fork #188.
TEST_CASE("the least of all ancestors counts, of either version", "[cpu_quota]")
{
    fake_root root;
    auto const is = [&](double cpus, std::string const& source) {
        cpu_quota const quota = read_cpu_quota(root.path());
        CHECK(quota.cpus == cpus);
        return source.empty() ? quota.source.empty() : mentions(quota.source, source);
    };
    CHECK(is(0, ""));
    SECTION("version 2")
    {
        root.put("proc/self/cgroup", "0::/kubepods/pod 7/main\n");
        CHECK(is(0, ""));
        root.put("sys/fs/cgroup/kubepods/pod 7/main/cpu.max", "max 100000\n");
        CHECK(is(0, ""));
        root.put("sys/fs/cgroup/kubepods/cpu.max", "800000 100000\n");
        CHECK(is(8, "/sys/fs/cgroup/kubepods/cpu.max"));
        root.put("sys/fs/cgroup/kubepods/pod 7/cpu.max", "125000 50000\n");
        CHECK(is(2.5, "/sys/fs/cgroup/kubepods/pod 7/cpu.max"));
        root.put("sys/fs/cgroup/kubepods/pod 7/main/cpu.max", "300000 100000\n");
        CHECK(is(2.5, "pod 7/cpu.max"));
        root.put("sys/fs/cgroup/cpu.max", "10000 100000\n"); // the top, which in a container may be all there is
        CHECK(is(0.1, "/sys/fs/cgroup/cpu.max"));
    }
    SECTION("version 1")
    {
        root.put("proc/self/cgroup", "5:cpuset:/other\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n");
        root.put("sys/fs/cgroup/cpu/other/cpu.cfs_quota_us", "1000\n")
            .put("sys/fs/cgroup/cpu/other/cpu.cfs_period_us", "9000\n");
        root.put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "-1\n");
        root.put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n");
        CHECK(is(0, ""));
        root.put("sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us", "150000\n");
        CHECK(is(0, "")); // without its period nothing is known
        root.put("sys/fs/cgroup/cpu/docker/cpu.cfs_period_us", "100000\n");
        CHECK(is(1.5, "/sys/fs/cgroup/cpu/docker/cpu.cfs_quota_us"));
        root.put("sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "50000\n");
        CHECK(is(0.5, "/docker/abc/cpu.cfs_quota_us"));
    }
    SECTION("both together, at their mount points, and from inside a namespace")
    {
        root.put("proc/self/cgroup", "4:cpu,cpuacct:/\n0::/../../job\n");
        root.put("proc/self/mountinfo", "33 22 0:30 / /mnt/cpu rw - cgroup cgroup rw,cpuacct,cpu\n"
                                        "34 22 0:31 / /mnt/v2 rw - cgroup2 cgroup2 rw\n");
        root.put("mnt/cpu/cpu.cfs_quota_us", "400000\n").put("mnt/cpu/cpu.cfs_period_us", "100000\n");
        CHECK(is(4, "/mnt/cpu/cpu.cfs_quota_us"));
        root.put("mnt/v2/job/cpu.max", "1000 100000\n"); // of somebody else
        CHECK(is(4, "/mnt/cpu/cpu.cfs_quota_us"));
        root.put("mnt/v2/cpu.max", "300000 100000\n");
        CHECK(is(3, "/mnt/v2/cpu.max"));
    }
    SECTION("files that make no sense")
    {
        root.put("proc/self/cgroup", "0::/\n");
        for (char const* const text : {"", "max", "100000", "100000 0", "0 100000", "-5 100000", "x y", "100000 x",
                                       "99999999999999999999999 100000"}) {
            root.put("sys/fs/cgroup/cpu.max", text);
            CHECK(is(0, ""));
        }
    }
}

// User reports: llvm #225493, Megatron fork #188.
TEST_CASE("threads keep within each rank's part of it, and one is always there", "[cpu_quota]")
{
    CHECK(threads_within(0, 1, 64) == 64);
    CHECK(threads_within(0, 8, 64) == 64);
    CHECK(threads_within(2.5, 1, 64) == 2);
    CHECK(threads_within(3, 1, 64) == 3);
    CHECK(threads_within(0.1, 1, 64) == 1);
    CHECK(threads_within(64, 1, 64) == 64);
    CHECK(threads_within(1e30, 1, 64) == 64);
    CHECK(threads_within(16, 8, 64) == 2);
    CHECK(threads_within(2, 8, 64) == 1);
    CHECK(threads_within(2, 0, 64) == 2);
}

// User reports: llvm #225493, Megatron fork #188.
TEST_CASE("the optimizer's share of the cores keeps within it, numbers and lists do not, and why says so",
          "[cpu_quota]")
{
    machine const m = machine_of(64, 2.5);
    std::vector<core_request> shares(5);
    shares[1].cpuadam_cores_perc = 1;
    shares[2].cpuadam_cores_perc = 0.5;
    shares[3].pt_reserved_cores = 4;
    shares[4].pt_reserved_cores_perc = 0.25;
    for (core_request const& request : shares) {
        rank_cores const cores = select_cores(m, request)[0];
        CHECK(cores.adam_pus.size() == 2);
        CHECK(cores.host_pus.size() == 62);
        CHECK(mentions(cores.why, "; the CPU quota is 2.5 of 64 CPUs"));
        CHECK(cores.why.find("less than") == std::string::npos);
    }
    core_request number{.cpuadam_cores = 10};
    core_request list;
    list.list = parse_index_set("0-9");
    for (core_request const& request : {number, list}) {
        rank_cores const cores = select_cores(m, request)[0];
        CHECK(cores.adam_pus.size() == 10);
        CHECK(mentions(cores.why, "; the CPU quota is 2.5 of 64 CPUs, less than the optimizer's 10 threads"));
    }
    // Ranks share it.
    for (auto const& [quota, threads] : {std::pair(16.0, 2u), std::pair(2.0, 1u), std::pair(63.0, 6u)})
        for (rank_cores const& cores : select_cores(machine_of(64, quota), {.ranks = 8})) {
            CHECK(cores.adam_pus.size() == threads);
            CHECK(mentions(cores.why, detail::text_of({" of 64 CPUs, ", quota / 8, " for each rank"})));
        }
    // A quota that no number of threads can reach is none.
    for (double const quota : {0.0, 64.0, 100.0}) {
        rank_cores const cores = select_cores(machine_of(64, quota), {})[0];
        CHECK(cores.adam_pus.size() == 51);
        CHECK(cores.why.find("quota") == std::string::npos);
    }
    // Each PU of a core has a thread.
    CHECK(select_cores(machine_of(8, 5, 2), {.smt = smt_policy::all})[0].adam_pus.size() == 4);
    CHECK(select_cores(machine_of(8, 5, 2), {})[0].adam_pus.size() == 5);
    rank_cores const both = select_cores(machine_of(8, 1, 2), {.smt = smt_policy::all})[0];
    CHECK(both.adam_pus.size() == 2);
    CHECK(mentions(both.why, "less than the optimizer's 2 threads"));
}

// User reports: llvm #225493, Megatron fork #188.
TEST_CASE("a tuning result says which quota it is for", "[cpu_quota]")
{
    shard_format const& format = all_formats().front();
    tuned_cores saved;
    saved.key = tuning_key_of(machine_of(4, 2.5), {}, format);
    CHECK_NOTHROW(check_key(saved, tuning_key_of(machine_of(4, 2.5), {}, format)));
    CHECK(mentions(test::refusal<unavailable>([&] { check_key(saved, tuning_key_of(machine_of(4, 2), {}, format)); }),
                   "CPU quota was 2.5 and is 2."));
    CHECK(mentions(test::refusal<unavailable>([&] { check_key(saved, tuning_key_of(machine_of(4, 0), {}, format)); }),
                   "CPU quota was 2.5 and is none."));
    saved.key = tuning_key_of(machine_of(4, 0), {}, format);
    CHECK(mentions(test::refusal<unavailable>([&] { check_key(saved, tuning_key_of(machine_of(4, 2), {}, format)); }),
                   "CPU quota was none and is 2."));
}

// User reports: llvm #225493, Megatron fork #188.
TEST_CASE("threads without an explicit number keep within it, and ranks have PUs of their own", "[cpu_quota]")
{
    pu_set const all = detail::select_pus_within_quota(0);
    CHECK(all == detail::select_pus(0));
    CHECK(detail::select_pus_within_quota(static_cast<double>(all.size())) == all);
    auto const as_rank = [](char const* rank, char const* ranks, auto function) {
        return test::in_child([&] {
            for (char const* const variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"})
                unsetenv(variable);
            rank == nullptr ? unsetenv("LOCAL_RANK") : setenv("LOCAL_RANK", rank, 1);
            ranks == nullptr ? unsetenv("LOCAL_WORLD_SIZE") : setenv("LOCAL_WORLD_SIZE", ranks, 1);
            return function();
        });
    };
    for (double const quota : {0.1, 1.0, 1.9})
        CHECK(as_rank(nullptr, nullptr,
                      [&] { return static_cast<int>(detail::select_pus_within_quota(quota).size()); }) == 1);
    if (all.size() < 2) {
        WARN("skipped: there is one core");
        return;
    }
    CHECK(as_rank(nullptr, nullptr, [&] { return static_cast<int>(detail::select_pus_within_quota(1.0).front()); }) ==
          static_cast<int>(detail::select_pus(1).front()));
    // Ranks also share a quota of all cores, or of more.
    for (double const quota : {static_cast<double>(all.size()), 4.0 * static_cast<double>(all.size())}) {
        CAPTURE(quota);
        int const part = static_cast<int>(threads_within(quota, 8 * static_cast<unsigned>(all.size()), all.size()));
        std::string const ranks = std::to_string(8 * all.size());
        CHECK(as_rank("3", ranks.c_str(),
                      [&] { return static_cast<int>(detail::select_pus_within_quota(quota).size()); }) == part);
        CHECK(part == 1);
    }
    // Two ranks share almost all that there is.
    double const most = static_cast<double>(all.size()) - 0.5;
    pu_set seen;
    for (char const* const rank : {"0", "1"})
        seen.insert(static_cast<unsigned>(as_rank(rank, "2", [&] {
            pu_set const own = detail::select_pus_within_quota(most);
            return own.size() == threads_within(most, 2, all.size()) ? static_cast<int>(own.front()) : 97;
        })));
#if !defined(ADAMANT_NO_HWLOC)
    CHECK(seen.size() == 2);
#endif
    CHECK(seen.contains(97) == all.contains(97));
    // Variables that contradict each other are one rank's.
    CHECK(as_rank("7", nullptr, [&] { return static_cast<int>(detail::select_pus_within_quota(1.9).size()); }) == 1);
}
