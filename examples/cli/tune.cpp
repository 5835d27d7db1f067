// SPDX-License-Identifier: Apache-2.0
// `adamant tune`: how many cores the optimizer needs on this machine, so that the rest can serve the framework.

#include "tune.hpp"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <adamant/tune/core_tuning.hpp>
#include <adamant/tune/tuned_json.hpp>

#include "chart.hpp"
#include "cores_text.hpp"
#include "output_file.hpp"
#include "plan_numbers.hpp"
#include "surroundings.hpp"
#include "this_machine.hpp"
#include "tune_host.hpp"

namespace cli {

namespace {

using namespace adamant;

// Thrown out of a tuning by Ctrl-C.
struct stopped {};

struct request {
    core_request cores;
    named_types types;
    core_tuning_options tuning;
    unsigned host_threads = 0;
    std::size_t rounds = 61; // with a host
    std::string json, plot, save, load;
};

request read_request(arguments& options, machine const& on)
{
    request r;
    r.cores.ranks = options.number("--ranks", 1, 1, static_cast<unsigned>(on.cores.size()));
    std::vector<named_types> const types = parse_types(options.value("--dtypes", "mixed"));
    if (types.size() != 1)
        throw usage_error("--dtypes names several types, but tuning is for one at a time");
    r.types = types.front();
    bool searched = false; // something is said about the search
    auto const number = [&](std::string_view name, double otherwise, double least, double most, std::string_view what) {
        std::optional<std::string> const text = options.value(name);
        searched = searched || text;
        return text ? plain_number(name, *text, least, most, what) : otherwise;
    };
    r.tuning.deadline_s = number("--deadline", 60, 0.001, 1e6, "seconds, above 0");
    r.tuning.search.worth = number("--worth", r.tuning.search.worth, 1e-6, 1, "a share, above 0 and at most 1");
    if (std::optional<std::string> const text = options.value("--elements")) {
        r.tuning.elements = element_count("--elements", *text);
        searched = true;
    }
    r.tuning.settings = !options.flag("--cores-only");
    searched = searched || !r.tuning.settings;
    r.host_threads = options.number("--host-load", 0, 0, 4096);
    std::optional<unsigned> const rounds = options.number("--rounds", 6, 999);
    r.rounds = rounds.value_or(61);
    if (rounds && r.host_threads == 0)
        throw usage_error("--rounds is given, which are those with a host's threads, but --host-load is not");
    r.json = options.value("--json", "");
    r.plot = options.value("--plot", "");
    r.save = options.value("--save", "");
    r.load = options.value("--load", "");
    if (!r.load.empty() && searched)
        throw usage_error("--load takes what an earlier tuning has found, so --worth, --deadline, --elements and "
                          "--cores-only have no meaning beside it; leave one or the other away");
    options.done();
    for (auto const& [option, path] : {std::pair("--save", &r.save), std::pair("--load", &r.load)})
        refuse_stream(option, *path);
    if (!r.plot.empty())
        check_picture(r.plot);
    return r;
}

std::string milliseconds(double s)
{
    return fixed(1e3 * s, s < 0.01 ? 3 : 2);
}

std::string curve_text(tuned_cores const& found, named_types const& types)
{
    std::string out = "cores   ms a step   (p10 to p90)          GB/s   times as fast as with the count before\n";
    core_time const* before = nullptr;
    double const bytes = static_cast<double>(step_bytes(types.format->types, found.elements));
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

// The share to configure, from all that was measured: for the optimizer alone, unless a split with a host is better, or
// dividing the cores at all is worse.
struct advice {
    unsigned cores = 0; // of each rank, for the optimizer; all: the host shares them
    double share = 1;
    std::string why; // empty: without a host there is nothing to say
};

advice advice_of(tuned_cores const& found, host_tuning const& with)
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

std::string verdict_text(tuned_cores const& found, unsigned ranks, bool alone)
{
    std::string const each = ranks > 1 ? " of each rank" : "";
    std::string out = alone ? "" : "for the optimizer alone, ";
    if (found.all())
        out += "all of them: each of the " + plural(found.of, "core") + each + " is worth having" +
               (alone ? "; the host shares them, or takes one and slows the step\n" : "\n");
    else
        out += plural(found.cores, "core") + " of " + std::to_string(found.of) + each +
               (found.finished ? " are enough" : " so far: the deadline came before it was known whether more pay") +
               "; " + std::to_string(found.host_cores()) + " left for the host\n";
    out += (alone ? "cpuadam_cores_perc " + fixed(found.cpuadam_cores_perc, 4) + "; " : "") + "a step of " +
           grouped(found.elements) + " elements" + each + " takes " + seconds(found.step_s) + ", " +
           fixed(found.step_s * 1e9 / static_cast<double>(found.elements), 3) + " ns an element\n";
    out += "the curve: within 2% of its best with " + plural(fewest_within(found.curve, 0.02), "core") +
           ", within 10% with " + std::to_string(fewest_within(found.curve, 0.1)) + "\n";
    if (found.tried.empty())
        return out + "other chunks and prefetching were not tried\n";
    if (found.max_chunk_elems == default_max_chunk_elems && found.prefetch_bytes == default_prefetch_bytes())
        return out + "chunks and prefetching: of " + std::to_string(found.tried.size()) +
               " settings none is surely faster by 3%; the defaults stay\n";
    return out + "settings that are surely faster: max_chunk_elems " + std::to_string(found.max_chunk_elems) +
           ", prefetch_bytes " + std::to_string(found.prefetch_bytes) + "\n";
}

std::string host_text(host_tuning const& with, unsigned of, advice const& what)
{
    if (with.splits.empty())
        return of < 2 ? "with one core there is nothing to split\n" : "";
    std::string out = "\nwith " + plural(with.threads, "host thread") + " whose work takes " +
                      seconds(with.host_alone_s) + " without the optimizer, and a step of " +
                      seconds(with.step_alone_s) + " without them:\n\n" +
                      "optimizer   host   both ms   (p10 to p90)        step ms   host ms   host delayed   gain\n";
    for (split_time const& s : with.splits) {
        char text[200];
        std::snprintf(text, sizeof text, "%9s  %5s  %8s   (%s to %s)  %8s  %8s   %8.2f x   %.3f (%.3f to %.3f)%s\n",
                      s.cores == 0 ? "all" : std::to_string(s.cores).c_str(),
                      s.cores == 0 ? "all" : std::to_string(of - s.cores).c_str(), milliseconds(s.both_s).c_str(),
                      milliseconds(s.both_p10_s).c_str(), milliseconds(s.both_p90_s).c_str(),
                      milliseconds(s.step_s).c_str(), milliseconds(s.host_s).c_str(), s.host_s / with.host_alone_s,
                      s.gain, s.gain_low, s.gain_high, s.cores != 0 && s.cores == with.best ? "  <- best" : "");
        out += text;
    }
    return out + "\n" + wrapped("", what.why);
}

chart picture_of(tuned_cores const& found, host_tuning const& with, advice const& what, machine const& on,
                 named_types const& types, std::vector<std::string> const& warnings)
{
    chart picture;
    picture.warnings = warnings;
    picture.title = "How many cores the optimizer needs";
    picture.subtitle = describe(on) + "; " + types.name + "; " + date_and_time();
    picture.x_label = "cores for the optimizer";
    picture.y_label = "milliseconds";
    chart_panel panel;
    panel.title = "a step of " + grouped(found.elements) + " elements";
    chart_series steps{"step", mark_style::points, {}};
    chart_series perfect{"as if the first core's speed multiplied", mark_style::line, {}};
    for (core_time const& at : found.curve) {
        steps.points.push_back({static_cast<double>(at.cores), 1e3 * at.median_s, 1e3 * at.p10_s, 1e3 * at.p90_s});
        double const ideal = 1e3 * found.curve.front().median_s * found.curve.front().cores / at.cores;
        perfect.points.push_back({static_cast<double>(at.cores), ideal, ideal, ideal});
    }
    panel.series = {perfect, steps};
    panel.marked_x = found.cores;
    panel.mark = found.all() ? "all of them" : (found.finished ? "enough: " : "so far: ") + std::to_string(found.cores);
    picture.panels.push_back(panel);
    picture.notes.push_back("medians; bars from p10 to p90");
    if (with.splits.empty()) {
        picture.notes.push_back("cpuadam_cores_perc " + fixed(what.share, 4) + ", " +
                                plural(found.of - what.cores, "core") + " left for the host");
        return picture;
    }
    picture.notes.push_back(what.why);
    chart_panel host;
    host.title = "with " + plural(with.threads, "host thread") + ", until both are through";
    chart_series both{"both, cores split", mark_style::points, {}};
    chart_series shared{"both, all cores to both", mark_style::line, {}};
    for (split_time const& s : with.splits) {
        if (s.cores == 0)
            continue;
        double const x = s.cores;
        both.points.push_back({x, 1e3 * s.both_s, 1e3 * s.both_p10_s, 1e3 * s.both_p90_s});
        double const y = 1e3 * with.splits.front().both_s;
        shared.points.push_back({x, y, y, y});
    }
    if (shared.points.size() == 1) // a line needs two ends
        shared.points.push_back({static_cast<double>(found.of), shared.points[0].y, 0, 0});
    host.series = {shared, both};
    host.marked_x = with.best;
    host.mark = "best: " + std::to_string(with.best);
    picture.panels.push_back(host);
    return picture;
}

nlohmann::ordered_json host_json(host_tuning const& with)
{
    nlohmann::ordered_json json = {{"threads", with.threads},
                                   {"host_alone_s", with.host_alone_s},
                                   {"step_alone_s", with.step_alone_s},
                                   {"best_cores", with.best},
                                   {"splits", nlohmann::ordered_json::array()}};
    for (split_time const& s : with.splits)
        json["splits"].push_back({{"cores", s.cores},
                                  {"both_s", s.both_s},
                                  {"both_p10_s", s.both_p10_s},
                                  {"both_p90_s", s.both_p90_s},
                                  {"step_s", s.step_s},
                                  {"host_s", s.host_s},
                                  {"host_delayed", s.host_s / with.host_alone_s},
                                  {"gain", s.gain},
                                  {"gain_low", s.gain_low},
                                  {"gain_high", s.gain_high}});
    return json;
}

} // namespace

int tune(arguments& options)
{
    machine const on = machine_of();
    request const r = read_request(options, on);
    output_file save(r.save); // before anything is measured, so that nothing is measured in vain
    output_file json(r.json);
    output_file picture(r.plot);
    interruption const interrupt;
    others const besides;
    tuned_cores found;
    host_tuning with;
    {
        progress bar(r.tuning.deadline_s); // at most
        if (r.load.empty()) {
            core_tuning_options tuning = r.tuning;
            tuning.on_step = [&](unsigned cores, double) {
                if (interruption::noted())
                    throw stopped{};
                bar.at_this_time(plural(cores, "core"));
            };
            try {
                found = tune_cores(on, r.cores, *r.types.format, tuning);
            } catch (stopped const&) {
                std::fputs("adamant: interrupted before there was a result\n", stderr);
                return 128 + SIGINT;
            }
        } else {
            found = load_tuned(r.load, tuning_key_of(on, r.cores, *r.types.format));
        }
    }
    if (r.host_threads != 0) {
        progress bar(expected_host_rounds(r.rounds));
        with = tune_with_host(on, r.cores, *r.types.format, found, r.host_threads, r.rounds, bar);
    }
    std::vector<std::string> warnings;
    for (std::string const& saved : found.warnings)
        warnings.push_back("WARNING of " + r.load + ": " + saved);
    if (double const busy = besides.busy(); busy > 0.05 && (r.load.empty() || r.host_threads != 0)) {
        std::string const text = "the machine was busy with something else for " + fixed(100 * busy, 0) +
                                 "% of its processors' time; tune again when it is quiet";
        warnings.push_back("WARNING: " + text);
        found.warnings.push_back(text);
    }
    if (!found.finished) {
        std::string const text = "the deadline came before it was known whether more cores pay";
        warnings.push_back("WARNING: " + text);
        found.warnings.push_back(text);
    }
    if (interruption::noted()) {
        std::string const text = "the rounds with a host's threads are fewer than asked for";
        warnings.push_back("INTERRUPTED: " + text);
        found.warnings.push_back("interrupted: " + text);
    }
    advice const what = advice_of(found, with);
    std::string out = "adamant tune, " + date_and_time() + "\n" + describe(on) + "; " + r.types.name + ", " +
                      plural(r.cores.ranks, "rank") + (r.load.empty() ? "" : "; from " + r.load) + "\n";
    for (std::string const& warning : warnings)
        out += wrapped("", warning);
    if (std::size_t const within = threads_within(on.quota.cpus, r.cores.ranks, found.of); within < found.of)
        out += "the CPU quota keeps " + plural(within, "thread") + " of each rank busy; more cores were not tried\n";
    out += '\n' + curve_text(found, r.types) + "\n" + verdict_text(found, r.cores.ranks, with.splits.empty());
    if (r.host_threads != 0)
        out += host_text(with, found.of, what);
    if (!r.save.empty() && found.finished && what.cores != found.cores)
        out += wrapped("", "--save keeps what was found for the optimizer alone: " + plural(found.cores, "core"));
    if (!json.is_stdout())
        std::fputs(out.c_str(), stdout);
    nlohmann::ordered_json result = to_json(found);
    if (found.finished)
        save.write(result.dump(2) + "\n");
    else if (!r.save.empty())
        std::fputs("adamant: not saved, as the deadline came first; give a later --deadline\n", stderr);
    if (!with.splits.empty())
        result["host_load"] = host_json(with);
    json.write(result.dump(2) + "\n");
    if (!r.plot.empty())
        picture.write(drawn(r.plot, picture_of(found, with, what, on, r.types, warnings)));
    return interruption::noted() ? 128 + SIGINT : found.finished ? 0 : 1;
}

} // namespace cli
