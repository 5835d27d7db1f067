// SPDX-License-Identifier: Apache-2.0
// Dispatches passes over all shards to the CPU backend and the device backend, and waits for both.
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

// Continues a step in which the team begins the passes, without the caller.
class step_driver {
public:
    // Called by the team's thread that completes the last enqueued piece of a step of any kind. Returns as
    // queue_worker::at_end().
    virtual bool continue_at_end() noexcept = 0;

protected:
    ~step_driver() = default;
};

enum class backends : bool { cpu, both };

class hybrid_dispatcher final : private queue_worker {
public:
    // weights_ready: as in optimizer_options; may be empty.
    hybrid_dispatcher(executor const& cpu, background_team const& team, step_driver& driver,
                      registry const& shard_registry, step_plan const& plan, block_table& blocks,
                      std::function<void(shard_id, std::size_t, std::size_t)> const& weights_ready)
        : registry_(shard_registry), plan_(plan), blocks_(blocks), weights_ready_(weights_ready), driver_(driver),
          team_(team), host_(cpu, shard_registry, plan, blocks), queue_(team, *this)
    {
    }
    hybrid_dispatcher(hybrid_dispatcher const&) = delete;
    hybrid_dispatcher& operator=(hybrid_dispatcher const&) = delete;
    ~hybrid_dispatcher()
    {
        if (team_.in_this_process())
            ignore_arrivals();
    }

    [[nodiscard]] cpu_backend& host() noexcept { return host_; }
    [[nodiscard]] work_queue& queue() noexcept { return queue_; }
    [[nodiscard]] work_queue const& queue() const noexcept { return queue_; }
    // Null without a device.
    [[nodiscard]] device_backend* device() const noexcept { return device_.get(); }
    // Null removes the device. Call only between steps.
    void set_device(std::unique_ptr<device_backend> device) noexcept { device_ = std::move(device); }
    [[nodiscard]] std::vector<block_range> cpu_ranges() const
    {
        return device_ != nullptr ? device_->cpu_ranges() : ranges_of_all(registry_);
    }

    // ---- Begin of a step

    // Clears the list of work and the errors. Call only while no thread works.
    void begin()
    {
        queue_.set_max_item_pieces(host_.pieces_at_once());
        first_piece_ = queue_.added();
        host_.begin(first_piece_);
        forget_errors();
        std::lock_guard const lock(arrivals_->mutex);
        arrivals_->dispatcher = this;
        arrivals_->expected = 0;
    }
    // Whether submit() does the work itself.
    [[nodiscard]] bool works_in_submit() const noexcept { return device_ == nullptr && host_.is_small(); }
    // Enqueues the first pass over a shard whose gradient is complete, or runs it if the model is small. Not
    // thread-safe.
    void submit(std::size_t shard)
    {
        if (works_in_submit()) {
            std::size_t const pieces = host_.enqueue_shard(shard, plan_.first_pass);
            std::size_t const first = queue_.claim(pieces);
            run(0, first, first + pieces);
            queue_.complete(pieces);
            return;
        }
        if (is_downloaded(shard))
            fetch_gradients(shard);
        else
            queue_.add([&] { return host_.enqueue_shard(shard, plan_.first_pass); }, true);
        if (device_ != nullptr)
            device_->submit(shard, shard + 1, plan_.first_pass);
    }
    // Enqueues the first pass over all shards that take part. at_least_one: if the CPU has no work, enqueues an empty
    // piece, so that at_end() is called.
    void submit_all(bool at_least_one)
    {
        if (device_ != nullptr)
            device_->submit(0, registry_.size(), plan_.first_pass);
        for (std::size_t i = 0; i < registry_.size(); ++i)
            if (plan_.takes_part(i) && is_downloaded(i))
                fetch_gradients(i);
        queue_.add([&] {
            std::size_t pieces = 0;
            for (std::size_t i = 0; i < registry_.size(); ++i)
                if (plan_.takes_part(i) && !is_downloaded(i))
                    pieces += host_.enqueue_shard(i, plan_.first_pass);
            return pieces == 0 && device_ != nullptr && at_least_one ? host_.enqueue_empty_piece() : pieces;
        });
    }

