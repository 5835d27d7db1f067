// SPDX-License-Identifier: Apache-2.0
// A device, and how long it may take for what it is given.
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

// Where arrays on a device begin.
[[nodiscard]] constexpr std::size_t device_aligned(std::size_t bytes) noexcept
{
    return (bytes + 255) / 256 * 256;
}

class device_with_deadline {
public:
    device_with_deadline(std::shared_ptr<device> on, double timeout_s) : on_(std::move(on)), timeout_s_(timeout_s) {}

    [[nodiscard]] device* operator->() const noexcept { return on_.get(); }
    [[nodiscard]] device& operator*() const noexcept { return *on_; }

    // Until all that was enqueued is done. Throws device_error where it fails, or takes too long.
    void wait() const
    {
        for (device_stream const stream : {device_stream::up, device_stream::work, device_stream::down})
            if (!on_->wait_until(on_->record_event(stream), deadline()))
                throw_device_error({on_->name(), " has not finished what is in its stream '", name(stream), "' within ",
                                    timeout_s_, " s"});
    }
    // After a failure: once what runs on it has ended. False where it does not answer. What had not begun is dropped.
    [[nodiscard]] bool come_back() const noexcept
    {
        ++resets_;
        return on_->reset(deadline());
    }
    // How often work may have been dropped. From any thread.
    [[nodiscard]] std::uint64_t resets() const noexcept { return resets_.load(); }
    // Nothing goes on any more, whether or not it fails.
    void settle() const noexcept
    {
        try {
            wait();
        } catch (...) {
            (void)come_back();
        }
    }

private:
    [[nodiscard]] std::chrono::steady_clock::time_point deadline() const
    {
        return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                      std::chrono::duration<double>(timeout_s_));
    }

    std::shared_ptr<device> on_;
    double timeout_s_;
    mutable std::atomic<std::uint64_t> resets_{0};
};

} // namespace detail
ADAMANT_END_NAMESPACE
