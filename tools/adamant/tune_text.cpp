// SPDX-License-Identifier: Apache-2.0
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

std::vector<std::string> add_warnings(tuned_cores& found, tune_circumstances const& when)
{
    constexpr double busy_from = 0.05; // times are unreliable if other processes take more of the machine
    std::vector<std::string> shown;
    for (std::string const& saved : found.warnings)
        shown.push_back("WARNING" + (when.loaded_from.empty() ? "" : " of " + when.loaded_from) + ": " + saved);
    auto const add = [&](std::string const& text) {
        shown.push_back("WARNING: " + text);
        found.warnings.push_back(text);
    };
    if (when.busy > busy_from)
        add("the machine was busy with something else for " + fixed(100 * when.busy, 0) +
            "% of its processors' time; tune again when it is quiet");
    if (!found.finished)
        add("the deadline came before it was known whether more cores pay");
    if (when.interrupted) {
        std::string const text = "the rounds with a host's threads are fewer than asked for";
        shown.push_back("INTERRUPTED: " + text);
        found.warnings.push_back("interrupted: " + text);
    }
    return shown;
}

tune_advice advice_of(tuned_cores const& found, host_tuning const& with)
{
    if (with.splits.empty())
        return {found.cores, found.cpuadam_cores_perc, ""};
    auto const share = [&](unsigned cores) { return static_cast<double>(cores) / found.of; };
    std::string const none = "no split is surely better than all cores to both";
    if (with.best != 0)
        return {with.best, share(with.best),
                plural(with.best, "core") + " for the optimizer and " + std::to_string(found.of - with.best) +
                    " for the host (cpuadam_cores_perc " + fixed(share(with.best), 4) + "): both are through " +
                    fixed(with.chosen().gain, 2) +
                    " times as fast as with all cores to both, where the host was delayed " +
                    fixed(with.splits.front().host_s / with.host_alone_s, 2) + " times"};
    for (split_time const& s : with.splits)
        if (s.cores == found.cores && s.cores != 0 && s.gain_high >= 1)
            return {found.cores, found.cpuadam_cores_perc,
                    none + ": cpuadam_cores_perc " + fixed(found.cpuadam_cores_perc, 4) + " stays, as " +
                        plural(found.cores, "core") + " for the optimizer " + (found.cores == 1 ? "is" : "are") +
                        " not surely worse (" + fixed(s.gain, 2) + " times as fast, " + fixed(s.gain_low, 2) + " to " +
                        fixed(s.gain_high, 2) + ")"};
    return {found.of, 1, none + ": cpuadam_cores_perc 1.0000, and the host shares the optimizer's cores"};
}

std::string curve_text(tuned_cores const& found, shard_format const& format)
{
    std::string out = "cores   ms a step   (p10 to p90)          GB/s   times as fast as with the count before\n";
    core_time const* before = nullptr;
    double const bytes = static_cast<double>(step_bytes(format.types, found.elements));
    for (core_time const& at : found.curve) {
        char text[160];
        std::snprintf(text, sizeof text, "%5u  %10s   (%s to %s)%*s %7.1f   %s%s\n", at.cores,
                      milliseconds(at.median_s).c_str(), milliseconds(at.p10_s).c_str(), milliseconds(at.p90_s).c_str(),
                      1, "", bytes / at.median_s * 1e-9,
                      before == nullptr ? "-" : fixed(before->median_s / at.median_s, 3).c_str(),
                      at.cores != found.cores ? ""
                      : found.finished        ? "   <- enough"
                                              : "   <- so far");
        out += text;
        before = &at;
    }
    return out;
}

std::string verdict_text(tuned_cores const& found, unsigned ranks, bool alone)
{
    std::string const each = ranks > 1 ? " of each rank" : "";
    std::string verdict = alone ? "" : "for the optimizer alone, ";
    if (found.all())
        verdict += "all of them: each of the " + plural(found.of, "core") + each + " is worth having" +
                   (alone ? "; the host shares them, or takes one and slows the step" : "");
    else
        verdict += plural(found.cores, "core") + " of " + std::to_string(found.of) + each +
                   (!found.finished    ? " so far: the deadline came before it was known whether more pay"
                    : found.cores == 1 ? " is enough"
                                       : " are enough") +
                   "; " + std::to_string(found.host_cores()) + " left for the host";
    std::string out = wrapped("", verdict);
    out += wrapped("", (alone ? "cpuadam_cores_perc " + fixed(found.cpuadam_cores_perc, 4) + "; " : "") + "a step of " +
                           grouped(found.elements) + " elements" + each + " takes " + seconds(found.step_s) + ", " +
                           fixed(found.step_s * 1e9 / static_cast<double>(found.elements), 3) + " ns an element");
    out += wrapped("", "the curve: within 2% of its best with " + plural(fewest_within(found.curve, 0.02), "core") +
                           ", within 10% with " + std::to_string(fewest_within(found.curve, 0.1)));
    if (found.tried.empty())
        return out + "other chunks and prefetching were not tried\n";
    if (found.max_chunk_elems == default_max_chunk_elems && found.prefetch_bytes == default_prefetch_bytes())
        return out + wrapped("", "chunks and prefetching: of " + plural(found.tried.size(), "setting") +
                                     " none is surely faster by 3%; the defaults stay");
    return out +
           wrapped("", "settings that are surely faster: max_chunk_elems " + std::to_string(found.max_chunk_elems) +
                           ", prefetch_bytes " + std::to_string(found.prefetch_bytes));
}

std::string host_text(host_tuning const& with, unsigned of, tune_advice const& what)
{
    if (with.splits.empty())
        return of < 2 ? "with one core there is nothing to split\n" : "";
    std::string out = "\n" + wrapped("", "with " + plural(with.threads, "host thread") + " whose work takes " +
                                             seconds(with.host_alone_s) + " without the optimizer, and a step of " +
                                             seconds(with.step_alone_s) + " without them:");
    char text[200];
    std::snprintf(text, sizeof text, "\n%9s  %4s  %7s %-16s  %7s  %7s  %7s  %s\n", "optimizer", "host", "both ms",
                  "(p10 to p90)", "step ms", "host ms", "delayed", "gain");
    out += text;
    for (split_time const& s : with.splits) {
        auto const ms = [](double time_s) { return four_digits(1e3 * time_s); };
        auto const range = [](std::string const& low, std::string const& high) {
            return "(" + low + " to " + high + ")";
        };
        std::snprintf(text, sizeof text, "%9s  %4s  %7s %-16s  %7s  %7s  %7s  %s %s%s\n",
                      s.cores == 0 ? "all" : std::to_string(s.cores).c_str(),
                      s.cores == 0 ? "all" : std::to_string(of - s.cores).c_str(), ms(s.both_s).c_str(),
                      range(ms(s.both_p10_s), ms(s.both_p90_s)).c_str(), ms(s.step_s).c_str(), ms(s.host_s).c_str(),
                      (fixed(s.host_s / with.host_alone_s, 2) + " x").c_str(), four_digits(s.gain).c_str(),
                      range(four_digits(s.gain_low), four_digits(s.gain_high)).c_str(),
                      s.cores != 0 && s.cores == with.best ? " <- best" : "");
        out += text;
    }
    return out + "\n" + wrapped("", what.why);
}

} // namespace cli
