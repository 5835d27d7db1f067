// SPDX-License-Identifier: Apache-2.0
// The inside of a team: its threads and the queue of work. See team.hpp.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <sched.h>
#include <unistd.h>

#include <adamant/error.hpp>
#include <adamant/team.hpp>
#include <adamant/detail/exec/probe_threads.hpp>
#include <adamant/detail/exec/team_member.hpp>
#include <adamant/detail/exec/this_process.hpp>
#include <adamant/detail/exec/work_stealing.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

constexpr binding resolved(binding bind) noexcept
{
    if (bind != binding::automatic)
        return bind;
#if defined(ADAMANT_NO_HWLOC)
    return binding::none;
#else
    return binding::required;
#endif
}

inline void relax() noexcept
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    asm volatile("yield");
#endif
}

// Returns once the value is no longer `old`: looks for a while, then sleeps.
inline std::uint32_t wait_for_change(std::atomic<std::uint32_t> const& value, std::uint32_t old,
                                     std::chrono::nanoseconds spin) noexcept
{
    auto const until = std::chrono::steady_clock::now() + spin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (std::uint32_t const now = value.load(std::memory_order_acquire); now != old)
                return now;
            relax();
        }
        // The thread that we wait for may need this PU.
        if (spin.count() > 0)
            sched_yield();
    } while (std::chrono::steady_clock::now() < until);
    for (;;) {
        value.wait(old, std::memory_order_acquire);
        if (std::uint32_t const now = value.load(std::memory_order_acquire); now != old)
            return now;
    }
}

// What the threads share. The leader's thread keeps it alive, whatever becomes of the team object.
class team_state {
public:
    team_state(team_options const& options, unsigned threads)
        : options_(options), members_(threads), queues_(threads), process_(this_process())
    {
    }

    [[nodiscard]] team_options const& options() const noexcept { return options_; }
    [[nodiscard]] std::vector<team_member> const& members() const noexcept { return members_; }
    [[nodiscard]] bool in_this_process() const noexcept { return this_process() == process_; }
    [[nodiscard]] bool is_member() const noexcept { return of_this_thread() == this; }

    // The leader: opens the parallel region in which all members live. Does not return before stop().
    void lead() noexcept
    {
        try {
            open_region();
        } catch (...) {
            fail();
            announce();
        }
    }

    // Returns when the members are there; throws where they cannot be had.
    void wait_until_ready()
    {
        while (ready_.load(std::memory_order_acquire) == 0)
            ready_.wait(0, std::memory_order_acquire);
        if (failure_)
            std::rethrow_exception(failure_);
        if (std::size_t const bytes = too_small_stack_.load(std::memory_order_relaxed); bytes != 0)
            refuse_stack(bytes, min_stack_bytes);
        for (team_member const& m : members_)
            if (!m.problem.empty() && options_.bind == binding::required)
                throw unavailable(m.problem);
    }

    void check_process() const { require_process(process_, "a team"); }
    // Throws where submit() would.
    void check_submit() const
    {
        check_process();
        if (is_member())
            throw_invalid_argument({"a task of a team submitted work to the same team, and would wait for itself; "
                                    "submit it to another team, or do it in the task"});
    }
    void submit(team_request& request)
    {
        check_submit();
        bool start = false;
        {
            std::lock_guard const lock(mutex_);
            request.ticket = ++last_ticket_;
            request.next = nullptr;
            if (head_ == nullptr) {
                head_ = tail_ = &request;
                publish(head_);
                start = true;
            } else {
                tail_ = tail_->next = &request;
                others_wait_.store(true, std::memory_order_relaxed);
            }
        }
        if (start)
            epoch_.notify_all();
    }

    // Whether a request waits behind the one that is being worked on.
    [[nodiscard]] bool others_wait() const noexcept { return others_wait_.load(std::memory_order_relaxed); }

    [[nodiscard]] bool done(std::uint32_t ticket) const noexcept
    {
        return reached(completed_.load(std::memory_order_acquire), ticket);
    }

    // Returns immediately in a forked child process, where no thread would complete the request.
    void wait(std::uint32_t ticket) const noexcept
    {
        if (!in_this_process())
            return;
        std::uint32_t now = completed_.load(std::memory_order_acquire);
        while (!reached(now, ticket))
            now = wait_for_change(completed_, now, options_.spin);
    }

    // All that was submitted is still done.
    void stop()
    {
        bool start = false;
        {
            std::lock_guard const lock(mutex_);
            stopping_ = true;
            if (head_ == nullptr) {
                publish(nullptr);
                start = true;
            }
        }
        if (start)
            epoch_.notify_all();
    }

    std::unique_ptr<std::thread> leader; // only the team uses it

private:
    static bool reached(std::uint32_t completed, std::uint32_t ticket) noexcept
    {
        return static_cast<std::int32_t>(completed - ticket) >= 0;
    }
    static team_state const*& of_this_thread() noexcept
    {
        static thread_local team_state const* state = nullptr;
        return state;
    }

    // A step takes 23 KiB of it, and 62 where it was compiled for AVX2 without optimisation; a step over a list 27 KiB
    // more, for what it gathers small shards in.
    static constexpr std::size_t min_stack_bytes = 131072;
    [[noreturn]] static void refuse_stack(std::size_t bytes, std::size_t needed)
    {
        throw_unavailable({"a thread of a team needs a stack of ", needed, " bytes, but has one of ", bytes,
                           "; raise OMP_STACKSIZE, GOMP_STACKSIZE or KMP_STACKSIZE, and ulimit -s"});
    }

