// SPDX-License-Identifier: Apache-2.0
// How many cores are enough, by measurement; following the best ratio.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/error.hpp>
#include <adamant/executor.hpp>
#include <adamant/memory.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/shard.hpp>
#include <adamant/split.hpp>
#include <adamant/detail/core/default_mode.hpp>

// Statistics of repeated time measurements: medians, their spread, and how certain a difference is. They do not assume
// normally distributed errors, because those of a shared machine are not.

ADAMANT_BEGIN_NAMESPACE

/// The value below which the share q of all values lies, interpolated linearly (Hyndman and Fan's type 7).
/// Throws invalid_argument for no values, and for a q outside [0, 1].
[[nodiscard]] inline double quantile(std::vector<double> values, double q)
{
    detail::default_mode_scope const mode;
    if (values.empty())
        detail::throw_invalid_argument({"a quantile of no values was requested; give at least one value"});
    if (!(q >= 0 && q <= 1))
        detail::throw_invalid_argument({"quantile ", q, " was requested, but must be from 0 to 1"});
    std::sort(values.begin(), values.end());
    double const at = q * static_cast<double>(values.size() - 1);
    auto const below = static_cast<std::size_t>(at);
    std::size_t const above = std::min(below + 1, values.size() - 1);
    return values[below] + (at - static_cast<double>(below)) * (values[above] - values[below]);
}

[[nodiscard]] inline double median(std::vector<double> values)
{
    return quantile(std::move(values), 0.5);
}

/// A confidence range for the median of the distribution that the values are a sample of: between the order statistics
/// that the sign test leaves (each value lies below the true median with probability 1/2, so ranks are binomial). With
/// too few values it is the range of all values, and `confidence` says how certain that is.
struct median_range {
    double low = 0;        ///< lower end of the range
    double high = 0;       ///< upper end of the range
    double confidence = 0; ///< of this very range
};
/// Throws invalid_argument for no values, and for a confidence outside (0, 1).
[[nodiscard]] inline median_range range_of_median(std::vector<double> values, double confidence)
{
    detail::default_mode_scope const mode;
    if (values.empty())
        detail::throw_invalid_argument({"the range of the median of no values was requested; give at least one value"});
    if (!(confidence > 0 && confidence < 1))
        detail::throw_invalid_argument({"confidence ", confidence, " was requested, but must be between 0 and 1"});
    std::sort(values.begin(), values.end());
    std::size_t const n = values.size();
    /// outside: the probability that at most k of n values lie below the median, for each k; twice that is what the
    /// range from value k to value n - 1 - k leaves out.
    double log_term = -static_cast<double>(n) * std::log(2.0); ///< of n, as 2^-n itself may be too small for a double
    double outside = std::exp(log_term);
    std::size_t k = 0;
    for (; k + 1 < (n + 1) / 2; ++k) {
        log_term += std::log(static_cast<double>(n - k) / static_cast<double>(k + 1));
        if (1 - 2 * (outside + std::exp(log_term)) < confidence)
            break;
        outside += std::exp(log_term);
    }
    return {values[k], values[n - 1 - k], 1 - 2 * outside};
}

// How many cores are enough: a search over counts of cores that only sees times, so that tests can give it invented
// curves.

/// Options of search_cores().
struct core_search_options {
    /// More cores are worth using if they gain at least this share of what they would gain if the time were inversely
    /// proportional to their number: from c to d cores, a speed-up of 1 + worth * (d / c - 1). In (0, 1].
    double worth = 0.25;
    /// Two counts are compared in rounds, until the median ratio of their times lies on one side of that speed-up with
    /// this confidence. After most_rounds the median decides. The test is made after each round from `rounds` on, so
    /// the overall confidence is somewhat lower.
    double confidence = 0.99;
    std::size_t rounds = 9;       ///< rounds for each count
    std::size_t most_rounds = 41; ///< most rounds for a count that is close
    /// Counts after which the next core adds more than itself, such as the first core of another NUMA node or last
    /// cache. Where more cores gain too little, half as many and as many cores beyond the next boundary are still
    /// tried. Ascending; may be empty.
    std::vector<unsigned> boundaries = {};
};

