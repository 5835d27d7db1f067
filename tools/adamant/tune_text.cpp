// SPDX-License-Identifier: Apache-2.0
// Definitions of tune_text.hpp.
#include "tune_text.hpp"

#include <cstdio>

#include <adamant/tune.hpp>

#include "cores_text.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

using namespace adamant;

std::string milliseconds(double s)
{
    return fixed(1e3 * s, s < 0.01 ? 3 : 2);
}

// With four digits, so that columns of a table stay narrow: 9.876, 98.77, 987.7, 9877.
std::string four_digits(double value)
{
    return fixed(value, value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0);
}

} // namespace

std::vector<std::string> add_warnings(tuned_cores& tuned, tune_circumstances const& conditions)
{
    constexpr double busy_from = 0.05; // times are unreliable if other processes take more of the machine
    std::vector<std::string> texts;
    for (std::string const& saved : tuned.warnings)
        texts.push_back("WARNING" + (conditions.loaded_from.empty() ? "" : " of " + conditions.loaded_from) + ": " +
                        saved);
    auto const add = [&](std::string const& text) {
        texts.push_back("WARNING: " + text);
        tuned.warnings.push_back(text);
    };
    if (conditions.busy > busy_from)
        add("the machine was busy with something else for " + fixed(100 * conditions.busy, 0) +
            "% of its processors' time; tune again when it is quiet");
    if (!tuned.finished)
        add("the deadline came before it was known whether more cores pay");
    if (conditions.interrupted) {
        std::string const text = "the rounds with a host's threads are fewer than asked for";
        texts.push_back("INTERRUPTED: " + text);
        tuned.warnings.push_back("interrupted: " + text);
    }
    return texts;
}

tune_advice advice_of(tuned_cores const& tuned, host_tuning const& host)
{
    if (host.splits.empty())
        return {tuned.cores, tuned.cpuadam_cores_perc, ""};
    auto const share = [&](unsigned cores) { return static_cast<double>(cores) / tuned.available_cores; };
    std::string const none = "no split is surely better than all cores to both";
    if (host.best != 0)
        return {host.best, share(host.best),
                plural(host.best, "core") + " for the optimizer and " +
                    std::to_string(tuned.available_cores - host.best) + " for the host (cpuadam_cores_perc " +
                    fixed(share(host.best), 4) + "): both are through " + fixed(host.chosen().gain, 2) +
                    " times as fast as with all cores to both, where the host was delayed " +
                    fixed(host.splits.front().host_s / host.host_alone_s, 2) + " times"};
    for (split_time const& s : host.splits)
        if (s.cores == tuned.cores && s.cores != 0 && s.gain_high >= 1)
            return {tuned.cores, tuned.cpuadam_cores_perc,
                    none + ": cpuadam_cores_perc " + fixed(tuned.cpuadam_cores_perc, 4) + " stays, as " +
                        plural(tuned.cores, "core") + " for the optimizer " + (tuned.cores == 1 ? "is" : "are") +
                        " not surely worse (" + fixed(s.gain, 2) + " times as fast, " + fixed(s.gain_low, 2) + " to " +
                        fixed(s.gain_high, 2) + ")"};
    return {tuned.available_cores, 1, none + ": cpuadam_cores_perc 1.0000, and the host shares the optimizer's cores"};
}

std::string curve_text(tuned_cores const& tuned, shard_format const& format)
{
    std::string out = "cores   ms a step   (p10 to p90)          GB/s   times as fast as with the count before\n";
    core_time const* previous = nullptr;
    double const bytes = static_cast<double>(step_bytes(format.types, tuned.elements));
    for (core_time const& time : tuned.curve) {
        char text[160];
        std::snprintf(text, sizeof text, "%5u  %10s   (%s to %s)%*s %7.1f   %s%s\n", time.cores,
                      milliseconds(time.median_s).c_str(), milliseconds(time.p10_s).c_str(),
                      milliseconds(time.p90_s).c_str(), 1, "", bytes / time.median_s * 1e-9,
                      previous == nullptr ? "-" : fixed(previous->median_s / time.median_s, 3).c_str(),
                      time.cores != tuned.cores ? ""
                      : tuned.finished          ? "   <- enough"
                                                : "   <- so far");
        out += text;
        previous = &time;
    }
    return out;
}

