// SPDX-License-Identifier: Apache-2.0
// Machines as plain data, read by hwloc: this one, and those that files or texts describe.
#pragma once

#include <string>

#include <adamant/topology/machine.hpp>

ADAMANT_BEGIN_NAMESPACE

// All of these throw unavailable where the library was compiled without hwloc (ADAMANT_NO_HWLOC).

// This machine, with the PUs that this process may use now, the affinity mask that it was started with inside its
// cgroup, and with its CPU quota. Takes milliseconds, or hundreds of them on large machines, because it looks for
// devices. Throws unavailable where hwloc fails, or where its environment variables replace this machine by another
// one. Thread-safe.
[[nodiscard]] machine live_machine();

// The machine that a file of hwloc's XML describes (lstopo FILE.xml writes one), of version 2 or of a later version
// that the installed hwloc reads. Throws unavailable where the file cannot be opened or its version is too new, and
// invalid_argument where it holds no topology, or one in which PUs or nodes share a number or objects lack a set.
// Thread-safe.
[[nodiscard]] machine machine_from_xml(std::string const& path);

// The machine of a synthetic description, as hwloc reads it: "pack:2 [numa] core:96 pu:2". Throws invalid_argument.
[[nodiscard]] machine machine_from_synthetic(std::string const& description);

// Either of the two: a text that ends in ".xml" or names a file is a file.
[[nodiscard]] machine read_machine(std::string const& file_or_description);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/topology/read_machine.ipp>
#endif
