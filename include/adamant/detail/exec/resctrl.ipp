// SPDX-License-Identifier: Apache-2.0
// Definitions of resctrl_group in <adamant/resctrl.hpp>.
#pragma once

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>

#include <adamant/error.hpp>
#include <adamant/resctrl.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

ADAMANT_DECL resctrl_group::resctrl_group(resctrl_options const& options, std::shared_ptr<resctrl_files> files)
    : self_{std::move(files), options.root, "", "", "", {}, 0, options.required}
{
    for (auto const& [name, share] :
         {std::pair("l3_share is ", options.l3_share), std::pair("bandwidth_share is ", options.bandwidth_share)})
        if (!(share >= 0 && share < 1))
            detail::throw_invalid_argument({name, share, ", but must be 0 (not divided), or above 0 and below 1"});
    bool const nothing = options.l3_share == 0 && options.bandwidth_share == 0;
    if (self_.files == nullptr || (nothing && options.required))
        detail::throw_invalid_argument(
            {"cannot create a resctrl group: no share is set, or files is null. Set l3_share or "
             "bandwidth_share."});
    try {
        if (nothing)
            detail::throw_unavailable({"resctrl: l3_share and bandwidth_share are 0, so nothing is divided"});
        start(options);
    } catch (unavailable const& why) {
        if (options.required)
            throw;
        self_.reason = why.what();
    }
}

ADAMANT_DECL resctrl_group::resctrl_group(resctrl_group&& other) noexcept : self_(std::exchange(other.self_, {})) {}

ADAMANT_DECL resctrl_group& resctrl_group::operator=(resctrl_group&& other) noexcept
{
    resctrl_group old(std::move(other));
    std::swap(self_, old.self_);
    return *this;
}

ADAMANT_DECL resctrl_group::~resctrl_group()
{
    if (self_.owner != ::getpid())
        return;
    try {
        int error = 0; // after five seconds continues without the lock: a leftover group would be worse
        auto const held = self_.files->lock(self_.root, error);
        remove(self_.name, &self_.bandwidth_taken);
    } catch (...) { // out of memory: the next process removes the group after this one has ended
    }
}

ADAMANT_DECL std::string resctrl_group::add_thread(pid_t tid) const
{
    if (tid <= 0)
        detail::throw_invalid_argument({tid, " is not a thread; pass the gettid() of one"});
    std::string text = self_.reason;
    if (active() && self_.owner != ::getpid())
        text = "adamant: the resctrl group " + self_.name + " is the parent process's; make one after the fork";
    else if (active())
        text = write(self_.name, "tasks", std::to_string(tid) + '\n');
    if (self_.required && !text.empty())
        throw unavailable(text);
    return text;
}

ADAMANT_DECL std::string resctrl_group::add_team(team const& threads) const
{
    std::string text;
    for (team_member const& member : threads.members())
        if (text.empty())
            text = add_thread(member.thread_id);
    return text;
}

ADAMANT_DECL resctrl_report resctrl_group::report() const
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

ADAMANT_DECL std::string resctrl_group::path(std::string const& group, std::string const& file) const
{
    return self_.root + (group.empty() ? "" : "/" + group) + (file.empty() ? "" : "/" + file);
}

ADAMANT_DECL std::string resctrl_group::trouble(std::string const& action, int error) const
{
    std::string text = detail::text_of({"adamant: resctrl: cannot ", action, ": ", std::strerror(error)});
    std::string status; // the kernel's explanation
    if ((error == EINVAL || error == ENOSPC) && self_.files->read(path("info", "last_cmd_status"), status) == 0)
        text += detail::text_of({" (", status.substr(0, status.find('\n')), ')'});
    if (error == EACCES || error == EPERM || error == EROFS)
        text += "; run as root, or get write access to " + self_.root;
    if (error == ENOSPC)
        text += "; the number of groups is limited (num_closids in " + self_.root + "/info); remove unused ones";
    return text;
}

ADAMANT_DECL std::string resctrl_group::write(std::string const& group, char const* file, std::string const& text) const
{
    int const error = self_.files->write(path(group, file), text);
    return error == 0
               ? ""
               : trouble(detail::text_of({"write '", text.substr(0, text.size() - 1), "' to ", path(group, file)}),
                         error);
}

