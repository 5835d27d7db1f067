// SPDX-License-Identifier: Apache-2.0
// A device that is imitated in host memory: for tests, and for machines without a GPU. Its memory is at addresses that
// nobody can read through, it works in threads of its own, and it is as slow, and as unreliable, as it is told to be.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <adamant/core/error.hpp>
#include <adamant/device/device.hpp>

ADAMANT_BEGIN_NAMESPACE

struct emulation_options {
    std::string name = "emulated device";
    std::size_t memory_bytes = std::size_t{1} << 40;
    // What it is to imitate; where this machine is slower than that, it is what it is. Links are usually given each
    // way.
    double work_bytes_per_s = std::numeric_limits<double>::infinity();
    double up_bytes_per_s = std::numeric_limits<double>::infinity();
    double down_bytes_per_s = std::numeric_limits<double>::infinity();
    double latency_s = 0; // of everything that is enqueued
};

// What can be made to go wrong.
enum class device_operation : std::uint8_t { copy_up, copy_down, work, allocate };

class emulated_device final : public device {
public:
    // Throws invalid_argument for rates that are not above 0, and what std::thread does.
    explicit emulated_device(emulation_options options = {}) : options_(std::move(options))
    {
        for (double const rate : {options_.work_bytes_per_s, options_.up_bytes_per_s, options_.down_bytes_per_s})
            if (!(rate > 0))
                throw invalid_argument("adamant: a rate of '" + options_.name + "' is " + std::to_string(rate) +
                                       " bytes a second, but must be above 0");
        if (!(options_.latency_s >= 0))
            throw invalid_argument("adamant: the latency of '" + options_.name + "' is below 0");
        for (std::size_t i = 0; i < device_lanes; ++i)
            try {
                lanes_[i].thread = std::thread([this, i] { serve(lanes_[i]); });
            } catch (...) {
                stop();
                throw;
            }
    }
    // Drops what has not begun.
    ~emulated_device() override { stop(); }

    [[nodiscard]] std::string name() const override { return options_.name; }
    [[nodiscard]] device_memory memory() const override
    {
        std::lock_guard const lock(mutex_);
        return {options_.memory_bytes, options_.memory_bytes - used_bytes_};
    }

    [[nodiscard]] device_ptr allocate(std::size_t bytes) override
    {
        if (bytes == 0)
            return {};
        std::lock_guard const lock(mutex_);
        std::size_t const room = options_.memory_bytes - used_bytes_;
        if (due(fault_of(device_operation::allocate)) != fault::none)
            throw device_error("adamant: " + options_.name + " failed to allocate " + std::to_string(bytes) +
                               " bytes: a fault that was asked for");
        std::size_t const rounded = (bytes + alignment - 1) / alignment * alignment;
        if (bytes > room || rounded > room)
            throw unavailable("adamant: " + options_.name + " is asked for " + std::to_string(bytes) +
                              " bytes, but has only " + std::to_string(room) + " of " +
                              std::to_string(options_.memory_bytes) +
                              " left; set a larger ratio, so that more stays with the CPU");
        void* const real = std::aligned_alloc(alignment, rounded);
        if (real == nullptr)
            throw unavailable("adamant: " + options_.name + " is imitated in host memory, which has no " +
                              std::to_string(bytes) + " bytes left");
        std::unique_ptr<void, void (*)(void*)> own(real, std::free);
        std::memset(real, 0xa5, rounded); // nobody is to count on zeros, and the pages are to be there
        blocks_.emplace(next_address_, block{static_cast<std::byte*>(real), rounded});
        (void)own.release();
        used_bytes_ += rounded;
        device_ptr const result{next_address_};
        next_address_ += rounded + alignment; // a gap, in which nothing lies
        return result;
    }
    void release(device_ptr memory) noexcept override
    {
        std::lock_guard const lock(mutex_);
        auto const at = blocks_.find(memory.address);
        if (at == blocks_.end())
            return;
        std::free(at->second.real);
        used_bytes_ -= at->second.bytes;
        blocks_.erase(at);
    }

    void copy_up(device_ptr to, void const* from, std::size_t bytes) override
    {
        if (bytes != 0)
            enqueue(device_lane::up, device_operation::copy_up, bytes,
                    "a copy of " + std::to_string(bytes) + " bytes up",
                    [=, this] { std::memcpy(real(to, bytes), from, bytes); });
    }
    void copy_down(void* to, device_ptr from, std::size_t bytes) override
    {
        if (bytes != 0)
            enqueue(device_lane::down, device_operation::copy_down, bytes,
                    "a copy of " + std::to_string(bytes) + " bytes down",
                    [=, this] { std::memcpy(to, real(from, bytes), bytes); });
    }
    void call(device_lane lane, std::function<void()> function) override { push(lane, {.run = std::move(function)}); }

