// SPDX-License-Identifier: Apache-2.0
// Definition of tune_cores() of adamant/tune.hpp.
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
    core_tuner(machine const& host, core_request const& request, shard_format const& format,
               core_tuning_options const& options)
        : host_(host), request_(request), format_(format), options_(options)
    {
        result_.key = tuning_key_of(host, request, format, options.tier);
        result_.available_cores = cores_of_each_rank(host, request);
        result_.elements = options.elements != 0 ? options.elements : trial_elements(host, format, request.ranks);
    }

    tuned_cores run()
    {
        find_count();
        if (options_.settings)
            try_settings();
        return std::move(result_);
    }

private:
    [[nodiscard]] bool time_is_up() const
    {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count() > options_.deadline_s;
    }
    double report(double seconds, unsigned count) const
    {
        if (options_.on_step)
            options_.on_step(count, seconds);
        return seconds;
    }
    rank_trials& trials(unsigned count)
    {
        auto const match =
            std::find_if(trials_.begin(), trials_.end(), [&](auto const& t) { return t.count() == count; });
        if (match != trials_.end()) {
            trials_.splice(trials_.begin(), trials_, match);
            return trials_.front();
        }
        if (trials_.size() == 2)
            trials_.pop_back();
        rank_trials const* const last = trials_.empty() ? nullptr : &trials_.front();
        return trials_.emplace_front(host_, request_, count, result_.available_cores, format_, result_.elements,
                                     options_.tier, last);
    }
    // Returns the counts after which a further core adds a NUMA node or an L3 cache, and with it a path to memory.
    [[nodiscard]] std::vector<unsigned> boundaries() const
    {
        std::vector<unsigned> all;
        std::size_t previous_paths = 0;
        for (unsigned count = 1; count <= result_.available_cores; ++count) {
            rank_cores const cores = cores_for_trial(host_, request_, count, result_.available_cores)[0];
            std::size_t paths = cores.numa_nodes.size();
            for (topology::cache const& c : host_.caches)
                paths += c.level == 3 && c.pus.intersects(cores.adam_pus);
            if (count > 1 && paths > previous_paths)
                all.push_back(count - 1);
            previous_paths = paths;
        }
        return all;
    }
    void find_count()
    {
        core_search_options search = options_.search;
        search.boundaries = boundaries();
        // Beyond the quota the kernel stops all threads in each period, so times there are meaningless.
        std::size_t const threads_of_core =
            cores_for_trial(host_, request_, 1, result_.available_cores)[0].adam_pus.size();
        std::size_t const within =
            threads_within(host_.quota.cpus, request_.ranks, result_.available_cores * threads_of_core);
        core_search_result result = search_cores(
            std::max(1u, static_cast<unsigned>(within / threads_of_core)),
            [&](unsigned count) { return report(trials(count).seconds(), count); }, [&] { return time_is_up(); },
            search);
        result_.cores = result.cores;
        result_.finished = result.finished;
        result_.curve = std::move(result.curve);
        result_.cpuadam_cores_perc = static_cast<double>(result_.cores) / result_.available_cores;
        for (core_time const& point : result_.curve)
            if (point.cores == result_.cores)
                result_.step_s = point.median_s;
    }

    // Compares settings on the chosen number of cores. Each round times every setting and the defaults, because the
    // machine's speed drifts.
    void try_settings()
    {
        std::vector<executor_options> settings;
        for (std::size_t const max_elems : {std::size_t{8192}, std::size_t{16384}, std::size_t{262144}})
            settings.push_back({.tier = options_.tier, .max_chunk_elems = max_elems});
        std::size_t const chunk_settings = settings.size();
        for (std::uint32_t const prefetch_bytes : {0u, 256u, 512u, 1024u, 2048u, 4096u, 8192u})
            if (prefetch_bytes != default_prefetch_bytes())
                settings.push_back({.tier = options_.tier, .prefetch_bytes = prefetch_bytes});
        std::vector<std::vector<double>> ratios(settings.size());
        std::vector<double> default_times;
        while (default_times.size() < options_.search.most_rounds && !time_is_up()) {
            default_times.push_back(step_with({.tier = options_.tier}));
            for (std::size_t i = 0; i < settings.size(); ++i)
                ratios[i].push_back(step_with(settings[i]) / default_times.back());
        }
        if (default_times.size() < options_.search.rounds)
            return;
        for (std::size_t i = 0; i < settings.size(); ++i) {
            bool const chunk = i < chunk_settings;
            median_range const range = range_of_median(ratios[i], options_.search.confidence);
            bool const known = range.confidence >= options_.search.confidence;
            result_.tried.push_back({chunk ? "max_chunk_elems" : "prefetch_bytes",
                                     chunk ? settings[i].max_chunk_elems : settings[i].prefetch_bytes,
                                     median(ratios[i]), known ? range.low : 0,
                                     known ? range.high : std::numeric_limits<double>::max()});
        }
        tuned_cores const defaults = result_;
        if (tried_setting const* const best = fastest("max_chunk_elems"))
            result_.max_chunk_elems = best->value;
        if (tried_setting const* const best = fastest("prefetch_bytes"))
            result_.prefetch_bytes = static_cast<std::uint32_t>(best->value);
        executor_options chosen = result_.options();
        chosen.tier = options_.tier;
        if (chosen.max_chunk_elems == defaults.max_chunk_elems && chosen.prefetch_bytes == defaults.prefetch_bytes)
            return;
        std::vector<double> combined_ratios; // of both settings, whose gains may not add up
        std::vector<double> combined_times;
        for (std::size_t i = 0; i < options_.search.rounds; ++i) {
            combined_times.push_back(step_with(chosen));
            combined_ratios.push_back(combined_times.back() / step_with({.tier = options_.tier}));
        }
        if (median(combined_ratios) < 1) {
            result_.step_s = median(combined_times);
        } else {
            result_.max_chunk_elems = defaults.max_chunk_elems;
            result_.prefetch_bytes = defaults.prefetch_bytes;
        }
    }
    double step_with(executor_options const& settings)
    {
        return report(trials(result_.cores).seconds(settings), result_.cores);
    }
    // Returns the fastest value of this setting among those that are faster by settings_worth with confidence, or null.
    [[nodiscard]] tried_setting const* fastest(std::string_view name) const
    {
        tried_setting const* best = nullptr;
        for (tried_setting const& t : result_.tried)
            if (t.name == name && t.high <= 1 - options_.settings_worth &&
                (best == nullptr || t.time_ratio < best->time_ratio))
                best = &t;
        return best;
    }

    machine const& host_;
    core_request const& request_;
    shard_format const& format_;
    core_tuning_options const& options_;
    std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
    std::list<rank_trials> trials_; // of the two most recent counts, the latest first
    tuned_cores result_;
};

} // namespace detail

ADAMANT_DECL tuned_cores tune_cores(machine const& host, core_request const& request, shard_format const& format,
                                    core_tuning_options const& options)
{
    detail::default_mode_scope const mode;
    if (!(options.deadline_s > 0))
        detail::throw_invalid_argument({"the deadline is ", options.deadline_s, " seconds, but must be above 0"});
    if (!(options.settings_worth >= 0 && options.settings_worth < 1))
        detail::throw_invalid_argument(
            {"settings_worth is ", options.settings_worth, ", but must be a share of the time, from 0 to below 1"});
    return detail::core_tuner(host, request, format, options).run();
}

ADAMANT_END_NAMESPACE
