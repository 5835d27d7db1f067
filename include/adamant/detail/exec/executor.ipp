// SPDX-License-Identifier: Apache-2.0
// Definitions of <adamant/executor.hpp>.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include <adamant/error.hpp>
#include <adamant/executor.hpp>
#include <adamant/detail/exec/team_state.hpp>
#include <adamant/detail/exec/useful_threads.hpp>
#include <adamant/detail/topology/allowed.hpp>

ADAMANT_BEGIN_NAMESPACE

[[gnu::noinline]] ADAMANT_DECL executor::executor(executor_options const& options)
    : isa_(resolve_isa(options.tier)), max_chunk_elems_(std::max(options.max_chunk_elems, min_chunk_elems)),
      prefetch_bytes_(options.prefetch_bytes), cpu_quota_(read_cpu_quota().cpus)
{
    detail::check_binding(options.bind);
    unsigned threads = options.threads;
#if !defined(_OPENMP)
    if (std::size_t const asked = threads != 0 ? threads : options.pus.size(); asked > 1)
        detail::throw_unavailable({"cannot start ", detail::counted(asked, "thread"),
                                   ": this program was compiled without OpenMP. Add -fopenmp."});
    threads = 1;
#endif
    bool const wants_binding =
        !options.pus.empty() || options.bind == binding::required || options.bind == binding::if_possible;
    if (threads != 1 || wants_binding) {
        pu_set const pus = !options.pus.empty() ? options.pus
                           : threads == 0       ? detail::select_pus_within_quota(cpu_quota_)
                                                : detail::select_pus(threads);
        if (threads != 0 || pus.size() > 1 || wants_binding)
            team_ = std::make_shared<adamant::team>(team_options{.pus = pus, .threads = threads, .bind = options.bind});
    }
    set_slices(options.min_slice_elems);
}

ADAMANT_DECL executor::executor(std::shared_ptr<adamant::team> team, isa tier, std::size_t min_slice_elems)
    : executor(std::move(team), executor_options{.tier = tier, .min_slice_elems = min_slice_elems})
{
}

ADAMANT_DECL executor::executor(std::shared_ptr<adamant::team> team, executor_options const& options)
    : isa_(resolve_isa(options.tier)), max_chunk_elems_(std::max(options.max_chunk_elems, min_chunk_elems)),
      prefetch_bytes_(options.prefetch_bytes), cpu_quota_(read_cpu_quota().cpus), team_(std::move(team))
{
    if (team_ == nullptr)
        detail::throw_invalid_argument({"cannot create an executor: the pointer to its team is null"});
    detail::check_binding(options.bind);
    check_agrees(*team_, options);
    set_slices(options.min_slice_elems);
}

ADAMANT_DECL void executor::set_slices(std::size_t min_slice_elems)
{
    if (min_slice_elems == 0 && team_ != nullptr)
        hand_over_ = team_->hand_over();
    least_elems_of_two_ = min_slice_elems != 0 ? min_slice_elems : detail::worthwhile_slice_elems(hand_over_);
    least_elems_ = min_slice_elems != 0 ? min_slice_elems : min_chunk_elems;
}

ADAMANT_DECL isa executor::tier() const noexcept
{
    return isa_;
}

ADAMANT_DECL unsigned executor::threads() const noexcept
{
    return team_ == nullptr ? 1 : team_->size();
}

ADAMANT_DECL double executor::cpu_quota() const noexcept
{
    return cpu_quota_;
}

ADAMANT_DECL std::shared_ptr<adamant::team> const& executor::team() const noexcept
{
    return team_;
}

ADAMANT_DECL chunking executor::chunks(std::size_t n, std::size_t elem_bytes) const noexcept
{
    unsigned const most = works_itself(n, elem_bytes)
                              ? 1
                              : detail::fastest_threads(detail::work_time(n, elem_bytes), hand_over_, threads());
    return chunks_of(n, most, detail::elems_of_equal_work(least_elems_, elem_bytes), max_chunk_elems_,
                     detail::elems_of_equal_work(min_chunk_elems, elem_bytes));
}

ADAMANT_DECL std::size_t executor::max_chunk_elems() const noexcept
{
    return max_chunk_elems_;
}

ADAMANT_DECL std::uint32_t executor::prefetch_bytes() const noexcept
{
    return prefetch_bytes_;
}

ADAMANT_DECL void executor::check_agrees(adamant::team const& team, executor_options const& options)
{
    auto const refuse = [](std::initializer_list<detail::text_part> requested,
                           std::initializer_list<detail::text_part> actual) {
        detail::throw_invalid_argument({"cannot create an executor with ", detail::text_of(requested),
                                        ": the team has ", detail::text_of(actual),
                                        ". Omit that option, or create a team that has it."});
    };
    if (options.threads != 0 && options.threads != team.size())
        refuse({options.threads, " threads"}, {team.size()});
    if (!options.pus.empty() && options.pus != team.options().pus)
        refuse({"PUs ", to_list(options.pus)},
               {team.options().pus.empty() ? "no PUs" : "PUs ", to_list(team.options().pus)});
    if (options.bind == binding::required && !team.bound())
        refuse({"binding::required"}, {"unbound threads"});
    if (options.bind == binding::if_possible && team.options().bind == binding::none)
        refuse({"binding::if_possible"}, {"unbound threads"});
    if (options.bind == binding::none && team.options().bind != binding::none)
        refuse({"binding::none"},
               {team.bound_to().empty() ? "unbound threads" : "threads bound to PUs ", to_list(team.bound_to())});
}

ADAMANT_DECL bool executor::works_itself(std::size_t n, std::size_t elem_bytes) const noexcept
{
    return team_ == nullptr || detail::is_small_work(n, elem_bytes, least_elems_of_two_);
}

ADAMANT_END_NAMESPACE
