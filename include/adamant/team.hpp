// SPDX-License-Identifier: Apache-2.0
// A team of threads, each bound to a PU, that lives between steps.
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

// A team of threads as plain data: the request, the result, and a piece of work.

ADAMANT_BEGIN_NAMESPACE

enum class binding {
    automatic,   ///< required; none in a program that was compiled without hwloc
    required,    ///< a thread that cannot be bound is an error
    if_possible, ///< a thread that cannot be bound stays unbound, and the report says so
    none         ///< no thread is bound
};

/// Options of a team.
struct team_options {
    pu_set pus = {}; ///< one thread for each; may be empty with binding::none
    /// 0: as many as PUs. With more threads than PUs, threads share PUs in turns; with fewer, the first PUs have one.
    unsigned threads = 0;
    binding bind = binding::automatic; ///< whether threads must be bound
    /// How long a thread without work spins before it sleeps. While it spins, it starts new work within a microsecond;
    /// later it has to be woken. An idle team uses no CPU after this.
    std::chrono::nanoseconds spin = std::chrono::microseconds(50);
};

/// One thread of a team, as it is.
struct team_member {
    pid_t thread_id = 0; ///< the system's, as ps -L shows it
    pu_set asked;        ///< the requested PU; empty where no binding was requested
    pu_set bound_to;     ///< its mask, read back from the kernel after binding; empty where it is not bound
    std::string problem; ///< why it is not bound
};

namespace detail {

// A piece of work for all members of a team, in its submitter's memory.
struct team_request {
    // Called once by each member, with 0 and 0; or, where work is cut into chunks, for ranges of these.
    void (*run)(team_request& self, unsigned member, std::size_t begin, std::size_t end) = nullptr;
    std::size_t chunks = 0;
    unsigned chunk_takers = 0; // 0: the work is not cut into chunks
    team_request* next = nullptr;
    std::uint32_t ticket = 0;
    std::atomic<bool> failed{false};
    std::exception_ptr error; // the first one thrown
};

} // namespace detail
// A team of threads, each bound to a hardware thread, that lives between steps and is not the caller's.

namespace detail {

class team_state;
void submit(team_state& to, team_request& request);
void wait_for(team_state const& of, team_request const& request) noexcept;
[[nodiscard]] bool is_done(team_state const& of, team_request const& request) noexcept;
void check_process(team_state const& of);
void check_chunks(std::size_t chunks);

} // namespace detail

class team;

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// Work that was submitted to a team. It cannot be moved, because the team knows its address. Wait for it from any
/// thread, once.
template <class Task>
class [[nodiscard]] submission : detail::team_request {
public:
    submission(submission const&) = delete;
    submission& operator=(submission const&) = delete;
    /// Waits, and discards exceptions of the task. Does not wait in a forked child process.
    ~submission() { detail::wait_for(*state_, *this); }

    /// Whether all members have finished it. Never blocks.
    [[nodiscard]] bool done() const noexcept { return detail::is_done(*state_, *this); }
    /// Returns when all members have finished it, and throws the first exception that the task threw in any of them.
    /// Throws unavailable in a forked child process.
    void wait()
    {
        detail::check_process(*state_);
        detail::wait_for(*state_, *this);
        if (error)
            std::rethrow_exception(std::exchange(error, nullptr));
    }

private:
    friend team;
    submission(std::shared_ptr<detail::team_state> state, Task task, std::size_t work_chunks, unsigned takers)
        : state_(std::move(state)), task_(std::forward<Task>(task))
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
        detail::submit(*state_, *this);
    }

    std::shared_ptr<detail::team_state> state_;
    Task task_;
};

ADAMANT_END_INLINE_NAMESPACE

ADAMANT_BEGIN_NAMESPACE