    // ---- In the team's threads

    // Returns whether gradient downloads are pending. If so, first waits until one arrives, at most 2 ms. Throws
    // device_error.
    [[nodiscard]] bool awaits_gradients()
    {
        std::unique_lock lock(arrivals_->mutex);
        std::size_t const expected = arrivals_->expected;
        if (expected == 0)
            return false;
        arrivals_->changed->wait_for(lock, std::chrono::milliseconds(2),
                                     [&] { return arrivals_->expected != expected; });
        bool const arrived = arrivals_->expected != expected;
        lock.unlock();
        if (!arrived)
            device_->require_answer();
        return true;
    }
    // Called by the thread that ends a pass: starts the next one. Returns false if the CPU has no work in it.
    [[nodiscard]] bool begin_pass_at_end(block_pass pass, backends selected)
    {
        if (selected == backends::both)
            device_->run(pass);
        std::size_t const pieces = host_.enqueue_all(pass);
        queue_.add_at_end(pieces);
        return pieces != 0;
    }

    // ---- Passes over all shards that take part

    // Whether do_pass() measures busy time.
    [[nodiscard]] bool do_pass_measures() const noexcept { return device_ != nullptr || weights_ready_ != nullptr; }
    // Runs a pass, and waits as wait_for_pass().
    void do_pass(block_pass pass, backends selected)
    {
        if (device_ != nullptr) {
            begin_pass(pass, selected);
            wait_for_pass();
            return;
        }
        std::size_t const pieces = host_.enqueue_all(pass);
        std::size_t const first = queue_.claim(pieces);
        host_.run_all(first, first + pieces, only_reads(pass),
                      [this](unsigned member, std::size_t begin, std::size_t end) {
                          if (weights_ready_)
                              run(member, begin, end);
                          else
                              host_.work(member, begin, end);
                          queue_.complete(end - begin);
                      });
    }
    void begin_pass(block_pass pass, backends selected)
    {
        if (selected == backends::both)
            device_->run(pass);
        queue_.add([&] { return host_.enqueue_all(pass); });
    }
    // Waits for both backends, and stores their results in the block table. Throws device_error, and errors that
    // happened in other threads.
    void wait_for_pass()
    {
        if (device_ != nullptr)
            device_->wait(); // afterwards the queue has the work of all downloaded gradients
        queue_.wait();
        if (device_ != nullptr)
            take_results();
    }
    [[gnu::noinline]] void take_results()
    {
        device_->wait_for_results();
        std::lock_guard const lock(error_mutex_);
        if (error_ != nullptr)
            std::rethrow_exception(std::exchange(error_, nullptr));
    }
    // The first non-finite gradient in the order of shards; nullopt if all are finite. Throws device_error.
    [[nodiscard]] std::optional<optimizer_report::element> first_nonfinite() const
    {
        for (std::size_t i = 0; i < registry_.size(); ++i) {
            tracked_shard const& s = registry_[i];
            std::size_t const block = plan_.takes_part(i) ? blocks_.first_nonfinite_block(s) : s.shard.blocks();
            if (block == s.shard.blocks())
                continue;
            std::optional<std::size_t> on_device;
            if (device_ != nullptr)
                on_device = device_->first_nonfinite(i, block);
            return optimizer_report::element{i, on_device ? *on_device : s.shard.first_nonfinite(block, s.summed != 0)};
        }
        return std::nullopt;
    }
    // The completed share of the enqueued pieces. Thread-safe.
    [[nodiscard]] double progress() const noexcept
    {
        std::size_t const done = queue_.done() - first_piece_; // read first, so that it never exceeds the total
        std::size_t const total = queue_.added() - first_piece_;
        return total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
    }

    // ---- Rollback

