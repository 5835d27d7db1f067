// SPDX-License-Identifier: Apache-2.0
// A device with a timeout for every wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include <adamant/device.hpp>
#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Rounds up to the alignment of arrays on a device.
[[nodiscard]] constexpr std::size_t device_aligned(std::size_t bytes) noexcept
{
    return (bytes + 255) / 256 * 256;
}

class device_with_deadline {
public:
    device_with_deadline(std::shared_ptr<device> target, double timeout_s)
        : device_(std::move(target)), timeout_s_(timeout_s)
    {
    }

    [[nodiscard]] device* operator->() const noexcept { return device_.get(); }
    [[nodiscard]] device& operator*() const noexcept { return *device_; }

    // Waits for all enqueued work. Throws device_error if it fails or exceeds the timeout.
    void wait() const
    {
        for (device_stream const stream : {device_stream::up, device_stream::work, device_stream::down})
            if (!device_->wait_until(device_->record_event(stream), deadline()))
                throw_device_error(
                    {device_->name(), " did not complete its stream '", name(stream), "' within ", timeout_s_, " s"});
    }
    // Resets the device after a failure: drops work that has not started, and waits for the rest. Returns false if the
    // device does not answer.
    [[nodiscard]] bool recover() const noexcept
    {
        ++resets_;
        return device_->reset(deadline());
    }
    // Number of resets, each of which may have dropped work. Thread-safe.
    [[nodiscard]] std::uint64_t resets() const noexcept { return resets_.load(); }
    // Waits until the device is idle. Resets it if that fails.
    void settle() const noexcept
    {
        try {
            wait();
        } catch (...) {
            (void)recover();
        }
    }

private:
    [[nodiscard]] std::chrono::steady_clock::time_point deadline() const
    {
        return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                      std::chrono::duration<double>(timeout_s_));
    }

    std::shared_ptr<device> device_;
    double timeout_s_;
    mutable std::atomic<std::uint64_t> resets_{0};
};

} // namespace detail
ADAMANT_END_NAMESPACE
