// SPDX-License-Identifier: Apache-2.0
// A queue that feeds a thread team with work that arrives while the team runs.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

#include <adamant/team.hpp>
#include <adamant/detail/exec/background_team.hpp>
#include <adamant/detail/exec/this_process.hpp>
#include <adamant/detail/exec/wait_word.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// What the threads of a team do with a queue's work.
class queue_worker {
public:
    // Processes pieces [begin, end).
    virtual void run(unsigned member, std::size_t begin, std::size_t end) noexcept = 0;
    // All pieces are complete. Returns true if work_queue::add_at_end() has added work, or if work will arrive without
    // a call of add(); at_end() is then called again. May take long: producers do not wait meanwhile, and the other
    // threads fall asleep.
    virtual bool at_end() noexcept = 0;

protected:
    ~queue_worker() = default;
};

// The queue numbers pieces of work; the worker knows what each number means. While there is work, the queue keeps one
// request with the team, a drain, in which each thread takes pieces and lets the worker process them. A drain ends when
// the queue is empty and the worker expects no more work. If a producer will add more, the drain waits for
// team_options::spin first, unless another request waits for the team.
class work_queue {
public:
    using clock = std::chrono::steady_clock;

    // team: must be ensured before the first add().
    work_queue(background_team const& team, queue_worker& worker) : team_(team), worker_(worker) {}
    work_queue(work_queue const&) = delete;
    work_queue& operator=(work_queue const&) = delete;
    ~work_queue()
    {
        if (team_.in_this_process())
            wait();
    }

    // ---- For producers

