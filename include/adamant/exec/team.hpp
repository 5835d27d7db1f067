// SPDX-License-Identifier: Apache-2.0
// A team of threads, each bound to a hardware thread, that lives between steps and is not the caller's.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <signal.h>

#include <adamant/core/error.hpp>
#include <adamant/exec/team_state.hpp>
#include <adamant/topology/index_set.hpp>

ADAMANT_BEGIN_NAMESPACE

// Work that a team has been given. Stays where it is, as the team knows its address; wait for it from any thread, once.
template <class Task>
class [[nodiscard]] submission : detail::team_request {
public:
    submission(std::shared_ptr<detail::team_state> state, Task task, std::size_t work_chunks, unsigned takers)
        : state_(std::move(state)), task_(std::forward<Task>(task))
    {
        run = [](team_request& self, unsigned member) {
            auto& own = static_cast<submission&>(self);
            if constexpr (std::is_invocable_v<Task&, unsigned, std::size_t, std::size_t>) {
                if (member < own.chunk_takers)
                    own.state_->lanes.take_all(member, own.chunk_takers, [&](std::size_t begin, std::size_t end) {
                        own.task_(member, begin, end);
                    });
            } else {
                own.task_(member);
            }
        };
        chunks = work_chunks;
        chunk_takers = takers;
        state_->submit(*this);
    }
    submission(submission const&) = delete;
    submission& operator=(submission const&) = delete;
    // Waits, and drops what was thrown.
    ~submission() { state_->wait(ticket); }

    // Whether all members are through with it. Never blocks.
    [[nodiscard]] bool done() const noexcept { return state_->done(ticket); }
    // Returns when all members are through with it, and throws the first exception that the task threw in any of them.
    void wait()
    {
        state_->wait(ticket);
        if (error)
            std::rethrow_exception(std::exchange(error, nullptr));
    }

private:
    std::shared_ptr<detail::team_state> state_;
    Task task_;
};

// Threads in a parallel region of OpenMP that a leader, a thread of the team's own, keeps open from construction to
// destruction; so the runtime's settings (OMP_NUM_THREADS, OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY, KMP_AFFINITY,
// OMP_WAIT_POLICY, OMP_DYNAMIC) have no say in it, and the caller's threads, their affinity and OpenMP settings are
// left alone. Each thread is bound to its PU by hwloc, and the binding is read back from the kernel. Signals go to
// other threads.
//
// Work is given to all members at once. Requests are worked on one after another, in the order they were submitted, by
// whichever threads. Every member function may be called from any thread, several at once; the destructor not beside
// others.
class team {
public:
    // More cannot be asked for: it is what Linux gives numbers to on its largest machines.
    static constexpr unsigned max_threads = 8192;

    // Throws invalid_argument for no PUs, unavailable where threads cannot be had (their number is tried out before
    // OpenMP is asked, which ends the process where it gets none), bound, or be given stacks of 128 KiB, and bad_alloc;
    // then nothing is left behind. Where threads or memory run out in the moment between, or inside hwloc or OpenMP,
    // they may still end the process; LLVM's runtime more easily, as its threads take memory while others are made.
    explicit team(team_options options)
    {
        options.bind = detail::resolved(options.bind);
        if (options.pus.empty() && (options.bind != binding::none || options.threads == 0))
            throw invalid_argument(
                "adamant: a team without PUs is asked for; name some, or ask for threads with binding::none");
#if defined(ADAMANT_NO_HWLOC)
        if (options.bind == binding::required)
            throw unavailable("adamant: bound threads are asked for, but this program was compiled without hwloc "
                              "(ADAMANT_NO_HWLOC); ask for binding::none");
#endif
        std::size_t const threads = options.threads != 0 ? options.threads : options.pus.size();
        if (threads > max_threads)
            throw unavailable("adamant: " + std::to_string(threads) + " threads are asked for, but a team has at most " +
                              std::to_string(max_threads) + "; ask for one to a core");
#if !defined(ADAMANT_NO_HWLOC)
        if (options.bind != binding::none)
            detail::live_topology(); // where it can throw
#endif
        state_ = std::make_shared<detail::team_state>(options, static_cast<unsigned>(threads));
        start_leader();
        try {
            state_->wait_until_ready();
        } catch (...) {
            leader_->join();
            throw;
        }
    }
    team(team const&) = delete;
    team& operator=(team const&) = delete;

