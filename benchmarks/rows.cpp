// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <map>
#include <string_view>
#include <utility>

#include <adamant/reference.hpp>
#include <adamant/tune.hpp>

namespace bench {

using adamant::median;
using adamant::quantile;
using benchmark::State;
using race::contender;
using race::part_in_race;

std::size_t elements_for(double bytes, double bytes_each)
{
    constexpr std::size_t unit = 64 * adamant::norm_block_elems;
    auto const least = static_cast<std::size_t>(std::ceil(bytes / bytes_each));
    return (least + unit - 1) / unit * unit;
}

std::vector<std::size_t> sizes(options const& chosen, double bytes_each)
{
    std::size_t const out_of_cache = elements_for(chosen.bytes, bytes_each);
    std::vector<std::size_t> all;
    for (std::size_t const n : {std::size_t{4096}, std::size_t{65536}, std::size_t{1} << 20, std::size_t{1} << 24})
        if (chosen.quick ? n == 65536 : 2 * n <= out_of_cache) // else it would say the same
            all.push_back(n);
    all.push_back(out_of_cache);
    return all;
}

std::int64_t rounds_for(options const& chosen, std::size_t elems)
{
    return chosen.rounds * (elems <= 65536 ? 10 : elems <= std::size_t{1} << 22 ? 4 : 1);
}

int repeats_for(std::size_t elems)
{
    return static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 21) / elems, 1, 1000));
}

bool uses_all_threads(adamant::executor const& cpu, std::size_t elems, std::size_t elem_bytes)
{
    return cpu.chunks(elems, elem_bytes).threads == cpu.threads();
}

std::string row_name(adamant::executor const& cpu, std::size_t elems)
{
    return "elems:" + std::to_string(elems) + "/threads:" + std::to_string(cpu.threads());
}

void require(bool condition, char const* what)
{
    if (!condition)
        throw std::runtime_error(std::string("this row does not measure what it says: ") + what);
}

namespace {

bool skipped = false;

struct line {
    std::string row;
    std::map<std::string, double> values; // counters
    std::string note;
};
std::vector<line> lines;
std::string current_row;

// Of those of one name the one with the smallest median.
struct best_of_name {
    std::string name;
    contender const* best;
};

std::vector<best_of_name> best_of(std::vector<contender> const& all, part_in_race part)
{
    std::vector<best_of_name> found;
    for (contender const& c : all) {
        if (c.part != part)
            continue;
        auto const same = std::find_if(found.begin(), found.end(), [&](auto const& f) { return f.name == c.name; });
        if (same == found.end())
            found.push_back({c.name, &c});
        else if (median(c.seconds) < median(same->best->seconds))
            same->best = &c;
    }
    return found;
}

std::vector<double> ratios(std::vector<double> const& over, std::vector<double> const& under)
{
    std::vector<double> all;
    for (std::size_t i = 0; i < over.size(); ++i)
        all.push_back(over[i] / under[i]);
    return all;
}

void count_ratios(State& state, std::string const& name, std::vector<double> const& all)
{
    state.counters[name] = median(all);
    state.counters[name + "_p10"] = quantile(all, 0.1);
    state.counters[name + "_p90"] = quantile(all, 0.9);
}

} // namespace

void add_row(std::string const& name, std::int64_t rounds, std::function<void(State&)> const& body)
{
    auto const run = [name, body](State& state) {
        current_row = name;
        try {
            body(state);
        } catch (std::exception const& error) {
            skipped = true;
            state.SkipWithError(error.what());
        }
    };
    benchmark::RegisterBenchmark(name.c_str(), run)->Iterations(rounds)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

bool any_skipped()
{
    return skipped;
}

void report(State& state, std::vector<contender> const& contenders, amount const& moved, std::string const& note)
{
    for (contender const& c : contenders)
        if (c.seconds.empty())
            return; // the row was stopped
    contender const& subject = *best_of(contenders, part_in_race::subject).front().best;
    double const time = median(subject.seconds);
    state.counters["time_us"] = time * 1e6;
    if (moved.elems != 0)
        state.counters["ns_per_elem"] = time * 1e9 / moved.elems;
    if (moved.bytes != 0)
        state.counters["GB/s"] = moved.bytes / time * 1e-9;

    std::vector<double> limit(subject.seconds.size(), 0);
    best_of_name slowest{"", nullptr};
    for (best_of_name const& of : best_of(contenders, part_in_race::limit)) {
        for (std::size_t i = 0; i < limit.size(); ++i)
            limit[i] = std::max(limit[i], of.best->seconds[i]);
        if (slowest.best == nullptr || median(of.best->seconds) > median(slowest.best->seconds))
            slowest = of;
    }
    std::vector<double> const over_limit = ratios(subject.seconds, limit);
    count_ratios(state, "ratio", over_limit);
    state.counters["percent_of_limit"] = 100 / median(over_limit);
    state.counters["limit_us"] = median(limit) * 1e6;
    if (moved.elems != 0)
        state.counters["limit_ns_per_elem"] = median(limit) * 1e9 / moved.elems;

    for (best_of_name const& aside : best_of(contenders, part_in_race::aside))
        count_ratios(state, "over_" + aside.name, ratios(subject.seconds, aside.best->seconds));

    std::string const variant = slowest.best->variant;
    std::string const label =
        slowest.name + (variant.empty() ? "" : ", ") + variant + (note.empty() ? "" : "; ") + note;
    state.SetLabel(label);
    line result{current_row, {}, label};
    for (auto const& [name, counter] : state.counters)
        result.values[name] = counter.value;
    lines.push_back(std::move(result));
}

void print_table(std::FILE* to)
{
    if (lines.empty())
        return;
    std::fprintf(to,
                 "\nMedians; ratios are taken within a round. ratio: the time over the limit's, which the last "
                 "column names. over X: the time over that of X.\n\n"
                 "%-58s %10s %9s %8s %7s %7s %7s %7s  %s\n",
                 "row", "time, us", "ns/elem", "GB/s", "% limit", "ratio", "p10", "p90", "over others; the limit");
    for (line const& l : lines) {
        auto const number = [&](char const* name, int width, int digits) {
            auto const found = l.values.find(name);
            if (found == l.values.end())
                std::fprintf(to, " %*s", width, "");
            else
                std::fprintf(to, " %*.*f", width, digits, found->second);
        };
        std::fprintf(to, "%-58s", l.row.c_str());
        number("time_us", 10, 2);
        number("ns_per_elem", 9, 4);
        number("GB/s", 8, 2);
        number("percent_of_limit", 7, 1);
        number("ratio", 7, 3);
        number("ratio_p10", 7, 3);
        number("ratio_p90", 7, 3);
        std::fprintf(to, "  ");
        for (auto const& [name, value] : l.values)
            if (name.starts_with("over_") && !name.ends_with("_p10") && !name.ends_with("_p90"))
                std::fprintf(to, "over %s %.3f; ", name.c_str() + 5, value);
        std::fprintf(to, "%s\n", l.note.c_str());
    }
}

} // namespace bench
