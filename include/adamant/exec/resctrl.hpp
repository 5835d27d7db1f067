// SPDX-License-Identifier: Apache-2.0
// A share of the L3 and of the memory bandwidth for the optimizer's threads, the rest for the host: a control group of
// Linux's resctrl (Intel RDT, AMD QoS, Arm MPAM). It changes how fast a step is, never a bit of it.
//
// All state is in the groups' names and contents, so that it survives a crash: a group is called
// adamant.<pid>.<start time of the process>.<n>, and the next process gives back what dead ones had taken.
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
                                // hardware slows each core's requests down, so the group gets about this share.
    bool required = false;      // throw where a share is unavailable, instead of continuing without it
    std::string root = "/sys/fs/resctrl";
};

struct resctrl_report {
    std::string optimizer; // what the kernel shows for the two groups, as in "L3:0=fffc0;1=fffc0 MB:0=30;1=30"
    std::string host;
    std::string notes; // shares that are unavailable although the group is active; empty: none
};

// Holds such a group from construction to destruction. Several processes of one host may each have one: each takes its
// share of the whole from what the host's (the root) group still has, under the lock of the file system. They must see
// each other's pids: a process in a container with its own pids would take the others for dead.
//
// Different objects may be used from several threads at once, and so may the const functions of one. After a fork the
// child's copy does nothing: the group belongs to the parent.
class resctrl_group {
public:
    // Removes the groups of dead processes, makes a new group and divides. Where that fails, everything stays as before
    // and reason() says why; with `required` it throws unavailable with that text instead. Throws invalid_argument
    // where a share is neither 0 nor between 0 and 1, where `required` is set without a share, and where files is null.
    explicit resctrl_group(resctrl_options const& options,
                           std::shared_ptr<resctrl_files> files = std::make_shared<resctrl_files>());
    resctrl_group(resctrl_group&& other) noexcept;
    resctrl_group& operator=(resctrl_group&& other) noexcept;
    // Threads go back to the host's group, which gets back what was taken from it; nothing else changes. A mask must be
    // contiguous: bits that another rank's group separates from the host's go to that group, which gives them back
    // later.
    ~resctrl_group();

    [[nodiscard]] bool active() const noexcept { return self_.owner != 0; }
    // Why it is not active, in a sentence; empty where it is.
    [[nodiscard]] std::string const& reason() const noexcept { return self_.reason; }
    // The folder's name under the root; empty where it is not active.
    [[nodiscard]] std::string const& name() const noexcept { return self_.name; }

    // Moves a thread (gettid(), never 0) into the group; threads and processes that it starts later begin there, too.
    // Returns an empty text, or why the thread could not be moved and stays where it was; with `required` it throws
    // unavailable with that text instead. Throws invalid_argument where tid is not positive.
    [[nodiscard]] std::string add_thread(pid_t tid) const;

    // Moves all threads of a team into the group, as add_thread() moves one. Returns an empty text, or why a thread
    // could not be moved; it and the threads after it stay where they were.
    [[nodiscard]] std::string add_team(team const& threads) const;

    // What the kernel has now, read again because it rounds. Empty where the group is not active.
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

    // Splits what the host's group has of one domain. Returns the end of a sentence that says why not, or an empty
    // text.
    std::string split(schema const& one, std::uint64_t most, double share, schemata& ours, schemata& host) const;

    // Removes a group and gives the host's group what it had taken: of the bandwidth `known`, or where that is null,
    // what the group has now. Each part is given back on its own, so that one failure does not prevent the others.
    void remove(std::string const& name, schemata const* known) const;

    // Bits that are not next to the host's bits are next to those of another of our groups.
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