/// How long a step takes on this many cores, over all measurements.
struct core_time {
    unsigned cores = 0;           ///< number of cores
    double median_s = 0;          ///< median time
    double p10_s = 0;             ///< 10th percentile
    double p90_s = 0;             ///< 90th percentile
    std::size_t measurements = 0; ///< number of measurements
};

/// Whether more cores were worth using.
struct core_comparison {
    unsigned fewer = 0;  ///< the smaller count
    unsigned more = 0;   ///< the larger count
    double speed_up = 0; ///< median of the ratio of times within a round
    double low = 0;      ///< and its confidence range
    double high = 0;     ///< upper end of the range
    double needed = 0;   ///< the speed-up that makes it worth it
    bool worth = false;  ///< whether the larger count is worth its cores
    bool sure = false;   ///< the range lies on one side of `needed`
};

/// Result of search_cores().
struct core_search_result {
    unsigned cores = 0;                       ///< enough cores
    bool finished = false;                    ///< otherwise time ran out, and counts that were not tried are unknown
    std::vector<core_time> curve;             ///< by count
    std::vector<core_comparison> comparisons; ///< in the order they were made
};

/// The least of the measured counts whose median is at most (1 + share) times the best one's. The further it is from
/// the best count, the flatter the curve. 0 for an empty curve.
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

/// Searches for enough cores, from 1 up to `cores`. seconds_on(count) takes one step on that many cores and returns how
/// long it took. time_is_up() is called before each round of two steps; true ends the search. Throws invalid_argument
/// for impossible options, and what these two functions throw.
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

// Steps to be timed, on arrays of their own with values as in training.

/// Arrays of n elements in memory of these options, first touched by the executor's threads, each element where it will
/// be used. Values decide which path a kernel takes, so they are like those of training: neighbours differ, there are
/// no zeros, and second moments fit the gradients. The arrays begin at a cache line and at different offsets in their
/// pages, as a program's do; at equal offsets each load would wait for another array's store.
class trial_step {
public:
    /// Throws what memory_block throws: unavailable where there is too little memory, among others.
    trial_step(executor const& cpu, shard_format const& format, std::size_t n, memory_options const& memory = {});

    /// Number of elements.
    [[nodiscard]] std::size_t size() const noexcept { return n_; }
    /// The format.
    [[nodiscard]] shard_format const& format() const noexcept { return *format_; }
    /// Number of norm blocks.
    [[nodiscard]] std::vector<memory_block> const& blocks() const noexcept { return blocks_; }
    /// Array k, by shard_array.
    [[nodiscard]] std::byte* array(std::size_t k) noexcept;

    /// Takes one step of AdamW, with a learning rate so small that values stay in range, and returns its time.
    double seconds(executor const& cpu);

private:
    static constexpr std::size_t apart = 1088;        // bytes, a multiple of a cache line, odd in a page
    static constexpr std::size_t period_elems = 4096; // after which values repeat, so that arrays are filled quickly

    void fill(std::size_t k, slice part);

    shard_format const* format_;
    std::size_t n_;
    std::vector<memory_block> blocks_;
};

// The result of tuning, with the machine and the work that it is for: it says nothing about others.

/// The processor's name according to the kernel; on Arm, where it gives none, the numbers of implementer and part.
[[nodiscard]] std::string cpu_model(std::string const& cpuinfo = "/proc/cpuinfo");

/// Everything that a result depends on, as names and texts to compare and to show.
struct tuning_key {
    std::vector<std::pair<std::string, std::string>> entries; ///< name and value of each property
    /// Compares all members.
    friend bool operator==(tuning_key const&, tuning_key const&) = default;
};

/// The key of steps with these types, by each of the request's ranks, on its cores. It leaves out the request's size,
/// which tuning measures.
[[nodiscard]] tuning_key tuning_key_of(machine const& on, core_request const& request, shard_format const& format,
                                       isa tier = isa::automatic);

/// An executor's setting that was tried on the final cores against its default.
struct tried_setting {
    std::string name;        ///< a member of executor_options
    std::uint64_t value = 0; ///< the median
    double time_ratio = 1;   ///< median of its time over the default's, within rounds
    double low = 1;          ///< and its confidence range
    double high = 1;         ///< upper end of the range
};

