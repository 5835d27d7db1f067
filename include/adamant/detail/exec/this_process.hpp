// SPDX-License-Identifier: Apache-2.0
// The cached process id, and guards for objects that belong to one process and must not be used after a fork.
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

// getpid(), cached: the system call would dominate the cost of checking whether a team belongs to this process.
// fork() resets the cache in the child; a bare clone() does not.
[[gnu::noinline]] inline pid_t this_process() noexcept
{
    static bool const has_fork_handler =
        pthread_atfork(nullptr, nullptr, [] { known_process.store(0, std::memory_order_relaxed); }) == 0;
    if (!has_fork_handler)
        return getpid();
    if (pid_t const known = known_process.load(std::memory_order_relaxed); known != 0)
        return known;
    pid_t const process = getpid();
    known_process.store(process, std::memory_order_relaxed);
    return process;
}

// Throws unavailable in a process that was forked from `owner`. object: for the message, such as "a team".
inline void require_process(pid_t owner, std::string_view object)
{
    if (this_process() != owner)
        throw_unavailable({"cannot use ", object, " of process ", owner, " in process ", getpid(),
                           ", which was forked from it: threads do not survive a fork. Make another one after the "
                           "fork."});
}

// Holds a T and destroys it only in the process that created it. A forked process leaks the T. The threads that used
// it do not exist there and may have stopped in the middle of a change, so a destructor could wait for them forever or
// free half-written data.
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
