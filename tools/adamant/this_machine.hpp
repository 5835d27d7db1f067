// SPDX-License-Identifier: Apache-2.0
// The machine that a command is about, and the types of element that it is asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/formats.hpp>

namespace cli {

// This one, or one as hwloc has it in a file or a description. Throws adamant::unavailable in a program without hwloc.
adamant::machine machine_of(std::optional<std::string> const& topology = {});

// Types with a name that people say.
struct named_types {
    std::string name;
    adamant::shard_format const* format;
};
// "mixed,f32": names, or five types with slashes between them ("float32/bfloat16/float32/float32/-"). Throws
// usage_error for what is neither, and for what has no step.
std::vector<named_types> parse_types(std::string const& text);

// "AMD EPYC, 2 cores (4 PUs), 1 NUMA node, 32 MiB L3"; and the CPU quota, where there is one.
std::string describe(adamant::machine const& on);

// "quota 2.5 of 64 CPUs"; empty where there is no quota.
std::string quota_text(adamant::machine const& on);

// "2026-11-22 14:03".
std::string date_and_time();

} // namespace cli
