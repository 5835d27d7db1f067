// SPDX-License-Identifier: Apache-2.0
#include "roofline_report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <utility>

#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "cores_text.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

using json = nlohmann::ordered_json;
using adamant::dtype;

// Whole numbers without a point.
json bytes_json(double bytes)
{
    auto const whole = static_cast<std::size_t>(bytes);
    return static_cast<double>(whole) == bytes ? json(whole) : json(bytes);
}

json row_json(roofline_row const& row, bool projected)
{
    json result = {{"what", row.what},
                   {"types", row.types},
                   {"threads", row.threads},
                   {"ranks", row.ranks},
                   {"pus", row.pus},
                   {"numa_node", row.node},
                   {"elements", row.elements},
                   {"bytes_per_element", bytes_json(row.bytes_per_element)},
                   {"rounds", row.rounds},
                   {"ns_per_element", row.ns_per_element},
                   {"ns_p10", row.ns_p10},
                   {"ns_p90", row.ns_p90},
                   {"gb_per_s", row.gb_per_s()}};
    if (row.is_step()) {
        result["percent_of_limit"] = row.percent_of_limit;
        result["percent_p10"] = row.percent_p10;
        result["percent_p90"] = row.percent_p90;
        result["isa"] = row.isa;
        result["projected"] = projected;
    } else {
        result["loop"] = row.note;
    }
    return result;
}

// As the headings have them: "f32/bf16/f32/f32/bf16".
std::string short_types(std::string types)
{
    for (std::size_t at = 0; (at = types.find("float", at)) != std::string::npos;)
        types.replace(at, 5, 1, 'f');
    return types;
}

// "2 x 8", "4 of node 1".
std::string cores_of(roofline_row const& row)
{
    return (row.ranks > 1 ? std::to_string(row.ranks) + " x " : "") + std::to_string(row.threads) +
           (row.node.empty() ? "" : " of node " + row.node);
}

// The instruction sets of all steps, each once: "avx512".
std::string tiers_of(roofline_found const& found)
{
    std::vector<std::string> all;
    auto const add = [&](std::vector<roofline_row> const& rows) {
        for (roofline_row const& row : rows)
            if (!row.isa.empty() && std::find(all.begin(), all.end(), row.isa) == all.end())
                all.push_back(row.isa);
    };
    add(found.rows);
    if (found.job)
        add(found.job->rows);
    std::string text;
    for (std::string const& one : all)
        text += (text.empty() ? "" : ", ") + one;
    return text;
}

// The widest cells of three columns.
struct row_widths {
    int types = 8;
    int cores = 6;
    int what = 6;

    explicit row_widths(roofline_found const& found)
    {
        for (roofline_row const& row : found.rows)
            widen(row);
        if (found.job)
            for (roofline_row const& row : found.job->rows)
                widen(row);
    }
    void widen(roofline_row const& row)
    {
        types = std::max(types, static_cast<int>(short_types(row.types).size()));
        cores = std::max(cores, static_cast<int>(cores_of(row).size()));
        what = std::max(what, static_cast<int>(row.what.size()));
    }
};

std::string row_text(roofline_row const& row, row_widths const& width)
{
    char text[200];
    std::string const share = !row.is_step() ? std::string()
                                             : fixed(row.percent_of_limit, 0) + " (" + fixed(row.percent_p10, 0) +
                                                   " to " + fixed(row.percent_p90, 0) + ")";
    std::snprintf(text, sizeof text, "%-*s %-*s %-*s %7.3f  (%.3f to %.3f)  %5s  %6.1f  %s\n", width.types,
                  short_types(row.types).c_str(), width.cores, cores_of(row).c_str(), width.what, row.what.c_str(),
                  row.ns_per_element, row.ns_p10, row.ns_p90, shortest(row.bytes_per_element).c_str(), row.gb_per_s(),
                  share.c_str());
    std::string line = text;
    line.erase(line.find_last_not_of(" \n") + 1);
    return line + "\n";
}

