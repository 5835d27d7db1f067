// SPDX-License-Identifier: Apache-2.0
// What the C library has of CUDA, over the imitation: for tests of the Python package without a GPU. Beside it, what
// these need of a program's own side of CUDA: a stream in which copies are done later, events on it, and pinned memory.
#define ADAMANT_C_CUDA
#define ADAMANT_GPU_RUNTIME "cuda_on_host/cuda_runtime.h"

#include <adamant/detail/c/cuda_device.cuh>
#include <adamant/detail/c/device.ipp>

extern "C" {

ADAMANT_C_API void* on_host_stream()
{
    cudaStream_t made = nullptr;
    (void)cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    return made;
}
// Of any memory, when the stream has come to it.
ADAMANT_C_API void on_host_copy(void* stream, void* to, void const* from, std::size_t bytes)
{
    struct copy {
        void* to;
        void const* from;
        std::size_t bytes;
    };
    auto const run = [](void* data) {
        std::unique_ptr<copy> const what(static_cast<copy*>(data));
        std::memcpy(what->to, what->from, what->bytes);
    };
    (void)cudaLaunchHostFunc(static_cast<cudaStream_t>(stream), run, new copy{to, from, bytes});
}
// A new event after all that the stream was given.
ADAMANT_C_API void* on_host_event(void* stream)
{
    cudaEvent_t made = nullptr;
    (void)cudaEventCreate(&made);
    (void)cudaEventRecord(made, static_cast<cudaStream_t>(stream));
    return made;
}
ADAMANT_C_API void on_host_forget(void* event)
{
    (void)cudaEventDestroy(static_cast<cudaEvent_t>(event));
}
ADAMANT_C_API void on_host_wait(void* stream)
{
    while (cudaStreamQuery(static_cast<cudaStream_t>(stream)) == cudaErrorNotReady)
        std::this_thread::yield();
}
ADAMANT_C_API void* on_host_pinned(std::size_t bytes)
{
    void* made = nullptr;
    (void)cudaHostAlloc(&made, bytes, cudaHostAllocPortable);
    return made;
}
ADAMANT_C_API void on_host_unpin(void* memory)
{
    (void)cudaFreeHost(memory);
}
ADAMANT_C_API void on_host_set_device(std::size_t memory_bytes, std::int32_t devices)
{
    cuda_on_host::set_device(memory_bytes, 9, devices);
}
ADAMANT_C_API std::uint64_t on_host_launches()
{
    return cuda_on_host::launches();
}
ADAMANT_C_API std::size_t on_host_used_bytes()
{
    return cuda_on_host::used_bytes();
}
// The n-th copy from now fails, unless all such is forgotten before.
ADAMANT_C_API void on_host_fail_copy(std::uint32_t n)
{
    cuda_on_host::fail(cuda_on_host::call::copy, n, cudaErrorLaunchFailure);
}
ADAMANT_C_API void on_host_restart()
{
    cuda_on_host::restart();
}

} // extern "C"
