// SPDX-License-Identifier: Apache-2.0
// Tries whether threads can be made before OpenMP is asked for them: where it cannot make one, GCC's runtime and
// LLVM's end the process.
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

// Of the calling thread, as it is; 0 where the system cannot say.
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

// The stack that OpenMP asks for when it makes a thread, or a little more, so that it gets those of a trial again (the
// C library keeps some for who is next, which count as taken); 0: the system's usual.
inline std::size_t openmp_stack_bytes()
{
#if defined(KMP_VERSION_MAJOR)                             // LLVM's and Intel's
    return kmp_get_stacksize_s() + (std::size_t{1} << 18); // it gives each thread some bytes more than the last
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
        switch (*unit | 0x20) { // a small letter; none at all means kilobytes
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

// In LLVM's runtime the first threads run while the others are made, and a thread's first allocation may reserve 64 MiB
// of addresses, which the last ones' stacks then lack. In GCC's they wait for each other first.
#if defined(KMP_VERSION_MAJOR)
inline constexpr bool early_threads_allocate = true;
#else
inline constexpr bool early_threads_allocate = false;
#endif

// Creates this many threads, all alive together, and ends them before it returns: stacks, places in the system's limits
// and all; so who makes as many right afterwards gets them, unless others take them first. Throws unavailable where the
// system does not make them, and bad_alloc where beside them there is no memory for what a runtime allocates.
inline void probe_threads(unsigned threads, std::size_t stack_bytes)
{
    struct one {
        std::atomic<std::uint32_t>* allocated;
        std::atomic<bool>* over;
        pthread_t handle;
        pid_t id;
    };
    std::atomic<std::uint32_t> allocated{0};
    std::atomic<bool> over{false};
    std::vector<one> tried(threads);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        throw std::bad_alloc();
    if (stack_bytes != 0) // one that cannot be is not taken by OpenMP either
        static_cast<void>(pthread_attr_setstacksize(&attributes, stack_bytes));
    pthread_attr_getstacksize(&attributes, &stack_bytes);
    auto const run = [](void* argument) -> void* {
        auto& self = *static_cast<one*>(argument);
        self.id = static_cast<pid_t>(syscall(SYS_gettid));
        if (early_threads_allocate) {
            static_cast<void>(probe_allocation(1));
            self.allocated->fetch_add(1);
            self.allocated->notify_one();
        }
        self.over->wait(false);
        return nullptr;
    };
    std::uint32_t made = 0;
    int error = 0;
    while (made < threads) {
        tried[made].allocated = &allocated;
        tried[made].over = &over;
        if (error = pthread_create(&tried[made].handle, &attributes, run, &tried[made]); error != 0)
            break;
        ++made;
        for (std::uint32_t now = allocated; early_threads_allocate && now != made; now = allocated)
            allocated.wait(now);
    }
    pthread_attr_destroy(&attributes);
    bool const has_room = error != 0 || probe_allocation((std::size_t{1} << 20) + (std::size_t{32} << 10) * threads);
    over = true;
    over.notify_all();
    for (std::uint32_t i = 0; i < made; ++i)
        pthread_join(tried[i].handle, nullptr);
    // A thread that has been joined still counts until the kernel has taken it off its lists. It does not take long.
    for (std::uint32_t i = 0; i < made; ++i)
        for (int patience = 0; patience < 100000 && syscall(SYS_tgkill, getpid(), tried[i].id, 0) == 0; ++patience)
            std::this_thread::yield();
    if (error != 0)
        throw_unavailable({threads + 1, " threads were requested, but the system makes only ", made + 1, " (",
                           std::strerror(error), "), with stacks of ", stack_bytes, " bytes; ",
                           advice_on(error, "check the limits on threads (ulimit -u, the cgroup's pids.max, "
                                            "kernel.threads-max, vm.max_map_count) and on memory (ulimit -v, ulimit "
                                            "-s, OMP_STACKSIZE), or request fewer")});
    if (!has_room)
        throw std::bad_alloc();
}

} // namespace detail
ADAMANT_END_NAMESPACE
