// SPDX-License-Identifier: Apache-2.0
// Preconditions of an optimizer's functions in each state of a step, and their error messages.
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

// The checks throw invalid_argument unless noted otherwise, and unavailable in a child process that was forked during a
// step.
class call_rules {
public:
    call_rules(registry const& shard_registry, step_session const& session)
        : registry_(shard_registry), session_(session)
    {
    }

    void between_steps(char const* call) const
    {
        step_machine const& machine = session_.machine();
        if (machine.is_between_steps())
            return;
        session_.dispatcher().queue().check_process();
        throw_invalid_argument({"cannot call ", call, ": a step is in progress. ",
                                machine.is_async() ? "Wait for its ticket first" : "Call finish() or abandon() first",
                                "."});
    }
    void step_open(char const* call) const
    {
        session_.dispatcher().queue().check_process();
        if (!session_.machine().takes_shards())
            throw_invalid_argument({"cannot call ", call, ": no step is open. Call begin_step() first."});
        session_.dispatcher().queue().check_caller();
    }
    // The step is open and awaits this shard.
    void shard_awaited(char const* call, std::size_t shard) const
    {
        step_open(call);
        registry_.require_shard(shard);
        shard_in_step const known = session_.plan().shards[shard];
        if (known != shard_in_step::awaited)
            throw_invalid_argument({"cannot call ", call, " for shard ", registry_.text(shard), ": it has been ",
                                    known == shard_in_step::submitted ? "submitted" : "skipped",
                                    " in this step already"});
    }
    void all_submitted() const
    {
        std::vector<shard_in_step> const& shards = session_.plan().shards;
        std::string missing;
        std::size_t count = 0;
        for (std::size_t i = 0; i < shards.size(); ++i)
            if (shards[i] == shard_in_step::awaited && ++count <= 3)
                missing += (count == 1 ? "" : ", ") + registry_.text(i);
        if (count != 0)
            throw_invalid_argument({"cannot finish the step: ", count, " of ", shards.size(),
                                    " shards have not been submitted: ", missing, count > 3 ? ", ..." : "",
                                    ". Call submit() for each, or skip() for those without a gradient."});
    }
    // rollback() has a step to roll back.
    void step_kept(optimizer_options const& options) const
    {
        if (session_.history().has_step())
            return;
        throw invalid_argument(
            !options.keep_last_step
                ? "adamant: cannot call rollback(): the last step was not kept. Set keep_last_step in the options."
                : "adamant: cannot call rollback(): there is no step to roll back. None was applied yet, or since then "
                  "a step was begun or rolled back, a gradient was accumulated, a group or shard was added, removed or "
                  "changed, or a state was loaded.");
    }
    void may_accumulate(std::size_t shard) const
    {
        registry_.require_shard(shard);
        char const* const reason =
            !registry_[shard].shard.has_accumulator() ? "it has no accumulator. Pass one to add_shard()."
            : !session_.machine().is_between_steps() &&
                    (session_.machine().is_async() || session_.plan().shards[shard] != shard_in_step::awaited)
                ? "it is part of the current step. Call accumulate() before submit()."
                : nullptr;
        if (reason != nullptr)
            throw_invalid_argument({"cannot accumulate into shard ", registry_.text(shard), ": ", reason});
    }
    // Params and moments are consistent. Throws device_error, too.
    void known_state() const
    {
        if (!session_.machine().is_inconsistent())
            return;
        if (session_.dispatcher().device() == nullptr)
            throw_invalid_argument({"cannot go on: the last load() failed midway, so params and moments are "
                                    "inconsistent. Call load() with a complete state."});
        throw_device_error(
            {session_.dispatcher().device()->device().name(),
             " or a file failed during load(), or the device failed during an update without records (see "
             "device_records in the options), so params and moments are inconsistent. Call load() with a complete "
             "state."});
    }
    void no_device(char const* call) const
    {
        if (session_.dispatcher().device() != nullptr)
            throw_invalid_argument({"cannot call ", call, " after place(). Call place(nullptr, ...) first."});
    }

private:
    registry const& registry_;
    step_session const& session_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
