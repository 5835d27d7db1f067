// SPDX-License-Identifier: Apache-2.0
// Who may call what when: the checks that an optimizer's functions begin with, and what they say.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// All throw invalid_argument unless noted; and unavailable in a forked child process
// in the midst of a step.
class call_rules {
public:
    call_rules(registry const& over, step_session const& session) : over_(over), session_(session) {}

    void between_steps(char const* call) const
    {
        step_machine const& machine = session_.machine();
        if (machine.is_between_steps())
            return;
        session_.sides().line().check_process();
        throw_invalid_argument({call, " is called while a step is under way; ",
                                machine.is_async() ? "wait for its ticket first" : "finish() or abandon() it first"});
    }
    void step_open(char const* call) const
    {
        session_.sides().line().check_process();
        if (!session_.machine().takes_shards())
            throw_invalid_argument({call, " is called, but no step is open; begin_step() first"});
        session_.sides().line().check_caller();
    }
    // In an open step.
    void shard_awaited(char const* call, std::size_t shard) const
    {
        step_open(call);
        over_.require_shard(shard);
        shard_in_step const known = session_.plan().shards[shard];
        if (known != shard_in_step::awaited)
            throw_invalid_argument({"shard ", over_.text(shard), " has been ",
                                    known == shard_in_step::submitted ? "submitted" : "left out",
                                    " in this step already"});
    }
    void all_submitted() const
    {
        std::vector<shard_in_step> const& shards = session_.plan().shards;
        std::string missing;
        std::size_t how_many = 0;
        for (std::size_t i = 0; i < shards.size(); ++i)
            if (shards[i] == shard_in_step::awaited && ++how_many <= 3)
                missing += (how_many == 1 ? "" : ", ") + over_.text(i);
        if (how_many != 0)
            throw_invalid_argument({"finish() is called, but of ", shards.size(), " shards ", how_many,
                                    " have not been submitted: ", missing, how_many > 3 ? ", ..." : "",
                                    "; submit() them, or skip() those without a gradient"});
    }
    // For rollback().
    void step_kept(optimizer_options const& options) const
    {
        if (session_.history().has_step())
            return;
        throw invalid_argument(
            !options.keep_last_step
                ? "adamant: rollback() is called, but the last step was not kept; set keep_last_step in the options"
                : "adamant: rollback() is called, but there is no step to roll back: none was applied yet, or since "
                  "then another was begun or rolled back, a gradient accumulated, something added, removed or set, or "
                  "a "
                  "state loaded");
    }
    void may_accumulate(std::size_t shard) const
    {
        over_.require_shard(shard);
        char const* const why =
            !over_[shard].shard.has_accumulator() ? "it has no accumulator. Pass one to add_shard()"
            : !session_.machine().is_between_steps() &&
                    (session_.machine().is_async() || session_.plan().shards[shard] != shard_in_step::awaited)
                ? "it is being stepped. Accumulate before submit()"
                : nullptr;
        if (why != nullptr)
            throw_invalid_argument({"cannot accumulate into shard ", over_.text(shard), ": ", why});
    }
    // Params and moments belong to a known step. Throws device_error, too.
    void known_state() const
    {
        if (!session_.machine().is_inconsistent())
            return;
        if (session_.sides().device() == nullptr)
            throw_invalid_argument({"the last load() failed in the middle, so params and moments are of no "
                                    "known step; load() a state"});
        throw_device_error(
            {session_.sides().device()->device().name(),
             " or a file has failed while a state was loaded, or the device in the update itself without "
             "records (see device_records in the options), so what it has is of no known step; load() a "
             "state"});
    }
    void no_device(char const* call) const
    {
        if (session_.sides().device() != nullptr)
            throw_invalid_argument(
                {call, " is called after place(); take everything back with place(nullptr, ...) first"});
    }

private:
    registry const& over_;
    step_session const& session_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
