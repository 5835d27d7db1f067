// SPDX-License-Identifier: Apache-2.0
// Implementation of search_cores(): measures core counts until a larger one is no longer worth its cores.
#pragma once

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include <adamant/tune.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

template <class SecondsOn, class TimeIsUp>
class core_searcher {
public:
    core_searcher(unsigned cores, SecondsOn& seconds_on, TimeIsUp& time_is_up, core_search_options const& options)
        : cores_(cores), seconds_on_(seconds_on), time_is_up_(time_is_up), options_(options)
    {
    }

    core_search_result run()
    {
        result_.cores = 1;
        for (std::size_t i = 0; cores_ == 1 && i < options_.rounds; ++i)
            measure(1); // a single core has no other count to compare with
        while (result_.cores < cores_ && !stopped_)
            if (unsigned const next = next_worthwhile(); next != 0)
                previous_ = std::exchange(result_.cores, next);
            else
                break;
        shrink();
        result_.finished = !stopped_;
        for (auto const& [count, seconds] : seconds_)
            result_.curve.push_back(
                {count, median(seconds), quantile(seconds, 0.1), quantile(seconds, 0.9), seconds.size()});
        return std::move(result_);
    }

private:
    // Adds one core to small counts and an eighth to larger ones, whose change with one core is too small to measure.
    // bisect() and shrink() refine the result.
    static unsigned increment(unsigned count) noexcept { return std::max(1u, count / 8); }

    // Returns the next count that is worth using, or 0.
    unsigned next_worthwhile()
    {
        unsigned const current = result_.cores;
        unsigned const step = increment(current);
        unsigned const next = std::min(current + step, cores_);
        if (is_worthwhile(current, next))
            return next;
        if (unsigned const fewer = bisect(current, next); fewer != current)
            return fewer;
        // The search continues: two cores may gain something although one does not, and another node adds its memory.
        std::vector<unsigned> candidates = {current + 2 * step, current + 3 * step};
        auto const boundary = std::lower_bound(options_.boundaries.begin(), options_.boundaries.end(), current);
        if (boundary != options_.boundaries.end())
            candidates.insert(candidates.end(), {*boundary + (current + 1) / 2, *boundary + current});
        std::sort(candidates.begin(), candidates.end());
        unsigned tried = next;
        for (unsigned const candidate : candidates)
            if (unsigned const count = std::min(candidate, cores_); count > tried) {
                if (is_worthwhile(current, count))
                    return count;
                tried = count;
            }
        return 0;
    }
    // Bisects between a sufficient count and a larger one that is not worth using. Returns the largest worthwhile
    // count.
    unsigned bisect(unsigned least, unsigned too_many)
    {
        while (too_many - least > 1 && !stopped_) {
            unsigned const middle = least + (too_many - least) / 2;
            (is_worthwhile(least, middle) ? least : too_many) = middle;
        }
        return least;
    }
    // The last increment may have passed the knee. Bisects back to the smallest count that the result gains too little
    // over.
    void shrink()
    {
        unsigned least = previous_;
        while (result_.cores - least > 1 && !stopped_) {
            unsigned const middle = least + (result_.cores - least) / 2;
            if (is_worthwhile(middle, result_.cores))
                least = middle;
            else if (!stopped_)
                result_.cores = middle;
        }
    }
    bool is_worthwhile(unsigned fewer, unsigned more)
    {
        if (stopped_)
            return false;
        core_comparison c{.fewer = fewer, .more = more};
        c.needed = 1 + options_.worth * (static_cast<double>(more) / static_cast<double>(fewer) - 1);
        std::vector<double> ratios;
        while (!c.sure && ratios.size() < options_.most_rounds) {
            if (time_is_up_()) {
                stopped_ = true;
                return false;
            }
            // Alternate the order, because the second measurement may profit from state that the first one left.
            bool const fewer_first = ratios.size() % 2 == 0;
            double const first = measure(fewer_first ? fewer : more);
            double const second = measure(fewer_first ? more : fewer);
            ratios.push_back(fewer_first ? first / second : second / first);
            if (ratios.size() < options_.rounds)
                continue;
            median_range const range = range_of_median(ratios, options_.confidence);
            c.low = range.low;
            c.high = range.high;
            c.sure = range.confidence >= options_.confidence && (range.low >= c.needed || range.high < c.needed);
        }
        c.speed_up = median(ratios);
        c.worth = c.speed_up >= c.needed;
        result_.comparisons.push_back(c);
        return c.worth;
    }
    double measure(unsigned count)
    {
        double const seconds = seconds_on_(count);
        seconds_[count].push_back(seconds);
        return seconds;
    }

    unsigned cores_;
    SecondsOn& seconds_on_;
    TimeIsUp& time_is_up_;
    core_search_options const& options_;
    core_search_result result_;
    std::map<unsigned, std::vector<double>> seconds_;
    unsigned previous_ = 1; // the sufficient count before the last increment
    bool stopped_ = false;
};

} // namespace detail

ADAMANT_END_NAMESPACE
