// SPDX-License-Identifier: Apache-2.0
// A team of worker threads, each bound to a PU, that persists between steps.
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

/// Whether the threads of a team are bound to PUs.
enum class binding {
    automatic,   ///< `required`; `none` in a program compiled without hwloc
    required,    ///< a thread that cannot be bound is an error
    if_possible, ///< a thread that cannot be bound stays unbound; team_member::problem says why
    none         ///< no thread is bound
};

/// Options of a team.
struct team_options {
    pu_set pus = {}; ///< one thread for each PU; may be empty with binding::none
    /// Number of threads; 0: one for each PU.
    ///
    /// More threads than PUs are bound to the PUs round-robin. Fewer threads use the first PUs.
    unsigned threads = 0;
    binding bind = binding::automatic; ///< whether to bind the threads
    /// How long a thread without work spins before it sleeps.
    ///
    /// A spinning thread starts new work within a microsecond; a sleeping one must be woken. An idle team uses no CPU
    /// time after this.
    std::chrono::nanoseconds spin = std::chrono::microseconds(50);
};

/// One thread of a team and its actual binding.
struct team_member {
    pid_t thread_id = 0; ///< thread ID of the operating system, as ps -L shows it
    pu_set asked;        ///< the requested PU; empty if no binding was requested
    pu_set bound_to;     ///< affinity mask, read back from the kernel after binding; empty if the thread is not bound
    std::string problem; ///< why the thread is not bound; else empty
};

namespace detail {

// Work for all members of a team. Lives in the submitter's memory.
struct team_request {
    // Called once by each member with the range 0, 0; or, if the work is divided into chunks, for ranges of chunks.
    void (*run)(team_request& self, unsigned member, std::size_t begin, std::size_t end) = nullptr;
    std::size_t chunks = 0;
    unsigned chunk_takers = 0; // 0: the work is not divided into chunks
    team_request* next = nullptr;
    std::uint32_t ticket = 0;
    std::atomic<bool> failed{false};
    std::exception_ptr error; // the first one thrown
};

class team_state;
void submit(team_state& state, team_request& request);
void wait_for(team_state const& state, team_request const& request) noexcept;
[[nodiscard]] bool is_done(team_state const& state, team_request const& request) noexcept;
void check_process(team_state const& state);
void check_chunks(std::size_t chunks);

} // namespace detail

class team;

ADAMANT_END_NAMESPACE

ADAMANT_BEGIN_INLINE_NAMESPACE

/// Work that was submitted to a team. Returned by team::submit().
///
/// Cannot be moved, because the team holds its address. Call wait() once, from any thread.
template <class Task>
class [[nodiscard]] submission : detail::team_request {
public:
    submission(submission const&) = delete;            ///< not copyable
    submission& operator=(submission const&) = delete; ///< not copyable
    /// Waits for the work and discards exceptions of the task. Does not wait in a forked child process.
    ~submission() { detail::wait_for(*state_, *this); }

    /// Returns whether all members have finished the work. Never blocks.
    [[nodiscard]] bool done() const noexcept { return detail::is_done(*state_, *this); }
    /// Waits until all members have finished the work.
    /// @throws unavailable  in a forked child process.
    /// @throws ...  the first exception that the task threw in any member.
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
            auto& submitted = static_cast<submission&>(self);
            if constexpr (std::is_invocable_v<Task&, unsigned, std::size_t, std::size_t>)
                submitted.task_(member, begin, end);
            else
                submitted.task_(member);
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

/// A team of worker threads that persists between steps.
///
/// Requests run one after another in the order of submission, each on all members. All member functions are
/// thread-safe, except that none may run concurrently with the destructor.
///
/// The threads belong to one OpenMP parallel region, which a leader thread of the team keeps open from construction to
/// destruction. The team therefore ignores the runtime's settings (OMP_NUM_THREADS, OMP_PROC_BIND, OMP_PLACES,
/// GOMP_CPU_AFFINITY, KMP_AFFINITY, OMP_WAIT_POLICY, OMP_DYNAMIC) and leaves the caller's threads, their affinity and
/// their OpenMP settings unchanged. hwloc binds each thread to its PU, and the binding is read back from the kernel.
/// The threads block signals, which therefore go to other threads.
class team {
public:
    /// Largest team. Linux supports no more CPUs on its largest machines.
    static constexpr unsigned max_threads = 8192;

