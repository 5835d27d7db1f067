// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/team.hpp>.
#pragma once

#include <string>
#include <system_error>
#include <thread>

#include <signal.h>

#include <adamant/error.hpp>
#include <exception>
#include <adamant/detail/core/refused_call.hpp>

#include <adamant/index_set.hpp>
#include <adamant/team.hpp>
#include <adamant/detail/exec/hand_over.hpp>
#include <adamant/detail/exec/team_state.hpp>

ADAMANT_BEGIN_NAMESPACE

namespace detail {

[[gnu::noinline]] ADAMANT_DECL team_submission::team_submission(std::shared_ptr<team_state> team) noexcept
    : state(std::move(team))
{
}
[[gnu::noinline]] ADAMANT_DECL team_submission::~team_submission() {}

// Not inline: programs have many types of tasks.
[[gnu::noinline]] ADAMANT_DECL void submit(team_state& state, team_request& request)
{
    state.submit(request);
}
[[gnu::noinline]] ADAMANT_DECL void run(team_state& state, team_request& request)
{
    state.run(request);
}
[[gnu::noinline]] ADAMANT_DECL void wait_for(team_state& state, team_request const& request) noexcept
{
    state.wait(request.ticket);
}
[[gnu::noinline]] ADAMANT_DECL void wait_for_result(team_state& state, team_request& request)
{
    state.check_process();
    state.wait(request.ticket);
    if (request.error)
        std::rethrow_exception(std::exchange(request.error, nullptr));
}
ADAMANT_DECL bool is_done(team_state const& state, team_request const& request) noexcept
{
    return state.done(request.ticket);
}
[[gnu::noinline]] ADAMANT_DECL void check_chunks(std::size_t chunks)
{
    if (chunks > work_stealing_queues::max_chunks)
        throw_invalid_argument({"cannot submit ", chunks, " chunks: a team takes at most ",
                                work_stealing_queues::max_chunks, ". Use larger chunks."});
}

} // namespace detail

[[gnu::noinline]] ADAMANT_DECL team::team(team_options options)
{
    options.bind = detail::resolved(options.bind);
    detail::check_binding(options.bind);
    if (options.pus.empty() && (options.bind != binding::none || options.threads == 0))
        detail::throw_invalid_argument(
            {"cannot create a team: no PUs were given. Name PUs, or request binding::none."});
#if defined(ADAMANT_NO_HWLOC)
    if (options.bind == binding::required)
        detail::throw_unavailable({"cannot bind threads: this program was compiled without hwloc (ADAMANT_NO_HWLOC). "
                                   "Request binding::none."});
#endif
    std::size_t const threads = options.threads != 0 ? options.threads : options.pus.size();
    if (threads > max_threads)
        detail::throw_unavailable({"cannot start ", detail::counted(threads, "thread"), ": a team has at most ",
                                   max_threads, ". Request one for each core."});
#if !defined(ADAMANT_NO_HWLOC)
    if (options.bind != binding::none)
        detail::live_topology(); // reads the topology here, where an error can be thrown
#endif
    state_ = std::make_shared<detail::team_state>(options, static_cast<unsigned>(threads));
    start_leader();
    try {
        state_->wait_until_ready();
    } catch (...) {
        state_->leader->join();
        throw;
    }
    hand_over_ = detail::measure_hand_over(*this);
}

[[gnu::noinline]] ADAMANT_DECL team::~team()
{
    if (!state_->in_this_process()) {
        static_cast<void>(state_->leader.release()); // the thread is in another process: join and detach are undefined
        return;
    }
    state_->stop();
    if (state_->is_member())
        state_->leader->detach(); // a task of the team destroys it
    else
        state_->leader->join();
}

ADAMANT_DECL team_options const& team::options() const noexcept
{
    return state_->options();
}

ADAMANT_DECL unsigned team::size() const noexcept
{
    return static_cast<unsigned>(state_->members().size());
}

ADAMANT_DECL std::vector<team_member> const& team::members() const noexcept
{
    return state_->members();
}

ADAMANT_DECL pu_set team::bound_to() const
{
    pu_set all;
    for (team_member const& m : members())
        all |= m.bound_to;
    return all;
}

ADAMANT_DECL bool team::bound() const noexcept
{
    for (team_member const& m : members())
        if (m.bound_to.empty())
            return false;
    return true;
}

ADAMANT_DECL hand_over_cost const& team::hand_over() const noexcept
{
    return hand_over_;
}

ADAMANT_DECL bool team::others_wait() const noexcept
{
    return state_->others_wait();
}

ADAMANT_DECL void team::check_submit() const
{
    state_->check_submit();
}

ADAMANT_DECL bool team::in_this_process() const noexcept
{
    return state_->in_this_process();
}

ADAMANT_DECL void team::check_process() const
{
    state_->check_process();
}

[[gnu::noinline]] ADAMANT_DECL void team::start_leader()
{
    struct all_signals_blocked {
        sigset_t old_mask;
        all_signals_blocked() noexcept
        {
            sigset_t all;
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &old_mask);
        }
        ~all_signals_blocked() { pthread_sigmask(SIG_SETMASK, &old_mask, nullptr); }
    };
    all_signals_blocked const block;
    try {
        state_->leader = std::make_unique<std::thread>([state = state_] { state->lead(); });
    } catch (std::system_error const& e) {
        detail::throw_unavailable({"cannot start the leader thread of a team: ", e.what(), "; ",
                                   detail::advice_on(e.code().value(), "check the limits on threads (ulimit -u, "
                                                                       "pids.max) and on memory (ulimit -v)")});
    }
}

ADAMANT_END_NAMESPACE
