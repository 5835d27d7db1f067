// SPDX-License-Identifier: Apache-2.0
// The streams of a CUDA device: what is enqueued in them, how far they are, and the first thing that failed.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <adamant/detail/cuda/cuda_operation.cuh>
#include <adamant/detail/exec/this_process.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail::cuda {

// Thread-safe. Each stream has a lock of its own for what is enqueued there, because a copy of memory that is not
// pinned may make its caller wait; the state that waiting needs has another, which is held only briefly.
class stream_set {
public:
    using clock = std::chrono::steady_clock;

    // Throws device_error.
    stream_set(int ordinal, std::string name) : ordinal_(ordinal), name_(std::move(name))
    {
        device_scope const scope(ordinal_);
        try {
            for (queue& each : streams_) {
                require(cudaStreamCreateWithFlags(&each.stream, cudaStreamNonBlocking), "cannot make a stream");
                for (slot& s : each.ring) {
                    require(cudaEventCreate(&s.begin), "cannot make an event");
                    require(cudaEventCreate(&s.end), "cannot make an event");
                }
            }
        } catch (...) {
            destroy();
            throw;
        }
    }
    // Waits, to a limit, for what was enqueued: it may write to memory that is the caller's.
    ~stream_set()
    {
        if (!in_this_process())
            return;
        if (drain(clock::now() + std::chrono::seconds(10)) != drained::idle)
            for (std::unique_ptr<host_call>& each : *calls_)
                if (!each->done.load(std::memory_order_acquire))
                    (void)each.release(); // for a device that goes on after all
        device_scope const scope(ordinal_);
        destroy();
    }
    stream_set(stream_set const&) = delete;
    stream_set& operator=(stream_set const&) = delete;

