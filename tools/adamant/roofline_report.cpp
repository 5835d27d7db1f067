// SPDX-License-Identifier: Apache-2.0
// Definitions of roofline_report.hpp.
#include "roofline_report.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include "arguments.hpp"
#include "cores_text.hpp"
#include "plan_numbers.hpp"

namespace cli {

namespace {

using json = nlohmann::ordered_json;
using adamant::dtype;

// Writes whole numbers without a decimal point.
json bytes_json(double bytes)
{
    auto const whole = static_cast<std::size_t>(bytes);
    return static_cast<double>(whole) == bytes ? json(whole) : json(bytes);
}

json row_json(roofline_row const& row, bool projected)
{
    json result = {{"what", row.measured},
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

// Types for the table and headings: "f32/bf16/f32/f32/bf16".
std::string short_types(std::string types)
{
    for (std::size_t begin = 0; (begin = types.find("float", begin)) != std::string::npos;)
        types.replace(begin, 5, 1, 'f');
    return types;
}

// "2 x 8", "4 of node 1".
std::string cores_of(roofline_row const& row)
{
    return (row.ranks > 1 ? std::to_string(row.ranks) + " x " : "") + std::to_string(row.threads) +
           (row.node.empty() ? "" : " of node " + row.node);
}

// The instruction sets of all steps, each once: "avx512".
std::string tiers_of(roofline_report const& report)
{
    std::vector<std::string> all;
    auto const add = [&](std::vector<roofline_row> const& rows) {
        for (roofline_row const& row : rows)
            if (!row.isa.empty() && std::find(all.begin(), all.end(), row.isa) == all.end())
                all.push_back(row.isa);
    };
    add(report.rows);
    if (report.job)
        add(report.job->rows);
    std::string text;
    for (std::string const& tier : all)
        text += (text.empty() ? "" : ", ") + tier;
    return text;
}

// The widest cells of three columns.
struct row_widths {
    int types = 8;
    int cores = 6;
    int measured = 6;

    explicit row_widths(roofline_report const& report)
    {
        for (roofline_row const& row : report.rows)
            widen(row);
        if (report.job)
            for (roofline_row const& row : report.job->rows)
                widen(row);
    }
    void widen(roofline_row const& row)
    {
        types = std::max(types, static_cast<int>(short_types(row.types).size()));
        cores = std::max(cores, static_cast<int>(cores_of(row).size()));
        measured = std::max(measured, static_cast<int>(row.measured.size()));
    }
};

std::string row_text(roofline_row const& row, row_widths const& width)
{
    char text[200];
    std::string const share = !row.is_step() ? std::string()
                                             : fixed(row.percent_of_limit, 0) + " (" + fixed(row.percent_p10, 0) +
                                                   " to " + fixed(row.percent_p90, 0) + ")";
    std::snprintf(text, sizeof text, "%-*s %-*s %-*s %7.3f  (%.3f to %.3f)  %5s  %6.1f  %s\n", width.types,
                  short_types(row.types).c_str(), width.cores, cores_of(row).c_str(), width.measured,
                  row.measured.c_str(), row.ns_per_element, row.ns_p10, row.ns_p90,
                  shortest(row.bytes_per_element).c_str(), row.gb_per_s(), share.c_str());
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
        std::vector<std::string> names;
        for (auto const& [array_type, array] : arrays)
            if (array_type == type)
                names.push_back(array);
        for (std::size_t i = 0; i < names.size(); ++i)
            text += (i != 0 ? i + 1 == names.size() ? " and " : ", "
                            : (text.empty() ? "" : ", ") + std::string(name(type)) + " ") +
                    names[i];
    }
    return text;
}

// Breaks long lines and indents the continuations.
std::string wrapped(std::string const& text)
{
    std::string out;
    std::string line;
    std::size_t begin = 0;
    while (begin < text.size()) {
        std::size_t const end = std::min(text.find(' ', begin), text.size());
        std::string const word = text.substr(begin, end - begin);
        if (line.size() > 4 && line.size() + 1 + word.size() > text_columns) {
            out += line + "\n";
            line = "   ";
        }
        line += (line.empty() ? "" : " ") + word;
        begin = end + 1;
    }
    return out + line + "\n";
}

std::string job_text(roofline_report const& report)
{
    job_result const& job = *report.job;
    if (job.rows.empty())
        return "";
    roofline_row const& step = job.rows.back();
    std::string text = grouped(report.params) + " params, " + step.types + ", over " + plural(step.ranks, "rank") +
                       " of " + plural(step.threads, "core") + " (PUs " + step.pus + "): " + seconds(job.step_s) +
                       " a step" + (job.projected ? ", PROJECTED" : "") + ", " + fixed(step.gb_per_s(), 1) + " GB/s, " +
                       fixed(step.percent_of_limit, 0) + "% of the limit (p10 to p90 " + fixed(step.percent_p10, 0) +
                       " to " + fixed(step.percent_p90, 0) + ")";
    if (job.projected)
        text += "; that is in proportion to the " + grouped(job.params_measured) + " that fit in memory, which took " +
                seconds(step.ns_per_element * 1e-9 * static_cast<double>(step.elements));
    std::string out = wrapped(text);
    if (report.params == 3'085'938'688 && (step.types == "f32" || step.types == "mixed"))
        out += wrapped("published for as many (DeepSpeed issue 7478): 0.6 s on 2 x 64 cores, 0.2 s on two Xeon 6972P");
    return out;
}

} // namespace

void add_others(roofline_report& report, double share)
{
    constexpr double busy_from = 0.05; // figures are unreliable if other processes use more of the machine
    report.notes.push_back("others had " + fixed(100 * share, 1) + "% of the processors meanwhile");
    if (share > busy_from)
        report.warnings.push_back("the machine was busy with something else for " + fixed(100 * share, 0) +
                                  "% of its processors' time; measure again when it is quiet");
}

roofline_report read_run(std::string const& path)
{
    std::error_code ignored;
    bool const is_folder = std::filesystem::is_directory(path, ignored);
    errno = is_folder ? EISDIR : 0;
    std::ifstream file(path);
    if (!file || is_folder)
        throw usage_error("--from is '" + path + "', which cannot be read: " + std::strerror(errno) +
                          ". benchmarks/peers.py --json makes one.");
    try {
        roofline_report report;
        report.source_path = path;
        json const run = json::parse(file);
        report.machine = run.at("machine");
        report.date = run.at("date");
        json const& rows = run.at("rows");
        double largest = 0; // smaller arrays may be in cache
        for (json const& row : rows)
            largest = std::max(largest, row.at("elements").get<double>());
        for (json const& row : rows) {
            if (row.at("elements").get<double>() != largest)
                continue;
            roofline_row result;
            result.measured = row.at("name");
            result.types = row.at("dtypes");
            static_cast<void>(parse_types(result.types)); // throws for unknown types
            result.threads = row.at("threads");
            result.elements = row.at("elements");
            result.bytes_per_element = row.at("bytes_per_element");
            result.rounds = run.at("rounds");
            result.ns_per_element = row.at("ns_per_element");
            result.ns_p10 = row.at("ns_p10");
            result.ns_p90 = row.at("ns_p90");
            result.note = row.at("note");
            if (result.measured != "limit") {
                result.percent_of_limit = row.at("percent_of_limit");
                result.percent_p10 = 100 / row.at("ratio_p90").get<double>();
                result.percent_p90 = 100 / row.at("ratio_p10").get<double>();
            }
            report.rows.push_back(result);
        }
        add_others(report, run.at("share_of_others"));
        return report;
    } catch (nlohmann::json::exception const& e) {
        throw usage_error("cannot read '" + path + "': it is not a file of benchmarks/peers.py --json (" + e.what() +
                          ")");
    }
}

std::string to_text(roofline_report const& report)
{
    std::string out = "adamant roofline, " + report.date +
                      (report.source_path.empty() ? "" : ", from " + report.source_path) + "\n" +
                      wrapped(report.machine);
    for (std::string const& note : report.notes)
        out += wrapped(note);
    for (std::string const& warning : report.warnings)
        out += wrapped("WARNING: " + warning);
    if (std::string const tiers = tiers_of(report); !tiers.empty())
        out += wrapped("instruction set of the steps: " + tiers);
    out += "\nlimit: the fastest loop that moves a step's bytes and computes nothing; read and copy: loops that\n"
           "only do that. Bytes written count as those read, but cost less where the line is there already: so\n"
           "a step moves more GB/s than a loop that reads. Medians of rounds; limit and step in each; in\n"
           "brackets p10 to p90. Where both are as fast, the machine's drift makes a step seem faster than its\n"
           "limit.\n\n";
    row_widths const width(report);
    auto const heading = [](std::string text, int columns) {
        text.resize(std::max(text.size(), static_cast<std::size_t>(columns)), ' ');
        return text + " ";
    };
    out += heading("types", width.types) + heading("cores", width.cores) + heading("what", width.measured) +
           "ns/elem                    bytes    GB/s  % of limit\n";
    for (roofline_row const& row : report.rows)
        out += row_text(row, width);
    if (report.job && !report.job->rows.empty()) {
        out += "\nthe whole job, every rank a process on cores of its own, all stepping concurrently:\n";
        for (roofline_row const& row : report.job->rows)
            out += row_text(row, width);
        out += '\n' + job_text(report);
    }
    if (report.interrupted)
        out += "\ninterrupted: what was measured until then is above\n";
    return out;
}

std::string to_json(roofline_report const& report)
{
    json result = {{"machine", report.machine},
                   {"date", report.date},
                   {"notes", report.notes},
                   {"warnings", report.warnings},
                   {"interrupted", report.interrupted},
                   {"rows", json::array()}};
    for (roofline_row const& row : report.rows)
        result["rows"].push_back(row_json(row, false));
    if (report.job && !report.job->rows.empty()) {
        for (roofline_row const& row : report.job->rows)
            result["rows"].push_back(row_json(row, report.job->projected));
        result["job"] = {{"params", report.params},
                         {"params_measured", report.job->params_measured},
                         {"ranks", report.job->rows.back().ranks},
                         {"step_s", report.job->step_s},
                         {"projected", report.job->projected}};
    }
    return result.dump(2) + "\n";
}

std::string to_csv(roofline_report const& report)
{
    std::string out = "what,types,threads,ranks,numa_node,elements,bytes_per_element,ns_per_element,ns_p10,ns_p90,"
                      "gb_per_s,percent_of_limit,percent_p10,percent_p90,isa\n";
    auto const add = [&](roofline_row const& row) {
        bool const step = row.is_step();
        out += row.measured + "," + row.types + "," + std::to_string(row.threads) + "," + std::to_string(row.ranks) +
               ",\"" + row.node + "\"," + std::to_string(row.elements) + "," + shortest(row.bytes_per_element) + "," +
               fixed(row.ns_per_element, 5) + "," + fixed(row.ns_p10, 5) + "," + fixed(row.ns_p90, 5) + "," +
               fixed(row.gb_per_s(), 3) + "," + (step ? fixed(row.percent_of_limit, 2) : "") + "," +
               (step ? fixed(row.percent_p10, 2) : "") + "," + (step ? fixed(row.percent_p90, 2) : "") + "," + row.isa +
               "\n";
    };
    for (roofline_row const& row : report.rows)
        add(row);
    if (report.job)
        for (roofline_row const& row : report.job->rows)
            add(row);
    return out;
}

chart picture_of(roofline_report const& report)
{
    chart picture;
    picture.title = "The roof of an optimizer step, and what reaches it";
    picture.subtitle = report.machine + "; " + report.date;
    picture.x_label = "cores";
    picture.y_label = "GB/s that the step moves";
    if (report.interrupted)
        picture.warnings.push_back("INTERRUPTED: only what was measured until then is here");
    for (std::string const& warning : report.warnings)
        picture.warnings.push_back("WARNING: " + warning);
    auto const point = [](roofline_row const& row) {
        double const bytes = row.bytes_per_element;
        return chart_point{static_cast<double>(row.threads), row.gb_per_s(), bytes / row.ns_p90, bytes / row.ns_p10};
    };
    std::vector<std::string> types;
    bool is_above = false; // some step is above the roof
    for (roofline_row const& row : report.rows) {
        if (!row.types.empty() && std::find(types.begin(), types.end(), row.types) == types.end())
            types.push_back(row.types);
        is_above = is_above || (row.is_step() && row.percent_p90 > 100);
    }
    for (std::string const& name : types) {
        chart_panel panel;
        for (roofline_row const& row : report.rows) {
            if (row.types != name || !row.node.empty())
                continue;
            panel.title = short_types(name) + ": " + shortest(row.bytes_per_element) + " bytes an element";
            panel.subtitle = in_words(name);
            std::string const label = row.measured == "limit"  ? "limit: a step's bytes moved, nothing computed"
                                      : row.measured == "step" ? "adamant step()"
                                                               : row.measured;
            auto series = std::find_if(panel.series.begin(), panel.series.end(),
                                       [&](chart_series const& s) { return s.label == label; });
            if (series == panel.series.end())
                series = panel.series.insert(
                    panel.series.end(), {label, row.measured == "limit" ? mark_style::roof : mark_style::points, {}});
            series->points.push_back(point(row));
        }
        picture.panels.push_back(panel);
    }
    if (report.job && !report.job->rows.empty())
        picture.notes.push_back(grouped(report.params) + " params, " + report.job->rows.back().types + ", " +
                                plural(report.job->rows.back().ranks, "rank") + ": " + seconds(report.job->step_s) +
                                " a step" + (report.job->projected ? " (projected from what fits in memory)" : "") +
                                ", " + fixed(report.job->rows.back().percent_of_limit, 0) + "% of the limit");
    if (!picture.panels.empty()) {
        auto const [least, most] = std::minmax_element(
            report.rows.begin(), report.rows.end(), [](auto const& a, auto const& b) { return a.rounds < b.rounds; });
        picture.notes.push_back("medians, and bars from p10 to p90, of " +
                                (least->rounds == most->rounds ? "" : std::to_string(least->rounds) + " to ") +
                                std::to_string(most->rounds) + " rounds, all of them in one run");
    }
    if (is_above)
        picture.notes.push_back(
            "Points and bars above the roof: it is the median of the fastest loop that was tried, not of the fastest "
            "there could be, and what memory gives drifts from round to round by as much as the bars are long.");
    return picture;
}

} // namespace cli