    // In a handler. The first one counts.
    void fail() noexcept
    {
        if (!failed_.exchange(true))
            failure_ = std::current_exception();
    }
    void announce() noexcept
    {
        ready_.store(1, std::memory_order_release);
        ready_.notify_all();
    }

    void open_region()
    {
        unsigned const size = static_cast<unsigned>(members_.size());
#if defined(_OPENMP)
        omp_set_dynamic(0); // of this thread only
        unsigned granted = std::min(size, static_cast<unsigned>(omp_get_thread_limit()));
        if (granted == size) {
            // On the stack of who opens the region GCC's runtime has a few words for each thread.
            std::size_t const needed = min_stack_bytes + std::size_t{256} * size;
            if (std::size_t const bytes = stack_bytes_of_this_thread(); bytes != 0 && bytes < needed)
                refuse_stack(bytes, needed);
            probe_threads(size - 1, openmp_stack_bytes());
#pragma omp parallel num_threads(static_cast <int>(size))
            {
                if (static_cast<unsigned>(omp_get_num_threads()) == size)
                    live(static_cast<unsigned>(omp_get_thread_num()));
                else if (omp_get_thread_num() == 0)
                    granted = static_cast<unsigned>(omp_get_num_threads());
            }
        }
        if (granted != size)
            throw_unavailable({size, " threads were requested, but OpenMP grants ", granted,
                               "; check OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS and KMP_DEVICE_THREAD_LIMIT, or "
                               "request fewer"});
#else
        if (size != 1)
            throw_unavailable({size,
                               " threads were requested, but this program was compiled without OpenMP, which gives 1; "
                               "add -fopenmp"});
        live(0);
#endif
    }

    // One member, from beginning to end.
    void live(unsigned member) noexcept
    {
        of_this_thread() = this;
        {
            member_thread self(member);
            if (std::size_t const bytes = stack_bytes_of_this_thread(); bytes != 0 && bytes < min_stack_bytes) {
                too_small_stack_.store(bytes, std::memory_order_relaxed); // no place to throw from, either
            } else {
                try {
                    self.bind(members_[member], member, options_);
                } catch (...) {
                    fail();
                }
            }
            if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_.size())
                all_are_there();
            for (std::uint32_t seen = 0;;) {
                seen = wait_for_change(epoch_, seen, options_.spin);
                if (current_ == nullptr)
                    break;
                work(*current_, member);
            }
        }
        of_this_thread() = nullptr;
    }
    // In the last one that has come.
    void all_are_there() noexcept
    {
        bool usable = !failed_.load(std::memory_order_relaxed) && too_small_stack_.load(std::memory_order_relaxed) == 0;
        for (team_member const& m : members_)
            usable = usable && (m.problem.empty() || options_.bind != binding::required);
        if (!usable)
            publish(nullptr); // no request can have been submitted yet
        announce();
        epoch_.notify_all();
    }

    void work(team_request& request, unsigned member) noexcept
    {
        try {
            if (request.chunk_takers == 0)
                request.run(request, member, 0, 0);
            else if (member < request.chunk_takers)
                queues_.take_all(member, request.chunk_takers,
                                 [&](std::size_t begin, std::size_t end) { request.run(request, member, begin, end); });
        } catch (...) {
            if (!request.failed.exchange(true))
                request.error = std::current_exception();
        }
        if (remaining_.fetch_sub(1, std::memory_order_acq_rel) != 1)
            return;
        // The last one out hands the next request on, and only then is this one over: its memory is the submitter's
        // again.
        bool start = false;
        {
            std::lock_guard const lock(mutex_);
            std::uint32_t const ticket = request.ticket;
            head_ = request.next;
            others_wait_.store(head_ != nullptr && head_->next != nullptr, std::memory_order_relaxed);
            if (head_ != nullptr || stopping_) {
                publish(head_);
                start = true;
            }
            completed_.store(ticket, std::memory_order_release);
        }
        if (start)
            epoch_.notify_all();
        completed_.notify_all();
    }

    // Shows the members what to do next; they look at it after epoch_ has changed. null: stop.
    void publish(team_request* request) noexcept
    {
        current_ = request;
        if (request != nullptr && request->chunk_takers != 0)
            queues_.fill(request->chunks, request->chunk_takers);
        remaining_.store(static_cast<unsigned>(members_.size()), std::memory_order_relaxed);
        epoch_.fetch_add(1, std::memory_order_release);
    }

    team_options options_;
    std::vector<team_member> members_;
    work_stealing_queues queues_; // of the request that is being worked on
    pid_t process_;
    std::atomic<std::uint32_t> ready_{0};
    std::atomic<std::size_t> arrived_{0};
    // Why there is no team: what was thrown first, and a stack that is too small.
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_;
    std::atomic<std::size_t> too_small_stack_{0};

    std::atomic<bool> others_wait_{false};
    std::mutex mutex_; // guards the queue
    team_request* head_ = nullptr;
    team_request* tail_ = nullptr;
    std::uint32_t last_ticket_ = 0;
    bool stopping_ = false;

    team_request* current_ = nullptr;
    // Apart, as different threads wait for them.
    alignas(64) std::atomic<std::uint32_t> epoch_{0};
    alignas(64) std::atomic<unsigned> remaining_{0};
    alignas(64) std::atomic<std::uint32_t> completed_{0};
};

} // namespace detail

ADAMANT_END_NAMESPACE
