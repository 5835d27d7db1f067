// SPDX-License-Identifier: Apache-2.0
// Limits of L3 cache and memory bandwidth for the optimizer's threads, by Linux resctrl.
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

ADAMANT_BEGIN_NAMESPACE

/// File operations of resctrl. Derive from it for tests, or if another process has to write the files.
///
/// Functions that return an int return 0 or an errno value. They may be called concurrently.
class resctrl_files {
public:
    /// Creates the operations of the real file system.
    resctrl_files() = default;
    resctrl_files(resctrl_files const&) = delete;
    resctrl_files& operator=(resctrl_files const&) = delete;
    virtual ~resctrl_files() = default;

    /// Reads a whole file.
    [[nodiscard]] virtual int read(std::string const& path, std::string& text);
    /// Writes to an existing file with one write(2), which the kernel accepts or rejects as a whole.
    [[nodiscard]] virtual int write(std::string const& path, std::string const& text);
    /// Creates a folder.
    [[nodiscard]] virtual int make_dir(std::string const& path);
    /// Removes a folder.
    [[nodiscard]] virtual int remove_dir(std::string const& path);
    /// Lists the folders in a folder. Names of other entries in the list are harmless.
    [[nodiscard]] virtual int list_dirs(std::string const& path, std::vector<std::string>& names);
    /// Takes the lock that the kernel's documentation requires for read-modify-write: flock(2) on the root.
    ///
    /// The lock is held until the result is destroyed. Retries for five seconds, then sets `error` to EWOULDBLOCK.
    [[nodiscard]] virtual std::shared_ptr<void> lock(std::string const& root, int& error);

private:
    static int close_with(int file, int error) noexcept;
};

namespace detail {

// One entry of a schemata file: a resource (L3, L3CODE, L3DATA, MB), a domain (cache id) of it, and the mask or the
// bandwidth of that domain.
struct schema {
    std::string resource;
    unsigned long id = 0;
    std::uint64_t value = 0;
    [[nodiscard]] bool is_bandwidth() const;
};
using schemata = std::vector<schema>;

schemata parse_schemata(std::string const& text);

std::string to_text(schemata const& all);

// Returns the value of the same resource and domain in another group, or the fallback.
std::uint64_t value_in(schemata const& all, schema const& key, std::uint64_t fallback);

// Returns the number of contiguous runs of bits in a mask. Many processors accept masks of one run only.
constexpr int pieces(std::uint64_t mask) noexcept
{
    return std::popcount(mask & ~(mask << 1));
}

// Returns `count` adjacent bits from one end of a mask that has more; 0 if neither end has that many adjacent bits.
// Prefers the end with fewer bits that devices share (`shared`), and the upper end on a tie.
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

// Returns the start time of a process in clock ticks since boot. A pid is reused, the pair of pid and start time is
// not. Returns 0 if the process is gone or a zombie, and the fallback if that cannot be determined.
unsigned long long process_start(resctrl_files& files, long pid, unsigned long long fallback);

std::string group_name(long pid, unsigned long long start, unsigned n);

// Owner of a group, derived from its name.
enum class owner { foreign, alive, gone };
owner owner_of(resctrl_files& files, std::string const& group);

} // namespace detail

/// Options of resctrl_group.
struct resctrl_options {
    double l3_share = 0; ///< Share of the L3's ways, in every domain, rounded to the nearest way; 0: no partition.
    /// Share of the memory bandwidth, rounded to the nearest step of the hardware; 0: no limit.
    ///
    /// Intel's hardware throttles the requests of each core, so the group gets approximately this share.
    double bandwidth_share = 0;
    bool required = false;                ///< Throw if a share is unavailable, instead of continuing without it.
    std::string root = "/sys/fs/resctrl"; ///< Mount point of the resctrl file system.
};

/// Schemata of both groups, as the kernel shows them.
struct resctrl_report {
    std::string optimizer; ///< The optimizer's group, as in "L3:0=fffc0;1=fffc0 MB:0=30;1=30".
    std::string host;      ///< The host's (root) group.
    std::string notes;     ///< Shares that are unavailable although the group is active; empty: none.
};

