// SPDX-License-Identifier: Apache-2.0
// Work that arrives while a team is busy with it: a line of pieces that grows. Whichever thread is free takes the next.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include <adamant/team.hpp>
#include <adamant/detail/exec/team_state.hpp>
#include <adamant/detail/exec/this_process.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Pieces are numbers; what they mean is the owner's business. While there is work, the team has a request of the
// line's, a drain: each member comes in at the owner's function, asks next() what to do, does it, and asks again. A
// drain ends when the line is empty and no more is expected, or a while after (team_options::spin) unless others want
// the team.
class work_queue {
public:
    // One request to the team.
    class drain;
    // What the owner has a member do in a drain: ask next() and do what it says, until it says `leave`.
    struct drain_task {
        void* owner;
        void (*run)(void* owner, drain& in, unsigned member);
    };
    struct work_item {
        enum class kind : unsigned char {
            work,  // do pieces [begin, end), then call did()
            close, // all that was added is done: add more by add_at_end() or nothing, then call close()
            leave
        } what;
        std::size_t begin = 0;
        std::size_t end = 0;
    };
    using clock = std::chrono::steady_clock;

    // team: may be null until have_team().
    work_queue(std::shared_ptr<adamant::team> team, drain_task task) : team_(std::move(team)), task_(task) {}
    work_queue(work_queue const&) = delete;
    work_queue& operator=(work_queue const&) = delete;
    ~work_queue()
    {
        if (in_this_process())
            wait();
    }

    // ---- For those who have work

    // Before any add(): work that goes on while its owner does something else needs a thread. If there is no team,
    // makes one of a single thread, bound to nothing. Throws what the team's constructor does.
    void have_team()
    {
        if (team_ == nullptr)
            team_ = std::make_shared<adamant::team>(team_options{.threads = 1, .bind = binding::none});
    }
    // How many pieces are taken at a time. Only while idle.
    void take_at_once(std::size_t most) noexcept
    {
        most_at_once_.store(std::max<std::size_t>(most, 1), std::memory_order_relaxed);
    }
    // Throws what team::submit() would throw here: a task of the team must not add to the queue or wait for it.
    void check_caller() const
    {
        if (team_ != nullptr)
            team_->check_submit();
    }

    // Whether the team's threads are there: not in a forked child process. There no thread works on the
    // line, whose lock may be held forever, and check_process() throws unavailable.
    [[nodiscard]] bool in_this_process() const noexcept { return team_ == nullptr || team_->in_this_process(); }
    void check_process() const
    {
        if (team_ != nullptr)
            team_->check_process();
    }

    // enqueue() writes down what the next pieces are and returns how many, under the line's lock; it must not throw.
    // From any thread but the team's own. Throws what check_caller() does, before anything else happens. more_comes:
    // the team waits a while for the next add(), because starting another drain takes it longer than a small piece
    // does.
    template <class Enqueue>
    void add(Enqueue const& enqueue, bool more_comes = false)
    {
        check_caller();
        {
            std::lock_guard const lock(mutex_);
            more_comes_.store(more_comes, std::memory_order_relaxed);
            std::size_t const pieces = enqueue();
            if (pieces == 0)
                return;
            added_.fetch_add(pieces, std::memory_order_release);
            if (!std::exchange(idle_, false))
                return;
        }
        start_drain();
    }

    // Numbers for pieces that the caller has done without the queue; returns the first. No worker takes them, and
    // the caller says did(). While idle.
    [[nodiscard]] std::size_t claim(std::size_t pieces) noexcept
    {
        std::size_t const first = taken_.fetch_add(pieces, std::memory_order_release); // first: see next()
        added_.fetch_add(pieces, std::memory_order_release);
        return first;
    }
    void did(std::size_t pieces) noexcept { done_.fetch_add(pieces, std::memory_order_acq_rel); }

