// SPDX-License-Identifier: Apache-2.0
// How many cores an optimizer needs on this machine, by steps that are taken and timed.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/exec/executor.hpp>
#include <adamant/exec/memory_limits.hpp>
#include <adamant/topology/selection.hpp>
#include <adamant/tune/core_search.hpp>
#include <adamant/tune/trial_step.hpp>
#include <adamant/tune/tuned_cores.hpp>

ADAMANT_BEGIN_NAMESPACE

struct core_tuning_options {
    double deadline_s = 60; // for all of it; then what is known is the answer, and says that it is not finished
    // Of each rank's arrays. 0: some eight times what the machine's last caches hold, as a model's are never in cache,
    // or what a quarter of the available memory holds, if that is less.
    std::size_t elements = 0;
    isa tier = isa::automatic;
    core_search_options search = {}; // its boundaries come from the machine
    bool settings = true;            // whether other settings of the executor are tried on the cores found
    double settings_worth = 0.03;    // by which share another setting has to be faster to be taken
    // If not empty: called after each timed step, with the count of cores that it was on and its time; what it throws
    // ends the tuning.
    std::function<void(unsigned cores, double seconds)> on_step = {};
};

namespace detail {

// How many of the machine's cores have a PU in the set.
inline unsigned cores_in(machine const& on, pu_set const& pus)
{
    unsigned count = 0;
    for (core const& c : on.cores)
        count += c.pus.intersects(pus);
    return count;
}

// The PUs of each rank's optimizer with `count` cores of the `of` that a rank has. Selection keeps one for the host;
// here all may be had.
inline std::vector<rank_cores> cores_for_trial(machine const& on, core_request request, unsigned count, unsigned of)
{
    request.cpuadam_cores_perc.reset();
    request.pt_reserved_cores.reset();
    request.pt_reserved_cores_perc.reset();
    request.cpuadam_cores = std::max(1u, std::min(count, of - 1));
    std::vector<rank_cores> ranks = select_cores(on, request);
    for (rank_cores& r : ranks)
        for (core const& c : on.cores)
            if (c.pus.intersects(r.host_pus) && cores_in(on, r.adam_pus) < count) {
                r.adam_pus |= c.pus & r.host_pus;
                r.host_pus = r.host_pus - c.pus;
                if (c.node < on.nodes.size() && on.nodes[c.node].allowed && !r.numa_nodes.empty())
                    r.numa_nodes.insert(on.nodes[c.node].os_index);
            }
    return ranks;
}

// As many as every rank has.
inline unsigned cores_of_each_rank(machine const& on, core_request request)
{
    request.cpuadam_cores_perc = 1;
    request.cpuadam_cores.reset();
    request.pt_reserved_cores.reset();
    request.pt_reserved_cores_perc.reset();
    unsigned least = 0;
    for (rank_cores const& r : select_cores(on, request)) {
        unsigned const count = cores_in(on, r.adam_pus | r.host_pus);
        least = least == 0 ? count : std::min(least, count);
    }
    return least;
}

inline std::size_t trial_elements(machine const& on, trial_types const& types, unsigned ranks)
{
    std::size_t cached = std::size_t{32} << 20;
    for (cache const& c : on.caches)
        cached += c.level == 3 ? c.bytes : 0;
    std::size_t const each = types.memory_per_element() * ranks;
    // Two sets of arrays are there at once, of the counts that are compared.
    std::size_t const most = available_memory().bytes / 4 / 2 / each;
    std::size_t const wanted = 8 * cached / each;
    return std::max<std::size_t>(std::min(wanted, most) / slice_granule_elems, 1) * slice_granule_elems;
}

// Every rank's team and arrays on so many cores.
class rank_trials {
public:
    // like: null, or another one, whose arrays are used again where they lie as they would here: each rank's in one
    // node.
    rank_trials(machine const& on, core_request const& request, unsigned count, unsigned of, trial_types const& types,
                std::size_t elements, isa tier, rank_trials const* like = nullptr)
        : count_(count)
    {
        std::vector<rank_cores> const ranks = cores_for_trial(on, request, count, of);
        bool in_one = true;
        for (rank_cores const& r : ranks) {
            nodes_.push_back(r.numa_nodes);
            in_one = in_one && r.numa_nodes.size() == 1;
            executors_.emplace_back(std::make_shared<team>(team_options{.pus = r.adam_pus}),
                                    executor_options{.tier = tier});
        }
        if (like != nullptr && in_one && nodes_ == like->nodes_) {
            steps_ = like->steps_;
        } else {
            steps_ = std::make_shared<std::vector<trial_step>>();
            for (std::size_t r = 0; r < ranks.size(); ++r)
                steps_->emplace_back(executors_[r], types, elements, memory_options{.nodes = nodes_[r]});
        }
        for (int i = 0; i < 2; ++i) // what happens only once: the kernel makes up its mind about pages
            seconds();
    }
    [[nodiscard]] unsigned count() const noexcept { return count_; }