/// Result of tune_cores().
struct tuned_cores {
    tuning_key key;                ///< machine and work that it is for
    unsigned cores = 0;            ///< of each rank, for the optimizer
    unsigned of = 0;               ///< the cores that a rank has
    double cpuadam_cores_perc = 1; ///< the same as a share, for configurations
    bool finished = false;         ///< otherwise time ran out before it was known that more are not worth using
    std::size_t elements = 0;      ///< of each rank, in the steps that were timed
    double step_s = 0;             ///< of all ranks together, on these cores, with these settings
    std::vector<core_time> curve;  ///< with the default settings
    std::size_t max_chunk_elems = default_max_chunk_elems;   ///< for executor_options
    std::uint32_t prefetch_bytes = default_prefetch_bytes(); ///< for executor_options
    std::vector<tried_setting> tried;                        ///< counts that were measured
    std::vector<std::string> warnings; ///< reasons not to trust the times, in words; saved with the result

    /// Cores of a rank that the optimizer leaves to the host.
    [[nodiscard]] unsigned host_cores() const noexcept;
    /// Whether every core is worth using: the curve has no knee.
    [[nodiscard]] bool all() const noexcept;

    /// The request with this size instead of its own, for select_cores(), which always leaves the host one core.
    [[nodiscard]] core_request request(core_request asked) const;
    /// For the executor on a rank's cores.
    [[nodiscard]] executor_options options() const;
};

/// Throws unavailable, naming each difference, where the result is for another machine or other work.
void check_key(tuned_cores const& saved, tuning_key const& here);

// Every rank's team and arrays on a number of cores, to be timed.

namespace detail {

// The number of the machine's cores that have a PU in the set.
inline unsigned cores_in(machine const& on, pu_set const& pus)
{
    unsigned count = 0;
    for (topology::core const& c : on.cores)
        count += c.pus.intersects(pus);
    return count;
}

// The PUs of each rank's optimizer with `count` of the `of` cores that a rank has. Selection keeps one core for the
// host; here the optimizer may have all.
inline std::vector<rank_cores> cores_for_trial(machine const& on, core_request request, unsigned count, unsigned of)
{
    request.cpuadam_cores_perc.reset();
    request.pt_reserved_cores.reset();
    request.pt_reserved_cores_perc.reset();
    request.cpuadam_cores = std::max(1u, std::min(count, of - 1));
    std::vector<rank_cores> ranks = select_cores(on, request);
    for (rank_cores& r : ranks)
        for (topology::core const& c : on.cores)
            if (c.pus.intersects(r.host_pus) && cores_in(on, r.adam_pus) < count) {
                r.adam_pus |= c.pus & r.host_pus;
                r.host_pus = r.host_pus - c.pus;
                if (c.node < on.nodes.size() && on.nodes[c.node].allowed && !r.numa_nodes.empty())
                    r.numa_nodes.insert(on.nodes[c.node].os_index);
            }
    return ranks;
}

// The number of cores that every rank has at least.
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

inline std::size_t trial_elements(machine const& on, shard_format const& format, unsigned ranks)
{
    std::size_t cached = std::size_t{32} << 20;
    for (topology::cache const& c : on.caches)
        cached += c.level == 3 ? c.bytes : 0;
    double const each = memory_bytes(format.types) * ranks;
    // Two sets of arrays are there at once, of the counts that are compared.
    double const most = static_cast<double>(available_memory().bytes) / 8;
    double const wanted = 8 * static_cast<double>(cached);
    auto const elems = static_cast<std::size_t>(std::min(wanted, most) / each);
    return std::max<std::size_t>(elems / granule_elems, 1) * granule_elems;
}

// Every rank's team and arrays on a number of cores.
class rank_trials {
public:
    // like: null, or another one, whose arrays are used again where they lie as they would here: each rank's in one
    // node.
    rank_trials(machine const& on, core_request const& request, unsigned count, unsigned of, shard_format const& format,
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
                steps_->emplace_back(executors_[r], format, elements, memory_options{.nodes = nodes_[r]});
        }
        for (int i = 0; i < 2; ++i) // what happens only once: the kernel makes up its mind about pages
            seconds();
    }
    [[nodiscard]] unsigned count() const noexcept { return count_; }

