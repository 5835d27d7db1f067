// SPDX-License-Identifier: Apache-2.0
// Runtime and intrinsics of the GPU code, which uses CUDA's names. hip_runtime.cuh defines them for HIP. For another
// runtime (the tests' emulation on the host) ADAMANT_GPU_RUNTIME names a header that defines them, and
// ADAMANT_GPU_LAUNCH if cudaLaunchKernel() is not suitable.
#pragma once

#if defined(ADAMANT_GPU_RUNTIME)
#include ADAMANT_GPU_RUNTIME
#elif defined(__HIP__)
#include <adamant/detail/cuda/hip_runtime.cuh>
#elif defined(__CUDACC__)
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#else
#error                                                                                                                 \
    "adamant's GPU headers hold device code: include them from a .cu file that nvcc compiles (-std=c++20; in CMake: enable_language(CUDA)) or from a .hip file that hipcc compiles, or name another runtime's header in ADAMANT_GPU_RUNTIME"
#endif

#if defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 12
#error "adamant's GPU headers need CUDA 12.0 or newer: they are C++20"
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#error "adamant's GPU headers need compute capability 7.0 or newer: compile with -arch=sm_70 or a newer one"
#endif
// nvcc has no macro for --use_fast_math, --ftz or --prec-div, nor hipcc for -ffp-contract=fast or
// -fgpu-flush-denormals-to-zero; the constructor of cuda_device detects them.
// detail/core/requirements.hpp refuses the host compiler's flags.
#if defined(__CLANG_CUDA_APPROX_TRANSCENDENTALS__)
#error "adamant refuses -ffast-math for device code, too: it would change the bits of a step"
#endif

// Unrolls a loop of device code.
#define ADAMANT_GPU_PRAGMA(text) _Pragma(#text)
#if defined(__CUDACC__) || defined(__clang__)
#define ADAMANT_GPU_UNROLL(times) ADAMANT_GPU_PRAGMA(unroll times)
#else
#define ADAMANT_GPU_UNROLL(times) ADAMANT_GPU_PRAGMA(GCC unroll times)
#endif

// Tells the compiler that an address is in global memory, so that loads need not check it.
#if defined(__CUDA_ARCH__)
#define ADAMANT_GPU_IS_GLOBAL(address) __builtin_assume(__isGlobal(address))
#else
#define ADAMANT_GPU_IS_GLOBAL(address) static_cast<void>(address)
#endif

// nvcc does not know GCC's pragmas and warns at each of them.
#if defined(__NVCC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 1675
#endif
#include <adamant/device.hpp>
#if defined(__NVCC__)
#pragma nv_diagnostic pop
#endif

// Launches kernel(arguments...) in a stream and returns the error of this launch only. The types of the arguments are
// the kernel's.
#if !defined(ADAMANT_GPU_LAUNCH)
#define ADAMANT_GPU_LAUNCH(kernel, grid, block, stream, ...)                                                           \
    (::adamant::detail::cuda::launch_on_gpu)((kernel), (grid), (block), (stream), __VA_ARGS__)

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

template <class... Parameters>
[[nodiscard]] cudaError_t launch_on_gpu(void (*kernel)(Parameters...), unsigned grid, unsigned block,
                                        cudaStream_t stream, Parameters... arguments)
{
    void* addresses[] = {&arguments...};
    return cudaLaunchKernel(reinterpret_cast<void const*>(kernel), dim3(grid), dim3(block), addresses, 0, stream);
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
#endif
