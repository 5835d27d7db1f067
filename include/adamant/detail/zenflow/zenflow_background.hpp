// SPDX-License-Identifier: Apache-2.0
// ZenFlow's background work between steps: accumulates gradients, runs the deferred update of the last window, and
// publishes its weights in host memory or on the device.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/zenflow.hpp>
#include <adamant/detail/engine/step_machine.hpp>
#include <adamant/detail/exec/background_team.hpp>
#include <adamant/detail/exec/for_each_part.hpp>
#include <adamant/detail/zenflow/deferred_update.hpp>
#include <adamant/detail/zenflow/device_columns.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class zenflow_background {
public:
    // machine: becomes inconsistent if a rollback fails.
    zenflow_background(zenflow_model& model, step_machine& machine, background_team& team)
        : model_(model), machine_(machine), team_(team)
    {
    }

    // Reserves memory for all params. overlaps: ensures a team for background work.
    void build_layout(bool overlaps)
    {
        if (overlaps)
            team_.ensure();
        current_->parts.resize(model_.size());
        next_->parts.resize(model_.size());
        staged_.assign(model_.size(), not_staged);
        publishing_.resize(model_.size());
        for (std::size_t i = 0; i < model_.size(); ++i)
            publishing_[i].reserve(model_.matrices[i].columns());
    }
    [[nodiscard]] kernel::memory_access access() const noexcept { return {false, model_.cpu.prefetch_bytes()}; }

    // ---- The device

    [[nodiscard]] device_columns* device_state() const noexcept { return device_state_.get(); }
    void detach_device() noexcept
    {
        device_state_.reset();
        publishing_is_due_ = false; // set if publishing has failed
    }
    // Attaches a device, and uploads all weights.
    void attach_device(std::shared_ptr<device> target, double timeout_s)
    {
        team_.ensure();
        auto attached = std::make_unique<device_columns>(std::move(target), model_.matrices,
                                                         model_.registry.all_device_arrays(), timeout_s);
        attached->copy_weights(copy_direction::upload);
        device_state_ = std::move(attached);
        nothing_is_staged();
    }
    // Copies state and weights from the device to the host's arrays.
    void copy_to_host()
    {
        if (device_state_ == nullptr)
            return;
        try {
            device_state_->copy_to_host();
            device_state_->copy_weights(copy_direction::download);
        } catch (device_error const&) { // without a rollback, a failure in the background would fail every later call
            roll_back();
            throw;
        }
    }
    // Whether this process was forked while work was running, or while a device had state.
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return !team_.in_this_process() && (is_working() || device_state_ != nullptr);
    }
    // Throws unavailable in a forked child process only if background work was running at the fork: its locks may stay
    // locked forever.
    void check_at_rest() const
    {
        if (is_working())
            team_.check_process();
    }
    // Call in a handler of device_error: rolls back the device to the state before the step. Throws if the device does
    // not recover.
    void roll_back()
    {
        settle(); // otherwise background work could stage weights meanwhile
        nothing_is_staged();
        if (!device_state_->roll_back()) {
            if (!machine_.is_between_steps())
                machine_.fail();
            machine_.go(step_state::inconsistent);
            rethrow_as_device_error(
                "; the device does not recover, so params and moments are inconsistent. Call load() with a state.");
        }
    }

    // ---- Gradients of a step

    void begin_step()
    {
        std::lock_guard const lock(down_mutex_);
        waiting_down_.clear();
        down_ = 0;
        waiting_down_.reserve(model_.size());
    }
    // Downloads the gradient as soon as the host's previous gradients are accumulated.
    void download(std::size_t param)
    {
        std::lock_guard const lock(down_mutex_);
        if (sums_.is_done())
            device_state_->gradients().download(param);
        else
            waiting_down_.push_back(param);
    }
    // Discards the step's gradients: afterwards no download writes to the caller's arrays. Throws device_error if the
    // device has failed, whether or not it recovers.
    void discard_gradients()
    {
        if (device_state_ == nullptr)
            return;
        {
            std::lock_guard const lock(down_mutex_);
            waiting_down_.clear();
            down_ = 0;
        }
        try {
            device_state_->wait();
        } catch (device_error const&) {
            roll_back();
            throw;
        }
    }
    void finish_sums()
    {
        do_sums();
        download_rest();
    }
    [[nodiscard]] double take_busy_s_of_sums() noexcept { return sums_.take_busy_s(); }
    void begin_sums(std::vector<sum_tile> tiles) noexcept
    {
        std::size_t elems = 0;
        for (sum_tile const& t : tiles)
            elems += (t.end - t.begin) * t.matrix->columns();
        sums_.begin(std::move(tiles), elems);
    }

    // ---- Deferred updates

    // The deferred update of the current window, to be filled in.
    [[nodiscard]] deferred_update& next() noexcept { return *next_; }
    // The deferred update of the last window, whose weights are not published yet.
    [[nodiscard]] deferred_update& current() noexcept { return *current_; }
    // Starts next() as current(). Requires that it is prepared, and that the previous one is published.
    void begin_next() noexcept
    {
        std::swap(current_, next_);
        nothing_is_staged();
        current_->begin();
    }
    // Starts background work on the sums, and then, unless only_sums, on the deferred update. Returns immediately, but
    // does small work itself. If the request cannot be allocated, the next finish_sums() or settle() does the work.
    // With a device, work always starts in the background, because the next gradients are downloaded after the sums.
    void resume(bool only_sums) noexcept
    {
        bool const updates = !only_sums && !publishing_is_due_ && current_->is_active() && !current_->is_done();
        if (sums_.is_done() && !updates)
            return;
        std::size_t const elems = (sums_.is_done() ? 0 : sums_.elems()) + (updates ? current_->elems() : 0);
        if (device_state_ == nullptr && is_callers_work(model_.cpu, elems)) { // the sums are done
            while (do_next_of_update())
                ;
            return;
        }
        unsigned const threads = model_.cpu.chunks(elems).threads;
        try {
            // The previous drain, which may have less work, leaves as soon as it sees that this one waits.
            drain_.reset(new submission<drain>(team_->submit(threads, drain{this, updates}, threads)));
        } catch (std::bad_alloc const&) {
        }
    }
    // Finishes all background work.
    void settle()
    {
        do_sums();
        if (!current_->is_active())
            return;
        wait_for_drain();
        if (!current_->is_done())
            for_each_part(model_.cpu, current_->tiles(), current_->elems(),
                          [&](std::size_t) { (void)do_next_of_update(); });
    }
    // Forgets the current deferred update, and all weights to publish.
    void forget()
    {
        current_->forget();
        publishing_is_due_ = false;
        nothing_is_staged();
    }

    // Finishes the deferred update, and publishes its weights.
    void finish_and_flush(zenflow_report& report)
    {
        if (!current_->is_active())
            return;
        auto const start = std::chrono::steady_clock::now();
        settle();
        report.deferred_s = current_->take_busy_s() / std::max(1u, model_.cpu.threads());
        auto const done = std::chrono::steady_clock::now();
        for (std::size_t i = 0; i < model_.size(); ++i) {
            list_columns(current_->parts[i].columns, publishing_[i]);
            // The weights of all other columns are up to date, so copying them changes nothing.
            if (device_state_ == nullptr && !publishing_[i].empty())
                model_.copy_weights(i);
        }
        current_->forget();
        publishing_is_due_ = device_state_ != nullptr;
        try_to_publish();
        report.waited_s = std::chrono::duration<double>(done - start).count();
        report.publish_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - done).count();
    }
    // Publishes what the last call could not. steps: for the error message.
    void catch_up(std::uint64_t steps)
    {
        try_to_publish();
        require_published(steps);
    }
    // Throws if publishing failed.
    void require_published(std::uint64_t steps)
    {
        rethrow_publishing_error(steps);
        if (publishing_is_due_)
            throw std::bad_alloc(); // other errors are in publishing_error_
    }
    void rethrow_publishing_error(std::uint64_t steps)
    {
        if (publishing_error_ == nullptr)
            return;
        try {
            std::rethrow_exception(std::exchange(publishing_error_, nullptr));
        } catch (device_error const&) {
            rethrow_as_device_error(text_of({"; step ", steps,
                                             " is complete nevertheless. The next call publishes the missing weights "
                                             "first."}));
        }
    }

