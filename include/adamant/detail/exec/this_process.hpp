// SPDX-License-Identifier: Apache-2.0
// Which process this is, without asking the system each time, and what belongs to one process only.
#pragma once

#include <atomic>
#include <string_view>
#include <utility>

#include <pthread.h>
#include <unistd.h>

#include <adamant/error.hpp>

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

// Throws unavailable in a process that was forked from `owner`. what: "a team", say.
inline void require_process(pid_t owner, std::string_view what)
{
    if (this_process() != owner)
        throw_unavailable({"cannot use ", what, " of process ", owner, " in process ", getpid(),
                           ", which was forked from it: threads do not survive a fork. Make another one after the "
                           "fork."});
}

// A T that only the process that made it destroys. In a process forked from that one the threads that used the T are
// gone, perhaps during a change: a destructor there could wait for them forever, or free what is half written.
// So that process leaks it.
template <class T>
class process_bound {
public:
    template <class... Args>
    explicit process_bound(Args&&... args) : value_(std::forward<Args>(args)...)
    {
    }
    process_bound(process_bound const&) = delete;
    process_bound& operator=(process_bound const&) = delete;
    ~process_bound()
    {
        if (in_this_process())
            value_.~T();
    }

    [[nodiscard]] bool in_this_process() const noexcept { return this_process() == process_; }
    [[nodiscard]] pid_t process() const noexcept { return process_; }
    [[nodiscard]] T& operator*() noexcept { return value_; }
    [[nodiscard]] T const& operator*() const noexcept { return value_; }
    [[nodiscard]] T* operator->() noexcept { return &value_; }
    [[nodiscard]] T const* operator->() const noexcept { return &value_; }

private:
    pid_t process_ = this_process();
    union {
        T value_;
    };
};

} // namespace detail
ADAMANT_END_NAMESPACE
