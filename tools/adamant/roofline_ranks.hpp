// SPDX-License-Identifier: Apache-2.0
// The whole job of `adamant roofline`: N processes, each on its own cores, that step their shares of the parameters
// concurrently.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/cores.hpp>

#include "roofline_measure.hpp"

namespace cli {

struct job_request {
    std::size_t params = 0;                 // of all ranks together
    std::vector<adamant::rank_cores> ranks; // threads run on adam_pus
    named_types types;
    std::vector<limit_loop> loops; // the fastest ones
    std::size_t rounds = 9;
};

struct job_result {
    std::vector<roofline_row> rows;  // limit and step of all ranks together; empty after an early interruption
    std::size_t params_measured = 0; // fewer than requested if those do not fit in memory
    double step_s = 0;               // for the requested number of parameters
    bool projected = false;          // step_s is scaled up from params_measured
    double huge_share = 0;           // of the arrays' memory that is in huge pages
};

// Call it while this process has a single thread. Throws adamant::unavailable if a process cannot be started, or with
// the error of a process that has failed.
job_result run_job(job_request const& job, progress& bar);

// The number of rounds of run_job(), for the progress bar.
double expected_rounds(job_request const& job);

} // namespace cli
