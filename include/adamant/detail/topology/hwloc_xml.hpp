// SPDX-License-Identifier: Apache-2.0
// Finds input in a topology file that crashes hwloc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Returns the problem of a text in hwloc's XML, "line 7: the Package has ...", or an empty text if hwloc can read it.
// hwloc refuses most malformed texts itself, but crashes if an object has a set without its complete counterpart.
[[gnu::noinline]] inline std::string problem_of_xml(std::string_view text)
{
    constexpr std::string_view spaces = " \t\r\n";
    std::size_t const npos = std::string_view::npos;
    for (std::size_t position = text.find('<'); position != npos; position = text.find('<', position + 1)) {
        std::string_view tag = text.substr(position);
        if (tag.starts_with("<!--")) {
            position = text.find("-->", position);
            if (position == npos)
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
                {"line ", 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(position), '\n'),
                 ": the ", type,
                 lacks_cpuset ? " has a cpuset and no complete_cpuset" : " has a nodeset and no complete_nodeset"});
    }
    return {};
}

} // namespace detail

ADAMANT_END_NAMESPACE
