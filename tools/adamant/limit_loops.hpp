// SPDX-License-Identifier: Apache-2.0
// The loops that move a step's bytes and compute nothing, chosen at run time by the step's types; the loops themselves
// are those of the benchmarks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/tune.hpp>

namespace cli {

// One way to move the bytes: some machines are faster one way, some another, and the limit is the fastest.
struct limit_loop {
    std::string name;
    std::string stores; // the part of the name that says how it stores
    std::size_t prefetch_bytes;
    void (*move)(std::byte* const* arrays, std::size_t begin, std::size_t end, std::size_t prefetch_bytes);
};

// All that there are for these types. Throws usage_error where both moments are not of one size, as no loop has that.
std::vector<limit_loop> limit_loops(adamant::shard_dtypes const& types);

// Moves the bytes of one step over all elements of the arrays, with the same values in the end but for weight_out's,
// and returns how long it took.
double limit_seconds(limit_loop const& loop, adamant::executor const& cpu, adamant::trial_step& arrays);

// Reads all float or 16-bit elements of param and both moments (none of quantized8), and counts nothing else; what it
// took.
double read_seconds(adamant::executor const& cpu, adamant::trial_step& arrays);
double read_bytes_per_element(adamant::shard_dtypes const& types);

// Copies grad to an array of its own by memcpy(), in each thread's chunks.
double copy_seconds(adamant::executor const& cpu, adamant::trial_step& arrays, std::byte* to);

} // namespace cli
