// SPDX-License-Identifier: Apache-2.0
// What has to be known of a machine to believe what was measured on it: clock, pages, and who else was busy.
#pragma once

#include <string>

namespace cli {

// The clock of the core that runs this, from a chain of additions that takes a cycle each; in GHz, the best of some.
// 0 where that is not known to be so.
double measured_clock_ghz();

// "performance" and the like, or empty where the kernel says nothing.
std::string clock_governor();

// What the kernel does with memory that asks for huge pages, in its own words.
std::string huge_page_state();

// How busy the machine's PUs were with anything but this process and its children, from construction on, as a share of
// the time of all of them.
class others {
public:
    others();
    [[nodiscard]] double busy() const;

private:
    struct times {
        double all = 0;  // of all PUs, idle or not
        double busy = 0; // and not idle; both in seconds
        double own = 0;
    };
    static times now();
    times begin_;
};

} // namespace cli
