// SPDX-License-Identifier: Apache-2.0
// A team of threads that lives between steps. Each is bound to a PU (hwloc's term for a hardware thread).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <sys/types.h>
#include <type_traits>
#include <utility>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

/// Whether threads are bound to PUs.
enum class binding {
    automatic,   ///< required; none in a program that was compiled without hwloc
    required,    ///< a thread that cannot be bound is an error
    if_possible, ///< a thread that cannot be bound stays unbound, and the report says so
    none         ///< no thread is bound
};

/// Options of a team.
struct team_options {
    pu_set pus = {}; ///< one thread for each; may be empty with binding::none
    /// 0: one for each PU. With more threads than PUs, threads share PUs; with fewer, the first PUs get one each.
    unsigned threads = 0;
    binding bind = binding::automatic; ///< whether threads must be bound
    /// How long an idle thread spins before it sleeps. A spinning thread starts new work within a microsecond; a
    /// sleeping one has to be woken and uses no CPU.
    std::chrono::nanoseconds spin = std::chrono::microseconds(50);
    /// Whether run() may work in the calling thread, in place of a member. It does if the team covers all PUs that the
    /// caller may use: a caller that only waited would be one thread too many for these PUs, and would cost two context
    /// switches for each request.
    bool caller_joins = true;
};

/// What it costs to hand work to a team, measured by its constructor. The number of threads that an executor uses
/// depends on it.
struct hand_over_cost {
    std::chrono::nanoseconds two{0};  ///< for two threads to start and finish an empty request; 0 if there is only one
    std::chrono::nanoseconds each{0}; ///< added by each further thread
};

/// One thread of a team.
struct team_member {
    pid_t thread_id = 0; ///< thread id of the system, as in ps -L
    pu_set asked;        ///< requested PU; empty: no binding was requested
    pu_set bound_to;     ///< affinity mask, read back from the kernel; empty: not bound
    std::string problem; ///< why it is not bound
};

namespace detail {

// A piece of work for all members of a team, in its submitter's memory.
struct team_request {
    // If the work is not cut into chunks: called once by each member, with begin and end 0. If it is: called by members
    // for ranges of chunks.
    void (*run)(team_request& self, unsigned member, std::size_t begin, std::size_t end) = nullptr;
    std::size_t chunks = 0;
    unsigned chunk_takers = 0;  // 0: the work is not cut into chunks
    bool waits_for_late = true; // false: members that have not begun when another has finished do not take part
    team_request* next = nullptr;
    std::uint32_t ticket = 0;
    std::atomic<bool> failed{false};
    std::exception_ptr error; // the first one thrown
};

class team_state;

// The part of a submission that does not depend on the type of its task.
struct team_submission : team_request {
    explicit team_submission(std::shared_ptr<team_state> team) noexcept;
    ~team_submission();
    std::shared_ptr<team_state> state;
};

void submit(team_state& state, team_request& request);
void run(team_state& state, team_request& request);
void wait_for(team_state& state, team_request const& request) noexcept;
void wait_for_result(team_state& state, team_request& request); // rethrows the error
[[nodiscard]] bool is_done(team_state const& state, team_request const& request) noexcept;
void check_chunks(std::size_t chunks);

} // namespace detail

class team;

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// Work that was submitted to a team. Not movable, because the team has its address. Wait for it once, from any thread.
template <class Task>
class [[nodiscard]] submission : detail::team_submission {
public:
    submission(submission const&) = delete;
    submission& operator=(submission const&) = delete;
    /// Waits, and discards exceptions of the task. Does not wait in a forked child process.
    ~submission() { detail::wait_for(*state, *this); }

    /// Whether all threads have finished it. Does not block.
    [[nodiscard]] bool done() const noexcept { return detail::is_done(*state, *this); }
    /// Waits until all threads have finished it.
    /// @throws the first exception that the task threw; unavailable in a forked child process
    void wait() { detail::wait_for_result(*state, *this); }

private:
    friend team;
    using start_function = void (*)(detail::team_state&, team_request&);
    submission(std::shared_ptr<detail::team_state> team, Task task, std::size_t work_chunks, unsigned takers,
               start_function start, bool waits_for_late_threads = true)
        : team_submission(std::move(team)), task_(std::forward<Task>(task))
    {
        run = [](team_request& self, unsigned member, [[maybe_unused]] std::size_t begin,
                 [[maybe_unused]] std::size_t end) {
            auto& own = static_cast<submission&>(self);
            if constexpr (std::is_invocable_v<Task&, unsigned, std::size_t, std::size_t>)
                own.task_(member, begin, end);
            else
                own.task_(member);
        };
        chunks = work_chunks;
        chunk_takers = takers;
        waits_for_late = waits_for_late_threads && takers == 0;
        start(*state, *this);
    }

    Task task_;
};

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE

