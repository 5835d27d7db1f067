// SPDX-License-Identifier: Apache-2.0
// Preconditions of the calls of an optimizer, with and without deferred gradients, and their error messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/device.hpp>
#include <adamant/error.hpp>
#include <adamant/optimizer_options.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_machine.hpp>
#include <adamant/detail/engine/step_plan.hpp>
#include <adamant/detail/exec/background_team.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The checks throw invalid_argument, and unavailable in a child process that was forked during a step.
class call_rules {
public:
    // item: "shard" or "param". items: the shards of the open step.
    call_rules(char const* item, registry const& items_registry, step_machine const& machine,
               std::vector<shard_in_step> const& items, background_team const& team)
        : item_(item), registry_(items_registry), machine_(machine), items_(items), team_(team)
    {
    }

    // ---- Steps

    void between_steps(char const* call) const
    {
        if (machine_.is_between_steps())
            return;
        team_.check_process();
        throw_invalid_argument({"cannot call ", call, ": a step is in progress. ",
                                machine_.is_async() ? "Wait for its ticket first" : "Call finish() or abandon() first",
                                "."});
    }
    void step_open(char const* call) const
    {
        team_.check_process();
        if (!machine_.takes_shards())
            throw_invalid_argument({"cannot call ", call,
                                    machine_.is_async() ? ": a step is in progress. Wait for its ticket first."
                                                        : ": no step is open. Call begin_step() first."});
        team_.check_caller();
    }
    // The step is open and awaits this shard.
    void shard_awaited(char const* call, std::size_t shard) const
    {
        step_open(call);
        registry_.require_shard(shard);
        if (items_[shard] != shard_in_step::awaited)
            throw_invalid_argument({"cannot call ", call, " for ", item_, " ", registry_.text(shard), ": it has been ",
                                    items_[shard] == shard_in_step::submitted ? "submitted" : "skipped",
                                    " in this step already"});
    }
    void all_submitted() const
    {
        std::string missing;
        std::size_t count = 0;
        for (std::size_t i = 0; i < items_.size(); ++i)
            if (items_[i] == shard_in_step::awaited && ++count <= 3)
                missing += (count == 1 ? "" : ", ") + registry_.text(i);
        if (count != 0)
            throw_invalid_argument({"cannot finish the step: ", count, " of ", counted(items_.size(), item_),
                                    count == 1 ? " has" : " have", " not been submitted: ", missing,
                                    count > 3 ? ", ..." : "",
                                    ". Call submit() for each, or skip() for those without a gradient."});
    }
    void gradient_for_each(std::size_t gradients) const
    {
        if (gradients != registry_.size())
            throw_invalid_argument({"cannot step with ", counted(gradients, "gradient"), ": the optimizer has ",
                                    counted(registry_.size(), item_)});
    }

    // ---- Functions of an optimizer without deferred gradients

    // rollback() has a step to roll back.
    void step_kept(bool has_step, optimizer_options const& options) const
    {
        if (has_step)
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
        char const* const reason = !registry_[shard].shard.has_accumulator()
                                       ? "it has no accumulator. Pass one to add_shard()."
                                   : machine_.is_between_steps() ? nullptr
                                   : machine_.is_async()         ? "a step is in progress. Wait for its ticket first."
                                   : items_[shard] != shard_in_step::awaited
                                       ? "it is part of the current step. Call accumulate() before submit()."
                                       : nullptr;
        if (reason != nullptr)
            throw_invalid_argument({"cannot accumulate into shard ", registry_.text(shard), ": ", reason});
    }
    // Params and moments are consistent. current: where the shards are; null without a device. Throws device_error,
    // too.
    void known_state(device const* current) const
    {
        if (!machine_.is_inconsistent())
            return;
        if (current == nullptr)
            throw_invalid_argument({"cannot use the optimizer: load() failed midway, or a device failed, so params and "
                                    "moments are inconsistent. Call load() with a complete state."});
        throw_device_error({"cannot use the optimizer: load() failed midway, or ", current->name(),
                            " failed and could not be rolled back, so params and moments are inconsistent. Call load() "
                            "with a complete state."});
    }
    // current: where the shards are now; null without a device.
    void may_place(device const* target, placement const& requested, device const* current,
                   optimizer_options const& options) const
    {
        if (options.keep_last_step && !options.device_records && requested.device_elems != 0)
            throw_invalid_argument({"cannot place shards on a device: keep_last_step requires records on the device. "
                                    "Set device_records in the options."});
        validate(requested, registry_.sizes());
        if (target == nullptr && requested.device_elems != 0)
            throw_invalid_argument({"cannot place ", counted(requested.device_elems, "element"),
                                    " on a device: the device is a null pointer"});
        may_use_arrays_on(target, current);
    }
    // The device arrays of the shards are on this device.
    void may_use_arrays_on(device const* target, device const* current) const
    {
        if (registry_.has_device_arrays() && current != nullptr && target != nullptr && current != target)
            throw_invalid_argument({"cannot place ", item_, "s on ", target->name(), ": they have arrays on ",
                                    current->name(), ". Call place() without a device first."});
    }
    // For a gradient that a device reads in host memory.
    void aligned_for(device const& target, std::size_t shard, void const* grad) const
    {
        if (reinterpret_cast<std::uintptr_t>(grad) % device_piece::alignment != 0)
            throw_invalid_argument({"cannot set the gradient of shard ", registry_.text(shard), ": ", target.name(),
                                    " reads it in place, so its address must be a multiple of ",
                                    device_piece::alignment,
                                    " bytes. Align it, or set it before place(): each step then copies it."});
    }
    void no_device(char const* call, device const* current) const
    {
        if (current != nullptr)
            throw_invalid_argument({"cannot call ", call, " after place(). Call place() without a device first."});
    }

private:
    char const* item_;
    registry const& registry_;
    step_machine const& machine_;
    std::vector<shard_in_step> const& items_;
    background_team const& team_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
