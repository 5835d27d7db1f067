// SPDX-License-Identifier: Apache-2.0
// The result of tuning, with the machine and the work that it is for: it says nothing about others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <adamant/topology/core_request.hpp>
#include <adamant/topology/machine.hpp>
#include <adamant/tune/core_search.hpp>
#include <adamant/tune/trial_step.hpp>

ADAMANT_BEGIN_NAMESPACE

// The processor's name according to the kernel; on Arm, where it gives none, the numbers of implementer and part.
[[nodiscard]] std::string cpu_model(std::string const& cpuinfo = "/proc/cpuinfo");

// Everything that a result depends on, as names and texts to compare and to show.
struct tuning_key {
    std::vector<std::pair<std::string, std::string>> entries;
    friend bool operator==(tuning_key const&, tuning_key const&) = default;
};

// The key of steps with these types, by each of the request's ranks, on its cores. It leaves out the request's size,
// which tuning measures.
[[nodiscard]] tuning_key tuning_key_of(machine const& on, core_request const& request, shard_format const& format,
                                       isa tier = isa::automatic);

// An executor's setting that was tried on the final cores against its default.
struct tried_setting {
    std::string name; // a member of executor_options
    std::uint64_t value = 0;
    double time_ratio = 1; // median of its time over the default's, within rounds
    double low = 1;        // and its confidence range
    double high = 1;
};

struct tuned_cores {
    tuning_key key;
    unsigned cores = 0;            // of each rank, for the optimizer
    unsigned of = 0;               // the cores that a rank has
    double cpuadam_cores_perc = 1; // the same as a share, for configurations
    bool finished = false;         // otherwise time ran out before it was known that more are not worth using
    std::size_t elements = 0;      // of each rank, in the steps that were timed
    double step_s = 0;             // of all ranks together, on these cores, with these settings
    std::vector<core_time> curve;  // with the default settings
    std::size_t max_chunk_elems = default_max_chunk_elems;
    std::uint32_t prefetch_bytes = default_prefetch_bytes();
    std::vector<tried_setting> tried;
    std::vector<std::string> warnings; // reasons not to trust the times, in words; saved with the result

    // Cores of a rank that the optimizer leaves to the host.
    [[nodiscard]] unsigned host_cores() const noexcept;
    // Whether every core is worth using: the curve has no knee.
    [[nodiscard]] bool all() const noexcept;

    // The request with this size instead of its own, for select_cores(), which always leaves the host one core.
    [[nodiscard]] core_request request(core_request asked) const;
    // For the executor on a rank's cores.
    [[nodiscard]] executor_options options() const;
};

// Throws unavailable, naming each difference, where the result is for another machine or other work.
void check_key(tuned_cores const& saved, tuning_key const& here);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/tuned_cores.ipp>
#endif
