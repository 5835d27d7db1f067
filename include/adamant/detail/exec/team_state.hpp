// SPDX-License-Identifier: Apache-2.0
// Shared state of a team: its threads, the queue of requests, and their synchronisation. Implements <adamant/team.hpp>.
#pragma once

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <unistd.h>

#include <adamant/error.hpp>
#include <adamant/team.hpp>
#include <adamant/detail/exec/probe_threads.hpp>
#include <adamant/detail/exec/stand_ins.hpp>
#include <adamant/detail/exec/team_member.hpp>
#include <adamant/detail/exec/this_process.hpp>
#include <adamant/detail/exec/wait_word.hpp>
#include <adamant/detail/exec/work_stealing.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

inline void check_binding(binding bind)
{
    if (bind < binding::automatic || bind > binding::none)
        throw_invalid_argument({"bind is not a valid binding"});
}
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

// Who works on the current request, in one atomic word. A request whose threads take work from the same place, such as
// chunks, can complete without the members that wake up too late: once a thread finds no work left, no other enters.
class request_gate {
public:
    // Opens the gate for a request. all: every member takes part, and `active` of them have yet to leave. Otherwise
    // members enter one by one, and `active` of them have entered already.
    void open(std::uint32_t ticket, bool all, unsigned active) noexcept
    {
        word_.store(std::uint64_t{ticket} << 32 | (all ? everyone | one_left : 0) | active, std::memory_order_release);
    }
    // Returns whether the calling member takes part in the request of this ticket. It must leave() then.
    [[nodiscard]] bool enter(std::uint32_t ticket) noexcept
    {
        std::uint64_t word = word_.load(std::memory_order_acquire);
        for (;;) {
            if (static_cast<std::uint32_t>(word >> 32) != ticket)
                return false;
            if ((word & everyone) != 0)
                return true;
            if ((word & left_mask) != 0)
                return false;
            if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire))
                return true;
        }
    }
    // Closes the gate. Returns whether this was the last active thread: it completes the request. One operation,
    // because the gate's cache line travels through all members, one after the other.
    [[nodiscard]] bool leave() noexcept
    {
        return (word_.fetch_add(one_left - 1, std::memory_order_acq_rel) & active_mask) == 1;
    }

private:
    // The upper half of the word is the ticket. The gate is closed once a thread has left.
    static constexpr std::uint64_t everyone = std::uint64_t{1} << 31;
    static constexpr std::uint64_t one_left = std::uint64_t{1} << 16;
    static constexpr std::uint64_t left_mask = everyone - one_left;
    static constexpr std::uint64_t active_mask = one_left - 1;
    static_assert(team::max_threads < left_mask / one_left);
    std::atomic<std::uint64_t> word_{0};
};

