// SPDX-License-Identifier: Apache-2.0
// `adamant tune`: finds the number of cores that the optimizer needs on this machine; the rest can serve the framework.

#include "tune.hpp"

#include <algorithm>
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

// Thrown by the callback of a tuning after Ctrl-C.
struct stopped {};

struct request {
    core_request cores;
    named_types types;
    core_tuning_options tuning;
    unsigned host_threads = 0;
    std::size_t rounds = 61; // with a host
    std::string json, plot, save, load;
};

request read_request(arguments& options, machine const& host)
{
    request r;
    r.cores.ranks = options.number("--ranks", 1, 1, static_cast<unsigned>(host.cores.size()));
    std::vector<named_types> const types = parse_types(options.value("--dtypes", "mixed"));
    if (types.size() != 1)
        throw usage_error("--dtypes names several types, but tuning is for one at a time");
    r.types = types.front();
    bool has_search_option = false; // an option about the search is given
    auto const number = [&](std::string_view name, double otherwise, double least, double most,
                            std::string_view must_be) {
        std::optional<std::string> const text = options.value(name);
        has_search_option = has_search_option || text;
        return text ? plain_number(name, *text, least, most, must_be) : otherwise;
    };
    r.tuning.deadline_s = number("--deadline", 60, 0.001, 1e6, "seconds, from 0.001 to 1e6");
    if (std::optional<std::string> const text = options.value("--worth")) {
        r.tuning.search.worth = share("--worth", *text, 1e-6, "a share from 1e-6 to 1, such as 0.05 or 5%");
        has_search_option = true;
    }
    if (std::optional<std::string> const text = options.value("--elements")) {
        r.tuning.elements = element_count("--elements", *text);
        has_search_option = true;
    }
    r.tuning.settings = !options.flag("--cores-only");
    has_search_option = has_search_option || !r.tuning.settings;
    r.host_threads = options.number("--host-load", 0, 0, 4096);
    std::optional<unsigned> const rounds = options.number("--rounds", 6, 999);
    r.rounds = rounds.value_or(61);
    if (rounds && r.host_threads == 0)
        throw usage_error("--rounds is given, which are those with a host's threads, but --host-load is not");
    r.json = options.value("--json", "");
    r.plot = options.value("--plot", "");
    r.save = options.value("--save", "");
    r.load = options.value("--load", "");
    if (!r.load.empty() && has_search_option)
        throw usage_error("cannot combine --load with --worth, --deadline, --elements or --cores-only: --load uses the "
                          "result of an earlier tuning. Remove one.");
    options.check_empty();
    for (auto const& [option, path] : {std::pair("--save", &r.save), std::pair("--load", &r.load)})
        refuse_stream(option, *path);
    if (!r.plot.empty())
        check_picture(r.plot);
    return r;
}

chart picture_of(tuned_cores const& tuned, host_tuning const& host, tune_advice const& advice, machine const& machine,
                 named_types const& types, std::vector<std::string> const& warnings)
{
    chart picture;
    picture.warnings = warnings;
    picture.title = "How many cores the optimizer needs";
    picture.subtitle = describe(machine) + "; " + types.name + "; " + date_and_time();
    picture.x_label = "cores for the optimizer";
    picture.y_label = "milliseconds";
    chart_panel panel;
    panel.title = "a step of " + grouped(tuned.elements) + " elements";
    chart_series steps{"step", mark_style::points, {}};
    chart_series perfect{"as if the first core's speed multiplied", mark_style::line, {}};
    for (core_time const& time : tuned.curve) {
        steps.points.push_back(
            {static_cast<double>(time.cores), 1e3 * time.median_s, 1e3 * time.p10_s, 1e3 * time.p90_s});
        double const ideal = 1e3 * tuned.curve.front().median_s * tuned.curve.front().cores / time.cores;
        perfect.points.push_back({static_cast<double>(time.cores), ideal, ideal, ideal});
    }
    panel.series = {perfect, steps};
    panel.marked_x = tuned.cores;
    panel.mark = tuned.all() ? "all of them" : (tuned.finished ? "enough: " : "so far: ") + std::to_string(tuned.cores);
    picture.panels.push_back(panel);
    picture.notes.push_back("medians; bars from p10 to p90");
    if (host.splits.empty()) {
        picture.notes.push_back("cpuadam_cores_perc " + fixed(advice.share, 4) + ", " +
                                plural(tuned.available_cores - advice.cores, "core") + " left for the host");
        return picture;
    }
    picture.notes.push_back(advice.why);
    chart_panel host_panel;
    host_panel.title = "with " + plural(host.threads, "host thread") + ", until both are through";
    chart_series both{"both, cores split", mark_style::points, {}};
    chart_series shared{"both, all cores to both", mark_style::line, {}};
    for (split_time const& s : host.splits) {
        if (s.cores == 0)
            continue;
        double const x = s.cores;
        both.points.push_back({x, 1e3 * s.both_s, 1e3 * s.both_p10_s, 1e3 * s.both_p90_s});
        double const y = 1e3 * host.splits.front().both_s;
        shared.points.push_back({x, y, y, y});
    }
    if (shared.points.size() == 1) // a line needs two ends
        shared.points.push_back({static_cast<double>(tuned.available_cores), shared.points[0].y, 0, 0});
    host_panel.series = {shared, both};
    host_panel.marked_x = host.best;
    host_panel.mark = "best: " + std::to_string(host.best);
    picture.panels.push_back(host_panel);
    return picture;
}

