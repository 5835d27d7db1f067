// SPDX-License-Identifier: Apache-2.0
// Threads that imitate a framework's host threads while the optimizer steps: they launch work, copy, compute a little.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/index_set.hpp>

namespace cli {

class host_load {
public:
    explicit host_load(unsigned threads);

    // Iterations of each thread; one takes some tens of microseconds on a core without other work.
    void set_iterations(std::size_t n) { iterations_ = n; }
    [[nodiscard]] std::size_t iterations() const { return iterations_; }

    // Starts all threads, each allowed to run on any of these PUs, calls `work` in the calling thread meanwhile, and
    // returns the time of the slowest thread. An exception from `work` propagates after the threads have ended.
    template <class Work>
    double run(adamant::pu_set const& pus, Work const& work)
    {
        start(pus);
        struct join_guard {
            host_load& load;
            ~join_guard() { load.join(); }
        };
        {
            join_guard const guard{*this};
            work();
        }
        return slowest_;
    }

private:
    void start(adamant::pu_set const& pus);
    void join();

    struct thread_state;
    std::vector<thread_state> states_;
    std::size_t iterations_ = 1;
    double slowest_ = 0;

public:
    ~host_load();
    host_load(host_load const&) = delete;
    host_load& operator=(host_load const&) = delete;
};

} // namespace cli
