// SPDX-License-Identifier: Apache-2.0
// As much of the CUDA runtime as adamant uses, on the host, for tests without a GPU: the very kernels, compiled by the
// host's compiler. Streams are in earnest: what is enqueued is done later, in a thread that takes what can go on from
// any stream, in an order that nobody can count on. What a test may do to it: see namespace cuda_on_host.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/detail/numerics/float_mode.hpp>

#include "threads.h"

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900,
};
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
enum CUresult { CUDA_SUCCESS };
inline constexpr unsigned long long cudaEnableDefault = 0;
#define CUDART_VERSION 13000
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
inline constexpr unsigned cudaStreamNonBlocking = 1;
inline constexpr unsigned cudaHostAllocPortable = 1;

inline char const* cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    }
    return "unknown error";
}

struct cudaDeviceProp {
    char name[256];
    int major;
    int minor;
    int integrated;
    int pageableMemoryAccess;
};

namespace cuda_on_host {

// What can be made to fail when it is called; `kernel` fails when it runs, after which nothing works any more.
enum class call : unsigned char { allocate, allocate_host, copy, launch, record, host_function, kernel };

struct occurrence { // of an event
    bool done = false;
    std::chrono::steady_clock::time_point when;
};
struct event {
    std::shared_ptr<occurrence> last;
};
struct operation {
    std::function<cudaError_t()> run; // or
    std::shared_ptr<occurrence> record, wait;
};
struct stream {
    std::deque<operation> queue;
    bool busy = false; // with something that is in the queue no more
};
struct context {
    int device;
};
// What CUDA keeps for each thread.
inline thread_local context* current = nullptr; // null: no device has been used
inline thread_local cudaError_t last_error = cudaSuccess;
inline thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

// Pinned memory begins between pages, as small allocations of CUDA do.
inline constexpr std::size_t pinned_offset = 512;

class machine {
public:
    static machine& get()
    {
        static machine one;
        return one;
    }
    ~machine()
    {
        {
            std::lock_guard const lock(mutex);
            ends = true;
        }
        changed.notify_all();
        if (worker.joinable())
            worker.join();
        for (auto const& [address, bytes] : memory)
            std::free(reinterpret_cast<void*>(address));
        for (auto const& [address, bytes] : pinned) // of a device that had failed
            std::free(reinterpret_cast<void*>(address - pinned_offset));
    }

    // All under the mutex.
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t memory_bytes = std::size_t{1} << 30;
    std::size_t used_bytes = 0;
    std::map<std::uintptr_t, std::size_t> memory, pinned;
    std::vector<std::unique_ptr<stream>> streams;
    std::map<event*, std::unique_ptr<event>> events;
    std::map<call, std::pair<unsigned, cudaError_t>> faults; // how many calls until then
    cudaError_t sticky = cudaSuccess;                        // what a kernel has failed with
    bool held = false;
    bool flushes = false; // kernels run as if compiled with --ftz=true
    bool ends = false;
    int devices = 1;
    std::map<int, context> contexts; // of each device that was used
    bool captures = false;           // a thread captures a graph, in mode global
    bool capture_is_lost = false;    // because another thread made a call that this forbids
    int major = 9;
    bool integrated = false; // an APU, which uses the host's memory
    std::uint64_t launches = 0;
    std::thread worker;

