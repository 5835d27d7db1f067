// SPDX-License-Identifier: Apache-2.0
// Probes whether threads can be created before OpenMP creates them: GCC's and LLVM's runtimes end the process if a
// thread cannot be created.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <adamant/error.hpp>
#include <adamant/detail/core/probe_allocation.hpp>
#include <adamant/detail/core/refused_call.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// A step uses 23 KiB of stack, or 62 KiB if compiled for AVX2 without optimisation. A step over a list uses 27 KiB
// more, for the buffer in which it gathers small shards.
inline constexpr std::size_t min_stack_bytes = 131072;

// Returns the stack size of the calling thread, or 0 if it is unknown.
inline std::size_t stack_bytes_of_this_thread() noexcept
{
    std::size_t bytes = 0;
    pthread_attr_t attributes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0)
        return 0;
    void* lowest = nullptr;
    pthread_attr_getstack(&attributes, &lowest, &bytes);
    pthread_attr_destroy(&attributes);
    return bytes;
}

#if defined(_OPENMP)

// Returns the stack size that OpenMP requests for a thread, or slightly more. OpenMP then reuses the stacks of the
// probe: the C library caches the stacks of ended threads, and cached stacks count against the limits. 0: the system's
// default.
inline std::size_t openmp_stack_bytes()
{
#if defined(KMP_VERSION_MAJOR)                             // LLVM's and Intel's runtimes
    return kmp_get_stacksize_s() + (std::size_t{1} << 18); // each thread gets a few bytes more than the one before
#else
    for (char const* const name : {"OMP_STACKSIZE", "GOMP_STACKSIZE"}) {
        char const* const value = std::getenv(name);
        if (value == nullptr)
            continue;
        char* unit = nullptr;
        std::size_t const number = std::strtoull(value, &unit, 10);
        if (unit == value)
            continue;
        while (*unit == ' ' || *unit == '\t')
            ++unit;
        switch (*unit | 0x20) { // lower case; without a unit, the number is in kilobytes
        case 'b': return number;
        case 'm': return number << 20;
        case 'g': return number << 30;
        default: return number << 10;
        }
    }
    return 0;
#endif
}

#endif

// In LLVM's runtime the first threads run while later ones are created. A thread's first allocation may reserve 64 MiB
// of address space, which the stacks of the later threads then lack. In GCC's runtime threads wait for each other
// first.
#if defined(KMP_VERSION_MAJOR)
inline constexpr bool early_threads_allocate = true;
#else
inline constexpr bool early_threads_allocate = false;
#endif

// Creates `threads` threads that exist at the same time, and ends them before it returns. Their stacks and their share
// of the system's limits are free again then, so the caller can create as many, unless another process takes them
// first. Throws unavailable if the system refuses a thread, and bad_alloc if the memory left beside the threads is too
// small for an OpenMP runtime's own allocations.
[[gnu::noinline]] inline void probe_threads(unsigned threads, std::size_t stack_bytes)
{
    struct probe {
        std::atomic<std::uint32_t>* allocated;
        std::atomic<bool>* finished;
        pthread_t handle;
        pid_t id;
    };
    std::atomic<std::uint32_t> allocated{0};
    std::atomic<bool> finished{false};
    std::vector<probe> probes(threads);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        throw std::bad_alloc();
    if (stack_bytes != 0) // OpenMP, too, ignores a size that the system refuses
        static_cast<void>(pthread_attr_setstacksize(&attributes, stack_bytes));
    pthread_attr_getstacksize(&attributes, &stack_bytes);
    auto const run = [](void* argument) -> void* {
        auto& self = *static_cast<probe*>(argument);
        self.id = static_cast<pid_t>(syscall(SYS_gettid));
        if (early_threads_allocate) {
            static_cast<void>(probe_allocation(1));
            self.allocated->fetch_add(1);
            self.allocated->notify_one();
        }
        self.finished->wait(false);
        return nullptr;
    };
    std::uint32_t created = 0;
    int error = 0;
    while (created < threads) {
        probes[created].allocated = &allocated;
        probes[created].finished = &finished;
        if (error = pthread_create(&probes[created].handle, &attributes, run, &probes[created]); error != 0)
            break;
        ++created;
        for (std::uint32_t now = allocated; early_threads_allocate && now != created; now = allocated)
            allocated.wait(now);
    }
    pthread_attr_destroy(&attributes);
    bool const has_room = error != 0 || probe_allocation((std::size_t{1} << 20) + (std::size_t{32} << 10) * threads);
    finished = true;
    finished.notify_all();
    for (std::uint32_t i = 0; i < created; ++i)
        pthread_join(probes[i].handle, nullptr);
    // A joined thread still counts against the limits until the kernel has removed it, which is soon.
    for (std::uint32_t i = 0; i < created; ++i)
        for (int tries = 0; tries < 100000 && syscall(SYS_tgkill, getpid(), probes[i].id, 0) == 0; ++tries)
            std::this_thread::yield();
    if (error != 0)
        throw_unavailable({"cannot start ", counted(threads + 1, "thread"), ": the system allows only ", created + 1,
                           " with stacks of ", stack_bytes, " bytes (", std::strerror(error), "); ",
                           advice_on(error, "check the limits on threads (ulimit -u, the cgroup's pids.max, "
                                            "kernel.threads-max, vm.max_map_count) and on memory (ulimit -v, ulimit "
                                            "-s, OMP_STACKSIZE), or request fewer")});
    if (!has_room)
        throw std::bad_alloc();
}

} // namespace detail
ADAMANT_END_NAMESPACE
