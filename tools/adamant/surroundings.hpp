// SPDX-License-Identifier: Apache-2.0
// Conditions of a measurement: the clock, huge pages, and the load by other processes.
#pragma once

#include <string>

namespace cli {

// The clock of the calling core in GHz: the best of several runs of a chain of additions of one cycle each. 0 for
// architectures without such a chain here.
double measured_clock_ghz();

// The frequency governor, such as "performance"; empty if the kernel has none.
std::string clock_governor();

// The kernel's mode of transparent huge pages, in its own word.
std::string huge_page_state();

// The load of the machine's PUs by other processes than this one and its children, since construction, as a share of
// the time of all PUs.
class other_load {
public:
    other_load();
    [[nodiscard]] double share() const;

private:
    struct times {
        double all_s = 0;          // of all PUs, busy and idle
        double busy_s = 0;         // of all PUs
        double this_process_s = 0; // with its children
    };
    static times now();
    times begin_;
};

} // namespace cli
