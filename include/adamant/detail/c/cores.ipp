// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: selection of cores and NUMA nodes.
#include <adamant/adamant.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/memory.hpp>
#include <adamant/resctrl.hpp>
#include <adamant/split.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/c/convert.hpp>

namespace adamant::c {

// The caller's buffer for a text.
struct text_buffer {
    char* buffer; // may be null
    std::size_t bytes;
    char const* name;
};
static void check_fits(std::string const& text, text_buffer const& target)
{
    auto const [buffer, bytes, argument] = target;
    if (buffer == nullptr && bytes != 0)
        detail::throw_invalid_argument({argument, " is a null pointer, but its size is ", bytes, " bytes"});
    if (buffer != nullptr && bytes <= text.size())
        detail::throw_invalid_argument({argument, " has ", bytes, " bytes, but needs ", text.size() + 1});
}

// Writes both texts, or throws and writes none.
static void give_texts(std::string const& first, text_buffer const& to_first, std::string const& second,
                       text_buffer const& to_second)
{
    check_fits(first, to_first);
    check_fits(second, to_second);
    std::memcpy(to_first.buffer, first.c_str(), first.size() + 1);
    if (to_second.buffer != nullptr)
        std::memcpy(to_second.buffer, second.c_str(), second.size() + 1);
}

static std::vector<char const*> texts_of(char const* const* texts, std::size_t count, std::string const& argument)
{
    if (texts == nullptr && count != 0)
        detail::throw_invalid_argument({argument, "_count is ", count, ", but ", argument, "s is a null pointer"});
    std::vector<char const*> const copied = copy_of(texts, count, argument.c_str());
    for (std::size_t i = 0; i < count; ++i)
        needed(copied[i], (detail::text_of({"number ", i, " of ", argument, "s"})).c_str());
    return copied;
}

machine machine_of([[maybe_unused]] adamant_core_options const& source)
{
#if defined(ADAMANT_NO_HWLOC)
    detail::throw_unavailable({"cannot select cores: this library was built without hwloc (ADAMANT_HWLOC=OFF)"});
#else
    machine result = source.machine == nullptr ? live_machine() : read_machine(source.machine);
    if (source.allowed != nullptr)
        result.allowed = parse_index_set(source.allowed);
    if (!(source.cpu_quota >= 0))
        detail::throw_invalid_argument({"cpu_quota is ", source.cpu_quota, ", but must be a number of CPUs, or 0"});
    if (source.cpu_quota > 0)
        result.quota = {source.cpu_quota, "cpu_quota"};
    return result;
#endif
}

request_of_rank request_of(adamant_core_options const& source)
{
    core_request request{.cpuadam_cores_perc = unless_zero(source.cpuadam_cores_perc),
                         .cpuadam_cores = unless_zero(source.cpuadam_cores),
                         .pt_reserved_cores = unless_zero(source.pt_reserved_cores),
                         .pt_reserved_cores_perc = unless_zero(source.pt_reserved_cores_perc),
                         .list = parse_index_set(text_or_empty(source.pus)),
                         .smt = source.every_pu_of_cores != 0 ? smt_policy::all : smt_policy::one_per_core,
                         .fast = source.fast_cores_to_host != 0 ? fast_cores::host : fast_cores::optimizer};
    for (char const* const mask : texts_of(source.masks, source.mask_count, "mask"))
        request.masks.push_back(parse_index_set(mask));
    for (char const* const gpu : texts_of(source.gpus, source.gpu_count, "gpu"))
        request.gpus.emplace_back(gpu);
    local_rank self{source.rank, source.ranks, {}};
    if (self.ranks == 0 && self.rank != 0)
        detail::throw_invalid_argument(
            {"rank is ", source.rank, ", but ranks is 0, which takes both from the environment"});
    if (self.ranks == 0)
        self = rank_from_environment();
    if (self.rank >= self.ranks)
        detail::throw_invalid_argument({"rank is ", self.rank, ", but must be below ranks, which is ", self.ranks});
    request.ranks = self.ranks;
    return {std::move(request), self.rank};
}

static rank_cores select(adamant_core_options const& source)
{
    auto const [request, rank] = request_of(source);
    return select_cores(machine_of(source), request)[rank];
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_core_options_init(adamant_core_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_select_cores(const adamant_core_options* options, char* adam_pus, size_t adam_bytes,
                                    char* host_pus, size_t host_bytes)
{
    return guarded([&] {
        needed(adam_pus, "adam_pus");
        adamant::rank_cores const cores = select(read(options));
        give_texts(to_list(cores.adam_pus), {adam_pus, adam_bytes, "adam_pus"}, to_list(cores.host_pus),
                   {host_pus, host_bytes, "host_pus"});
    });
}
adamant_status adamant_allowed_pus(char* pus, size_t pus_bytes)
{
    return guarded([&] {
        needed(pus, "pus");
        give_texts(to_list(machine_of(struct_description<adamant_core_options>::defaults()).allowed),
                   {pus, pus_bytes, "pus"}, {}, {nullptr, 0, "nothing"});
    });
}
adamant_status adamant_cpu_quota(double* cpus, char* source, size_t source_bytes)
{
    return guarded([&] {
        needed(cpus, "cpus");
        adamant::cpu_quota const quota = adamant::read_cpu_quota();
        text_buffer const target{source, source_bytes, "source"};
        check_fits(quota.source, target);
        if (source != nullptr)
            std::memcpy(source, quota.source.c_str(), quota.source.size() + 1);
        *cpus = quota.cpus;
    });
}
adamant_status adamant_select_nodes(const adamant_core_options* options, char* nodes, size_t nodes_bytes, char* why,
                                    size_t why_bytes)
{
    return guarded([&] {
        needed(nodes, "nodes");
        adamant::rank_cores const cores = select(read(options));
        give_texts(to_list(cores.numa_nodes), {nodes, nodes_bytes, "nodes"}, cores.why, {why, why_bytes, "why"});
    });
}
