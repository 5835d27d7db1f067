// SPDX-License-Identifier: Apache-2.0
// Which process this is, without asking the system each time.
#pragma once

#include <atomic>

#include <pthread.h>
#include <unistd.h>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline std::atomic<pid_t> known_process{0};

// As getpid(), which is a system call, and most of what a look at whether a team is in its own process would cost.
// fork() has the child forget what its parent knew; a bare clone() does not.
inline pid_t this_process() noexcept
{
    static bool const is_told_of_forks =
        pthread_atfork(nullptr, nullptr, [] { known_process.store(0, std::memory_order_relaxed); }) == 0;
    if (!is_told_of_forks)
        return getpid();
    if (pid_t const known = known_process.load(std::memory_order_relaxed); known != 0)
        return known;
    pid_t const found = getpid();
    known_process.store(found, std::memory_order_relaxed);
    return found;
}

} // namespace detail
ADAMANT_END_NAMESPACE