    [[nodiscard]] device_mark mark(device_lane lane) override
    {
        std::lock_guard const lock(mutex_);
        return {lane, of(lane).enqueued};
    }
    void follow(device_lane lane, device_mark before) override { push(lane, {.after = before, .waits = true}); }
    [[nodiscard]] bool wait_until(device_mark until, clock::time_point deadline) override
    {
        std::unique_lock lock(mutex_);
        auto const over = [&] { return !error_.empty() || of(until.lane).passed >= until.number; };
        if (deadline == clock::time_point::max())
            changed_.wait(lock, over);
        else
            changed_.wait_until(lock, deadline, over);
        if (!error_.empty())
            throw device_error(error_);
        return of(until.lane).passed >= until.number;
    }
    [[nodiscard]] bool reset(clock::time_point deadline) noexcept override
    {
        std::unique_lock lock(mutex_);
        ++generation_;
        changed_.notify_all();
        bool const idle = changed_.wait_until(lock, deadline, [this] { return is_idle(); });
        if (idle)
            error_.clear();
        changed_.wait(lock, [this] { return running_ == 0; }); // so that nothing touches the caller's memory any more
        return idle;
    }

    [[nodiscard]] std::shared_ptr<std::byte> pinned(std::size_t bytes) override
    {
        std::size_t const rounded = (std::max<std::size_t>(bytes, 1) + 4095) / 4096 * 4096;
        void* const memory = std::aligned_alloc(4096, rounded);
        if (memory == nullptr)
            throw unavailable("adamant: " + std::to_string(bytes) + " bytes of pinned memory are not to be had");
        std::memset(memory, 0, rounded); // pages that are pinned are there
        return {static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); }};
    }

    // These two are in emulated_part.hpp.
    [[nodiscard]] std::unique_ptr<device_part> make_part(std::vector<device_piece> pieces, bool with_records) override;
    [[nodiscard]] std::size_t part_bytes(std::span<device_piece const> pieces,
                                         bool with_records) const noexcept override;

    [[nodiscard]] device_usage usage() const override
    {
        std::lock_guard const lock(mutex_);
        return usage_;
    }

    // The operation number `after` of that kind from now on, counted from 0, fails; or it does not come to an end until
    // resume(), or until it has been dropped by reset(), which waits for it in vain.
    void fail(device_operation kind, std::size_t after = 0) { set_fault(kind, {after, fault::fails}); }
    void hang(device_operation kind, std::size_t after = 0) { set_fault(kind, {after, fault::hangs}); }
    // Nothing hangs, or will hang or fail, any more. What hung goes on, unless it has been dropped.
    void resume()
    {
        std::lock_guard const lock(mutex_);
        for (fault& f : faults_)
            f = {};
        hung_ = false;
        changed_.notify_all();
    }

    // Reads device memory as a debugger would, behind the lanes' backs: for tests. Throws device_error for what has not
    // been allocated.
    [[nodiscard]] std::byte* real(device_ptr at, std::size_t bytes) const
    {
        std::lock_guard const lock(mutex_);
        auto const after = blocks_.upper_bound(at.address);
        if (after != blocks_.begin()) {
            auto const& [begin, memory] = *std::prev(after);
            if (at.address - begin <= memory.bytes && bytes <= memory.bytes - (at.address - begin))
                return memory.real + (at.address - begin);
        }
        throw device_error("adamant: " + options_.name + " is told to use " + std::to_string(bytes) +
                           " bytes where it has not allocated any");
    }

