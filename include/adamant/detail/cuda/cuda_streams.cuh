// SPDX-License-Identifier: Apache-2.0
// stream_set: the streams of a CUDA device, the progress of their work, and the first failure.
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

// Thread-safe. Each stream has its own mutex for enqueuing, because a copy of pageable memory may block its caller. The
// state that waiting needs has another mutex, which is held only briefly.
class stream_set {
public:
    using clock = std::chrono::steady_clock;

    // Throws device_error.
    stream_set(int ordinal, std::string name) : ordinal_(ordinal), name_(std::move(name))
    {
        if (!can_restore_contexts())
            throw_device_error(
                {"cannot use ", name_, ": the driver's functions for contexts were not found. Update it."});
        device_scope const scope(ordinal_);
        require(scope.error(), "cannot be used");
        try {
            for (queue& q : streams_) {
                require(cudaStreamCreateWithFlags(&q.stream, cudaStreamNonBlocking), "cannot make a stream");
                for (slot& s : q.ring) {
                    require(cudaEventCreate(&s.begin), "cannot make an event");
                    require(cudaEventCreate(&s.end), "cannot make an event");
                }
            }
        } catch (...) {
            destroy();
            throw;
        }
    }
    // Waits for enqueued work, up to a limit: it may write to the caller's memory.
    ~stream_set()
    {
        if (!in_this_process())
            return;
        drain_result const result = drain(clock::now() + std::chrono::seconds(10));
        is_abandoned_->store(result == drain_result::busy, std::memory_order_relaxed);
        if (result != drain_result::idle)
            for (std::unique_ptr<host_call>& q : *calls_)
                if (!q->done.load(std::memory_order_acquire))
                    (void)q.release(); // leaked, because the device may still call it
        device_scope const scope(ordinal_);
        if (scope.error() == cudaSuccess)
            destroy();
    }
    stream_set(stream_set const&) = delete;
    stream_set& operator=(stream_set const&) = delete;

