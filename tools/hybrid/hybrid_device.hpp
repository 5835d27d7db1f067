// SPDX-License-Identifier: Apache-2.0
// The device that the example hybrid works on: hybrid_device.cpp imitates one, hybrid_device.cu takes a GPU. Code for a
// GPU is in a file of its own because the CPU's kernels are for the host's compiler alone: nvcc makes the device, and
// the rest of the program knows it as adamant::device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <adamant/device.hpp>

// How many cores it needs for itself.
unsigned cores_needed();
// cpu_bytes_per_s: what the CPU's step moves.
std::shared_ptr<adamant::device> make_device(std::string const& link, double cpu_bytes_per_s);
// As backward would: n bfloat16 gradients, the same on every device. Returns when they are there.
void make_gradient(adamant::device& on, adamant::device_ptr grad, std::size_t n, std::uint32_t seed);
