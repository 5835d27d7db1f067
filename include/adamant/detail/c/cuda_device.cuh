// SPDX-License-Identifier: Apache-2.0
// Definition of cuda_device.hpp, for nvcc.
#include <adamant/detail/c/cuda_device.hpp>

#include <memory>

#include <adamant/cuda.cuh>

namespace adamant::c {

std::shared_ptr<device> make_cuda_device(int ordinal)
{
    return std::make_shared<cuda_device>(ordinal);
}

void wait_cuda_event(device& on, void* event)
{
    auto* const gpu = dynamic_cast<cuda_device*>(&on);
    if (gpu == nullptr)
        detail::throw_invalid_argument(
            {on.name(), " is to follow a CUDA event, but is no device of adamant_cuda_device_create()"});
    for (device_stream const stream : {device_stream::work, device_stream::down})
        gpu->wait_event(stream, static_cast<cudaEvent_t>(event));
}

} // namespace adamant::c