    // From when all ranks begin until the last one is through.
    double seconds() { return seconds(executors_); }
    // With other settings of the executors, on the same teams.
    double seconds(executor_options const& settings)
    {
        std::vector<executor> changed;
        for (executor const& cpu : executors_)
            changed.emplace_back(cpu.team(), settings);
        return seconds(changed);
    }
    // At once, for who has paused before.
    double seconds_now() { return seconds_now(executors_); }
    // Threads of other teams that were busy before spin for a while, and then sleep.
    static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

private:
    double seconds(std::vector<executor> const& on)
    {
        pause();
        return seconds_now(on);
    }
    double seconds_now(std::vector<executor> const& on)
    {
        using clock = std::chrono::steady_clock;
        if (on.size() == 1)
            return (*steps_)[0].seconds(on[0]);
        std::barrier<> line(static_cast<std::ptrdiff_t>(on.size()));
        // Each rank notes its own times: a thread that only watched might itself have to wait for a PU.
        std::vector<clock::time_point> begin(on.size());
        std::vector<clock::time_point> end(on.size());
        {
            std::vector<std::jthread> ranks;
            for (std::size_t r = 0; r < on.size(); ++r)
                ranks.emplace_back([&, r] {
                    line.arrive_and_wait();
                    begin[r] = clock::now();
                    (*steps_)[r].seconds(on[r]);
                    end[r] = clock::now();
                });
        }
        return std::chrono::duration<double>(*std::max_element(end.begin(), end.end()) -
                                             *std::min_element(begin.begin(), begin.end()))
            .count();
    }

    unsigned count_;
    std::vector<node_set> nodes_;
    std::vector<executor> executors_;
    std::shared_ptr<std::vector<trial_step>> steps_;
};

class core_tuner {
public:
    core_tuner(machine const& on, core_request const& request, trial_types const& types,
               core_tuning_options const& options)
        : on_(on), request_(request), types_(types), options_(options)
    {
        found_.key = tuning_key_of(on, request, types, options.tier);
        found_.of = cores_of_each_rank(on, request);
        found_.elements = options.elements != 0 ? options.elements : trial_elements(on, types, request.ranks);
    }

    tuned_cores run()
    {
        find_count();
        if (options_.settings)
            try_settings();
        return std::move(found_);
    }

private:
    [[nodiscard]] bool time_is_up() const
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count() > options_.deadline_s;
    }
    double told(double seconds, unsigned count) const
    {
        if (options_.on_step)
            options_.on_step(count, seconds);
        return seconds;
    }
    rank_trials& trials(unsigned count)
    {
        auto const there =
            std::find_if(trials_.begin(), trials_.end(), [&](auto const& t) { return t.count() == count; });
        if (there != trials_.end()) {
            trials_.splice(trials_.begin(), trials_, there);
            return trials_.front();
        }
        if (trials_.size() == 2)
            trials_.pop_back();
        rank_trials const* const last = trials_.empty() ? nullptr : &trials_.front();
        return trials_.emplace_front(on_, request_, count, found_.of, types_, found_.elements, options_.tier, last);
    }
    // After which counts there are more NUMA nodes, or more last caches, each of which has a way to memory of its own.
    [[nodiscard]] std::vector<unsigned> boundaries() const
    {
        std::vector<unsigned> all;
        std::size_t before = 0;
        for (unsigned count = 1; count <= found_.of; ++count) {
            rank_cores const cores = cores_for_trial(on_, request_, count, found_.of)[0];
            std::size_t ways = cores.numa_nodes.size();
            for (cache const& c : on_.caches)
                ways += c.level == 3 && c.pus.intersects(cores.adam_pus);
            if (count > 1 && ways > before)
                all.push_back(count - 1);
            before = ways;
        }
        return all;
    }
    void find_count()
    {
        core_search_options search = options_.search;
        search.boundaries = boundaries();
        core_search_result result = search_cores(
            found_.of, [&](unsigned count) { return told(trials(count).seconds(), count); },
            [&] { return time_is_up(); }, search);
        found_.cores = result.cores;
        found_.finished = result.finished;
        found_.curve = std::move(result.curve);
        found_.cpuadam_cores_perc = static_cast<double>(found_.cores) / found_.of;
        for (core_time const& at : found_.curve)
            if (at.cores == found_.cores)
                found_.step_s = at.median_s;
    }

