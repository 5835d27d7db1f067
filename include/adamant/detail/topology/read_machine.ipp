// SPDX-License-Identifier: Apache-2.0
// Definitions of live_machine() and the readers of topology files of adamant/cores.hpp.
#pragma once

#include <adamant/cores.hpp>
#include <adamant/error.hpp>

#if defined(ADAMANT_NO_HWLOC)

ADAMANT_BEGIN_NAMESPACE

namespace detail {

[[noreturn]] inline void refuse_to_read(std::string const& subject)
{
    throw_unavailable({"cannot read ", subject,
                       ": the library was compiled without hwloc (ADAMANT_NO_HWLOC). Install "
                       "hwloc (libhwloc-dev) and compile again."});
}

} // namespace detail

ADAMANT_DECL machine live_machine()
{
    detail::refuse_to_read("this machine's topology");
}

ADAMANT_DECL machine machine_from_xml(std::string const& path)
{
    detail::refuse_to_read(detail::text_of({"the topology file \"", path, "\""}));
}

ADAMANT_DECL machine machine_from_synthetic(std::string const& description)
{
    detail::refuse_to_read(detail::text_of({"the synthetic topology \"", description, "\""}));
}

ADAMANT_DECL machine read_machine(std::string const& file_or_description)
{
    detail::refuse_to_read(detail::text_of({"the topology \"", file_or_description, "\""}));
}

ADAMANT_END_NAMESPACE

#else

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include <adamant/detail/topology/hwloc.hpp>
#include <adamant/detail/topology/hwloc_machine.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

// Returns the version that a file of hwloc's XML names at its beginning, "3.0", or an empty text.
inline std::string xml_version(std::string_view text)
{
    text = text.substr(0, 4096);
    std::string_view const key = "<topology version=\"";
    std::size_t const position = text.find(key);
    if (position == std::string_view::npos)
        return {};
    text.remove_prefix(position + key.size());
    return std::string(text.substr(0, text.find_first_not_of("0123456789.")));
}

} // namespace detail

ADAMANT_DECL machine live_machine()
{
    detail::live_topology(); // loaded first, so that the plugins stay loaded
    machine result = detail::to_machine(detail::load_live(detail::io_devices::included).get(), "this machine");
    result.allowed = detail::process_mask(result.allowed, result.note);
    result.quota = read_cpu_quota();
    return result;
}

ADAMANT_DECL machine machine_from_xml(std::string const& path)
{
    if (::access(path.c_str(), R_OK) != 0)
        detail::throw_unavailable({"cannot open \"", path, "\": ", std::strerror(errno)});
    std::string const text = detail::read_file(path);
    if (std::string const problem = detail::problem_of_xml(text); !problem.empty())
        detail::throw_invalid_argument(
            {"cannot read \"", path, "\": ", problem, ". Write the file again with lstopo FILE.xml"});
    detail::unique_topology const topology = detail::new_topology(detail::io_devices::included);
    bool const has_size = !text.empty() && text.size() < std::size_t{1} << 30; // hwloc's size is an int
    if (!has_size ||
        hwloc_topology_set_xmlbuffer(topology.get(), text.c_str(), static_cast<int>(text.size()) + 1) != 0 ||
        hwloc_topology_load(topology.get()) != 0) {
        std::string const version = detail::xml_version(text);
        unsigned const own_version = hwloc_get_api_version() >> 16;
        if (std::atoi(version.c_str()) > static_cast<int>(own_version))
            detail::throw_unavailable({"\"", path, "\" is XML of version ", version,
                                       ", but the hwloc of this program is version ", own_version,
                                       " and reads no newer one; write the file with lstopo --of v", own_version,
                                       "xml FILE.xml"});
        detail::throw_invalid_argument(
            {"\"", path, "\" is not a topology in hwloc's XML (lstopo FILE.xml writes one)"});
    }
    return detail::to_machine(topology.get(), path);
}

ADAMANT_DECL machine machine_from_synthetic(std::string const& description)
{
    detail::unique_topology const topology = detail::new_topology(detail::io_devices::skipped);
    if (hwloc_topology_set_synthetic(topology.get(), description.c_str()) != 0 ||
        hwloc_topology_load(topology.get()) != 0)
        detail::throw_invalid_argument(
            {"\"", description,
             "\" is not a synthetic topology; an example is \"pack:2 [numa] core:96 pu:2\" (see man hwloc)"});
    return detail::to_machine(topology.get(), description);
}

ADAMANT_DECL machine read_machine(std::string const& file_or_description)
{
    std::error_code ignored;
    if (file_or_description.ends_with(".xml") || std::filesystem::exists(file_or_description, ignored))
        return machine_from_xml(file_or_description);
    return machine_from_synthetic(file_or_description);
}

ADAMANT_END_NAMESPACE

#endif