    // A call that needs a context: without one, the runtime makes that of device 0.
    void use()
    {
        if (current == nullptr)
            current = &contexts.try_emplace(0, context{0}).first->second;
    }
    // A call that a capture in another thread forbids.
    cudaError_t unsafe()
    {
        use();
        if (!captures || capture_mode == cudaStreamCaptureModeRelaxed)
            return cudaSuccess;
        capture_is_lost = true;
        return cudaErrorStreamCaptureUnsupported;
    }
    // Whether this call is to fail, and with what.
    cudaError_t fault(call of)
    {
        use();
        if (sticky != cudaSuccess)
            return sticky;
        auto const at = faults.find(of);
        if (at == faults.end() || --at->second.first != 0)
            return cudaSuccess;
        cudaError_t const error = at->second.second;
        faults.erase(at);
        return error;
    }
    void push(stream* to, operation what)
    {
        to->queue.push_back(std::move(what));
        if (!worker.joinable())
            worker = std::thread([this] { serve(); });
        changed.notify_all();
    }
    // As CUDA does before it frees memory.
    void wait_until_idle(std::unique_lock<std::mutex>& lock)
    {
        changed.wait(lock, [&] {
            return sticky != cudaSuccess ||
                   std::all_of(streams.begin(), streams.end(), [](auto const& each) { return idle(each.get()); });
        });
    }
    static bool idle(stream const* of) { return of->queue.empty() && !of->busy; }
    bool is_device(void const* address, std::size_t bytes) const { return is_in(memory, address, bytes); }
    bool is_pinned(void const* address, std::size_t bytes) const { return is_in(pinned, address, bytes); }

private:
    static bool is_in(std::map<std::uintptr_t, std::size_t> const& all, void const* address, std::size_t bytes)
    {
        auto const begin = reinterpret_cast<std::uintptr_t>(address);
        auto after = all.upper_bound(begin);
        if (after == all.begin())
            return false;
        --after;
        return bytes <= after->second && begin - after->first <= after->second - bytes;
    }
    void serve()
    {
        block_runner blocks;
        runner = &blocks;
        std::unique_lock lock(mutex);
        std::uint64_t random = 1;
        while (!ends) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            stream* next = nullptr;
            for (std::size_t i = 0; i < streams.size() && !held; ++i) {
                stream* const s = streams[(i + (random >> 33)) % streams.size()].get();
                if (!s->queue.empty() && (!s->queue.front().wait || s->queue.front().wait->done)) {
                    next = s;
                    break;
                }
            }
            if (next == nullptr) {
                changed.wait(lock);
                continue;
            }
            operation const what = std::move(next->queue.front());
            next->queue.pop_front();
            if (what.record) {
                what.record->done = true;
                what.record->when = std::chrono::steady_clock::now();
            } else if (what.run && sticky == cudaSuccess) {
                next->busy = true;
                lock.unlock();
                cudaError_t const error = what.run();
                lock.lock();
                next->busy = false;
                if (error != cudaSuccess)
                    sticky = error;
            }
            changed.notify_all();
        }
    }
};

// Nothing that is enqueued is begun while it is held.
inline void hold(bool held)
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.held = held;
    m.changed.notify_all();
}
// The n-th call from now, of that kind, fails.
inline void fail(call of, unsigned n, cudaError_t error)
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.faults[of] = {n, error};
}
// How much memory the device has, and which compute capability; how many devices there are.
inline void set_device(std::size_t memory_bytes, int major = 9, int devices = 1)
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.memory_bytes = memory_bytes;
    m.major = major;
    m.devices = devices;
}
// Devices that are made from now on use the host's memory, as on an APU.
inline void set_integrated(bool integrated)
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.integrated = integrated;
}
// A thread captures a graph from now on, or no more.
inline void capture(bool captures)
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.captures = captures;
    m.capture_is_lost = false;
}
[[nodiscard]] inline bool capture_is_lost()
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    return m.capture_is_lost;
}
// The devices that have a context.
[[nodiscard]] inline std::vector<int> contexts()
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    std::vector<int> ordinals;
    for (auto const& [ordinal, each] : m.contexts)
        ordinals.push_back(ordinal);
    return ordinals;
}
// Call while no device exists.
inline void forget_contexts()
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.contexts.clear();
    current = nullptr;
}
// As if the process were a new one: what failed is forgotten, memory stays.
inline void restart()
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.sticky = cudaSuccess;
    m.faults.clear();
    m.held = m.flushes = false;
    m.changed.notify_all();
}
// Kernels run as if they had been compiled with --ftz=true.
inline void flush_subnormals(bool flushes)
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    m.flushes = flushes;
}
[[nodiscard]] inline std::uint64_t launches()
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    return m.launches;
}
[[nodiscard]] inline std::size_t used_bytes()
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    return m.used_bytes;
}

template <class... Parameters>
cudaError_t launch(void (*kernel)(Parameters...), unsigned grid, unsigned block, stream* in, Parameters... arguments)
{
    machine& m = machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.fault(call::launch); error != cudaSuccess)
        return error;
    if (grid == 0 || block == 0 || block > 1024)
        return cudaErrorInvalidValue;
    ++m.launches;
    cudaError_t const outcome = m.fault(call::kernel);
    m.push(in, {[=, flushes = m.flushes]() mutable {
                    auto body = [&] {
                        std::optional<adamant::float_mode_scope> mode;
                        if (flushes)
                            mode.emplace(adamant::subnormals::flushed);
                        kernel(arguments...);
                    };
                    for (unsigned b = 0; b < grid && outcome == cudaSuccess; ++b)
                        runner->run(b, block, body);
                    return outcome;
                },
                nullptr, nullptr});
    return cudaSuccess;
}

} // namespace cuda_on_host

