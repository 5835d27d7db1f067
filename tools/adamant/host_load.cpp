// SPDX-License-Identifier: Apache-2.0
#include "host_load.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <sched.h>

#include <adamant/memory.hpp>

namespace cli {

namespace {

constexpr std::size_t copied_bytes = std::size_t{128} << 10; // a batch, a bucket's header, logs
constexpr std::size_t copies_apart = 64;                     // so that they come from memory
constexpr std::size_t computed = 4096;                       // of a schedule, a loss

void bind_here(adamant::pu_set const& on)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (unsigned const pu : on.members())
        if (pu < CPU_SETSIZE)
            CPU_SET(pu, &mask);
    // Where that is refused the threads run anywhere: a load it is all the same.
    (void)sched_setaffinity(0, sizeof mask, &mask);
}

} // namespace

struct host_load::thread_state {
    std::thread thread;
    std::vector<std::byte> from = std::vector<std::byte>(copied_bytes * copies_apart);
    std::vector<std::byte> to = std::vector<std::byte>(copied_bytes);
    std::vector<float> values = std::vector<float>(computed, 1.5f);
    std::mutex mutex;
    std::deque<std::function<void()>> queue; // as launches go to a device's
    double seconds = 0;

    void turn(std::size_t number)
    {
        for (int i = 0; i < 16; ++i) { // launching: an allocation, a lock, a call through a pointer
            std::lock_guard const lock(mutex);
            queue.emplace_back([this, i] { values[static_cast<std::size_t>(i)] += 1; });
        }
        while (!queue.empty()) {
            std::lock_guard const lock(mutex);
            queue.front()();
            queue.pop_front();
        }
        std::memcpy(to.data(), from.data() + number % copies_apart * copied_bytes, copied_bytes);
        for (float& x : values)
            x = std::sqrt(x * x + static_cast<float>(to[0] == std::byte{1}));
    }
};

host_load::host_load(unsigned threads)
{
    adamant::check_memory(threads * copied_bytes * (copies_apart + 1));
    states_ = std::vector<thread_state>(threads);
}
host_load::~host_load()
{
    join(); // where not all could be started
}

void host_load::start(adamant::pu_set const& on)
{
    for (thread_state& state : states_)
        state.thread = std::thread([this, &state, on] {
            bind_here(on);
            auto const from = std::chrono::steady_clock::now();
            for (std::size_t i = 0; i < turns_; ++i)
                state.turn(i);
            state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
        });
}

void host_load::join()
{
    slowest_ = 0;
    for (thread_state& state : states_) {
        if (state.thread.joinable())
            state.thread.join();
        slowest_ = std::max(slowest_, state.seconds);
    }
}

} // namespace cli
