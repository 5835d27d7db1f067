// SPDX-License-Identifier: Apache-2.0
// What adamant/c/cores.h declares.
#include <adamant/c/cores.h>

#include <cstddef>
#include <cstring>
#include <string>

#include <adamant/c/convert.hpp>
#include <adamant/machine.hpp>

namespace adamant::c {

static void check_fits(std::string const& text, char const* to, std::size_t bytes, char const* what)
{
    if (to == nullptr && bytes != 0)
        throw invalid_argument(std::string("adamant: ") + what + " is a null pointer, but said to have " +
                               std::to_string(bytes) + " bytes");
    if (to != nullptr && bytes <= text.size())
        throw invalid_argument(std::string("adamant: ") + what + " has " + std::to_string(bytes) +
                               " bytes, but needs " + std::to_string(text.size() + 1));
}

static rank_cores select(adamant_core_options const& from)
{
    core_request request{.cpuadam_cores_perc = unless_zero(from.cpuadam_cores_perc),
                         .cpuadam_cores = unless_zero(from.cpuadam_cores),
                         .pt_reserved_cores = unless_zero(from.pt_reserved_cores),
                         .pt_reserved_cores_perc = unless_zero(from.pt_reserved_cores_perc),
                         .list = parse_index_set(text_or_empty(from.pus)),
                         .smt = from.every_pu_of_cores != 0 ? smt_policy::all : smt_policy::one_per_core,
                         .fast = from.fast_cores_to_host != 0 ? fast_cores::host : fast_cores::optimizer};
    local_rank self{from.rank, from.ranks, {}};
    if (self.ranks == 0 && self.rank != 0)
        throw invalid_argument("adamant: rank is " + std::to_string(from.rank) +
                               ", but ranks is 0, which leaves both to the environment");
    if (self.ranks == 0)
        self = rank_from_environment();
    if (self.rank >= self.ranks)
        throw invalid_argument("adamant: rank is " + std::to_string(self.rank) + ", but there are " +
                               std::to_string(self.ranks) + " ranks, which count from 0");
    request.ranks = self.ranks;
#if defined(ADAMANT_NO_HWLOC)
    throw unavailable("adamant: cores are to be chosen, but this library was built without hwloc (ADAMANT_HWLOC=OFF)");
#else
    machine const on = from.machine == nullptr ? live_machine() : read_machine(from.machine);
    return select_cores(on, request)[self.rank];
#endif
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
        std::string const adam = to_list(cores.adam_pus);
        std::string const host = to_list(cores.host_pus);
        check_fits(adam, adam_pus, adam_bytes, "adam_pus");
        check_fits(host, host_pus, host_bytes, "host_pus");
        std::memcpy(adam_pus, adam.c_str(), adam.size() + 1);
        if (host_pus != nullptr)
            std::memcpy(host_pus, host.c_str(), host.size() + 1);
    });
}