// "float32 params and moments, bfloat16 gradients and weights".
std::string in_words(std::string const& types)
{
    adamant::shard_dtypes const t = parse_types(types).front().format->types;
    if (t[1] == t[0] && t[2] == t[0] && t[3] == t[0] && (t[4] == t[0] || t[4] == dtype::none))
        return "all " + std::string(name(t[0]));
    bool const same_moments = t[2] == t[3];
    std::vector<std::pair<dtype, std::string>> arrays = {{t[0], "params"}};
    arrays.emplace_back(t[2], same_moments ? "moments" : "first moments");
    if (!same_moments)
        arrays.emplace_back(t[3], "second moments");
    arrays.emplace_back(t[1], "gradients");
    if (t[4] != dtype::none)
        arrays.emplace_back(t[4], "weights");
    std::string text;
    for (dtype const type :
         {dtype::float32, dtype::bfloat16, dtype::float16, dtype::split_float32, dtype::quantized8}) {
        std::vector<std::string> of_type;
        for (auto const& [its, array] : arrays)
            if (its == type)
                of_type.push_back(array);
        for (std::size_t i = 0; i < of_type.size(); ++i)
            text += (i != 0 ? i + 1 == of_type.size() ? " and " : ", "
                            : (text.empty() ? "" : ", ") + std::string(name(type)) + " ") +
                    of_type[i];
    }
    return text;
}

// Longer lines are broken; those that go on are indented.
std::string wrapped(std::string const& text)
{
    std::string out;
    std::string line;
    std::size_t at = 0;
    while (at < text.size()) {
        std::size_t const end = std::min(text.find(' ', at), text.size());
        std::string const word = text.substr(at, end - at);
        if (line.size() > 4 && line.size() + 1 + word.size() > text_columns) {
            out += line + "\n";
            line = "   ";
        }
        line += (line.empty() ? "" : " ") + word;
        at = end + 1;
    }
    return out + line + "\n";
}

std::string job_text(roofline_found const& found)
{
    job_result const& job = *found.job;
    if (job.rows.empty())
        return "";
    roofline_row const& step = job.rows.back();
    std::string text = grouped(found.params) + " params, " + step.types + ", over " + plural(step.ranks, "rank") +
                       " of " + plural(step.threads, "core") + " (PUs " + step.pus + "): " + seconds(job.step_s) +
                       " a step" + (job.projected ? ", PROJECTED" : "") + ", " + fixed(step.gb_per_s(), 1) + " GB/s, " +
                       fixed(step.percent_of_limit, 0) + "% of the limit (p10 to p90 " + fixed(step.percent_p10, 0) +
                       " to " + fixed(step.percent_p90, 0) + ")";
    if (job.projected)
        text += "; that is in proportion to the " + grouped(job.params_measured) + " that fit in memory, which took " +
                seconds(step.ns_per_element * 1e-9 * static_cast<double>(step.elements));
    std::string out = wrapped(text);
    if (found.params == 3'085'938'688 && (step.types == "f32" || step.types == "mixed"))
        out += wrapped("published for as many (DeepSpeed issue 7478): 0.6 s on 2 x 64 cores, 0.2 s on two Xeon 6972P");
    return out;
}

} // namespace

void add_others(roofline_found& found, double share)
{
    constexpr double busy_from = 0.05; // more of the machine for other processes, and figures say little
    found.notes.push_back("others had " + fixed(100 * share, 1) + "% of the processors meanwhile");
    if (share > busy_from)
        found.warnings.push_back("the machine was busy with something else for " + fixed(100 * share, 0) +
                                 "% of its processors' time; measure again when it is quiet");
}

