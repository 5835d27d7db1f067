// SPDX-License-Identifier: Apache-2.0
// The report of `adamant roofline`, as text, JSON, CSV and a picture.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chart.hpp"
#include "roofline_ranks.hpp"

namespace cli {

struct roofline_report {
    std::string machine; // in words
    std::string date;
    std::vector<std::string> notes;    // on pages, clock, other load
    std::vector<std::string> warnings; // reasons to distrust the figures
    std::vector<roofline_row> rows;    // of this process's cores; other optimizers' rows have their name in `measured`
    std::size_t params = 0;            // of the requested job
    std::optional<job_result> job;
    std::string source_path; // the file of an earlier measurement; empty: measured now
    bool interrupted = false;
};

// Notes the share of the processors that other processes used meanwhile, from 0 to 1; a large one as a warning, too.
void add_others(roofline_report& report, double share);

// Reads the largest arrays of a run of benchmarks/peers.py: the limit, adamant's steps and other optimizers'. Throws
// usage_error if the file cannot be read or has another format.
roofline_report read_run(std::string const& path);

std::string to_text(roofline_report const& report);
std::string to_json(roofline_report const& report);
std::string to_csv(roofline_report const& report);
chart picture_of(roofline_report const& report);

} // namespace cli