    // Finishes what was submitted, then ends the threads. In a process that was forked from the team's there are none,
    // and the memory of the team is left as it is.
    ~team()
    {
        if (!state_->in_this_process()) {
            static_cast<void>(leader_.release()); // to join or detach a thread that is not there is undefined
            return;
        }
        state_->stop();
        if (state_->is_member())
            leader_->detach(); // destroyed by its own last task
        else
            leader_->join();
    }

    // What it was made with; `bind` is never automatic.
    [[nodiscard]] team_options const& options() const noexcept { return state_->options(); }
    // How many threads there are.
    [[nodiscard]] unsigned size() const noexcept { return static_cast<unsigned>(state_->members().size()); }
    // Each of them, with the binding as it was read back.
    [[nodiscard]] std::vector<team_member> const& members() const noexcept { return state_->members(); }
    // The PUs that its threads are bound to; empty where they are not.
    [[nodiscard]] pu_set bound_to() const
    {
        pu_set all;
        for (team_member const& m : members())
            all |= m.bound_to;
        return all;
    }
    [[nodiscard]] bool bound() const noexcept
    {
        for (team_member const& m : members())
            if (m.bound_to.empty())
                return false;
        return true;
    }

    // Has each member call task(member), member from 0 to size() - 1, and returns at once. The task is kept in what is
    // returned, whose destructor waits; pass an lvalue and it is referred to. Allocates nothing. Throws unavailable in
    // a process forked from the team's, and invalid_argument in a task of this team, which would wait for itself.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned>
    submission<Task> submit(Task&& task)
        {
            return {state_, std::forward<Task>(task), 0, 0};
        }
    // The same for work that is cut into chunks 0 to chunks - 1 (fewer than 2^32): task(member, begin, end) is called
    // for ranges that are disjoint and together all of them. Each of the first `takers` members (0: all) begins with
    // the same chunks every time, and takes from others when it is through.
    template <class Task>
        requires std::is_invocable_v<Task&, unsigned, std::size_t, std::size_t>
    submission<Task> submit(std::size_t chunks, Task&& task, unsigned takers = 0)
    {
        if (chunks > detail::chunk_lanes::max_chunks)
            throw invalid_argument("adamant: work is cut into " + std::to_string(chunks) + " chunks, but a team takes " +
                                   std::to_string(detail::chunk_lanes::max_chunks) + " at most");
        return {state_, std::forward<Task>(task), chunks, takers == 0 || takers > size() ? size() : takers};
    }

    // Whether something was submitted that waits for what the team is at now: for a task that may end sooner or later.
    // From any thread.
    [[nodiscard]] bool others_wait() const noexcept { return state_->others_wait(); }
    // Throws what submit() would throw if it were called here, and does nothing else.
    void check_submit() const { state_->check_submit(); }

    // Submits and waits; throws what the task throws.
    template <class Task>
    void run(Task&& task)
    {
        submit(task).wait();
    }
    template <class Task>
    void run(std::size_t chunks, Task&& task, unsigned takers = 0)
    {
        submit(chunks, task, takers).wait();
    }

private:
    // Which all of the team's threads have their signal mask from.
    void start_leader()
    {
        struct all_signals_blocked {
            sigset_t before;
            all_signals_blocked() noexcept
            {
                sigset_t all;
                sigfillset(&all);
                pthread_sigmask(SIG_SETMASK, &all, &before);
            }
            ~all_signals_blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
        };
        all_signals_blocked const block;
        try {
            leader_ = std::make_unique<std::thread>([state = state_] { state->lead(); });
        } catch (std::system_error const& e) {
            throw unavailable("adamant: a team's leader could not be started: " + std::string(e.what()) +
                              "; look at the limits on threads (ulimit -u, pids.max) and on memory (ulimit -v)");
        }
    }

    std::shared_ptr<detail::team_state> state_;
    std::unique_ptr<std::thread> leader_;
};

ADAMANT_END_NAMESPACE