// State that a team's threads share. The leader thread keeps it alive after the team object is gone.
class team_state {
public:
    team_state(team_options const& options, unsigned threads)
        : options_(options), members_(threads), mailboxes_(threads), queues_(threads), process_(this_process())
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
        (void)enqueue(request, no_member);
    }
    // Submits the request and waits for it. If the team covers all PUs that the calling thread may use, the caller
    // works in place of the member on its PU: one thread more than PUs would cost two context switches for each
    // request.
    void run(team_request& request)
    {
        check_submit();
        unsigned const neighbor = stand_ins_ ? stand_ins_->member_for_this_thread() : no_member;
        if (neighbor == no_member) {
            (void)enqueue(request, no_member);
        } else {
            mailboxes_[neighbor].park();
            unsigned const member = request.chunk_takers == 0 ? neighbor : std::min(neighbor, request.chunk_takers - 1);
            if (enqueue(request, member)) {
                stand_in_scope const scope(*this);
                work(request, member);
            }
        }
        wait(request.ticket);
    }

    // Whether a request waits behind the current one.
    [[nodiscard]] bool others_wait() const noexcept { return others_wait_.load(std::memory_order_relaxed); }

    [[nodiscard]] bool done(std::uint32_t ticket) const noexcept { return reached(completed_.load(), ticket); }

    // Returns immediately in a forked child process, where no thread would complete the request.
    void wait(std::uint32_t ticket) noexcept
    {
        if (!in_this_process())
            return;
        std::uint32_t now = completed_.load();
        while (!reached(now, ticket))
            now = completed_.wait(now, options_.spin);
    }

    // Ends the threads after all submitted requests are complete.
    void stop()
    {
        unsigned members = 0;
        {
            std::lock_guard const lock(mutex_);
            stopping_ = true;
            if (head_ == nullptr)
                members = publish(nullptr, no_member);
        }
        wake(members);
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
    static constexpr unsigned no_member = stand_ins::no_member;

    // Makes the calling thread a member for the duration of one request.
    class stand_in_scope {
    public:
        explicit stand_in_scope(team_state const& state) noexcept
            : outer_(std::exchange(state_of_this_thread(), &state))
        {
            std::fegetenv(&environment_);
            std::fesetenv(FE_DFL_ENV);
        }
        stand_in_scope(stand_in_scope const&) = delete;
        stand_in_scope& operator=(stand_in_scope const&) = delete;
        ~stand_in_scope()
        {
            std::fesetenv(&environment_);
            state_of_this_thread() = outer_;
        }

    private:
        team_state const* outer_;
        std::fenv_t environment_;
    };

    // Appends a request. Returns whether the caller works on it in place of `member`: if the request starts
    // immediately.
    [[nodiscard]] bool enqueue(team_request& request, unsigned member)
    {
        unsigned members = 0;
        {
            std::lock_guard const lock(mutex_);
            request.ticket = ++last_ticket_;
            request.next = nullptr;
            if (head_ != nullptr) {
                tail_ = tail_->next = &request;
                others_wait_.store(true, std::memory_order_relaxed);
                return false;
            }
            head_ = tail_ = &request;
            members = publish(head_, member);
        }
        wake(members);
        return member != no_member;
    }

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
            throw_unavailable({"cannot start ", counted(size, "thread"), ": OpenMP grants ", granted,
                               ". Check OMP_THREAD_LIMIT, OMP_MAX_ACTIVE_LEVELS and KMP_DEVICE_THREAD_LIMIT, or "
                               "request fewer."});
#else
        if (size != 1)
            throw_unavailable({"cannot start ", counted(size, "thread"),
                               ": this program was compiled without OpenMP. Add -fopenmp."});
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
            mailbox& box = mailboxes_[member];
            for (std::uint32_t seen = 0;;) {
                // While a caller works in this member's place, spinning would take the PU from it.
                bool const parked = box.parked.load(std::memory_order_relaxed);
                seen = box.ticket.wait(seen, parked ? std::chrono::nanoseconds(0) : options_.spin);
                if (!gate_.enter(seen))
                    continue;
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
        try {
            if (options_.caller_joins)
                stand_ins_.emplace(members_);
        } catch (...) {
            fail();
        }
        bool usable = !failed_.load(std::memory_order_relaxed) && too_small_stack_.load(std::memory_order_relaxed) == 0;
        for (team_member const& m : members_)
            usable = usable && (m.problem.empty() || options_.bind != binding::required);
        unsigned const members = usable ? 0 : publish(nullptr, no_member); // before announce(): there is no request yet
        announce();
        wake(members);
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
        if (!gate_.leave())
            return;
        // The last thread publishes the next request, then completes this one. Do not touch the request after that: its
        // submitter may already have freed it.
        unsigned members = 0;
        {
            std::lock_guard const lock(mutex_);
            std::uint32_t const ticket = request.ticket;
            head_ = request.next;
            others_wait_.store(head_ != nullptr && head_->next != nullptr, std::memory_order_relaxed);
            if (head_ != nullptr || stopping_)
                members = publish(head_, no_member);
            completed_.store(ticket);
        }
        wake(members);
        completed_.wake();
    }

    // Makes a request current and delivers it to the members that take part, except `stand_in`, whose place the caller
    // takes. Returns how many members have to be woken, from the first on. null: stop.
    [[nodiscard]] unsigned publish(team_request* request, unsigned stand_in) noexcept
    {
        auto const size = static_cast<unsigned>(members_.size());
        bool const all = request == nullptr || request->waits_for_late;
        std::uint32_t const ticket = request == nullptr ? ++last_ticket_ : request->ticket;
        bool const in_chunks = request != nullptr && request->chunk_takers != 0;
        unsigned const takers = in_chunks ? request->chunk_takers : size;
        current_ = request;
        if (in_chunks)
            queues_.fill(request->chunks, takers);
        gate_.open(ticket, all, all ? size : (stand_in == no_member ? 0 : 1));
        for (unsigned i = 0; i < takers; ++i)
            if (i != stand_in)
                mailboxes_[i].deliver(ticket);
        wait_word::fence();
        return takers;
    }
    void wake(unsigned members) noexcept
    {
        for (unsigned i = 0; i < members; ++i)
            mailboxes_[i].ticket.wake();
    }

    // Where a member waits for requests.
    struct alignas(64) mailbox {
        wait_word ticket;                // of the last request delivered here
        std::atomic<bool> parked{false}; // a caller uses the member's PU

        void park() noexcept
        {
            if (!parked.load(std::memory_order_relaxed))
                parked.store(true, std::memory_order_relaxed);
        }
        // Call wait_word::fence() before ticket.wake().
        void deliver(std::uint32_t request) noexcept
        {
            if (parked.load(std::memory_order_relaxed))
                parked.store(false, std::memory_order_relaxed);
            ticket.store_early(request);
        }
    };

    team_options options_;
    std::vector<team_member> members_;
    std::vector<mailbox> mailboxes_;
    std::optional<stand_ins> stand_ins_; // empty: callers never join
    work_stealing_queues queues_;        // chunks of the current request
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
    alignas(64) request_gate gate_;
    alignas(64) wait_word completed_; // ticket of the last completed request
};

} // namespace detail

ADAMANT_END_NAMESPACE
