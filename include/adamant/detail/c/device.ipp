// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/adamant.h>: devices and placement on them.
#include <adamant/adamant.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/emulated_device.hpp>
#include <adamant/split.hpp>
#include <adamant/detail/c/convert.hpp>
#include <adamant/detail/c/handles.hpp>
#if defined(ADAMANT_C_CUDA)
#include <adamant/detail/c/cuda_device.hpp>
#endif

namespace adamant::c {

adamant_emulation_options struct_description<adamant_emulation_options>::defaults()
{
    emulation_options const e;
    adamant_emulation_options result{};
    result.memory_bytes = e.memory_bytes;
    result.work_bytes_per_s = e.work_bytes_per_s;
    result.up_bytes_per_s = e.up_bytes_per_s;
    result.down_bytes_per_s = e.down_bytes_per_s;
    result.latency_s = e.latency_s;
    result.shares_host_memory = e.shares_host_memory;
    return result;
}
static emulation_options from_c(adamant_emulation_options const& options)
{
    emulation_options result{.memory_bytes = options.memory_bytes,
                             .work_bytes_per_s = options.work_bytes_per_s,
                             .up_bytes_per_s = options.up_bytes_per_s,
                             .down_bytes_per_s = options.down_bytes_per_s,
                             .latency_s = options.latency_s,
                             .shares_host_memory = options.shares_host_memory != 0};
    if (options.name != nullptr)
        result.name = options.name;
    return result;
}

static device& unwrap(adamant_device const* handle)
{
    return *needed(handle, "the device").device;
}
static emulated_device& emulated(adamant_device const* handle)
{
    device& target = unwrap(handle);
    if (auto* const result = dynamic_cast<emulated_device*>(&target))
        return *result;
    detail::throw_invalid_argument(
        {"cannot make ", target.name(), " fail, hang or resume: only an emulated device can"});
}

#if !defined(ADAMANT_C_CUDA)
[[noreturn]] static void refuse_cuda()
{
    detail::throw_unavailable({"cannot create a CUDA device: this library was built without nvcc. Install the CUDA "
                               "toolkit, 12.0 or newer, and rebuild the C library with ADAMANT_CUDA=ON."});
}
static std::shared_ptr<device> make_cuda_device(int)
{
    refuse_cuda();
}
static void wait_cuda_event(device&, void*)
{
    refuse_cuda();
}
#endif

static adamant_device* handle_of(std::shared_ptr<device> target)
{
    std::string name = target->name();
    return new adamant_device{std::move(target), std::move(name)};
}

// Waits for the enqueued work of a stream. Resets the device if that fails.
static void wait_for(device& target, device_stream stream)
{
    constexpr auto most = std::chrono::seconds(300); // as an optimizer's device_timeout_s
    try {
        if (!target.wait_until(target.record_event(stream), device::clock::now() + most))
            detail::throw_device_error({target.name(),
                                        " did not complete a copy within 300 s and seems to have stopped "
                                        "answering"});
    } catch (device_error const&) {
        static_cast<void>(target.reset(device::clock::now() + most));
        throw;
    }
}

// A placement of all shards on the CPU.
static placement all_on_cpu(optimizer const& owner)
{
    return split(owner.shard_sizes(), {.ratio = 1});
}

} // namespace adamant::c

using namespace adamant::c;

adamant_status adamant_cuda_device_create(int32_t ordinal, adamant_device** made)
{
    return guarded([&] {
        needed(made, "made");
        *made = handle_of(make_cuda_device(ordinal));
    });
}
adamant_status adamant_cuda_device_wait_event(adamant_device* device, void* event)
{
    return guarded([&] {
        adamant::device& target = unwrap(device);
        wait_cuda_event(target, &needed(static_cast<std::byte*>(event), "event"));
    });
}

