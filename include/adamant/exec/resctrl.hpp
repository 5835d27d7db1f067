// SPDX-License-Identifier: Apache-2.0
// A share of the L3 and of the memory bandwidth for the optimizer's threads, the rest for the host: a control group of
// Linux's resctrl (Intel RDT, AMD QoS, Arm MPAM). It changes how fast a step is, never a bit of it.
//
// The names of the groups and what they hold are all the state there is, so that it outlives a crash: a group is called
// adamant.<pid>.<start time of the process>.<n>, and whoever comes next gives back what the dead had taken.
#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <adamant/core/error.hpp>
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
                           std::shared_ptr<resctrl_files> files = std::make_shared<resctrl_files>())
        : self_{std::move(files), options.root, "", "", "", {}, 0, options.required}
    {
        for (auto const& [name, share] :
             {std::pair("l3_share is ", options.l3_share), std::pair("bandwidth_share is ", options.bandwidth_share)})
            if (!(share >= 0 && share < 1))
                throw invalid_argument("adamant: resctrl: " + (name + detail::text(share)) +
                                       "; make it 0 (not divided), or more than 0 and less than 1, such as 0.25");
        bool const nothing = options.l3_share == 0 && options.bandwidth_share == 0;
        if (self_.files == nullptr || (nothing && options.required))
            throw invalid_argument("adamant: resctrl: a group is required, but no share of anything, or files is null; "
                                   "set l3_share or bandwidth_share");
        try {
            if (nothing)
                throw unavailable("adamant: resctrl: l3_share and bandwidth_share are 0, so nothing is divided");
            start(options);
        } catch (unavailable const& why) {
            if (options.required)
                throw;
            self_.reason = why.what();
        }
    }
    resctrl_group(resctrl_group&& other) noexcept : self_(std::exchange(other.self_, {})) {}
    resctrl_group& operator=(resctrl_group&& other) noexcept
    {
        resctrl_group old(std::move(other));
        std::swap(self_, old.self_);
        return *this;
    }
    // The threads go back to the host's group, the host gets back what was taken from it, and nothing else changes. A
    // mask has to stay in one piece: bits that another rank's group keeps apart from the host's go to that group, which
    // gives them back in its turn.
    ~resctrl_group()
    {
        if (self_.owner != ::getpid())
            return;
        try {
            int error = 0; // without the lock after five seconds: to stay would be worse
            auto const held = self_.files->lock(self_.root, error);
            remove(self_.name, &self_.bandwidth_taken);
        } catch (...) { // out of memory; when this process has ended, the next one removes the group
        }
    }

    [[nodiscard]] bool active() const noexcept { return self_.owner != 0; }
    // Why it is not active, in a sentence; empty where it is.
    [[nodiscard]] std::string const& reason() const noexcept { return self_.reason; }
    // The folder's name under the root; empty where it is not active.
    [[nodiscard]] std::string const& name() const noexcept { return self_.name; }

    // Moves a thread (gettid(), never 0) into the group; threads and processes that it starts later begin there too.
    // Empty where that worked, otherwise why not, and the thread stays where it was; with `required` it throws
    // unavailable with that text instead. invalid_argument where tid is not positive.
    [[nodiscard]] std::string add_thread(pid_t tid) const
    {
        if (tid <= 0)
            throw invalid_argument("adamant: " + std::to_string(tid) + " is no thread; pass gettid() of one");
        std::string text = self_.reason;
        if (active() && self_.owner != ::getpid())
            text = "adamant: the resctrl group " + self_.name + " is the parent process's; make one after the fork";
        else if (active())
            text = write(self_.name, "tasks", std::to_string(tid) + '\n');
        if (self_.required && !text.empty())
            throw unavailable(text);
        return text;
    }

    // Moves all threads of a team into the group, as add_thread() moves one. Empty where all are there now, otherwise why
    // the first one is not that could not be moved; those after it are where they were.
    [[nodiscard]] std::string add_team(team const& threads) const
    {
        std::string text;
        for (team_member const& member : threads.members())
            if (text.empty())
                text = add_thread(member.thread_id);
        return text;
    }

    // What the kernel has now, read anew, since it rounds. Empty where the group is not active.
    [[nodiscard]] resctrl_report report() const
    {
        auto const shown = [&](std::string const& group) {
            std::string text;
            if (int const error = self_.files->read(path(group, "schemata"), text); error != 0)
                return trouble("read " + path(group, "schemata"), error);
            std::erase(text, ' ');
            std::replace(text.begin(), text.end(), '\n', ' ');
            return text.substr(0, text.find_last_not_of(' ') + 1);
        };
        return active() ? resctrl_report{shown(self_.name), shown(""), self_.notes} : resctrl_report{};
    }

