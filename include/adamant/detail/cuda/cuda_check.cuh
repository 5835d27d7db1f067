// SPDX-License-Identifier: Apache-2.0
// Check at run time that a GPU rounds like the reference implementation: flags of nvcc and hipcc that change results
// have no macros.
#pragma once

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include <adamant/detail/cuda/cuda_identity.cuh>
#include <adamant/detail/cuda/cuda_memory.cuh>
#include <adamant/detail/cuda/gpu_numerics.cuh>
#include <adamant/detail/numerics/float_mode.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

inline constexpr unsigned check_threads = 64;

// Results of plain operators, which --use_fast_math changes, and of the intrinsics that kernels use.
struct arithmetic {
    float tiny_product, tiny_sum, quotient, root; // of operators
    float rounded_product, fused, unfused, rounded_quotient, rounded_root;
    double fused_double;
};

template <int = 0>
__global__ void __launch_bounds__(check_threads) check_kernel(arithmetic* out, float tiny, float one)
{
    float const x = one + __fmul_rn(static_cast<float>(threadIdx.x), 0.37f);
    arithmetic& o = out[threadIdx.x];
    o.tiny_product = tiny * (0.5f / static_cast<float>(1 + threadIdx.x % 8));
    o.tiny_sum = tiny - __fmul_rn(tiny, 0.75f);
    o.quotient = one / x;
    o.root = sqrtf(x);
    o.rounded_product = __fmul_rn(x, x);
    o.fused = __fmaf_rn(x, x, -one);
    o.unfused = __fadd_rn(__fmul_rn(x, x), -one);
    o.rounded_quotient = __fdiv_rn(one, x);
    o.rounded_root = __fsqrt_rn(x);
    o.fused_double = __fma_rn(static_cast<double>(x), static_cast<double>(tiny), static_cast<double>(one));
}

// Returns which of a thread's results differ from the host's, as a sum: 1 operators, 2 intrinsics.
[[gnu::noinline]] inline unsigned compare_arithmetic(arithmetic const& result, unsigned thread, float tiny, float one)
{
    float const x = one + std::fma(static_cast<float>(thread), 0.37f, 0.0f);
    bool const operators = result.tiny_product == tiny * (0.5f / static_cast<float>(1 + thread % 8)) &&
                           result.tiny_sum == tiny - std::fma(tiny, 0.75f, 0.0f) && result.quotient == one / x &&
                           result.root == std::sqrt(x);
    bool const intrinsics =
        result.rounded_product == std::fma(x, x, 0.0f) && result.fused == std::fma(x, x, -one) &&
        result.unfused == std::fma(x, x, 0.0f) - one && result.rounded_quotient == one / x &&
        result.rounded_root == std::sqrt(x) &&
        result.fused_double == std::fma(static_cast<double>(x), static_cast<double>(tiny), static_cast<double>(one));
    return (operators ? 0u : 1u) | (intrinsics ? 0u : 2u);
}

// Throws unavailable if the program's device code was compiled with flags that change results or not for this device,
// and device_error if the device fails.
inline void check_arithmetic(stream_set& streams, device_identity const& identity)
{
    struct buffer {
        stream_set const& streams;
        device_ptr memory;
        ~buffer() { release(streams, memory); }
    };
    constexpr std::size_t bytes = check_threads * sizeof(arithmetic);
    buffer const device_buffer = {streams, allocate(streams, bytes)};
    std::shared_ptr<std::byte> const results = pinned(streams, bytes);
    float tiny = 0x1p-126f;
    float one = 1.0f;
    cudaError_t error = cudaSuccess;
    streams.enqueue(device_stream::work, {operation::check}, [&](cudaStream_t stream) {
        error = ADAMANT_GPU_LAUNCH(check_kernel<0>, 1, check_threads, stream,
                                   static_cast<arithmetic*>(address_of(device_buffer.memory)), tiny, one);
        if (error == cudaSuccess)
            error =
                cudaMemcpyAsync(results.get(), address_of(device_buffer.memory), bytes, cudaMemcpyDeviceToHost, stream);
        return error;
    });
    if (error == cudaErrorNoKernelImageForDevice)
        throw_unavailable({streams.name(), " ", identity.architecture,
                           ", and this program holds no code for that; compile it with ", identity.compile_flag});
    if (!streams.wait_until(streams.record_event(device_stream::work),
                            stream_set::clock::now() + std::chrono::seconds(60)))
        throw_device_error({streams.name(), " did not finish a small computation within 60 s"});
    unsigned differs = 0;
    rounded_to_nearest([&] {
        for (unsigned i = 0; i < check_threads; ++i) {
            arithmetic result;
            std::memcpy(&result, results.get() + i * sizeof result, sizeof result);
            differs |= compare_arithmetic(result, i, tiny, one);
        }
    });
    if ((differs & 1) != 0)
        throw_unavailable(
            {streams.name(),
             " flushes subnormals, or estimates quotients or roots, because the device code of this program "
             "was compiled with ",
             inexact_flags,
             ": that would change the bits of a step; compile the file that includes cuda.cuh without them"});
    if (differs != 0)
        throw_unavailable({streams.name(), " does not round as IEEE 754 says, so its steps would not have the ",
                           "CPU's bits; use another device, or only the CPU"});
}

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