private:
    // A request to the team: works until nothing is left, or until another request waits.
    struct drain {
        zenflow_background* owner;
        bool updates; // also runs the deferred update
        void operator()(unsigned, std::size_t, std::size_t) const noexcept
        {
            while (!owner->team_->others_wait()) {
                if (owner->sums_.do_next(accumulate)) {
                    if (owner->sums_.is_done())
                        owner->try_download_rest();
                } else if (!updates || (owner->sums_.is_done() && !owner->do_next_of_update())) {
                    return;
                }
            }
        }
    };
    static void accumulate(sum_tile const& t) noexcept
    {
        t.matrix->accumulate(t.begin, t.end, *t.step, t.first, t.sums);
    }
    // Runs one tile of the deferred update. The weights of a matrix are staged after its last one. Returns false if no
    // tile is left.
    bool do_next_of_update() noexcept
    {
        return current_->do_next(model_.matrices, access(), [this](std::size_t matrix) {
            try {
                if (device_state_ != nullptr)
                    staged_[matrix] = device_state_->stage(matrix);
            } catch (std::bad_alloc const&) { // try_to_publish() stages it again
            }
        });
    }
    void do_sums()
    {
        if (sums_.is_done())
            return;
        wait_for_drain();
        for_each_part(model_.cpu, sums_.size(), sums_.elems(), [&](std::size_t) { (void)sums_.do_next(accumulate); });
        try_download_rest();
    }
    [[nodiscard]] bool is_working() const noexcept { return drain_ != nullptr && !drain_->done(); }
    // Waits for the drain. While no other caller waits for the team, the drain runs until its work is done.
    void wait_for_drain() noexcept { drain_.reset(); }
    void download_rest()
    {
        std::lock_guard const lock(down_mutex_);
        if (!sums_.is_done())
            return;
        for (; down_ < waiting_down_.size(); ++down_)
            device_state_->gradients().download(waiting_down_[down_]);
        waiting_down_.clear();
        down_ = 0;
    }
    void try_download_rest() noexcept
    {
        try {
            download_rest();
        } catch (std::bad_alloc const&) { // finish_sums() tries again
        }
    }
    void nothing_is_staged() noexcept { std::fill(staged_.begin(), staged_.end(), not_staged); }
    void recover() noexcept
    {
        nothing_is_staged();
        (void)device_state_->stop(); // if this fails, the next attempt fails and tries to recover again
    }
    // Publishes weights on the device. On failure publishing_is_due_ stays set, and later calls retry first.
    void try_to_publish() noexcept
    {
        if (!publishing_is_due_)
            return;
        try {
            for (std::size_t i = 0; i < model_.size(); ++i) {
                if (!publishing_[i].empty() && !device_state_->is_staged(staged_[i]))
                    staged_[i] = device_state_->stage(i);
                device_state_->flush(i, publishing_[i]);
            }
            device_state_->wait();
            for (std::size_t i = 0; i < model_.size(); ++i)
                if (model_.matrices[i].shard().changed() != nullptr)
                    model_.copy_weights(i, publishing_[i]);
            publishing_is_due_ = false;
        } catch (std::bad_alloc const&) { // the step is complete, so it must not fail; retry later
            recover();
        } catch (...) {
            publishing_error_ = std::current_exception();
            recover();
        }
    }

    zenflow_model& model_;
    step_machine& machine_;
    background_team& team_;
    static constexpr std::uint64_t not_staged = ~std::uint64_t{0};
    // For each matrix: the number of its last device_columns::stage(), see is_staged().
    std::vector<std::uint64_t> staged_;
    std::vector<std::vector<std::uint32_t>> publishing_; // columns to publish
    bool publishing_is_due_ = false;
    std::exception_ptr publishing_error_;
    std::unique_ptr<device_columns> device_state_; // null without a device
    tiled_work<sum_tile> sums_;
    std::mutex down_mutex_;
    std::vector<std::size_t> waiting_down_; // params whose gradients are not downloaded yet,
    std::size_t down_ = 0;                  // from this index on
    std::unique_ptr<deferred_update> current_ = std::make_unique<deferred_update>();
    std::unique_ptr<deferred_update> next_ = std::make_unique<deferred_update>();
    std::unique_ptr<submission<drain>> drain_; // last: it uses the other members
};

} // namespace detail
ADAMANT_END_NAMESPACE
