// SPDX-License-Identifier: Apache-2.0
// Error texts of the library, rewritten for users of the command-line tool.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace cli {

// Replaces advice for programmers, such as names of enumerators, with advice for users of the tool.
inline std::string for_people(std::string text)
{
    constexpr std::pair<std::string_view, std::string_view> replacements[] = {
        {" To continue unbound, request binding::if_possible.", " `adamant cores` shows the PUs that may be used."},
        {" Name PUs, or request binding::none.", ""},
        {" Request binding::none.", " Install hwloc (libhwloc-dev) and compile again."},
        {", or name PUs and bind no threads", ""},
        {"or give rank and ranks yourself", "or give --ranks"},
        {"binding::required", "bound threads"},
        {"binding::if_possible", "threads that are bound where that is possible"},
        {"binding::none", "threads that are not bound"},
        {"pt_reserved_cores_perc is", "--reserve is"},
        {"pt_reserved_cores is", "--reserve is"},
        {"cpuadam_cores is", "--count is"},
        {": masks has", ": --allowed has"},
        {": gpus has", ": --gpu has"},
        {"cpuadam_cores_perc is", "--perc is"},
    };
    for (auto const& [library, tool] : replacements)
        if (std::size_t const begin = text.find(library); begin != std::string::npos)
            text.replace(begin, library.size(), tool);
    return text;
}

} // namespace cli
