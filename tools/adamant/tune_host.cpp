// SPDX-License-Identifier: Apache-2.0
// Definitions of tune_host.hpp.
#include "tune_host.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <list>
#include <set>

#include <adamant/tune.hpp>

#include "host_load.hpp"

namespace cli {

namespace {

using namespace adamant;
using adamant::detail::rank_trials;

constexpr unsigned most_splits = 7;

double seconds_since(std::chrono::steady_clock::time_point begin)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Core counts spread evenly from 1 to all but one, and the result of tuning without a host.
std::vector<unsigned> candidates(unsigned cores, unsigned tuned)
{
    std::set<unsigned> all;
    unsigned const most = std::min(most_splits - 1, cores - 1);
    for (unsigned i = 0; i < most; ++i)
        all.insert(most == 1 ? 1 : 1 + i * (cores - 2) / (most - 1));
    all.insert(std::min(std::max(tuned, 1u), cores - 1));
    return {all.begin(), all.end()};
}

struct split {
    rank_trials trials;
    pu_set host;
    split_time result;
    std::vector<double> both, step, host_s;
};

// All usable PUs of the cores of these PUs: a framework's threads run on siblings, too.
pu_set whole_cores(machine const& machine, pu_set const& pus)
{
    pu_set all;
    for (topology::core const& c : machine.cores)
        if (c.pus.intersects(pus))
            all |= c.pus & machine.allowed;
    return all;
}

pu_set host_of(machine const& machine, core_request const& request, unsigned count, unsigned cores)
{
    pu_set host;
    for (rank_cores const& r : adamant::detail::cores_for_trial(machine, request, count, cores))
        host |= count == cores ? r.adam_pus | r.host_pus : r.host_pus;
    return whole_cores(machine, host);
}

void measure(split& s, host_load& load)
{
    rank_trials::pause();
    auto const begin = std::chrono::steady_clock::now();
    double step = 0;
    double const host = load.run(s.host, [&] { step = s.trials.seconds_now(); });
    s.both.push_back(seconds_since(begin));
    s.step.push_back(step);
    s.host_s.push_back(host);
}

} // namespace

double expected_host_rounds(std::size_t rounds)
{
    return static_cast<double>(rounds + 1);
}

host_tuning tune_with_host(machine const& host, core_request const& request, shard_format const& format,
                           tuned_cores const& tuned, unsigned threads, std::size_t rounds, progress& bar)
{
    host_tuning result;
    result.threads = threads;
    if (tuned.available_cores < 2)
        return result;
    std::vector<unsigned> const counts = candidates(tuned.available_cores, tuned.cores);
    // Allocates the arrays of all splits together: each round uses all of them.
    std::size_t available = available_memory().bytes;
    for (unsigned const count : counts)
        for (rank_cores const& r : adamant::detail::cores_for_trial(host, request, count, tuned.available_cores))
            available = std::min(available, available_memory(r.numa_nodes).bytes);
    auto const split_bytes = static_cast<double>(available / 3 / (counts.size() + 1));
    auto const room = static_cast<std::size_t>(split_bytes / memory_bytes(format.types));
    std::size_t const elements = std::max<std::size_t>(std::min(tuned.elements, room / request.ranks) / 64, 1) * 64;
    bar.set_activity("arrays for " + std::to_string(counts.size() + 1) + " splits");
    std::list<split> splits;
    auto const add = [&](unsigned count, unsigned shown_as) {
        rank_trials const* const previous = splits.empty() ? nullptr : &splits.back().trials;
        splits.push_back({{host, request, count, tuned.available_cores, format, elements, isa::automatic, previous},
                          host_of(host, request, count, tuned.available_cores),
                          {},
                          {},
                          {},
                          {}});
        splits.back().result.cores = shown_as;
    };
    add(tuned.available_cores, 0);
    for (unsigned const count : counts)
        add(count, count);

    host_load load(threads * request.ranks);
    pu_set const all_pus = splits.front().host;
    std::vector<double> step_times;
    for (int i = 0; i < 5; ++i)
        step_times.push_back(splits.front().trials.seconds());
    result.step_alone_s = median(step_times);
    std::vector<double> iteration_times; // means over 64, which is enough to time
    for (int i = 0; i < 5; ++i) {
        load.set_iterations(64);
        iteration_times.push_back(load.run(all_pus, [] {}) / 64);
    }
    auto const iterations = static_cast<std::size_t>(std::lround(result.step_alone_s / median(iteration_times)));
    load.set_iterations(std::max<std::size_t>(iterations, 1));
    result.iterations = load.iterations();
    std::vector<double> host_alone;
    for (int i = 0; i < 5; ++i)
        host_alone.push_back(load.run(all_pus, [] {}));
    result.host_alone_s = median(host_alone);

    bar.set_activity("optimizer and " + std::to_string(threads) + " host threads concurrently");
    for (std::size_t round = 0; round <= rounds && !interruption::is_set(); ++round) {
        for (split& s : splits)
            measure(s, load);
        if (round == 0) // does not count
            for (split& s : splits) {
                s.both.clear();
                s.step.clear();
                s.host_s.clear();
            }
        bar.advance();
    }
    if (splits.front().both.empty())
        return result;
    std::vector<double> const& shared = splits.front().both;
    double best = 0;
    for (split& s : splits) {
        s.result.both_s = median(s.both);
        s.result.both_p10_s = quantile(s.both, 0.1);
        s.result.both_p90_s = quantile(s.both, 0.9);
        s.result.step_s = median(s.step);
        s.result.host_s = median(s.host_s);
        std::vector<double> gains;
        for (std::size_t i = 0; i < shared.size(); ++i)
            gains.push_back(shared[i] / s.both[i]);
        median_range const range = range_of_median(gains, 0.95);
        s.result.gain = median(gains);
        s.result.gain_low = range.low;
        s.result.gain_high = range.high;
        result.splits.push_back(s.result);
        if (s.result.cores != 0 && range.confidence >= 0.95 && range.low > 1 && (best == 0 || s.result.both_s < best)) {
            best = s.result.both_s;
            result.best = s.result.cores;
        }
    }
    return result;
}

} // namespace cli
