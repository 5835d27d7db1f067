// SPDX-License-Identifier: Apache-2.0
// Shared state of a team: its threads, the queue of requests, and their synchronisation. Implements <adamant/team.hpp>.
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

// Blocks until the value differs from `old`, and returns it. Spins first, then sleeps.
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
        // The thread that changes the value may need this PU.
        if (spin.count() > 0)
            sched_yield();
    } while (std::chrono::steady_clock::now() < until);
    for (;;) {
        value.wait(old, std::memory_order_acquire);
        if (std::uint32_t const now = value.load(std::memory_order_acquire); now != old)
            return now;
    }
}

// State that a team's threads share. The leader thread keeps it alive after the team object is gone.
class team_state {
public:
    team_state(team_options const& options, unsigned threads)
        : options_(options), members_(threads), queues_(threads), process_(this_process())
    {
    }

    [[nodiscard]] team_options const& options() const noexcept { return options_; }
    [[nodiscard]] std::vector<team_member> const& members() const noexcept { return members_; }
    [[nodiscard]] bool in_this_process() const noexcept { return this_process() == process_; }
    [[nodiscard]] bool is_member() const noexcept { return state_of_this_thread() == this; }

    // Runs the leader thread: opens the parallel region in which all members live. Returns after stop().
    void lead() noexcept
    {
        try {
            open_region();
        } catch (...) {
            fail();
            announce();
        }
    }

    // Blocks until all members run; throws if one of them could not start.
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
    // Throws what submit() would throw.
    void check_submit() const
    {
        check_process();
        if (is_member())
            throw_invalid_argument({"cannot submit work to a team from its own task: the task would wait for itself. "
                                    "Submit to another team, or do the work in the task."});
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

    // Whether a request waits behind the current one.
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

    // Ends the threads after all submitted requests are complete.
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

    std::unique_ptr<std::thread> leader; // for the team object only

private:
    static bool reached(std::uint32_t completed, std::uint32_t ticket) noexcept
    {
        return static_cast<std::int32_t>(completed - ticket) >= 0;
    }
    static team_state const*& state_of_this_thread() noexcept
    {
        static thread_local team_state const* state = nullptr;
        return state;
    }

    // A step uses 23 KiB of stack, or 62 KiB if compiled for AVX2 without optimisation. A step over a list uses 27 KiB
    // more, for the buffer in which it gathers small shards.
    static constexpr std::size_t min_stack_bytes = 131072;
    [[noreturn]] static void refuse_stack(std::size_t bytes, std::size_t needed)
    {
        throw_unavailable({"cannot start a team: a thread needs a stack of ", needed, " bytes, but has ", bytes,
                           ". Raise OMP_STACKSIZE, GOMP_STACKSIZE or KMP_STACKSIZE, and ulimit -s."});
    }

    // Records the current exception unless one was recorded before. Call from a catch block.
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
        omp_set_dynamic(0); // affects this thread only
        unsigned granted = std::min(size, static_cast<unsigned>(omp_get_thread_limit()));
        if (granted == size) {
            // GCC's runtime keeps a few words per thread on the stack of the thread that opens the region.
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
            throw_unavailable({"cannot start ", size, " threads: OpenMP grants ", granted,
                               ". Check OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS and KMP_DEVICE_THREAD_LIMIT, or "
                               "request fewer."});
#else
        if (size != 1)
            throw_unavailable(
                {"cannot start ", size, " threads: this program was compiled without OpenMP. Add -fopenmp."});
        live(0);
#endif
    }

    // Lifetime of a member: binds the thread, then works on requests until stop().
    void live(unsigned member) noexcept
    {
        state_of_this_thread() = this;
        {
            member_thread self(member);
            if (std::size_t const bytes = stack_bytes_of_this_thread(); bytes != 0 && bytes < min_stack_bytes) {
                too_small_stack_.store(bytes, std::memory_order_relaxed); // also too small to throw from
            } else {
                try {
                    self.bind(members_[member], member, options_);
                } catch (...) {
                    fail();
                }
            }
            if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == members_.size())
                all_arrived();
            for (std::uint32_t seen = 0;;) {
                seen = wait_for_change(epoch_, seen, options_.spin);
                if (current_ == nullptr)
                    break;
                work(*current_, member);
            }
        }
        state_of_this_thread() = nullptr;
    }
    // Called by the last member to arrive.
    void all_arrived() noexcept
    {
        bool usable = !failed_.load(std::memory_order_relaxed) && too_small_stack_.load(std::memory_order_relaxed) == 0;
        for (team_member const& m : members_)
            usable = usable && (m.problem.empty() || options_.bind != binding::required);
        if (!usable)
            publish(nullptr); // before announce(), so no request can have been submitted yet
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
        // The last member to finish publishes the next request, then completes this one. Do not touch the request after
        // that: its submitter may already have freed it.
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

    // Makes a request current; members read it after epoch_ has changed. null: stop.
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
    work_stealing_queues queues_; // chunks of the current request
    pid_t process_;
    std::atomic<std::uint32_t> ready_{0};
    std::atomic<std::size_t> arrived_{0};
    // Reasons why the team cannot start: the first exception, and the size of a stack that is too small.
    std::atomic<bool> failed_{false};
    std::exception_ptr failure_;
    std::atomic<std::size_t> too_small_stack_{0};

    std::atomic<bool> others_wait_{false};
    std::mutex mutex_; // guards the queue of requests
    team_request* head_ = nullptr;
    team_request* tail_ = nullptr;
    std::uint32_t last_ticket_ = 0;
    bool stopping_ = false;

    team_request* current_ = nullptr;
    // On separate cache lines, because different threads wait for them.
    alignas(64) std::atomic<std::uint32_t> epoch_{0};
    alignas(64) std::atomic<unsigned> remaining_{0};
    alignas(64) std::atomic<std::uint32_t> completed_{0};
};

} // namespace detail

ADAMANT_END_NAMESPACE
