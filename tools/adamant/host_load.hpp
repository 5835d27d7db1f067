// SPDX-License-Identifier: Apache-2.0
// Threads that do what a framework's host side does beside the optimizer: hand work over, copy, compute a little.
#pragma once

#include <cstddef>
#include <vector>

#include <adamant/index_set.hpp>

namespace cli {

class host_load {
public:
    explicit host_load(unsigned threads);

    // How many turns each thread takes; a turn is some tens of microseconds on a core of its own.
    void set_turns(std::size_t turns) { turns_ = turns; }
    [[nodiscard]] std::size_t turns() const { return turns_; }

    // Starts all threads, each free to go where it likes on these PUs, has the calling thread do `beside` meanwhile,
    // and returns how long the slowest of them took. Throws what `beside` throws, after they are through.
    template <class Beside>
    double run(adamant::pu_set const& on, Beside const& beside)
    {
        start(on);
        struct joined {
            host_load& load;
            ~joined() { load.join(); }
        };
        {
            joined const at_end{*this};
            beside();
        }
        return slowest_;
    }

private:
    void start(adamant::pu_set const& on);
    void join();

    struct thread_state;
    std::vector<thread_state> states_;
    std::size_t turns_ = 1;
    double slowest_ = 0;

public:
    ~host_load();
    host_load(host_load const&) = delete;
    host_load& operator=(host_load const&) = delete;
};

} // namespace cli