    // Pieces are numbered from 0 for as long as the line lives: threads may be on their way out of one drain while
    // another begins, and must not take a new piece for an old one.
    [[nodiscard]] std::size_t added() const noexcept { return added_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::size_t done() const noexcept { return done_.load(std::memory_order_acquire); }
    // In a forked child process, throws unavailable unless it was idle then.
    [[nodiscard]] bool idle() const
    {
        if (!in_this_process()) {
            if (!was_idle())
                team_->check_process();
            return true;
        }
        std::lock_guard const lock(mutex_);
        return idle_;
    }

    // As idle(), without the lock: for a process forked from the one that made the team, where no other thread works on
    // the line.
    [[nodiscard]] bool was_idle() const noexcept { return idle_; }

    // Until all that was added is done. Both throw what idle() does.
    void wait() { wait_until(clock::time_point::max()); }
    // False where it is not by then.
    bool wait_until(clock::time_point deadline)
    {
        more_comes_.store(false, std::memory_order_relaxed);
        if (idle())
            return true;
        // Short work ends sooner than a sleeping thread wakes up.
        auto const spin_until = std::min(deadline, clock::now() + std::chrono::microseconds(50));
        do {
            if (idle())
                return true;
            for (int i = 0; i < 64; ++i)
                relax();
            sched_yield();
        } while (clock::now() < spin_until);
        std::unique_lock lock(mutex_);
        if (deadline == clock::time_point::max()) {
            changed_->wait(lock, [this] { return idle_; });
            return true;
        }
        return changed_->wait_until(lock, deadline, [this] { return idle_; });
    }

    // ---- For members of a drain

    // Waits until there is something to do, or the drain is closed. waits_until is the member's own; it begins empty.
    [[nodiscard]] work_item next(drain& in, clock::time_point& waits_until)
    {
        // What is added once a drain is closed belongs to the next one, which all members join: a member that leaves
        // late must not do it alone.
        while (!in.closed.load(std::memory_order_acquire)) {
            std::size_t taken = taken_.load(std::memory_order_acquire);
            std::size_t const added = added_.load(std::memory_order_acquire);
            if (taken < added) {
                std::size_t const end = std::min(added, taken + most_at_once_.load(std::memory_order_relaxed));
                if (taken_.compare_exchange_weak(taken, end, std::memory_order_acq_rel)) {
                    waits_until = {};
                    return {work_item::kind::work, taken, end};
                }
            } else if (done() == added && !expects_more(waits_until)) {
                if (begin_to_close(in))
                    return {work_item::kind::close};
            } else { // others are at their last pieces, or more may come
                for (int i = 0; i < 32; ++i)
                    relax();
                sched_yield();
            }
        }
        return {work_item::kind::leave};
    }
    // Between the work_item `close` and close(), which may be long: no other thread waits for the lock meanwhile, and
    // the other members sleep.
    void add_at_end(std::size_t pieces) noexcept { added_.fetch_add(pieces, std::memory_order_release); }
    // The drain ends, unless something was added meanwhile, or the owner expects more: then a member closes it again.
    void close(drain& in, bool owner_expects_more)
    {
        std::lock_guard const lock(mutex_);
        is_closing_ = false;
        if (!owner_expects_more && done() == added_.load(std::memory_order_relaxed)) {
            idle_ = true;
            in.closed.store(true, std::memory_order_release);
        }
        changed_->notify_all();
    }

private:
    struct member_task {
        drain_task task;
        drain* in;
        void operator()(unsigned member) const { task.run(task.owner, *in, member); }
    };

public:
    class drain {
        friend class work_queue;
        ~drain() { end(); }
        void begin(adamant::team& team, drain_task const& task)
        {
            closed.store(false, std::memory_order_relaxed);
            request_ = new (memory_) submission<member_task>(team.submit(member_task{task, this})); // cannot be moved
        }
        // Waits for its members to leave.
        void end() noexcept
        {
            if (request_ != nullptr)
                std::exchange(request_, nullptr)->~submission();
        }

        std::atomic<bool> closed{false};
        alignas(submission<member_task>) std::byte memory_[sizeof(submission<member_task>)];
        submission<member_task>* request_ = nullptr;
    };

private:
    // Members of a drain may still be leaving when the next one begins, so there are two, in turns. Only one thread at
    // a time finds the line idle; the lock is for the turn after.
    void start_drain()
    {
        std::lock_guard const lock(start_mutex_);
        drain& next = drains_[turn_ ^= 1];
        next.end();
        next.begin(*team_, task_);
    }
    [[nodiscard]] bool expects_more(clock::time_point& until) const noexcept
    {
        if (!more_comes_.load(std::memory_order_relaxed) || team_->others_wait())
            return false;
        auto const now = clock::now();
        if (until == clock::time_point{})
            until = now + team_->options().spin;
        return now < until;
    }
    // Whether this member is to close the drain; false where another one has, or there is more to do after all.
    [[nodiscard]] bool begin_to_close(drain const& in)
    {
        std::unique_lock lock(mutex_);
        changed_->wait(lock, [this] { return !is_closing_; });
        if (in.closed.load(std::memory_order_relaxed) || done() != added_.load(std::memory_order_relaxed))
            return false;
        is_closing_ = true;
        return true;
    }

    std::shared_ptr<adamant::team> team_;
    drain_task task_;
    std::atomic<std::size_t> most_at_once_{1};
    std::atomic<bool> more_comes_{false};
    alignas(64) std::atomic<std::size_t> taken_{0};
    alignas(64) std::atomic<std::size_t> done_{0};
    alignas(64) std::atomic<std::size_t> added_{0};
    mutable std::mutex mutex_; // guards what is added, idle_ and is_closing_
    process_bound<std::condition_variable> changed_;
    bool idle_ = true;
    bool is_closing_ = false; // a member has the work_item `close`
    std::mutex start_mutex_;
    unsigned turn_ = 0;
    drain drains_[2];
};

} // namespace detail
ADAMANT_END_NAMESPACE
