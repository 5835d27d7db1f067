// SPDX-License-Identifier: Apache-2.0
// Definitions of host_load.hpp.
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
constexpr std::size_t source_copies = 64;                    // more than caches hold, so that copies read memory
constexpr std::size_t value_count = 4096;                    // a schedule, a loss

void bind_this_thread(adamant::pu_set const& pus)
{
    cpu_set_t mask;
    CPU_ZERO(&mask);
    for (unsigned const pu : pus.members())
        if (pu < CPU_SETSIZE)
            CPU_SET(pu, &mask);
    // If the system refuses, the thread runs on any PU and is still a load.
    (void)sched_setaffinity(0, sizeof mask, &mask);
}

} // namespace

struct host_load::thread_state {
    std::thread thread;
    std::vector<std::byte> source = std::vector<std::byte>(copied_bytes * source_copies);
    std::vector<std::byte> target = std::vector<std::byte>(copied_bytes);
    std::vector<float> values = std::vector<float>(value_count, 1.5f);
    std::mutex mutex;
    std::deque<std::function<void()>> queue; // like the queue of a device's launches
    double seconds = 0;

    void iterate(std::size_t number)
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
        std::memcpy(target.data(), source.data() + number % source_copies * copied_bytes, copied_bytes);
        for (float& x : values)
            x = std::sqrt(x * x + static_cast<float>(target[0] == std::byte{1}));
    }
};

host_load::host_load(unsigned threads)
{
    adamant::check_memory(threads * copied_bytes * (source_copies + 1));
    states_ = std::vector<thread_state>(threads);
}
host_load::~host_load()
{
    join(); // if starting a thread has failed
}

void host_load::start(adamant::pu_set const& pus)
{
    for (thread_state& state : states_)
        state.thread = std::thread([this, &state, pus] {
            bind_this_thread(pus);
            auto const begin = std::chrono::steady_clock::now();
            for (std::size_t i = 0; i < iterations_; ++i)
                state.iterate(i);
            state.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
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
