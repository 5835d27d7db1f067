// SPDX-License-Identifier: Apache-2.0
// The inside of the C library: what nvcc compiles of it, where there is one.
#pragma once

#include <memory>

#include <adamant/device.hpp>

namespace adamant::c {

[[nodiscard]] std::shared_ptr<device> make_cuda_device(int ordinal);
// event: a cudaEvent_t. Throws invalid_argument for a device that make_cuda_device() has not made.
void wait_cuda_event(device& on, void* event);

} // namespace adamant::c