std::string verdict_text(tuned_cores const& tuned, unsigned ranks, bool alone)
{
    std::string const rank_text = ranks > 1 ? " of each rank" : "";
    std::string verdict = alone ? "" : "for the optimizer alone, ";
    if (tuned.all())
        verdict += "all of them: each of the " + plural(tuned.available_cores, "core") + rank_text +
                   " is worth having" + (alone ? "; the host shares them, or takes one and slows the step" : "");
    else
        verdict += plural(tuned.cores, "core") + " of " + std::to_string(tuned.available_cores) + rank_text +
                   (!tuned.finished    ? " so far: the deadline came before it was known whether more pay"
                    : tuned.cores == 1 ? " is enough"
                                       : " are enough") +
                   "; " + std::to_string(tuned.host_cores()) + " left for the host";
    std::string out = wrapped("", verdict);
    out +=
        wrapped("", (alone ? "cpuadam_cores_perc " + fixed(tuned.cpuadam_cores_perc, 4) + "; " : "") + "a step of " +
                        grouped(tuned.elements) + " elements" + rank_text + " takes " + seconds(tuned.step_s) + ", " +
                        fixed(tuned.step_s * 1e9 / static_cast<double>(tuned.elements), 3) + " ns an element");
    out += wrapped("", "the curve: within 2% of its best with " + plural(fewest_within(tuned.curve, 0.02), "core") +
                           ", within 10% with " + std::to_string(fewest_within(tuned.curve, 0.1)));
    if (tuned.tried.empty())
        return out + "other chunks and prefetching were not tried\n";
    if (tuned.max_chunk_elems == default_max_chunk_elems && tuned.prefetch_bytes == default_prefetch_bytes())
        return out + wrapped("", "chunks and prefetching: of " + plural(tuned.tried.size(), "setting") +
                                     " none is surely faster by 3%; the defaults stay");
    return out +
           wrapped("", "settings that are surely faster: max_chunk_elems " + std::to_string(tuned.max_chunk_elems) +
                           ", prefetch_bytes " + std::to_string(tuned.prefetch_bytes));
}

std::string host_text(host_tuning const& host, unsigned cores, tune_advice const& advice)
{
    if (host.splits.empty())
        return cores < 2 ? "with one core there is nothing to split\n" : "";
    std::string out = "\n" + wrapped("", "with " + plural(host.threads, "host thread") + " whose work takes " +
                                             seconds(host.host_alone_s) + " without the optimizer, and a step of " +
                                             seconds(host.step_alone_s) + " without them:");
    char text[200];
    std::snprintf(text, sizeof text, "\n%9s  %4s  %7s %-16s  %7s  %7s  %7s  %s\n", "optimizer", "host", "both ms",
                  "(p10 to p90)", "step ms", "host ms", "delayed", "gain");
    out += text;
    for (split_time const& s : host.splits) {
        auto const ms = [](double time_s) { return four_digits(1e3 * time_s); };
        auto const range = [](std::string const& low, std::string const& high) {
            return "(" + low + " to " + high + ")";
        };
        std::snprintf(text, sizeof text, "%9s  %4s  %7s %-16s  %7s  %7s  %7s  %s %s%s\n",
                      s.cores == 0 ? "all" : std::to_string(s.cores).c_str(),
                      s.cores == 0 ? "all" : std::to_string(cores - s.cores).c_str(), ms(s.both_s).c_str(),
                      range(ms(s.both_p10_s), ms(s.both_p90_s)).c_str(), ms(s.step_s).c_str(), ms(s.host_s).c_str(),
                      (fixed(s.host_s / host.host_alone_s, 2) + " x").c_str(), four_digits(s.gain).c_str(),
                      range(four_digits(s.gain_low), four_digits(s.gain_high)).c_str(),
                      s.cores != 0 && s.cores == host.best ? " <- best" : "");
        out += text;
    }
    return out + "\n" + wrapped("", advice.why);
}

} // namespace cli
