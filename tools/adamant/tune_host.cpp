// SPDX-License-Identifier: Apache-2.0
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

double seconds_since(std::chrono::steady_clock::time_point from)
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
}

// Spread evenly over all that there are, and the count that tuning without a host has found.
std::vector<unsigned> candidates(unsigned of, unsigned tuned)
{
    std::set<unsigned> all;
    unsigned const most = std::min(most_splits - 1, of - 1);
    for (unsigned i = 0; i < most; ++i)
        all.insert(most == 1 ? 1 : 1 + i * (of - 2) / (most - 1));
    all.insert(std::min(std::max(tuned, 1u), of - 1));
    return {all.begin(), all.end()};
}

struct split {
    rank_trials trials;
    pu_set host;
    split_time result;
    std::vector<double> both, step, host_s;
};

// Every PU of these cores that may be used, siblings too: a framework's threads are not one to a core.
pu_set whole_cores(machine const& on, pu_set const& pus)
{
    pu_set all;
    for (topology::core const& c : on.cores)
        if (c.pus.intersects(pus))
            all |= c.pus & on.allowed;
    return all;
}

pu_set host_of(machine const& on, core_request const& request, unsigned count, unsigned of)
{
    pu_set host;
    for (rank_cores const& r : adamant::detail::cores_for_trial(on, request, count, of))
        host |= count == of ? r.adam_pus | r.host_pus : r.host_pus;
    return whole_cores(on, host);
}

void measure(split& s, host_load& load)
{
    rank_trials::pause();
    auto const from = std::chrono::steady_clock::now();
    double step = 0;
    double const host = load.run(s.host, [&] { step = s.trials.seconds_now(); });
    s.both.push_back(seconds_since(from));
    s.step.push_back(step);
    s.host_s.push_back(host);
}

} // namespace

double expected_host_rounds(std::size_t rounds)
{
    return static_cast<double>(rounds + 1);
}

host_tuning tune_with_host(machine const& on, core_request const& request, shard_format const& format,
                           tuned_cores const& found, unsigned threads, std::size_t rounds, progress& bar)
{
    host_tuning result;
    result.threads = threads;
    if (found.of < 2)
        return result;
    std::vector<unsigned> const counts = candidates(found.of, found.cores);
    // All splits' arrays are there at once, so that rounds can go through them.
    std::size_t available = available_memory().bytes;
    for (unsigned const count : counts)
        for (rank_cores const& r : adamant::detail::cores_for_trial(on, request, count, found.of))
            available = std::min(available, available_memory(r.numa_nodes).bytes);
    auto const each_split = static_cast<double>(available / 3 / (counts.size() + 1));
    auto const room = static_cast<std::size_t>(each_split / memory_bytes(format.types));
    std::size_t const elements = std::max<std::size_t>(std::min(found.elements, room / request.ranks) / 64, 1) * 64;
    bar.about("arrays for " + std::to_string(counts.size() + 1) + " splits");
    std::list<split> splits;
    auto const add = [&](unsigned count, unsigned shown_as) {
        rank_trials const* const last = splits.empty() ? nullptr : &splits.back().trials;
        splits.push_back({{on, request, count, found.of, format, elements, isa::automatic, last},
                          host_of(on, request, count, found.of),
                          {},
                          {},
                          {},
                          {}});
        splits.back().result.cores = shown_as;
    };
    add(found.of, 0);
    for (unsigned const count : counts)
        add(count, count);

    host_load load(threads * request.ranks);
    pu_set const everywhere = splits.front().host;
    std::vector<double> alone;
    for (int i = 0; i < 5; ++i)
        alone.push_back(splits.front().trials.seconds());
    result.step_alone_s = median(alone);
    std::vector<double> turn; // of one, from enough of them to time
    for (int i = 0; i < 5; ++i) {
        load.set_turns(64);
        turn.push_back(load.run(everywhere, [] {}) / 64);
    }
    load.set_turns(std::max<std::size_t>(static_cast<std::size_t>(std::lround(result.step_alone_s / median(turn))), 1));
    result.turns = load.turns();
    std::vector<double> host_alone;
    for (int i = 0; i < 5; ++i)
        host_alone.push_back(load.run(everywhere, [] {}));
    result.host_alone_s = median(host_alone);

    bar.about("optimizer and " + std::to_string(threads) + " host threads concurrently");
    for (std::size_t round = 0; round <= rounds && !interruption::noted(); ++round) {
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
