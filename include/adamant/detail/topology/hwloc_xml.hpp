// SPDX-License-Identifier: Apache-2.0
// Looks through a topology file for what hwloc crashes on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// What is wrong with a text in hwloc's XML, "line 7: the Package has ..."; empty where hwloc can be given it. hwloc
// refuses most of what is not well formed itself, but takes a set for granted where it has read its counterpart.
inline std::string problem_of_xml(std::string_view text)
{
    constexpr std::string_view spaces = " \t\r\n";
    std::size_t const npos = std::string_view::npos;
    for (std::size_t at = text.find('<'); at != npos; at = text.find('<', at + 1)) {
        std::string_view tag = text.substr(at);
        if (tag.starts_with("<!--")) {
            at = text.find("-->", at);
            if (at == npos)
                break;
            continue;
        }
        if (!tag.starts_with("<object"))
            continue;
        tag.remove_prefix(7);
        std::string_view type = "object";
        bool has_cpuset = false, has_complete_cpuset = false, has_nodeset = false, has_complete_nodeset = false;
        for (;;) {
            tag.remove_prefix(std::min(tag.find_first_not_of(spaces), tag.size()));
            std::size_t const quote = tag.find_first_of("\"'>");
            if (quote == npos || tag[quote] == '>')
                break;
            std::string_view name = tag.substr(0, tag.find('='));
            name = name.substr(0, name.find_first_of(spaces));
            std::size_t const end = tag.find(tag[quote], quote + 1);
            if (name == "type")
                type = tag.substr(quote + 1, std::min(end, tag.size()) - quote - 1);
            has_cpuset = has_cpuset || name == "cpuset";
            has_complete_cpuset = has_complete_cpuset || name == "complete_cpuset";
            has_nodeset = has_nodeset || name == "nodeset";
            has_complete_nodeset = has_complete_nodeset || name == "complete_nodeset";
            if (end == npos)
                break;
            tag.remove_prefix(end + 1);
        }
        bool const lacks_cpuset = has_cpuset && !has_complete_cpuset;
        if (lacks_cpuset || (has_nodeset && !has_complete_nodeset))
            return text_of(
                {"line ", 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'), ": the ",
                 type,
                 lacks_cpuset ? " has a cpuset and no complete_cpuset" : " has a nodeset and no complete_nodeset"});
    }
    return {};
}

} // namespace detail

ADAMANT_END_NAMESPACE
