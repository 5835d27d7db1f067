// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <adamant/cores.hpp>

namespace cli {

// A machine, and what its ranks got.
struct picture {
    adamant::machine const& on;
    adamant::pu_set usable; // what the ranks may use among them
    adamant::pu_set pool;   // what of it was to be shared out: all, or what is in a list
    std::vector<adamant::rank_cores> const& ranks;
    std::optional<unsigned> only_rank; // the one to show
    std::string ranks_from;            // who says how many ranks there are
    bool colours = false;
};

// The picture for a terminal: lines of ASCII, of at most 100 columns, unless a single word is longer.
std::string draw(picture const& what);

} // namespace cli
