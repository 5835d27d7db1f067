// SPDX-License-Identifier: Apache-2.0
// The measurements of `adamant roofline` on the cores of this process: loops without arithmetic, and real steps.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/tune.hpp>

#include "limit_loops.hpp"
#include "progress.hpp"
#include "this_machine.hpp"

namespace cli {

// One line of the table.
struct roofline_row {
    std::string measured; // "read", "copy", "limit" or "step"
    std::string types;    // a name ("mixed") or the five types; empty for read and copy
    unsigned threads = 0; // of each rank
    unsigned ranks = 1;
    std::string pus;
    std::string node;         // empty: memory where the threads touched it first
    std::size_t elements = 0; // of all ranks together
    double bytes_per_element = 0;
    std::size_t rounds = 0;
    double ns_per_element = 0; // medians; of all ranks together
    double ns_p10 = 0;
    double ns_p90 = 0;
    double percent_of_limit = 0; // median of the rounds' ratios to the limit; 0: the row is not a step
    double percent_p10 = 0;
    double percent_p90 = 0;
    std::string isa;  // of a step
    std::string note; // the fastest loop

    [[nodiscard]] bool is_step() const { return percent_of_limit > 0; }
    [[nodiscard]] double gb_per_s() const { return bytes_per_element / ns_per_element; }
};

// A measurement that runs once in each round, in random order with the others.
struct timed_work {
    std::function<double()> seconds; // does the work and returns its time
    std::vector<double> times = {};
};
// Runs `rounds` rounds after one that does not count. Stops early after Ctrl-C.
void run_rounds(std::vector<timed_work>& all, std::size_t rounds, progress& bar);

// The rows of a step and its limit from their times in the same rounds. loops: those that were timed in `limits`.
std::vector<roofline_row> rows_of(roofline_row const& common, std::vector<double> const& step,
                                  std::vector<timed_work> const& limits, std::vector<limit_loop> const& loops);

struct roofline_cores {
    adamant::pu_set pus;
    adamant::node_set nodes; // not empty: memory is bound there
};

struct roofline_options {
    std::vector<named_types> types;
    std::size_t bytes = 0; // of each row's arrays, about
    std::size_t rounds = 9;
};

// The number of rounds of measure_cores(), for the progress bar.
double expected_rounds(roofline_options const& options);

// Measures read, copy, and for each of the types limit and step. Stops early after Ctrl-C, with the complete rows.
// best_loops: receives for each of the types the fastest loop of each kind of stores.
void measure_cores(roofline_cores const& target, roofline_options const& options, progress& bar,
                   std::vector<roofline_row>& rows, std::vector<std::vector<limit_loop>>& best_loops);

} // namespace cli
