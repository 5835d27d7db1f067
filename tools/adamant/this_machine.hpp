// SPDX-License-Identifier: Apache-2.0
// The machine and the element types that a command works with, from its options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/formats.hpp>

namespace cli {

// This machine, or one from a file or a synthetic description of hwloc. Throws adamant::unavailable if compiled without
// hwloc.
adamant::machine machine_of(std::optional<std::string> const& topology = {});

// The element types of a shard, with the name that the user gave for them.
struct named_types {
    std::string name;
    adamant::shard_format const* format;
};
// Reads a list such as "mixed,f32": names, or five types with slashes ("float32/bfloat16/float32/float32/-"). Throws
// usage_error for other words and for combinations without a step.
std::vector<named_types> parse_types(std::string const& text);

// "AMD EPYC, 2 cores (4 PUs), 1 NUMA node, 32 MiB L3", and the CPU quota if there is one.
std::string describe(adamant::machine const& host);

// "quota 2.5 of 64 CPUs"; empty without a quota.
std::string quota_text(adamant::machine const& host);

// "2026-11-22 14:03".
std::string date_and_time();

} // namespace cli
