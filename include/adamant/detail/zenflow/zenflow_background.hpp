// SPDX-License-Identifier: Apache-2.0
// What goes on beside steps: gradients are accumulated, the deferred gradients of the last window are applied, and its
// weights publish, in host memory or on the device.
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
#include <adamant/detail/zenflow/deferred_update.hpp>
#include <adamant/detail/zenflow/device_columns.hpp>
#include <adamant/detail/zenflow/zenflow_model.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

class zenflow_background {
public:
    explicit zenflow_background(zenflow_model& model)
        : model_(model), worker_(model.cpu, [this] { try_to_bring_down_rest(); })
    {
    }

    // Allocates for all params. overlaps: there is a thread for it.
    void build_layout(bool overlaps)
    {
        if (overlaps)
            worker_.have_team();
        now_->parts.resize(model_.size());
        next_->parts.resize(model_.size());
        staged_.assign(model_.size(), not_staged);
        publishing_.resize(model_.size());
        for (std::size_t i = 0; i < model_.size(); ++i)
            publishing_[i].reserve(model_.matrices[i].columns());
    }
    [[nodiscard]] kernel::memory_access access() const noexcept { return worker_.access(); }

    // ---- The device

    [[nodiscard]] device_columns* home() const noexcept { return home_.get(); }
    void leave_home() noexcept { home_.reset(); }
    // All weights go up.
    void move_to(std::shared_ptr<device> on, void const* owner, std::vector<device_arrays> const& arrays,
                 double timeout_s)
    {
        worker_.have_team();
        home_ = std::make_unique<device_columns>(std::move(on), owner, model_.matrices, arrays, timeout_s);
        try {
            copy_weights(false);
        } catch (...) {
            home_.reset();
            throw;
        }
        nothing_is_staged();
    }
    void copy_weights(bool home)
    {
        try {
            for (std::size_t i = 0; i < model_.size(); ++i)
                home_->copy_weights(i, home);
            home_->wait();
        } catch (...) {
            home_->settle(); // the arrays are the caller's again
            throw;
        }
    }
    // The host's arrays show what the device has.
    void copied_to_host()
    {
        if (home_ == nullptr)
            return;
        try {
            home_->copy_to_host();
            copy_weights(true);
        } catch (device_error const&) { // or what has failed in the background would do so in every call
            roll_back();
            throw;
        }
    }
    // In a forked child process, throws unavailable. Whether something was under way at the fork.
    void check_process() const { worker_.check_process(); }
    [[nodiscard]] bool in_this_process() const noexcept { return worker_.in_this_process(); }
    [[nodiscard]] bool is_left_behind() const noexcept
    {
        return worker_.is_left_behind() || (home_ != nullptr && !worker_.in_this_process());
    }
    // The same where nothing but that is in the way.
    void check_at_rest() const
    {
        if (worker_.is_left_behind())
            worker_.check_process();
    }
    // In a handler of a device_error: what the device has is as before the step. Throws where it does not come back.
    void roll_back()
    {
        settle(); // or something could be staged meanwhile
        nothing_is_staged();
        if (!home_->roll_back()) {
            is_inconsistent_ = true;
            rethrow_as_device_error(
                "; it does not come back from that, so what it has is of no known step: load() a state");
        }
    }
    // What is there is of no known step, until a state has been loaded.
    [[nodiscard]] bool is_inconsistent() const noexcept { return is_inconsistent_; }
    void set_inconsistent(bool lost) noexcept { is_inconsistent_ = lost; }

    // ---- Gradients of a step

    void begin_step()
    {
        std::lock_guard const lock(down_mutex_);
        waiting_down_.clear();
        down_ = 0;
        waiting_down_.reserve(model_.size());
    }
    // The gradient comes down when what lies there has been accumulated.
    void bring_down(std::size_t param)
    {
        std::lock_guard const lock(down_mutex_);
        if (sums_.is_done())
            home_->gradients().bring_down(param);
        else
            waiting_down_.push_back(param);
    }
    // The step is abandoned: once this returns, no gradient comes down to the caller's arrays any more. Throws
    // device_error where the device has failed, whether or not it comes back; see is_inconsistent().
    void give_up_gradients()
    {
        if (home_ == nullptr)
            return;
        {
            std::lock_guard const lock(down_mutex_);
            waiting_down_.clear();
            down_ = 0;
        }
        try {
            home_->wait();
        } catch (device_error const&) {
            roll_back();
            throw;
        }
    }
    void finish_sums()
    {
        worker_.finish(sums_);
        bring_down_rest();
    }
    [[nodiscard]] double take_busy_s_of_sums() noexcept { return sums_.take_busy_s(); }
    void begin_sums(std::vector<sum_tile> tiles) noexcept { sums_.begin(std::move(tiles)); }

    // ---- Deferred gradients

