// SPDX-License-Identifier: Apache-2.0
// The device of the example hybrid: hybrid_device.cpp emulates one, hybrid_device.cu uses a GPU. GPU code is in a
// separate file because only the host's compiler can compile the CPU's kernels: nvcc compiles the device, and the rest
// of the program uses it as adamant::device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <adamant/device.hpp>

// The number of cores that the device occupies.
unsigned cores_needed();
// cpu_bytes_per_s: the rate of the CPU's step.
std::shared_ptr<adamant::device> make_device(std::string const& link, double cpu_bytes_per_s);
// Makes n bfloat16 gradients, the same on every device. Returns when they are complete.
void make_gradient(adamant::device& device, adamant::device_ptr grad, std::size_t n, std::uint32_t seed);
