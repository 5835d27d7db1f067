// SPDX-License-Identifier: Apache-2.0
// A micro-step: a shard's gradient is added to its accumulator, on both sides.
#pragma once

#include <cstddef>
#include <string>

#include <adamant/error.hpp>
#include <adamant/detail/engine/registry.hpp>
#include <adamant/detail/engine/step_session.hpp>

ADAMANT_BEGIN_NAMESPACE
namespace detail {

// The device's part. Where it fails in an open step, the step has failed, and finish() reports that. Throws
// device_error.
inline void accumulate_on_device(device_backend& on, std::size_t shard, bool first, registry& over,
                                 step_session& session)
{
    bool const in_step = !session.machine().is_between_steps();
    auto const watch = [&](auto const& work) { in_step ? session.watch(work) : on.at_rest(work); };
    if (!on.has_pieces_of(shard) && !over.has_device_arrays(shard))
        return;
    watch([&] { on.bring_gradients(shard); });
    if (!on.has_pieces_of(shard))
        return;
    try {
        watch([&] { on.accumulate(shard, first); });
    } catch (...) { // also where memory ends: some pieces may have been added
        over.forget_sum(shard);
        rethrow_as_device_error(text_of({"; the gradients accumulated for shard ", over.text(shard), " are lost"}));
    }
}

// Waits until it is done. Everything is laid out. Throws what the team and the device throw.
inline void accumulate_gradient(std::size_t shard, registry& over, step_session& session)
{
    tracked_shard const& s = over[shard];
    bool const first = s.summed == 0;
    if (device_backend* const on = session.sides().device())
        accumulate_on_device(*on, shard, first, over, session);
    cpu_backend const& host = session.sides().host();
    for (std::size_t r = host.first_range(shard); r < host.first_range(shard + 1); ++r)
        host.for_each_slice_of(host.ranges()[r],
                               [&](std::size_t begin, std::size_t end) { s.shard.accumulate(begin, end, first); });
    over.count_micro_step(shard);
}

} // namespace detail
ADAMANT_END_NAMESPACE
