// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/resctrl.hpp.
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
            detail::throw_invalid_argument(
                {"resctrl: ", name, share, "; make it 0 (not divided), or more than 0 and less than 1, such as 0.25"});
    bool const nothing = options.l3_share == 0 && options.bandwidth_share == 0;
    if (self_.files == nullptr || (nothing && options.required))
        detail::throw_invalid_argument({"resctrl: a group is required, but no share is set or files is null; "
                                        "set l3_share or bandwidth_share"});
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
        int error = 0; // without the lock after five seconds: to stay would be worse
        auto const held = self_.files->lock(self_.root, error);
        remove(self_.name, &self_.bandwidth_taken);
    } catch (...) { // out of memory; when this process has ended, the next one removes the group
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

ADAMANT_DECL std::string resctrl_group::trouble(std::string const& what, int error) const
{
    std::string text = detail::text_of({"adamant: resctrl: cannot ", what, ": ", std::strerror(error)});
    std::string status; // the kernel's own words
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

ADAMANT_DECL std::uint64_t resctrl_group::info(schema const& one, char const* file, int base) const
{
    std::string text;
    int const error = self_.files->read(path("info/" + one.resource, file), text);
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
    if (error == EWOULDBLOCK) // of anything else the next call says more
        detail::throw_unavailable(
            {"resctrl: another program holds the lock (flock) of ", self_.root, "; end that program, or try again"});
    std::string text;
    error = self_.files->read(path("", "schemata"), text);
    if (error == ENOENT)
        detail::throw_unavailable(
            {"resctrl: a share of L3 or memory bandwidth was requested, but nothing is mounted on ", self_.root,
             "; as root: mount -t resctrl resctrl ", self_.root,
             " (this fails where the kernel, the CPU or the virtual machine does not support it)"});
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
            self_.notes += detail::text_of({self_.notes.empty() ? "adamant: resctrl: " : "; ",
                                            k ? "bandwidth_share is " : "l3_share is ", shares[k], ", but ", why[k]});
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

ADAMANT_DECL std::string resctrl_group::split(schema const& one, std::uint64_t most, double share, schemata& ours,
                                              schemata& host) const
{
    detail::default_mode_scope const mode;
    bool const bandwidth = one.is_bandwidth();
    if (bandwidth && most > 100)
        return detail::text_of(
            {"the kernel shows amounts here, up to ", most,
             " (AMD, or mounted with mba_MBps), so a share of the maximum cannot be computed: it is not "
             "limited"});
    auto const bits = [](std::uint64_t mask) { return static_cast<std::uint64_t>(std::popcount(mask)); };
    std::uint64_t const step = bandwidth ? std::max<std::uint64_t>(info(one, "bandwidth_gran", 10), 1) : 1;
    std::uint64_t const whole = bandwidth ? 100 : bits(info(one, "cbm_mask", 16));
    std::uint64_t const floor = info(one, bandwidth ? "min_bandwidth" : "min_cbm_bits", 10);
    std::uint64_t const least = std::max((floor + step - 1) / step * step, step);
    std::uint64_t const left = bandwidth ? one.value : bits(one.value);
    std::string const unit = detail::text_of({bandwidth ? " percent of " : " ways of ", one.resource, " in domain "});
    if (whole < 2 * least)
        return detail::text_of(
            {"there are ", whole, unit, one.id, ", and a group has at least ", least, ": too few to divide"});
    auto const steps =
        static_cast<std::uint64_t>(std::lround(share * static_cast<double>(whole) / static_cast<double>(step)));
    std::uint64_t const count = std::clamp(steps * step, least, (whole - least) / step * step);
    std::uint64_t part = left < count + least ? 0 : count;
    if (part != 0 && !bandwidth)
        part = detail::end_of_mask(one.value, count, info(one, "shareable_bits", 16));
    if (part == 0)
        return "the host's group has only " + std::to_string(left) + unit + std::to_string(one.id) + ", and keeps " +
               std::to_string(least) + ", where " + std::to_string(count) + " of " + std::to_string(whole) +
               " in one piece were requested; request less, or run fewer ranks here";
    ours.push_back({one.resource, one.id, part});
    host.push_back({one.resource, one.id, bandwidth ? (left - part) / step * step : one.value & ~part});
    return {};
}

ADAMANT_DECL void resctrl_group::remove(std::string const& name, schemata const* known) const
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

ADAMANT_DECL bool resctrl_group::hand_on(std::string const& from, schema const& bits, std::uint64_t host) const
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

ADAMANT_END_NAMESPACE