    // Sets the maximum number of pieces in a work item. Call only while idle.
    void set_max_item_pieces(std::size_t pieces) noexcept
    {
        max_item_pieces_.store(std::max<std::size_t>(pieces, 1), std::memory_order_relaxed);
    }
    // Calls enqueue() under the queue's lock. enqueue() records the next pieces and returns their number; it must not
    // throw. Call from any thread outside the team. Throws what
    // background_team::check_caller() throws, before anything else happens.
    // more_comes: the drain waits for the next add(), because starting another drain costs more than a small piece.
    template <class Enqueue>
    void add(Enqueue const& enqueue, bool more_comes = false)
    {
        team_.check_caller();
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

    // Reserves numbers for pieces that the caller processes itself; returns the first. The team never gets them, and
    // the caller calls complete(). Call only while idle.
    [[nodiscard]] std::size_t claim(std::size_t pieces) noexcept
    {
        // taken_ before added_: a thread that is late in work() then fails to exchange an old value of taken_.
        std::size_t const first = taken_.fetch_add(pieces, std::memory_order_release);
        added_.fetch_add(pieces, std::memory_order_release);
        return first;
    }
    // Counts pieces as processed.
    void complete(std::size_t pieces) noexcept { done_.fetch_add(pieces, std::memory_order_acq_rel); }

    // Number of pieces that were ever added. Numbers are never reused: a thread that is leaving one drain while the
    // next begins must not take a new piece for an old one.
    [[nodiscard]] std::size_t added() const noexcept { return added_.load(std::memory_order_relaxed); }
    // Number of pieces that were ever completed.
    [[nodiscard]] std::size_t done() const noexcept { return done_.load(std::memory_order_acquire); }
    // In a forked child process, throws unavailable unless the queue was idle at the fork.
    [[nodiscard]] bool idle() const
    {
        if (!team_.in_this_process()) {
            if (!was_idle())
                team_.check_process();
            return true;
        }
        std::lock_guard const lock(mutex_);
        return idle_;
    }

    // idle() without the lock, for a process forked from the one that created the team: no other thread uses the queue
    // there.
    [[nodiscard]] bool was_idle() const noexcept { return idle_; }

    // Blocks until all added pieces are complete. Throws what idle() throws.
    void wait() { wait_until(clock::time_point::max()); }
    // Returns false if the deadline passes first. Throws what idle() throws.
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

    // Adds pieces in queue_worker::at_end().
    void add_at_end(std::size_t pieces) noexcept { added_.fetch_add(pieces, std::memory_order_release); }

private:
    // One request to the team.
    class drain {
    public:
        ~drain() { end(); }
        void begin(work_queue& queue)
        {
            is_closed.store(false, std::memory_order_relaxed);
            // A submission cannot be moved.
            request_ = new (memory_)
                submission<member_task>(queue.team_->submit_without_late_threads(member_task{&queue, this}));
        }
        // Blocks until its threads have left.
        void end() noexcept
        {
            if (request_ != nullptr)
                std::exchange(request_, nullptr)->~submission();
        }
        std::atomic<bool> is_closed{false};

    private:
        struct member_task {
            work_queue* queue;
            drain* current;
            void operator()(unsigned member) const { queue->work(*current, member); }
        };
        alignas(submission<member_task>) std::byte memory_[sizeof(submission<member_task>)];
        submission<member_task>* request_ = nullptr;
    };

    // Processes pieces in a thread of the team until the drain is closed.
    void work(drain& current, unsigned member)
    {
        clock::time_point spin_end{};
        // Pieces that are added after a drain is closed belong to the next drain, which all threads join: a thread that
        // leaves late must not process them alone.
        while (!current.is_closed.load(std::memory_order_acquire)) {
            std::size_t taken = taken_.load(std::memory_order_acquire);
            std::size_t const added = added_.load(std::memory_order_acquire);
            if (taken < added) {
                std::size_t const end = std::min(added, taken + max_item_pieces_.load(std::memory_order_relaxed));
                if (taken_.compare_exchange_weak(taken, end, std::memory_order_acq_rel)) {
                    spin_end = {};
                    worker_.run(member, taken, end);
                    complete(end - taken);
                }
            } else if (done() == added && !expects_more(spin_end)) {
                if (is_closing_.load(std::memory_order_relaxed))
                    wait_for_closer();
                else if (try_begin_close(current))
                    close(current, worker_.at_end());
            } else { // other threads are still busy, or more may come
                for (int i = 0; i < 32; ++i)
                    relax();
                sched_yield();
            }
        }
    }
    // Waits while another thread ends a drain, which takes less than a microsecond or, with more passes, as long as a
    // step. Many threads come here together: if all slept, waking them would take longer than the work. Looks rarely,
    // because the flag shares a cache line with the lock. Does not yield the PU: a thread that spins in wait() would
    // keep it.
    void wait_for_closer()
    {
        auto const spin_until = clock::now() + std::chrono::microseconds(10);
        do {
            if (!is_closing_.load(std::memory_order_acquire))
                return;
            for (int i = 0; i < 32; ++i)
                relax();
        } while (clock::now() < spin_until);
        std::unique_lock lock(mutex_);
        changed_->wait(lock, [this] { return !is_closing_.load(std::memory_order_relaxed); });
    }
    // Ends the drain, unless pieces were added meanwhile or the worker expects more. Otherwise a thread closes it
    // later.
    void close(drain& current, bool expects_more)
    {
        std::lock_guard const lock(mutex_);
        if (!expects_more && done() == added_.load(std::memory_order_relaxed)) {
            idle_ = true;
            current.is_closed.store(true, std::memory_order_release);
        }
        is_closing_.store(false, std::memory_order_release); // last: a thread that sees it also sees is_closed
        changed_->notify_all();
    }
    // Alternates between two drains, because threads may still be leaving one when the next begins. Only the thread
    // that found the queue idle comes here. It may overlap with the next such thread; the lock keeps the two apart.
    void start_drain()
    {
        std::lock_guard const lock(start_mutex_);
        drain& next = drains_[current_drain_ ^= 1];
        next.end();
        next.begin(*this);
    }
    [[nodiscard]] bool expects_more(clock::time_point& spin_end) const noexcept
    {
        if (!more_comes_.load(std::memory_order_relaxed) || team_->others_wait())
            return false;
        auto const now = clock::now();
        if (spin_end == clock::time_point{})
            spin_end = time_after(now, team_->options().spin);
        return now < spin_end;
    }
    // Returns whether this thread closes the drain; false if another thread closed it or added more work.
    [[nodiscard]] bool try_begin_close(drain const& current)
    {
        std::lock_guard const lock(mutex_);
        if (is_closing_.load(std::memory_order_relaxed) || current.is_closed.load(std::memory_order_relaxed) ||
            done() != added_.load(std::memory_order_relaxed))
            return false;
        is_closing_.store(true, std::memory_order_relaxed);
        return true;
    }

    background_team const& team_;
    queue_worker& worker_;
    std::atomic<std::size_t> max_item_pieces_{1};
    std::atomic<bool> more_comes_{false};
    alignas(64) std::atomic<std::size_t> taken_{0};
    alignas(64) std::atomic<std::size_t> done_{0};
    alignas(64) std::atomic<std::size_t> added_{0};
    mutable std::mutex mutex_; // guards the producers' records of pieces, idle_ and is_closing_
    process_bound<std::condition_variable> changed_;
    bool idle_ = true;
    std::atomic<bool> is_closing_{false}; // a thread is in at_end()
    std::mutex start_mutex_;
    unsigned current_drain_ = 0;
    drain drains_[2];
};

} // namespace detail
ADAMANT_END_NAMESPACE