adamant_status adamant_emulation_options_init(adamant_emulation_options* options, size_t struct_bytes)
{
    return init(options, struct_bytes);
}
adamant_status adamant_emulated_device_create(const adamant_emulation_options* options, adamant_device** made)
{
    return guarded([&] {
        needed(made, "made");
        *made = handle_of(std::make_shared<adamant::emulated_device>(from_c(read_or_defaults(options))));
    });
}
adamant_status adamant_emulated_device_fail(adamant_device* device, adamant_device_operation operation, size_t after)
{
    return guarded(
        [&] { emulated(device).fail(to_enum(operation, adamant::device_operation::allocate, "operation"), after); });
}
adamant_status adamant_emulated_device_hang(adamant_device* device, adamant_device_operation operation, size_t after)
{
    return guarded(
        [&] { emulated(device).hang(to_enum(operation, adamant::device_operation::allocate, "operation"), after); });
}
adamant_status adamant_emulated_device_resume(adamant_device* device)
{
    return guarded([&] { emulated(device).resume(); });
}

void adamant_device_free(adamant_device* device)
{
    delete device;
}
adamant_status adamant_device_describe(const adamant_device* device, const char** name, size_t* total_bytes,
                                       size_t* free_bytes)
{
    return guarded([&] {
        adamant::device_memory const memory = unwrap(device).memory();
        give<const char*>(name, device->name.c_str());
        give(total_bytes, memory.total_bytes);
        give(free_bytes, memory.free_bytes);
    });
}
adamant_status adamant_device_allocate(adamant_device* device, size_t bytes, uint64_t* address)
{
    return guarded([&] {
        adamant::device& target = unwrap(device);
        needed(address, "address") = target.allocate(bytes).address;
    });
}
adamant_status adamant_device_release(adamant_device* device, uint64_t address)
{
    return guarded([&] { unwrap(device).release({address}); });
}
adamant_status adamant_device_copy_up(adamant_device* device, uint64_t destination, const void* source, size_t bytes)
{
    return guarded([&] {
        adamant::device& target = unwrap(device);
        if (bytes != 0)
            needed(static_cast<std::byte const*>(source), "source");
        target.copy_up({destination}, source, bytes);
        wait_for(target, adamant::device_stream::up);
    });
}
adamant_status adamant_device_copy_down(adamant_device* device, void* destination, uint64_t source, size_t bytes)
{
    return guarded([&] {
        adamant::device& target = unwrap(device);
        if (bytes != 0)
            needed(static_cast<std::byte*>(destination), "destination");
        target.copy_down(destination, {source}, bytes);
        wait_for(target, adamant::device_stream::down);
    });
}

adamant_status adamant_shard_sizes(const adamant_optimizer* optimizer, size_t* sizes, size_t count)
{
    return guarded([&] {
        std::vector<std::size_t> const shard_sizes = unwrap(optimizer).shard_sizes();
        if (count != shard_sizes.size())
            adamant::detail::throw_invalid_argument({"count is ", count, ", but the optimizer has ",
                                                     adamant::detail::counted(shard_sizes.size(), "shard")});
        if (count != 0)
            std::copy(shard_sizes.begin(), shard_sizes.end(), &needed(sizes, "sizes"));
    });
}
adamant_status adamant_device_bytes(const adamant_optimizer* optimizer, const adamant_device* device,
                                    const adamant_placement* placement, size_t* bytes)
{
    return guarded([&] {
        adamant::optimizer const& o = unwrap(optimizer);
        adamant::device const& target = unwrap(device);
        adamant::placement const& requested = unwrap(placement);
        needed(bytes, "bytes") = o.device_bytes(target, requested);
    });
}
adamant_status adamant_place(adamant_optimizer* optimizer, const adamant_device* device,
                             const adamant_placement* placement)
{
    return guarded([&] {
        adamant::optimizer& o = unwrap(optimizer);
        if (device == nullptr && placement == nullptr) {
            o.place(nullptr, all_on_cpu(o));
            return;
        }
        needed(device, "the device");
        o.place(device->device, unwrap(placement));
    });
}
adamant_status adamant_set_device_arrays(adamant_optimizer* optimizer, size_t shard, uint64_t grad, uint64_t weight_out)
{
    return guarded([&] { unwrap(optimizer).set_device_arrays(shard, {{grad}, {weight_out}}); });
}
adamant_status adamant_update_host_arrays(adamant_optimizer* optimizer)
{
    return guarded([&] { unwrap(optimizer).update_host_arrays(); });
}
