// SPDX-License-Identifier: Apache-2.0
// What `adamant roofline` has found, as text, JSON, CSV and a picture.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chart.hpp"
#include "roofline_ranks.hpp"

namespace cli {

// A measurement of somebody else's step, from the file of benchmarks/peers.py.
struct peer_point {
    std::string name;
    std::string types;
    unsigned threads = 0;
    double percent_of_limit = 0; // of the limit in its own run
};

struct roofline_found {
    std::string machine; // in words
    std::string date;
    std::vector<std::string> notes;    // on pages, clock, quiet
    std::vector<std::string> warnings; // reasons not to believe it
    std::vector<roofline_row> rows;    // of this process's cores
    std::size_t params = 0;            // of the job that was asked for
    std::optional<job_result> job;
    std::vector<peer_point> peers;
    std::string peers_from; // the file
    bool interrupted = false;
};

// Throws usage_error where the file cannot be read or is another one.
std::vector<peer_point> read_peers(std::string const& path);

std::string to_text(roofline_found const& found);
std::string to_json(roofline_found const& found);
std::string to_csv(roofline_found const& found);
chart picture_of(roofline_found const& found);

} // namespace cli
