// SPDX-License-Identifier: Apache-2.0
// Definitions of hybrid_device.hpp for a device emulated in host memory.
#include "hybrid_device.hpp"

#include <limits>

#include <adamant/emulated_device.hpp>

unsigned cores_needed()
{
    return 1; // for the threads of the emulation
}

// The rates relative to the CPU's are those of a GPU: the link of a GH200 has about the bandwidth of the host's memory,
// PCIe 5 a sixth of it. A GPU's memory has some ten times that bandwidth, which no thread of this machine can emulate,
// so the device acts as one that is busy with other work most of the time.
std::shared_ptr<adamant::device> make_device(std::string const& link, double cpu_bytes_per_s)
{
    double const bytes_per_s = link == "none"    ? std::numeric_limits<double>::infinity()
                               : link == "pcie5" ? cpu_bytes_per_s / 6
                                                 : cpu_bytes_per_s;
    return std::make_shared<adamant::emulated_device>(
        adamant::emulation_options{.name = "device emulated in host memory, link " + link,
                                   .work_bytes_per_s = cpu_bytes_per_s / 2,
                                   .up_bytes_per_s = bytes_per_s,
                                   .down_bytes_per_s = bytes_per_s,
                                   .latency_s = 10e-6});
}
// Makes the same gradients as the kernel of hybrid_device.cu.
void make_gradient(adamant::device& device, adamant::device_ptr grad, std::size_t n, std::uint32_t seed)
{
    std::byte* const memory = static_cast<adamant::emulated_device&>(device).real(grad, n * sizeof(adamant::bfloat16));
    for (std::size_t i = 0; i < n; ++i) {
        std::uint32_t x = static_cast<std::uint32_t>(i) + seed;
        x = (x ^ x >> 16) * 0x85ebca6bu;
        x ^= x >> 13;
        adamant::bfloat16 const g{static_cast<std::uint16_t>((x & 0x807fu) | (0x3600u + (x >> 8 & 0x0180u)))};
        adamant::store_unaligned(memory + i * sizeof g, g);
    }
}
