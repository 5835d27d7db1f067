// SPDX-License-Identifier: Apache-2.0
// What tuning has found, and for which machine and work: a result for another one is no result.
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

// The processor's name, as the kernel has it; on Arm, which has none there, its implementer's and part's numbers.
[[nodiscard]] std::string cpu_model(std::string const& cpuinfo = "/proc/cpuinfo");

// What a result depends on, as names and texts to compare and to show.
struct tuning_key {
    std::vector<std::pair<std::string, std::string>> entries;
    friend bool operator==(tuning_key const&, tuning_key const&) = default;
};

// Of steps with these types, by each of the request's ranks, on its cores. What is measured of the request is left out:
// its size.
[[nodiscard]] tuning_key tuning_key_of(machine const& on, core_request const& request, shard_format const& format,
                                       isa tier = isa::automatic);

// An executor's setting that was tried on the final cores against its default.
struct tried_setting {
    std::string name; // a member of executor_options
    std::uint64_t value = 0;
    double time_ratio = 1; // median of its time over the default's, within rounds
    double low = 1;        // and the range that it lies in
    double high = 1;
};

struct tuned_cores {
    tuning_key key;
    unsigned cores = 0;            // of each rank, for the optimizer
    unsigned of = 0;               // how many a rank has
    double cpuadam_cores_perc = 1; // the same as a share, for configurations
    bool finished = false;         // else time was up before it was known that no more are worth having
    std::size_t elements = 0;      // of each rank, in the steps that were timed
    double step_s = 0;             // of all ranks together, on these cores, with these settings
    std::vector<core_time> curve;  // with the default settings
    std::size_t max_chunk_elems = default_max_chunk_elems;
    std::uint32_t prefetch_bytes = kernel::default_prefetch_bytes;
    std::vector<tried_setting> tried;

    // Cores of a rank that the optimizer leaves to the host.
    [[nodiscard]] unsigned host_cores() const noexcept;
    // Whether every core is worth having: there is no knee.
    [[nodiscard]] bool all() const noexcept;

    // The request with this size instead of its own, for select_cores(). That leaves the host one core in any case.
    [[nodiscard]] core_request request(core_request asked) const;
    // For the executor on a rank's cores.
    [[nodiscard]] executor_options options() const;
};

// Throws unavailable where the result is of another machine or other work, and names each difference.
void check_key(tuned_cores const& saved, tuning_key const& here);

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/tuned_cores.ipp>
#endif