private:
    using schema = detail::schema;
    using schemata = detail::schemata;

    [[nodiscard]] std::string path(std::string const& group, std::string const& file = "") const
    {
        return self_.root + (group.empty() ? "" : "/" + group) + (file.empty() ? "" : "/" + file);
    }

    // A sentence about a call that failed.
    [[nodiscard]] std::string trouble(std::string const& what, int error) const
    {
        std::string text = "adamant: resctrl: cannot " + what + ": " + std::strerror(error);
        std::string status; // the kernel's own words
        if ((error == EINVAL || error == ENOSPC) && self_.files->read(path("info", "last_cmd_status"), status) == 0)
            text += " (" + status.substr(0, status.find('\n')) + ')';
        if (error == EACCES || error == EPERM || error == EROFS)
            text += "; run as root, or get write access to " + self_.root;
        if (error == ENOSPC)
            text += "; there are only so many groups (num_closids in " + self_.root + "/info): remove unused ones";
        return text;
    }

    // Empty where that worked.
    [[nodiscard]] std::string write(std::string const& group, char const* file, std::string const& text) const
    {
        int const error = self_.files->write(path(group, file), text);
        return error == 0 ? ""
                          : trouble("write '" + text.substr(0, text.size() - 1) + "' to " + path(group, file), error);
    }

    [[nodiscard]] schemata read_schemata(std::string const& group) const // empty where it cannot be read
    {
        std::string text;
        return self_.files->read(path(group, "schemata"), text) == 0 ? detail::parse_schemata(text) : schemata{};
    }

    [[nodiscard]] std::uint64_t info(schema const& one, char const* file, int base) const // 0 where it is not there
    {
        std::string text;
        int const error = self_.files->read(path("info/" + one.resource, file), text);
        return error == 0 ? std::strtoull(text.c_str(), nullptr, base) : 0;
    }

    [[nodiscard]] std::vector<std::string> groups() const
    {
        std::vector<std::string> names;
        return self_.files->list_dirs(self_.root, names) == 0 ? names : std::vector<std::string>{};
    }

    void start(resctrl_options const& options)
    {
        int error = 0;
        auto const held = self_.files->lock(self_.root, error);
        if (error == EWOULDBLOCK) // of anything else the next call says more
            throw unavailable("adamant: resctrl: another program keeps the lock (flock) of " + self_.root +
                              "; end that one, or try again");
        std::string text;
        error = self_.files->read(path("", "schemata"), text);
        if (error == ENOENT)
            throw unavailable(
                "adamant: resctrl: a share of L3 or memory bandwidth is asked for, but nothing is mounted on " +
                self_.root + "; as root: mount -t resctrl resctrl " + self_.root +
                " (which fails where the kernel, the CPU or the virtual machine has none)");
        if (error != 0)
            throw unavailable(trouble("read " + path("", "schemata"), error));
        for (std::string const& group : groups())
            if (detail::owner_of(*self_.files, group) == detail::owner::gone)
                remove(group, nullptr);
        error = EEXIST;
        for (unsigned n = 0; error == EEXIST; ++n) {
            self_.name = detail::group_name(::getpid(), detail::process_start(*self_.files, ::getpid(), 0), n);
            error = self_.files->make_dir(path(self_.name));
        }
        try {
            if (error != 0)
                throw unavailable(trouble("make a group in " + self_.root, error));
            divide(options);
            self_.owner = ::getpid();
        } catch (...) {
            if (error == 0)
                remove(self_.name, &self_.bandwidth_taken);
            self_.name.clear();
            throw;
        }
    }

    // Gives the new group its part of every resource and domain, the host's group the rest. The host's changes last and
    // in one write, so that there is never anything to undo in it.
    void divide(resctrl_options const& options)
    {
        schemata const root = read_schemata("");
        schemata const fresh = read_schemata(self_.name); // a new group has the most there is
        schemata ours;
        schemata host;
        double const shares[] = {options.l3_share, options.bandwidth_share};
        std::string const no_line = "the CPU cannot divide it: no line for it in " + path("", "schemata");
        std::string why[] = {no_line, no_line}; // not divided; empty: divided
        for (schema const& one : root)
            if (bool const k = one.is_bandwidth(); shares[k] != 0 && (why[k].empty() || why[k] == no_line))
                why[k] = split(one, detail::value_in(fresh, one, 0), shares[k], ours, host);
        for (bool const k : {false, true})
            if (shares[k] != 0 && !why[k].empty())
                self_.notes += (self_.notes.empty() ? "adamant: resctrl: " : "; ") +
                               std::string(k ? "bandwidth_share is " : "l3_share is ") + detail::text(shares[k]) +
                               ", but " + why[k];
        auto const whole = [&](schema const& one) { return !why[one.is_bandwidth()].empty(); };
        std::erase_if(ours, whole);
        std::erase_if(host, whole);
        for (schema const& one : root) // like the host's, that is out of the other ranks' shares
            if (!one.is_bandwidth() && whole(one))
                ours.push_back(one);
        if (host.empty() || (options.required && !self_.notes.empty()))
            throw unavailable(self_.notes);
        for (bool const to_host : {false, true})
            if (std::string const error =
                    write(to_host ? "" : self_.name, "schemata", detail::to_text(to_host ? host : ours));
                !error.empty())
                throw unavailable(error);
        schemata const now = read_schemata("");
        for (schema const& one : host)
            if (std::uint64_t const before = detail::value_in(root, one, 0); one.is_bandwidth())
                self_.bandwidth_taken.push_back(
                    {one.resource, one.id, before - std::min(before, detail::value_in(now, one, one.value))});
    }

    // Splits what the host's group has of one domain. Where that cannot be, the end of a sentence that says why.
    std::string split(schema const& one, std::uint64_t most, double share, schemata& ours, schemata& host) const
    {
        bool const bandwidth = one.is_bandwidth();
        if (bandwidth && most > 100)
            return "the kernel shows amounts here, up to " + std::to_string(most) +
                   " (AMD, or mounted with mba_MBps), and a share of an unknown maximum means nothing: it is not "
                   "limited";
        auto const bits = [](std::uint64_t mask) { return static_cast<std::uint64_t>(std::popcount(mask)); };
        std::uint64_t const step = bandwidth ? std::max<std::uint64_t>(info(one, "bandwidth_gran", 10), 1) : 1;
        std::uint64_t const whole = bandwidth ? 100 : bits(info(one, "cbm_mask", 16));
        std::uint64_t const floor = info(one, bandwidth ? "min_bandwidth" : "min_cbm_bits", 10);
        std::uint64_t const least = std::max((floor + step - 1) / step * step, step);
        std::uint64_t const left = bandwidth ? one.value : bits(one.value);
        std::string const unit = (bandwidth ? " percent of " : " ways of ") + one.resource + " in domain ";
        if (whole < 2 * least)
            return "there are " + std::to_string(whole) + unit + std::to_string(one.id) +
                   ", and a group has at least " + std::to_string(least) + ": too few to divide";
        auto const steps =
            static_cast<std::uint64_t>(std::lround(share * static_cast<double>(whole) / static_cast<double>(step)));
        std::uint64_t const count = std::clamp(steps * step, least, (whole - least) / step * step);
        std::uint64_t part = left < count + least ? 0 : count;
        if (part != 0 && !bandwidth)
            part = detail::end_of_mask(one.value, count, info(one, "shareable_bits", 16));
        if (part == 0)
            return "the host's group has only " + std::to_string(left) + unit + std::to_string(one.id) +
                   ", and keeps " + std::to_string(least) + ", where " + std::to_string(count) + " of " +
                   std::to_string(whole) + " in one piece are asked for; ask for less, or have fewer ranks here";
        ours.push_back({one.resource, one.id, part});
        host.push_back({one.resource, one.id, bandwidth ? (left - part) / step * step : one.value & ~part});
        return {};
    }

    // Takes a group away and gives the host's group what that one had taken: of the bandwidth `known`, or where that is
    // null what the group has now. One thing at a time: what cannot be given back keeps nothing else from it.
    void remove(std::string const& name, schemata const* known) const
    {
        schemata const root = read_schemata("");
        auto const give = [&](schema const& one) { return write("", "schemata", detail::to_text({one})).empty(); };
        for (schema one : read_schemata(name)) {
            std::uint64_t const host = detail::value_in(root, one, 0);
            if (one.is_bandwidth()) {
                std::uint64_t const taken = known == nullptr ? one.value : detail::value_in(*known, one, 0);
                if (taken == 0 || taken >= 100 || host > 100) // it was not limited
                    continue;
                std::uint64_t const step = info(one, "bandwidth_gran", 10);
                one.value = std::min<std::uint64_t>(host + taken, 100);
                if (known == nullptr && one.value + (100 % std::max<std::uint64_t>(step, 2) == 0 ? 2 : 2 * step) > 100)
                    one.value = 100; // the rest was lost in rounding
                // The kernel rounds up, and hardware with few steps may have shown less than was written then.
                if (give(one) && detail::value_in(read_schemata(""), one, 0) > one.value)
                    give({one.resource, one.id, one.value - std::min(one.value, step)});
            } else if (host != 0 && (one.value & host) == 0) { // else it was not divided
                schema const both{one.resource, one.id, one.value | host};
                if (detail::pieces(both.value) <= detail::pieces(host) || !hand_on(name, one, host))
                    give(both); // in pieces: where the CPU takes those
            }
        }
        static_cast<void>(self_.files->remove_dir(path(name)));
    }

    // What is not next to the host's bits is next to those of another of our groups.
    [[nodiscard]] bool hand_on(std::string const& from, schema const& bits, std::uint64_t host) const
    {
        for (std::string const& group : groups()) {
            std::uint64_t const theirs = detail::value_in(read_schemata(group), bits, 0);
            if (group != from && detail::owner_of(*self_.files, group) != detail::owner::foreign && theirs != 0 &&
                (theirs & host) == 0 && detail::pieces(theirs | bits.value) == 1 &&
                write(group, "schemata", detail::to_text({{bits.resource, bits.id, theirs | bits.value}})).empty())
                return true;
        }
        return false;
    }

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
