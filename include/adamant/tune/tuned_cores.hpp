// SPDX-License-Identifier: Apache-2.0
// What tuning has found, and for which machine and work: a result for another one is no result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/topology/core_request.hpp>
#include <adamant/topology/machine.hpp>
#include <adamant/tune/core_search.hpp>
#include <adamant/tune/trial_step.hpp>

ADAMANT_BEGIN_NAMESPACE

// The processor's name, as the kernel has it; on Arm, which has none there, its implementer's and part's numbers.
[[nodiscard]] inline std::string cpu_model(std::string const& cpuinfo = "/proc/cpuinfo")
{
    std::ifstream file(cpuinfo);
    std::string arm;
    for (std::string line; std::getline(file, line);) {
        std::size_t const colon = line.find(':');
        if (colon == std::string::npos)
            continue;
        auto const starts = [&](std::string_view key) { return line.starts_with(key); };
        std::string const value = line.substr(std::min(colon + 2, line.size()));
        if (starts("model name"))
            return value;
        if (starts("CPU implementer") && arm.empty())
            arm = "CPU implementer " + value;
        if (starts("CPU part")) {
            arm += ", part " + value;
            break;
        }
    }
    return arm.empty() ? "unknown" : arm;
}

// What a result depends on, as names and texts to compare and to show.
struct tuning_key {
    std::vector<std::pair<std::string, std::string>> entries;
    friend bool operator==(tuning_key const&, tuning_key const&) = default;
};

// Of steps with these types, by each of the request's ranks, on its cores. What is measured of the request is left out:
// its size.
[[nodiscard]] inline tuning_key tuning_key_of(machine const& on, core_request const& request, trial_types const& types,
                                              isa tier = isa::automatic)
{
    auto const count = [](std::size_t n) { return std::to_string(n); };
    std::string masks;
    for (pu_set const& mask : request.masks)
        masks += (masks.empty() ? "" : "; ") + to_list(mask);
    std::string gpus;
    for (std::string const& gpu : request.gpus)
        gpus += (gpus.empty() ? "" : "; ") + gpu;
    std::string nodes;
    for (numa_node const& node : on.nodes)
        nodes += (nodes.empty() ? "" : "; ") + to_list(node.pus) + " " + std::string(name(node.kind));
    return {{{"processor", cpu_model()},
             {"packages", count(on.packages.size())},
             {"NUMA nodes", nodes},
             {"cores", count(on.cores.size())},
             {"allowed PUs", to_list(on.allowed)},
             {"instruction set", std::string(name(resolve_isa(tier)))},
             {"types", types.text()},
             {"ranks", count(request.ranks)},
             {"list of PUs", to_list(request.list)},
             {"masks of ranks", masks},
             {"GPUs of ranks", gpus},
             {"PUs of a core", request.smt == smt_policy::all ? "all" : "one"},
             {"fast cores for", request.fast == fast_cores::host ? "the host" : "the optimizer"},
             {"version", std::to_string(ADAMANT_VERSION_MAJOR) + "." + std::to_string(ADAMANT_VERSION_MINOR)}}};
}

// An executor's setting that was tried on the final cores against its default.
struct tried_setting {
    std::string name; // a member of executor_options
    std::uint64_t value = 0;
    double time_ratio = 1; // median of its time over the default's, within rounds
    double low = 1;        // and the range that it lies in
    double high = 1;
};

struct tuned_cores {
    tuning_key key;
    unsigned cores = 0;            // of each rank, for the optimizer
    unsigned of = 0;               // how many a rank has
    double cpuadam_cores_perc = 1; // the same as a share, for configurations
    bool finished = false;         // else time was up before it was known that no more are worth having
    std::size_t elements = 0;      // of each rank, in the steps that were timed
    double step_s = 0;             // of all ranks together, on these cores, with these settings
    std::vector<core_time> curve;  // with the default settings
    std::size_t max_chunk_elems = default_max_chunk_elems;
    std::uint32_t prefetch_bytes = kernel::default_prefetch_bytes;
    std::vector<tried_setting> tried;

    // Cores of a rank that the optimizer leaves to the host.
    [[nodiscard]] unsigned host_cores() const noexcept { return of - cores; }
    // Whether every core is worth having: there is no knee.
    [[nodiscard]] bool all() const noexcept { return finished && cores == of; }

    // The request with this size instead of its own, for select_cores(). That leaves the host one core in any case.
    [[nodiscard]] core_request request(core_request asked) const
    {
        asked.cpuadam_cores_perc.reset();
        asked.pt_reserved_cores.reset();
        asked.pt_reserved_cores_perc.reset();
        asked.cpuadam_cores = std::max(1u, std::min(cores, of - (of > 1)));
        return asked;
    }
    // For the executor on a rank's cores.
    [[nodiscard]] executor_options options() const
    {
        return {.max_chunk_elems = max_chunk_elems, .prefetch_bytes = prefetch_bytes};
    }
};

// Throws unavailable where the result is of another machine or other work, and names each difference.
inline void check_key(tuned_cores const& saved, tuning_key const& here)
{
    std::string differences;
    auto const value = [](tuning_key const& in, std::string const& name) -> std::string {
        for (auto const& [key, text] : in.entries)
            if (key == name)
                return text.empty() ? "none" : text;
        return "not known";
    };
    auto const compare = [&](tuning_key const& names) {
        for (auto const& entry : names.entries)
            if (std::string const then = value(saved.key, entry.first), now = value(here, entry.first);
                then != now && differences.find(entry.first + " was ") == std::string::npos)
                differences += (differences.empty() ? "" : "; ") + entry.first + " was " + then + " and is " + now;
    };
    compare(here);
    compare(saved.key);
    if (!differences.empty())
        throw unavailable("adamant: this tuning result is of another machine or other work: " + differences +
                          "; tune again");
}

ADAMANT_END_NAMESPACE
