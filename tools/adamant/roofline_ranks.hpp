// SPDX-License-Identifier: Apache-2.0
// The whole job: N processes, each on cores of its own, that step their shares of the parameters concurrently.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/cores.hpp>

#include "roofline_measure.hpp"

namespace cli {

struct job_request {
    std::size_t params = 0;                 // of all ranks together
    std::vector<adamant::rank_cores> ranks; // their adam_pus are the cores that are used
    named_types types;
    std::vector<limit_loop> loops; // the fastest known
    std::size_t rounds = 9;
};

struct job_result {
    std::vector<roofline_row> rows;  // limit and step of all ranks together; empty where it was interrupted too early
    std::size_t params_measured = 0; // fewer than asked for where these do not fit in memory
    double step_s = 0;               // for as many as were asked for
    bool projected = false;          // from fewer, in proportion
    double huge_share = 0;           // of the arrays' memory that is in huge pages
};

// To be called while this process has one thread. Throws adamant::unavailable where a process cannot be had, or has
// failed, with what it said.
job_result run_job(job_request const& job, progress& bar);

// How many rounds of the progress bar that is.
double expected_rounds(job_request const& job);

} // namespace cli
