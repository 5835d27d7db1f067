// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/detail/c/cuda_device.hpp>, compiled by nvcc or hipcc.
#include <adamant/detail/c/cuda_device.hpp>

#include <memory>

#include <adamant/cuda.cuh>

namespace adamant::c {

std::shared_ptr<device> make_cuda_device(int ordinal)
{
    return std::make_shared<cuda_device>(ordinal);
}

void wait_cuda_event(device& target, void* event)
{
    auto* const gpu = dynamic_cast<cuda_device*>(&target);
    if (gpu == nullptr)
        detail::throw_invalid_argument({"cannot wait for a CUDA event on ", target.name(),
                                        ": adamant_cuda_device_create() did not create this device"});
    for (device_stream const stream : {device_stream::work, device_stream::down})
        gpu->wait_event(stream, static_cast<detail::cuda::event_handle>(event));
}

} // namespace adamant::c