    // Stops both backends, and ignores pending downloads. Returns false if the device does not answer.
    [[nodiscard]] bool stop()
    {
        ignore_arrivals();
        bool const answers = device_ == nullptr || device_->stop();
        queue_.wait();
        forget_errors();
        return answers;
    }
    // Rolls back the CPU's blocks that have records. Waits.
    void rollback_on_cpu()
    {
        if (device_ == nullptr)
            return do_pass(block_pass::rollback, backends::cpu);
        queue_.add([&] { return host_.enqueue_all(block_pass::rollback); });
        queue_.wait();
    }
    // The squares of all gradients that the first pass has measured.
    [[nodiscard]] squares_total squares() const
    {
        squares_total total = host_.squares();
        if (device_ != nullptr)
            device_->add_squares(total);
        return total;
    }

private:
    // Processes pieces [begin, end) of the queue.
    void run(unsigned member, std::size_t begin, std::size_t end) noexcept override
    {
        if (device_ == nullptr && !weights_ready_) {
            host_.run(member, begin, end);
            return;
        }
        while (begin < end) {
            std::size_t const stop = std::min(end, host_.end_of_entry(begin));
            host_.run(member, begin, stop);
            if (auto const range = host_.changed_range(begin, stop))
                publish_weights(*range);
            begin = stop;
        }
    }
    bool at_end() noexcept override { return driver_.continue_at_end(); }

    // Uploads new weights to the device, and calls weights_ready.
    void publish_weights(std::size_t range) noexcept
    {
        if (device_ != nullptr)
            keep_error([&] { device_->send_weights(range); });
        if (weights_ready_) {
            block_range const& r = host_.ranges()[range];
            std::size_t const begin = r.first_element();
            weights_ready_(r.shard, begin, begin + r.elements(registry_[r.shard].shard.size()));
        }
    }
    // Whether the CPU's part of a shard's gradient is on the device.
    [[nodiscard]] bool is_downloaded(std::size_t shard) const noexcept
    {
        return device_ != nullptr && registry_.has_device_arrays(shard);
    }
    // Downloads the gradients of the CPU's part of a shard. Each range is enqueued when its gradient arrives.
    void fetch_gradients(std::size_t shard)
    {
        for (std::size_t r = host_.first_range(shard); r < host_.first_range(shard + 1); ++r) {
            {
                std::lock_guard const lock(arrivals_->mutex);
                ++arrivals_->expected;
            }
            device_->fetch_gradient(r, [arrivals = arrivals_, r] {
                std::lock_guard const lock(arrivals->mutex);
                if (arrivals->dispatcher != nullptr)
                    arrivals->dispatcher->on_gradient(r);
            });
        }
    }
    // Runs in a thread of the device, with arrivals_->mutex locked.
    void on_gradient(std::size_t range) noexcept
    {
        --arrivals_->expected;
        keep_error([&] { queue_.add([&] { return host_.enqueue_range(range, plan_.first_pass); }); });
        arrivals_->changed->notify_all();
    }
    void ignore_arrivals()
    {
        std::lock_guard const lock(arrivals_->mutex);
        arrivals_->dispatcher = nullptr;
        arrivals_->expected = 0;
    }
    // Keeps an exception of work() for take_results().
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

    // Shared with callbacks in the device's threads, which may run after this object is destroyed.
    struct arrivals {
        std::mutex mutex;
        process_bound<std::condition_variable> changed;
        hybrid_dispatcher* dispatcher = nullptr; // null: ignore arrivals
        std::size_t expected = 0;                // pending downloads
    };

    registry const& registry_;
    step_plan const& plan_;
    block_table const& blocks_;
    std::function<void(shard_id, std::size_t, std::size_t)> const& weights_ready_;
    step_driver& driver_;
    background_team const& team_;
    cpu_backend host_;
    std::unique_ptr<device_backend> device_;
    std::shared_ptr<arrivals> arrivals_ = std::make_shared<arrivals>();
    std::mutex error_mutex_; // guards error_
    std::exception_ptr error_;
    std::size_t first_piece_ = 0; // of the current step
    work_queue queue_;            // last: its threads use the other members
};

} // namespace detail
ADAMANT_END_NAMESPACE
