// SPDX-License-Identifier: Apache-2.0
// Which process this is, without asking the system each time.
#pragma once

#include <atomic>
#include <cstddef>

#include <sys/mman.h>
#include <unistd.h>

#include <adamant/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// As getpid(), which is a system call, and most of what a look at whether a team is in its own process would cost. Kept
// in a page that the kernel empties in whatever is forked.
inline pid_t this_process() noexcept
{
    static pid_t* const kept = []() -> pid_t* {
        auto const bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            return nullptr;
        if (madvise(page, bytes, MADV_WIPEONFORK) == 0) // since Linux 4.14
            return static_cast<pid_t*>(page);
        munmap(page, bytes);
        return nullptr;
    }();
    if (kept == nullptr)
        return getpid();
    std::atomic_ref<pid_t> const id(*kept);
    if (pid_t const known = id.load(std::memory_order_relaxed); known != 0)
        return known;
    pid_t const found = getpid();
    id.store(found, std::memory_order_relaxed);
    return found;
}

} // namespace detail
ADAMANT_END_NAMESPACE
