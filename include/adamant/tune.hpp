// SPDX-License-Identifier: Apache-2.0
// Tuning by measurement: the number of cores that an optimizer needs, and the best ratio of CPU and device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
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
#include <adamant/detail/tune/trial_step.hpp>

ADAMANT_BEGIN_NAMESPACE

// ---- Statistics of repeated time measurements. They do not assume normally distributed errors, because the errors of
// a shared machine are not.

/// Returns the q-quantile of values, interpolated linearly (Hyndman and Fan's type 7).
/// @throws invalid_argument for no values, and for a q outside [0, 1].
[[nodiscard]] inline double quantile(std::vector<double> values, double q)
{
    detail::default_mode_scope const mode;
    if (values.empty())
        detail::throw_invalid_argument({"cannot compute a quantile: there are no values. Pass at least one."});
    if (!(q >= 0 && q <= 1))
        detail::throw_invalid_argument({"cannot compute quantile ", q, ": it must be from 0 to 1."});
    std::sort(values.begin(), values.end());
    double const position = q * static_cast<double>(values.size() - 1);
    auto const below = static_cast<std::size_t>(position);
    std::size_t const above = std::min(below + 1, values.size() - 1);
    return values[below] + (position - static_cast<double>(below)) * (values[above] - values[below]);
}

/// Returns the median of values.
/// @throws invalid_argument for no values.
[[nodiscard]] inline double median(std::vector<double> values)
{
    return quantile(std::move(values), 0.5);
}