    /// Starts and binds the threads. Leaves nothing behind if it throws.
    ///
    /// Because OpenMP aborts the process if it cannot create a thread, the constructor first creates and joins the same
    /// number of threads as a probe. The process may still abort if threads or memory run out right after the probe, or
    /// inside hwloc or OpenMP. LLVM's runtime is more prone to this: its threads allocate while others are created.
    /// @throws invalid_argument  if there are no PUs to use, or too many threads.
    /// @throws unavailable  if threads cannot be created, bound, or given stacks of 128 KiB.
    /// @throws std::bad_alloc
    explicit team(team_options options);
    team(team const&) = delete;            ///< not copyable
    team& operator=(team const&) = delete; ///< not copyable

    /// Finishes all submitted work, then joins the threads. A forked child process lacks the threads and leaks the
    /// team.
    ~team();

    /// Returns the options of construction; `bind` is never `automatic`.
    [[nodiscard]] team_options const& options() const noexcept;
    /// Returns the number of threads.
    [[nodiscard]] unsigned size() const noexcept;
    /// Returns each thread with its actual binding.
    [[nodiscard]] std::vector<team_member> const& members() const noexcept;
    /// Returns the PUs that the threads are bound to; empty if they are not bound.
    [[nodiscard]] pu_set bound_to() const;
    /// Returns whether the threads are bound.
    [[nodiscard]] bool bound() const noexcept;

    /// Submits a task; does not block. Each member calls task(member), with member from 0 to size() - 1.
    ///
    /// The returned submission holds the task (an lvalue by reference), and its destructor waits. Allocates nothing.
    /// @throws unavailable  in a forked child process.
    /// @throws invalid_argument  in a task of this team, which would wait for itself.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned> submission<Task> submit(Task&& task)
        {
            return {state_, std::forward<Task>(task), 0, 0};
        }
    /// Submits a task over chunks; does not block. Calls task(member, begin, end) for disjoint ranges of all chunks.
    ///
    /// Each of the first `takers` members starts with the same chunks every time, and steals from others when it has
    /// finished them.
    /// @param chunks  number of chunks, fewer than 2^32; ranges are within [0, chunks).
    /// @param takers  number of members that work; 0: all.
    /// @throws unavailable  in a forked child process.
    /// @throws invalid_argument  for too many chunks, and in a task of this team.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned, std::size_t, std::size_t> submission<Task>
        submit(std::size_t chunks, Task&& task, unsigned takers = 0)
        {
            detail::check_chunks(chunks);
            return {state_, std::forward<Task>(task), chunks, takers == 0 || takers > size() ? size() : takers};
        }

    /// Returns whether requests are queued behind the current one, so that a task can decide to end early.
    [[nodiscard]] bool others_wait() const noexcept;
    /// Throws what submit() would throw if it were called here; has no other effect.
    /// @throws unavailable, invalid_argument  as submit() does.
    void check_submit() const;
    /// Returns whether this process has the team's threads. False in a forked child process.
    [[nodiscard]] bool in_this_process() const noexcept;
    /// Throws unless in_this_process().
    /// @throws unavailable  in a forked child process.
    void check_process() const;

    /// Submits a task and waits for it.
    /// @throws ...  what submit() and the task throw.
    template <class Task>
    ADAMANT_ALWAYS_INLINE void run(Task&& task)
    {
        submit(task).wait();
    }
    /// Submits a task over chunks and waits for it.
    /// @throws ...  what submit() and the task throw.
    template <class Task>
    ADAMANT_ALWAYS_INLINE void run(std::size_t chunks, Task&& task, unsigned takers = 0)
    {
        submit(chunks, task, takers).wait();
    }

private:
    // The leader blocks all signals; the team's threads inherit its signal mask.
    void start_leader();

    std::shared_ptr<detail::team_state> state_;
};

ADAMANT_END_NAMESPACE

#if defined(ADAMANT_HEADER_ONLY)
#include <adamant/detail/exec/team.ipp>
#endif
