// SPDX-License-Identifier: Apache-2.0
// How many cores are enough: a search over counts of cores that only sees times, so that tests can give it invented
// curves.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <adamant/tune/statistics.hpp>

ADAMANT_BEGIN_NAMESPACE

struct core_search_options {
    // More cores are worth using if they gain at least this share of what they would gain if the time were inversely
    // proportional to their number: from c to d cores, a speed-up of 1 + worth * (d / c - 1). In (0, 1].
    double worth = 0.25;
    // Two counts are compared in rounds, until the median ratio of their times lies on one side of that speed-up with
    // this confidence. After most_rounds the median decides. The test is made after each round from `rounds` on, so the
    // overall confidence is somewhat lower.
    double confidence = 0.99;
    std::size_t rounds = 9;
    std::size_t most_rounds = 41;
    // Counts after which the next core adds more than itself, such as the first core of another NUMA node or last
    // cache. Where more cores gain too little, half as many and as many cores beyond the next boundary are still tried.
    // Ascending; may be empty.
    std::vector<unsigned> boundaries = {};
};

// How long a step takes on this many cores, over all measurements.
struct core_time {
    unsigned cores = 0;
    double median_s = 0;
    double p10_s = 0;
    double p90_s = 0;
    std::size_t measurements = 0;
};

// Whether more cores were worth using.
struct core_comparison {
    unsigned fewer = 0;
    unsigned more = 0;
    double speed_up = 0; // median of the ratio of times within a round
    double low = 0;      // and its confidence range
    double high = 0;
    double needed = 0; // the speed-up that makes it worth it
    bool worth = false;
    bool sure = false; // the range lies on one side of `needed`
};

struct core_search_result {
    unsigned cores = 0;                       // enough cores
    bool finished = false;                    // otherwise time ran out, and counts that were not tried are unknown
    std::vector<core_time> curve;             // by count
    std::vector<core_comparison> comparisons; // in the order they were made
};

// The least of the measured counts whose median is at most (1 + share) times the best one's. The further it is from the
// best count, the flatter the curve. 0 for an empty curve.
[[nodiscard]] unsigned fewest_within(std::vector<core_time> const& curve, double share);

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
            measure(1); // there is nothing to compare it with
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
    // One core more while that can be measured, then an eighth more, which halved() and shrink() refine.
    static unsigned increment(unsigned count) noexcept { return std::max(1u, count / 8); }

    // The next count that is worth using, or 0.
    unsigned worth_having()
    {
        unsigned const now = result_.cores;
        unsigned const by = increment(now);
        unsigned const next = std::min(now + by, cores_);
        if (is_worth(now, next))
            return next;
        if (unsigned const fewer = halved(now, next); fewer != now)
            return fewer;
        // This does not end the search: one core more may gain nothing where two do, and another node adds its memory.
        std::vector<unsigned> further = {now + 2 * by, now + 3 * by};
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
    // Between a count and a larger one that is not worth using: the largest count that is, found by halving.
    unsigned halved(unsigned least, unsigned not_worth)
    {
        while (not_worth - least > 1 && !stopped_) {
            unsigned const middle = least + (not_worth - least) / 2;
            (is_worth(least, middle) ? least : not_worth) = middle;
        }
        return least;
    }
    // The last increment may have passed the knee: goes back to the least count over which the last is not worth using.
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
            bool const fewer_first = ratios.size() % 2 == 0; // the second one may profit from what the first has left
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
    unsigned before_ = 1; // the count that was enough before the last one
    bool stopped_ = false;
};

} // namespace detail

// Searches for enough cores, from 1 up to `cores`. seconds_on(count) takes one step on that many cores and returns how
// long it took. time_is_up() is called before each round of two steps; true ends the search. Throws invalid_argument
// for impossible options, and what these two functions throw.
template <class SecondsOn, class TimeIsUp>
[[nodiscard]] core_search_result search_cores(unsigned cores, SecondsOn seconds_on, TimeIsUp time_is_up,
                                              core_search_options const& options = {})
{
    if (cores == 0)
        detail::throw_invalid_argument({"a search for enough cores was given 0 cores; it needs at least one"});
    if (!(options.worth > 0 && options.worth <= 1))
        detail::throw_invalid_argument(
            {"worth is ", options.worth,
             ", but must be above 0 and at most 1: it is a share of what perfect scaling would gain"});
    if (!(options.confidence > 0 && options.confidence < 1))
        detail::throw_invalid_argument({"confidence is ", options.confidence, ", but must be between 0 and 1"});
    if (options.rounds < 1 || options.most_rounds < options.rounds)
        detail::throw_invalid_argument(
            {"from ", options.rounds, " to ", options.most_rounds,
             " rounds were requested; the first must be at least 1, and the second no less"});
    return detail::core_searcher<SecondsOn, TimeIsUp>(cores, seconds_on, time_is_up, options).run();
}

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/core_search.ipp>
#endif