/// Threads of one OpenMP parallel region that a leader thread keeps open from construction to destruction. The
/// runtime's settings (OMP_NUM_THREADS, OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY, KMP_AFFINITY, OMP_WAIT_POLICY,
/// OMP_DYNAMIC) do not affect it, and the caller's threads, affinity and OpenMP settings do not change. hwloc binds
/// each thread to its PU, and the binding is read back from the kernel. The threads block signals.
///
/// A request is given to all threads at the same time. Requests run one after another, in the order of submission.
/// Thread safety: call every member function from any thread, also concurrently, but not during the destructor.
class team {
public:
    /// Maximum number of threads of a team. Linux supports at most this many PUs.
    static constexpr unsigned max_threads = 8192;

    /// Creates and binds the threads.
    ///
    /// OpenMP runtimes end the process if thread creation fails. As a test, the constructor first creates and joins the
    /// same number of plain threads. If threads or memory run out right after that, or inside hwloc or OpenMP, the
    /// process may still end; this is more likely with LLVM's runtime.
    /// @throws invalid_argument without PUs; unavailable if threads cannot be created, bound, or given stacks of 128
    /// KiB; bad_alloc. Then nothing is left behind
    explicit team(team_options options);
    team(team const&) = delete;
    team& operator=(team const&) = delete;

    /// Finishes submitted work, then ends the threads. A forked child process leaks the team.
    ~team();

    /// Its options; `bind` is never automatic.
    [[nodiscard]] team_options const& options() const noexcept;
    /// Number of threads.
    [[nodiscard]] unsigned size() const noexcept;
    /// The threads, with their bindings as read back.
    [[nodiscard]] std::vector<team_member> const& members() const noexcept;
    /// PUs of the threads; empty: not bound.
    [[nodiscard]] pu_set bound_to() const;
    /// Whether threads are bound.
    [[nodiscard]] bool bound() const noexcept;
    /// Cost of handing work to the threads.
    [[nodiscard]] hand_over_cost const& hand_over() const noexcept;

    /// Calls task(member) in every thread, member from 0 to size() - 1. Returns immediately; the submission keeps the
    /// task (an lvalue by reference), and its destructor waits. Allocates nothing.
    /// @throws unavailable in a forked child process; invalid_argument inside a task of this team, which would wait for
    /// itself
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned> submission<Task> submit(Task&& task)
        {
            return {state_, std::forward<Task>(task), 0, 0, &detail::submit};
        }
    /// Like submit(), but once one thread has finished, threads that have not started skip the task. So nothing waits
    /// for a thread that is delayed or asleep. For tasks in which each thread takes work from the same place until none
    /// is left. At least one thread calls the task.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned> submission<Task> submit_without_late_threads(Task&& task)
        {
            return {state_, std::forward<Task>(task), 0, 0, &detail::submit, false};
        }
    /// Divides the numbers from 0 to chunks - 1 into disjoint ranges, and calls task(member, begin, end) for each.
    /// There must be fewer than 2^32 chunks. The first `takers` threads (0: all) take part. Each one starts with a
    /// range of its own, which is the same in every call with these numbers, and then steals chunks from the others.
    /// Other threads are not woken.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned, std::size_t, std::size_t> submission<Task>
        submit(std::size_t chunks, Task&& task, unsigned takers = 0)
        {
            detail::check_chunks(chunks);
            return {state_, std::forward<Task>(task), chunks, takers_of(takers), &detail::submit};
        }

    /// Whether other requests wait for the team. A task that can end early asks this.
    [[nodiscard]] bool others_wait() const noexcept;
    /// Throws what submit() would throw here, and does nothing else.
    void check_submit() const;
    /// Whether this is the process that created the threads, not a forked child.
    [[nodiscard]] bool in_this_process() const noexcept;
    /// Throws unavailable in a forked child process.
    void check_process() const;

    /// Submits and waits. Throws what the task throws. The calling thread may take the place of a member: see
    /// team_options::caller_joins. It has the default floating-point environment meanwhile.
    template <class Task>
    ADAMANT_ALWAYS_INLINE void run(Task&& task)
    {
        submission<Task&>(state_, task, 0, 0, &detail::run).wait();
    }
    /// The same for chunks. Does not wait for threads that wake up when no chunk is left.
    template <class Task>
    ADAMANT_ALWAYS_INLINE void run(std::size_t chunks, Task&& task, unsigned takers = 0)
    {
        detail::check_chunks(chunks);
        submission<Task&>(state_, task, chunks, takers_of(takers), &detail::run).wait();
    }

private:
    [[nodiscard]] unsigned takers_of(unsigned takers) const noexcept
    {
        return takers == 0 || takers > size() ? size() : takers;
    }
    // Starts the leader with all signals blocked. The team's other threads inherit its signal mask.
    void start_leader();

    std::shared_ptr<detail::team_state> state_;
    hand_over_cost hand_over_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/exec/team.ipp>
#endif