private:
    friend class emulated_part;
    static constexpr std::size_t alignment = 256;
    struct block {
        std::byte* real;
        std::size_t bytes;
    };
    struct fault {
        static constexpr int none = 0, fails = 1, hangs = 2;
        std::size_t after = 0;
        int kind = none;
    };
    struct operation {
        std::function<void()> run = {};
        device_mark after = {};
        bool waits = false; // for `after`, and does nothing else
        bool costs = false; // time
        device_operation kind = device_operation::work;
        std::size_t bytes = 0;
        std::string what = {};
        std::uint64_t generation = 0;
    };
    struct lane_state {
        std::deque<operation> queue;
        std::uint64_t enqueued = 0;
        std::uint64_t passed = 0; // done, or dropped
        clock::time_point free_at = {};
        std::thread thread;
    };

    [[nodiscard]] bool is_idle() const noexcept
    {
        return std::all_of(std::begin(lanes_), std::end(lanes_),
                           [](lane_state const& l) { return l.passed == l.enqueued; });
    }
    // Until nothing is left to do, or what hangs keeps it from that: then all is dropped.
    void drain() noexcept
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_idle() || (hung_ && running_ == 0); });
        if (!is_idle()) {
            ++generation_;
            changed_.notify_all();
        }
    }
    [[nodiscard]] lane_state& of(device_lane lane) noexcept { return lanes_[static_cast<std::size_t>(lane)]; }
    [[nodiscard]] fault& fault_of(device_operation kind) noexcept { return faults_[static_cast<std::size_t>(kind)]; }
    void set_fault(device_operation kind, fault f)
    {
        std::lock_guard const lock(mutex_);
        fault_of(kind) = f;
    }
    // Counts one operation; what is to become of it.
    static int due(fault& f) noexcept
    {
        if (f.kind == fault::none || f.after-- != 0)
            return fault::none;
        return std::exchange(f, fault{}).kind;
    }
    [[nodiscard]] double rate(device_lane lane) const noexcept
    {
        return lane == device_lane::work ? options_.work_bytes_per_s
               : lane == device_lane::up ? options_.up_bytes_per_s
                                         : options_.down_bytes_per_s;
    }

    void enqueue(device_lane lane, device_operation kind, std::size_t bytes, std::string what,
                 std::function<void()> run)
    {
        push(lane, {.run = std::move(run), .costs = true, .kind = kind, .bytes = bytes, .what = std::move(what)});
    }
    void push(device_lane lane, operation op)
    {
        std::lock_guard const lock(mutex_);
        op.generation = generation_;
        of(lane).queue.push_back(std::move(op));
        ++of(lane).enqueued;
        changed_.notify_all();
    }
    void stop() noexcept
    {
        {
            std::lock_guard const lock(mutex_);
            stopping_ = true;
            hung_ = false;
            ++generation_;
            changed_.notify_all();
        }
        for (lane_state& lane : lanes_)
            if (lane.thread.joinable())
                lane.thread.join();
        for (auto const& [address, memory] : blocks_)
            std::free(memory.real);
    }

    void serve(lane_state& lane)
    {
        std::unique_lock lock(mutex_);
        for (;;) {
            changed_.wait(lock, [&] { return stopping_ || !lane.queue.empty(); });
            if (stopping_)
                return;
            operation op = std::move(lane.queue.front());
            lane.queue.pop_front();
            if (op.waits)
                changed_.wait(lock, [&] { return dropped(op) || of(op.after.lane).passed >= op.after.number; });
            else
                perform(lane, op, lock);
            op.run = {};
            ++lane.passed;
            changed_.notify_all();
        }
    }
    [[nodiscard]] bool dropped(operation const& op) const noexcept
    {
        return stopping_ || op.generation != generation_ || !error_.empty();
    }
    void perform(lane_state& lane, operation& op, std::unique_lock<std::mutex>& lock)
    {
        if (dropped(op))
            return;
        if (!op.costs) {
            ++running_;
            lock.unlock();
            op.run();
            lock.lock();
            --running_;
            return;
        }
        int const fate = due(fault_of(op.kind));
        if (fate == fault::fails) {
            error_ = "adamant: " + options_.name + " failed at " + op.what + ": a fault that was asked for";
            return;
        }
        if (fate == fault::hangs) {
            hung_ = true;
            changed_.notify_all();
            changed_.wait(lock, [this] { return !hung_; });
            if (dropped(op))
                return;
        }
        ++running_;
        lock.unlock();
        auto const begin = clock::now();
        std::string failure;
        try {
            op.run();
        } catch (std::exception const& error) {
            failure = error.what();
        }
        auto const lane_number = static_cast<device_lane>(&lane - lanes_);
        double const least = options_.latency_s + static_cast<double>(op.bytes) / rate(lane_number);
        // Counted from when the lane was free, so that sleeping too long now and then does not add up.
        auto const from = std::max(lane.free_at, begin - std::chrono::milliseconds(1));
        auto const until = from + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(least));
        std::this_thread::sleep_until(until);
        auto const end = clock::now();
        lane.free_at = std::max(until, begin);
        lock.lock();
        --running_;
        double const took = std::chrono::duration<double>(end - begin).count();
        usage_.busy_s[static_cast<std::size_t>(lane_number)] +=
            std::max(std::min(took, least * 1.5), least == 0 ? took : least);
        usage_.bytes[static_cast<std::size_t>(lane_number)] += op.bytes;
        if (!failure.empty() && error_.empty())
            error_ = failure;
    }

    emulation_options options_;
    mutable std::mutex mutex_; // guards everything below
    std::condition_variable changed_;
    std::map<std::uint64_t, block> blocks_;
    std::uint64_t next_address_ = 0xada0'0000'0000'0000; // which no processor takes for an address
    std::size_t used_bytes_ = 0;
    std::string error_;
    std::uint64_t generation_ = 0;
    unsigned running_ = 0; // outside the lock
    bool hung_ = false;
    bool stopping_ = false;
    fault faults_[4];
    device_usage usage_;
    lane_state lanes_[device_lanes];
};

ADAMANT_END_NAMESPACE

#include <adamant/device/emulated_part.hpp>
