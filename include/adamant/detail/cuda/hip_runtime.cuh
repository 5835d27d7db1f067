// SPDX-License-Identifier: Apache-2.0
// HIP as the runtime of the GPU code: CUDA's names for HIP's functions, and intrinsics that round as CUDA's do. The
// names are in adamant::detail::cuda, where they hide global ones, so that a program may have its own.
#pragma once

#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>

#include <cstddef>
#include <memory>

#include <adamant/device.hpp>

#if !defined(__grid_constant__) // arguments of kernels are in constant memory anyway
#define __grid_constant__
#endif

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

// Intrinsics. Clang's of the same names do not round as these must: __fsqrt_rn() is v_sqrt_f32, which is off by one
// unit in the last place, and products and sums are operators, which -ffp-contract=fast, HIP's default, fuses. The
// pragmas keep them apart. Quotients and roots are correctly rounded unless
// -fno-hip-fp32-correctly-rounded-divide-sqrt is given: check_arithmetic() detects it.
[[nodiscard]] __device__ inline float __fmul_rn(float a, float b)
{
#pragma clang fp contract(off)
    return a * b;
}
[[nodiscard]] __device__ inline float __fadd_rn(float a, float b)
{
#pragma clang fp contract(off)
    return a + b;
}
[[nodiscard]] __device__ inline double __dadd_rn(double a, double b)
{
#pragma clang fp contract(off)
    return a + b;
}
[[nodiscard]] __device__ inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
[[nodiscard]] __device__ inline double __fma_rn(double a, double b, double c)
{
    return __builtin_fma(a, b, c);
}
[[nodiscard]] __device__ inline float __fdiv_rn(float a, float b)
{
#pragma clang fp contract(off)
    return a / b;
}
[[nodiscard]] __device__ inline float __fsqrt_rn(float a)
{
    return sqrtf(a);
}
// The threads that exchange values are 16 adjacent ones, which are in one wavefront of 32 or 64 threads and execute
// together. The mask, which has bits for a warp of 32 threads, is not needed.
[[nodiscard]] __device__ inline unsigned __shfl_xor_sync(unsigned, unsigned value, unsigned distance)
{
    return static_cast<unsigned>(__shfl_xor(static_cast<int>(value), static_cast<int>(distance), 16));
}

// The runtime.
using cudaError_t = hipError_t;
using cudaStream_t = hipStream_t;
using cudaEvent_t = hipEvent_t;
using cudaDeviceProp = hipDeviceProp_t;
using cudaStreamCaptureMode = hipStreamCaptureMode;
inline constexpr cudaError_t cudaSuccess = hipSuccess;
inline constexpr cudaError_t cudaErrorMemoryAllocation = hipErrorOutOfMemory;
inline constexpr cudaError_t cudaErrorNoDevice = hipErrorNoDevice;
inline constexpr cudaError_t cudaErrorInvalidDevice = hipErrorInvalidDevice;
inline constexpr cudaError_t cudaErrorNoKernelImageForDevice = hipErrorNoBinaryForGpu;
inline constexpr cudaError_t cudaErrorNotReady = hipErrorNotReady;
inline constexpr cudaError_t cudaErrorStreamCaptureUnsupported = hipErrorStreamCaptureUnsupported;
inline constexpr cudaStreamCaptureMode cudaStreamCaptureModeRelaxed = hipStreamCaptureModeRelaxed;
inline constexpr hipMemcpyKind cudaMemcpyHostToDevice = hipMemcpyHostToDevice;
inline constexpr hipMemcpyKind cudaMemcpyDeviceToHost = hipMemcpyDeviceToHost;
inline constexpr unsigned cudaStreamNonBlocking = hipStreamNonBlocking;
inline constexpr unsigned cudaHostAllocPortable = hipHostMallocPortable;

inline char const* cudaGetErrorString(cudaError_t error)
{
    return hipGetErrorString(error);
}
inline cudaError_t cudaGetLastError()
{
    return hipGetLastError();
}
inline cudaError_t cudaGetDeviceCount(int* count)
{
    return hipGetDeviceCount(count);
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal)
{
    return hipGetDeviceProperties(properties, ordinal);
}
inline cudaError_t cudaGetDevice(int* ordinal)
{
    return hipGetDevice(ordinal);
}
inline cudaError_t cudaSetDevice(int ordinal)
{
    return hipSetDevice(ordinal);
}
inline cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes)
{
    return hipMemGetInfo(free_bytes, total_bytes);
}
inline cudaError_t cudaMalloc(void** memory, std::size_t bytes)
{
    return hipMalloc(memory, bytes);
}
inline cudaError_t cudaFree(void* memory)
{
    return hipFree(memory);
}
inline cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags)
{
    return hipHostMalloc(memory, bytes, flags);
}
inline cudaError_t cudaFreeHost(void* memory)
{
    return hipHostFree(memory);
}
inline cudaError_t cudaMemcpyAsync(void* dst, void const* src, std::size_t bytes, hipMemcpyKind kind,
                                   hipStream_t stream)
{
    return hipMemcpyAsync(dst, src, bytes, kind, stream);
}
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode)
{
    return hipThreadExchangeStreamCaptureMode(mode);
}
inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* made, unsigned flags)
{
    return hipStreamCreateWithFlags(made, flags);
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    return hipStreamDestroy(stream);
}
inline cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return hipStreamQuery(stream);
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    return hipStreamWaitEvent(stream, event, flags);
}
inline cudaError_t cudaEventCreate(cudaEvent_t* made)
{
    return hipEventCreate(made);
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return hipEventDestroy(event);
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    return hipEventRecord(event, stream);
}
inline cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return hipEventQuery(event);
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end)
{
    return hipEventElapsedTime(ms, begin, end);
}
inline cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data)
{
#if HIP_VERSION < 60000000 // HIP 5.2 declares hipLaunchHostFunc() and does not have it
    struct call {
        void (*function)(void*);
        void* data;
        static void run(hipStream_t, hipError_t status, void* self)
        {
            std::unique_ptr<call> const owner(static_cast<call*>(self));
            if (status == hipSuccess)
                owner->function(owner->data);
        }
    };
    auto owner = std::make_unique<call>(call{function, data});
    hipError_t const error = hipStreamAddCallback(stream, &call::run, owner.get(), 0);
    if (error == hipSuccess)
        (void)owner.release(); // run() owns it
    return error;
#else
    return hipLaunchHostFunc(stream, function, data);
#endif
}
inline cudaError_t cudaLaunchKernel(void const* kernel, dim3 grid, dim3 block, void** arguments,
                                    std::size_t shared_bytes, cudaStream_t stream)
{
    return hipLaunchKernel(kernel, grid, block, arguments, shared_bytes, stream);
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
