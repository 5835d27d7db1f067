// SPDX-License-Identifier: Apache-2.0
// Timed optimizer steps of all ranks of a machine, on a given number of cores of each.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/cores.hpp>
#include <adamant/detail/core/default_mode.hpp>
#include <adamant/detail/tune/trial_step.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Returns the number of the machine's cores that have a PU in the set.
inline unsigned cores_in(machine const& host, pu_set const& pus)
{
    unsigned count = 0;
    for (topology::core const& c : host.cores)
        count += c.pus.intersects(pus);
    return count;
}

// Returns each rank's cores with `count` of its `total` cores for the optimizer. select_cores() keeps one core for the
// host; a trial may give the optimizer all of them.
inline std::vector<rank_cores> cores_for_trial(machine const& host, core_request request, unsigned count,
                                               unsigned total)
{
    request.cpuadam_cores_perc.reset();
    request.pt_reserved_cores.reset();
    request.pt_reserved_cores_perc.reset();
    request.cpuadam_cores = std::max(1u, std::min(count, total - 1));
    std::vector<rank_cores> ranks = select_cores(host, request);
    for (rank_cores& r : ranks)
        for (topology::core const& c : host.cores)
            if (c.pus.intersects(r.host_pus) && cores_in(host, r.adam_pus) < count) {
                r.adam_pus |= c.pus & r.host_pus;
                r.host_pus = r.host_pus - c.pus;
                if (c.node < host.nodes.size() && host.nodes[c.node].allowed && !r.numa_nodes.empty())
                    r.numa_nodes.insert(host.nodes[c.node].os_index);
            }
    return ranks;
}

// Returns the smallest number of cores of any rank.
inline unsigned cores_of_each_rank(machine const& host, core_request request)
{
    request.cpuadam_cores_perc = 1;
    request.cpuadam_cores.reset();
    request.pt_reserved_cores.reset();
    request.pt_reserved_cores_perc.reset();
    unsigned least = 0;
    for (rank_cores const& r : select_cores(host, request)) {
        unsigned const count = cores_in(host, r.adam_pus | r.host_pus);
        least = least == 0 ? count : std::min(least, count);
    }
    return least;
}

// Returns the number of elements of a rank's arrays: far more than fits in the caches, within the available memory.
inline std::size_t trial_elements(machine const& host, shard_format const& format, unsigned ranks)
{
    std::size_t cached = std::size_t{32} << 20;
    for (topology::cache const& c : host.caches)
        cached += c.level == 3 ? c.bytes : 0;
    double const elem_bytes = memory_bytes(format.types) * ranks;
    // The two counts that are compared allocate arrays at the same time.
    double const max_bytes = static_cast<double>(available_memory().bytes) / 8;
    double const target_bytes = 8 * static_cast<double>(cached);
    auto const elems = static_cast<std::size_t>(std::min(target_bytes, max_bytes) / elem_bytes);
    return std::max<std::size_t>(elems / granule_elems, 1) * granule_elems;
}

// Teams and arrays of all ranks on a number of cores.
class rank_trials {
public:
    // Reuses the arrays of `previous`, which may be null, if both place each rank's arrays in the same single node.
    rank_trials(machine const& host, core_request const& request, unsigned count, unsigned total,
                shard_format const& format, std::size_t elements, isa tier, rank_trials const* previous = nullptr)
        : count_(count)
    {
        std::vector<rank_cores> const ranks = cores_for_trial(host, request, count, total);
        bool single_node = true;
        for (rank_cores const& r : ranks) {
            nodes_.push_back(r.numa_nodes);
            single_node = single_node && r.numa_nodes.size() == 1;
            executors_.emplace_back(std::make_shared<team>(team_options{.pus = r.adam_pus}),
                                    executor_options{.tier = tier});
        }
        if (previous != nullptr && single_node && nodes_ == previous->nodes_) {
            steps_ = previous->steps_;
        } else {
            steps_ = std::make_shared<std::vector<trial_step>>();
            for (std::size_t r = 0; r < ranks.size(); ++r)
                steps_->emplace_back(executors_[r], format, elements, memory_options{.nodes = nodes_[r]});
        }
        for (int i = 0; i < 2; ++i) // warm-up: the system does one-time work on the pages
            seconds();
    }
    [[nodiscard]] unsigned count() const noexcept { return count_; }

    // Returns the time from the common start of all ranks until the last one has finished.
    double seconds() { return seconds(executors_); }
    // Measures with other executor settings, on the same teams.
    double seconds(executor_options const& settings)
    {
        std::vector<executor> changed;
        for (executor const& cpu : executors_)
            changed.emplace_back(cpu.team(), settings);
        return seconds(changed);
    }
    // Measures without a pause. Call pause() before.
    double seconds_now() { return seconds_now(executors_); }
    // Waits until the threads of other teams have stopped spinning and sleep.
    static void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

private:
    double seconds(std::vector<executor> const& executors)
    {
        pause();
        return seconds_now(executors);
    }
    double seconds_now(std::vector<executor> const& executors)
    {
        using clock = std::chrono::steady_clock;
        if (executors.size() == 1)
            return (*steps_)[0].seconds(executors[0]);
        std::barrier<> start(static_cast<std::ptrdiff_t>(executors.size()));
        // Each rank records its own times, because a watching thread might have to wait for a PU.
        std::vector<clock::time_point> begin(executors.size());
        std::vector<clock::time_point> end(executors.size());
        {
            std::vector<std::jthread> ranks;
            for (std::size_t r = 0; r < executors.size(); ++r)
                ranks.emplace_back([&, r] {
                    start.arrive_and_wait();
                    begin[r] = clock::now();
                    (*steps_)[r].seconds(executors[r]);
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

ADAMANT_END_NAMESPACE