#define ADAMANT_GPU_LAUNCH(kernel, grid, block, stream, ...)                                                           \
    (cuda_on_host::launch)((kernel), (grid), (block), (stream), __VA_ARGS__)

using cudaStream_t = cuda_on_host::stream*;
using cudaEvent_t = cuda_on_host::event*;

using CUcontext = cuda_on_host::context*;

// Keeps the error for cudaGetLastError(). Not all calls do.
inline cudaError_t returned(cudaError_t error)
{
    if (error != cudaSuccess)
        cuda_on_host::last_error = error;
    return error;
}
inline cudaError_t cudaGetLastError()
{
    return std::exchange(cuda_on_host::last_error, cudaSuccess);
}
inline CUresult get_current_context(CUcontext* context)
{
    *context = cuda_on_host::current;
    return CUDA_SUCCESS;
}
inline CUresult set_current_context(CUcontext context)
{
    cuda_on_host::current = context;
    return CUDA_SUCCESS;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found)
{
    *found = cudaDriverEntryPointSuccess;
    if (std::strcmp(name, "cuCtxGetCurrent") == 0)
        *function = reinterpret_cast<void*>(&get_current_context);
    else if (std::strcmp(name, "cuCtxSetCurrent") == 0)
        *function = reinterpret_cast<void*>(&set_current_context);
    else
        *found = cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode)
{
    std::swap(*mode, cuda_on_host::capture_mode);
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceCount(int* count)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    *count = m.devices;
    return m.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    *about = {};
    std::strcpy(about->name, "imitated GPU");
    about->major = m.major;
    about->integrated = about->pageableMemoryAccess = m.integrated;
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int ordinal)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (ordinal < 0 || ordinal >= m.devices)
        return returned(cudaErrorInvalidDevice);
    cuda_on_host::current = &m.contexts.try_emplace(ordinal, cuda_on_host::context{ordinal}).first->second;
    return returned(m.sticky); // as CUDA does
}
inline cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    *total_bytes = m.memory_bytes;
    *free_bytes = m.memory_bytes - std::min(m.memory_bytes, m.used_bytes);
    return m.sticky;
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.unsafe(); error != cudaSuccess)
        return returned(error);
    if (cudaError_t const error = m.fault(cuda_on_host::call::allocate); error != cudaSuccess)
        return returned(error);
    if (m.used_bytes > m.memory_bytes || bytes > m.memory_bytes - m.used_bytes)
        return returned(cudaErrorMemoryAllocation);
    // Ends where it ends, for the address sanitizer.
    void* made = nullptr;
    if (posix_memalign(&made, 256, bytes) != 0)
        return cudaErrorMemoryAllocation;
    std::memset(made, 0xa5, bytes);
    m.memory[reinterpret_cast<std::uintptr_t>(made)] = bytes;
    m.used_bytes += bytes;
    *memory = made;
    return cudaSuccess;
}
inline cudaError_t cudaFree(void* memory)
{
    auto& m = cuda_on_host::machine::get();
    std::unique_lock lock(m.mutex);
    if (cudaError_t const error = m.unsafe(); error != cudaSuccess)
        return returned(error);
    m.wait_until_idle(lock);
    auto const at = m.memory.find(reinterpret_cast<std::uintptr_t>(memory));
    if (at == m.memory.end())
        return cudaErrorInvalidValue;
    m.used_bytes -= at->second;
    m.memory.erase(at);
    std::free(memory);
    return cudaSuccess;
}
inline cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.unsafe(); error != cudaSuccess)
        return returned(error);
    if (cudaError_t const error = m.fault(cuda_on_host::call::allocate_host); error != cudaSuccess)
        return returned(error);
    void* page = nullptr;
    if (posix_memalign(&page, 4096, cuda_on_host::pinned_offset + bytes) != 0)
        return cudaErrorMemoryAllocation;
    *memory = static_cast<std::byte*>(page) + cuda_on_host::pinned_offset;
    m.pinned[reinterpret_cast<std::uintptr_t>(*memory)] = bytes;
    return cudaSuccess;
}
inline cudaError_t cudaFreeHost(void* memory)
{
    auto& m = cuda_on_host::machine::get();
    std::unique_lock lock(m.mutex);
    if (cudaError_t const error = m.unsafe(); error != cudaSuccess)
        return returned(error);
    m.wait_until_idle(lock);
    if (m.pinned.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0)
        return cudaErrorInvalidValue;
    std::free(static_cast<std::byte*>(memory) - cuda_on_host::pinned_offset);
    return cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    m.use();
    m.streams.push_back(std::make_unique<cuda_on_host::stream>());
    *made = m.streams.back().get();
    return cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t which)
{
    auto& m = cuda_on_host::machine::get();
    std::unique_lock lock(m.mutex);
    m.changed.wait(lock, [&] { return !which->busy; });
    std::erase_if(m.streams, [&](auto const& each) { return each.get() == which; });
    return cudaSuccess;
}
inline cudaError_t cudaStreamQuery(cudaStream_t which)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.unsafe(); error != cudaSuccess)
        return returned(error);
    return returned(m.sticky != cudaSuccess ? m.sticky : m.idle(which) ? cudaSuccess : cudaErrorNotReady);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* made)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    auto owner = std::make_unique<cuda_on_host::event>();
    *made = owner.get();
    m.events[*made] = std::move(owner);
    return cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t which)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    return m.events.erase(which) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}
