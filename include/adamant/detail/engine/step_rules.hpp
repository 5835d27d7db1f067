// SPDX-License-Identifier: Apache-2.0
// Preconditions of the calls of a step, for optimizers with and without deferred gradients, and their error messages.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <adamant/error.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_machine.hpp>
#include <adamant/detail/engine/step_plan.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// item: "shard" or "param".
inline void check_gradient_count(std::size_t gradients, std::size_t count, char const* item)
{
    if (gradients != count)
        throw_invalid_argument(
            {"cannot step with ", counted(gradients, "gradient"), ": the optimizer has ", counted(count, item)});
}

// Rules for the calls of a step that an optimizer of any kind has. Threads: what runs the step's work, with
// check_process() and check_caller() as work_queue has them. The checks throw invalid_argument, and unavailable in a
// child process that was forked during a step.
template <class Threads>
class step_rules {
public:
    // item: "shard" or "param". items: the shards of the open step.
    step_rules(char const* item, registry const& items_registry, step_machine const& machine,
               std::vector<shard_in_step> const& items, Threads const& threads)
        : item_(item), registry_(items_registry), machine_(machine), items_(items), threads_(threads)
    {
    }

    void between_steps(char const* call) const
    {
        if (machine_.is_between_steps())
            return;
        threads_.check_process();
        throw_invalid_argument({"cannot call ", call, ": a step is in progress. ",
                                machine_.is_async() ? "Wait for its ticket first" : "Call finish() or abandon() first",
                                "."});
    }
    void step_open(char const* call) const
    {
        threads_.check_process();
        if (!machine_.takes_shards())
            throw_invalid_argument({"cannot call ", call, ": no step is open. Call begin_step() first."});
        threads_.check_caller();
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

private:
    char const* item_;
    registry const& registry_;
    step_machine const& machine_;
    std::vector<shard_in_step> const& items_;
    Threads const& threads_;
};

} // namespace detail
ADAMANT_END_NAMESPACE
