// SPDX-License-Identifier: Apache-2.0
// Memory bandwidth and cache of the optimizer threads by a resctrl group.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/team.hpp>

// The files of Linux's resctrl, their text, and whose group is whose. The inside of resctrl.hpp.

ADAMANT_BEGIN_NAMESPACE

/// The file system underneath. Derive from it to test, or to reach a resctrl that another process has to write. What
/// returns an int returns 0 or an errno. May be called from several threads concurrently.
class resctrl_files {
public:
    resctrl_files() = default;
    resctrl_files(resctrl_files const&) = delete;
    resctrl_files& operator=(resctrl_files const&) = delete;
    virtual ~resctrl_files() = default;

    /// The whole of a file.
    [[nodiscard]] virtual int read(std::string const& path, std::string& text);
    /// In one write(2), which the kernel takes or refuses as a whole. The file exists.
    [[nodiscard]] virtual int write(std::string const& path, std::string const& text);
    /// Mkdir().
    [[nodiscard]] virtual int make_dir(std::string const& path);
    /// Rmdir().
    [[nodiscard]] virtual int remove_dir(std::string const& path);
    /// The names of the folders in a folder; more names do no harm.
    [[nodiscard]] virtual int list_dirs(std::string const& path, std::vector<std::string>& names);
    /// The lock that the kernel's documentation wants tools to hold while they look and then write: flock on the root,
    /// until the result is destroyed. Tries for five seconds, then EWOULDBLOCK.
    [[nodiscard]] virtual std::shared_ptr<void> lock(std::string const& root, int& error);

private:
    static int close_with(int file, int error) noexcept;
};

namespace detail {

// One thing that is divided, of a schemata file: a resource (L3, L3CODE, L3DATA, MB), a domain (cache id) of it, and
// the mask or the bandwidth there.
struct schema {
    std::string resource;
    unsigned long id = 0;
    std::uint64_t value = 0;
    [[nodiscard]] bool is_bandwidth() const;
};
using schemata = std::vector<schema>;

schemata parse_schemata(std::string const& text);

std::string to_text(schemata const& all);

// The same resource and domain of another group, or `otherwise`.
std::uint64_t value_in(schemata const& all, schema const& like, std::uint64_t otherwise);

// In how many pieces the bits of a mask lie. Many processors take masks of one piece only.
constexpr int pieces(std::uint64_t mask) noexcept
{
    return std::popcount(mask & ~(mask << 1));
}

// `count` adjacent bits from one end of a mask that has more; 0 where neither end has that many adjacent bits. The end
// is the one with fewer of the bits that devices use too (`shared`), and the upper one where they are equal.
constexpr std::uint64_t end_of_mask(std::uint64_t mask, std::uint64_t count, std::uint64_t shared) noexcept
{
    std::uint64_t const run = (std::uint64_t{1} << count) - 1;
    std::uint64_t const low = run << std::countr_zero(mask);
    std::uint64_t const high = run << (static_cast<std::uint64_t>(std::bit_width(mask)) - count);
    bool const low_fits = (low & ~mask) == 0;
    if ((high & ~mask) != 0)
        return low_fits ? low : 0;
    return low_fits && std::popcount(low & shared) < std::popcount(high & shared) ? low : high;
}

// When a process began, in clock ticks since boot: pids are used again, the pair is not. 0 where it is gone, or only a
// zombie that has not been collected is left; `otherwise` where that cannot be known.
unsigned long long process_start(resctrl_files& files, long pid, unsigned long long otherwise);

std::string group_name(long pid, unsigned long long start, unsigned n);

// Whose group this is, by its name.
enum class owner { foreign, alive, gone };
owner owner_of(resctrl_files& files, std::string const& group);

} // namespace detail

// A share of the L3 and of the memory bandwidth for the optimizer's threads, the rest for the host: a control group of
// Linux's resctrl (Intel RDT, AMD QoS, Arm MPAM). It changes how fast a step is, never a bit of it.
//
// All state is in the groups' names and contents, so that it survives a crash: a group is called
// adamant.<pid>.<start time of the process>.<n>, and the next process gives back what dead ones had taken.

/// Options of a resctrl group.
struct resctrl_options {
    double l3_share = 0; ///< of all ways of the L3, in every domain, to the nearest way; 0: not divided
    double bandwidth_share =
        0;                 ///< of the memory bandwidth, to the nearest step of the hardware; 0: not limited. Intel's
                           ///< hardware slows each core's requests down, so the group gets about this share.
    bool required = false; ///< throw where a share is unavailable, instead of continuing without it
    std::string root = "/sys/fs/resctrl"; ///< where resctrl is mounted
};

/// What was set.
struct resctrl_report {
    std::string optimizer; ///< what the kernel shows for the two groups, as in "L3:0=fffc0;1=fffc0 MB:0=30;1=30"
    std::string host;      ///< the host's group
    std::string notes;     ///< shares that are unavailable although the group is active; empty: none
};

/// Holds such a group from construction to destruction. Several processes of one host may each have one: each takes its
/// share of the whole from what the host's (the root) group still has, under the lock of the file system. They must see
/// each other's pids: a process in a container with its own pids would take the others for dead.
///
/// Different objects may be used from several threads concurrently, and so may the const functions of one. After a fork
/// the child's copy does nothing: the group belongs to the parent.
class resctrl_group {
public:
    /// Removes the groups of dead processes, makes a new group and divides. Where that fails, everything stays as
    /// before and reason() says why; with `required` it throws unavailable with that text instead. Throws
    /// invalid_argument where a share is neither 0 nor between 0 and 1, where `required` is set without a share, and
    /// where files is null.
    explicit resctrl_group(resctrl_options const& options,
                           std::shared_ptr<resctrl_files> files = std::make_shared<resctrl_files>());
    /// Moves the group.
    resctrl_group(resctrl_group&& other) noexcept;
    /// Moves the group.
    resctrl_group& operator=(resctrl_group&& other) noexcept;
    /// Threads go back to the host's group, which gets back what was taken from it; nothing else changes. A mask must
    /// be contiguous: bits that another rank's group separates from the host's go to that group, which gives them back
    /// later.
    ~resctrl_group();

    /// Whether the group exists.
    [[nodiscard]] bool active() const noexcept { return self_.owner != 0; }
    /// Why it is not active, in a sentence; empty where it is.
    [[nodiscard]] std::string const& reason() const noexcept { return self_.reason; }
    /// The folder's name under the root; empty where it is not active.
    [[nodiscard]] std::string const& name() const noexcept { return self_.name; }

    /// Moves a thread (gettid(), never 0) into the group; threads and processes that it starts later begin there, too.
    /// Returns an empty text, or why the thread could not be moved and stays where it was; with `required` it throws
    /// unavailable with that text instead. Throws invalid_argument where tid is not positive.
    [[nodiscard]] std::string add_thread(pid_t tid) const;

    /// Moves all threads of a team into the group, as add_thread() moves one. Returns an empty text, or why a thread
    /// could not be moved; it and the threads after it stay where they were.
    [[nodiscard]] std::string add_team(team const& threads) const;

    /// What the kernel has now, read again because it rounds. Empty where the group is not active.
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
    // in one write, so that there is never anything to rollback in it.
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
#include <adamant/detail/exec/resctrl.ipp>
#include <adamant/detail/exec/resctrl_files.ipp>
#endif
