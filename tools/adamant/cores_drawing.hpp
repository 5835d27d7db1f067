// SPDX-License-Identifier: Apache-2.0
// The drawing of `adamant cores`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <adamant/cores.hpp>

namespace cli {

// A machine, and the cores of its ranks.
struct picture {
    adamant::machine const& host;
    adamant::pu_set usable; // PUs that all ranks together may use
    adamant::pu_set pool;   // PUs that were divided: all usable ones, or those of a list
    std::vector<adamant::rank_cores> const& ranks;
    std::optional<unsigned> only_rank; // the rank to show
    std::string ranks_source;          // source of the number of ranks
    bool colours = false;
};

// Draws the picture for a terminal: lines of ASCII of at most 100 columns, unless a single word is longer.
std::string draw(picture const& content);

} // namespace cli
