// SPDX-License-Identifier: Apache-2.0
// Definitions of hybrid_device.hpp for the first GPU.
#include "hybrid_device.hpp"

#include <stdexcept>

#include <adamant/cuda.cuh>

namespace {

__global__ void fill(std::uint16_t* grad, std::size_t n, std::uint32_t seed)
{
    for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * blockDim.x) {
        std::uint32_t x = static_cast<std::uint32_t>(i) + seed;
        x = (x ^ x >> 16) * 0x85ebca6bu;
        x ^= x >> 13;
        grad[i] = static_cast<std::uint16_t>((x & 0x807fu) | (0x3600u + (x >> 8 & 0x0180u))); // 2^-19 to 2^-12
    }
}

} // namespace

unsigned cores_needed()
{
    return 0;
}
std::shared_ptr<adamant::device> make_device(std::string const&, double)
{
    return std::make_shared<adamant::cuda_device>(0);
}
void make_gradient(adamant::device&, adamant::device_ptr grad, std::size_t n, std::uint32_t seed)
{
    fill<<<1024, 256>>>(reinterpret_cast<std::uint16_t*>(grad.address), n, seed);
    if (cudaDeviceSynchronize() != cudaSuccess)
        throw std::runtime_error("hybrid: the gradients could not be made on the GPU");
}