ADAMANT_DECL detail::schemata resctrl_group::read_schemata(std::string const& group) const
{
    std::string text;
    return self_.files->read(path(group, "schemata"), text) == 0 ? detail::parse_schemata(text) : schemata{};
}

ADAMANT_DECL std::uint64_t resctrl_group::info(schema const& entry, char const* file, int base) const
{
    std::string text;
    int const error = self_.files->read(path("info/" + entry.resource, file), text);
    return error == 0 ? std::strtoull(text.c_str(), nullptr, base) : 0;
}

ADAMANT_DECL std::vector<std::string> resctrl_group::groups() const
{
    std::vector<std::string> names;
    return self_.files->list_dirs(self_.root, names) == 0 ? names : std::vector<std::string>{};
}

ADAMANT_DECL void resctrl_group::start(resctrl_options const& options)
{
    int error = 0;
    auto const held = self_.files->lock(self_.root, error);
    if (error == EWOULDBLOCK) // for other errors, the next call gives a better message
        detail::throw_unavailable(
            {"resctrl: cannot lock ", self_.root, ": another program holds the lock (flock). End it, or try again."});
    std::string text;
    error = self_.files->read(path("", "schemata"), text);
    if (error == ENOENT)
        detail::throw_unavailable(
            {"resctrl: cannot reserve L3 or memory bandwidth: nothing is mounted on ", self_.root,
             ". As root, run: mount -t resctrl resctrl ", self_.root,
             " (this fails if the kernel, the CPU or the virtual machine does not support resctrl)"});
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

ADAMANT_DECL void resctrl_group::divide(resctrl_options const& options)
{
    schemata const root = read_schemata("");
    schemata const fresh = read_schemata(self_.name); // a new group has the maximum of each resource
    schemata ours;
    schemata host;
    double const shares[] = {options.l3_share, options.bandwidth_share};
    std::string const no_line = "the CPU cannot divide it: no line for it in " + path("", "schemata");
    std::string reasons[] = {no_line, no_line}; // why L3 and bandwidth are not divided; empty: divided
    for (schema const& entry : root)
        if (bool const k = entry.is_bandwidth(); shares[k] != 0 && (reasons[k].empty() || reasons[k] == no_line))
            reasons[k] = split(entry, detail::value_in(fresh, entry, 0), shares[k], ours, host);
    for (bool const k : {false, true})
        if (shares[k] != 0 && !reasons[k].empty())
            self_.notes +=
                detail::text_of({self_.notes.empty() ? "adamant: resctrl: " : "; ",
                                 k ? "bandwidth_share is " : "l3_share is ", shares[k], ", but ", reasons[k]});
    auto const undivided = [&](schema const& entry) { return !reasons[entry.is_bandwidth()].empty(); };
    std::erase_if(ours, undivided);
    std::erase_if(host, undivided);
    for (schema const& entry : root) // an undivided L3 gets the host's mask, which excludes the other ranks' shares
        if (!entry.is_bandwidth() && undivided(entry))
            ours.push_back(entry);
    if (host.empty() || (options.required && !self_.notes.empty()))
        throw unavailable(self_.notes);
    for (bool const to_host : {false, true})
        if (std::string const error =
                write(to_host ? "" : self_.name, "schemata", detail::to_text(to_host ? host : ours));
            !error.empty())
            throw unavailable(error);
    schemata const now = read_schemata("");
    for (schema const& entry : host)
        if (std::uint64_t const before = detail::value_in(root, entry, 0); entry.is_bandwidth())
            self_.bandwidth_taken.push_back(
                {entry.resource, entry.id, before - std::min(before, detail::value_in(now, entry, entry.value))});
}

ADAMANT_DECL std::string resctrl_group::split(schema const& entry, std::uint64_t most, double share, schemata& ours,
                                              schemata& host) const
{
    detail::default_mode_scope const mode;
    bool const bandwidth = entry.is_bandwidth();
    if (bandwidth && most > 100)
        return detail::text_of(
            {"the kernel shows amounts up to ", most,
             " instead of percent (AMD, or mounted with mba_MBps), so a share cannot be computed: the bandwidth is not "
             "limited"});
    auto const bits = [](std::uint64_t mask) { return static_cast<std::uint64_t>(std::popcount(mask)); };
    std::uint64_t const step = bandwidth ? std::max<std::uint64_t>(info(entry, "bandwidth_gran", 10), 1) : 1;
    std::uint64_t const whole = bandwidth ? 100 : bits(info(entry, "cbm_mask", 16));
    std::uint64_t const floor = info(entry, bandwidth ? "min_bandwidth" : "min_cbm_bits", 10);
    std::uint64_t const least = std::max((floor + step - 1) / step * step, step);
    std::uint64_t const left = bandwidth ? entry.value : bits(entry.value);
    std::string const unit = detail::text_of({bandwidth ? " percent of " : " ways of ", entry.resource, " in domain "});
    if (whole < 2 * least)
        return detail::text_of(
            {"the CPU has ", whole, unit, entry.id, ", and a group has at least ", least, ": too few to divide"});
    auto const steps =
        static_cast<std::uint64_t>(std::lround(share * static_cast<double>(whole) / static_cast<double>(step)));
    std::uint64_t const count = std::clamp(steps * step, least, (whole - least) / step * step);
    std::uint64_t part = left < count + least ? 0 : count;
    if (part != 0 && !bandwidth)
        part = detail::end_of_mask(entry.value, count, info(entry, "shareable_bits", 16));
    if (part == 0)
        return "the host's group has only " + std::to_string(left) + unit + std::to_string(entry.id) +
               " and must keep " + std::to_string(least) + "; the share needs " + std::to_string(count) + " of " +
               std::to_string(whole) + " in one piece. Request less, or run fewer ranks on this machine";
    ours.push_back({entry.resource, entry.id, part});
    host.push_back({entry.resource, entry.id, bandwidth ? (left - part) / step * step : entry.value & ~part});
    return {};
}

ADAMANT_DECL void resctrl_group::remove(std::string const& name, schemata const* known) const
{
    schemata const root = read_schemata("");
    auto const give = [&](schema const& entry) { return write("", "schemata", detail::to_text({entry})).empty(); };
    for (schema entry : read_schemata(name)) {
        std::uint64_t const host = detail::value_in(root, entry, 0);
        if (entry.is_bandwidth()) {
            std::uint64_t const taken = known == nullptr ? entry.value : detail::value_in(*known, entry, 0);
            // The bandwidth was not limited, or the host's cannot be read and stays as it is.
            if (taken == 0 || taken >= 100 || host == 0 || host > 100)
                continue;
            std::uint64_t const step = info(entry, "bandwidth_gran", 10);
            entry.value = std::min<std::uint64_t>(host + taken, 100);
            if (known == nullptr && entry.value + (100 % std::max<std::uint64_t>(step, 2) == 0 ? 2 : 2 * step) > 100)
                entry.value = 100; // the rest was lost in rounding
            // The kernel rounds up. Hardware with few steps may have shown less than was written before.
            if (give(entry) && detail::value_in(read_schemata(""), entry, 0) > entry.value)
                give({entry.resource, entry.id, entry.value - std::min(entry.value, step)});
        } else if (host != 0 && (entry.value & host) == 0) { // otherwise the L3 was not divided
            schema const both{entry.resource, entry.id, entry.value | host};
            if (detail::pieces(both.value) <= detail::pieces(host) || !hand_on(name, entry, host))
                give(both); // may be in several pieces, which some CPUs accept
        }
    }
    static_cast<void>(self_.files->remove_dir(path(name)));
}

ADAMANT_DECL bool resctrl_group::hand_on(std::string const& source, schema const& bits, std::uint64_t host) const
{
    for (std::string const& group : groups()) {
        std::uint64_t const mask = detail::value_in(read_schemata(group), bits, 0);
        if (group != source && detail::owner_of(*self_.files, group) != detail::owner::foreign && mask != 0 &&
            (mask & host) == 0 && detail::pieces(mask | bits.value) == 1 &&
            write(group, "schemata", detail::to_text({{bits.resource, bits.id, mask | bits.value}})).empty())
            return true;
    }
    return false;
}

ADAMANT_END_NAMESPACE
