// SPDX-License-Identifier: Apache-2.0
// A pass over all shards, on the CPU and on a device at once: gives each side its part, and waits for both.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/block_table.hpp>
#include <adamant/detail/engine/cpu_backend.hpp>
#include <adamant/detail/engine/device_backend.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/exec/this_process.hpp>
#include <adamant/detail/exec/work_queue.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Threads of the team come in at the owner's worker_entry, ask line() for work, and bring it to run().
class hybrid_dispatcher {
public:
    // weights_ready: as in optimizer_options, or empty.
    hybrid_dispatcher(executor const& cpu, work_queue::worker_entry task, registry const& over, step_plan const& plan,
                      block_table& blocks, std::function<void(shard_id, std::size_t, std::size_t)> const& weights_ready)
        : over_(over), plan_(plan), blocks_(blocks), weights_ready_(weights_ready), host_(cpu, over, plan, blocks),
          line_(cpu.team(), task)
    {
    }
    hybrid_dispatcher(hybrid_dispatcher const&) = delete;
    hybrid_dispatcher& operator=(hybrid_dispatcher const&) = delete;
    ~hybrid_dispatcher()
    {
        if (line_.in_this_process())
            ignore_arrivals();
    }

    [[nodiscard]] cpu_backend& host() noexcept { return host_; }
    [[nodiscard]] cpu_backend const& host() const noexcept { return host_; }
    [[nodiscard]] work_queue& line() noexcept { return line_; }
    [[nodiscard]] work_queue const& line() const noexcept { return line_; }
    // Null without a device.
    [[nodiscard]] device_backend* device() const noexcept { return device_.get(); }
    // Null: none any more. Only between steps.
    void set_device(std::unique_ptr<device_backend> device) noexcept { device_ = std::move(device); }
    [[nodiscard]] std::vector<block_range> cpu_ranges() const
    {
        return device_ != nullptr ? device_->cpu_ranges() : ranges_of_all(over_);
    }

    // ---- A step begins

    // An empty list, and no errors. While no work is under way.
    void begin()
    {
        line_.set_max_item_pieces(host_.pieces_at_once());
        first_piece_ = line_.added();
        host_.begin(first_piece_);
        forget_errors();
        std::lock_guard const lock(arrivals_->mutex);
        arrivals_->to = this;
        arrivals_->expected = 0;
    }
    // The first pass over a shard whose gradient is there. One call at a time. Throws what check_caller() does.
    void submit(std::size_t shard)
    {
        if (device_ != nullptr && over_.has_device_arrays(shard)) {
            line_.check_caller();
            fetch_gradients(shard);
        } else {
            line_.add([&] { return host_.enqueue_shard(shard, plan_.first_pass); }, true);
        }
        if (device_ != nullptr)
            device_->submit(shard, plan_.first_pass);
    }
    // Of all shards. at_least_one: a thread comes to the end of the line in any case.
    void submit_all(bool at_least_one)
    {
        if (device_ != nullptr) {
            device_->submit_all(plan_.first_pass);
            for (std::size_t i = 0; i < over_.size(); ++i)
                if (over_.has_device_arrays(i))
                    fetch_gradients(i);
        }
        line_.add([&] {
            std::size_t pieces = 0;
            for (std::size_t i = 0; i < over_.size(); ++i)
                if (device_ == nullptr || !over_.has_device_arrays(i))
                    pieces += host_.enqueue_shard(i, plan_.first_pass);
            return pieces == 0 && device_ != nullptr && at_least_one ? host_.enqueue_nothing() : pieces;
        });
    }

    // ---- In the team's threads

    // Does pieces [begin, end) of the line.
    void run(unsigned member, std::size_t begin, std::size_t end) noexcept
    {
        if (device_ == nullptr && !weights_ready_) {
            host_.run(member, begin, end);
            return;
        }
        while (begin < end) {
            std::size_t const stop = std::min(end, host_.end_of_entry(begin));
            host_.run(member, begin, stop);
            if (auto const range = host_.changed_range(begin, stop))
                pass_on_weights(*range);
            begin = stop;
        }
    }
    // Whether gradients are still to come down: then one has come, or a moment has passed. Throws device_error.
    [[nodiscard]] bool awaits_gradients()
    {
        std::unique_lock lock(arrivals_->mutex);
        std::size_t const expected = arrivals_->expected;
        if (expected == 0)
            return false;
        arrivals_->changed->wait_for(lock, std::chrono::milliseconds(2),
                                     [&] { return arrivals_->expected != expected; });
        bool const came = arrivals_->expected != expected;
        lock.unlock();
        if (!came)
            device_->require_answer();
        return true;
    }
    // For the thread that ends a pass: begins the next one. False where the CPU has nothing to do in it.
    [[nodiscard]] bool begin_pass_at_end(block_pass pass, bool on_device)
    {
        if (on_device)
            device_->run(pass);
        std::size_t const pieces = host_.enqueue_all(pass);
        line_.add_at_end(pieces);
        return pieces != 0;
    }

    // ---- Passes over all shards that take part

