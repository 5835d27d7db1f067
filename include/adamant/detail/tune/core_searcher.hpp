// SPDX-License-Identifier: Apache-2.0
// The search behind search_cores(): measures numbers of cores until one is enough.
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
            if (unsigned const more = worth_having(); more != 0)
                before_ = std::exchange(result_.cores, more);
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
    // Adds one core while that is measurable, then an eighth. halved() and shrink() refine the result.
    static unsigned increment(unsigned count) noexcept { return std::max(1u, count / 8); }

    // Returns the next count that is worth using, or 0.
    unsigned worth_having()
    {
        unsigned const now = result_.cores;
        unsigned const step = increment(now);
        unsigned const next = std::min(now + step, cores_);
        if (is_worth(now, next))
            return next;
        if (unsigned const fewer = halved(now, next); fewer != now)
            return fewer;
        // The search continues: two cores may gain something although one does not, and another node adds its memory.
        std::vector<unsigned> further = {now + 2 * step, now + 3 * step};
        auto const boundary = std::lower_bound(options_.boundaries.begin(), options_.boundaries.end(), now);
        if (boundary != options_.boundaries.end())
            further.insert(further.end(), {*boundary + (now + 1) / 2, *boundary + now});
        std::sort(further.begin(), further.end());
        unsigned tried = next;
        for (unsigned const more : further)
            if (unsigned const count = std::min(more, cores_); count > tried) {
                if (is_worth(now, count))
                    return count;
                tried = count;
            }
        return 0;
    }
    // Bisects between a count and a larger one that is not worth using. Returns the largest count that is.
    unsigned halved(unsigned least, unsigned not_worth)
    {
        while (not_worth - least > 1 && !stopped_) {
            unsigned const middle = least + (not_worth - least) / 2;
            (is_worth(least, middle) ? least : not_worth) = middle;
        }
        return least;
    }
    // The last increment may have passed the knee. Bisects back to the smallest count over which the last one gains too
    // little.
    void shrink()
    {
        unsigned least = before_;
        while (result_.cores - least > 1 && !stopped_) {
            unsigned const middle = least + (result_.cores - least) / 2;
            if (is_worth(middle, result_.cores))
                least = middle;
            else if (!stopped_)
                result_.cores = middle;
        }
    }
    bool is_worth(unsigned fewer, unsigned more)
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
            bool const fewer_first =
                ratios.size() % 2 == 0; // alternate, because the second may profit from state that the first left
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
    unsigned before_ = 1; // the sufficient count before the last increment
    bool stopped_ = false;
};

} // namespace detail

ADAMANT_END_NAMESPACE
