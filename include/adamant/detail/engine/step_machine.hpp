// SPDX-License-Identifier: Apache-2.0
// The state machine of an optimizer's step, and its table of transitions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include <adamant/error.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// "Rolled back" means that params and moments have the bits that they had before the step.
enum class step_state : std::uint8_t {
    // Between steps.
    idle,
    behind,                 // the device still has to roll back its part of a failed step
    inconsistent,           // params and moments are inconsistent: load a checkpoint
    inconsistent_behind,    // both
    rolling_back_last_step, // rollback() is running

    // In a step.
    open,         // the first pass, over each shard when it is submitted, or over all together
    rolling_back, // rolls back the blocks that the first pass stepped with wrong gradient factors
    skipping,     // the same, in a step that changes nothing
    stepping,     // the pass after the norm is known
    finishing,    // the device is done, and the CPU steps the blocks whose records did not fit into the journal
    over,         // all passes are complete, and so is the report

    // In a step whose device has failed.
    failed,          // the step must be rolled back
    failed_finishing // all blocks were stepped before the failure; the device lacks some weights only
};
inline constexpr std::size_t step_states = 13;

[[nodiscard]] constexpr char const* name(step_state state) noexcept
{
    constexpr char const* names[step_states] = {"idle",
                                                "behind",
                                                "inconsistent",
                                                "inconsistent_behind",
                                                "rolling_back_last_step",
                                                "open",
                                                "rolling_back",
                                                "skipping",
                                                "stepping",
                                                "finishing",
                                                "over",
                                                "failed",
                                                "failed_finishing"};
    return names[static_cast<std::size_t>(state)];
}

// The table of transitions. A step that is rolled back goes from `open` or `failed` to one of the first four states.
[[nodiscard]] constexpr bool may_follow(step_state current, step_state following) noexcept
{
    using enum step_state;
    constexpr auto set = [](auto... states) { return (0u | ... | (1u << static_cast<unsigned>(states))); };
    constexpr unsigned next[step_states] = {
        set(open, rolling_back_last_step, inconsistent),                              // idle
        set(idle),                                                                    // behind
        set(inconsistent, idle),                                                      // inconsistent
        set(inconsistent),                                                            // inconsistent_behind
        set(idle, behind),                                                            // rolling_back_last_step
        set(rolling_back, skipping, stepping, finishing, over, failed, idle, behind), // open
        set(stepping, failed),                                                        // rolling_back
        set(over, failed),                                                            // skipping
        set(finishing, over, failed),                                                 // stepping
        set(over, failed_finishing),                                                  // finishing
        set(idle),                                                                    // over
        set(failed, idle, behind, inconsistent, inconsistent_behind),                 // failed
        set(failed_finishing, behind),                                                // failed_finishing
    };
    return (next[static_cast<std::size_t>(current)] >> static_cast<unsigned>(following) & 1) != 0;
}

// The state of one optimizer. The thread that drives the step writes it: the caller's thread, or in an asynchronous
// step the team's thread that ends a pass. Any thread may read it at any time.
class step_machine {
public:
    [[nodiscard]] step_state state() const noexcept { return state_.load(std::memory_order_acquire); }
    // Whether the team drives the current step; otherwise the caller does.
    [[nodiscard]] bool is_async() const noexcept { return is_async_.load(std::memory_order_acquire); }

    [[nodiscard]] bool is_between_steps() const noexcept { return is_between(state()); }
    [[nodiscard]] bool is_behind() const noexcept
    {
        return state() == step_state::behind || state() == step_state::inconsistent_behind;
    }
    [[nodiscard]] bool is_inconsistent() const noexcept
    {
        return state() == step_state::inconsistent || state() == step_state::inconsistent_behind;
    }
    // Whether shards may be submitted. That includes steps whose device has failed: finish() reports the failure.
    [[nodiscard]] bool takes_shards() const noexcept
    {
        return !is_async() && (state() == step_state::open || state() == step_state::failed);
    }
    [[nodiscard]] bool has_failed() const noexcept { return state() >= step_state::failed; }

    // Throws std::logic_error for a transition that is not in the table: a defect of this library.
    void go(step_state following)
    {
        if (!may_follow(state(), following))
            throw std::logic_error(text_of({"adamant: internal error: a step went from the state '", name(state()),
                                            "' to '", name(following), "'. Please report this defect."}));
        if (is_between(following))
            is_async_.store(false, std::memory_order_release);
        state_.store(following, std::memory_order_release);
    }
    void open(bool is_async)
    {
        go(step_state::open);
        is_async_.store(is_async, std::memory_order_release);
    }
    // Records that the device has failed in the step.
    void fail()
    {
        bool const late = state() == step_state::finishing || state() == step_state::failed_finishing;
        go(late ? step_state::failed_finishing : step_state::failed);
    }

private:
    [[nodiscard]] static constexpr bool is_between(step_state state) noexcept
    {
        return state <= step_state::rolling_back_last_step;
    }

    std::atomic<step_state> state_{step_state::idle};
    std::atomic<bool> is_async_{false};
};

} // namespace detail
ADAMANT_END_NAMESPACE
