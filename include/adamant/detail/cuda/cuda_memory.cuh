// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device, and pinned memory of the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <adamant/detail/cuda/cuda_streams.cuh>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

[[nodiscard]] inline void* address_of(device_ptr memory) noexcept
{
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory.address));
}

// Throws device_error.
[[nodiscard]] inline device_memory memory_of(stream_set const& on)
{
    on.check_process();
    device_scope const scope(on.ordinal());
    device_memory result;
    if (cudaError_t const error = cudaMemGetInfo(&result.free_bytes, &result.total_bytes); error != cudaSuccess) {
        (void)cudaGetLastError();
        throw_device_error({on.name(), " does not say how much memory it has: ", cudaGetErrorString(error)});
    }
    return result;
}

// See device::allocate().
[[nodiscard]] inline device_ptr allocate(stream_set const& on, std::size_t bytes)
{
    on.check_process();
    if (bytes == 0)
        return {};
    device_scope const scope(on.ordinal());
    void* memory = nullptr;
    cudaError_t const error = cudaMalloc(&memory, bytes);
    if (error == cudaSuccess)
        return {reinterpret_cast<std::uintptr_t>(memory)};
    (void)cudaGetLastError();
    if (error != cudaErrorMemoryAllocation)
        throw_device_error({on.name(), " failed to allocate ", bytes, " bytes: ", cudaGetErrorString(error)});
    device_memory const found = memory_of(on);
    throw_unavailable({on.name(), " is asked for ", bytes, " bytes, but has only ", found.free_bytes, " of ",
                       found.total_bytes,
                       " free (or no contiguous range of that size); set a larger ratio, so that more stays with the "
                       "CPU, or free memory that other programs and libraries hold"});
}
inline void release(stream_set const& on, device_ptr memory) noexcept
{
    if (!memory || !on.in_this_process())
        return;
    device_scope const scope(on.ordinal());
    if (cudaFree(address_of(memory)) != cudaSuccess)
        (void)cudaGetLastError();
}

// See device::pinned(). The deleter knows nothing of the device: it may be gone.
[[nodiscard]] inline std::shared_ptr<std::byte> pinned(stream_set const& on, std::size_t bytes)
{
    constexpr std::size_t page = 4096;
    on.check_process();
    device_scope const scope(on.ordinal());
    void* memory = nullptr;
    // Whole pages, at least one, and one more because CUDA's small allocations begin anywhere in a page.
    std::size_t const rounded = (bytes / page + 2) * page;
    if (cudaError_t const error = cudaHostAlloc(&memory, rounded, cudaHostAllocPortable); error != cudaSuccess) {
        (void)cudaGetLastError();
        throw_unavailable({on.name(), " was asked for ", bytes,
                           " bytes of pinned host memory, and got none: ", cudaGetErrorString(error),
                           error == cudaErrorMemoryAllocation
                               ? "; free host memory, or raise the limit on locked memory (ulimit -l)"
                               : "; look for earlier errors of this device"});
    }
    std::shared_ptr<void> owner(memory, [process = this_process()](void* at) {
        if (this_process() == process && cudaFreeHost(at) != cudaSuccess)
            (void)cudaGetLastError();
    });
    std::size_t const offset = (0 - reinterpret_cast<std::uintptr_t>(memory)) % page;
    return {owner, static_cast<std::byte*>(memory) + offset};
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
