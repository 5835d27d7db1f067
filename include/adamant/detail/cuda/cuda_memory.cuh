// SPDX-License-Identifier: Apache-2.0
// Memory of a CUDA device, copies to and from it, and pinned host memory.
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

// Returns the device's total and free memory. Throws device_error.
[[nodiscard]] inline device_memory memory_of(stream_set const& streams)
{
    streams.check_process();
    device_scope const scope(streams.ordinal());
    device_memory result;
    cudaError_t const error =
        scope.error() != cudaSuccess ? scope.error() : cudaMemGetInfo(&result.free_bytes, &result.total_bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        throw_device_error({"cannot read the memory size of ", streams.name(), ": ", cudaGetErrorString(error)});
    }
    return result;
}

// See device::allocate().
[[nodiscard]] inline device_ptr allocate(stream_set const& streams, std::size_t bytes)
{
    streams.check_process();
    if (bytes == 0)
        return {};
    device_scope const scope(streams.ordinal());
    void* memory = nullptr;
    cudaError_t const error = scope.error() != cudaSuccess ? scope.error() : cudaMalloc(&memory, bytes);
    if (error == cudaSuccess)
        return {reinterpret_cast<std::uintptr_t>(memory)};
    (void)cudaGetLastError();
    if (error != cudaErrorMemoryAllocation)
        throw_device_error({streams.name(), " failed to allocate ", bytes, " bytes: ", cudaGetErrorString(error)});
    device_memory const memory_state = memory_of(streams);
    throw_unavailable({"cannot allocate ", bytes, " bytes on ", streams.name(), ": only ", memory_state.free_bytes,
                       " of ", memory_state.total_bytes,
                       " bytes are free (or no contiguous range of that size). Set a larger ratio to keep more on the "
                       "CPU, or free memory of other programs and libraries."});
}
inline void release(stream_set const& streams, device_ptr memory) noexcept
{
    if (!memory || !streams.in_this_process() || streams.is_abandoned())
        return;
    device_scope const scope(streams.ordinal());
    if (scope.error() == cudaSuccess && cudaFree(address_of(memory)) != cudaSuccess)
        (void)cudaGetLastError();
}

// See device.
inline void copy_up(stream_set& streams, device_ptr dst, void const* src, std::size_t bytes)
{
    if (bytes != 0)
        streams.enqueue(device_stream::up, {operation::copy_up, {}, bytes, bytes}, [=](cudaStream_t stream) {
            return cudaMemcpyAsync(address_of(dst), src, bytes, cudaMemcpyHostToDevice, stream);
        });
}
inline void copy_down(stream_set& streams, void* dst, device_ptr src, std::size_t bytes)
{
    if (bytes != 0)
        streams.enqueue(device_stream::down, {operation::copy_down, {}, bytes, bytes}, [=](cudaStream_t stream) {
            return cudaMemcpyAsync(dst, address_of(src), bytes, cudaMemcpyDeviceToHost, stream);
        });
}

// See device::pinned(). The deleter does not use the device, which may be destroyed before.
[[nodiscard]] inline std::shared_ptr<std::byte> pinned(stream_set const& streams, std::size_t bytes)
{
    constexpr std::size_t page = 4096;
    streams.check_process();
    device_scope const scope(streams.ordinal());
    void* memory = nullptr;
    // At least one whole page, and one more because CUDA does not align small allocations to pages.
    std::size_t const rounded = (bytes / page + 2) * page;
    cudaError_t const error =
        scope.error() != cudaSuccess ? scope.error() : cudaHostAlloc(&memory, rounded, cudaHostAllocPortable);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        throw_unavailable({"cannot allocate ", bytes, " bytes of pinned host memory for ", streams.name(), ": ",
                           cudaGetErrorString(error),
                           error == cudaErrorMemoryAllocation
                               ? ". Free host memory, or raise the limit on locked memory (ulimit -l)."
                               : ". Look for earlier errors of this device."});
    }
    std::shared_ptr<void> owner(memory, [process = this_process(), ordinal = streams.ordinal(),
                                         abandoned = streams.abandoned()](void* pointer) {
        if (this_process() != process || abandoned->load(std::memory_order_relaxed))
            return;
        device_scope const current(ordinal); // otherwise CUDA might create a context on another device
        if (current.error() == cudaSuccess && cudaFreeHost(pointer) != cudaSuccess)
            (void)cudaGetLastError();
    });
    std::size_t const offset = (0 - reinterpret_cast<std::uintptr_t>(memory)) % page;
    return {owner, static_cast<std::byte*>(memory) + offset};
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
