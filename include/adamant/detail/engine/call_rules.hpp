// SPDX-License-Identifier: Apache-2.0
// Preconditions of an optimizer's functions beyond those of step_rules, and their error messages.
#pragma once

#include <cstddef>

#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_rules.hpp>
#include <adamant/detail/engine/step_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// Rules of an optimizer with a step session.
class call_rules : public step_rules<work_queue> {
public:
    call_rules(registry const& shard_registry, step_session const& session)
        : step_rules("shard", shard_registry, session.machine(), session.plan().shards, session.dispatcher().queue()),
          registry_(shard_registry), session_(session)
    {
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
                  "a step was begun or rolled back, a gradient was accumulated, a group or shard was added or removed, "
                  "shards were placed, the step count or loss scaler was set, or a state was loaded.");
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
