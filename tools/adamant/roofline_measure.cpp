// SPDX-License-Identifier: Apache-2.0
// Definitions of roofline_measure.hpp.
#include "roofline_measure.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include <adamant/executor.hpp>
#include <adamant/memory.hpp>
#include <adamant/tune.hpp>

namespace cli {

namespace {

using namespace adamant;

constexpr std::size_t trial_rounds = 2; // to find the fastest loops

std::size_t elements_for(std::size_t bytes, double elem_bytes)
{
    auto const elems = static_cast<std::size_t>(static_cast<double>(bytes) / elem_bytes);
    return std::max<std::size_t>(elems / 4096, 1) * 4096;
}

roofline_row row_of(roofline_row row, std::vector<double> const& times)
{
    double const to_ns = 1e9 / static_cast<double>(row.elements);
    row.rounds = times.size();
    row.ns_per_element = median(times) * to_ns;
    row.ns_p10 = quantile(times, 0.1) * to_ns;
    row.ns_p90 = quantile(times, 0.9) * to_ns;
    return row;
}

executor executor_on(pu_set const& pus)
{
    return executor(std::make_shared<team>(team_options{.pus = pus}));
}

void measure_read_and_copy(executor const& cpu, roofline_row const& common, roofline_options const& options,
                           memory_options const& memory, progress& bar, std::vector<roofline_row>& rows)
{
    shard_format const& format = step_format<float, float, float, float, void>();
    std::size_t const n = elements_for(options.bytes, memory_bytes(format.types) + 4);
    bar.set_activity("read and copy");
    trial_step arrays(cpu, format, n, memory);
    buffer<float> copy(n, memory);
    cpu.for_each_owned_slice(n, [&](slice part) { copy.touch(part.begin, part.end); });
    auto* const target = reinterpret_cast<std::byte*>(copy.data());
    std::vector<timed_work> all;
    all.push_back({[&] { return read_seconds(cpu, arrays); }});
    all.push_back({[&] { return copy_seconds(cpu, arrays, target); }});
    run_rounds(all, options.rounds, bar);
    if (all[1].times.empty())
        return;
    roofline_row row = common;
    row.elements = n;
    row.measured = "read";
    row.bytes_per_element = read_bytes_per_element(format.types);
    rows.push_back(row_of(row, all[0].times));
    row.measured = "copy";
    row.bytes_per_element = 8;
    row.note = "memcpy";
    rows.push_back(row_of(row, all[1].times));
}

} // namespace

void run_rounds(std::vector<timed_work>& all, std::size_t rounds, progress& bar)
{
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::minstd_rand random;
    for (std::size_t round = 0; round <= rounds && !interruption::is_set(); ++round) {
        std::shuffle(order.begin(), order.end(), random); // so that the caches' content varies
        for (std::size_t const k : order) {
            double const seconds = all[k].seconds();
            if (round != 0)
                all[k].times.push_back(seconds);
        }
        bar.advance();
    }
}

std::vector<roofline_row> rows_of(roofline_row const& common, std::vector<double> const& step,
                                  std::vector<timed_work> const& limits, std::vector<limit_loop> const& loops)
{
    if (step.empty())
        return {};
    std::size_t best = 0;
    for (std::size_t k = 1; k < limits.size(); ++k)
        if (median(limits[k].times) < median(limits[best].times))
            best = k;
    roofline_row row = common;
    row.measured = "limit";
    row.note = loops[best].name;
    row.isa.clear();
    roofline_row const limit = row_of(row, limits[best].times);
    row.measured = "step";
    row.note.clear();
    row.isa = common.isa;
    row = row_of(row, step);
    std::vector<double> percents;
    for (std::size_t i = 0; i < step.size(); ++i)
        percents.push_back(100 * limits[best].times[i] / step[i]);
    row.percent_of_limit = median(percents);
    row.percent_p10 = quantile(percents, 0.1);
    row.percent_p90 = quantile(percents, 0.9);
    return {limit, row};
}

double expected_rounds(roofline_options const& options)
{
    return static_cast<double>(options.rounds + 1) +
           static_cast<double>(options.types.size() * (trial_rounds + 1 + options.rounds + 1));
}

void measure_cores(roofline_cores const& target, roofline_options const& options, progress& bar,
                   std::vector<roofline_row>& rows, std::vector<std::vector<limit_loop>>& best_loops)
{
    executor const cpu = executor_on(target.pus);
    memory_options const memory{.nodes = target.nodes};
    roofline_row common;
    common.threads = cpu.threads();
    common.pus = to_list(target.pus);
    common.node = to_list(target.nodes);
    measure_read_and_copy(cpu, common, options, memory, bar, rows);
    best_loops.resize(options.types.size());
    for (std::size_t t = 0; t < options.types.size() && !interruption::is_set(); ++t) {
        named_types const& chosen = options.types[t];
        std::size_t const n = elements_for(options.bytes, memory_bytes(chosen.format->types));
        bar.set_activity(chosen.name + " on " + std::to_string(cpu.threads()) +
                         (cpu.threads() == 1 ? " core" : " cores"));
        trial_step arrays(cpu, *chosen.format, n, memory);
        std::vector<limit_loop> loops = limit_loops(chosen.format->types);
        auto const make_work = [&](limit_loop const& loop) {
            return timed_work{[&] { return limit_seconds(loop, cpu, arrays); }};
        };
        std::vector<timed_work> trial;
        for (limit_loop const& loop : loops)
            trial.push_back(make_work(loop));
        run_rounds(trial, trial_rounds, bar);
        if (trial.back().times.empty())
            return;
        // Keeps the fastest loop of each kind of stores: the fastest kind may depend on the number of cores.
        std::map<std::string, std::size_t> fastest;
        for (std::size_t k = 0; k < loops.size(); ++k) {
            auto const [best, is_new] = fastest.emplace(loops[k].stores, k);
            if (!is_new && median(trial[k].times) < median(trial[best->second].times))
                best->second = k;
        }
        std::vector<limit_loop> fastest_loops;
        for (auto const& [stores, k] : fastest)
            fastest_loops.push_back(loops[k]);
        std::vector<timed_work> all;
        for (limit_loop const& loop : fastest_loops)
            all.push_back(make_work(loop));
        all.push_back({[&] { return arrays.seconds(cpu); }});
        run_rounds(all, options.rounds, bar);
        common.types = chosen.name;
        common.elements = n;
        common.bytes_per_element = step_bytes(chosen.format->types);
        common.isa = name(cpu.tier());
        std::vector<double> const step = all.back().times;
        all.pop_back();
        for (roofline_row const& row : rows_of(common, step, all, fastest_loops))
            rows.push_back(row);
        best_loops[t] = fastest_loops;
    }
}

} // namespace cli
