// SPDX-License-Identifier: Apache-2.0
// Every rank's team and arrays on a number of cores, to be timed.
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include <adamant/exec/executor.hpp>
#include <adamant/exec/memory_limits.hpp>
#include <adamant/topology/selection.hpp>
#include <adamant/tune/trial_step.hpp>

ADAMANT_BEGIN_NAMESPACE
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
ADAMANT_END_NAMESPACE
