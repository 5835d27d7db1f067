// SPDX-License-Identifier: Apache-2.0
// How many cores are enough: a search over counts of cores that only sees times, so that it can be tried on curves that
// are made up.
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
    // More cores are worth having where they bring at least this share of what they would bring if the time were
    // inversely proportional to their number: from c to d cores, a speed-up of 1 + worth * (d / c - 1). In (0, 1].
    double worth = 0.25;
    // Two counts are compared in rounds, until it is this sure that the median of the ratio of their times lies on one
    // side of that, or there have been most_rounds: then the median decides.
    // It is asked after each round from `rounds` on, so the confidence of all that is somewhat less than that of one.
    double confidence = 0.99;
    std::size_t rounds = 9;
    std::size_t most_rounds = 41;
    // Counts beyond which the next core has more than itself to bring, as the first of another NUMA node or last cache
    // does: where more cores have
    // stopped paying, half as many and as many of the next kind are still tried. Ascending; may be empty.
    std::vector<unsigned> boundaries = {};
};

// What a step takes on so many cores: of all measurements, over whatever time they were spread.
struct core_time {
    unsigned cores = 0;
    double median_s = 0;
    double p10_s = 0;
    double p90_s = 0;
    std::size_t measurements = 0;
};

// Whether more cores were worth having.
struct core_comparison {
    unsigned fewer = 0;
    unsigned more = 0;
    double speed_up = 0; // median of the ratio of times within a round
    double low = 0;      // and the range that it lies in
    double high = 0;
    double needed = 0; // to be worth it
    bool worth = false;
    bool sure = false; // the range lies on one side of what is needed
};

struct core_search_result {
    unsigned cores = 0;                       // that are enough
    bool finished = false;                    // else time ran out, and nothing is known of counts that were not tried
    std::vector<core_time> curve;             // by count
    std::vector<core_comparison> comparisons; // in the order they were made
};

// Of the counts that were measured the least whose median is at most (1 + share) times the best one's: the larger its
// distance to the best, the flatter the curve. 0 for an empty curve.
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
            measure(1); // nothing to compare it with
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
    // A core more as long as that can be seen, then an eighth more, which halved() and shrink() look into.
    static unsigned increment(unsigned count) noexcept { return std::max(1u, count / 8); }

    // The next count that is worth having, or 0.
    unsigned worth_having()
    {
        unsigned const now = result_.cores;
        unsigned const by = increment(now);
        unsigned const next = std::min(now + by, cores_);
        if (is_worth(now, next))
            return next;
        if (unsigned const fewer = halved(now, next); fewer != now)
            return fewer;
        // That does not end it: an odd core more may bring nothing where two do, and another node brings its memory.
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
    // Between a count and one that is not worth having over it: the most that is, by halving.
    unsigned halved(unsigned least, unsigned not_worth)
    {
        while (not_worth - least > 1 && !stopped_) {
            unsigned const middle = least + (not_worth - least) / 2;
            (is_worth(least, middle) ? least : not_worth) = middle;
        }
        return least;
    }
    // The last step may have gone past the knee: the least of its counts over which the last one is not worth having.
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
            bool const fewer_first = ratios.size() % 2 == 0; // whoever comes second may find what the first has left
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

// Grows the number of cores from 1, up to `cores`, for as long as more are worth having. seconds_on(count) takes one
// step on so many cores and returns how long it took; time_is_up() is asked before each round of two steps, and ends
// the search. Throws invalid_argument for options that cannot be, and what these two throw.
template <class SecondsOn, class TimeIsUp>
[[nodiscard]] core_search_result search_cores(unsigned cores, SecondsOn seconds_on, TimeIsUp time_is_up,
                                              core_search_options const& options = {})
{
    if (cores == 0)
        throw invalid_argument("adamant: how many of 0 cores are enough cannot be said");
    if (!(options.worth > 0 && options.worth <= 1))
        throw invalid_argument("adamant: worth is " + detail::text(options.worth) +
                               ", but it is a share of what perfect scaling would bring: above 0 and at most 1");
    if (!(options.confidence > 0 && options.confidence < 1))
        throw invalid_argument("adamant: confidence is " + detail::text(options.confidence) +
                               ", but it lies between 0 and 1");
    if (options.rounds < 1 || options.most_rounds < options.rounds)
        throw invalid_argument("adamant: from " + std::to_string(options.rounds) + " to " +
                               std::to_string(options.most_rounds) +
                               " rounds are asked for; the first is to be at least 1, and the second no less");
    return detail::core_searcher<SecondsOn, TimeIsUp>(cores, seconds_on, time_is_up, options).run();
}

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/tune/core_search.ipp>
#endif
