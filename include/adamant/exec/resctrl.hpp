// SPDX-License-Identifier: Apache-2.0
// A share of the L3 and of the memory bandwidth for the optimizer's threads, the rest for the host: a control group of
// Linux's resctrl (Intel RDT, AMD QoS, Arm MPAM). It changes how fast a step is, never a bit of it.
//
// The names of the groups and what they hold are all the state there is, so that it outlives a crash: a group is called
// adamant.<pid>.<start time of the process>.<n>, and whoever comes next gives back what the dead had taken.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include <adamant/exec/resctrl_files.hpp>
#include <adamant/exec/team.hpp>

ADAMANT_BEGIN_NAMESPACE

struct resctrl_options {
    double l3_share = 0;        // of all ways of the L3, in every domain, to the nearest way; 0: not divided
    double bandwidth_share = 0; // of the memory bandwidth, to the nearest step of the hardware; 0: not limited. Intel's
                                // hardware slows each core's requests down: what a group gets is near that, not at it.
    bool required = false;      // throw where any of it cannot be had, instead of going on without
    std::string root = "/sys/fs/resctrl";
};

struct resctrl_report {
    std::string optimizer; // what the kernel shows for the two groups, as in "L3:0=fffc0;1=fffc0 MB:0=30;1=30"
    std::string host;
    std::string notes; // what was asked for and is not there although the group is active; empty: nothing
};

// Such a group, from construction to destruction. Several processes of one host may each have one: each takes its share
// of the whole from what the host's (the root) group still has, under the lock of the file system. They have to see
// each other's pids: one in a container with pids of its own takes the others for dead.
//
// Different objects may be used from several threads at once, and so may the const functions of one. After fork the
// child's copy does nothing: the group is the parent's.
class resctrl_group {
public:
    // Removes the groups of dead processes, makes a new one and divides. Where that fails, all is as before and
    // reason() says why; with `required` it throws unavailable with that text instead. invalid_argument where a share
    // is neither 0 nor between 0 and 1, where nothing is asked for but required, and where files is null.
    explicit resctrl_group(resctrl_options const& options,
                           std::shared_ptr<resctrl_files> files = std::make_shared<resctrl_files>());
    resctrl_group(resctrl_group&& other) noexcept;
    resctrl_group& operator=(resctrl_group&& other) noexcept;
    // The threads go back to the host's group, the host gets back what was taken from it, and nothing else changes. A
    // mask has to stay in one piece: bits that another rank's group keeps apart from the host's go to that group, which
    // gives them back in its turn.
    ~resctrl_group();

    [[nodiscard]] bool active() const noexcept { return self_.owner != 0; }
    // Why it is not active, in a sentence; empty where it is.
    [[nodiscard]] std::string const& reason() const noexcept { return self_.reason; }
    // The folder's name under the root; empty where it is not active.
    [[nodiscard]] std::string const& name() const noexcept { return self_.name; }

    // Moves a thread (gettid(), never 0) into the group; threads and processes that it starts later begin there too.
    // Empty where that worked, otherwise why not, and the thread stays where it was; with `required` it throws
    // unavailable with that text instead. invalid_argument where tid is not positive.
    [[nodiscard]] std::string add_thread(pid_t tid) const;

    // Moves all threads of a team into the group, as add_thread() moves one. Empty where all are there now, otherwise why
    // the first one is not that could not be moved; those after it are where they were.
    [[nodiscard]] std::string add_team(team const& threads) const;

    // What the kernel has now, read anew, since it rounds. Empty where the group is not active.
    [[nodiscard]] resctrl_report report() const;

private:
    using schema = detail::schema;
    using schemata = detail::schemata;

    [[nodiscard]] std::string path(std::string const& group, std::string const& file = "") const;

    // A sentence about a call that failed.
    [[nodiscard]] std::string trouble(std::string const& what, int error) const;

    // Empty where that worked.
    [[nodiscard]] std::string write(std::string const& group, char const* file, std::string const& text) const;

    [[nodiscard]] schemata read_schemata(std::string const& group) const; // empty where it cannot be read

    [[nodiscard]] std::uint64_t info(schema const& one, char const* file, int base) const; // 0 where it is not there

    [[nodiscard]] std::vector<std::string> groups() const;

    void start(resctrl_options const& options);

    // Gives the new group its part of every resource and domain, the host's group the rest. The host's changes last and
    // in one write, so that there is never anything to undo in it.
    void divide(resctrl_options const& options);

    // Splits what the host's group has of one domain. Where that cannot be, the end of a sentence that says why.
    std::string split(schema const& one, std::uint64_t most, double share, schemata& ours, schemata& host) const;

    // Takes a group away and gives the host's group what that one had taken: of the bandwidth `known`, or where that is
    // null what the group has now. One thing at a time: what cannot be given back keeps nothing else from it.
    void remove(std::string const& name, schemata const* known) const;

    // What is not next to the host's bits is next to those of another of our groups.
    [[nodiscard]] bool hand_on(std::string const& from, schema const& bits, std::uint64_t host) const;

    struct state {
        std::shared_ptr<resctrl_files> files;
        std::string root;
        std::string name;
        std::string reason = "moved away";
        std::string notes;
        schemata bandwidth_taken; // from the host's group
        pid_t owner = 0;          // 0: not active
        bool required = false;
    };
    state self_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/exec/resctrl.ipp>
#endif