nlohmann::ordered_json host_json(host_tuning const& host)
{
    nlohmann::ordered_json json = {{"threads", host.threads},
                                   {"host_alone_s", host.host_alone_s},
                                   {"step_alone_s", host.step_alone_s},
                                   {"best_cores", host.best},
                                   {"splits", nlohmann::ordered_json::array()}};
    for (split_time const& s : host.splits)
        json["splits"].push_back({{"cores", s.cores},
                                  {"both_s", s.both_s},
                                  {"both_p10_s", s.both_p10_s},
                                  {"both_p90_s", s.both_p90_s},
                                  {"step_s", s.step_s},
                                  {"host_s", s.host_s},
                                  {"host_delayed", s.host_s / host.host_alone_s},
                                  {"gain", s.gain},
                                  {"gain_low", s.gain_low},
                                  {"gain_high", s.gain_high}});
    return json;
}

} // namespace

int tune(arguments& options)
{
    machine const host = machine_of();
    request const r = read_request(options, host);
    output_file save(r.save); // opened before the measurement, which takes long
    output_file json(r.json);
    output_file picture(r.plot);
    interruption const interrupt;
    other_load const others;
    tuned_cores tuned;
    host_tuning host_load;
    {
        progress bar(r.tuning.deadline_s); // at most
        if (r.load.empty()) {
            core_tuning_options tuning = r.tuning;
            tuning.on_step = [&](unsigned cores, double) {
                if (interruption::is_set())
                    throw stopped{};
                bar.set_activity_now(plural(cores, "core"));
            };
            try {
                tuned = tune_cores(host, r.cores, *r.types.format, tuning);
            } catch (stopped const&) {
                std::fputs("adamant: interrupted before there was a result\n", stderr);
                return interruption::status();
            }
        } else {
            tuned = load_tuned(r.load, tuning_key_of(host, r.cores, *r.types.format));
        }
    }
    if (r.host_threads != 0) {
        progress bar(expected_host_rounds(r.rounds));
        host_load = tune_with_host(host, r.cores, *r.types.format, tuned, r.host_threads, r.rounds, bar);
    }
    bool const measured = r.load.empty() || r.host_threads != 0;
    std::vector<std::string> const warnings =
        add_warnings(tuned, {r.load, measured ? others.share() : 0, interruption::is_set()});
    tune_advice const advice = advice_of(tuned, host_load);
    std::string out = "adamant tune, " + date_and_time() + "\n" +
                      wrapped("", describe(host) + "; " + r.types.name + ", " + plural(r.cores.ranks, "rank") +
                                      (r.load.empty() ? "" : "; from " + r.load));
    for (std::string const& warning : warnings)
        out += wrapped("", warning);
    if (std::size_t const busy_threads = threads_within(host.quota.cpus, r.cores.ranks, tuned.available_cores);
        busy_threads < tuned.available_cores)
        out += wrapped("", "the CPU quota keeps " + plural(busy_threads, "thread") +
                               " of each rank busy; more cores were not tried");
    out +=
        '\n' + curve_text(tuned, *r.types.format) + "\n" + verdict_text(tuned, r.cores.ranks, host_load.splits.empty());
    if (r.host_threads != 0)
        out += host_text(host_load, tuned.available_cores, advice);
    if (!r.save.empty() && tuned.finished && advice.cores != tuned.cores)
        out += wrapped("", "--save keeps what was found for the optimizer alone: " + plural(tuned.cores, "core"));
    if (!json.is_stdout())
        std::fputs(out.c_str(), stdout);
    nlohmann::ordered_json result = to_json(tuned);
    if (tuned.finished)
        save.write(result.dump(2) + "\n");
    else if (!r.save.empty())
        std::fputs("adamant: not saved, as the deadline came first; give a later --deadline\n", stderr);
    if (!host_load.splits.empty())
        result["host_load"] = host_json(host_load);
    json.write(result.dump(2) + "\n");
    if (!r.plot.empty())
        picture.write(draw_chart(r.plot, picture_of(tuned, host_load, advice, host, r.types, warnings)));
    return interruption::is_set() ? interruption::status() : tuned.finished ? 0 : 1;
}

} // namespace cli
