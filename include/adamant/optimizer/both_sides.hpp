// SPDX-License-Identifier: Apache-2.0
// A pass over all shards, on the CPU and on a device at once: who is given what, and the wait for both.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <utility>

#include <adamant/core/error.hpp>
#include <adamant/optimizer/device_side.hpp>
#include <adamant/optimizer/offload_step.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class both_sides {
protected:
    both_sides(executor const& cpu, work_line::end_function at_end) : passes_(cpu, std::move(at_end)), side_(passes_) {}
    ~both_sides() { close_gate(true); }

    // The first pass over a shard whose gradient is there.
    void start(std::size_t shard)
    {
        if (side_.has_arrays(shard) && side_.there()) {
            passes_.check_caller();
            fetch_gradients(shard);
        } else {
            passes_.line().add([&] { return passes_.describe(shard, first_pass_); }, true);
        }
        if (side_.there())
            side_.submit(shard, first_pass_);
    }
    // Of all shards. at_least_one: something is put on the line in any case, so that somebody comes to its end.
    void submit_all(bool at_least_one)
    {
        passes_.check_caller();
        std::lock_guard const lock(submit_all_mutex_);
        for (tracked_shard& s : passes_.shards)
            s.submitted = true;
        if (side_.there()) {
            side_.submit_all(first_pass_);
            for (std::size_t i = 0; i < passes_.shards.size(); ++i)
                if (side_.has_arrays(i))
                    fetch_gradients(i);
        }
        passes_.line().add([&] {
            std::size_t blocks = 0;
            for (std::size_t i = 0; i < passes_.shards.size(); ++i)
                if (!side_.there() || !side_.has_arrays(i))
                    blocks += passes_.describe(i, first_pass_);
            return blocks == 0 && side_.there() && at_least_one ? passes_.describe_nothing() : blocks;
        });
    }
    // In the team's end function: the first gradients may have come down, and been stepped, before all is submitted.
    void wait_until_all_is_submitted() { std::lock_guard const lock(submit_all_mutex_); }
    // The CPU's part of a shard is stepped as its gradient comes down.
    void fetch_gradients(std::size_t shard)
    {
        for (std::size_t r = passes_.first_range(shard); r < passes_.first_range(shard + 1); ++r) {
            {
                std::lock_guard const lock(gate_->mutex);
                ++gate_->expected;
            }
            side_.fetch_gradient(r, [gate = gate_, r] {
                std::lock_guard const lock(gate->mutex);
                if (gate->to != nullptr) // else it comes too late
                    gate->to->arrived(r);
            });
        }
    }
    // What has been expected until now does not arrive any more; false: what will be is awaited.
    void close_gate(bool closed)
    {
        std::lock_guard const lock(gate_->mutex);
        gate_->to = closed ? nullptr : this;
        gate_->expected = 0;
    }
    // In the team's end function. Whether gradients are still expected: then one has come, or may have.
    [[nodiscard]] bool awaits_gradients()
    {
        std::unique_lock lock(gate_->mutex);
        std::size_t const expected = gate_->expected;
        if (expected == 0)
            return false;
        gate_->changed.wait_for(lock, std::chrono::milliseconds(2), [&] { return gate_->expected != expected; });
        bool const came = gate_->expected != expected;
        lock.unlock();
        if (!came)
            side_.require_answer();
        return true;
    }
    // In one of the team's threads.
    void send_weights(std::size_t range) noexcept
    {
        keep_error([&] { side_.send_weights(range); });
    }
    // What is kept for a step that is over means nothing to the next.
    void forget_failures()
    {
        device_failed_ = false;
        std::lock_guard const lock(arrival_mutex_);
        arrival_error_ = nullptr;
    }
    // For wait_for_pass() to throw.
    template <class Work>
    void keep_error(Work const& work) noexcept
    {
        try {
            work();
        } catch (...) {
            std::lock_guard const lock(arrival_mutex_);
            arrival_error_ = std::current_exception();
        }
    }
    // What both sides have been given is done, and known. Throws device_error, and what was kept for it.
    void wait_for_pass()
    {
        if (side_.there())
            on_device([&] { side_.wait(); }); // all that comes down is on the line then
        passes_.line().wait();
        if (side_.there())
            on_device([&] { take_results(); });
    }
    void take_results()
    {
        side_.wait_for_results();
        std::lock_guard const lock(arrival_mutex_);
        if (arrival_error_ != nullptr)
            std::rethrow_exception(std::exchange(arrival_error_, nullptr));
    }
    // What fails in there leaves a step that has to be taken back.
    template <class Work>
    void on_device(Work const& work)
    {
        try {
            work();
        } catch (...) {
            device_failed_ = true;
            throw;
        }
    }
    // Over all that take part, on both sides; the caller waits.
    void begin_pass(block_pass pass)
    {
        begin_on_device(pass);
        passes_.line().add([&] { return passes_.describe_all(pass); });
    }
    void begin_on_device(block_pass pass)
    {
        if (side_.there() && passes_.waits_for_room) // else it is through, and what had no room for records is left
            on_device([&] { side_.run(pass); });
    }
    void run_all(block_pass pass)
    {
        begin_pass(pass);
        wait_for_pass();
    }
    void undo_recorded()
    {
        passes_.line().add([&] { return passes_.describe_all(block_pass::undo); });
        passes_.line().wait();
    }
    // What a device has yet to take back of a step that failed, it must before anything else. Throws device_error.
    void settle()
    {
        if (!device_is_behind_)
            return;
        bool const answers = side_.stop();
        passes_.line().wait();
        if (!answers || !side_.take_back())
            throw device_error("adamant: " + side_.device().name() +
                               " has failed in a step and does not answer yet; its part of that step is still to be "
                               "taken back. Call again later, or load a checkpoint into a new optimizer");
        passes_.forget_records();
        device_is_behind_ = false;
    }
    void require_not_lost() const
    {
        if (is_lost_ && !side_.there())
            throw invalid_argument("adamant: the last load() failed in the middle, so params and moments are of no "
                                   "known step; load() a state");
        if (is_lost_)
            throw device_error("adamant: " + side_.device().name() +
                               " or a file has failed while a state was loaded, or the device in the update itself "
                               "without records (see "
                               "device_records in the options), so what it has is of no known step; load() a state");
    }

    offload_passes passes_;
    device_side side_;                            // after the passes: its device is still at work on them when it goes
    block_pass first_pass_ = block_pass::measure; // of the step that is under way
    bool device_failed_ = false;                  // that step has to be taken back
    bool is_lost_ = false;                        // the state is of no known step, until one is loaded
    bool device_is_behind_ = false;               // it has yet to take back what it did of a step that failed

private:
    // In a thread of the device's, with the gate's lock.
    void arrived(std::size_t range) noexcept
    {
        --gate_->expected;
        keep_error([&] { passes_.line().add([&] { return passes_.describe_range(range, first_pass_); }); });
        gate_->changed.notify_all();
    }

    // What stands between gradients that come down and those that wait for them, which may be gone by then.
    struct gate {
        std::mutex mutex;
        std::condition_variable changed;
        both_sides* to = nullptr;
        std::size_t expected = 0;
    };
    std::shared_ptr<gate> gate_ = std::make_shared<gate>();
    std::mutex submit_all_mutex_;
    std::mutex arrival_mutex_; // guards the next
    std::exception_ptr arrival_error_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