inline cudaError_t cudaEventRecord(cudaEvent_t which, cudaStream_t in)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.fault(cuda_on_host::call::record); error != cudaSuccess)
        return error;
    which->last = std::make_shared<cuda_on_host::occurrence>();
    m.push(in, {nullptr, which->last, nullptr});
    return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t which)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.unsafe(); error != cudaSuccess)
        return returned(error);
    if (m.sticky != cudaSuccess)
        return returned(m.sticky);
    return returned(which->last == nullptr || which->last->done ? cudaSuccess : cudaErrorNotReady);
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (begin->last == nullptr || end->last == nullptr)
        return cudaErrorInvalidResourceHandle;
    if (!begin->last->done || !end->last->done)
        return cudaErrorNotReady;
    *ms = std::chrono::duration<float, std::milli>(end->last->when - begin->last->when).count();
    return cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t which, cudaEvent_t before, unsigned)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (m.sticky != cudaSuccess)
        return m.sticky;
    if (before->last != nullptr)
        m.push(which, {nullptr, nullptr, before->last});
    return cudaSuccess;
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t in, void (*function)(void*), void* data)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.fault(cuda_on_host::call::host_function); error != cudaSuccess)
        return error;
    m.push(in, {[=] {
                    function(data);
                    return cudaSuccess;
                },
                nullptr, nullptr});
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t in)
{
    auto& m = cuda_on_host::machine::get();
    std::unique_lock lock(m.mutex);
    if (cudaError_t const error = m.fault(cuda_on_host::call::copy); error != cudaSuccess)
        return error;
    bool const up = kind == cudaMemcpyHostToDevice;
    if (!m.is_device(up ? to : from, bytes))
        return cudaErrorInvalidValue;
    if (up && !m.is_pinned(from, bytes)) { // read before the call returns
        auto const* const begin = static_cast<std::byte const*>(from);
        m.push(in, {[to, copy = std::vector<std::byte>(begin, begin + bytes)] {
                        std::memcpy(to, copy.data(), copy.size());
                        return cudaSuccess;
                    },
                    nullptr, nullptr});
        return cudaSuccess;
    }
    m.push(in, {[=] {
                    std::memcpy(to, from, bytes);
                    return cudaSuccess;
                },
                nullptr, nullptr});
    if (!up && !m.is_pinned(to, bytes)) // written before the call returns
        m.changed.wait(lock, [&] { return m.idle(in) || m.sticky != cudaSuccess; });
    return m.sticky;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t in)
{
    auto& m = cuda_on_host::machine::get();
    std::lock_guard const lock(m.mutex);
    if (cudaError_t const error = m.fault(cuda_on_host::call::copy); error != cudaSuccess)
        return error;
    if (!m.is_device(memory, bytes))
        return cudaErrorInvalidValue;
    m.push(in, {[=] {
                    std::memset(memory, value, bytes);
                    return cudaSuccess;
                },
                nullptr, nullptr});
    return cudaSuccess;
}