    // From when all ranks begin until the last one has finished.
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

} // namespace detail
// How many cores an optimizer needs on this machine, found by taking and timing steps.

/// Options of tune_cores().
struct core_tuning_options {
    double deadline_s =
        60; ///< for the whole search; after it the result is what is known so far, marked as not finished
    /// Of each rank's arrays. 0: some eight times the size of the machine's last caches, because a model is never in
    /// cache; or a quarter of the available memory, if that is less.
    std::size_t elements = 0;
    isa tier = isa::automatic;       ///< instruction set
    core_search_options search = {}; ///< its boundaries come from the machine
    bool settings = true;            ///< whether other settings of the executor are tried on the cores that were found
    double settings_worth = 0.03;    ///< another setting is taken if it is faster by at least this share
    /// If not empty: called after each timed step, with its number of cores and its time. An exception ends the tuning.
    std::function<void(unsigned cores, double seconds)> on_step = {};
};

/// Adds cores to the optimizer of each of the request's ranks, as select_cores() would give them, until the next one
/// gains too little (core_search_options::worth), or the CPU quota keeps no more threads busy. All ranks step
/// concurrently, in this process. Then it tries other chunk sizes and prefetch distances on these cores. The request's
/// own size is ignored. Uses up to a quarter of the available memory, and all cores and the memory bandwidth of the
/// machine: nothing else should run. Meant for set-up, on one thread. Throws invalid_argument for impossible options,
/// and what select_cores(), team, memory_block and options.on_step throw.
[[nodiscard]] tuned_cores tune_cores(machine const& on, core_request const& request, shard_format const& format,
                                     core_tuning_options const& options = {});

// The best ratio during training: every step measures the rates, which change with the machine's other work.

/// The work of one step and how long each part was busy with it, from an optimizer's report. A part without work tells
/// nothing about its rate.
struct measured_step {
    double cpu_elems = 0;    ///< elements that the CPU updated
    double cpu_s = 0;        ///< how long the CPU was busy
    double device_elems = 0; ///< elements that the device updated
    double device_s = 0;     ///< how long the device was busy
    double down_bytes = 0;   ///< bytes copied from the device
    double down_s = 0;       ///< duration of these copies
    double up_bytes = 0;     ///< bytes copied to the device
    double up_s = 0;         ///< duration of these copies
};

/// Of an optimizer's step. A step that was rolled back and done again counts with the time of all of its work.
[[nodiscard]] measured_step measured_step_of(optimizer_report const& step) noexcept;

/// Options of a ratio_follower.
struct follower_options {
    double weight = 0.2; ///< of a new measurement, against all earlier ones
    double worth = 0.02; ///< a new ratio is proposed if it makes the step shorter by this share
    double least = 0;    ///< bounds for the ratio, from memory
    double most = 1;     ///< largest ratio
};

/// Not thread-safe; a value like any other.
class ratio_follower {
public:
    /// Begins with known or guessed rates. Throws invalid_argument for impossible rates or options.
    explicit ratio_follower(step_rates const& rates, follower_options const& options = {});

    /// Adds a step's measurements: the first one replaces the guess, later ones count by their weight. Values that are
    /// not finite and above 0 are ignored.
    void observe(measured_step const& step) noexcept;
    /// Backward and forward are the caller's, who times them. Throws invalid_argument for impossible times, and keeps
    /// the old ones.
    void set_times(double backward_s, double forward_s);

    /// The rates measured so far.
    [[nodiscard]] step_rates const& rates() const noexcept { return rates_; }
    /// A ratio that is worth moving shards for, given the optimizer's current one; absent: keep that. Throws
    /// invalid_argument where the current ratio is not from 0 to 1.
    [[nodiscard]] std::optional<double> proposal(double ratio) const;

private:
    // Times are averaged, not rates: they add up.
    void take_in(double& rate, double amount, double seconds, bool& known) noexcept;

    step_rates rates_;
    follower_options options_;
    bool known_[4] = {}; // whether it has been measured yet
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/tune/core_search.ipp>
#include <adamant/detail/tune/core_tuning.ipp>
#include <adamant/detail/tune/ratio_follower.ipp>
#include <adamant/detail/tune/trial_step.ipp>
#include <adamant/detail/tune/tuned_cores.ipp>
#endif
