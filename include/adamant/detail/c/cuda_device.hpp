// SPDX-License-Identifier: Apache-2.0
// Internal to the C library: functions that nvcc compiles, with ADAMANT_CUDA, or hipcc, with ADAMANT_HIP.
#pragma once

#include <memory>

#include <adamant/device.hpp>

namespace adamant::c {

[[nodiscard]] std::shared_ptr<device> make_cuda_device(int ordinal);
// event: a cudaEvent_t. Throws invalid_argument for a device that make_cuda_device() did not create.
void wait_cuda_event(device& target, void* event);

} // namespace adamant::c