    // The plan of its deferred gradients, to be filled in.
    [[nodiscard]] deferred_update& next() noexcept { return *next_; }
    // Whose weights are still to be published.
    [[nodiscard]] deferred_update& now() noexcept { return *now_; }
    // next(), which has been prepared, is now(), and begins. All before it has published.
    void begin_next() noexcept
    {
        std::swap(now_, next_);
        nothing_is_staged();
        now_->is_through = {};
        if (home_ != nullptr)
            now_->is_through = [this](std::size_t matrix) {
                try {
                    staged_[matrix] = home_->stage(matrix);
                } catch (std::bad_alloc const&) { // it goes up when it publishes
                }
            };
        now_->begin();
    }
    // Goes on in the background. but_deferred: not with the deferred gradients.
    void go_on(bool but_deferred) noexcept
    {
        worker_.go_on(sums_, but_deferred || publishing_is_due_ ? nullptr : now_.get(), model_.matrices);
    }
    // Nothing goes on in the background.
    void settle() { worker_.finish(sums_, *now_, model_.matrices); }
    // Nothing is to be published any more, of what there was.
    void forget()
    {
        now_->forget();
        publishing_is_due_ = false;
        nothing_is_staged();
    }

    void finish_and_flush()
    {
        if (!now_->is_there())
            return;
        settle();
        for (std::size_t i = 0; i < model_.size(); ++i) {
            list_columns(now_->parts[i].columns, 1, publishing_[i]);
            if (home_ == nullptr && !publishing_[i].empty())
                model_.copy_weights(i); // those of all other columns are what their masters say already
        }
        now_->forget();
        publishing_is_due_ = home_ != nullptr;
        try_to_publish();
    }
    void finish_and_flush(zenflow_report& report)
    {
        if (!now_->is_there())
            return;
        auto const start = std::chrono::steady_clock::now();
        settle();
        report.deferred_s = now_->take_busy_s() / std::max(1u, model_.cpu.threads());
        auto const done = std::chrono::steady_clock::now();
        finish_and_flush();
        report.waited_s = std::chrono::duration<double>(done - start).count();
        report.publish_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - done).count();
    }
    // What the last call has left to be published. steps: that were taken.
    void catch_up(std::uint64_t steps)
    {
        try_to_publish();
        require_published(steps);
    }
    // Where nothing but publishing was to be done.
    void require_published(std::uint64_t steps)
    {
        rethrow_publishing_error(steps);
        if (publishing_is_due_)
            throw std::bad_alloc(); // all other errors are kept
    }
    void rethrow_publishing_error(std::uint64_t steps)
    {
        if (publishing_error_ == nullptr)
            return;
        try {
            std::rethrow_exception(std::exchange(publishing_error_, nullptr));
        } catch (device_error const&) {
            rethrow_as_device_error(text_of({"; step ", steps,
                                             " has been taken all the same, and the weights that "
                                             "could not publish do so before anything else"}));
        }
    }

private:
    void bring_down_rest()
    {
        std::lock_guard const lock(down_mutex_);
        if (!sums_.is_done())
            return;
        for (; down_ < waiting_down_.size(); ++down_)
            home_->gradients().bring_down(waiting_down_[down_]);
        waiting_down_.clear();
        down_ = 0;
    }
    void try_to_bring_down_rest() noexcept
    {
        try {
            bring_down_rest();
        } catch (std::bad_alloc const&) { // finish_sums() does
        }
    }
    void nothing_is_staged() noexcept { std::fill(staged_.begin(), staged_.end(), not_staged); }
    void come_back() noexcept
    {
        nothing_is_staged();
        (void)home_->come_back(); // where it does not, the next attempt fails, and asks again
    }
    // On the device. Where it fails that is known by publishing_is_due_, and nothing else is done with it before.
    void try_to_publish() noexcept
    {
        if (!publishing_is_due_)
            return;
        try {
            for (std::size_t i = 0; i < model_.size(); ++i) {
                if (!publishing_[i].empty() && !home_->is_staged(staged_[i]))
                    staged_[i] = home_->stage(i);
                home_->flush(i, publishing_[i]);
            }
            home_->wait();
            publishing_is_due_ = false;
        } catch (std::bad_alloc const&) { // which is nothing to stop a step for that has been taken
            come_back();
        } catch (...) {
            publishing_error_ = std::current_exception();
            come_back();
        }
    }

    zenflow_model& model_;
    static constexpr std::uint64_t not_staged = ~std::uint64_t{0};
    std::vector<std::uint64_t>
        staged_; // of each matrix: whether its weights by columns are up, see device_columns::stage()
    std::vector<std::vector<std::uint32_t>> publishing_; // columns that publish
    bool publishing_is_due_ = false;
    bool is_inconsistent_ = false;
    std::exception_ptr publishing_error_;
    std::unique_ptr<device_columns> home_; // null without a device
    sum_work sums_;
    std::mutex down_mutex_;
    std::vector<std::size_t> waiting_down_; // params whose gradients are still to come down,
    std::size_t down_ = 0;                  // from this one on
    std::unique_ptr<deferred_update> now_ = std::make_unique<deferred_update>();
    std::unique_ptr<deferred_update> next_ = std::make_unique<deferred_update>();
    deferred_worker worker_; // last: its threads use the others
};

} // namespace detail
ADAMANT_END_NAMESPACE