roofline_found read_run(std::string const& path)
{
    std::ifstream file(path);
    if (!file)
        throw usage_error("--from is '" + path + "', which cannot be read; benchmarks/peers.py --json makes one");
    try {
        roofline_found found;
        found.from = path;
        json const run = json::parse(file);
        found.machine = run.at("machine");
        found.date = run.at("date");
        json const& rows = run.at("rows");
        double largest = 0; // others are in cache, where memory is no limit
        for (json const& row : rows)
            largest = std::max(largest, row.at("elements").get<double>());
        for (json const& row : rows) {
            if (row.at("elements").get<double>() != largest)
                continue;
            roofline_row one;
            one.what = row.at("name");
            one.types = row.at("dtypes");
            static_cast<void>(parse_types(one.types)); // throws for what is none
            one.threads = row.at("threads");
            one.elements = row.at("elements");
            one.bytes_per_element = row.at("bytes_per_element");
            one.rounds = run.at("rounds");
            one.ns_per_element = row.at("ns_per_element");
            one.ns_p10 = row.at("ns_p10");
            one.ns_p90 = row.at("ns_p90");
            one.note = row.at("note");
            if (one.what != "limit") {
                one.percent_of_limit = row.at("percent_of_limit");
                one.percent_p10 = 100 / row.at("ratio_p90").get<double>();
                one.percent_p90 = 100 / row.at("ratio_p10").get<double>();
            }
            found.rows.push_back(one);
        }
        add_others(found, run.at("share_of_others"));
        return found;
    } catch (nlohmann::json::exception const& e) {
        throw usage_error("--from is '" + path + "', which benchmarks/peers.py has not made (" + e.what() + ")");
    }
}

std::string to_text(roofline_found const& found)
{
    std::string out = "adamant roofline, " + found.date + (found.from.empty() ? "" : ", from " + found.from) + "\n" +
                      wrapped(found.machine);
    for (std::string const& note : found.notes)
        out += wrapped(note);
    for (std::string const& warning : found.warnings)
        out += wrapped("WARNING: " + warning);
    if (std::string const tiers = tiers_of(found); !tiers.empty())
        out += wrapped("instruction set of the steps: " + tiers);
    out += "\nlimit: the fastest loop that moves a step's bytes and computes nothing; read and copy: loops that\n"
           "only do that. Bytes written count as those read, but cost less where the line is there already: so\n"
           "a step moves more GB/s than a loop that reads. Medians of rounds; limit and step in each; in\n"
           "brackets p10 to p90. Where both are as fast, the machine's drift makes a step seem faster than its\n"
           "limit.\n\n";
    row_widths const width(found);
    auto const heading = [](std::string text, int columns) {
        text.resize(std::max(text.size(), static_cast<std::size_t>(columns)), ' ');
        return text + " ";
    };
    out += heading("types", width.types) + heading("cores", width.cores) + heading("what", width.what) +
           "ns/elem                    bytes    GB/s  % of limit\n";
    for (roofline_row const& row : found.rows)
        out += row_text(row, width);
    if (found.job && !found.job->rows.empty()) {
        out += "\nthe whole job, every rank a process on cores of its own, all stepping concurrently:\n";
        for (roofline_row const& row : found.job->rows)
            out += row_text(row, width);
        out += '\n' + job_text(found);
    }
    if (found.interrupted)
        out += "\ninterrupted: what was measured until then is above\n";
    return out;
}

std::string to_json(roofline_found const& found)
{
    json result = {{"machine", found.machine},
                   {"date", found.date},
                   {"notes", found.notes},
                   {"warnings", found.warnings},
                   {"interrupted", found.interrupted},
                   {"rows", json::array()}};
    for (roofline_row const& row : found.rows)
        result["rows"].push_back(row_json(row, false));
    if (found.job && !found.job->rows.empty()) {
        for (roofline_row const& row : found.job->rows)
            result["rows"].push_back(row_json(row, found.job->projected));
        result["job"] = {{"params", found.params},
                         {"params_measured", found.job->params_measured},
                         {"ranks", found.job->rows.back().ranks},
                         {"step_s", found.job->step_s},
                         {"projected", found.job->projected}};
    }
    return result.dump(2) + "\n";
}