    [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
    [[nodiscard]] std::string const& name() const noexcept { return name_; }
    // CUDA does not survive a fork: its calls may fail or hang, and mutexes may be locked forever.
    [[nodiscard]] bool in_this_process() const noexcept { return calls_.in_this_process(); }
    // Throws unavailable in a forked child process.
    void check_process() const { require_process(calls_.process(), name_); }

    // Calls enqueue(stream), which enqueues work and returns CUDA's error, unless earlier work has failed. Records the
    // error as the failure.
    template <class Enqueue>
    void enqueue(device_stream stream, operation const& op, Enqueue const& enqueue)
    {
        check_process();
        queue& q = queue_of(stream);
        device_scope const scope(ordinal_);
        std::lock_guard const order(q.order);
        bool has_slot = false;
        {
            std::lock_guard const lock(state_mutex_);
            if (!failure_.empty() || !is_current(scope, op))
                return;
            if (q.last - q.completed + 2 >= ring_size)
                retire_completed(stream);
            has_slot = q.last - q.completed + 2 < ring_size;
            if (has_slot && failure_.empty()) {
                slot& s = q.slot_at(q.last + 1);
                s.op = op;
                // Directly after unfinished work, the begin need not be measured: it is the end of that work.
                s.has_begin = !q.is_contiguous || is_complete(q.slot_at(q.last).end);
                if (s.has_begin)
                    check(cudaEventRecord(s.begin, q.stream), op);
            }
            if (!failure_.empty())
                return;
            q.has_unmarked_work = true; // also if enqueue() throws after some work
            q.is_contiguous = false;
        }
        cudaError_t const error = enqueue(q.stream);
        std::lock_guard const lock(state_mutex_);
        if (!check(error, op))
            return;
        if (!has_slot) { // the ring is full: count this operation with the one before it
            operation& last_op = q.slot_at(q.last).op;
            std::uint64_t const bytes = last_op.bytes + op.bytes;
            last_op = op;
            last_op.bytes = bytes;
        }
        if (check(cudaEventRecord(q.slot_at(q.last + (has_slot ? 1 : 0)).end, q.stream), op)) {
            q.last += has_slot ? 1 : 0;
            q.has_unmarked_work = false;
            q.is_contiguous = true;
        }
    }

    // See device::call().
    void call(device_stream stream, std::function<void()> function)
    {
        check_process();
        auto node = std::make_unique<host_call>();
        node->function = std::move(function);
        queue& q = queue_of(stream);
        device_scope const scope(ordinal_);
        std::lock_guard const order(q.order);
        std::lock_guard const lock(state_mutex_);
        if (!failure_.empty() || !is_current(scope, {operation::call}))
            return;
        while (!calls_->empty() && calls_->front()->done.load(std::memory_order_acquire))
            calls_->pop_front();
        calls_->push_back(std::move(node));
        if (!check(cudaLaunchHostFunc(q.stream, &run_host_call, calls_->back().get()), {operation::call})) {
            calls_->pop_back();
            return;
        }
        q.has_unmarked_work = true;
        q.is_contiguous = false;
    }

    [[nodiscard]] device_event record_event(device_stream stream)
    {
        check_process();
        queue& q = queue_of(stream);
        device_scope const scope(ordinal_);
        std::lock_guard const order(q.order);
        std::lock_guard const lock(state_mutex_);
        if (failure_.empty() && q.has_unmarked_work && is_current(scope, {})) {
            if (q.last - q.completed + 2 >= ring_size)
                retire_completed(stream);
            bool const has_slot = q.last - q.completed + 2 < ring_size;
            slot& s = q.slot_at(q.last + (has_slot ? 1 : 0));
            if (check(cudaEventRecord(s.end, q.stream), {})) {
                if (has_slot) {
                    s.op = {};
                    s.has_begin = false;
                    ++q.last;
                }
                q.has_unmarked_work = false;
            }
        }
        return {stream, q.last};
    }
    void wait_event(device_stream stream, device_event event)
    {
        check_process();
        if (stream == event.stream)
            return;
        queue& q = queue_of(stream);
        queue& other = queue_of(event.stream);
        device_scope const scope(ordinal_);
        std::lock_guard const order(q.order);
        std::lock_guard const lock(state_mutex_);
        if (!failure_.empty() || event.number <= other.completed || !is_current(scope, {}))
            return;
        // The slot may hold an event that was recorded later in that stream, which is after this event, too.
        if (check(cudaStreamWaitEvent(q.stream, other.slot_at(event.number).end, 0), {})) {
            q.has_unmarked_work = true;
            q.is_contiguous = false;
        }
    }
    void wait_event(device_stream stream, cudaEvent_t event)
    {
        check_process();
        queue& q = queue_of(stream);
        device_scope const scope(ordinal_);
        std::lock_guard const order(q.order);
        std::lock_guard const lock(state_mutex_);
        if (failure_.empty() && is_current(scope, {}) && check(cudaStreamWaitEvent(q.stream, event, 0), {})) {
            q.has_unmarked_work = true;
            q.is_contiguous = false;
        }
    }
    // See device::wait_until().
    [[nodiscard]] bool wait_until(device_event event, clock::time_point deadline)
    {
        check_process();
        clock::time_point const start = clock::now();
        for (;;) {
            {
                device_scope const scope(ordinal_);
                std::lock_guard const lock(state_mutex_);
                if (failure_.empty() && is_current(scope, {}))
                    retire_completed(event.stream);
                if (failure_.empty() && queue_of(event.stream).completed >= event.number) {
                    for (device_stream const stream : {device_stream::work, device_stream::up, device_stream::down})
                        retire_completed(stream); // updates usage()
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
    // See device::reset(). Work that was passed to CUDA cannot be dropped.
    [[nodiscard]] bool reset(clock::time_point deadline) noexcept
    {
        drain_result const result = drain(deadline);
        is_abandoned_->store(result == drain_result::busy, std::memory_order_relaxed);
        if (result != drain_result::idle)
            return false;
        std::lock_guard const lock(state_mutex_);
        for (queue& q : streams_) // work whose event could not be recorded has finished, too
            q.has_unmarked_work = q.is_contiguous = false;
        failure_.clear();
        calls_->clear();
        return true;
    }
    // Call if work has not finished in time. Until it has, memory leaks instead of being released: the work may use it,
    // and CUDA would wait for the work without a limit.
    void abandon() noexcept { is_abandoned_->store(true, std::memory_order_relaxed); }
    [[nodiscard]] bool is_abandoned() const noexcept
    {
        if (is_abandoned_->load(std::memory_order_relaxed) && drain(clock::now()) == drain_result::idle)
            is_abandoned_->store(false, std::memory_order_relaxed);
        return is_abandoned_->load(std::memory_order_relaxed);
    }
    // The last answer of is_abandoned(), for memory that may outlive this object.
    [[nodiscard]] std::shared_ptr<std::atomic<bool> const> abandoned() const noexcept { return is_abandoned_; }
    // Throws device_error if something has failed.
    void check_failure() const
    {
        check_process();
        std::lock_guard const lock(state_mutex_);
        if (!failure_.empty())
            throw device_error(failure_);
    }
    enum class drain_result : std::uint8_t {
        idle, // all streams have finished
        busy, // some streams have not finished by the deadline
        dead, // the device has failed permanently
    };
    // Waits until all streams have finished, whether or not something has failed.
    [[nodiscard]] drain_result drain(clock::time_point deadline) const noexcept
    {
        if (!in_this_process())
            return drain_result::dead;
        clock::time_point const start = clock::now();
        for (;;) {
            bool idle = true;
            {
                device_scope const scope(ordinal_);
                std::lock_guard const lock(state_mutex_);
                if (scope.error() != cudaSuccess)
                    return drain_result::dead;
                for (queue const& q : streams_) {
                    cudaError_t const status = cudaStreamQuery(q.stream);
                    if (status != cudaSuccess)
                        (void)cudaGetLastError();
                    if (status != cudaSuccess && !is_not_ready(status))
                        return drain_result::dead;
                    idle = idle && status == cudaSuccess;
                }
            }
            if (idle)
                return drain_result::idle;
            if (!pause(start, deadline))
                return drain_result::busy;
        }
    }

    [[nodiscard]] device_usage usage() const
    {
        check_process();
        std::lock_guard const lock(state_mutex_);
        device_usage result;
        for (std::size_t i = 0; i < device_streams; ++i) {
            result.busy_s[i] = streams_[i].busy_s;
            result.bytes[i] = streams_[i].bytes;
        }
        return result;
    }

private:
    // Number of operations in flight in a stream that are measured separately.
    static constexpr std::uint64_t ring_size = 512;

    struct slot {
        cudaEvent_t begin = nullptr;
        cudaEvent_t end = nullptr;
        bool has_begin = false; // false: begins at the end of the previous slot
        operation op;
    };
    struct queue {
        std::mutex order; // for enqueuing; locked before state_mutex_
        cudaStream_t stream = nullptr;
        std::uint64_t last = 0;         // number of the last slot; slots count from 1
        std::uint64_t completed = 0;    // number of the last slot that is known to be complete
        bool has_unmarked_work = false; // work after the last slot's event
        bool is_contiguous = false;     // the next operation follows the last slot directly
        double busy_s = 0;
        std::uint64_t bytes = 0;
        slot ring[ring_size];
        // Slots that are not complete, and the one before them, keep their events.
        [[nodiscard]] slot& slot_at(std::uint64_t number) noexcept { return ring[number % ring_size]; }
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

    [[nodiscard]] queue& queue_of(device_stream stream) noexcept { return streams_[static_cast<std::size_t>(stream)]; }

    void require(cudaError_t error, char const* problem) const
    {
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
            throw_device_error({name_, " ", problem, ": ", cudaGetErrorString(error)});
        }
    }
    // Returns whether the call succeeded. Records the first failure. This and all later functions need state_mutex_.
    bool check(cudaError_t error, operation const& op)
    {
        if (error == cudaSuccess)
            return true;
        (void)cudaGetLastError(); // clears the error, so that the program's next check does not see it
        if (failure_.empty())
            failure_ = text_of({"adamant: ", name_, " has failed at the ", op.text(), ": ", cudaGetErrorString(error)});
        return false;
    }
    // Records a failure of enqueued work, which any later call may return. Names the candidates: the first unfinished
    // operation of each stream.
    void record_async_failure(cudaError_t error)
    {
        (void)cudaGetLastError();
        if (!failure_.empty())
            return;
        std::string candidates;
        for (queue& q : streams_)
            if (q.completed < q.last)
                candidates += (candidates.empty() ? "the " : " or the ") + q.slot_at(q.completed + 1).op.text();
        failure_ = "adamant: " + name_ + " has failed: " + cudaGetErrorString(error) +
                   (candidates.empty() ? "" : "; it was at the " + candidates.substr(4));
    }
    [[nodiscard]] static bool is_not_ready(cudaError_t status) noexcept
    {
#if defined(__HIP__) // refuses queries while another thread captures a graph, even in a device_scope
        if (status == cudaErrorStreamCaptureUnsupported)
            return true;
#endif
        return status == cudaErrorNotReady;
    }
    // Whether the device is current. If not, records the failure. op: what is about to be enqueued.
    bool is_current(device_scope const& scope, operation const& op)
    {
        cudaError_t const error = scope.error();
        if (error == cudaSuccess || error == cudaErrorInvalidDevice || error == cudaErrorMemoryAllocation)
            return check(error, op);
        record_async_failure(error); // of earlier work
        return false;
    }
    [[nodiscard]] bool is_complete(cudaEvent_t event)
    {
        cudaError_t const status = cudaEventQuery(event);
        if (is_not_ready(status))
            (void)cudaGetLastError(); // not an error, so the program must not see it
        else if (status != cudaSuccess)
            record_async_failure(status);
        return status == cudaSuccess;
    }
    void retire_completed(device_stream stream)
    {
        queue& q = queue_of(stream);
        while (q.completed < q.last && is_complete(q.slot_at(q.completed + 1).end)) {
            slot const& s = q.slot_at(q.completed + 1);
            if (s.op.type != operation::nothing) {
                float ms = 0;
                if (!check(cudaEventElapsedTime(&ms, s.has_begin ? s.begin : q.slot_at(q.completed).end, s.end), s.op))
                    return;
                q.busy_s += static_cast<double>(ms) * 1e-3;
                q.bytes += s.op.bytes;
            }
            ++q.completed;
        }
    }
    // Waits between two queries. Returns whether the deadline has not passed.
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
        bool all = true;
        for (queue& q : streams_) {
            for (slot& s : q.ring)
                for (cudaEvent_t const event : {s.begin, s.end})
                    all = (event == nullptr || cudaEventDestroy(event) == cudaSuccess) && all;
            all = (q.stream == nullptr || cudaStreamDestroy(q.stream) == cudaSuccess) && all;
        }
        if (!all)
            (void)cudaGetLastError();
    }

    int ordinal_;
    std::string name_;
    mutable std::mutex state_mutex_; // guards all later members, except is_abandoned_ and queue::order
    std::string failure_;
    std::shared_ptr<std::atomic<bool>> const is_abandoned_ = std::make_shared<std::atomic<bool>>(false);
    process_bound<std::deque<std::unique_ptr<host_call>>> calls_;
    queue streams_[device_streams];
};

} // namespace detail::cuda
ADAMANT_END_NAMESPACE
