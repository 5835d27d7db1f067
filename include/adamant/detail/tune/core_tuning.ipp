// SPDX-License-Identifier: Apache-2.0
// Definitions of adamant/tune.hpp.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/error.hpp>
#include <adamant/executor.hpp>
#include <adamant/memory.hpp>
#include <adamant/tune.hpp>
#include <adamant/detail/core/default_mode.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

class core_tuner {
public:
    core_tuner(machine const& on, core_request const& request, shard_format const& format,
               core_tuning_options const& options)
        : on_(on), request_(request), format_(format), options_(options)
    {
        found_.key = tuning_key_of(on, request, format, options.tier);
        found_.of = cores_of_each_rank(on, request);
        found_.elements = options.elements != 0 ? options.elements : trial_elements(on, format, request.ranks);
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
        return trials_.emplace_front(on_, request_, count, found_.of, format_, found_.elements, options_.tier, last);
    }
    // After which counts there are more NUMA nodes, or more last caches, each of which has a way to memory of its own.
    [[nodiscard]] std::vector<unsigned> boundaries() const
    {
        std::vector<unsigned> all;
        std::size_t before = 0;
        for (unsigned count = 1; count <= found_.of; ++count) {
            rank_cores const cores = cores_for_trial(on_, request_, count, found_.of)[0];
            std::size_t ways = cores.numa_nodes.size();
            for (topology::cache const& c : on_.caches)
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
        // Beyond the quota all threads stop in each period, and nothing that is timed there holds.
        std::size_t const threads_of_core = cores_for_trial(on_, request_, 1, found_.of)[0].adam_pus.size();
        std::size_t const within = threads_within(on_.quota.cpus, request_.ranks, found_.of * threads_of_core);
        core_search_result result = search_cores(
            std::max(1u, static_cast<unsigned>(within / threads_of_core)),
            [&](unsigned count) { return told(trials(count).seconds(), count); }, [&] { return time_is_up(); }, search);
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
        for (std::uint32_t const ahead : {0u, 256u, 512u, 1024u, 2048u, 4096u, 8192u})
            if (ahead != default_prefetch_bytes())
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
    shard_format const& format_;
    core_tuning_options const& options_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    std::list<rank_trials> trials_; // of the two counts last used, the last one in front
    tuned_cores found_;
};

} // namespace detail

ADAMANT_DECL tuned_cores tune_cores(machine const& on, core_request const& request, shard_format const& format,
                                    core_tuning_options const& options)
{
    detail::default_mode_scope const mode;
    if (!(options.deadline_s > 0))
        detail::throw_invalid_argument({"the deadline is ", options.deadline_s, " seconds, but must be above 0"});
    if (!(options.settings_worth >= 0 && options.settings_worth < 1))
        detail::throw_invalid_argument(
            {"settings_worth is ", options.settings_worth, ", but must be a share of the time, from 0 to below 1"});
    return detail::core_tuner(on, request, format, options).run();
}

ADAMANT_END_NAMESPACE