    // On both sides; returns when it is done, as wait_for_pass() does.
    void do_pass(block_pass pass, bool on_device)
    {
        if (device_ != nullptr) {
            begin_pass(pass, on_device);
            wait_for_pass();
            return;
        }
        std::size_t const pieces = host_.enqueue_all(pass);
        std::size_t const first = line_.claim(pieces);
        host_.run_all(first, first + pieces, [this](unsigned member, std::size_t begin, std::size_t end) {
            if (weights_ready_)
                run(member, begin, end);
            else
                host_.work(member, begin, end);
            line_.complete(end - begin);
        });
    }
    void begin_pass(block_pass pass, bool on_device)
    {
        if (on_device)
            device_->run(pass);
        line_.add([&] { return host_.enqueue_all(pass); });
    }
    // What both sides were given is done, and the block table has what they found. Throws device_error, and what failed
    // where nobody waited.
    void wait_for_pass()
    {
        if (device_ != nullptr)
            device_->wait(); // all gradients that come down are on the line then
        line_.wait();
        if (device_ != nullptr)
            take_results();
    }
    void take_results()
    {
        device_->wait_for_results(false);
        std::lock_guard const lock(error_mutex_);
        if (error_ != nullptr)
            std::rethrow_exception(std::exchange(error_, nullptr));
    }
    // The first gradient that is not finite, by the order of shards; none if all are finite. Throws device_error.
    [[nodiscard]] std::optional<optimizer_report::place> first_nonfinite() const
    {
        for (std::size_t i = 0; i < over_.size(); ++i) {
            tracked_shard const& s = over_[i];
            std::size_t const block = plan_.takes_part(i) ? blocks_.first_nonfinite_block(s) : s.shard.blocks();
            if (block == s.shard.blocks())
                continue;
            std::optional<std::size_t> on_device;
            if (device_ != nullptr)
                on_device = device_->first_nonfinite(i, block);
            return optimizer_report::place{i, on_device ? *on_device : s.shard.first_nonfinite(block, s.summed != 0)};
        }
        return std::nullopt;
    }
    // The share of what was enqueued that is done. At any time.
    [[nodiscard]] double progress() const noexcept
    {
        std::size_t const done = line_.done() - first_piece_; // first: what is added meanwhile must not lag behind it
        std::size_t const all = line_.added() - first_piece_;
        return all == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(all);
    }

    // ---- The way back

    // Both sides come to rest, and what is still to come is ignored. False where the device does not answer.
    [[nodiscard]] bool stop()
    {
        ignore_arrivals();
        bool const answers = device_ == nullptr || device_->stop();
        line_.wait();
        forget_errors();
        return answers;
    }
    // What the CPU has records of; waits.
    void rollback_on_cpu()
    {
        if (device_ == nullptr)
            return do_pass(block_pass::rollback, false);
        line_.add([&] { return host_.enqueue_all(block_pass::rollback); });
        line_.wait();
    }
    // The squares of all gradients that the first pass has looked at.
    [[nodiscard]] squares_total squares() const
    {
        squares_total all = host_.squares();
        if (device_ != nullptr)
            device_->add_squares(all);
        return all;
    }

private:
    void pass_on_weights(std::size_t range) noexcept
    {
        if (device_ != nullptr)
            keep_error([&] { device_->send_weights(range); });
        if (weights_ready_) {
            block_range const& of = host_.ranges()[range];
            std::size_t const begin = of.first_element();
            weights_ready_(of.shard, begin, begin + of.elements(over_[of.shard].shard.size()));
        }
    }
    // The CPU's part of a shard is stepped as its gradient comes down.
    void fetch_gradients(std::size_t shard)
    {
        for (std::size_t r = host_.first_range(shard); r < host_.first_range(shard + 1); ++r) {
            {
                std::lock_guard const lock(arrivals_->mutex);
                ++arrivals_->expected;
            }
            device_->fetch_gradient(r, [arrivals = arrivals_, r] {
                std::lock_guard const lock(arrivals->mutex);
                if (arrivals->to != nullptr)
                    arrivals->to->gradient_came(r);
            });
        }
    }
    // In a thread of the device's, with the lock of the arrivals.
    void gradient_came(std::size_t range) noexcept
    {
        --arrivals_->expected;
        keep_error([&] { line_.add([&] { return host_.enqueue_range(range, plan_.first_pass); }); });
        arrivals_->changed->notify_all();
    }
    void ignore_arrivals()
    {
        std::lock_guard const lock(arrivals_->mutex);
        arrivals_->to = nullptr;
        arrivals_->expected = 0;
    }
    // For take_results() to throw.
    template <class Work>
    void keep_error(Work const& work) noexcept
    {
        try {
            work();
        } catch (...) {
            std::lock_guard const lock(error_mutex_);
            error_ = std::current_exception();
        }
    }
    void forget_errors()
    {
        std::lock_guard const lock(error_mutex_);
        error_ = nullptr;
    }

    // Where the device's threads come in. They may do so after this object is gone.
    struct arrivals {
        std::mutex mutex;
        process_bound<std::condition_variable> changed;
        hybrid_dispatcher* to = nullptr;
        std::size_t expected = 0;
    };

    registry const& over_;
    step_plan const& plan_;
    block_table const& blocks_;
    std::function<void(shard_id, std::size_t, std::size_t)> const& weights_ready_;
    cpu_backend host_;
    std::unique_ptr<device_backend> device_;
    std::shared_ptr<arrivals> arrivals_ = std::make_shared<arrivals>();
    std::mutex error_mutex_; // guards the next
    std::exception_ptr error_;
    std::size_t first_piece_ = 0; // of the step that is under way
    work_queue line_;             // last: its threads are at work on the others
};

} // namespace detail
ADAMANT_END_NAMESPACE
