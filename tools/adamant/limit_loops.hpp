// SPDX-License-Identifier: Apache-2.0
// Loops that move a step's bytes without arithmetic, selected at run time by the step's types. The loops are defined in
// the benchmarks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/executor.hpp>
#include <adamant/tune.hpp>

namespace cli {

// One loop that moves the bytes. Which loop is the fastest depends on the machine; the fastest one is the limit.
struct limit_loop {
    std::string name;
    std::string stores; // the kind of store instructions, which is a part of the name
    std::size_t prefetch_bytes;
    void (*move)(std::byte* const* arrays, std::size_t begin, std::size_t end, std::size_t prefetch_bytes);
};

// All loops for these types. Throws usage_error if the moments differ in size: there is no loop for them.
std::vector<limit_loop> limit_loops(adamant::shard_dtypes const& types);

// Moves the bytes of one step over all elements of the arrays and returns the time. Only weight_out changes.
double limit_seconds(limit_loop const& loop, adamant::executor const& cpu, adamant::trial_step& arrays);

// Reads all float and 16-bit elements of param and both moments and returns the time. Skips quantized8 arrays.
double read_seconds(adamant::executor const& cpu, adamant::trial_step& arrays);
double read_bytes_per_element(adamant::shard_dtypes const& types);

// Copies grad to `target` by memcpy(), each thread its chunks, and returns the time.
double copy_seconds(adamant::executor const& cpu, adamant::trial_step& arrays, std::byte* target);

} // namespace cli