    [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
    [[nodiscard]] std::string const& name() const noexcept { return name_; }
    // CUDA does not survive a fork: a call of it could fail or hang, and locks may be held forever.
    [[nodiscard]] bool in_this_process() const noexcept { return calls_.in_this_process(); }
    // Throws unavailable in a forked child process.
    void check_process() const { require_process(calls_.process(), name_); }
    [[nodiscard]] bool failed() const
    {
        check_process();
        std::lock_guard const lock(state_);
        return !failure_.empty();
    }

    // Has enqueue(stream) enqueue something in a stream and return CUDA's error, unless something has failed. It is
    // called before this returns; its return value becomes the failure.
    template <class Enqueue>
    void enqueue(device_stream in, operation const& what, Enqueue const& enqueue)
    {
        check_process();
        queue& l = of(in);
        device_scope const scope(ordinal_);
        std::lock_guard const order(l.order);
        bool has_slot = false;
        {
            std::lock_guard const lock(state_);
            if (!failure_.empty())
                return;
            if (l.last - l.passed + 2 >= ring_size)
                pass_finished(in);
            has_slot = l.last - l.passed + 2 < ring_size;
            if (has_slot && failure_.empty()) {
                slot& s = l.at(l.last + 1);
                s.what = what;
                // Right behind something that is not through, there is no need to measure when this begins.
                s.own_begin = !l.adjoins || is_through(l.at(l.last).end);
                if (s.own_begin)
                    succeed(cudaEventRecord(s.begin, l.stream), what);
            }
            if (!failure_.empty())
                return;
        }
        cudaError_t const error = enqueue(l.stream);
        std::lock_guard const lock(state_);
        l.dirty = true;
        l.adjoins = false;
        if (!succeed(error, what))
            return;
        if (!has_slot) { // so much is under way that it counts with what came before it
            operation& before = l.at(l.last).what;
            std::uint64_t const bytes = before.bytes + what.bytes;
            before = what;
            before.bytes = bytes;
        }
        if (succeed(cudaEventRecord(l.at(l.last + (has_slot ? 1 : 0)).end, l.stream), what)) {
            l.last += has_slot ? 1 : 0;
            l.dirty = false;
            l.adjoins = true;
        }
    }

    // See device::call().
    void call(device_stream in, std::function<void()> function)
    {
        check_process();
        auto node = std::make_unique<host_call>();
        node->function = std::move(function);
        queue& l = of(in);
        device_scope const scope(ordinal_);
        std::lock_guard const order(l.order);
        std::lock_guard const lock(state_);
        if (!failure_.empty())
            return;
        while (!calls_->empty() && calls_->front()->done.load(std::memory_order_acquire))
            calls_->pop_front();
        calls_->push_back(std::move(node));
        if (!succeed(cudaLaunchHostFunc(l.stream, &run_host_call, calls_->back().get()), {operation::call})) {
            calls_->pop_back();
            return;
        }
        l.dirty = true;
        l.adjoins = false;
    }

    [[nodiscard]] device_event record_event(device_stream in)
    {
        check_process();
        queue& l = of(in);
        device_scope const scope(ordinal_);
        std::lock_guard const order(l.order);
        std::lock_guard const lock(state_);
        if (failure_.empty() && l.dirty) {
            if (l.last - l.passed + 2 >= ring_size)
                pass_finished(in);
            bool const has_slot = l.last - l.passed + 2 < ring_size;
            slot& s = l.at(l.last + (has_slot ? 1 : 0));
            if (succeed(cudaEventRecord(s.end, l.stream), {})) {
                if (has_slot) {
                    s.what = {};
                    s.own_begin = false;
                    ++l.last;
                }
                l.dirty = false;
            }
        }
        return {in, l.last};
    }
    void wait_event(device_stream in, device_event before)
    {
        check_process();
        if (in == before.stream)
            return;
        queue& l = of(in);
        queue& other = of(before.stream);
        device_scope const scope(ordinal_);
        std::lock_guard const order(l.order);
        std::lock_guard const lock(state_);
        if (!failure_.empty() || before.number <= other.passed)
            return;
        // The event may be one recorded later in that stream: that is after the mark, too.
        if (succeed(cudaStreamWaitEvent(l.stream, other.at(before.number).end, 0), {})) {
            l.dirty = true;
            l.adjoins = false;
        }
    }
    void wait_event(device_stream in, cudaEvent_t before)
    {
        check_process();
        queue& l = of(in);
        device_scope const scope(ordinal_);
        std::lock_guard const order(l.order);
        std::lock_guard const lock(state_);
        if (failure_.empty() && succeed(cudaStreamWaitEvent(l.stream, before, 0), {})) {
            l.dirty = true;
            l.adjoins = false;
        }
    }
    // See device::wait_until().
    [[nodiscard]] bool wait_until(device_event until, clock::time_point deadline)
    {
        check_process();
        clock::time_point const start = clock::now();
        for (;;) {
            {
                device_scope const scope(ordinal_);
                std::lock_guard const lock(state_);
                if (failure_.empty())
                    pass_finished(until.stream);
                if (failure_.empty() && of(until.stream).passed >= until.number) {
                    for (device_stream const each : {device_stream::work, device_stream::up, device_stream::down})
                        pass_finished(each); // whatever else is done by now
                    if (failure_.empty())
                        return true;
                }
                if (!failure_.empty())
                    throw device_error(failure_);
            }
            if (!pause(start, deadline))
                return false;
        }
    }
    // See device::reset(). What CUDA has been given, it does: it has begun.
    [[nodiscard]] bool reset(clock::time_point deadline) noexcept
    {
        if (drain(deadline) != drained::idle)
            return false;
        std::lock_guard const lock(state_);
        for (queue& l : streams_) // those whose event could not be recorded have finished, too
            l.dirty = l.adjoins = false;
        failure_.clear();
        calls_->clear();
        return true;
    }
    enum class drained : std::uint8_t {
        idle, // all streams have finished
        busy, // not by the deadline
        dead, // the device has failed for good, and does nothing any more
    };
    // Waits until all streams have finished, whether or not something has failed.
    [[nodiscard]] drained drain(clock::time_point deadline) noexcept
    {
        if (!in_this_process())
            return drained::dead;
        clock::time_point const start = clock::now();
        for (;;) {
            bool idle = true;
            {
                device_scope const scope(ordinal_);
                std::lock_guard const lock(state_);
                for (queue& each : streams_) {
                    cudaError_t const found = cudaStreamQuery(each.stream);
                    (void)cudaGetLastError();
                    if (found != cudaSuccess && found != cudaErrorNotReady)
                        return drained::dead;
                    idle = idle && found == cudaSuccess;
                }
            }
            if (idle)
                return drained::idle;
            if (!pause(start, deadline))
                return drained::busy;
        }
    }

    [[nodiscard]] device_usage usage() const
    {
        check_process();
        std::lock_guard const lock(state_);
        device_usage result;
        for (std::size_t i = 0; i < device_streams; ++i) {
            result.busy_s[i] = streams_[i].busy_s;
            result.bytes[i] = streams_[i].bytes;
        }
        return result;
    }

private:
    // Operations in flight in a stream that are measured one by one.
    static constexpr std::uint64_t ring_size = 512;

    struct slot {
        cudaEvent_t begin = nullptr;
        cudaEvent_t end = nullptr;
        bool own_begin = false; // else it begins where the slot before it ends
        operation what;
    };
    struct queue {
        std::mutex order; // before state_, where both are held
        cudaStream_t stream = nullptr;
        std::uint64_t last = 0;   // number of the last slot; they count from 1
        std::uint64_t passed = 0; // that far it is known to be through
        bool dirty = false;       // there is something behind the last slot
        bool adjoins = false;     // the next thing comes right behind the last slot
        double busy_s = 0;
        std::uint64_t bytes = 0;
        slot ring[ring_size];
        // Slots that have not been passed, and the one before them, keep their events.
        [[nodiscard]] slot& at(std::uint64_t number) noexcept { return ring[number % ring_size]; }
    };
    struct host_call {
        std::function<void()> function;
        std::atomic<bool> done{false};
    };
    static void run_host_call(void* data)
    {
        auto* const node = static_cast<host_call*>(data);
        node->function();
        node->function = nullptr;
        node->done.store(true, std::memory_order_release);
    }

    [[nodiscard]] queue& of(device_stream which) noexcept { return streams_[static_cast<std::size_t>(which)]; }

    void require(cudaError_t error, char const* what) const
    {
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
            throw_device_error({name_, " ", what, ": ", cudaGetErrorString(error)});
        }
    }
    // Under state_, as all that follow. Keeps the first failure.
    bool succeed(cudaError_t error, operation const& what)
    {
        if (error == cudaSuccess)
            return true;
        (void)cudaGetLastError(); // reported here, and not to the next caller that asks
        if (failure_.empty())
            failure_ =
                text_of({"adamant: ", name_, " has failed at the ", what.text(), ": ", cudaGetErrorString(error)});
        return false;
    }
    // Failures of what was enqueued come to light anywhere: what they can have been is what had not been passed.
    void fail_under_way(cudaError_t error)
    {
        (void)cudaGetLastError();
        if (!failure_.empty())
            return;
        std::string at;
        for (queue& l : streams_)
            if (l.passed < l.last)
                at += (at.empty() ? "the " : " or the ") + l.at(l.passed + 1).what.text();
        failure_ = "adamant: " + name_ + " has failed: " + cudaGetErrorString(error) +
                   (at.empty() ? "" : "; it was at the " + at.substr(4));
    }
    [[nodiscard]] bool is_through(cudaEvent_t event)
    {
        cudaError_t const found = cudaEventQuery(event);
        if (found == cudaErrorNotReady)
            (void)cudaGetLastError(); // no error, and not for the program to find as one
        else if (found != cudaSuccess)
            fail_under_way(found);
        return found == cudaSuccess;
    }
    void pass_finished(device_stream which)
    {
        queue& l = of(which);
        while (l.passed < l.last && is_through(l.at(l.passed + 1).end)) {
            slot const& s = l.at(l.passed + 1);
            if (s.what.what != operation::nothing) {
                float ms = 0;
                if (!succeed(cudaEventElapsedTime(&ms, s.own_begin ? s.begin : l.at(l.passed).end, s.end), s.what))
                    return;
                l.busy_s += static_cast<double>(ms) * 1e-3;
                l.bytes += s.what.bytes;
            }
            ++l.passed;
        }
    }
    // Between two looks; false where the deadline has come.
    static bool pause(clock::time_point start, clock::time_point deadline)
    {
        clock::time_point const now = clock::now();
        if (now >= deadline)
            return false;
        constexpr auto longest = std::chrono::microseconds(100);
        if (now - start < std::chrono::microseconds(200))
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(std::min<clock::duration>(longest, deadline - now));
        return true;
    }
    void destroy() noexcept
    {
        for (queue& each : streams_) {
            for (slot& s : each.ring)
                for (cudaEvent_t const event : {s.begin, s.end})
                    if (event != nullptr)
                        (void)cudaEventDestroy(event);
            if (each.stream != nullptr)
                (void)cudaStreamDestroy(each.stream);
        }
        (void)cudaGetLastError();
    }

    int ordinal_;
    std::string name_;
    mutable std::mutex state_; // of all that follows, but for what a stream's own lock orders
    std::string failure_;
    process_bound<std::deque<std::unique_ptr<host_call>>> calls_;
    queue streams_[device_streams];
};

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
