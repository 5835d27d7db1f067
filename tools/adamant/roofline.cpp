// SPDX-License-Identifier: Apache-2.0
// `adamant roofline`: the memory limit of this machine for an optimizer step, and how near real steps come to it.

#include "roofline.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/memory.hpp>
#include <adamant/tune.hpp>

#include "cores_text.hpp"
#include "output_file.hpp"
#include "plan_numbers.hpp"
#include "roofline_report.hpp"
#include "surroundings.hpp"

namespace cli {

namespace {

using namespace adamant;

struct request {
    std::size_t params;
    unsigned ranks;
    std::optional<double> perc;
    std::vector<unsigned> threads;
    roofline_options measure;
    bool job;
    std::string note; // on an option that is limited
    std::string json, csv, plot;
};

std::vector<unsigned> counts(std::string const& text, unsigned most)
{
    std::vector<unsigned> all;
    if (text.empty()) {
        for (unsigned n = 1; n < most; n *= 2)
            all.push_back(n);
        all.push_back(most);
        return all;
    }
    for (std::size_t begin = 0; begin <= text.size();) {
        std::size_t const end = std::min(text.find(',', begin), text.size());
        double const n = plain_number("--threads", text.substr(begin, end - begin), 1, most,
                                      "numbers of cores from 1 to " + std::to_string(most) + ", with commas");
        if (n != std::floor(n))
            throw usage_error("--threads is '" + text + "', but must be whole numbers of cores, with commas");
        all.push_back(static_cast<unsigned>(n));
        begin = end + 1;
    }
    std::sort(all.begin(), all.end());
    all.erase(std::unique(all.begin(), all.end()), all.end());
    return all;
}

request read_request(arguments& options, machine const& host, unsigned cores)
{
    request r;
    r.params = element_count("--params", options.value("--params", "3085938688"));
    r.ranks = options.number("--ranks", 1, 1, static_cast<unsigned>(host.cores.size()));
    if (std::optional<std::string> const text = options.value("--perc"))
        if (double const perc = share("--perc", *text, 1e-9,
                                      "a share of a rank's cores, above 0 and at most 1, such as 0.8 or 80%");
            perc < 1) // all cores are the default
            r.perc = perc;
    if (r.params < r.ranks * std::size_t{4096})
        throw usage_error("--params is " + grouped(r.params) + ", but a rank has 4,096 at the least");
    r.measure.types = parse_types(options.value("--dtypes", "mixed,f32,bf16_f32,bf16"));
    for (named_types const& types : r.measure.types)
        static_cast<void>(limit_loops(types.format->types)); // throws if there is none
    r.threads = counts(options.value("--threads", ""), cores);
    r.measure.bytes = byte_count("--bytes", options.value("--bytes", "2.25GB"));
    if (std::size_t const most = available_memory().bytes / 3; r.measure.bytes > most) {
        r.note = "arrays: " + size_text(r.measure.bytes) +
                 " are asked for, but of the available memory a third is taken, " + size_text(most);
        r.measure.bytes = most;
    }
    r.measure.rounds = options.number("--rounds", 9, 1, 999);
    r.job = !options.flag("--no-job");
    r.json = options.value("--json", "");
    r.csv = options.value("--csv", "", "-");
    r.plot = options.value("--plot", "");
    if (!r.plot.empty())
        check_picture(r.plot);
    options.check_empty();
    return r;
}

std::string clock_text(double before, double after)
{
    std::string const governor = clock_governor();
    if (before == 0)
        return governor.empty() ? "clock: not known" : "clock: governor " + governor;
    return "clock: " + fixed(before, 2) + " GHz before, " + fixed(after, 2) + " GHz after" +
           (governor.empty() ? "" : ", governor " + governor);
}

// The nodes that have cores; empty if there is only one.
std::vector<roofline_cores> node_cores(machine const& host)
{
    std::vector<roofline_cores> all;
    for (unsigned n = 0; n < host.nodes.size(); ++n) {
        roofline_cores target;
        for (topology::core const& c : host.cores)
            if (c.node == n && c.pus.intersects(host.allowed))
                target.pus.insert((c.pus & host.allowed).front());
        if (!target.pus.empty() && host.nodes[n].allowed) {
            target.nodes.insert(host.nodes[n].os_index);
            all.push_back(target);
        }
    }
    if (all.size() < 2)
        all.clear();
    return all;
}

void refuse_two_streams(output_file const& json, output_file const& csv)
{
    if (json.is_stdout() && csv.is_stdout())
        throw usage_error("--json and --csv are both to go to stdout; give one of them a file");
}

// Shows an earlier measurement.
int show(arguments& options, std::string const& path)
{
    std::string const csv_path = options.value("--csv", "", "-");
    std::string const picture_path = options.value("--plot", "");
    output_file json(options.value("--json", ""));
    options.check_empty("beside --from, which measures nothing");
    if (!picture_path.empty())
        check_picture(picture_path);
    output_file csv(csv_path);
    refuse_two_streams(json, csv);
    output_file picture(picture_path);
    roofline_report const report = read_run(path);
    if (!csv.is_stdout() && !json.is_stdout())
        std::fputs(to_text(report).c_str(), stdout);
    json.write(to_json(report));
    csv.write(to_csv(report));
    if (!picture_path.empty())
        picture.write(draw_chart(picture_path, picture_of(report)));
    return 0;
}

} // namespace

int roofline(arguments& options)
{
    if (std::optional<std::string> const path = options.value("--from"))
        return show(options, *path);
    machine const host = machine_of();
    core_request single;
    unsigned const cores = adamant::detail::cores_of_each_rank(host, single);
    request const r = read_request(options, host, cores);
    core_request all_ranks;
    all_ranks.ranks = r.ranks;
    job_request job;
    job.params = r.params;
    job.rounds = r.measure.rounds;
    job.types = r.measure.types.front();
    if (r.perc) {
        all_ranks.cpuadam_cores_perc = r.perc;
        job.ranks = select_cores(host, all_ranks);
    } else {
        unsigned const rank_cores = adamant::detail::cores_of_each_rank(host, all_ranks);
        job.ranks = adamant::detail::cores_for_trial(host, all_ranks, rank_cores, rank_cores);
    }

    output_file json(r.json); // opened before the measurement, which takes long
    output_file csv(r.csv);
    refuse_two_streams(json, csv);
    output_file picture(r.plot);
    roofline_report report;
    report.machine = describe(host);
    report.date = date_and_time();
    report.params = r.params;
    interruption const interrupt;
    other_load const others;
    double const clock_before = measured_clock_ghz();
    bool job_failed = false;
    if (!r.note.empty())
        report.notes.push_back(r.note);
    {
        std::vector<roofline_cores> const nodes = node_cores(host);
        roofline_options node_options = r.measure;
        node_options.types.resize(1, r.measure.types.front());
        progress bar(expected_rounds(r.measure) * static_cast<double>(r.threads.size()) +
                     expected_rounds(node_options) * static_cast<double>(nodes.size()) +
                     (r.job ? expected_rounds(job) : 0));
        std::vector<std::vector<limit_loop>> best;
        std::vector<std::vector<limit_loop>> best_on_node;
        for (unsigned const count : r.threads)
            if (!interruption::is_set())
                measure_cores({adamant::detail::cores_for_trial(host, single, count, cores)[0].adam_pus, {}}, r.measure,
                              bar, report.rows, best);
        for (roofline_cores const& node : nodes)
            if (!interruption::is_set())
                measure_cores(node, node_options, bar, report.rows, best_on_node);
        if (r.job && !interruption::is_set() && !best.empty()) {
            job.loops = best.front();
            try {
                report.job = run_job(job, bar);
            } catch (adamant::unavailable const& error) { // the other measurements are still reported
                report.warnings.push_back(std::string("the whole job has failed: ") + error.what());
                job_failed = true;
            }
        }
    }
    report.interrupted = interruption::is_set();
    report.notes.push_back(clock_text(clock_before, measured_clock_ghz()));
    report.notes.push_back(
        "huge pages: the kernel says \"" + huge_page_state() + "\"" +
        (report.job ? "; " + fixed(100 * report.job->huge_share, 0) + "% of the job's arrays lie in them" : ""));
    add_others(report, others.share());
    std::size_t last_caches = 0;
    for (topology::cache const& c : host.caches)
        last_caches += c.level == 3 ? c.bytes : 0;
    auto const warn_about_cache = [&](std::string const& subject, std::size_t bytes, char const* option) {
        if (bytes < 4 * last_caches)
            report.warnings.push_back(subject + " of " + size_text(bytes) + " lie in part in the last caches (" +
                                      size_text(last_caches) + "): this is not the limit of memory; give more " +
                                      option);
    };
    warn_about_cache("arrays", r.measure.bytes, "--bytes");
    if (report.job)
        warn_about_cache("the job's arrays", memory_bytes(job.types.format->types, report.job->params_measured),
                         "--params");
    if (!csv.is_stdout() && !json.is_stdout())
        std::fputs(to_text(report).c_str(), stdout);
    json.write(to_json(report));
    csv.write(to_csv(report));
    if (!r.plot.empty())
        picture.write(draw_chart(r.plot, picture_of(report)));
    return report.interrupted ? interruption::status() : job_failed ? 2 : 0;
}

} // namespace cli
