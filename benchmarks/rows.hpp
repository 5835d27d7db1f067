// SPDX-License-Identifier: Apache-2.0
// A row of a benchmark: its name, how it is registered, and what it reports. main.cpp has the options.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <adamant/executor.hpp>

#include "race.hpp"

namespace bench {

struct options {
    double bytes = 2.25e9;   // of all arrays of a row together, where they are to lie out of cache
    std::int64_t rounds = 9; // of a row out of cache; see rounds_for()
    bool quick = false;
    std::string folder; // of checkpoints
};

// What every workload is given, and may refer to until the program ends.
struct setup {
    options chosen;
    std::vector<adamant::executor> cpus; // of 1, 2, 4, ... threads, and of all
    [[nodiscard]] adamant::executor const& one() const { return cpus.front(); }
    [[nodiscard]] adamant::executor const& all() const { return cpus.back(); }
};

// ------------------------------------------------------------------------------------------------- sizes and rounds

// At least this many bytes; whole blocks of the norm, a multiple of 64 for 64 equal shards.
[[nodiscard]] std::size_t elements_for(double bytes, double bytes_each);

// 4096, 65536, 2^20 and 2^24 elements, as far as they are fewer than the last: those of --bytes. With --quick, of the
// others 65536 alone.
[[nodiscard]] std::vector<std::size_t> sizes(options const& chosen, double bytes_each);

// Few elements take little time, and more rounds of it.
[[nodiscard]] std::int64_t rounds_for(options const& chosen, std::size_t elems);

// So that what is timed as one takes a millisecond or more, and a clock or an interruption matters little.
[[nodiscard]] int repeats_for(std::size_t elems);

// Whether an executor uses all of its threads for that many elements: else the row would be that of fewer threads.
[[nodiscard]] bool uses_all_threads(adamant::executor const& cpu, std::size_t elems,
                                    std::size_t elem_bytes = adamant::step_elem_bytes);

// "elems:65536/threads:2"
[[nodiscard]] std::string row_name(adamant::executor const& cpu, std::size_t elems);

// visit(cpu, elems) for each of these sizes with each number of threads.
template <class Visit>
void for_each_size(setup const& given, std::vector<std::size_t> const& elems, Visit const& visit,
                   std::size_t elem_bytes = adamant::step_elem_bytes)
{
    for (std::size_t const n : elems)
        for (adamant::executor const& cpu : given.cpus)
            if (uses_all_threads(cpu, n, elem_bytes))
                visit(cpu, n);
}

// -------------------------------------------------------------------------------------------------------------- rows

// A row "workload/what/key:value/...". What body throws, memory that does not suffice above all, skips it.
void add_row(std::string const& name, std::int64_t rounds, std::function<void(benchmark::State&)> const& body);

// Whether a row was skipped.
[[nodiscard]] bool any_skipped();

// Throws where a row turns out not to measure what its name says.
void require(bool condition, char const* what);

// What one run of the subject is about; 0 where it does not apply.
struct amount {
    double elems = 0;
    double bytes = 0; // that have to be moved
};
[[nodiscard]] inline amount moving(std::size_t elems, double bytes_each)
{
    return {static_cast<double>(elems), static_cast<double>(elems) * bytes_each};
}

// From a race that is over, the counters (medians; ratios are taken within a round):
//   time_us, limit_us                  of one run; ns_per_elem, limit_ns_per_elem
//   GB/s                               of the bytes that have to be moved
//   percent_of_limit                   100 / ratio
//   ratio, ratio_p10, ratio_p90        the subject's time over the limit's
//   over_NAME, over_NAME_p10, ..._p90  the subject's time over that of the aside NAME
// and a line of the table. The limit of a round is the slowest of those that differ in name, and its label names it.
void report(benchmark::State& state, std::vector<race::contender> const& contenders, amount const& moved,
            std::string const& note = {});

// All rows that were reported, as a table.
void print_table(std::FILE* to);

// -------------------------------------------------------------------------------------------------------- workloads

void add_big_shards(setup const& given);
void add_small_shards(setup const& given);
void add_offload_step(setup const& given);
void add_rollback(setup const& given);
void add_reductions(setup const& given);
void add_checkpoint(setup const& given);
void add_hand_over(setup const& given);
void add_scaling(setup const& given);
void add_subnormals(setup const& given);
void add_unequal_cores(setup const& given);
void add_memory(setup const& given);
void add_hybrid(setup const& given);
void add_changes(setup const& given);

} // namespace bench
