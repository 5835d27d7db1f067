// SPDX-License-Identifier: Apache-2.0
// A word in memory that one thread changes and others wait for, first spinning and then asleep.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include <sched.h>

#include <adamant/detail/core/abi.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

inline void relax() noexcept
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
}

// A time that lies a duration of any length after `now`.
[[nodiscard]] inline std::chrono::steady_clock::time_point time_after(std::chrono::steady_clock::time_point now,
                                                                      std::chrono::nanoseconds duration) noexcept
{
    return now + std::min(duration, std::chrono::steady_clock::time_point::max() - now);
}

// A word that one side changes and the other waits for. Waiters spin first, then sleep. Counts the sleepers itself:
// std::atomic's notify functions enter the kernel if any thread of the process sleeps on a word of the same hash.
class wait_word {
public:
    [[nodiscard]] std::uint32_t load() const noexcept { return value_.load(std::memory_order_acquire); }
    // Call wake() afterwards. The two are separate so that a lock can be released between them.
    void store(std::uint32_t value) noexcept { value_.store(value, std::memory_order_seq_cst); }
    // The same for many words, whose cache lines travel at the same time: store_early() in each, once fence(), then
    // wake() each.
    void store_early(std::uint32_t value) noexcept
    {
        value_.store(value, has_fences ? std::memory_order_release : std::memory_order_seq_cst);
    }
    static void fence() noexcept
    {
        if constexpr (has_fences)
            std::atomic_thread_fence(std::memory_order_seq_cst);
    }
    void wake() noexcept
    {
        if (sleepers_.load(std::memory_order_seq_cst) != 0)
            value_.notify_all();
    }
    // Blocks until the value differs from `old`, and returns it.
    std::uint32_t wait(std::uint32_t old, std::chrono::nanoseconds spin) noexcept
    {
        if (spin.count() > 0) {
            auto const until = time_after(std::chrono::steady_clock::now(), spin);
            do {
                for (int i = 0; i < 32; ++i) {
                    if (std::uint32_t const now = load(); now != old)
                        return now;
                    relax();
                }
                sched_yield(); // the thread that changes the value may need this PU
            } while (std::chrono::steady_clock::now() < until);
        }
        std::uint32_t now = load();
        if (now != old)
            return now;
        sleepers_.fetch_add(1, std::memory_order_seq_cst); // before the next load: see wake()
        while ((now = value_.load(std::memory_order_seq_cst)) == old)
            value_.wait(old, std::memory_order_acquire);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
        return now;
    }

private:
#if defined(__has_feature) // Clang
#if __has_feature(thread_sanitizer)
#define ADAMANT_NO_FENCES
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(ADAMANT_NO_FENCES) // ThreadSanitizer does not know fences
    static constexpr bool has_fences = false;
#else
    static constexpr bool has_fences = true;
#endif
#undef ADAMANT_NO_FENCES

    std::atomic<std::uint32_t> value_{0};
    std::atomic<std::uint32_t> sleepers_{0};
};

} // namespace detail
ADAMANT_END_NAMESPACE
