// SPDX-License-Identifier: Apache-2.0
// Definitions of cpu_model(), tuned_cores and its key of adamant/tune.hpp.
#pragma once

#include <algorithm>
#include <fstream>
#include <string_view>

#include <adamant/error.hpp>
#include <adamant/executor.hpp>
#include <adamant/tune.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL std::string cpu_model(std::string const& cpuinfo)
{
    std::ifstream file(cpuinfo);
    file.exceptions(std::ios::badbit); // out of memory for a line must not look like the end of the file
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

namespace detail {
inline constexpr char const* quota_entry = "CPU quota";
} // namespace detail

ADAMANT_DECL tuning_key tuning_key_of(machine const& host, core_request const& request, shard_format const& format,
                                      isa tier)
{
    auto const count = [](std::size_t n) { return std::to_string(n); };
    std::string masks;
    for (pu_set const& mask : request.masks)
        masks += (masks.empty() ? "" : "; ") + to_list(mask);
    std::string gpus;
    for (std::string const& gpu : request.gpus)
        gpus += (gpus.empty() ? "" : "; ") + gpu;
    std::string nodes;
    for (topology::numa_node const& node : host.nodes)
        nodes += (nodes.empty() ? "" : "; ") + to_list(node.pus) + " " + std::string(name(node.kind));
    tuning_key key{{{"processor", cpu_model()},
                    {"packages", count(host.packages.size())},
                    {"NUMA nodes", nodes},
                    {"cores", count(host.cores.size())},
                    {"allowed PUs", to_list(host.allowed)},
                    {"instruction set", std::string(name(resolve_isa(tier)))},
                    {"types", to_text(format.types)},
                    {"ranks", count(request.ranks)},
                    {"list of PUs", to_list(request.list)},
                    {"masks of ranks", masks},
                    {"GPUs of ranks", gpus},
                    {"PUs of a core", request.smt == smt_policy::all ? "all" : "one"},
                    {"fast cores for", request.fast == fast_cores::host ? "the host" : "the optimizer"},
                    {"version", detail::text_of({ADAMANT_VERSION_MAJOR, ".", ADAMANT_VERSION_MINOR})}}};
    if (host.quota.cpus > 0) // absent without a quota, so that older files stay valid
        key.entries.emplace_back(detail::quota_entry, detail::text_of({host.quota.cpus}));
    return key;
}

ADAMANT_DECL unsigned tuned_cores::host_cores() const noexcept
{
    return available_cores - cores;
}

ADAMANT_DECL bool tuned_cores::all() const noexcept
{
    return finished && cores == available_cores;
}

ADAMANT_DECL core_request tuned_cores::request(core_request base) const
{
    base.cpuadam_cores_perc.reset();
    base.pt_reserved_cores.reset();
    base.pt_reserved_cores_perc.reset();
    base.cpuadam_cores = std::max(1u, std::min(cores, available_cores - (available_cores > 1)));
    return base;
}

ADAMANT_DECL executor_options tuned_cores::options() const
{
    return {.max_chunk_elems = max_chunk_elems, .prefetch_bytes = prefetch_bytes};
}

ADAMANT_DECL void check_key(tuned_cores const& saved, tuning_key const& current)
{
    std::string differences;
    auto const value = [](tuning_key const& key, std::string const& name) -> std::string {
        for (auto const& [entry, text] : key.entries)
            if (entry == name)
                return text.empty() ? "none" : text;
        return name == detail::quota_entry ? "none" : "not known";
    };
    auto const compare = [&](tuning_key const& names) {
        for (auto const& entry : names.entries)
            if (std::string const old_value = value(saved.key, entry.first), new_value = value(current, entry.first);
                old_value != new_value && differences.find(entry.first + " was ") == std::string::npos)
                differences +=
                    (differences.empty() ? "" : "; ") + entry.first + " was " + old_value + " and is " + new_value;
    };
    compare(current);
    compare(saved.key);
    if (!differences.empty())
        detail::throw_unavailable(
            {"cannot use the tuning result: it is for another machine or other work: ", differences, ". Tune again."});
}

ADAMANT_END_NAMESPACE