std::string to_csv(roofline_found const& found)
{
    std::string out = "what,types,threads,ranks,numa_node,elements,bytes_per_element,ns_per_element,ns_p10,ns_p90,"
                      "gb_per_s,percent_of_limit,percent_p10,percent_p90,isa\n";
    auto const add = [&](roofline_row const& row) {
        bool const step = row.is_step();
        out += row.what + "," + row.types + "," + std::to_string(row.threads) + "," + std::to_string(row.ranks) +
               ",\"" + row.node + "\"," + std::to_string(row.elements) + "," + shortest(row.bytes_per_element) + "," +
               fixed(row.ns_per_element, 5) + "," + fixed(row.ns_p10, 5) + "," + fixed(row.ns_p90, 5) + "," +
               fixed(row.gb_per_s(), 3) + "," + (step ? fixed(row.percent_of_limit, 2) : "") + "," +
               (step ? fixed(row.percent_p10, 2) : "") + "," + (step ? fixed(row.percent_p90, 2) : "") + "," + row.isa +
               "\n";
    };
    for (roofline_row const& row : found.rows)
        add(row);
    if (found.job)
        for (roofline_row const& row : found.job->rows)
            add(row);
    return out;
}

chart picture_of(roofline_found const& found)
{
    chart picture;
    picture.title = "The roof of an optimizer step, and what reaches it";
    picture.subtitle = found.machine + "; " + found.date;
    picture.x_label = "cores";
    picture.y_label = "GB/s that the step moves";
    if (found.interrupted)
        picture.warnings.push_back("INTERRUPTED: only what was measured until then is here");
    for (std::string const& warning : found.warnings)
        picture.warnings.push_back("WARNING: " + warning);
    auto const point = [](roofline_row const& row) {
        double const bytes = row.bytes_per_element;
        return chart_point{static_cast<double>(row.threads), row.gb_per_s(), bytes / row.ns_p90, bytes / row.ns_p10};
    };
    std::vector<std::string> types;
    bool above = false; // some step is
    for (roofline_row const& row : found.rows) {
        if (!row.types.empty() && std::find(types.begin(), types.end(), row.types) == types.end())
            types.push_back(row.types);
        above = above || (row.is_step() && row.percent_p90 > 100);
    }
    for (std::string const& name : types) {
        chart_panel panel;
        for (roofline_row const& row : found.rows) {
            if (row.types != name || !row.node.empty())
                continue;
            panel.title = short_types(name) + ": " + shortest(row.bytes_per_element) + " bytes an element";
            panel.subtitle = in_words(name);
            std::string const label = row.what == "limit"  ? "limit: a step's bytes moved, nothing computed"
                                      : row.what == "step" ? "adamant step()"
                                                           : row.what;
            auto there = std::find_if(panel.series.begin(), panel.series.end(),
                                      [&](chart_series const& s) { return s.label == label; });
            if (there == panel.series.end())
                there = panel.series.insert(panel.series.end(),
                                            {label, row.what == "limit" ? mark_style::roof : mark_style::points, {}});
            there->points.push_back(point(row));
        }
        picture.panels.push_back(panel);
    }
    if (found.job && !found.job->rows.empty())
        picture.notes.push_back(grouped(found.params) + " params, " + found.job->rows.back().types + ", " +
                                plural(found.job->rows.back().ranks, "rank") + ": " + seconds(found.job->step_s) +
                                " a step" + (found.job->projected ? " (projected from what fits in memory)" : "") +
                                ", " + fixed(found.job->rows.back().percent_of_limit, 0) + "% of the limit");
    if (!picture.panels.empty()) {
        auto const [least, most] = std::minmax_element(
            found.rows.begin(), found.rows.end(), [](auto const& a, auto const& b) { return a.rounds < b.rounds; });
        picture.notes.push_back("medians, and bars from p10 to p90, of " +
                                (least->rounds == most->rounds ? "" : std::to_string(least->rounds) + " to ") +
                                std::to_string(most->rounds) + " rounds, all of them in one run");
    }
    if (above)
        picture.notes.push_back(
            "Points and bars above the roof: it is the median of the fastest loop that was tried, not of the fastest "
            "there could be, and what memory gives drifts from round to round by as much as the bars are long.");
    return picture;
}

} // namespace cli
