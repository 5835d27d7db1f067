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

#include <adamant/tune.hpp>
#include <adamant/tuned_json.hpp>

#include "chart.hpp"
#include "cores_text.hpp"
#include "output_file.hpp"
#include "plan_numbers.hpp"
#include "surroundings.hpp"
#include "this_machine.hpp"
#include "tune_host.hpp"
#include "tune_text.hpp"

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
    options.check_empty();
    for (auto const& [option, path] : {std::pair("--save", &r.save), std::pair("--load", &r.load)})
        refuse_stream(option, *path);
    if (!r.plot.empty())
        check_picture(r.plot);
    return r;
}

chart picture_of(tuned_cores const& found, host_tuning const& with, tune_advice const& what, machine const& on,
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
    bool const measured = r.load.empty() || r.host_threads != 0;
    std::vector<std::string> const warnings =
        add_warnings(found, {r.load, measured ? besides.busy() : 0, interruption::noted()});
    tune_advice const what = advice_of(found, with);
    std::string out = "adamant tune, " + date_and_time() + "\n" +
                      wrapped("", describe(on) + "; " + r.types.name + ", " + plural(r.cores.ranks, "rank") +
                                      (r.load.empty() ? "" : "; from " + r.load));
    for (std::string const& warning : warnings)
        out += wrapped("", warning);
    if (std::size_t const within = threads_within(on.quota.cpus, r.cores.ranks, found.of); within < found.of)
        out += wrapped("", "the CPU quota keeps " + plural(within, "thread") +
                               " of each rank busy; more cores were not tried");
    out += '\n' + curve_text(found, *r.types.format) + "\n" + verdict_text(found, r.cores.ranks, with.splits.empty());
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
        picture.write(draw_chart(r.plot, picture_of(found, with, what, on, r.types, warnings)));
    return interruption::noted() ? 128 + SIGINT : found.finished ? 0 : 1;
}

} // namespace cli