/// Share of the L3 and the memory bandwidth for the optimizer's threads; the rest stays with the host.
///
/// Owns a control group of Linux's resctrl (Intel RDT, AMD QoS, Arm MPAM) from construction to destruction. It changes
/// the speed of a step and no bit of its result.
///
/// Several processes of one host may each have a group: each takes its share of the whole from what the host's (root)
/// group still has, under the lock of the file system. All state is in the groups' names and contents, so it survives a
/// crash: a group is named adamant.PID.START.N, with the start time of the process, and the next process returns what
/// dead ones had taken. The processes must see each other's pids: a process in a container with a pid namespace of its
/// own would consider the others dead.
///
/// Different objects may be used concurrently, and so may the const functions of one object. After a fork the child's
/// copy does nothing, because the group belongs to the parent.
class resctrl_group {
public:
    /// Removes the groups of dead processes, creates a new group and assigns its shares.
    ///
    /// If that fails, nothing changes, and reason() returns why.
    /// @throws unavailable with that reason instead if `required` is set.
    /// @throws invalid_argument if a share is neither 0 nor between 0 and 1, if `required` is set without a share, or
    /// if files is null.
    explicit resctrl_group(resctrl_options const& options,
                           std::shared_ptr<resctrl_files> files = std::make_shared<resctrl_files>());
    /// Moves a group. The moved-from object is not active.
    resctrl_group(resctrl_group&& other) noexcept;
    /// Removes this group and moves the other one here.
    resctrl_group& operator=(resctrl_group&& other) noexcept;
    /// Removes the group. Its threads and its shares return to the host's group.
    ///
    /// Many processors accept only contiguous masks. If the group of another rank lies between the bits of this group
    /// and those of the host, that group gets the bits, and returns them when it is removed.
    ~resctrl_group();

    /// Returns whether the group exists and this process owns it.
    [[nodiscard]] bool active() const noexcept { return self_.owner != 0; }
    /// Returns the reason, as a sentence, why the group is not active; empty if it is.
    [[nodiscard]] std::string const& reason() const noexcept { return self_.reason; }
    /// Returns the name of the group's folder under the root; empty if the group is not active.
    [[nodiscard]] std::string const& name() const noexcept { return self_.name; }

    /// Moves a thread (gettid(), never 0) into the group.
    ///
    /// Threads and processes that it starts later inherit the group.
    ///
    /// @return an empty text, or the reason why the thread could not be moved.
    /// @throws unavailable with that reason instead if `required` is set.
    /// @throws invalid_argument if tid is not positive.
    [[nodiscard]] std::string add_thread(pid_t tid) const;

    /// Moves all threads of a team into the group; see add_thread().
    ///
    /// @return an empty text, or the reason why a thread could not be moved. That thread and later ones are unchanged.
    /// @throws unavailable with that reason instead if `required` is set.
    [[nodiscard]] std::string add_team(team const& threads) const;

    /// Reads the schemata back from the kernel, which rounds them. Empty if the group is not active.
    [[nodiscard]] resctrl_report report() const;

private:
    using schema = detail::schema;
    using schemata = detail::schemata;

    [[nodiscard]] std::string path(std::string const& group, std::string const& file = "") const;

    // Returns a sentence about a call that failed.
    [[nodiscard]] std::string trouble(std::string const& action, int error) const;

    // Returns an empty text, or the reason of the failure.
    [[nodiscard]] std::string write(std::string const& group, char const* file, std::string const& text) const;

    [[nodiscard]] schemata read_schemata(std::string const& group) const; // empty if it cannot be read

    [[nodiscard]] std::uint64_t info(schema const& entry, char const* file, int base) const; // 0 if the file is missing

    [[nodiscard]] std::vector<std::string> groups() const;

    void start(resctrl_options const& options);

    // Assigns the new group its part of every resource, and the rest to the host's group. The host's group changes last
    // and in one write, so it never needs a rollback.
    void divide(resctrl_options const& options);

    // Splits the host's part of one domain. Returns an empty text, or the end of a sentence that says why not.
    std::string split(schema const& entry, std::uint64_t maximum, double share, schemata& ours, schemata& host) const;

    // Removes a group and returns its parts to the host's group. The bandwidth is that of `known`, or, if that is null,
    // what the group has now. Each part is returned independently, so that one failure does not affect the others.
    void remove(std::string const& name, schemata const* known) const;

    // Gives bits that are not adjacent to the host's bits to another adamant group that has adjacent bits. Returns
    // whether there was one.
    [[nodiscard]] bool hand_on(std::string const& group, schema const& bits, std::uint64_t host) const;

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