    // On the cores that were found, each round with every setting and the defaults, as the machine drifts.
    void try_settings()
    {
        std::vector<executor_options> settings;
        for (std::size_t const most : {std::size_t{8192}, std::size_t{16384}, std::size_t{262144}})
            settings.push_back({.tier = options_.tier, .max_chunk_elems = most});
        std::size_t const of_chunks = settings.size();
        for (std::uint32_t const ahead : {0u, 512u, 1024u, 4096u, 8192u})
            settings.push_back({.tier = options_.tier, .prefetch_bytes = ahead});
        std::vector<std::vector<double>> ratios(settings.size());
        std::vector<double> usual;
        while (usual.size() < options_.search.most_rounds && !time_is_up()) {
            usual.push_back(step_with({.tier = options_.tier}));
            for (std::size_t i = 0; i < settings.size(); ++i)
                ratios[i].push_back(step_with(settings[i]) / usual.back());
        }
        if (usual.size() < options_.search.rounds)
            return;
        for (std::size_t i = 0; i < settings.size(); ++i) {
            bool const chunk = i < of_chunks;
            median_range const range = range_of_median(ratios[i], options_.search.confidence);
            bool const known = range.confidence >= options_.search.confidence;
            found_.tried.push_back({chunk ? "max_chunk_elems" : "prefetch_bytes",
                                    chunk ? settings[i].max_chunk_elems : settings[i].prefetch_bytes, median(ratios[i]),
                                    known ? range.low : 0, known ? range.high : std::numeric_limits<double>::max()});
        }
        tuned_cores const before = found_;
        if (tried_setting const* const best = fastest("max_chunk_elems"))
            found_.max_chunk_elems = best->value;
        if (tried_setting const* const best = fastest("prefetch_bytes"))
            found_.prefetch_bytes = static_cast<std::uint32_t>(best->value);
        executor_options chosen = found_.options();
        chosen.tier = options_.tier;
        if (chosen.max_chunk_elems == before.max_chunk_elems && chosen.prefetch_bytes == before.prefetch_bytes)
            return;
        std::vector<double> gains; // both at once, which need not add up
        std::vector<double> together;
        for (std::size_t i = 0; i < options_.search.rounds; ++i) {
            together.push_back(step_with(chosen));
            gains.push_back(together.back() / step_with({.tier = options_.tier}));
        }
        if (median(gains) < 1) {
            found_.step_s = median(together);
        } else {
            found_.max_chunk_elems = before.max_chunk_elems;
            found_.prefetch_bytes = before.prefetch_bytes;
        }
    }
    double step_with(executor_options const& settings)
    {
        return told(trials(found_.cores).seconds(settings), found_.cores);
    }
    // Of those of this name that are surely faster by enough; null where none is.
    [[nodiscard]] tried_setting const* fastest(std::string_view name) const
    {
        tried_setting const* best = nullptr;
        for (tried_setting const& t : found_.tried)
            if (t.name == name && t.high <= 1 - options_.settings_worth &&
                (best == nullptr || t.time_ratio < best->time_ratio))
                best = &t;
        return best;
    }

    machine const& on_;
    core_request const& request_;
    trial_types const& types_;
    core_tuning_options const& options_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    std::list<rank_trials> trials_; // of the two counts last used, the last one in front
    tuned_cores found_;
};

} // namespace detail

// Grows the number of cores that each of the request's ranks has for its optimizer, as select_cores() would give them,
// all ranks stepping at once, in this process, until more are not worth having; and then tries what other chunks and
// prefetching bring on those. The request's own size does not matter. Takes up to a quarter of the available memory,
// and both the cores and the memory bandwidth of the machine: nothing else should run. For set-up, on one thread.
// Throws invalid_argument for options that cannot be, and what select_cores(), team, memory_block and options.on_step
// throw.
[[nodiscard]] inline tuned_cores tune_cores(machine const& on, core_request const& request, trial_types const& types,
                                            core_tuning_options const& options = {})
{
    if (!(options.deadline_s > 0))
        throw invalid_argument("adamant: the deadline is " + detail::text(options.deadline_s) +
                               " seconds, but must be above 0");
    if (!(options.settings_worth >= 0 && options.settings_worth < 1))
        throw invalid_argument("adamant: settings_worth is " + detail::text(options.settings_worth) +
                               ", but it is a share of the time, from 0 to below 1");
    return detail::core_tuner(on, request, types, options).run();
}

ADAMANT_END_NAMESPACE
