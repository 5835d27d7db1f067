// SPDX-License-Identifier: Apache-2.0
// A device in use by one optimizer: the claim on it, and waits with a timeout.
#pragma once

#include <algorithm>
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

// Destroying it releases the claim.
class device_session {
public:
    // timeout_s: see optimizer_options::device_timeout_s. Throws as device::claim().
    device_session(std::shared_ptr<device> target, double timeout_s) : device_(std::move(target)), timeout_s_(timeout_s)
    {
        device_->claim(this);
    }
    device_session(device_session const&) = delete;
    device_session& operator=(device_session const&) = delete;
    ~device_session() { device_->leave(this); }

    [[nodiscard]] device* operator->() const noexcept { return device_.get(); }
    [[nodiscard]] device& operator*() const noexcept { return *device_; }

    // The time by which the device must complete work that is enqueued now.
    [[nodiscard]] std::chrono::steady_clock::time_point deadline() const
    {
        return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                      std::chrono::duration<double>(timeout_s_));
    }
    // Waits for all enqueued work. Throws device_error if it fails or exceeds the timeout.
    [[gnu::noinline]] void wait() const
    {
        auto const until = deadline();
        for (device_stream const stream : {device_stream::up, device_stream::work, device_stream::down})
            if (!device_->wait_until(device_->record_event(stream), until))
                throw_late(stream);
    }
    // Throws device_error if work has failed, or if downloads are not complete at a deadline() that has passed.
    void require_downloads(std::chrono::steady_clock::time_point until) const
    {
        auto const now = std::chrono::steady_clock::now();
        if (!device_->wait_until(device_->record_event(device_stream::down), now) && now > until)
            throw_late(device_stream::down);
    }
    // Drops work that has not started, and waits for the rest: after a timeout at most a second. Returns false if the
    // device does not answer or cannot continue.
    [[nodiscard]] bool stop() const noexcept
    {
        auto const soon = std::chrono::steady_clock::now() + std::chrono::seconds(1);
        bool const answers = device_->reset(is_late_.load() ? std::min(soon, deadline()) : deadline());
        is_late_.store(!answers);
        return answers;
    }
    // The same without waiting.
    void drop_work() const noexcept { (void)device_->reset(std::chrono::steady_clock::now()); }
    // Waits until the device is idle. Stops it if that fails.
    void settle() const noexcept
    {
        try {
            wait();
        } catch (...) {
            (void)stop();
        }
    }

private:
    [[noreturn]] void throw_late(device_stream stream) const
    {
        is_late_.store(true);
        throw_device_error({"cannot complete the step: stream '", name(stream), "' of ", device_->name(),
                            " did not finish within ", timeout_s_, " s. Check the device, or raise device_timeout_s."});
    }

    std::shared_ptr<device> device_;
    double timeout_s_;
    mutable std::atomic<bool> is_late_{false}; // a wait has timed out
};

} // namespace detail
ADAMANT_END_NAMESPACE