/// The threads are those of one OpenMP parallel region, which a leader, a thread of the team's own, keeps open from
/// construction to destruction. So the runtime's settings (OMP_NUM_THREADS, OMP_PROC_BIND, OMP_PLACES,
/// GOMP_CPU_AFFINITY, KMP_AFFINITY, OMP_WAIT_POLICY, OMP_DYNAMIC) do not affect it, and the caller's threads, their
/// affinity and their OpenMP settings stay as they are. hwloc binds each thread to its PU, and the binding is read back
/// from the kernel. Signals go to other threads.
///
/// Work is given to all members together. Requests are worked on one after another, in the order in which they were
/// submitted, from whatever threads. Every member function may be called from any thread, and from several
/// concurrently, but none during the destructor.
class team {
public:
    /// The largest possible request: Linux numbers no more on its largest machines.
    static constexpr unsigned max_threads = 8192;

    /// Throws invalid_argument for no PUs; unavailable where threads cannot be made, bound, or given stacks of 128 KiB;
    /// and bad_alloc. Then nothing is left behind. OpenMP ends the process where it gets no thread, so as many threads
    /// are made and ended first. Where threads or memory run out right after that, or inside hwloc or OpenMP, the
    /// process may still end; more easily under LLVM's runtime, whose threads take memory while others are made.
    explicit team(team_options options);
    team(team const&) = delete;
    team& operator=(team const&) = delete;

    /// Finishes what was submitted, then ends the threads. A forked child process has none of them and leaks the team.
    ~team();

    /// The options that it was made with; `bind` is never automatic.
    [[nodiscard]] team_options const& options() const noexcept;
    /// How many threads there are.
    [[nodiscard]] unsigned size() const noexcept;
    /// Each thread, with its binding as it was read back.
    [[nodiscard]] std::vector<team_member> const& members() const noexcept;
    /// The PUs that its threads are bound to; empty where they are not.
    [[nodiscard]] pu_set bound_to() const;
    /// Whether threads are bound.
    [[nodiscard]] bool bound() const noexcept;

    /// Each member calls task(member), member from 0 to size() - 1; this returns immediately. The returned submission
    /// keeps the task (an lvalue by reference), and its destructor waits. Allocates nothing. Throws unavailable in a
    /// process forked from the one that made the team, and invalid_argument in a task of this team, which would wait
    /// for itself.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned> submission<Task> submit(Task&& task)
        {
            return {state_, std::forward<Task>(task), 0, 0};
        }
    /// The same for work in chunks 0 to chunks - 1 (fewer than 2^32): task(member, begin, end) is called for disjoint
    /// ranges that together are all chunks. Each of the first `takers` members (0: all) begins with the same chunks
    /// every time, and takes from others when it has finished its own.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned, std::size_t, std::size_t> submission<Task>
        submit(std::size_t chunks, Task&& task, unsigned takers = 0)
        {
            detail::check_chunks(chunks);
            return {state_, std::forward<Task>(task), chunks, takers == 0 || takers > size() ? size() : takers};
        }

    /// Whether submitted work waits for the current request: for a task that can choose when to end. From any thread.
    [[nodiscard]] bool others_wait() const noexcept;
    /// Throws what submit() would throw if it were called here, and does nothing else.
    void check_submit() const;
    /// Whether its threads are there: not in a forked child process. There check_process() throws
    /// unavailable.
    [[nodiscard]] bool in_this_process() const noexcept;
    /// Throws unavailable in a forked child process.
    void check_process() const;

    /// Submits and waits; throws what the task throws.
    template <class Task>
    ADAMANT_ALWAYS_INLINE void run(Task&& task)
    {
        submit(task).wait();
    }
    /// The same.
    template <class Task>
    ADAMANT_ALWAYS_INLINE void run(std::size_t chunks, Task&& task, unsigned takers = 0)
    {
        submit(chunks, task, takers).wait();
    }

private:
    // All of the team's threads inherit its signal mask.
    void start_leader();

    std::shared_ptr<detail::team_state> state_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/exec/team.ipp>
#endif
