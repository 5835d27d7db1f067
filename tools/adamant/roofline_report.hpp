// SPDX-License-Identifier: Apache-2.0
// What `adamant roofline` has found, as text, JSON, CSV and a picture.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chart.hpp"
#include "roofline_ranks.hpp"

namespace cli {

struct roofline_found {
    std::string machine; // in words
    std::string date;
    std::vector<std::string> notes;    // on pages, clock, quiet
    std::vector<std::string> warnings; // reasons not to believe it
    std::vector<roofline_row> rows;    // of this process's cores; a row of others has their name for what it is
    std::size_t params = 0;            // of the job that was asked for
    std::optional<job_result> job;
    std::string from; // the file it was read from; empty: measured now
    bool interrupted = false;
};

// What others had of the processors meanwhile, from 0 to 1, as a note; where it was much, as a warning, too.
void add_others(roofline_found& found, double share);

// The large sizes that benchmarks/peers.py has measured in one run: the limit, adamant's steps and others'. Throws
// usage_error where the file cannot be read or is another one.
roofline_found read_run(std::string const& path);

std::string to_text(roofline_found const& found);
std::string to_json(roofline_found const& found);
std::string to_csv(roofline_found const& found);
chart picture_of(roofline_found const& found);

} // namespace cli
