// SPDX-License-Identifier: Apache-2.0
// The library's errors, for users of the tool.
#pragma once

#include <string>
#include <string_view>
#include <utility>

namespace cli {

// Replaces advice and names that are for programs, which call the library, by the tool's own.
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
        {"cpuadam_cores_perc is", "--perc is"},
    };
    for (auto const& [library, tool] : replacements)
        if (std::size_t const at = text.find(library); at != std::string::npos)
            text.replace(at, library.size(), tool);
    return text;
}

} // namespace cli
