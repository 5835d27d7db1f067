// SPDX-License-Identifier: Apache-2.0
// The team that works beside the caller: an executor's, or one thread that is created on demand.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include <adamant/executor.hpp>
#include <adamant/team.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Whether the calling thread does work over this number of elements itself. With a team, the rule is that of every call
// of the executor. Without one, larger background work gets a thread of its own.
[[nodiscard]] inline bool is_callers_work(executor const& cpu, std::size_t elems) noexcept
{
    return cpu.team() == nullptr ? elems < 2 * max_min_slice_elems : cpu.works_itself(elems);
}

class background_team {
public:
    // team: an executor's; may be null.
    explicit background_team(std::shared_ptr<adamant::team> team) : team_(std::move(team)) {}
    background_team(background_team const&) = delete;
    background_team& operator=(background_team const&) = delete;

    // Call before operator->(). Creates a single unbound thread if the executor has no team, because work that runs
    // beside the caller needs a thread. Throws what the team's constructor throws.
    void ensure()
    {
        if (team_ == nullptr)
            team_ = std::make_shared<adamant::team>(team_options{.threads = 1, .bind = binding::none});
    }
    [[nodiscard]] adamant::team* operator->() const noexcept { return team_.get(); }

    // Throws as team::submit() in a thread of the team, which must not wait for the team.
    void check_caller() const
    {
        if (team_ != nullptr)
            team_->check_submit();
    }
    // False in a forked child process, which lacks the team's threads. Locks that they share may be held there forever.
    [[nodiscard]] bool in_this_process() const noexcept { return team_ == nullptr || team_->in_this_process(); }
    // Throws unavailable in a forked child process.
    [[gnu::noinline]] void check_process() const
    {
        if (team_ != nullptr)
            team_->check_process();
    }

private:
    std::shared_ptr<adamant::team> team_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
