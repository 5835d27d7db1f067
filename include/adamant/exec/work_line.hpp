// SPDX-License-Identifier: Apache-2.0
// Work that arrives while a team is at it: a line of pieces that grows, of which whoever is free takes the next.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <adamant/exec/team.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The team has a request of ours while there is work in the line, and where more is expected until it has looked for it
// as long as it does for anything (team_options::spin), or somebody else has work for it; between, it is others' or
// asleep.
class work_line {
public:
    // work(member, begin, end) does pieces [begin, end); it must not throw. at_end is called when all that was added is
    // done, in one of the team's threads, once or, where more is added meanwhile, again; it says whether it has added
    // more itself, and must not throw either.
    using work_function = std::function<void(unsigned, std::size_t, std::size_t)>;
    using end_function = std::function<bool()>;
    work_line(std::shared_ptr<adamant::team> team, work_function work, end_function at_end)
        : team_(std::move(team)), work_(std::move(work)), at_end_(std::move(at_end))
    {
    }
    work_line(work_line const&) = delete;
    work_line& operator=(work_line const&) = delete;
    ~work_line() { wait(); }

    // How many pieces are taken at a time. Only while idle.
    void take(std::size_t most_at_once) noexcept
    {
        most_at_once_.store(std::max<std::size_t>(most_at_once, 1), std::memory_order_relaxed);
    }

    // Throws what team::submit() would throw here: nobody may add to the line, or wait for it, in a task of the team.
    void check_caller() const { team_->check_submit(); }

    // describe() writes down what the next pieces are and returns how many, under the line's lock. From any thread but
    // the team's own. Throws what check_caller() does, before anything else happens. describe() must not throw.
    // more_comes: the team waits for the next add() a while, instead of ending its request, unless somebody waits for
    // the end or has other work for the team. To be asked again takes it longer than a small piece does.
    template <class Describe>
    void add(Describe const& describe, bool more_comes = false)
    {
        check_caller();
        {
            std::lock_guard const lock(mutex_);
            more_comes_.store(more_comes, std::memory_order_relaxed);
            std::size_t const pieces = describe();
            if (pieces == 0)
                return;
            added_.fetch_add(pieces, std::memory_order_release);
            if (!std::exchange(idle_, false))
                return;
        }
        // A shift may still be returning when the next begins, so there are two, in turns. Only one thread at a time
        // finds the line idle; the lock is for the turn after.
        std::lock_guard const lock(start_mutex_);
        shift& next = shifts_[turn_ ^= 1];
        next.end(); // waits for the one before the last, if need be
        next.begin(*team_, task{this, &next});
    }
    // The same in at_end.
    void add_at_end(std::size_t pieces) noexcept { added_.fetch_add(pieces, std::memory_order_release); }

    // Pieces are numbered from 0 for as long as the line lives: threads may be on their way out of one shift while
    // another begins, and must not take a new piece for an old one.
    [[nodiscard]] std::size_t added() const noexcept { return added_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::size_t done() const noexcept { return done_.load(std::memory_order_acquire); }
    [[nodiscard]] bool idle() const
    {
        std::lock_guard const lock(mutex_);
        return idle_;
    }

    // Until all that was added is done.
    void wait() { wait_until(std::chrono::steady_clock::time_point::max()); }
    // False where it is not by then.
    bool wait_until(std::chrono::steady_clock::time_point deadline)
    {
        more_comes_.store(false, std::memory_order_relaxed);
        // What is nearly done is done sooner than a sleeper wakes.
        auto const spin_until = std::min(deadline, std::chrono::steady_clock::now() + std::chrono::microseconds(50));
        do {
            if (idle())
                return true;
            for (int i = 0; i < 64; ++i)
                relax();
            sched_yield();
        } while (std::chrono::steady_clock::now() < spin_until);
        std::unique_lock lock(mutex_);
        if (deadline == std::chrono::steady_clock::time_point::max()) {
            changed_.wait(lock, [this] { return idle_; });
            return true;
        }
        return changed_.wait_until(lock, deadline, [this] { return idle_; });
    }

private:
    struct shift;
    struct task {
        work_line* line;
        shift* in;
        void operator()(unsigned member) const { line->work_in(*in, member); }
    };
    struct shift {
        std::atomic<bool> closed{false};

        ~shift() { end(); }
        void begin(adamant::team& team, task const& of)
        {
            closed.store(false, std::memory_order_relaxed);
            request_ = new (memory_) submission<task>(team.submit(task(of))); // it cannot be moved
        }
        void end() noexcept
        {
            if (request_ != nullptr)
                std::exchange(request_, nullptr)->~submission();
        }

    private:
        alignas(submission<task>) std::byte memory_[sizeof(submission<task>)];
        submission<task>* request_ = nullptr;
    };

    void work_in(shift& in, unsigned member)
    {
        // Whatever is added once a shift is closed is the next one's, which all members join: who is late here must not
        // do it alone.
        std::chrono::steady_clock::time_point until{}; // when the look-out for more ends, once it has begun
        while (!in.closed.load(std::memory_order_acquire)) {
            std::size_t taken = taken_.load(std::memory_order_acquire);
            std::size_t const added = added_.load(std::memory_order_acquire);
            if (taken < added) {
                std::size_t const end = std::min(added, taken + most_at_once_.load(std::memory_order_relaxed));
                if (taken_.compare_exchange_weak(taken, end, std::memory_order_acq_rel)) {
                    work_(member, taken, end);
                    done_.fetch_add(end - taken, std::memory_order_acq_rel);
                    until = {};
                }
            } else if (done() == added && !looks_out(until)) {
                come_to_the_end(in);
            } else { // others are at their last pieces, or more may come
                for (int i = 0; i < 32; ++i)
                    relax();
                sched_yield();
            }
        }
    }
    [[nodiscard]] bool looks_out(std::chrono::steady_clock::time_point& until) const noexcept
    {
        if (!more_comes_.load(std::memory_order_relaxed) || team_->others_wait())
            return false;
        auto const now = std::chrono::steady_clock::now();
        if (until == std::chrono::steady_clock::time_point{})
            until = now + team_->options().spin;
        return now < until;
    }
    // Closes the shift, unless there is more after all. at_end_ may take its time: nobody else waits for the lock
    // meanwhile, and the other members sleep.
    void come_to_the_end(shift& in)
    {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !ending_; });
        if (in.closed.load(std::memory_order_relaxed) || done() != added_.load(std::memory_order_relaxed))
            return;
        ending_ = true;
        lock.unlock();
        bool const more = at_end_();
        lock.lock();
        ending_ = false;
        if (!more && done() == added_.load(std::memory_order_relaxed)) {
            idle_ = true;
            in.closed.store(true, std::memory_order_release);
        }
        changed_.notify_all();
    }

    std::shared_ptr<adamant::team> team_;
    work_function work_;
    end_function at_end_;
    std::atomic<std::size_t> most_at_once_{1};
    std::atomic<bool> more_comes_{false};
    alignas(64) std::atomic<std::size_t> taken_{0};
    alignas(64) std::atomic<std::size_t> done_{0};
    alignas(64) std::atomic<std::size_t> added_{0};
    mutable std::mutex mutex_; // guards what is added, idle_ and ending_
    std::condition_variable changed_;
    bool idle_ = true;
    bool ending_ = false; // whether a member is in at_end_
    std::mutex start_mutex_;
    unsigned turn_ = 0;
    shift shifts_[2];
};

} // namespace detail
ADAMANT_END_NAMESPACE