/// Confidence interval of the median of the distribution that values are sampled from.
///
/// The bounds are order statistics selected by the sign test: each value is below the true median with probability 1/2,
/// so ranks are binomially distributed. With too few values the interval is the range of all values.
struct median_range {
    double low = 0;        ///< Lower bound.
    double high = 0;       ///< Upper bound.
    double confidence = 0; ///< Confidence of exactly this interval. May be lower than requested.
};
/// Returns a confidence interval of the median.
/// @throws invalid_argument for no values, and for a confidence outside (0, 1).
[[nodiscard]] inline median_range range_of_median(std::vector<double> values, double confidence)
{
    detail::default_mode_scope const mode;
    if (values.empty())
        detail::throw_invalid_argument(
            {"cannot compute the range of a median: there are no values. Pass at least one."});
    if (!(confidence > 0 && confidence < 1))
        detail::throw_invalid_argument(
            {"cannot compute the range of a median with confidence ", confidence, ": it must be between 0 and 1."});
    std::sort(values.begin(), values.end());
    std::size_t const n = values.size();
    // outside is the probability that at most k of n values are below the median. The interval from value k to value
    // n - 1 - k excludes twice that probability.
    double log_term = -static_cast<double>(n) * std::log(2.0); // a logarithm, because 2^-n may underflow a double
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

// ---- Search for the number of cores. It only sees times, so tests can supply synthetic curves.

/// Options of search_cores().
struct core_search_options {
    /// Share of the gain of perfect scaling that makes more cores worth using, in (0, 1].
    ///
    /// Going from c to d cores is worth it with a speed-up of at least 1 + worth * (d / c - 1). With worth 1, the time
    /// would have to be inversely proportional to the number of cores.
    double worth = 0.25;
    /// Confidence of a comparison.
    ///
    /// Two counts are compared in rounds, until the confidence interval of the median ratio of their times is on one
    /// side of the required speed-up. After most_rounds the median decides. The test is repeated after each round from
    /// `rounds` on, so the overall confidence is somewhat lower.
    double confidence = 0.99;
    std::size_t rounds = 9;       ///< Minimum number of rounds.
    std::size_t most_rounds = 41; ///< Maximum number of rounds.
    /// Core counts after which one more core adds a NUMA node or last-level cache, in ascending order; may be empty.
    ///
    /// If more cores than the current n gain too little, the search still tries b + n / 2 and b + n, where b is the
    /// next boundary.
    std::vector<unsigned> boundaries = {};
};

/// Step time on a number of cores, over all measurements.
struct core_time {
    unsigned cores = 0;           ///< Number of cores.
    double median_s = 0;          ///< Median of the times.
    double p10_s = 0;             ///< 10th percentile of the times.
    double p90_s = 0;             ///< 90th percentile of the times.
    std::size_t measurements = 0; ///< Number of measurements.
};

/// Comparison of two numbers of cores.
struct core_comparison {
    unsigned fewer = 0;  ///< The smaller count.
    unsigned more = 0;   ///< The larger count.
    double speed_up = 0; ///< Median ratio of the times within a round.
    double low = 0;      ///< Lower bound of its confidence interval.
    double high = 0;     ///< Upper bound of its confidence interval.
    double needed = 0;   ///< Speed-up that makes the larger count worth using.
    bool worth = false;  ///< The larger count is worth using.
    bool sure = false;   ///< The confidence interval is on one side of `needed`.
};

/// Result of search_cores().
struct core_search_result {
    unsigned cores = 0;                       ///< Smallest sufficient number of cores found.
    bool finished = false;                    ///< False if time ran out before every candidate count was tried.
    std::vector<core_time> curve;             ///< Measured times, by count.
    std::vector<core_comparison> comparisons; ///< Comparisons, in the order in which they were made.
};

/// Returns the smallest measured count whose median time is at most (1 + share) times the best one.
///
/// The farther it is from the best count, the flatter the curve. Returns 0 for an empty curve.
[[nodiscard]] unsigned fewest_within(std::vector<core_time> const& curve, double share);

namespace detail {
template <class SecondsOn, class TimeIsUp>
class core_searcher;
} // namespace detail

/// Searches for the smallest sufficient number of cores, from 1 to `cores`.
///
/// @param cores the number of available cores.
/// @param seconds_on seconds_on(count) takes one step on that many cores and returns its duration in seconds.
/// @param time_is_up called before each round of two steps; true ends the search. Not called if there is only one core.
/// @param options the options.
/// @throws invalid_argument for invalid options, and what the two functions throw.
template <class SecondsOn, class TimeIsUp>
[[nodiscard]] core_search_result search_cores(unsigned cores, SecondsOn seconds_on, TimeIsUp time_is_up,
                                              core_search_options const& options = {})
{
    if (cores == 0)
        detail::throw_invalid_argument(
            {"cannot search for the number of cores: there are 0 cores. Pass at least one."});
    if (!(options.worth > 0 && options.worth <= 1))
        detail::throw_invalid_argument(
            {"worth is ", options.worth,
             ", but must be above 0 and at most 1, as a share of the gain of perfect scaling"});
    if (!(options.confidence > 0 && options.confidence < 1))
        detail::throw_invalid_argument({"confidence is ", options.confidence, ", but must be between 0 and 1"});
    if (options.rounds < 1 || options.most_rounds < options.rounds)
        detail::throw_invalid_argument({"rounds is ", options.rounds, " and most_rounds is ", options.most_rounds,
                                        ", but rounds must be at least 1, and most_rounds at least rounds"});
    return detail::core_searcher<SecondsOn, TimeIsUp>(cores, seconds_on, time_is_up, options).run();
}

// ---- Results

/// Returns the processor's name according to the kernel.
///
/// On Arm, where the kernel has no name, returns the implementer and part numbers.
[[nodiscard]] std::string cpu_model(std::string const& cpuinfo = "/proc/cpuinfo");

/// Machine and work that a tuning result is valid for, as names and texts to compare and to show.
struct tuning_key {
    std::vector<std::pair<std::string, std::string>> entries; ///< Names and values.
    /// Compares all entries.
    friend bool operator==(tuning_key const&, tuning_key const&) = default;
};

/// Returns the key for a tuning in which each rank of the request updates shards of this format on its own cores.
///
/// The key does not contain the request's number of cores, which tuning finds.
[[nodiscard]] tuning_key tuning_key_of(machine const& host, core_request const& request, shard_format const& format,
                                       isa tier = isa::automatic);

/// Executor setting that was compared with its default on the final cores.
struct tried_setting {
    std::string name;        ///< Member of executor_options.
    std::uint64_t value = 0; ///< Value that was tried.
    double time_ratio = 1;   ///< Median ratio of its time to the default's, within rounds.
    double low = 1;          ///< Lower bound of the confidence interval.
    double high = 1;         ///< Upper bound of the confidence interval.
};

/// Result of tuning, with the machine and the work that it is valid for.
struct tuned_cores {
    tuning_key key;                ///< Machine and work.
    unsigned cores = 0;            ///< Cores of each rank for the optimizer.
    unsigned available_cores = 0;  ///< All cores of a rank.
    double cpuadam_cores_perc = 1; ///< The optimizer's share of all cores, 0 to 1, for configurations.
    bool finished = false;         ///< False if time ran out while more cores could still gain.
    std::size_t elements = 0;      ///< Elements of each rank in the timed steps.
    double step_s = 0;             ///< Step time of all ranks together on these cores, with these settings.
    std::vector<core_time> curve;  ///< Measured times with the default settings, by count.
    std::size_t max_chunk_elems = default_max_chunk_elems;   ///< Value for executor_options::max_chunk_elems.
    std::uint32_t prefetch_bytes = default_prefetch_bytes(); ///< Value for executor_options::prefetch_bytes.
    std::vector<tried_setting> tried;                        ///< Settings that were tried.
    std::vector<std::string> warnings; ///< Reasons not to trust the times, as texts; saved with the result.

    /// Returns the number of a rank's cores that the optimizer leaves to the host framework.
    [[nodiscard]] unsigned host_cores() const noexcept;
    /// Returns whether every core is worth using: the curve has no knee.
    [[nodiscard]] bool all() const noexcept;

    /// Returns the request with the tuned size, for select_cores(), which always leaves the host one core.
    [[nodiscard]] core_request request(core_request base) const;
    /// Returns the tuned options for the executor on a rank's cores.
    [[nodiscard]] executor_options options() const;
};

/// Checks that a saved result is valid for this machine and work.
/// @throws unavailable naming each difference.
void check_key(tuned_cores const& saved, tuning_key const& current);

// ---- Tuning

/// Options of tune_cores().
struct core_tuning_options {
    /// Time limit of the whole search. After it the result is marked as unfinished.
    double deadline_s = 60;
    /// Number of elements of each rank's arrays.
    ///
    /// 0: the arrays of all ranks together take 8 * (L3 caches + 32 MiB), as models do not fit into caches, or an
    /// eighth of the available memory if that is less.
    std::size_t elements = 0;
    isa tier = isa::automatic;       ///< Instruction set of the steps.
    core_search_options search = {}; ///< Options of the search. Its boundaries come from the machine.
    bool settings = true;            ///< Also try other executor settings on the final cores.
    double settings_worth = 0.03;    ///< Share by which another setting must be faster to replace the default.
    /// If set: called after each timed step, with its number of cores and its time.
    ///
    /// An exception ends the tuning.
    std::function<void(unsigned cores, double seconds)> on_step = {};
};

/// Measures how many cores the optimizer of each rank needs, and the best executor settings on them.
///
/// Adds cores as select_cores() would assign them, until the next one gains too little (core_search_options::worth), or
/// the CPU quota cannot keep more threads busy. All ranks step concurrently, in this process. Then tries other chunk
/// sizes and prefetch distances on these cores. The request's own size is ignored. Uses up to a quarter of the
/// available memory, and all cores and the memory bandwidth of the machine, so nothing else should run. Intended for
/// set-up, from one thread.
/// @throws invalid_argument for invalid options, and what select_cores(), team, memory_block and options.on_step throw.
[[nodiscard]] tuned_cores tune_cores(machine const& host, core_request const& request, shard_format const& format,
                                     core_tuning_options const& options = {});

// ---- The best ratio during training

/// Work and busy times of one step, from an optimizer's report.
///
/// A part without work gives no information on its rate.
struct measured_step {
    double cpu_elems = 0;    ///< Elements that the CPU stepped.
    double cpu_s = 0;        ///< Busy time of the CPU.
    double device_elems = 0; ///< Elements that the device stepped.
    double device_s = 0;     ///< Busy time of the device.
    double down_bytes = 0;   ///< Bytes copied from the device to the host.
    double down_s = 0;       ///< Busy time of these copies.
    double up_bytes = 0;     ///< Bytes copied from the host to the device.
    double up_s = 0;         ///< Busy time of these copies.
};

/// Returns the measurements of an optimizer's step.
///
/// A step that was redone counts with the time of all of its work.
[[nodiscard]] measured_step measured_step_of(optimizer_report const& step) noexcept;

/// Options of ratio_follower.
struct follower_options {
    double weight = 0.2; ///< Weight of a new measurement against all earlier ones.
    double worth = 0.02; ///< Share by which a new ratio must shorten the step to be proposed.
    double least = 0;    ///< Lower bound of the ratio, from the device's memory.
    double most = 1;     ///< Upper bound of the ratio, from the host's memory.
};

/// Tracks the rates of CPU, device and link during training, and proposes better ratios.
///
/// Every step is a new measurement, because the rates change with the machine's other load. Not thread-safe; a value
/// type.
class ratio_follower {
public:
    /// Starts with known or estimated rates.
    /// @throws invalid_argument for invalid rates or options.
    explicit ratio_follower(step_rates const& rates, follower_options const& options = {});

    /// Adds a step's measurements. The first one replaces the estimate, later ones count by their weight.
    ///
    /// Values that are not finite or not above 0 are ignored.
    void observe(measured_step const& step) noexcept;
    /// Sets the duration of backward and forward passes, which the caller measures.
    /// @throws invalid_argument for invalid times, and keeps the old ones.
    void set_times(double backward_s, double forward_s);

    /// Returns the current rates.
    [[nodiscard]] step_rates const& rates() const noexcept { return rates_; }
    /// Returns a ratio that justifies moving shards, given the current one; none: keep the current one.
    /// @throws invalid_argument if the current ratio is not from 0 to 1.
    [[nodiscard]] std::optional<double> proposal(double ratio) const;

private:
    // Averages times and not rates, because times are additive.
    void update_rate(double& rate, double amount, double seconds, bool& known) noexcept;

    step_rates rates_;
    follower_options options_;
    bool known_[4] = {}; // whether each rate has been measured
};

ADAMANT_END_NAMESPACE

#include <adamant/detail/tune/core_searcher.hpp>
#include <adamant/detail/tune/rank_trials.hpp>
#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/tune/core_search.ipp>
#include <adamant/detail/tune/core_tuning.ipp>
#include <adamant/detail/tune/ratio_follower.ipp>
#include <adamant/detail/tune/trial_step.ipp>
#include <adamant/detail/tune/tuned_cores.ipp>
#endif
